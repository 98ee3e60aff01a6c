"""The records of `dataset.json`: the sources of prepared data and the contents of its files.

Each record is a frozen dataclass whose fields are the keys of the JSON object, in their order. A field that is None is
left out. A file written before a field existed gets its default.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.data.shards import SHARD_NAME, FileRecord
from t2t_repro.problem import SPLITS, Problem

FORMAT = 1

Source = dict[str, Any]  # description of a corpus by `preparation.corpora.describe`; only compared and printed


@dataclass(frozen=True, kw_only=True)
class SplitRecord:
    """One split: numbers of pairs and tokens, lengths in tokens with END, and files."""

    pairs_read: int = 0
    pairs: int
    dropped: dict[str, int] = field(default_factory=dict)  # by reason: "empty" or "too_long"
    irregular_but_kept: dict[str, int] = field(default_factory=dict)  # the same for validation and test text
    tokens: dict[str, int] = field(default_factory=dict)  # by side: "inputs" and "targets"
    length: dict[str, dict[str, float]] = field(default_factory=dict)  # by side: mean, percentiles and maximum
    held_out: int | None = None  # training pairs in the validation split
    held_out_of: str | None = None  # the split that these pairs come from
    shards: tuple[FileRecord, ...]
    sample_of: int | None = None  # number of pairs that were sampled from
    trees: FileRecord | None = None  # gold trees of a parsing problem

    @property
    def files(self) -> list[FileRecord]:
        """The shards, and the trees if there are any."""
        return [*self.shards, *([self.trees] if self.trees else [])]

    @property
    def max_lengths(self) -> list[int]:
        """The maximum length of source and target."""
        return [int(self.length[side]["max"]) for side in ("inputs", "targets")]

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> SplitRecord:
        """Raises KeyError, TypeError, AttributeError or ValueError for another form."""
        files = {"shards": tuple(FileRecord.from_json(file) for file in saved["shards"])}
        if not files["shards"] or not int.bit_length(saved["pairs"]):
            raise ValueError("a split has nothing in it")
        trees = FileRecord.from_json(saved["trees"]) if "trees" in saved else None
        return cls(**_known(cls, saved) | files | {"trees": trees})


@dataclass(frozen=True, kw_only=True)
class VocabularyRecord:
    """The vocabulary: its kind, its size, how many of its subwords are bytes and characters, and its hash."""

    kind: str = "bpe"
    size: int
    bytes: int | None = None
    characters: int | None = None
    sha256: str
    sentences: int | None = None  # number of sentences it was learned from

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> VocabularyRecord:
        """Raises KeyError, TypeError or AttributeError for another form."""
        str.lower(saved["sha256"])
        int.bit_length(saved["size"])
        return cls(**_known(cls, saved))


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """The number of lines or trees read from a corpus, and the known number."""

    name: str | None = None  # None for text files and generators
    trees_known: int | None = None
    lines_known: int | None = None
    lines: int
    not_trees: int | None = None  # trees dropped from a parser's output

    @property
    def missing(self) -> str:
        """A difference in the number of trees: `section 23: 8 of 2,416 trees`; "" for other corpora."""
        if self.trees_known is None or self.lines == self.trees_known:
            return ""
        return f"{self.name}: {self.lines:,} of {self.trees_known:,} trees"

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CorpusRecord:
        """Raises KeyError or TypeError for another form."""
        int.bit_length(saved["lines"])
        return cls(**_known(cls, saved))


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """All of `dataset.json`."""

    problem: Problem  # without its corpora
    sources: dict[str, list[Source]] = field(default_factory=dict)  # by split
    corpora: dict[str, list[CorpusRecord]] = field(default_factory=dict)  # by split
    vocabulary: VocabularyRecord
    splits: dict[str, SplitRecord]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as `from_json` reads it."""
        fields = {name.name: to_json(getattr(self, name.name)) for name in dataclasses.fields(self)}
        return {"format": FORMAT} | fields | {"problem": self.problem.to_dict()}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> DatasetRecord:
        """Raises KeyError, TypeError, AttributeError or ValueError unless `saved` has the form of `to_json`."""
        record = cls(
            problem=Problem(**saved["problem"]),
            sources={split: list(sources) for split, sources in saved["sources"].items()},
            corpora={split: corpus_records(corpora) for split, corpora in saved.get("corpora", {}).items()},
            vocabulary=VocabularyRecord.from_json(saved["vocabulary"]),
            splits={split: SplitRecord.from_json(record) for split, record in saved["splits"].items()},
            versions=saved.get("versions", {}),
        )
        record._check()
        return record

    def _check(self) -> None:
        if "train" not in self.splits or not self.splits.keys() <= set(SPLITS):
            raise ValueError(f"splits are {sorted(self.splits)}")
        for name, split in self.splits.items():
            if (split.trees is not None) != (self.problem.task.takes_trees and name != "train"):
                raise ValueError(f"{name} has {'' if split.trees else 'no '}trees")
            for file in split.files:
                if not SHARD_NAME.fullmatch(file.name) and file.name != f"{name}.trees":
                    raise ValueError(f"a file is named {file.name!r}")
        for sources in self.sources.values():
            source_names(sources)


def corpus_records(saved: Iterable[dict[str, Any]]) -> list[CorpusRecord]:
    """Reads the records of the corpora of a split."""
    return [CorpusRecord.from_json(corpus) for corpus in saved]


def to_json(value: Any) -> Any:
    """Returns records and their containers as values for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {name: to_json(part) for name, part in values.items() if part is not None}
    if isinstance(value, dict):
        return {name: to_json(part) for name, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list | tuple) else value


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
    return [source[side] for side in ("source", "target", "trees") if side in source] or [source]


def _known(cls: type, saved: dict[str, Any]) -> dict[str, Any]:
    return {each.name: saved[each.name] for each in dataclasses.fields(cls) if each.name in saved}
