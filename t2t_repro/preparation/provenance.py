"""Compares prepared data with a problem as it is now: were they made from the same text and fields?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from t2t_repro.data.dataset import Dataset, source_sides
from t2t_repro.preparation.corpora import describe
from t2t_repro.problem import SPLITS, Problem

_SAME_DATA = ("description", "source_language", "target_language", "metric")  # fields that change no byte of it
_ONLY_VERIFIED = (
    "sha256",
    "versions",
    "archives",
)  # parts of a source's description that are not compared at every start


def must_be_of(dataset: Dataset, problem: Problem, verify: bool = False) -> None:
    """Raises ValueError, saying what differs, unless `dataset` was made of `problem` and its text as it is now.

    Paths and sizes are compared, with `verify` hashes as well. A problem that takes the user's files and was given
    none is content with whichever were prepared.
    """
    here = made_of(problem, hashed=verify)
    # a field that is younger than the data has the value that it was made with: its default
    there = {"problem": Problem(**dataset.record["problem"]).to_dict(), "sources": dataset.record["sources"]}
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
        raise ValueError(f"{dataset.directory!r} holds other data: {'; '.join(differences)}; give another --data_dir")


def made_of(problem: Problem, hashed: bool) -> dict[str, Any]:
    """Returns what the bytes of prepared data follow from: {"problem": fields, "sources": {split: descriptions}}.

    There are no descriptions where the user has still to give text.
    """
    fields = {name: value for name, value in problem.to_dict().items() if name not in _SAME_DATA}
    given = {split: () if problem.takes_files else problem.corpora(split) for split in SPLITS}
    sources = {split: [describe(corpus, hashed) for corpus in given[split]] for split in SPLITS}
    return {"problem": fields, "sources": sources}


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
    named: list[str] = []
    for source in sources:
        named += [" ".join(str(value) for value in side.values()) for side in source_sides(source)]
    return " + ".join(named) or "none"
