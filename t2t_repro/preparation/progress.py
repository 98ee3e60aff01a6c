"""`progress.json`: the completed phases of an interrupted preparation, so that the next one resumes after them."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.data.dataset_record import CorpusRecord, SplitRecord, VocabularyRecord
from t2t_repro.data.shards import SHARD_NAME, FileRecord
from t2t_repro.io import JsonRecord, read_json, sha256, write_json
from t2t_repro.parsing.treebank import TREES_NAME

PROGRESS = "progress.json"
_WRITTEN = re.compile(rf"{SHARD_NAME.pattern}|{TREES_NAME.pattern}")
_LEFTOVER = re.compile(rf"({_WRITTEN.pattern}|vocabulary\.model|filtered\.bin|dataset\.json|progress\.json)\.tmp-\d+")


@dataclass
class Progress(JsonRecord):
    """The completed phases of a preparation with these `inputs`."""

    inputs: dict[str, Any]
    changed: bool = False  # true if text changed after it was hashed for `inputs`
    corpora: dict[str, list[CorpusRecord]] = field(default_factory=dict)  # by split, after all text was read once
    filtered: str = ""  # SHA-256 of the decisions of the filters, once they are complete
    validation_hashes: list[int] = field(default_factory=list)  # `source_hash` of the training pairs for validation
    vocabulary: VocabularyRecord = VocabularyRecord(size=0, sha256="")  # until it is learned
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    shuffled: list[FileRecord] = field(default_factory=list)  # shards of the training text, while they are written

    @classmethod
    def resume(cls, directory: str, inputs: dict[str, Any]) -> Progress:
        """Returns the progress of an earlier preparation in `directory`, without files that are no longer intact.

        If there is none, if its inputs differ, or if they changed meanwhile, nothing is complete.
        """
        try:
            saved = cls.from_json(read_json(os.path.join(directory, PROGRESS)))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged
            return cls(inputs)
        if saved.inputs != inputs or saved.changed:
            return cls(inputs)

        def intact(files: list[FileRecord]) -> bool:
            return all(file.is_intact(directory) for file in files)

        splits = {split: record for split, record in saved.splits.items() if intact(record.files)}
        shuffled = [file for file in saved.shuffled if intact([file])]
        return dataclasses.replace(saved, splits=splits, shuffled=shuffled)

    def save(self, directory: str) -> None:
        """Writes the file."""
        write_json(os.path.join(directory, PROGRESS), self.to_json())

    def has_vocabulary(self, path: str) -> bool:
        """Returns whether the vocabulary at `path` is the learned one."""
        return os.path.isfile(path) and sha256(path) == self.vocabulary.sha256

    def remove_incomplete(self, directory: str) -> None:
        """Removes temporary files, and files that are not recorded here."""
        recorded = {file.name for record in self.splits.values() for file in record.files}
        recorded |= {file.name for file in self.shuffled}
        for name in os.listdir(directory):
            if _LEFTOVER.fullmatch(name) or (_WRITTEN.fullmatch(name) and name not in recorded):
                os.remove(os.path.join(directory, name))
