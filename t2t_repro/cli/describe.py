"""Text for t2t-registry: lists, descriptions and differences of problems and hyperparameter sets."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from t2t_repro.cli.launcher import WIDTH
from t2t_repro.cli.messages import in_flags
from t2t_repro.cli.problem_flags import DATA_FLAGS
from t2t_repro.config import HParams
from t2t_repro.problem import SPLITS, Corpus, Problem, TextFiles, TmxFile, Trees, TsvFile, Wmt
from t2t_repro.registry import HPARAMS, RECORDS

_WHY_PRINTED_DIFFERS = (
    "The sizes printed in Table 3 imply a vocabulary of 41,004 to 41,208 entries in every row but big, and of 35,368 "
    'to 36,344 for big. So the paper\'s "about 37,000" is not one number, and the exact count is shown beside the '
    "printed one."
)


def list_names(problems: Mapping[str, Problem], sets: Mapping[str, HParams]) -> str:
    """Returns every problem and every hyperparameter set with its description."""
    lines = ["Problems (--problem):", *_columns([[name, _description(problems[name])] for name in problems]), ""]
    lines += ["Hyperparameter sets (--hparams):", *_columns([[name, _description(sets[name])] for name in sets])]
    return "\n".join(lines)


def describe_problem(problem: Problem) -> str:
    """Returns every field of a problem and the source of its text."""
    rows = []
    for field in dataclasses.fields(problem):
        if field.name in ("name", "description"):
            continue
        value = _corpora(problem, field.name) if field.name in SPLITS else _show(getattr(problem, field.name))
        rows.append([field.name, value])
    return "\n".join([*_title("Problem", problem), "", *_columns(rows)])


def describe_hparams(hparams: HParams, vocab_size: int) -> str:
    """Returns every field of a set with its value, meaning and section of the paper, then its number of parameters."""
    rows = [["field", "value", "section", ""]]
    for field in dataclasses.fields(hparams):
        if field.metadata:
            value = _show(getattr(hparams, field.name))
            rows.append([field.name, value, field.metadata["section"], field.metadata["meaning"]])
    count = f"{hparams.num_parameters(vocab_size):,} parameters with a vocabulary of {vocab_size:,}."
    is_registered = HPARAMS.get(hparams.name) == hparams  # the paper's figures are only for the set without changes
    record = RECORDS.get(hparams.name) if is_registered else None
    if record and record.millions:
        count += f" The paper prints {record.millions} million. {_WHY_PRINTED_DIFFERS}"
    changes = ", ".join(f"{symbol} {_show(value)}" for symbol, value in hparams.changes(HPARAMS["base"]).items())
    texts = [count, f"Changes of base: {changes or 'none'}."]
    if record:
        texts += [f"Paper, {record.printed()}."] * bool(record.place)
        texts.append(f"Measured here: {'; '.join(record.measured) or '-'}")
    paragraphs = [line for text in texts for line in textwrap.wrap(text, WIDTH)]
    return "\n".join([*_title("Hyperparameters", hparams), "", *_columns(rows), "", *paragraphs])


def describe_difference(first: HParams, second: HParams, vocab_size: int) -> str:
    """Returns the fields in which two sets differ, and their numbers of parameters."""
    rows = [["field", first.name, second.name]]
    for field in dataclasses.fields(first):
        values = [getattr(first, field.name), getattr(second, field.name)]
        if field.metadata and values[0] != values[1]:
            rows.append([field.name, *map(_show, values)])
    if len(rows) == 1:
        return f"{first.name} and {second.name} have equal fields."
    sizes = [first.num_parameters(vocab_size), second.num_parameters(vocab_size)]
    size = f"{{:,}} parameters with a vocabulary of {vocab_size:,}"
    same = [f"Both have {size.format(sizes[0])}."]
    differ = [f"{each.name} has {size.format(count)}." for each, count in zip((first, second), sizes, strict=True)]
    return "\n".join([*_columns(rows), "", *(same if sizes[0] == sizes[1] else differ)])


def _title(kind: str, item: Problem | HParams) -> list[str]:
    return [f"{kind} {item.name}", *textwrap.wrap(_description(item), WIDTH)]


def _description(item: Problem | HParams) -> str:
    return in_flags(item.description, DATA_FLAGS)


def _corpora(problem: Problem, split: str) -> str:
    corpora = problem.corpora(split)
    if corpora:
        return "; ".join(map(_corpus, corpora))
    if not problem.train:
        return in_flags(f"your files: {problem.arguments(split)}", DATA_FLAGS)
    return "the validation split taken from train" if split == "validation" else "none"


def _corpus(corpus: Corpus) -> str:
    if isinstance(corpus, TextFiles):
        return f"{corpus.source} and {corpus.target}"
    if isinstance(corpus, TsvFile):
        return corpus.path
    if isinstance(corpus, TmxFile):
        return f"{corpus.path}, {corpus.source_language} and {corpus.target_language}"
    if isinstance(corpus, Wmt):
        return f"{corpus.dataset}, split {corpus.split}, through tensorflow-datasets"
    if isinstance(corpus, Trees):
        return in_flags(str(corpus), DATA_FLAGS)
    return f"made by {corpus.name}"


def _show(value: Any) -> str:
    """Returns a value as --override takes it; "-" for an empty string or list."""
    return str(value) if value not in ("", ()) else "-"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines of aligned columns, indented by two; the last column is wrapped to the page width."""
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    lines = []
    for row in rows:
        start = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        wrapped = textwrap.wrap(row[-1], max(WIDTH - len(start), 20), break_on_hyphens=False) or [""]
        lines.append((start + wrapped[0]).rstrip())
        lines += [" " * len(start) + text for text in wrapped[1:]]
    return lines
