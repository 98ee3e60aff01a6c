"""A task that times the train step of a hyperparameter set, on random pairs of one length.

On GPUs a complete step is timed. On a processor it would take minutes, so a step with one micro-batch and a step
without micro-batches (Adam, the sum) are timed. A step of A micro-batches is the latter plus A times the difference.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import t2t_repro
from t2t_repro.config import HParams
from t2t_repro.flops import training_flops
from t2t_repro.training import hardware
from t2t_repro.training.parallel import set_training_threads
from t2t_repro.training.train_step import ReplicaInputs, TrainStep, default_microbatch_tokens, make_model

VOCAB_SIZES = {"base": 37_000, "big": 37_000, "tiny": 4_000}  # of the intended problems
LENGTH = 25  # tokens per sentence: about the mean of WMT14
WATCHED, MOST = 1.0, 10  # seconds of all timings, and their maximum number


def flops(set_name: str) -> float:
    """Returns the FLOPs of one micro-batch."""
    hparams = t2t_repro.get_hparams(set_name)
    pairs = _pairs(hparams)
    return float(training_flops(hparams, VOCAB_SIZES[set_name], pairs, LENGTH, LENGTH, pairs * LENGTH))


def step(set_name: str, precision: str, xla: bool = False) -> dict[str, Any]:
    """Times a step.

    Returns its seconds, tokens per second and side, peak memory, the seconds until the first step is done, and the
    number of micro-batches per device.
    """
    _reset_peak()
    hparams = t2t_repro.get_hparams(set_name)
    set_training_threads(hparams)
    gpus = hardware.gpu_names()
    devices = gpus or ["CPU:0"]
    with tf.distribute.MirroredStrategy(devices).scope():
        model, optimizer = make_model(VOCAB_SIZES[set_name], hparams, seed=1, precision=precision)
        size = default_microbatch_tokens(hparams, len(devices))
        train_step = TrainStep(model, optimizer, hparams, seed=1, microbatch_tokens=size, jit_compile=xla)
    number = train_step.microbatches
    spec = {name: tf.TensorSpec([None, None, None], tf.int32) for name in ("inputs", "targets")}
    take_step = train_step.build(spec | {"sizes": tf.TensorSpec([None, 3], tf.int32)})

    def seconds(filled: int) -> float:
        """Returns the seconds of a step with `filled` micro-batches on each device, the others empty."""
        inputs = [_inputs(hparams, VOCAB_SIZES[set_name], number, filled) for _ in devices]
        start = time.perf_counter()
        take_step(inputs, tf.constant(1), tf.constant(0.0)).numpy()
        return time.perf_counter() - start

    computed = number if gpus else min(number, train_step.parallel)
    startup = seconds(computed)
    taken = _least(seconds, computed)
    if computed < number:
        rest = _least(seconds, 0)
        taken = rest + number / computed * (taken - rest)
    tokens = _pairs(hparams) * LENGTH * number * len(devices)
    return {
        "seconds": taken,
        "tokens_per_second": tokens / taken,
        "peak_bytes": hardware.peak_bytes(),
        "startup_seconds": startup,
        "micro_batches": number,
        "estimated": computed < number,
    }


def _least(seconds: Any, filled: int) -> float:
    end, taken = time.perf_counter() + WATCHED, list[float]()
    while not taken or (time.perf_counter() < end and len(taken) < MOST):
        taken.append(seconds(filled))
    return min(taken)


def _pairs(hparams: HParams) -> int:
    return default_microbatch_tokens(hparams, max(len(hardware.gpu_names()), 1)) // LENGTH


def _inputs(hparams: HParams, vocab_size: int, number: int, filled: int) -> ReplicaInputs:
    """Returns inputs as `TrainingText.batches` yields them: `number` micro-batches, the first `filled` with pairs."""
    pairs, rng = _pairs(hparams), np.random.default_rng(1)
    ids = rng.integers(1, vocab_size, [2, number, pairs, LENGTH]).astype(np.int32)
    sizes = np.zeros([number, 3], np.int32)
    sizes[:filled] = pairs, LENGTH, LENGTH
    ids[:, filled:] = 0
    return {"inputs": tf.constant(ids[0]), "targets": tf.constant(ids[1]), "sizes": tf.constant(sizes)}


def _reset_peak() -> None:
    """Resets the peak memory counters of the kernel and TensorFlow, so that the peak is that of this task."""
    keras.backend.clear_session()
    for gpu in hardware.gpu_names():
        tf.config.experimental.reset_memory_stats(gpu)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
