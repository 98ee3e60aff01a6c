"""Validation sets of other prepared data: what a model forgets while it learns from its own data shows there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from t2t_repro.data.dataset import DATASET, Dataset


def open_validation_sets(directories: Sequence[str]) -> dict[str, Dataset]:
    """Opens prepared data that has a validation split, by the names of the directories.

    A directory holds `dataset.json`, or one folder that does, as a `data_dir` with one problem. Raises
    FileNotFoundError if it holds neither, and ValueError if the data is damaged or has no validation split, or if two
    directories have one name.
    """
    found: dict[str, Dataset] = {}
    for directory in directories:
        name = os.path.basename(os.path.abspath(directory))
        if name in found:
            raise ValueError(f"also_validate: two directories are named {name!r}; rename one of them")
        found[name] = Dataset.open(_prepared(directory))
        found[name].shards("validation")
    return found


def must_share_vocabulary(sets: Mapping[str, Dataset], sha256: str) -> None:
    """Raises ValueError if one of the sets was prepared with another vocabulary than that with this SHA-256."""
    for dataset in sets.values():
        found = dataset.record.vocabulary.sha256
        if found != sha256:
            raise ValueError(
                f"also_validate: {dataset.directory!r} was prepared with another vocabulary (SHA-256 {found[:12]}..., "
                f"expected {sha256[:12]}...); prepare it with the vocabulary of the training data"
            )


def _prepared(directory: str) -> str:
    """Returns `directory`, or the one folder in it that holds prepared data."""
    if os.path.isdir(directory) and not Dataset.exists(directory):
        within = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
        if len(prepared := [path for path in within if Dataset.exists(path)]) == 1:
            return prepared[0]
    if not Dataset.exists(directory):
        raise FileNotFoundError(
            f"also_validate: {directory!r} holds neither a {DATASET} nor one folder with it; give a directory that "
            "t2t-datagen wrote"
        )
    return directory
