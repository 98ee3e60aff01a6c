"""This package's training step for any sizes, on pairs of equal length. Mode: a `Point` as a string."""

from __future__ import annotations

import argparse

from benchmarks.scaling import Point
from benchmarks.workers import protocol

parser = argparse.ArgumentParser()
parser.add_argument("--precision", required=True)
parser.add_argument("--mode", required=True)
arguments = parser.parse_args()
point = Point.read(arguments.mode)
protocol.quiet_output()

from t2t_repro.system.heap import one_heap  # noqa: E402

one_heap()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks.batches import FIRST_ID  # noqa: E402
from benchmarks.updater import compiled_update, hparams_of  # noqa: E402
from t2t_repro.data.batching import microbatches  # noqa: E402
from t2t_repro.training.parallel import set_training_threads  # noqa: E402
from t2t_repro.training.train_step import default_microbatch_tokens  # noqa: E402


def element(rng: np.random.Generator) -> dict[str, tf.Tensor]:
    """Returns the input of one replica: as many micro-batches as in training, each with as many pairs as fit."""
    shape, length, replicas = point.shape, point.length, point.replicas
    count = microbatches(shape.batch_tokens, replicas, default_microbatch_tokens(hparams_of(shape), replicas))
    pairs = shape.batch_tokens // (replicas * count * length)
    size = (count, pairs, length)
    sides = {side: rng.integers(FIRST_ID, shape.vocab_size, size, np.int32) for side in ("inputs", "targets")}
    sizes = np.tile(np.array([pairs, length, length], np.int32), (count, 1))
    return {name: tf.constant(value) for name, value in (sides | {"sizes": sizes}).items()}


def main() -> None:
    set_training_threads(hparams_of(point.shape))
    if point.replicas > 1 and not tf.config.list_physical_devices("GPU"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one] * point.replicas)
    imported = protocol.resident_bytes()
    elements = [element(np.random.default_rng(replica)) for replica in range(point.replicas)]
    spec = {name: tf.TensorSpec([None] * value.shape.rank, tf.int32) for name, value in elements[0].items()}
    spec["sizes"] = tf.TensorSpec([None, 3], tf.int32)
    update = compiled_update(point.shape, arguments.precision, spec, point.replicas)
    protocol.serve(lambda _: update(*elements), elements[:1], imported)


if __name__ == "__main__":
    main()
