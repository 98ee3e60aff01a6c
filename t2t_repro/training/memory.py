"""Memory of a training process. This module does not import TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes

REMEDY = "use a smaller hyperparameter set, precision=bfloat16, or batch_tokens=2048"
_OUT_OF_MEMORY = ("OOM when allocating", "OUT_OF_MEMORY", "Out of memory")  # in errors of collectives, CUDA and XLA
M_ARENA_MAX = -8  # <malloc.h> of glibc


def one_heap() -> None:
    """Makes all threads share one heap, if the C library is glibc. Call it before importing TensorFlow.

    By default glibc gives threads separate heaps, and memory freed in one heap cannot be used by other threads. base
    then needs about 50 MB more. It trains no faster, because its tensors are not on these heaps. Learning a vocabulary
    from 200,000 pairs of news takes 291 MB instead of 399.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class OutOfMemory(ValueError):
    """Memory ran out on one of several devices, so the devices can no longer communicate in this process.

    `microbatch_tokens` is half of the size that was tried. Another process can continue with it.
    """

    def __init__(self, message: str, microbatch_tokens: int):
        super().__init__(message)
        self.microbatch_tokens = microbatch_tokens


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error of TensorFlow means that a device ran out of memory."""
    return type(error).__name__ == "ResourceExhaustedError" or any(sign in str(error) for sign in _OUT_OF_MEMORY)
