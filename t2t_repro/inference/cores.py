"""How decoding uses the cores of a processor: a batch on as many of them as TensorFlow gives an operation, and other
batches at the same time on the others.

Most operations of a step are over before a second thread has begun. On two cores base translates 64 sentences in 0.65
of the time (in 8-bit integers) or 0.75 (bfloat16) when each core has half of them (`benchmarks.decode`). One sentence
of base takes as long on one core as on two, one of big 1.1 (8-bit integers) to 1.5 times as long.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def set_threads(threads: int) -> None:
    """Of one operation, in the whole process; 0: all cores. Nothing changes once TensorFlow has computed anything."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def batches_at_once() -> int:
    """As many as fill the cores, each on `set_threads` of them; one where a GPU computes."""
    cores = os.cpu_count() or 1
    threads = tf.config.threading.get_intra_op_parallelism_threads() or cores
    return 1 if tf.config.list_physical_devices("GPU") else max(1, cores // threads)


def at_once(function: Callable[[Batch], Result], batches: Sequence[Batch]) -> Iterator[Result]:
    """`function` of each batch, in their order, `batches_at_once` of them computed at the same time."""
    threads = min(batches_at_once(), len(batches))
    if threads <= 1:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(threads, "batch") as pool:
        yield from pool.map(function, batches)
