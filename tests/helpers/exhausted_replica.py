"""t2t-trainer on two logical CPUs, whose second one has no memory for a micro-batch of more than forty pairs.

Memory runs out inside the graph of a step, while the first replica waits in the sum over both: as on one of several
GPUs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from helpers.tiny_model import PART_TOKENS, PROBLEM, TINY  # noqa: E402

from t2t_repro.bin import t2t_trainer  # noqa: E402
from t2t_repro.data import batching  # noqa: E402
from t2t_repro.registry import HPARAMS, PROBLEMS  # noqa: E402
from t2t_repro.training.train_step import TrainStep  # noqa: E402

PAIRS = 40
BYTES = 2**42


def exhausting(self: TrainStep, source_BM: tf.Tensor, *arguments: Any) -> Any:
    gradients, loss = plain_gradients(self, source_BM, *arguments)
    on_second = tf.distribute.get_replica_context().replica_id_in_sync_group == 1
    size = tf.where(on_second & (tf.shape(source_BM)[0] > PAIRS), BYTES, 1)
    first, *others = gradients
    return [first + 0.0 * tf.reduce_sum(tf.fill([size], tf.stop_gradient(loss.smoothed))), *others], loss


def main() -> int:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = ["CPU:0", "CPU:1"]
    mirrored = tf.distribute.MirroredStrategy
    tf.distribute.MirroredStrategy = lambda: mirrored(devices)
    batching.PART_TOKENS = PART_TOKENS
    PROBLEMS.register(PROBLEM)
    HPARAMS.register(replace(TINY, name="smallest", train_steps=5))
    TrainStep._gradients = exhausting
    return t2t_trainer.main()


plain_gradients = TrainStep._gradients

if __name__ == "__main__":
    sys.exit(main())
