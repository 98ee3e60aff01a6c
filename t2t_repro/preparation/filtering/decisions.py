"""Decisions: for each training pair, which filter drops it, as one byte in a file.

One pass over the text computes what is known from a pair alone, in several processes. Duplicates are found afterwards
among the hashes of the pairs that are left: 10 bytes per pair, 410 MB for 40 million. The first pair of equal ones in
the order of the text stays. Two of 40 million different pairs collide with a probability of 1 in 20,000.

The filter "misaligned" reads the text twice more: a sample of the pairs that all others keep, from which `alignment`
learns, then all of these pairs, which are scored in several processes.

The file is complete or absent, and `progress.json` has its SHA-256, so an interrupted preparation does not repeat this.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from t2t_repro.filters import FILTERS, name_and_value, predicates
from t2t_repro.io import atomic_write
from t2t_repro.preparation.filtering.alignment import SAMPLE_PAIRS, Model, learn
from t2t_repro.preparation.filtering.overlap import Match, Overlap, pair_keys
from t2t_repro.preparation.statistics import is_empty
from t2t_repro.problem import Pair
from t2t_repro.system.processes import map_in_processes
from t2t_repro.text.lines import is_overlong

KEPT = 0  # the other bytes are numbers of filters, from 1
_UNFILTERED = 255  # an empty or over-long pair, which is dropped and counted when it is encoded
_NUMBER = {name: number for number, name in enumerate(FILTERS, start=1)}
_NAME = dict(enumerate(FILTERS, start=1))
_PARTS = 16  # of the hashes, sorted one after the other

Chunk = tuple[int, int, list[Pair]]  # its number, the number of its first pair, its pairs
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Judge:
    """The filters, as a process needs them to judge pairs."""

    filters: tuple[str, ...]  # resolved
    has_trees: bool
    overlap: str  # the path of the hashes of validation and test text
    splits: tuple[str, ...]  # that these are of
    alignment: str = ""  # the path for what the filter "misaligned" learns


class Judged(NamedTuple):
    """A chunk of pairs: what is known from each pair alone."""

    codes: bytes
    overlapping: np.ndarray  # [pairs] bool
    keys: np.ndarray  # [pairs] uint64; [0] if duplicates are not dropped


class Candidates(NamedTuple):
    """The pairs of a chunk that all other filters keep."""

    numbers: np.ndarray  # of each pair in the text
    pairs: list[Pair]
    in_sample: np.ndarray  # [pairs] bool


def decide(path: str, judge: Judge, chunks: Callable[[], Iterable[Chunk]], pairs: int, processes: int) -> None:
    """Writes the decision on each pair to `path`, atomically. The bytes do not depend on the number of processes.

    `chunks` reads the text from its start each time. Raises ValueError if there is too little text to learn from.
    """
    codes, overlapping = np.zeros(pairs, np.uint8), np.zeros(pairs, bool)
    keys = np.zeros(pairs if "duplicate" in judge.filters else 0, np.uint64)
    work = functools.partial(_judge, judge)
    place = 0
    for judged in map_in_processes(work, chunks(), processes):
        end = place + len(judged.codes)
        if end <= pairs:  # if not, the text changed, and `chunks` raises an error at its end
            codes[place:end] = np.frombuffer(judged.codes, np.uint8)
            overlapping[place:end] = judged.overlapping
            keys[place:end] = judged.keys
        place = end
    if "duplicate" in judge.filters:
        codes[repeated(keys, codes == KEPT)] = _NUMBER["duplicate"]
        del keys  # the memory is needed
    codes[overlapping & (codes == KEPT)] = _NUMBER["overlap"]
    if threshold := dict(map(name_and_value, judge.filters)).get("misaligned"):
        misaligned = _misaligned(float(threshold), judge.alignment, chunks, codes == KEPT, processes)
        codes[misaligned] = _NUMBER["misaligned"]
    codes[codes == _UNFILTERED] = KEPT
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(codes.tobytes())


def _misaligned(
    threshold: float, path: str, chunks: Callable[[], Iterable[Chunk]], is_candidate: np.ndarray, processes: int
) -> np.ndarray:
    """Returns the numbers of the candidates that score below the threshold. Writes what was learned to `path`."""
    candidates = np.flatnonzero(is_candidate)
    taken = min(len(candidates), SAMPLE_PAIRS)
    in_sample = np.zeros(len(is_candidate), bool)
    in_sample[candidates[np.arange(taken) * len(candidates) // max(taken, 1)]] = True
    model = learn(pair for each in _candidates(chunks(), in_sample, in_sample) for pair in each.pairs)
    work = functools.partial(_below, model.scores, threshold)
    if processes > 1:
        model.save(path)
        work = functools.partial(_below_in_process, path, threshold)
    return np.concatenate([*map_in_processes(work, _candidates(chunks(), is_candidate, in_sample), processes)])


def _candidates(chunks: Iterable[Chunk], chosen: np.ndarray, in_sample: np.ndarray) -> Iterator[Candidates]:
    for _, first, pairs in chunks:
        part = slice(first, first + len(pairs))
        places = np.flatnonzero(chosen[part])
        yield Candidates(first + places, [pairs[place] for place in places], in_sample[part][places])


def _below(scores: Callable[[list[Pair], np.ndarray], np.ndarray], threshold: float, each: Candidates) -> np.ndarray:
    return each.numbers[scores(each.pairs, each.in_sample) < threshold]


def _below_in_process(path: str, threshold: float, each: Candidates) -> np.ndarray:
    """Runs in a worker process."""
    return _below(_model(path).scores, threshold, each)


@functools.cache
def _model(path: str) -> Model:
    """Returns the model of a worker process."""
    return Model.load(path)


def kept(items: Iterable[Item], decisions: bytes) -> Iterator[Item]:
    """Yields the items, one per training pair, that no filter drops. Without decisions, all of them."""
    return itertools.compress(items, map(operator.not_, decisions)) if decisions else iter(items)


def read(path: str, first: int, number: int) -> bytes:
    """Returns the decisions on `number` pairs from pair `first` on; without a path, all are kept.

    Pairs that were added to the text since are kept; that it changed is found when it is read to its end.
    """
    if not path:
        return bytes(number)
    with open(path, "rb") as file:
        file.seek(first)
        return file.read(number).ljust(number, bytes([KEPT]))


def filter_name(decision: int) -> str:
    """Returns the name of the filter that drops a pair; "" for none."""
    return _NAME.get(decision, "")


def overlap_to_drop(filters: Iterable[str]) -> str:
    """Returns the value of the filter "overlap"; "" without it."""
    return dict(map(name_and_value, filters)).get("overlap", "")


def is_dropped_for_overlap(matches: Iterable[Match], value: str) -> bool:
    """Returns whether the filter "overlap" with this value drops a pair with these matches."""
    return any(value == "either" or value in match.sides for match in matches) if value else False


def _judge(judge: Judge, chunk: Chunk) -> Judged:
    """Runs in a worker process."""
    pairs, tests = chunk[2], predicates(judge.filters)
    codes = bytearray(len(pairs))
    for index, pair in enumerate(pairs):
        if is_empty(*pair) or any(map(is_overlong, pair)):
            codes[index] = _UNFILTERED
            continue
        sides = pair[:1] if judge.has_trees else pair
        codes[index] = next((_NUMBER[name] for name, drops in tests.items() if drops(sides)), KEPT)
    overlapping, value = np.zeros(len(pairs), bool), overlap_to_drop(judge.filters)
    if value:
        found = Overlap(judge.overlap, judge.splits).find(pairs)
        overlapping[[index for index, matches in found.items() if is_dropped_for_overlap(matches, value)]] = True
    keys = pair_keys(pairs) if "duplicate" in judge.filters else np.zeros(0, np.uint64)
    return Judged(bytes(codes), overlapping, keys)


def repeated(keys: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """Returns the numbers of the candidates whose key an earlier candidate has. At most 1/16 is sorted at a time."""
    found = [np.zeros(0, np.int64)]
    highest = keys.astype("<u8", copy=False).view(np.uint8)[7::8] // (256 // _PARTS)
    for part in range(_PARTS):
        numbers = np.flatnonzero(is_candidate & (highest == part))
        order = np.argsort(keys[numbers], kind="stable")
        ordered = keys[numbers[order]]
        found.append(numbers[order[1:]][ordered[1:] == ordered[:-1]])
    return np.concatenate(found)
