"""The shuffle of all training pairs, over several processes and more data than memory holds.

A pair's shard, and its key for sorting within the shard, are functions of its number in the text alone. So the order of
work does not matter: each process encodes chunks of text and writes the examples of a chunk to a file, partitioned by
shard; then each shard is read from the files of all chunks, sorted in memory and written. At most one chunk per process
and one shard are in memory, and an interruption loses at most one chunk per process.

    shuffle/chunk-00003        the examples of chunk 3, those of shard 0 first; those for validation last
    shuffle/chunk-00003.json   where each shard starts, counts, SHA-256; written when the chunk is complete
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from t2t_repro.data.shards import example
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import atomic_write, read_json, sha256, write_json
from t2t_repro.preparation.corpora import corpus_of
from t2t_repro.preparation.filtering import decisions
from t2t_repro.preparation.filtering.decisions import Chunk
from t2t_repro.preparation.filtering.overlap import Overlap
from t2t_repro.preparation.statistics import SplitStatistics, irregular, is_empty
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.system.processes import map_in_processes

_FORMAT = 4  # of the records of chunks
_HEADER = struct.Struct("<QI")  # key, bytes of the example that follows

KeyedExample = tuple[int, bytes]  # the key that a shard is sorted by, and the example
Encoded = tuple[list[list[KeyedExample]], SplitStatistics, SplitStatistics]  # by shard, validation last; statistics


@dataclass(frozen=True)
class ShuffleFiles:
    """The intermediate files in `folder`, and all that their contents depend on."""

    folder: str
    vocabulary: str  # the path
    num_shards: int
    max_length: int
    validation_hashes: frozenset[int]  # `source_hash` of the pairs for validation
    chunk_pairs: int
    overlap: str = ""  # the path of the hashes of validation and test text
    overlap_splits: tuple[str, ...] = ()  # that these are of
    decisions: str = ""  # the path of the decisions of filters; "" without filters
    dropped_overlap: str = ""  # the value of the filter "overlap"; "" without it
    corpus_ends: tuple[int, ...] = ()  # see `SplitText.ends`

    def start(self) -> set[int]:
        """Makes the folder. Returns the numbers of the chunks that an earlier preparation completed."""
        os.makedirs(self.folder, exist_ok=True)
        fingerprint = self.fingerprint
        return {number for number in self._numbers() if self._is_complete(number, fingerprint)}

    def encode(self, chunks: Iterable[Chunk], processes: int) -> Iterator[int]:
        """Writes the file of each chunk. Returns the number of each, when it is written.

        Raises the errors of writing (OSError on a full disk), and ChildProcessError if a process dies.
        """
        if processes == 1:
            return map(Encoder(self, num_threads=None).write_chunk, chunks)
        return map_in_processes(functools.partial(_write_chunk, self), chunks, processes)

    def statistics(self) -> tuple[SplitStatistics, SplitStatistics]:
        """Returns the statistics of the pairs for training and of those for validation."""
        train, validation = SplitStatistics(), SplitStatistics()
        for number in sorted(self._numbers()):
            record = self._record(number)
            train.add(SplitStatistics.from_json(record["train"]))
            validation.add(SplitStatistics.from_json(record["validation"]))
        return train, validation

    def shard(self, index: int) -> Iterator[bytes]:
        """Yields the examples of a training shard, sorted by key; for index `num_shards`, those for validation."""
        examples: list[KeyedExample] = []
        for number, starts in self._starts.items():
            with open(self.path(number), "rb") as file:
                file.seek(starts[index])
                examples += _keyed_examples(file.read(starts[index + 1] - starts[index]))
        examples.sort()
        return (serialized for _, serialized in examples)

    def path(self, number: int) -> str:
        """Returns the path of the file of a chunk."""
        return os.path.join(self.folder, f"chunk-{number:05d}")

    @property
    def fingerprint(self) -> str:
        """Returns a string that identifies the contents of all files."""
        hashes = hashlib.sha256(repr(sorted(self.validation_hashes)).encode()).hexdigest()
        files = [sha256(path) for path in (self.vocabulary, self.overlap, self.decisions) if path]
        fields = [_FORMAT, *files, self.num_shards, self.max_length, hashes, self.chunk_pairs, self.dropped_overlap]
        return " ".join(map(str, [*fields, *self.overlap_splits, *self.corpus_ends]))

    @functools.cached_property
    def _starts(self) -> dict[int, list[int]]:
        """Returns the start of each shard in each file, once all are written."""
        return {number: self._record(number)["starts"] for number in sorted(self._numbers())}

    def _record(self, number: int) -> dict[str, Any]:
        return read_json(self.path(number) + ".json")

    def _numbers(self) -> list[int]:
        names = (re.fullmatch(r"chunk-(\d+)\.json", name) for name in os.listdir(self.folder))
        return [int(name[1]) for name in names if name]

    def _is_complete(self, number: int, fingerprint: str) -> bool:
        """Returns whether the file of a chunk has the recorded bytes. If not, removes its record."""
        try:
            record = self._record(number)
            if record["fingerprint"] == fingerprint and sha256(self.path(number)) == record["sha256"]:
                return True
        except (OSError, ValueError, KeyError):
            pass
        os.remove(self.path(number) + ".json")
        return False


class Encoder:
    """Encodes chunks, one encoder per process. `num_threads` (None: all cores) are sentencepiece's."""

    def __init__(self, files: ShuffleFiles, num_threads: int | None):
        self._files, self._num_threads = files, num_threads
        self._vocabulary = Vocabulary(files.vocabulary)
        self._overlap = Overlap(files.overlap, files.overlap_splits)
        self._fingerprint = files.fingerprint

    def encode(self, chunk: Chunk) -> Encoded:
        """Returns the examples of a chunk by shard, those for validation last, and the statistics of both."""
        _, first, pairs = chunk
        train, validation = SplitStatistics(), SplitStatistics()
        partitions: list[list[KeyedExample]] = [[] for _ in range(self._files.num_shards + 1)]
        sides = (self._vocabulary.encode(side, self._num_threads) for side in zip(*pairs, strict=True))
        decided = decisions.read(self._files.decisions, first, len(pairs))
        found = self._overlap.find(pairs)
        for index, (pair, inputs, targets) in enumerate(zip(pairs, *sides, strict=True)):
            train.read += 1
            number, matches = first + index, found.get(index, ())
            corpus = corpus_of(number, self._files.corpus_ends)
            for_validation = self._is_for_validation(pair[0])
            name = decisions.filter_name(decided[index])
            # the decisions precede the choice of a validation split from the training text
            overlaps = not for_validation and decisions.is_dropped_for_overlap(matches, self._files.dropped_overlap)
            if overlaps and name in ("", "misaligned") and not is_empty(*pair):  # in the order of `FILTERS`
                name = "overlap"
            if name:
                train.drop_by_filter(name, number, pair)
            elif reason := irregular(pair[0], pair[1], inputs, targets, self._files.max_length):
                train.dropped[reason] += 1
            elif for_validation:
                validation.keep(inputs, targets, corpus)
                partitions[-1].append((number, example(inputs, targets, corpus)))
            else:
                train.keep(inputs, targets, corpus)
                train.count_overlap(number, pair, matches)
                shard, key = _shard_and_key(number)
                partitions[shard % self._files.num_shards].append((key, example(inputs, targets, corpus)))
        return partitions, train, validation

    def _is_for_validation(self, source: str) -> bool:
        return bool(self._files.validation_hashes) and source_hash(source) in self._files.validation_hashes

    def write_chunk(self, chunk: Chunk) -> int:
        """Writes the file of a chunk, then its record. Returns its number."""
        path = self._files.path(chunk[0])
        partitions, train, validation = self.encode(chunk)
        starts, digest = [0], hashlib.sha256()
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            for partition in partitions:
                content = b"".join(_HEADER.pack(key, len(serialized)) + serialized for key, serialized in partition)
                file.write(content)
                digest.update(content)
                starts.append(starts[-1] + len(content))
        record = {"starts": starts, "sha256": digest.hexdigest(), "fingerprint": self._fingerprint}
        write_json(path + ".json", record | {"train": train.to_json(), "validation": validation.to_json()})
        return chunk[0]


def _shard_and_key(number: int) -> tuple[int, int]:
    """Returns 64 pseudo-random bits for the shard of pair `number`, and 64 for its key: always the same ones."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16, person=b"t2t_repro deal").digest()
    shard, key = struct.unpack("<QQ", digest)
    return shard, key


def _keyed_examples(content: bytes) -> Iterator[KeyedExample]:
    position = 0
    while position < len(content):
        key, length = _HEADER.unpack_from(content, position)
        position += _HEADER.size + length
        yield key, content[position - length : position]


@functools.cache
def _encoder(files: ShuffleFiles) -> Encoder:
    """Returns the encoder of a worker process."""
    return Encoder(files, num_threads=1)


def _write_chunk(files: ShuffleFiles, chunk: Chunk) -> int:
    return _encoder(files).write_chunk(chunk)
