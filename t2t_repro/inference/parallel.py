"""Use of the processor's cores for decoding: several batches in parallel, each on a few cores.

Most operations of a decoding step finish before a second thread starts. On two cores the base model translates 64
sentences 1.56 times as fast (in 8-bit integers; 1.36 in bfloat16, 1.18 in float32) when each of two batches has one
core than when both share two cores (`benchmarks.decode`). A single sentence is translated 1.29, 1.05 and 0.83 times as
fast by one core as by two with base, and 0.9, 0.75 and 0.65 times with big.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from t2t_repro.system.processor import usable_cores

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def set_threads(threads: int) -> None:
    """Sets the threads of an operation; 0: all cores. Has no effect once TensorFlow has computed anything."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def set_batches(batches: int) -> None:
    """Sets the number of graphs that run in parallel in this process.

    By default TensorFlow runs one per core, and a loop in one of them blocks further ones until it ends. Has no effect
    once TensorFlow has computed anything.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_inter_op_parallelism_threads(batches)


def num_parallel_batches() -> int:
    """Returns the number of batches that fill the cores, each using `set_threads` of them; 1 if there is a GPU."""
    cores = usable_cores()
    threads = tf.config.threading.get_intra_op_parallelism_threads() or cores
    return 1 if tf.config.list_physical_devices("GPU") else max(1, cores // threads)


def parallel_map(
    function: Callable[[Batch], Result], batches: Sequence[Batch], most: int | None = None
) -> Iterator[Result]:
    """Yields `function` of each batch, in order. At most `num_parallel_batches`, and `most`, run in parallel."""
    threads = min(num_parallel_batches(), len(batches), most or len(batches))
    if threads <= 1:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(threads, "batch") as pool:
        yield from pool.map(function, batches)
