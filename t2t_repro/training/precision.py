"""What the matrix products are computed in. Weights, softmax, loss and normalisation statistics are float32 always."""

from __future__ import annotations

import tensorflow as tf

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}  # Keras' names
CHOICES = ("auto", *POLICIES)


def resolve(precision: str) -> str:
    """`precision`, or for "auto" the fastest that the hardware computes natively.

    That is "bfloat16" on GPUs of compute capability 8.0 and on processors that have it, "float16" on GPUs of 7.0 and
    later, whose tensor cores are for that alone, and "float32" elsewhere. Raises ValueError for another name.
    """
    if precision not in CHOICES:
        raise ValueError(f"precision must be one of {', '.join(CHOICES)}, got {precision!r}")
    if precision != "auto":
        return precision
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "bfloat16" if _processor_has_bfloat16() else "float32"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    least = min(detail.get("compute_capability", (0, 0)) for detail in details)
    return "bfloat16" if least >= (8, 0) else "float16" if least >= (7, 0) else "float32"


def _processor_has_bfloat16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
