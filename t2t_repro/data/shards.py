"""Shards: TFRecord files of `tf.train.Example {inputs, targets}`, with `corpus` if the split has several corpora."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from t2t_repro.io import JsonRecord, atomic_write, sha256

SHARD_NAME = re.compile(r"(train|validation|test)-\d{5}-of-\d{5}\.tfrecord")


@dataclass(frozen=True)
class FileRecord(JsonRecord):
    """A file of prepared data as `dataset.json` records it: a shard, or trees."""

    name: str
    bytes: int
    records: int
    sha256: str

    @classmethod
    def of(cls, path: str, records: int) -> FileRecord:
        """Records the file at `path`, which holds that many records."""
        return cls(os.path.basename(path), os.path.getsize(path), records, sha256(path))

    def is_intact(self, directory: str) -> bool:
        """Returns whether the file is in `directory`, with the recorded number of bytes."""
        path = os.path.join(directory, self.name)
        return os.path.isfile(path) and os.path.getsize(path) == self.bytes


def shard_names(split: str, number: int) -> list[str]:
    """Returns `train-00000-of-00004.tfrecord` and so on."""
    return [f"{split}-{index:05d}-of-{number:05d}.tfrecord" for index in range(number)]


def example(inputs: list[int], targets: list[int], corpus: int | None = None) -> bytes:
    """Returns a serialized `tf.train.Example` with the int64 features `inputs`, `targets` and, if given, `corpus`."""
    # TensorFlow's message format without TensorFlow: worker processes stay small and start quickly
    from tensorflow_datasets.proto.tf_example_generated_pb2 import Example

    message = Example()
    message.features.feature["inputs"].int64_list.value.extend(inputs)
    message.features.feature["targets"].int64_list.value.extend(targets)
    if corpus is not None:
        message.features.feature["corpus"].int64_list.value.append(corpus)
    return message.SerializeToString(deterministic=True)


def write_shard(path: str, examples: Iterable[bytes]) -> FileRecord:
    """Writes a TFRecord file atomically. Raises OSError if that fails, as on a full disk."""
    import tensorflow as tf

    records = 0
    with atomic_write(path) as temporary:
        try:
            with tf.io.TFRecordWriter(temporary) as writer:
                for serialized in examples:
                    writer.write(serialized)
                    records += 1
        except tf.errors.OpError as error:
            raise OSError(f"cannot write {path}: {error.message}") from None
    return FileRecord.of(path, records)


def count_records(path: str) -> int:
    """Counts the records of a TFRecord file by their lengths. Raises ValueError if the file is cut off."""
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
