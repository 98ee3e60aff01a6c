"""Dataset: prepared data in a directory, with `dataset.json`, the record of its sources and files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

from t2t_repro.data.dataset_record import FORMAT, DatasetRecord, source_names
from t2t_repro.data.shards import SHARD_NAME, count_records
from t2t_repro.io import read_json, sha256
from t2t_repro.problem import SPLITS
from t2t_repro.run import Run

DATASET = "dataset.json"
VOCABULARY = "vocabulary.model"


@dataclass(frozen=True)
class Dataset:
    """Prepared data: `open` it. `record` is `dataset.json`."""

    directory: str
    record: DatasetRecord

    @classmethod
    def exists(cls, directory: str) -> bool:
        return os.path.isfile(os.path.join(directory, DATASET))

    @classmethod
    def open(cls, directory: str, verify: bool = False, advice: str = "make it with t2t-datagen") -> Dataset:
        """Opens the data in `directory` and compares the size of each file; with `verify`, hash and record count too.

        Raises FileNotFoundError, with `advice`, if there is no data, and ValueError, naming the file, if one is missing
        or damaged.
        """
        path = os.path.join(directory, DATASET)
        if not cls.exists(directory):
            raise FileNotFoundError(f"{directory!r} holds no prepared data (no {DATASET}); {advice}")
        saved = read_json(path)
        if saved.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {saved.get('format')!r}, this version reads {FORMAT}; "
                "use the version of t2t_repro that wrote it, or prepare the data in another `data_dir`"
            )
        try:
            dataset = cls(os.path.abspath(directory), DatasetRecord.from_json(saved))
            dataset.condition()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); remove it to prepare again"
            ) from None
        dataset._check_files(verify)
        return dataset

    @classmethod
    def of_run(cls, run: Run, data_dir: str | None) -> Dataset:
        """Opens the data that a run was trained with, in its own directory or in `data_dir`.

        Raises FileNotFoundError if it does not exist, and ValueError for data with another vocabulary.
        """
        directory = os.path.join(run.data_dir if data_dir is None else data_dir, run.problem.name)
        dataset = cls.open(directory, advice="give its `data_dir` if it has moved, or make it with t2t-datagen")
        dataset.must_have_vocabulary_of(run, "give the `data_dir` that it was trained with")
        return dataset

    @property
    def vocabulary(self) -> str:
        """The path of the vocabulary."""
        return os.path.join(self.directory, VOCABULARY)

    def has(self, split: str) -> bool:
        """Returns whether the data has that split."""
        return split in self.record.splits

    def shards(self, split: str) -> list[str]:
        """Returns the paths of the TFRecord files of a split. Raises ValueError if the problem has no such text."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if not self.has(split):
            problem = self.record.problem
            raise ValueError(
                f"problem {problem.name!r} has no {split} text; take another split ({', '.join(self.record.splits)}), "
                f"or prepare the data with some ({problem.arguments(split)})"
            )
        return [os.path.join(self.directory, shard.name) for shard in self.record.splits[split].shards]

    def trees(self, split: str) -> str:
        """Returns the path of the trees that a split is scored against, in the order of its pairs.

        Raises ValueError if the problem has none.
        """
        self.shards(split)
        if not (trees := self.record.splits[split].trees):
            raise ValueError(
                f"problem {self.record.problem.name!r} keeps no {split} trees to score against; score the split "
                "'validation' or 'test'"
            )
        return os.path.join(self.directory, trees.name)

    def must_have_vocabulary_of(
        self, run: Run, advice: str = "give another `data_dir`, where the text is prepared with that vocabulary"
    ) -> None:
        """Raises ValueError, with `advice`, if the data was prepared with another vocabulary than that of `run`."""
        if self.record.vocabulary.sha256 != run.vocabulary_sha256:
            raise ValueError(
                f"{self.directory!r} was prepared with another vocabulary than that of the run {run.directory!r}; "
                + advice
            )

    def must_have_text_of(self, run: Run) -> None:
        """Raises ValueError if a run has taken steps on other training text, or has scores of other validation text."""
        before = run.training
        scored = before.selection.scores if before.selection else {}
        if before.step and before.text_sha256 not in (None, self.text_sha256("train")):
            other, how = "text", "trained"
        elif scored and before.validation_sha256 not in (None, self.text_sha256("validation")):
            other, how = "validation text", "validated"
        else:
            return
        raise ValueError(
            f"{run.directory!r} was {how} on other {other} than that in {self.directory!r}; give another output_dir, "
            "which can start from this run (`init_from`)"
        )

    def text_sha256(self, split: str) -> str | None:
        """Returns a SHA-256 of the text of a split: that of the SHA-256 of its shards. None without such text."""
        if not self.has(split):
            return None
        shards = "".join(shard.sha256 for shard in self.record.splits[split].shards)
        return hashlib.sha256(shards.encode("ascii")).hexdigest()

    def condition(self) -> dict[str, Any]:
        """Returns the conditions of a score: training and test data, the vocabulary's size, and what is missing from
        the paper's data."""
        sources, splits = self.record.sources, self.record.splits
        names = {split: source_names(sources[split]) or "held out from train" for split in SPLITS if split in splits}
        size = {"pairs": splits["train"].pairs, "vocab_size": self.record.vocabulary.size}
        return names | size | ({"incomplete": self.incomplete()} if self.incomplete() else {})

    def incomplete(self) -> list[str]:
        """Lists the sections of a treebank that lack trees: `section 23: 8 of 2,416 trees`."""
        corpora = [corpus for split in self.record.corpora.values() for corpus in split]
        return [corpus.missing for corpus in corpora if corpus.missing]

    def _check_files(self, verify: bool) -> None:
        again = f"remove {os.path.join(self.directory, DATASET)} to prepare again"
        if not os.path.isfile(self.vocabulary):
            raise ValueError(f"{self.vocabulary} is missing; {again}")
        if sha256(self.vocabulary) != self.record.vocabulary.sha256:  # always: with another one, ids mean other words
            raise ValueError(f"{self.vocabulary} is damaged (its SHA-256 differs); {again}")
        for file in (file for split in self.record.splits.values() for file in split.files):
            path = os.path.join(self.directory, file.name)
            if not os.path.isfile(path):
                raise ValueError(f"{path} is missing; {again}")
            if not file.is_intact(self.directory):
                raise ValueError(f"{path} is damaged: {os.path.getsize(path)} bytes, not {file.bytes}; {again}")
            if verify and sha256(path) != file.sha256:
                raise ValueError(f"{path} is damaged (its SHA-256 differs); {again}")
            if verify and SHARD_NAME.fullmatch(file.name) and count_records(path) != file.records:
                raise ValueError(f"{path} does not hold the {file.records} records that were counted; {again}")
