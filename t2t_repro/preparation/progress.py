"""`progress.json`: the completed phases of an interrupted preparation, so that the next one resumes after them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from t2t_repro.data.dataset import VOCABULARY
from t2t_repro.data.dataset_record import CorpusRecord, SplitRecord, VocabularyRecord, corpus_records, to_json
from t2t_repro.data.shards import SHARD_NAME, FileRecord
from t2t_repro.io import read_json, sha256, write_json
from t2t_repro.parsing.treebank import TREES_NAME

PROGRESS = "progress.json"
_WRITTEN = re.compile(rf"{SHARD_NAME.pattern}|{TREES_NAME.pattern}")
_LEFTOVER = re.compile(rf"({_WRITTEN.pattern}|vocabulary\.model|dataset\.json|progress\.json)\.tmp-\d+")


class Progress:
    """The completed phases of a preparation in `directory`, from an earlier one of the same `inputs` or none.

    Files that are no longer intact are not counted. `shuffled` are the shards of the training text, while they are
    being written.
    """

    def __init__(self, directory: str, inputs: Mapping[str, Any]):
        self.directory, self.inputs = directory, inputs
        self.corpora: dict[str, list[CorpusRecord]] = {}  # of each split, after all text was read once
        self.validation_hashes: list[int] = []  # `source_hash` of the training pairs that are for validation
        self.vocabulary = VocabularyRecord(size=0, sha256="")  # until it is learned
        self.splits: dict[str, SplitRecord] = {}
        self.shuffled: list[FileRecord] = []
        try:
            self._resume(read_json(os.path.join(directory, PROGRESS)))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            pass  # missing or damaged: start from the beginning

    def _resume(self, saved: dict[str, Any]) -> None:
        if saved["inputs"] != self.inputs:
            return
        corpora = {split: corpus_records(records) for split, records in saved["corpora"].items()}
        vocabulary = VocabularyRecord.from_json(saved["vocabulary"])
        splits = {split: SplitRecord.from_json(record) for split, record in saved["splits"].items()}
        shuffled = [FileRecord.from_json(file) for file in saved["shuffled"]]
        self.corpora, self.validation_hashes = corpora, list(saved["validation_hashes"])
        self.vocabulary = vocabulary
        self.splits = {split: record for split, record in splits.items() if self._intact(record.files)}
        self.shuffled = [file for file in shuffled if self._intact([file])]

    def save(self) -> None:
        """Writes the file."""
        written = {name: value for name, value in vars(self).items() if name != "directory"}
        write_json(os.path.join(self.directory, PROGRESS), to_json(written))

    def has_vocabulary(self) -> bool:
        """Returns whether the vocabulary is in the directory as it was learned."""
        path = os.path.join(self.directory, VOCABULARY)
        return os.path.isfile(path) and sha256(path) == self.vocabulary.sha256

    def remove_incomplete(self) -> None:
        """Removes temporary files, and files that are not recorded here."""
        recorded = {file.name for record in self.splits.values() for file in record.files}
        recorded |= {file.name for file in self.shuffled}
        for name in os.listdir(self.directory):
            if _LEFTOVER.fullmatch(name) or (_WRITTEN.fullmatch(name) and name not in recorded):
                os.remove(os.path.join(self.directory, name))

    def _intact(self, files: list[FileRecord]) -> bool:
        return all(file.is_intact(self.directory) for file in files)
