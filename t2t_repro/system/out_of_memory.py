"""Lack of memory in training. This module does not import TensorFlow."""

from __future__ import annotations

from typing import Any

REMEDY = "use a smaller hyperparameter set, precision=bfloat16, or batch_tokens=2048"
_OUT_OF_MEMORY = ("OOM when allocating", "OUT_OF_MEMORY", "Out of memory")  # in errors of collectives, CUDA and XLA


class OutOfMemory(ValueError):
    """Memory ran out on one of several devices, so the devices can no longer communicate in this process.

    `microbatch_tokens` is half of the size that was tried. Another process can continue with it.
    """

    def __init__(self, message: str, microbatch_tokens: int):
        super().__init__(message)
        self.microbatch_tokens = microbatch_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.microbatch_tokens)


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error of TensorFlow means that a device ran out of memory."""
    return type(error).__name__ == "ResourceExhaustedError" or any(sign in str(error) for sign in _OUT_OF_MEMORY)
