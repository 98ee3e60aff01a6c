"""prepare(): from a problem's text to its vocabulary, its shards of ids, and `dataset.json`, which says what they are.

    DATA/translate_ende_cldr/vocabulary.model
    DATA/translate_ende_cldr/train-00000-of-00004.tfrecord ...
    DATA/translate_ende_cldr/dataset.json                       written last: where it is, all is

A problem of trees keeps those that it is scored against as well, `clean`, one a line: validation.trees and test.trees.

Killed at any moment, the same call goes on after the last part that was whole (`progress.json` keeps the account) and
ends with the same bytes. Nothing depends on the number of threads or on the clock.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t2t_repro.data.dataset import DATASET, FORMAT, VOCABULARY, Dataset, SplitCounts, files_of, intact, made_of
from t2t_repro.data.held_out import HeldOut, source_hash
from t2t_repro.data.shards import SHARD_NAME, Deal, example, shard_names, write_shard
from t2t_repro.data.sources import read_pairs
from t2t_repro.data.treebank import TREES_NAME, read_corpora, write_trees
from t2t_repro.data.vocabulary import Vocabulary, learn
from t2t_repro.files import read_json, sha256, write_json
from t2t_repro.problem import SPLITS, Pair, Problem
from t2t_repro.run import versions

__all__ = ["Dataset", "prepare"]

PAIRS_PER_SHARD = 200_000  # one shard of training pairs is sorted in memory: about 100 MB
ENCODE_PAIRS = 20_000  # encoded at once, on all cores
LEARN_PAIRS = 2_000_000  # the vocabulary is learnt from so many at most, spread evenly over the text: about 2 GB

_PROGRESS = "progress.json"
_HEAPS = "heaps.tmp"
_OURS = re.compile(rf"{SHARD_NAME.pattern}|{TREES_NAME.pattern}")
_LEFTOVER = re.compile(rf"({_OURS.pattern}|vocabulary\.model|dataset\.json|progress\.json)\.tmp-\d+")


def prepare(problem: Problem, data_dir: str, report: Callable[[str], None], verify: bool = False) -> Dataset:
    """The data of `problem` in `data_dir`: what is there if it is whole and of the same text, else made now.

    `report` is given one line for each phase. `verify` also compares every hash and record count. One process prepares
    at a time; a second one waits and says so. Raises ValueError, FileNotFoundError or OSError: text that cannot be
    read, a vocabulary that the text cannot give, a directory that holds other data, damaged data.
    """
    directory = os.path.join(data_dir, problem.name)
    for path in (data_dir, directory):
        if os.path.exists(path) and not os.path.isdir(path):
            raise ValueError(f"--data_dir: {path!r} is a file; give a directory")
    if not Dataset.exists(directory):
        problem.must_have_text()
        parts = made_of(problem, hashed=True)
        os.makedirs(directory, exist_ok=True)
        with _locked(directory, report):
            if not Dataset.exists(directory):
                _make(_Preparation(problem, parts, directory, report))
    dataset = Dataset.open(directory, verify=verify)
    dataset.must_be_of(problem, verify=verify)
    with contextlib.suppress(OSError):  # not there, as a rule, or the folder is read-only
        os.remove(os.path.join(directory, _PROGRESS))
    return dataset


@contextlib.contextmanager
def _locked(directory: str, report: Callable[[str], None]) -> Iterator[None]:
    """One preparer per directory. The lock goes with its process, however that ends."""
    import filelock

    lock = filelock.FileLock(os.path.join(directory, ".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(f"another process prepares {directory}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(preparation: _Preparation) -> None:
    """Runs it. A full disk is an error that says where, which Python's own does not."""
    try:
        preparation.run()
    except OSError as error:
        if error.errno and not error.filename:
            raise OSError(error.errno, os.strerror(error.errno), preparation.directory) from None
        raise


class _Preparation:
    """One preparation, from whatever an earlier one left behind. `progress` is what progress.json says."""

    def __init__(self, problem: Problem, parts: dict[str, Any], directory: str, report: Callable[[str], None]):
        self.problem = problem
        self.parts = parts
        self.directory = directory
        self.report = report
        self.vocabulary = self._path(VOCABULARY)
        self.progress = self._resumed()

    def run(self) -> None:
        self._clean()
        if "pairs" not in self.progress:
            self._read_all()
        if not self._has_vocabulary():
            self._learn()
        vocabulary = Vocabulary(self.vocabulary)
        if "train" not in self._done or (self.progress["held_out"] and "validation" not in self._done):
            self._write_train(vocabulary)
        for split in ("validation", "test"):
            if self.problem.corpora(split) and split not in self._done:
                self._write_split(split, vocabulary)
        record = {"format": FORMAT} | self.parts | {"problem": self.problem.to_dict()}
        record["vocabulary"] = {"kind": vocabulary.kind, "size": vocabulary.size} | self.progress["vocabulary"]
        record["splits"] = {split: self._done[split] for split in SPLITS if split in self._done}
        write_json(self._path(DATASET), record | {"versions": versions()})

    @property
    def _done(self) -> dict[str, Any]:
        """What dataset.json will say of each split that is written."""
        return self.progress["splits"]  # type: ignore[no-any-return]

    # What an earlier preparation left behind

    def _resumed(self) -> dict[str, Any]:
        """The account of an earlier preparation of the same text, what is no longer whole left out; or a new one."""
        try:
            progress = read_json(self._path(_PROGRESS))
            if progress["parts"] == self.parts:
                splits = progress["splits"].items()
                progress["splits"] = {split: record for split, record in splits if self._is_whole(record)}
                return progress
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            pass  # none, or a damaged one: begin anew
        return {"parts": self.parts, "splits": {}}

    def _is_whole(self, record: dict[str, Any]) -> bool:
        return all(intact(self._path(file["name"]), file) for file in files_of(record))

    def _has_vocabulary(self) -> bool:
        recorded = self.progress.get("vocabulary")
        if not recorded or not os.path.isfile(self.vocabulary):
            return False
        return bool(sha256(self.vocabulary) == recorded["sha256"])

    def _clean(self) -> None:
        """Removes what was half written, and files that are not in the account."""
        known = {file["name"] for record in self._done.values() for file in files_of(record)}
        for name in os.listdir(self.directory):
            if _LEFTOVER.fullmatch(name) or (_OURS.fullmatch(name) and name not in known):
                os.remove(self._path(name))

    def _save(self, **news: Any) -> None:
        self.progress.update(news)
        write_json(self._path(_PROGRESS), self.progress)

    # The phases

    def _read_all(self) -> None:
        """Reads all text once: counts pairs, meets what is wrong before hours are spent, chooses what to hold out."""
        pairs: dict[str, int] = {}
        choice = None if self.problem.validation else HeldOut()
        for split in SPLITS:
            for source, target in self._pairs(split):
                pairs[split] = pairs.get(split, 0) + 1
                if choice and split == "train" and not _is_empty(source, target):
                    choice.add(source)
        self._save(pairs=pairs, held_out=choice.choose() if choice else [])
        self.report("text: " + ", ".join(f"{number:,} {split} pairs" for split, number in pairs.items()))

    def _learn(self) -> None:
        """Learns the vocabulary, from training text alone. What was encoded with another one goes."""
        kind, size = self.problem.vocab_kind, self.problem.vocab_size
        sentences = learn(_Anew(self._training_sentences), self.vocabulary, kind, size)
        self._done.clear()
        self._save(vocabulary={"sha256": sha256(self.vocabulary), "sentences": sentences})
        self.report(f"vocabulary: {size:,} pieces ({kind.upper()}) learnt from {sentences:,} sentences")

    def _write_train(self, vocabulary: Vocabulary) -> None:
        """Encodes the training text, drops what cannot be trained on, and shuffles the rest over all its shards."""
        held_out = set(self.progress["held_out"])
        counts, held_counts, held, held_numbers = SplitCounts(), SplitCounts(), [], []
        with Deal(self._path(_HEAPS), self._num_shards("train")) as deal:
            for number, (source, target), inputs, targets in self._encoded("train", vocabulary):
                counts.read += 1
                if reason := self._irregular(source, target, inputs, targets):
                    counts.dropped[reason] += 1
                elif held_out and source_hash(source) in held_out:
                    held_counts.keep(inputs, targets)
                    held.append(example(inputs, targets))
                    held_numbers.append(number)
                else:
                    counts.keep(inputs, targets)
                    deal.add(number, example(inputs, targets))
            self._must_be_as_read("train", counts.read)
            if not counts.kept or (held_out and not held):
                raise ValueError(
                    f"too little training text is left of {counts.read:,} pairs: {counts.kept:,} to train on and "
                    f"{len(held):,} held out for validation, {dict(counts.dropped)} dropped; give more text"
                )
            records = {"train": counts.record() | {"held_out": len(held), "shards": deal.write(self.directory)}}
        if held:
            (name,) = shard_names("validation", 1)
            shards = [write_shard(self._path(name), held)]
            records["validation"] = held_counts.record() | {"held_out_of": "train", "shards": shards}
            records["validation"] |= self._write_trees("validation", "train", held_numbers)
        self._save(splits=self._done | records)
        self.report(f"train: {counts.summary(self.problem.max_length)}")
        if held:
            self.report(f"validation: {held_counts.summary(self.problem.max_length)}, held out of the training text")

    def _write_split(self, split: str, vocabulary: Vocabulary) -> None:
        """Encodes validation or test text, in its order. Nothing is dropped: irregular pairs are scored too."""
        counts = SplitCounts()

        def examples() -> Iterator[bytes]:
            for _, (source, target), inputs, targets in self._encoded(split, vocabulary):
                counts.read += 1
                if reason := self._irregular(source, target, inputs, targets):
                    counts.irregular[reason] += 1
                counts.keep(inputs, targets)
                yield example(inputs, targets)

        remaining = examples()
        names = shard_names(split, self._num_shards(split))
        shards = [write_shard(self._path(name), itertools.islice(remaining, PAIRS_PER_SHARD)) for name in names]
        self._must_be_as_read(split, counts.read + sum(1 for _ in remaining))
        trees = self._write_trees(split, split, range(counts.read))
        self._save(splits=self._done | {split: counts.record() | {"shards": shards} | trees})
        self.report(f"{split}: {counts.summary(self.problem.max_length)}")

    def _write_trees(self, split: str, of: str, numbers: Sequence[int]) -> dict[str, Any]:
        """Writes the trees of the pairs `numbers` of the text `of`, and gives what dataset.json says of it; of text
        that is no trees, nothing."""
        if self.problem.metric != "f1":
            return {}
        chosen = set(numbers)
        trees = (tree for number, tree in enumerate(read_corpora(self.problem.corpora(of))) if number in chosen)
        return {"trees": write_trees(self._path(f"{split}.trees"), trees)}

    # Their parts

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _pairs(self, split: str) -> Iterator[Pair]:
        return itertools.chain.from_iterable(map(read_pairs, self.problem.corpora(split)))

    def _num_shards(self, split: str) -> int:
        pairs: int = self.progress["pairs"][split]
        return math.ceil(pairs / PAIRS_PER_SHARD)

    def _training_sentences(self) -> Iterator[str]:
        """Both sides of all training pairs, or of LEARN_PAIRS evenly spread ones; what is held out is left out."""
        number, held_out = self.progress["pairs"]["train"], set(self.progress["held_out"])
        taken = min(number, LEARN_PAIRS)
        for index, (source, target) in enumerate(self._pairs("train")):
            passed_over = (index + 1) * taken // number == index * taken // number
            if not passed_over and not (held_out and source_hash(source) in held_out):
                yield source
                yield target

    def _encoded(self, split: str, vocabulary: Vocabulary) -> Iterator[tuple[int, Pair, list[int], list[int]]]:
        """(number of the pair, pair, ids of its source, ids of its target), END included."""
        pairs, first = self._pairs(split), 0
        while batch := list(itertools.islice(pairs, ENCODE_PAIRS)):
            inputs = vocabulary.encode([source for source, _ in batch])
            targets = vocabulary.encode([target for _, target in batch])
            yield from zip(itertools.count(first), batch, inputs, targets, strict=False)
            first += len(batch)

    def _irregular(self, source: str, target: str, inputs: list[int], targets: list[int]) -> str:
        """Why a pair cannot be trained on, "" where it can."""
        if _is_empty(source, target):
            return "empty"
        return "too_long" if max(len(inputs), len(targets)) > self.problem.max_length else ""

    def _must_be_as_read(self, split: str, number: int) -> None:
        before = self.progress["pairs"][split]
        if number != before:
            raise ValueError(
                f"the {split} text changed while it was prepared: {before:,} pairs at first, then {number:,}; "
                "let it be, and prepare again"
            )


class _Anew:
    """An iterable that can be gone through again: each time it calls `start`."""

    def __init__(self, start: Callable[[], Iterator[str]]):
        self._start = start

    def __iter__(self) -> Iterator[str]:
        return self._start()


def _is_empty(source: str, target: str) -> bool:
    return not source or not target or source.isspace() or target.isspace()
