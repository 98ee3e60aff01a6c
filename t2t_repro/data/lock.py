"""One process at a time in a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def locked(directory: str, report: Callable[[str], None]) -> Iterator[None]:
    """Makes `directory` and locks it; waits for another process that has, and says so. It goes with its process."""
    import filelock

    os.makedirs(directory, exist_ok=True)
    lock = filelock.FileLock(os.path.join(directory, ".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(f"another process prepares {directory}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
