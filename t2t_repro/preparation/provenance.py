"""Checks that prepared data has the same text and fields as a problem."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import Source, source_sides
from t2t_repro.preparation.corpora import describe
from t2t_repro.problem import SPLITS, WEIGHTS, Problem

_NO_EFFECT = (
    "description",
    "example",
    "source_language",
    "target_language",
    "metric",
    *WEIGHTS,
)  # fields that do not affect the data
_ONLY_VERIFIED = ("sha256", "versions", "archives")  # parts of a description that only `verify` compares


def check_same_data(dataset: Dataset, problem: Problem, verify: bool = False) -> None:
    """Raises ValueError, naming the differences, unless `dataset` was made of `problem` and its text as it is now.

    Paths and sizes are compared, with `verify` hashes too. A problem that takes the user's files, and was given none,
    matches any files.
    """
    record = dataset.record
    both = problem, record.problem
    fields, made_of = ({"linearization": each.linearization} | inputs_of(each) for each in both)
    differences = [
        f"its {name} {'are' if name == 'filters' else 'is'} {made_of.get(name)!r}, not {fields.get(name)!r}"
        for name in made_of | fields
        if made_of.get(name) != fields.get(name)
    ]
    sources = record.sources if problem.takes_files else sources_of(problem, hashed=verify)
    for split in SPLITS:
        before, now = (_comparable(each.get(split, []), verify) for each in (record.sources, sources))
        if before != now:
            differences.append(f"its {split} text was {_short(before)}, not {_short(now)}")
    if differences:
        raise ValueError(f"{dataset.directory!r} holds other data: {'; '.join(differences)}; give another `data_dir`")


def inputs_of(problem: Problem) -> dict[str, Any]:
    """Returns the fields of a problem that the bytes of its prepared data depend on."""
    return {name: value for name, value in problem.to_dict().items() if name not in _NO_EFFECT}


def sources_of(problem: Problem, hashed: bool) -> dict[str, list[Source]]:
    """Returns the descriptions of the corpora of each split: none if the user has not given all text."""
    given = {split: () if problem.takes_files else problem.corpora(split) for split in SPLITS}
    return {split: [describe(corpus, hashed) for corpus in given[split]] for split in SPLITS}


def _comparable(sources: list[Source], verify: bool) -> Any:
    """Returns descriptions of sources without the parts that only `verify` compares."""
    if verify:
        return sources

    def cheap(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: cheap(part) for key, part in value.items() if key not in _ONLY_VERIFIED}

    return [cheap(source) for source in sources]


def _short(sources: Iterable[Source]) -> str:
    """Returns descriptions of sources as an error shows them."""
    named: list[str] = []
    for source in sources:
        named += [" ".join(str(value) for value in side.values()) for side in source_sides(source)]
        named[-1] += f" named {source['name']}" if "name" in source else ""
    return " + ".join(named) or "none"
