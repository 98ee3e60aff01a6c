"""progress.json: what of a preparation is done, so that the next one goes on and trusts nothing half written."""

from __future__ import annotations

import os
import re
from typing import Any

from t2t_repro.data.dataset import VOCABULARY, files_of, intact
from t2t_repro.data.shards import SHARD_NAME
from t2t_repro.io import read_json, sha256, write_json
from t2t_repro.parsing.treebank import TREES_NAME

PROGRESS = "progress.json"
_OURS = re.compile(rf"{SHARD_NAME.pattern}|{TREES_NAME.pattern}")
_LEFTOVER = re.compile(rf"({_OURS.pattern}|vocabulary\.model|dataset\.json|progress\.json)\.tmp-\d+")


class Account(dict[str, Any]):
    """What progress.json says: the account of an earlier preparation made of the same `parts`, less what is no longer
    whole; or a new one. "shuffled" are the shards of a split that is being written.
    """

    def __init__(self, directory: str, parts: dict[str, Any]):
        super().__init__(parts=parts, splits={}, shuffled=[])
        self.directory = directory
        try:
            earlier = read_json(os.path.join(directory, PROGRESS))
            if earlier["parts"] == parts:
                splits = earlier["splits"].items()
                earlier["splits"] = {split: record for split, record in splits if self._is_whole(files_of(record))}
                earlier["shuffled"] = [shard for shard in earlier["shuffled"] if self._is_whole([shard])]
                self.update(earlier)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            pass  # none, or a damaged one: begin anew

    @property
    def splits(self) -> dict[str, Any]:
        """What dataset.json will say of each split that is written."""
        return self["splits"]

    def save(self, **news: Any) -> None:
        """Takes `news` into the account, and writes it."""
        self.update(news)
        write_json(os.path.join(self.directory, PROGRESS), self)

    def has_vocabulary(self) -> bool:
        """Whether the vocabulary lies there as it was learnt."""
        path = os.path.join(self.directory, VOCABULARY)
        return "vocabulary" in self and os.path.isfile(path) and sha256(path) == self["vocabulary"]["sha256"]

    def clean(self) -> None:
        """Removes what was half written, and files that are not in the account."""
        known = {file["name"] for record in self.splits.values() for file in files_of(record)}
        known |= {shard["name"] for shard in self["shuffled"]}
        for name in os.listdir(self.directory):
            if _LEFTOVER.fullmatch(name) or (_OURS.fullmatch(name) and name not in known):
                os.remove(os.path.join(self.directory, name))

    def _is_whole(self, files: list[dict[str, Any]]) -> bool:
        return all(intact(os.path.join(self.directory, file["name"]), file) for file in files)
