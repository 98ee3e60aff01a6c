"""Use of the processor's cores: several batches in parallel, each on a few cores.

Training: the operations of a small model are too short for several threads. On two cores (Intel Xeon with AMX,
bfloat16), a step is 1.23 times as fast with d_model 128 and 1.13 times with 256 when each of two micro-batches has one
core, in 1.11 and 1.06 times the memory. base would take 1.02 times as long (`benchmarks.train`).

Decoding: most operations of a decoding step finish before a second thread starts. On two cores the base model
translates 64 sentences 1.56 times as fast (in 8-bit integers; 1.36 in bfloat16, 1.18 in float32) when each of two
batches has one core than when all are one batch on two cores (`benchmarks.decode`). If nobody set the threads of an
operation, two batches share both cores, which takes 1.21 times as long in 8-bit integers and 1.09 times in float32
(Intel Xeon without AMX). A single sentence is translated 1.29, 1.05 and 0.83 times as fast by one core as by two with
base, and 0.9, 0.75 and 0.65 times with big.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.data.batching import part_tokens
from t2t_repro.system.processor import usable_cores

Batch = TypeVar("Batch")
Result = TypeVar("Result")

SMALL = 256  # maximum d_model of a model whose micro-batches have one core each
LEAST_TOKENS = 1_024  # per side in a micro-batch: smaller ones gain nothing


def set_threads(threads: int) -> None:
    """Sets the threads of an operation; 0: all cores. Has no effect once TensorFlow has computed anything."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(threads or usable_cores())


def microbatch_shares(hparams: HParams) -> int:
    """Returns the number of smaller micro-batches that replace each of a small model, so that they fill the cores.

    It depends on nothing that the process did before: other micro-batches have other dropout masks.
    """
    if hparams.d_model > SMALL or tf.config.list_physical_devices("GPU"):
        return 1
    return max(1, min(usable_cores(), part_tokens(hparams.batch_tokens) // LEAST_TOKENS))


def set_training_threads(hparams: HParams) -> None:
    """Sets the threads of an operation so that the `microbatch_shares` of a small model fill the cores."""
    if hparams.d_model <= SMALL and not tf.config.list_physical_devices("GPU"):
        set_threads(usable_cores() // microbatch_shares(hparams))


def set_batches(batches: int) -> None:
    """Sets the number of graphs that run in parallel in this process.

    By default TensorFlow runs one per core, and a loop in one of them blocks further ones until it ends. Has no effect
    once TensorFlow has computed anything.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_inter_op_parallelism_threads(batches)


def num_parallel_batches() -> int:
    """Returns the number of batches that fill the cores, with `set_threads` of them each, or else one; 1 with a GPU."""
    cores, threads = usable_cores(), tf.config.threading.get_intra_op_parallelism_threads()
    return 1 if tf.config.list_physical_devices("GPU") else max(1, cores // (threads or 1))


def num_parallel_microbatches() -> int:
    """Returns the number of micro-batches that fill the cores; 1 unless `set_training_threads` set their threads."""
    return num_parallel_batches() if tf.config.threading.get_intra_op_parallelism_threads() else 1


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
