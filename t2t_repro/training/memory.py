"""The memory of a process that trains. TensorFlow need not be loaded."""

from __future__ import annotations

import contextlib
import ctypes

REMEDY = "take a smaller set, precision=bfloat16, or batch_tokens=2048"
_OUT_OF_MEMORY = ("OOM when allocating", "OUT_OF_MEMORY", "Out of memory")  # in errors of collectives, CUDA and XLA
M_ARENA_MAX = -8  # <malloc.h> of glibc


def one_heap() -> None:
    """Lets all threads share one heap, where the C library is glibc: to be called before TensorFlow is imported.

    Otherwise glibc gives threads heaps of their own, and memory that is freed in one is of no use to the others: base
    then takes some 50 MB more, and trains no faster, since its tensors lie elsewhere.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


class OutOfMemory(ValueError):
    """Memory ran out on one of several devices, which ends all communication between them in this process.

    `microbatch_tokens` is half of what was tried; with it, another process can continue.
    """

    def __init__(self, message: str, microbatch_tokens: int):
        super().__init__(message)
        self.microbatch_tokens = microbatch_tokens


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error of TensorFlow reports that a device had no memory left."""
    return type(error).__name__ == "ResourceExhaustedError" or any(sign in str(error) for sign in _OUT_OF_MEMORY)
