"""Overlap: training pairs whose source or target side, or both, are also in validation or test text.

Sides are compared without case and with single spaces (`filters.normalized`), as 64-bit hashes. Two different texts of
40 million training pairs and 10,000 lines collide with a probability of 1 in 20 million. The hashes of validation and
test text are one sorted array in a file, which every process reads.

Nearly all training pairs end unlike every line of these splits. Comparing the ends first halves the time, from 4.2 to
2.3 microseconds per pair of Multi30k, beside 31 for encoding and writing it.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from t2t_repro.filters import normalized
from t2t_repro.io import JsonRecord, atomic_write
from t2t_repro.problem import Pair

EXAMPLES = 3  # that are kept, of each kind
EXAMPLE_CHARACTERS = 100  # of each side
_SIDES = ("source", "target", "pair")
_HASH_BYTES = 8
_ENDING = 16  # characters, without white space
_ENTRY = np.dtype([("table", "<u1"), ("key", "<u8"), ("number", "<u4")])


class Match(NamedTuple):
    """A pair of another split that has something in common with a training pair."""

    split: str
    sides: tuple[str, ...]  # "source", "target" or both, and then "pair" if one pair of the split has both
    numbers: tuple[int, ...]  # for each of `sides`, the first pair of the split that has it

    @property
    def number(self) -> int:
        """The first pair of the split with the same pair, else with the same source, else with the same target."""
        return self.numbers[-1] if "pair" in self.sides else self.numbers[0]


class Overlap:
    """Finds training pairs that overlap with `splits`, whose hashes `write` wrote to `path`; without splits, none."""

    def __init__(self, path: str, splits: Sequence[str]):
        entries = np.load(path) if splits else np.zeros(0, _ENTRY)
        starts = np.searchsorted(entries["table"], range(len(splits) * len(_SIDES) + 1))
        self._endings = set(entries["key"][starts[-1] :].tolist())
        self._tables = {}
        for index, split in enumerate(splits):
            for place, side in enumerate(_SIDES, start=index * len(_SIDES)):
                part = entries[starts[place] : starts[place + 1]]
                self._tables[split, side] = np.ascontiguousarray(part["key"]), part["number"]
        self._splits = splits

    def find(self, pairs: Sequence[Pair]) -> dict[int, list[Match]]:
        """Returns the matches of each pair that has any, by its index in `pairs`."""
        if not self._splits:
            return {}
        similar = [index for index, pair in enumerate(pairs) if not self._endings.isdisjoint(map(_ending, pair))]
        texts = [(normalized(pairs[index][0]), normalized(pairs[index][1])) for index in similar]
        keys = [_keys(text[side] for text in texts) for side in (0, 1)] + [_keys(_joined(*text) for text in texts)]
        found: dict[int, list[Match]] = {}
        for split in self._splits:
            sides = {side: self._lookup(split, side, each) for side, each in zip(_SIDES, keys, strict=True)}
            for place in sorted({*sides["source"], *sides["target"]}):
                numbers = {side: each[place] for side, each in sides.items() if place in each}
                found.setdefault(similar[place], []).append(Match(split, tuple(numbers), tuple(numbers.values())))
        return found

    def num_pairs(self, split: str, found: Mapping[str, Iterable[int]]) -> int:
        """Returns the number of pairs of a split that `OverlapCounts.found` stands for."""
        pairs = set[int]()
        for side, wanted in found.items():
            keys, numbers = self._tables[split, side]
            first = numbers[np.searchsorted(keys, keys)]  # with the same key
            pairs.update(numbers[np.isin(first, list(wanted))].tolist())
        return len(pairs)

    def _lookup(self, split: str, side: str, wanted: np.ndarray) -> dict[int, int]:
        """Returns {place in `wanted`: number of the first pair with this key}."""
        keys, numbers = self._tables[split, side]
        if not len(keys):
            return {}
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hits = np.flatnonzero(keys[places] == wanted)
        return dict(zip(hits.tolist(), numbers[places[hits]].tolist(), strict=True))


def write(path: str, splits: Mapping[str, Iterable[tuple[int, Pair]]], has_trees: bool) -> None:
    """Writes the hashes of the numbered pairs of splits atomically. Of trees, only the words are compared."""
    tables, endings = [], set[int]()
    for index, pairs in enumerate(splits.values()):
        numbers: list[int] = []
        sides: dict[str, list[bytes]] = {side: [] for side in _SIDES}
        for number, pair in pairs:
            source, target = map(normalized, pair)
            numbers.append(number)
            endings.update(map(_ending, pair[:1] if has_trees else pair))
            texts = (source, target, _joined(source, target))
            for digests, text in zip(sides.values(), texts, strict=True):
                digests.append(_digest(text))
        for place, (side, digests) in enumerate(sides.items(), start=index * len(_SIDES)):
            keys = np.frombuffer(b"".join(digests if side != "target" or not has_trees else ()), "<u8")
            order = np.argsort(keys, kind="stable")
            tables.append(_table(place, keys[order], np.array(numbers, "<u4")[order]))
    tables.append(_table(len(splits) * len(_SIDES), sorted(endings), 0))
    content = io.BytesIO()
    np.save(content, np.concatenate(tables))  # to a file, it would hide why writing failed, such as a full disk
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(content.getbuffer())


def _table(place: int, keys: Any, numbers: Any) -> np.ndarray:
    table = np.zeros(len(keys), _ENTRY)
    table["table"], table["key"], table["number"] = place, keys, numbers
    return table


def pair_keys(pairs: Iterable[Pair]) -> np.ndarray:
    """Returns a 64-bit hash of each pair exactly as it is, the same in every process."""
    return _keys([_joined(*pair) for pair in pairs])


def _ending(text: str) -> int:
    """Returns a hash of the last characters of the normalized text, without white space."""
    end = "".join(text[-2 * _ENDING :].casefold().split())
    if len(end) < _ENDING < len(text):  # much white space
        end = "".join(text.casefold().split())
    return zlib.crc32(end[-_ENDING:].encode("utf-8", "surrogatepass"))


def _joined(source: str, target: str) -> str:
    return f"{source}\n{target}"  # no line has a line break


def _keys(texts: Iterable[str]) -> np.ndarray:
    return np.frombuffer(b"".join(map(_digest, texts)), "<u8")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


@dataclass
class Example(JsonRecord):
    """A training pair that is shown: its number, its sides shortened, and the pair of another split like it."""

    number: int
    source: str
    target: str
    sides: str = ""  # that it has in common with the other pair, as `Match.sides`, separated by spaces
    other: int = -1  # the number of that pair

    @classmethod
    def of(cls, number: int, pair: Pair, match: Match | None = None) -> Example:
        sides, other = (" ".join(match.sides), match.number) if match else ("", -1)
        return cls(number, _shortened(pair[0]), _shortened(pair[1]), sides, other)


def _shortened(text: str) -> str:
    """Returns at most EXAMPLE_CHARACTERS of a text."""
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…"


def first_examples(examples: Iterable[Example]) -> list[Example]:
    """Returns the examples to keep, in the order of the text."""
    return sorted(examples, key=lambda example: example.number)[:EXAMPLES]


@dataclass
class OverlapCounts(JsonRecord):
    """Training pairs that overlap with one split."""

    pairs: int = 0
    sides: Counter[str] = field(default_factory=Counter)  # by what they have in common: see `Match.sides`
    # by "source" and "target": the first pair of that split with each text that was found, and how often
    found: dict[str, Counter[int]] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)

    def count(self, number: int, pair: Pair, match: Match) -> None:
        """Counts training pair `number`."""
        self.pairs += 1
        self.sides.update(match.sides)
        for side, first in zip(match.sides, match.numbers, strict=True):
            if side != "pair":
                self.found.setdefault(side, Counter())[first] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(Example.of(number, pair, match))

    def add(self, other: OverlapCounts) -> None:
        """Adds the counts of `other`."""
        self.pairs += other.pairs
        self.sides.update(other.sides)
        for side, found in other.found.items():
            self.found.setdefault(side, Counter()).update(found)
        self.examples = first_examples([*self.examples, *other.examples])
