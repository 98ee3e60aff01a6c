"""The heap of the C library, where TensorFlow and Python keep most of what they allocate. Without glibc, no effect."""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8  # <malloc.h> of glibc


def one_heap() -> None:
    """Makes all threads share one heap. Call it before importing TensorFlow.

    By default glibc gives threads separate heaps, and memory freed in one heap cannot be used by other threads. base
    then needs about 50 MB more. It trains no faster, because its tensors are not on these heaps. Learning a vocabulary
    from 200,000 pairs of news takes 291 MB instead of 399.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Returns freed memory to the system, which otherwise stays with the process up to the peak of its use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
