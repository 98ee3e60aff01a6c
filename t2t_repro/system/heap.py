"""The heap of the C library, where TensorFlow and Python keep most of what they allocate. Without glibc, no effect."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"  # variable that glibc reads at the start of a process
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # glibc 2.35 and later asks the system for huge pages
_M_ARENA_MAX = -8  # <malloc.h> of glibc
_HUGE_PAGES_OF_LINUX = "/sys/kernel/mm/transparent_hugepage/enabled"


def one_heap() -> None:
    """Makes all threads share one heap. Call it before importing TensorFlow.

    By default glibc gives threads separate heaps, and memory freed in one heap cannot be used by other threads. base
    then needs about 50 MB more. It trains no faster, because its tensors are not on these heaps. Learning a vocabulary
    from 200,000 pairs of news takes 291 MB instead of 399.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def can_have_huge_pages() -> bool:
    """Returns whether Linux gives huge pages to processes that ask for them, and glibc can ask (`HUGE_PAGES`).

    With pages of 2 MB instead of 4 KB, the processor looks up fewer addresses. On an Intel Xeon with AMX, two idle
    cores, a step in bfloat16 is 1.05 times as fast with base (11 rounds, 1.00 to 1.08), with the same peak of memory,
    and 1.03 times (1.01 to 1.08) with small, whose peak is 1.01 times as high.
    """
    with contextlib.suppress(OSError, ValueError):
        library, version = platform.libc_ver()
        is_known = library == "glibc" and tuple(map(int, version.split("."))) >= (2, 35)
        return is_known and "[madvise]" in Path(_HUGE_PAGES_OF_LINUX).read_text("ascii")
    return False


def return_freed_memory() -> None:
    """Returns freed memory to the system, which otherwise stays with the process up to the peak of its use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
