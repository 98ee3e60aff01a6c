"""Dataset: prepared data as it lies in a directory, and `dataset.json`, which says what it was made of."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from t2t_repro.data.shards import SHARD_NAME, count_records
from t2t_repro.io import read_json, sha256
from t2t_repro.problem import SPLITS, Problem

FORMAT = 1
DATASET = "dataset.json"
VOCABULARY = "vocabulary.model"


@dataclass(frozen=True)
class Dataset:
    """Prepared data: `open` it. `record` is what dataset.json says."""

    directory: str
    record: dict[str, Any]

    @classmethod
    def exists(cls, directory: str) -> bool:
        return os.path.isfile(os.path.join(directory, DATASET))

    @classmethod
    def open(cls, directory: str, verify: bool = False) -> Dataset:
        """The data in `directory`, every file there and of its size; with `verify`, every hash and record count equal.

        Raises FileNotFoundError where there is none, ValueError, naming the file, where one is missing or damaged.
        """
        path = os.path.join(directory, DATASET)
        if not cls.exists(directory):
            raise FileNotFoundError(f"{directory!r} holds no prepared data (no {DATASET}); make it with t2t-datagen")
        record = read_json(path)
        if record.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {record.get('format')!r}, this version reads {FORMAT}; "
                "use the version of t2t_repro that wrote it, or prepare the data in another --data_dir"
            )
        try:
            _check_form(record)
            dataset = cls(os.path.abspath(directory), record)
            dataset.condition()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); remove it to prepare again"
            ) from None
        dataset._check_files(verify)
        return dataset

    @property
    def vocabulary(self) -> str:
        """The path of the vocabulary."""
        return os.path.join(self.directory, VOCABULARY)

    def has(self, split: str) -> bool:
        """Whether there is text of that split."""
        return split in self.record["splits"]

    def shards(self, split: str) -> list[str]:
        """The paths of the TFRecord files of a split. Raises ValueError where the problem has no such text."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if not self.has(split):
            problem = Problem(**self.record["problem"])
            raise ValueError(
                f"problem {problem.name!r} has no {split} text; prepare it with some ({problem.flags(split)})"
            )
        return [os.path.join(self.directory, shard["name"]) for shard in self.record["splits"][split]["shards"]]

    def trees(self, split: str) -> str:
        """The path of the trees that a split is scored against, in the order of its pairs. Raises as `shards`."""
        self.shards(split)
        return os.path.join(self.directory, self.record["splits"][split]["trees"]["name"])

    def condition(self) -> dict[str, Any]:
        """What a score on this data is told with: what it was trained on and scored on, the vocabulary's size,
        and what is missing from the paper's data."""
        sources, splits = self.record["sources"], self.record["splits"]
        names = {split: source_names(sources[split]) or "held out from train" for split in SPLITS if split in splits}
        size = {"pairs": splits["train"]["pairs"], "vocab_size": self.record["vocabulary"]["size"]}
        return names | size | ({"incomplete": self.incomplete()} if self.incomplete() else {})

    def incomplete(self) -> list[str]:
        """Sections of a treebank that have another number of trees than is known: `section 23: 8 of 2,416 trees`."""
        corpora = [each for split in self.record.get("corpora", {}).values() for each in split if "trees_known" in each]
        return [
            f"{each['name']}: {each['lines']:,} of {each['trees_known']:,} trees"
            for each in corpora
            if each["lines"] != each["trees_known"]
        ]

    def _check_files(self, verify: bool) -> None:
        again = f"remove {os.path.join(self.directory, DATASET)} to prepare again"
        vocabulary = self.record["vocabulary"]
        if not os.path.isfile(self.vocabulary):
            raise ValueError(f"{self.vocabulary} is missing; {again}")
        if sha256(self.vocabulary) != vocabulary["sha256"]:  # always: with another one, every id is another word
            raise ValueError(f"{self.vocabulary} is damaged (its SHA-256 differs); {again}")
        for file in (file for split in self.record["splits"].values() for file in files_of(split)):
            path = os.path.join(self.directory, file["name"])
            if not os.path.isfile(path):
                raise ValueError(f"{path} is missing; {again}")
            if not intact(path, file):
                raise ValueError(f"{path} is damaged: {os.path.getsize(path)} bytes, not {file['bytes']}; {again}")
            if verify and sha256(path) != file["sha256"]:
                raise ValueError(f"{path} is damaged (its SHA-256 differs); {again}")
            if verify and SHARD_NAME.fullmatch(file["name"]) and count_records(path) != file["records"]:
                raise ValueError(f"{path} does not hold the {file['records']} records that were counted; {again}")


def files_of(split: dict[str, Any]) -> list[dict[str, Any]]:
    """What dataset.json says of each file of a split: its shards, and its trees where it has some."""
    return [*split["shards"], *([split["trees"]] if "trees" in split else [])]


def intact(path: str, file: dict[str, Any]) -> bool:
    """Whether a file is there, with the bytes that were recorded."""
    return os.path.isfile(path) and os.path.getsize(path) == file["bytes"]


def source_names(sources: Iterable[dict[str, Any]]) -> str:
    """Descriptions of sources as a table shows them: `train.en.gz, train.de.gz`."""
    names = []
    for source in sources:
        for side in source_sides(source):
            first = str(next(iter(side.values()), ""))
            names.append(os.path.basename(first) if "path" in side else first)
    return ", ".join(names)


def source_sides(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a description of a source, what it says of each file, or of all where it has no files."""
    return [source[side] for side in ("source", "target", "trees") if side in source] or [source]


def _check_form(record: dict[str, Any]) -> None:
    """Raises KeyError, TypeError, AttributeError or ValueError unless `record` has the form that prepare() gives it."""
    problem = Problem(**record["problem"])
    str.lower(record["vocabulary"]["sha256"])
    int.bit_length(record["vocabulary"]["size"])
    for sources in record["sources"].values():
        source_names(sources)
    if "train" not in record["splits"] or not record["splits"].keys() <= set(SPLITS):
        raise ValueError(f"splits are {sorted(record['splits'])}")
    for name, split in record["splits"].items():
        if ("trees" in split) != (problem.task.takes_trees and name != "train"):
            raise ValueError(f"{name} has {'' if 'trees' in split else 'no '}trees")
        if not split["shards"] or not int.bit_length(split["pairs"]):
            raise ValueError(f"{name} has nothing in it")
        for file in files_of(split):
            if not SHARD_NAME.fullmatch(file["name"]) and file["name"] != f"{name}.trees":
                raise ValueError(f"a file is named {file['name']!r}")
            if not isinstance(file["sha256"], str):
                raise TypeError("sha256 must be a string")
            if not all(isinstance(file[key], int) for key in ("bytes", "records")):
                raise TypeError("bytes and records must be integers")
