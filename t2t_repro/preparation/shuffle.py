"""Piles: the training text encoded chunk by chunk, by several processes, on its way to shuffled shards.

A pair's shard and its place in the shard are functions of its number in the text alone, so the shuffle is over the
whole text and needs no order of work: each process throws the pairs of its chunk onto a pile of their own, sorted by
shard, and afterwards each shard is gathered from all piles, put in order in memory and written. A chunk in text and ids
for each process, and one shard, is all that is ever held; and what is lost when everything stops is a chunk.

    piles/pile-00003        the pairs of chunk 3, those of shard 0 first; held-out ones last
    piles/pile-00003.json   where each shard begins, counts, SHA-256; written when the pile is whole
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from t2t_repro.data.shards import example
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import atomic_write, read_json, sha256, write_json
from t2t_repro.preparation.statistics import SplitCounts, irregular
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.problem import Pair
from t2t_repro.processes import map_in_processes

_CARD = struct.Struct("<QI")  # place in the shard's order, bytes of the example that follows

Chunk = tuple[int, int, list[Pair]]  # its number, the number of its first pair, its pairs
Card = tuple[int, bytes]  # the place of an example in its shard, and the example
Encoded = tuple[list[list[Card]], SplitCounts, SplitCounts]  # cards of each shard and held-out ones; counts of both


@dataclass(frozen=True)
class Piles:
    """The piles in `folder`, and all that decides what is on them."""

    folder: str
    vocabulary: str  # the path
    num_shards: int
    max_length: int
    held_out: frozenset[int]  # `source_hash` of what is for validation
    chunk_pairs: int

    def start(self) -> set[int]:
        """Makes the folder; gives the numbers of the piles of this kind that an earlier preparation left whole."""
        os.makedirs(self.folder, exist_ok=True)
        fingerprint = self.fingerprint
        return {number for number in self._numbers() if self._is_whole(number, fingerprint)}

    def encode(self, chunks: Iterable[Chunk], processes: int) -> Iterator[int]:
        """Writes the pile of each chunk; gives the number of each that is written.

        Raises what writing raises (OSError on a full disk), and ChildProcessError where a process is no more.
        """
        if processes == 1:
            encoder = Encoder(self, num_threads=None)
            for chunk in chunks:
                yield encoder.write_pile(chunk)
        else:
            yield from map_in_processes(_work, chunks, processes, functools.partial(_make_encoder, self))

    def counts(self) -> tuple[SplitCounts, SplitCounts]:
        """Of the pairs to train on, and of those held out."""
        train, held = SplitCounts(), SplitCounts()
        for number in sorted(self._numbers()):
            account = self._account(number)
            train.add(SplitCounts.from_json(account["train"]))
            held.add(SplitCounts.from_json(account["held_out"]))
        return train, held

    def shard(self, index: int) -> Iterator[bytes]:
        """The examples of a training shard in the order of their places; of `num_shards`, the held-out ones."""
        cards: list[Card] = []
        for number, starts in self._starts.items():
            with open(self.path(number), "rb") as pile:
                pile.seek(starts[index])
                cards += _cards(pile.read(starts[index + 1] - starts[index]))
        cards.sort()
        return (serialised for _, serialised in cards)

    def path(self, number: int) -> str:
        return os.path.join(self.folder, f"pile-{number:05d}")

    @property
    def fingerprint(self) -> str:
        """The same for piles of the same kind."""
        held_out = hashlib.sha256(repr(sorted(self.held_out)).encode()).hexdigest()
        return f"{sha256(self.vocabulary)} {self.num_shards} {self.max_length} {held_out} {self.chunk_pairs}"

    @functools.cached_property
    def _starts(self) -> dict[int, list[int]]:
        """Where each shard begins on each pile, when all are written."""
        return {number: self._account(number)["starts"] for number in sorted(self._numbers())}

    def _account(self, number: int) -> dict[str, Any]:
        return read_json(self.path(number) + ".json")

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in os.listdir(self.folder) if name.endswith(".json"))
        return [int(name.removeprefix("pile-")) for name in names]

    def _is_whole(self, number: int, fingerprint: str) -> bool:
        """Whether a pile of this kind holds what was written to it. One that does not loses its account."""
        try:
            account = self._account(number)
            if account["fingerprint"] == fingerprint and sha256(self.path(number)) == account["sha256"]:
                return True
        except (OSError, ValueError, KeyError):
            pass
        os.remove(self.path(number) + ".json")
        return False


class Encoder:
    """Encodes chunks: one in each process. `num_threads` (None: all) are sentencepiece's."""

    def __init__(self, piles: Piles, num_threads: int | None):
        self._piles, self._num_threads = piles, num_threads
        self._vocabulary = Vocabulary(piles.vocabulary)
        self._fingerprint = piles.fingerprint

    def encode(self, chunk: Chunk) -> Encoded:
        """The examples of a chunk, dealt out, and what was counted."""
        _, first, pairs = chunk
        train, held = SplitCounts(), SplitCounts()
        heaps: list[list[Card]] = [[] for _ in range(self._piles.num_shards + 1)]
        sides = (self._vocabulary.encode(side, self._num_threads) for side in zip(*pairs, strict=True))
        for number, ((source, target), inputs, targets) in enumerate(zip(pairs, *sides, strict=True), start=first):
            train.read += 1
            if reason := irregular(source, target, inputs, targets, self._piles.max_length):
                train.dropped[reason] += 1
            elif self._piles.held_out and source_hash(source) in self._piles.held_out:
                held.keep(inputs, targets)
                heaps[-1].append((number, example(inputs, targets)))
            else:
                train.keep(inputs, targets)
                shard, place = _dealt(number)
                heaps[shard % self._piles.num_shards].append((place, example(inputs, targets)))
        return heaps, train, held

    def write_pile(self, chunk: Chunk) -> int:
        """Writes the pile of a chunk, then its account; gives its number."""
        path = self._piles.path(chunk[0])
        heaps, train, held = self.encode(chunk)
        starts, digest = [0], hashlib.sha256()
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            for heap in heaps:
                content = b"".join(_CARD.pack(place, len(one)) + one for place, one in heap)
                file.write(content)
                digest.update(content)
                starts.append(starts[-1] + len(content))
        account = {"starts": starts, "sha256": digest.hexdigest(), "fingerprint": self._fingerprint}
        write_json(path + ".json", account | {"train": train.to_json(), "held_out": held.to_json()})
        return chunk[0]


def _dealt(number: int) -> tuple[int, int]:
    """Where pair `number` goes: 64 bits for the shard, 64 for its place. Anywhere, but always there."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16, person=b"t2t_repro deal").digest()
    shard, place = struct.unpack("<QQ", digest)
    return shard, place


def _cards(content: bytes) -> Iterator[Card]:
    at = 0
    while at < len(content):
        place, length = _CARD.unpack_from(content, at)
        at += _CARD.size + length
        yield place, content[at - length : at]


_encoder: Encoder  # of this process, where it is one that encodes


def _make_encoder(piles: Piles) -> None:
    global _encoder
    _encoder = Encoder(piles, num_threads=1)


def _work(chunk: Chunk) -> int:
    return _encoder.write_pile(chunk)
