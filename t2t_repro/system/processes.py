"""Maps a function over items in several processes, with results in order."""

from __future__ import annotations

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(work: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """Yields `work(item)` for each item, in order. One process is this one.

    The processes are spawned, not forked, because this process has threads and TensorFlow. They end whenever this
    process ends. At most two items per process are queued. Raises the exceptions of `work`, and ChildProcessError if a
    process is killed.
    """
    if processes == 1:
        yield from map(work, items)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start)
    waiting: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process was killed, perhaps for lack of memory (in your own script, call this below "
            "`if __name__ == '__main__':`); run the same command again to continue"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)
