"""Shards: TFRecord files of `tf.train.Example {inputs, targets}`, and the global shuffle of training pairs over them.

A pair's shard and its place in the shard are functions of its number in the text alone. So the shuffle needs no order
of work: `Deal` throws each pair onto the heap of its shard as it comes, and afterwards each heap, small enough for the
memory, is put in order and written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import struct
from collections.abc import Iterable, Iterator
from typing import IO, Any

from t2t_repro.files import sha256, written_whole

SHARD_NAME = re.compile(r"(train|validation|test)-\d{5}-of-\d{5}\.tfrecord")
_CARD = struct.Struct("<QI")  # place in the shard's order, bytes of the example that follows


def shard_names(split: str, number: int) -> list[str]:
    """`train-00000-of-00004.tfrecord` and so on."""
    return [f"{split}-{index:05d}-of-{number:05d}.tfrecord" for index in range(number)]


def example(inputs: list[int], targets: list[int]) -> bytes:
    """A serialised `tf.train.Example` with the int64 features `inputs` and `targets`."""
    from tensorflow.core.example.example_pb2 import Example

    message = Example()
    message.features.feature["inputs"].int64_list.value.extend(inputs)
    message.features.feature["targets"].int64_list.value.extend(targets)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def write_shard(path: str, examples: Iterable[bytes]) -> dict[str, Any]:
    """Writes a TFRecord file, whole or not at all. Returns its name, bytes, number of records and SHA-256.

    Raises OSError where it cannot be written, as on a full disk.
    """
    import tensorflow as tf

    records = 0
    with written_whole(path) as temporary:
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


class Deal:
    """Training examples dealt out to as many heaps as there will be shards. A context: at its end the heaps are gone.

    A heap is a file below `folder`, which is made anew.
    """

    def __init__(self, folder: str, number: int):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self._folder = folder
        self._heaps: list[IO[bytes]] = [open(self._path(index), "wb") for index in range(number)]

    def __enter__(self) -> Deal:
        return self

    def __exit__(self, *_: object) -> None:
        for heap in self._heaps:
            with contextlib.suppress(OSError):  # a full disk, already reported
                heap.close()
        shutil.rmtree(self._folder)

    def add(self, number: int, serialised: bytes) -> None:
        """Deals the example of pair `number`, by a hash of that number: anywhere, but always there."""
        digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16, person=b"t2t_repro deal").digest()
        shard, place = struct.unpack("<QQ", digest)
        heap = self._heaps[shard % len(self._heaps)]
        heap.write(_CARD.pack(place, len(serialised)))
        heap.write(serialised)

    def write(self, directory: str) -> list[dict[str, Any]]:
        """Writes all training shards, one heap in memory at a time, and returns what `write_shard` says of each."""
        for heap in self._heaps:
            heap.close()
        names = shard_names("train", len(self._heaps))
        return [write_shard(os.path.join(directory, name), self._sorted(index)) for index, name in enumerate(names)]

    def _sorted(self, index: int) -> Iterator[bytes]:
        """The examples of one heap in the order of their places; the heap is gone afterwards."""
        cards = []
        with open(self._path(index), "rb") as heap:
            while head := heap.read(_CARD.size):
                place, length = _CARD.unpack(head)
                cards.append((place, heap.read(length)))
        os.remove(self._path(index))
        cards.sort()
        for _, serialised in cards:
            yield serialised

    def _path(self, index: int) -> str:
        return os.path.join(self._folder, f"heap-{index:05d}")
