"""The precision of matrix products.

In "bfloat16" and "float16" the activations between products have that dtype too: residual sums, biases, ReLU, dropout,
and the attention weights that are kept for the backward pass. Weights, accumulated gradients, Adam, softmax, the sums
of the loss and the statistics of layer normalization are always float32. In "tf32" a GPU rounds the factors of float32
products to ten bits of mantissa; in every other precision it does not.
"""

from __future__ import annotations

import tensorflow as tf

from t2t_repro.config import PRECISIONS
from t2t_repro.run import Run
from t2t_repro.training import hardware

POLICIES = {  # Keras' names
    "float32": "float32",
    "tf32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


def allow_tf32(allowed: bool) -> None:
    """Enables or disables TF32 on GPUs for this process. TensorFlow enables it by default."""
    tf.config.experimental.enable_tensor_float_32_execution(allowed)


def resolve(precision: str, of_run: str | None = None) -> str:
    """Returns the precision that "auto" stands for; returns any other `precision` unchanged.

    "auto" stands for `of_run`, the precision of a run. Without a run it stands for that with the fastest products
    (`hardware.native_precision`): "bfloat16" on GPUs of compute capability 8.0 and later and on processors whose
    products in bfloat16 are faster than in float32, "float16" on GPUs of 7.0 and later, whose tensor cores support only
    that, and "float32" elsewhere.

    Raises ValueError for an unknown precision, and for one that cannot be computed here. "tf32" needs GPUs of compute
    capability 8.0 or later, unless it is `of_run`: the weights of such a run are float32.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "tf32":
        least = min((gpu["compute_capability"] for gpu in hardware.gpus()), default=None)
        if least is None or least < (8, 0):
            raise ValueError(
                "precision 'tf32' expects GPUs of compute capability 8.0 or later. "
                f"Received: {'no GPU' if least is None else least}; take 'float32'"
            )
    chosen = precision if precision != "auto" else of_run or hardware.native_precision()[0]
    if fault := hardware.precision_fault(chosen):
        raise ValueError(f"precision {chosen!r} cannot be computed here: {fault}; take 'float32', or lift that limit")
    return chosen


def resolve_for_run(precision: str, output_dir: str) -> str:
    """Returns `resolve` with the precision of the run in `output_dir`, if there is one."""
    return resolve(precision, Run.open(output_dir).precision if Run.exists(output_dir) else None)
