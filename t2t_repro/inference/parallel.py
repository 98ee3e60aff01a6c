"""How decoding uses the cores of a processor: a batch on as many of them as TensorFlow gives an operation, and other
batches at the same time on the others.

Most operations of a step are over before a second thread has begun. On two cores base translates 64 sentences 1.56
times as fast (in 8-bit integers; 1.36 in bfloat16, 1.18 in float32) when each core has half of them than when both have
all (`benchmarks.decode`). One sentence of base is translated 1.29, 1.05 and 0.83 times as fast by one core as by two;
of big 0.9, 0.75 and 0.65 times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from t2t_repro.processor import usable_cores

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def set_threads(threads: int) -> None:
    """Of one operation, in the whole process; 0: all cores. Nothing changes once TensorFlow has computed anything."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def set_batches(batches: int) -> None:
    """Lets that many graphs run in parallel, in the whole process. By default TensorFlow runs one per core, and a loop
    in one of them keeps further ones waiting until it ends. Nothing changes once TensorFlow has computed anything."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_inter_op_parallelism_threads(batches)


def batches_at_once() -> int:
    """As many as fill the cores, each on `set_threads` of them; one where a GPU computes."""
    cores = usable_cores()
    threads = tf.config.threading.get_intra_op_parallelism_threads() or cores
    return 1 if tf.config.list_physical_devices("GPU") else max(1, cores // threads)


def at_once(function: Callable[[Batch], Result], batches: Sequence[Batch], most: int | None = None) -> Iterator[Result]:
    """`function` of each batch, in their order; `batches_at_once` of them run in parallel, and no more than `most`."""
    threads = min(batches_at_once(), len(batches), most or len(batches))
    if threads <= 1:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(threads, "batch") as pool:
        yield from pool.map(function, batches)
