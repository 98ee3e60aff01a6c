"""Shards: TFRecord files of `tf.train.Example {inputs, targets}`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from t2t_repro.io import atomic_write, sha256

SHARD_NAME = re.compile(r"(train|validation|test)-\d{5}-of-\d{5}\.tfrecord")


def shard_names(split: str, number: int) -> list[str]:
    """`train-00000-of-00004.tfrecord` and so on."""
    return [f"{split}-{index:05d}-of-{number:05d}.tfrecord" for index in range(number)]


def example(inputs: list[int], targets: list[int]) -> bytes:
    """A serialised `tf.train.Example` with the int64 features `inputs` and `targets`."""
    # the same messages as TensorFlow's, without TensorFlow: a process that encodes is small and starts at once
    from tensorflow_datasets.proto.tf_example_generated_pb2 import Example

    message = Example()
    message.features.feature["inputs"].int64_list.value.extend(inputs)
    message.features.feature["targets"].int64_list.value.extend(targets)
    return message.SerializeToString(deterministic=True)


def write_shard(path: str, examples: Iterable[bytes]) -> dict[str, Any]:
    """Writes a TFRecord file, whole or not at all. Returns its name, bytes, number of records and SHA-256.

    Raises OSError where it cannot be written, as on a full disk.
    """
    import tensorflow as tf

    records = 0
    with atomic_write(path) as temporary:
        try:
            with tf.io.TFRecordWriter(temporary) as writer:
                for serialised in examples:
                    writer.write(serialised)
                    records += 1
        except tf.errors.OpError as error:
            raise OSError(f"cannot write {path}: {error.message}") from None
    return {"name": os.path.basename(path), "bytes": os.path.getsize(path), "records": records, "sha256": sha256(path)}


def count_records(path: str) -> int:
    """The number of records in a TFRecord file, by walking their lengths. Raises ValueError where it is cut off."""
    size, end, records = os.path.getsize(path), 0, 0
    with open(path, "rb") as file:
        while end < size:
            header = file.read(12)  # length, and its checksum
            end += 12 + int.from_bytes(header[:8], "little") + 4
            if end > size:
                raise ValueError(f"{path} is damaged: cut off after {records:,} records")
            file.seek(end)
            records += 1
    return records
