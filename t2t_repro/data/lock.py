"""A lock that admits one process at a time to a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def locked(directory: str, report: Callable[[str], None]) -> Iterator[None]:
    """Creates and locks `directory`. Reports and waits if another process holds the lock; its end releases it."""
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
