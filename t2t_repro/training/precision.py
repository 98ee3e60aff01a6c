"""The precision that matrix products are computed in.

In "bfloat16" and "float16" the activations between products have that dtype too: residual sums, biases, ReLU, dropout,
and the attention weights that are kept for the backward pass. Weights, their gradients' sums, Adam, softmax, the sums
of the loss and the statistics of layer normalization are float32 always. In "tf32" a GPU rounds the factors of float32
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
    """Lets GPUs multiply float32 in TF32, or not, in the whole process. TensorFlow's own default is to do so."""
    tf.config.experimental.enable_tensor_float_32_execution(allowed)


def resolve(precision: str, of_run: str | None = None) -> str:
    """Returns the precision that "auto" stands for: `of_run`, that of a run, or without one the fastest that the
    hardware computes natively; any other `precision` as it is.

    The fastest is "bfloat16" on GPUs of compute capability 8.0 and on processors that have it, "float16" on GPUs of 7.0
    and later, whose tensor cores are for that alone, and "float32" elsewhere (`hardware.native_precision`). Raises
    ValueError for an unknown precision, for one that cannot be computed here, and for "tf32" on other devices than GPUs
    of 8.0 and later, unless it is that of a run: its weights are float32.
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
    if chosen == "bfloat16" and (fault := hardware.bfloat16_fault()):
        raise ValueError(f"precision 'bfloat16' cannot be computed here: {fault}; take 'float32', or lift that limit")
    return chosen


def resolve_for_run(precision: str, output_dir: str) -> str:
    """Returns what `resolve` does for the run in `output_dir`, if there is one, whichever machine it started on."""
    return resolve(precision, Run.open(output_dir).precision if Run.exists(output_dir) else None)
