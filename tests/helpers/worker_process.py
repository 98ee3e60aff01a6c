"""t2t-trainer as one machine of a test, on the problem of `small`, with PART tokens per part, on as many
CPUs as REPLICAS says. With ASSEMBLED it appends to that file a line for each element that it assembles: the position,
and the spans of its pairs in the order of their window."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from helpers.tiny_model import PART_TOKENS, PROBLEM, TINY  # noqa: E402
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended  # noqa: E402

from t2t_repro.bin import t2t_trainer  # noqa: E402
from t2t_repro.data import batching, input_pipeline  # noqa: E402
from t2t_repro.registry import HPARAMS, PROBLEMS  # noqa: E402


def record_assembled(path: str) -> None:
    assemble = input_pipeline._assemble

    def note(position, spans):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([position.tolist(), spans.tolist()]) + "\n")
        return spans

    def recorded(position, dense, rows, spans):
        noted = tf.numpy_function(note, [position, spans], tf.int64)
        return assemble(position, dense, rows, tf.ensure_shape(noted, spans.shape))

    input_pipeline._assemble = recorded


def main() -> int:
    replicas = int(os.environ.get("REPLICAS", "1"))
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)

    def local_devices(strategy, resolver, worker):
        """TensorFlow takes all GPUs of a machine among several, and of its CPUs one."""
        return tuple(f"{worker}/device:CPU:{index}" for index in range(replicas)), "CPU"

    CollectiveAllReduceExtended._initialize_local_devices = local_devices
    batching.PART_TOKENS = int(os.environ.get("PART", PART_TOKENS))
    if path := os.environ.get("ASSEMBLED"):
        record_assembled(path)
    PROBLEMS.register(PROBLEM)
    HPARAMS.register(replace(TINY, name="smallest"))
    return t2t_trainer.main()


if __name__ == "__main__":
    sys.exit(main())
