"""The memory of a process that trains."""

from __future__ import annotations

import contextlib
import ctypes

SMALLER = "take a smaller set, --precision=bfloat16, or --override=batch_tokens=2048"  # where it does not suffice
M_ARENA_MAX = -8  # <malloc.h> of glibc


def one_heap() -> None:
    """Lets all threads share one heap, where the C library is glibc: to be called before TensorFlow is imported.

    Otherwise glibc gives threads heaps of their own, and what is freed in one is of no use to the others: some 50 MB
    more in a training of base, which is no faster for it, since its tensors lie elsewhere.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
