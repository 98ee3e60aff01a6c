"""Checks that prepared data has the same text and fields as a problem."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from t2t_repro.data.dataset import DATASET, Dataset
from t2t_repro.data.dataset_record import Source, source_sides
from t2t_repro.preparation.corpora import describe, files_of
from t2t_repro.problem import SPLITS, WEIGHTS, Corpus, Generated, Problem

_LANGUAGES = ("source_language", "target_language")
_NO_EFFECT = ("description", "example", *_LANGUAGES, "metric", *WEIGHTS)  # fields that do not affect the data
_HASHES = ("sha256", "archives")  # parts of a description that are compared if both have them
_SHOWN = {"files": "{} files", "bytes": "{} bytes", "sha256": "SHA-256 {:.12}"}  # in an error


def check_same_data(dataset: Dataset, problem: Problem, verify: bool = False) -> None:
    """Raises ValueError, naming the differences, unless `dataset` was made of `problem` and its text as it is now.

    Paths and sizes are compared. Hashes are compared too, of text whose files are not older than `dataset.json`, and of
    all text with `verify`. A problem that takes the user's files, and was given none, matches any files.
    """
    record = dataset.record
    both = problem, record.problem
    fields, made_of = ({"linearization": each.linearization} | inputs_of(each) for each in both)
    differences = [
        f"its {name} {'are' if name == 'filters' else 'is'} {made_of.get(name)!r}, not {fields.get(name)!r}"
        for name in made_of | fields
        if made_of.get(name) != fields.get(name)
    ]
    for name in _LANGUAGES:
        given, recorded = (getattr(each, name) for each in both)
        if given and recorded and given != recorded:
            differences.append(f"its {name} is {recorded!r}, not {given!r}")
    time = 0 if verify else os.stat(os.path.join(dataset.directory, DATASET)).st_mtime_ns
    sources = record.sources if problem.takes_files else sources_of(problem, time)
    for split in SPLITS:
        before, now = (each.get(split, []) for each in (record.sources, sources))
        before, now = _comparable(before, now), _comparable(now, before)
        if before != now:
            differences.append(f"its {split} text was {_short(before)}, not {_short(now)}")
    if differences:
        raise ValueError(
            f"{dataset.directory!r} holds other data: {'; '.join(differences)}; give another `data_dir`, "
            f"or remove {os.path.join(dataset.directory, DATASET)} to prepare again"
        )


def inputs_of(problem: Problem) -> dict[str, Any]:
    """Returns the fields of a problem that the bytes of its prepared data depend on."""
    return {name: value for name, value in problem.to_dict().items() if name not in _NO_EFFECT}


def sources_of(problem: Problem, time: int = 0) -> dict[str, list[Source]]:
    """Returns the descriptions of the corpora of each split: none if the user has not given all text.

    They have no hashes of text whose files are older than `time`, in nanoseconds.
    """
    given = {split: () if problem.takes_files else problem.corpora(split) for split in SPLITS}
    return {split: [describe(corpus, _may_differ(corpus, time)) for corpus in given[split]] for split in SPLITS}


def changed_since(problem: Problem, time: int) -> bool:
    """Returns whether a file of text was written, copied or moved since `time`, in nanoseconds."""
    corpora = [corpus for split in SPLITS for corpus in problem.corpora(split)]
    return any(_may_differ(corpus, time) for corpus in corpora if not isinstance(corpus, Generated))


def _may_differ(corpus: Corpus, time: int) -> bool:
    """Returns whether the text of a corpus may have changed since `time`."""
    files = files_of(corpus)
    if not time or files is None:
        return True
    stats = [os.stat(path) for path in files if os.path.exists(path)]
    return any(max(each.st_mtime_ns, each.st_ctime_ns) >= time for each in stats)  # ctime: `mv`, `cp -p`


def _comparable(sources: list[Source], others: list[Source]) -> list[Source]:
    """Returns descriptions without versions, and without hashes that the others do not have."""

    def compared(value: Any, other: Any) -> Any:
        if not isinstance(value, dict):
            return value
        other = other if isinstance(other, dict) else {}
        kept = (key for key in value if key != "versions" and (key in other or key not in _HASHES))
        return {key: compared(value[key], other.get(key)) for key in kept}

    return [compared(source, other) for source, other in itertools.zip_longest(sources, others)][: len(sources)]


def _short(sources: Iterable[Source]) -> str:
    """Returns descriptions of sources as an error shows them."""
    named: list[str] = []
    for source in sources:
        for side in source_sides(source):
            named.append(", ".join(_SHOWN.get(key, "{}").format(value) for key, value in side.items()))
        named[-1] += f" named {source['name']}" if "name" in source else ""
    return " + ".join(named) or "none"
