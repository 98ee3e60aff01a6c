"""The records of `dataset.json`: the sources of prepared data and the contents of its files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.data.shards import SHARD_NAME, FileRecord
from t2t_repro.io import JsonRecord, with_fields
from t2t_repro.problem import SPLITS, Problem

FORMAT = 1
SIDES = ("inputs", "targets")  # of a pair in a shard

Source = dict[str, Any]  # description of a corpus by `preparation.corpora.describe`; only compared and printed


@dataclass(frozen=True)
class PairExample(JsonRecord):
    """A training pair that was dropped, or that overlaps with another split. Long sides are shortened."""

    place: str  # `train.en, line 17`
    source: str
    target: str
    also: str | None = None  # `test.en, line 3`: what it overlaps with


@dataclass(frozen=True, kw_only=True)
class OverlapRecord(JsonRecord):
    """Training pairs, after all filters, that have a side in common with a validation or test split."""

    pairs: int
    source: int  # of these, pairs whose source is a source of the split
    target: int  # of these, pairs whose target is a target of the split
    pair: int  # of these, pairs of which both sides are one pair of the split
    split_pairs: int  # pairs of the split that were found so
    examples: tuple[PairExample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CorpusShare(JsonRecord):
    """The part of a split that comes from one corpus, after pairs were dropped. Its pairs carry its number."""

    name: str  # a label of the problem: `Problem.labels`
    pairs: int
    tokens: dict[str, int]  # by side: "inputs" and "targets"


@dataclass(frozen=True, kw_only=True)
class SplitRecord(JsonRecord):
    """One split: numbers of pairs and tokens, lengths in tokens with EOS, and files."""

    pairs_read: int = 0
    pairs: int
    dropped: dict[str, int] = field(default_factory=dict)  # by reason: "empty", "too_long" or the name of a filter
    irregular_but_kept: dict[str, int] = field(default_factory=dict)  # the same for validation and test text
    tokens: dict[str, int] = field(default_factory=dict)  # by side: "inputs" and "targets"
    length: dict[str, dict[str, float]] = field(default_factory=dict)  # by side: mean, percentiles and maximum
    held_out: int | None = None  # training pairs in the validation split
    held_out_of: str | None = None  # the split that these pairs come from
    shards: tuple[FileRecord, ...]
    sample_of: int | None = None  # number of pairs that were sampled from
    trees: FileRecord | None = None  # gold trees of a parsing problem
    filtered: dict[str, tuple[PairExample, ...]] | None = None  # by filter: the first pairs that it dropped
    overlap: dict[str, OverlapRecord] | None = None  # of the training text, by the other split
    corpora: tuple[CorpusShare, ...] | None = None  # by number; None if there is only one, or none was labeled

    @property
    def files(self) -> list[FileRecord]:
        """The shards, and the trees if there are any."""
        return [*self.shards, *([self.trees] if self.trees else [])]

    @property
    def max_lengths(self) -> list[int]:
        """The maximum length of source and target."""
        return [int(self.length[side]["max"]) for side in SIDES]


@dataclass(frozen=True, kw_only=True)
class VocabularyRecord(JsonRecord):
    """The vocabulary: its kind, its size, how many of its subwords are bytes and characters, and its hash."""

    kind: str = "bpe"
    size: int
    bytes: int | None = None
    characters: int | None = None
    sha256: str
    sentences: int | None = None  # number of sentences it was learned from
    given_by: str | None = None  # directory of the run that it was copied from; None: it was learned


@dataclass(frozen=True, kw_only=True)
class CorpusRecord(JsonRecord):
    """The number of lines or trees read from a corpus, and the known number."""

    name: str | None = None  # None for text files and generators
    trees_known: int | None = None
    lines_known: int | None = None
    lines: int
    not_trees: int | None = None  # trees dropped from a parser's output
    without_language: int | None = None  # units dropped from a TMX file

    @property
    def missing(self) -> str:
        """A difference in the number of trees: `section 23: 8 of 2,416 trees`; "" for other corpora."""
        if self.trees_known is None or self.lines == self.trees_known:
            return ""
        return f"{self.name}: {self.lines:,} of {self.trees_known:,} trees"


@dataclass(frozen=True, kw_only=True)
class DatasetRecord(JsonRecord):
    """All of `dataset.json`."""

    problem: Problem  # without its corpora
    sources: dict[str, list[Source]] = field(default_factory=dict)  # by split
    corpora: dict[str, list[CorpusRecord]] = field(default_factory=dict)  # by split
    vocabulary: VocabularyRecord
    splits: dict[str, SplitRecord]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT} | super().to_json() | {"problem": self.problem.to_dict()}

    @classmethod
    def from_json(cls, saved: Any, name: str = "dataset.json") -> DatasetRecord:
        """Also raises ValueError unless `saved` has the form of `to_json`."""
        record = super().from_json(saved | {"problem": with_fields(Problem, saved["problem"])}, name)
        record._check()
        return record

    def _check(self) -> None:
        if "train" not in self.splits or not self.splits.keys() <= set(SPLITS):
            raise ValueError(f"splits are {sorted(self.splits)}")
        for name, split in self.splits.items():
            if not split.shards or not split.pairs:
                raise ValueError(f"{name} has nothing in it")
            if (split.trees is not None) != (self.problem.task.takes_trees and name != "train"):
                raise ValueError(f"{name} has {'' if split.trees else 'no '}trees")
            for file in split.files:
                if not SHARD_NAME.fullmatch(file.name) and file.name != f"{name}.trees":
                    raise ValueError(f"a file is named {file.name!r}")
        for sources in self.sources.values():
            source_names(sources)


def source_names(sources: Iterable[Source]) -> str:
    """Returns the sources of a split as a table shows them: `train.en.gz, train.de.gz`."""
    names = []
    for source in sources:
        for side in source_sides(source):
            first = str(next(iter(side.values()), ""))
            names.append(os.path.basename(first) if "path" in side else first)
    return ", ".join(names)


def source_sides(source: Source) -> list[Source]:
    """Returns the descriptions of the files of a source, or its own if it has no files."""
    return [source[side] for side in ("source", "target", "trees", "tsv", "tmx") if side in source] or [source]
