"""What the matrix products are computed in. Weights, softmax, loss and normalisation statistics are float32 always."""

from __future__ import annotations

import tensorflow as tf

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}  # Keras' names
CHOICES = ("auto", *POLICIES)


def resolve(precision: str) -> str:
    """`precision`, or for "auto" the fastest that the hardware computes natively: "bfloat16" or "float32".

    Raises ValueError for another name.
    """
    if precision not in CHOICES:
        raise ValueError(f"precision must be one of {', '.join(CHOICES)}, got {precision!r}")
    if precision != "auto":
        return precision
    return "bfloat16" if _has_bfloat16() else "float32"


def _has_bfloat16() -> bool:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        return all(detail.get("compute_capability", (0, 0)) >= (8, 0) for detail in details)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
