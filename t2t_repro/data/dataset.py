"""Dataset: prepared data as it lies in a directory, and `dataset.json`, which says what it was made of."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.data.shards import SHARD_NAME, count_records
from t2t_repro.data.sources import describe
from t2t_repro.files import read_json, sha256
from t2t_repro.problem import SPLITS, Problem

FORMAT = 1
DATASET = "dataset.json"
VOCABULARY = "vocabulary.model"
_PERCENTILES = (50, 90, 99)
_SAME_DATA = ("description", "source_language", "target_language", "metric")  # fields that change no byte of it
_ONLY_VERIFIED = ("sha256", "versions")  # parts of a source's description that are not compared at every start


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
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); remove it to prepare again"
            ) from None
        dataset = cls(os.path.abspath(directory), record)
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

    def must_be_of(self, problem: Problem, verify: bool = False) -> None:
        """Raises ValueError, saying what differs, unless this was made of `problem` and its text as it is now.

        Paths and sizes are compared, with `verify` hashes as well. A problem that takes the user's files and was given
        none is content with whichever were prepared.
        """
        here = made_of(problem, hashed=verify)
        there = {"problem": self.record["problem"], "sources": self.record["sources"]}
        if problem.takes_files:
            here["sources"] = there["sources"]
        differences = [
            f"its {name} is {there['problem'].get(name)!r}, not {value!r}"
            for name, value in here["problem"].items()
            if there["problem"].get(name) != value
        ]
        for split in SPLITS:
            was, now = (_comparable(parts["sources"].get(split, []), verify) for parts in (there, here))
            if was != now:
                differences.append(f"its {split} text was {_short(was)}, not {_short(now)}")
        if differences:
            raise ValueError(f"{self.directory!r} holds other data: {'; '.join(differences)}; give another --data_dir")

    def _check_files(self, verify: bool) -> None:
        again = f"remove {os.path.join(self.directory, DATASET)} to prepare again"
        vocabulary = self.record["vocabulary"]
        if not os.path.isfile(self.vocabulary):
            raise ValueError(f"{self.vocabulary} is missing; {again}")
        if verify and sha256(self.vocabulary) != vocabulary["sha256"]:
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


@dataclass
class SplitCounts:
    """What dataset.json says about one split. Lengths are in tokens, END included."""

    read: int = 0
    kept: int = 0
    dropped: collections.Counter[str] = field(default_factory=collections.Counter)  # "empty" or "too_long"
    irregular: collections.Counter[str] = field(default_factory=collections.Counter)  # the same, kept none the less
    lengths: dict[str, collections.Counter[int]] = field(
        default_factory=lambda: {"inputs": collections.Counter(), "targets": collections.Counter()}
    )

    def keep(self, inputs: list[int], targets: list[int]) -> None:
        self.kept += 1
        self.lengths["inputs"][len(inputs)] += 1
        self.lengths["targets"][len(targets)] += 1

    def record(self) -> dict[str, Any]:
        return {
            "pairs_read": self.read,
            "pairs": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "irregular_but_kept": dict(sorted(self.irregular.items())),
            "tokens": {side: sum(n * count for n, count in counts.items()) for side, counts in self.lengths.items()},
            "length": {side: _spread(counts) for side, counts in self.lengths.items()},
        }

    def summary(self, max_length: int) -> str:
        """`64,000 pairs, 1,043,221 source and 1,120,993 target tokens, 12 dropped (longer than 256 tokens)`."""
        words = {"empty": "a side empty", "too_long": f"longer than {max_length} tokens"}
        tokens = self.record()["tokens"]
        parts = [f"{self.kept:,} pairs", f"{tokens['inputs']:,} source and {tokens['targets']:,} target tokens"]
        parts += [f"{number:,} dropped ({words[why]})" for why, number in sorted(self.dropped.items())]
        parts += [f"{number:,} kept though irregular ({words[why]})" for why, number in sorted(self.irregular.items())]
        return ", ".join(parts)


def made_of(problem: Problem, hashed: bool) -> dict[str, Any]:
    """What the bytes of prepared data follow from: {"problem": fields, "sources": {split: descriptions}}.

    There are no descriptions where the user has still to give text.
    """
    fields = {name: value for name, value in problem.to_dict().items() if name not in _SAME_DATA}
    given = {split: () if problem.takes_files else problem.corpora(split) for split in SPLITS}
    sources = {split: [describe(corpus, hashed) for corpus in given[split]] for split in SPLITS}
    return {"problem": fields, "sources": sources}


def files_of(split: dict[str, Any]) -> list[dict[str, Any]]:
    """What dataset.json says of each file of a split: its shards, and its trees where it has some."""
    return [*split["shards"], *([split["trees"]] if "trees" in split else [])]


def intact(path: str, file: dict[str, Any]) -> bool:
    """Whether a file is there, with the bytes that were recorded."""
    return os.path.isfile(path) and os.path.getsize(path) == file["bytes"]


def _spread(counts: collections.Counter[int]) -> dict[str, float]:
    """Mean, some percentiles and the maximum of lengths given as {length: how many}."""
    number, seen = counts.total(), 0
    found: dict[str, float] = {}
    if not number:
        return {}
    for length in sorted(counts):
        seen += counts[length]
        for percent in _PERCENTILES:
            if seen * 100 >= number * percent:
                found.setdefault(f"p{percent}", length)
    mean = sum(length * count for length, count in counts.items()) / number
    return {"mean": round(mean, 2)} | found | {"max": max(counts)}


def _comparable(sources: list[dict[str, Any]], verify: bool) -> Any:
    """Descriptions of sources without the parts that are compared by `verify` alone."""
    if verify:
        return sources

    def cheap(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: cheap(part) for key, part in value.items() if key not in _ONLY_VERIFIED}

    return [cheap(source) for source in sources]


def _short(sources: Iterable[dict[str, Any]]) -> str:
    """Descriptions of sources as an error shows them."""
    named = []
    for source in sources:
        for side in [source] if "function" in source else source.values():
            named.append(" ".join(str(value) for value in side.values()))
    return " + ".join(named) or "none"


def _check_form(record: dict[str, Any]) -> None:
    """Raises KeyError, TypeError, AttributeError or ValueError unless `record` has the form that prepare() gives it."""
    problem = Problem(**record["problem"])
    str.lower(record["vocabulary"]["sha256"])
    for sources in record["sources"].values():
        _short(sources)
    if "train" not in record["splits"] or not record["splits"].keys() <= set(SPLITS):
        raise ValueError(f"splits are {sorted(record['splits'])}")
    for name, split in record["splits"].items():
        if ("trees" in split) != (problem.metric == "f1" and name != "train"):
            raise ValueError(f"{name} has {'' if 'trees' in split else 'no '}trees")
        for file in files_of(split):
            if not SHARD_NAME.fullmatch(file["name"]) and file["name"] != f"{name}.trees":
                raise ValueError(f"a file is named {file['name']!r}")
            if not isinstance(file["sha256"], str):
                raise TypeError("sha256 must be a string")
            if not all(isinstance(file[key], int) for key in ("bytes", "records")):
                raise TypeError("bytes and records must be integers")
