"""t2t-trainer as one machine of a test, on the problem of `small`, with PART tokens per part, on as many
CPUs as REPLICAS says."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from helpers.tiny_model import PART_TOKENS, PROBLEM, TINY  # noqa: E402
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended  # noqa: E402

from t2t_repro.bin import t2t_trainer  # noqa: E402
from t2t_repro.data import batching  # noqa: E402
from t2t_repro.registry import HPARAMS, PROBLEMS  # noqa: E402


def main() -> int:
    replicas = int(os.environ.get("REPLICAS", "1"))
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)

    def local_devices(strategy, resolver, worker):
        """TensorFlow takes all GPUs of a machine among several, and of its CPUs one."""
        return tuple(f"{worker}/device:CPU:{index}" for index in range(replicas)), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = local_devices
    batching.PART_TOKENS = int(os.environ.get("PART", PART_TOKENS))
    PROBLEMS.register(PROBLEM)
    HPARAMS.register(replace(TINY, name="smallest"))
    return t2t_trainer.main()


if __name__ == "__main__":
    sys.exit(main())
