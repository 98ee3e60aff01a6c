"""Flags that select a problem and its text, and the problem that they select."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from t2t_repro.cli import launcher
from t2t_repro.cli.common_flags import must_open
from t2t_repro.filters import FILTERS
from t2t_repro.io import read_json
from t2t_repro.problem import LINEARIZATIONS, SPLITS, WEIGHTS, Problem, TextFiles, TmxFile, Trees, TsvFile
from t2t_repro.registry import PROBLEMS, import_user_directory
from t2t_repro.run import Run

_KINDS = {  # of the user's own files
    "source": "your own {} text, source side (may be .gz; may be repeated)",
    "target": "your own {} text, target side; the n-th belongs to the n-th source",
    "tsv": "your own {} text: source, tab, target on each line (may be .gz; may be repeated)",
    "tmx": "your own {} text as a TMX translation memory (may be .gz; may be repeated)",
    "trees": "parsing: your own {} trees (may be .gz; may be repeated)",
}
_FILES = tuple(f"{split}_{kind}" for split in SPLITS for kind in _KINDS)
_NAMES = ("train_name", "validation_name")
_ADJECTIVE = {"train": "training"}
_LANGUAGES = ("source_language", "target_language")
SIZES = ("vocab_size", "sample", "max_length")  # fields of a problem that a flag replaces
DATA_FLAGS = (
    "problem",
    "t2t_usr_dir",
    "data_dir",
    "raw_dir",
    "filter",
    "linearization",
    *SIZES,
    *_LANGUAGES,
    *_FILES,
    *_NAMES,
)  # of t2t-datagen
_PREPARED = "dataset.json"  # t2t_repro.preparation.pipeline writes it last


class _Recorded(NamedTuple):
    """The parts of dataset.json that answer for flags; {} if they are missing or damaged (opening the data reports
    damage)."""

    directory: str
    problem: dict[str, Any]
    vocabulary: dict[str, Any]

    @classmethod
    def read(cls, directory: str) -> _Recorded:
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            found = read_json(os.path.join(directory, _PREPARED))
        problem, vocabulary = (found.get(name) for name in ("problem", "vocabulary"))
        return cls(directory, *(part if isinstance(part, dict) else {} for part in (problem, vocabulary)))

    def sizes(self) -> dict[str, int]:
        return {name: self.problem[name] for name in SIZES if isinstance(self.problem.get(name), int)}


def define(values: flags.FlagValues, files: bool = True) -> None:
    """Defines the flags that select a problem: `chosen_problem` reads them."""
    flags.DEFINE_string("problem", None, "NAME: problem; t2t-registry lists all", flag_values=values)
    meaning = "directory with your own problems and hyperparameter sets (imported as Python)"
    flags.DEFINE_string("t2t_usr_dir", None, meaning, flag_values=values)
    meaning = "vocabulary size, instead of the problem's"
    flags.DEFINE_integer("vocab_size", None, meaning, lower_bound=1, flag_values=values)
    if files:
        meaning = "train on N pairs, evenly spaced over the training text, instead of all of it"
        flags.DEFINE_integer("sample", None, meaning, lower_bound=1, flag_values=values)
        meaning = "drop training pairs with more than N tokens on a side, instead of the problem's number"
        flags.DEFINE_integer("max_length", None, meaning, lower_bound=2, flag_values=values)
        names = ", ".join(f"{name}={kind.default}" if kind.default else name for name, kind in FILTERS.items())
        meaning = (
            f"NAME[=VALUE]: drop training pairs by this filter (may be repeated), one of {names}; see docs/data.md"
        )
        flags.DEFINE_multi_string("filter", [], meaning, flag_values=values)
        meaning = "parsing: a constituent is opened before its first child (top_down) or after it (in_order)"
        flags.DEFINE_enum("linearization", None, LINEARIZATIONS, meaning, flag_values=values)
        meaning = "directory with the problem's downloaded archives or its treebank"
        flags.DEFINE_string("raw_dir", None, meaning, flag_values=values)
        for name in _FILES:
            split, _, kind = name.partition("_")
            meaning = f"FILE: {_KINDS[kind].format(_ADJECTIVE.get(split, split))}"
            flags.DEFINE_multi_string(name, [], meaning, flag_values=values)
        for name in _NAMES:
            split = name.partition("_")[0]
            meaning = f"NAME: label of a {_ADJECTIVE.get(split, split)} corpus (repeated: text files, then TSV, TMX)"
            flags.DEFINE_multi_string(name, [], meaning, flag_values=values)
        for name in _LANGUAGES:
            meaning = f"{name.partition('_')[0]} language of your own files, such as en; TMX needs it"
            flags.DEFINE_string(name, None, meaning, flag_values=values)
        meaning = "mean times per epoch of each pair of a training corpus (repeated: text files, then TSV, TMX)"
        flags.DEFINE_multi_float("train_weight", [], f"W: {meaning}", flag_values=values)
        meaning = "T: weights from the sizes of the training corpora, p_i ~ n_i^(1/T); 1: as they are"
        flags.DEFINE_float("train_temperature", None, meaning, lower_bound=1, flag_values=values)


def import_users_code(values: flags.FlagValues) -> None:
    """Imports the user's own problems and hyperparameter sets if `--t2t_usr_dir` is given. Call it once, and first."""
    if values.t2t_usr_dir:
        import_user_directory(values.t2t_usr_dir)


def chosen_problem(values: flags.FlagValues, needs_text: bool = True) -> Problem:
    """Returns the problem of the command line, with the user's files if it takes them. Checks that all files open.

    If the data is already prepared, its files and sizes need not be given again, and the folder of archives may be
    gone. Without `needs_text`, the files need not be given at all. Raises KeyError for an unknown name. Raises
    ValueError for files that are missing, unreadable or not taken by this problem, and for sizes or filters that differ
    from the prepared data's.
    """
    problem = PROBLEMS[values.problem]
    files = {name: values[name].value for name in (*_FILES, *_NAMES)}
    given = [f"--{name}" for name, path in files.items() if path]
    if given and not problem.takes_files:
        yours = f"see {problem.task.own_files}"
        raise ValueError(f"problem {problem.name!r} has its own text and takes no {given[0]}; {yours}")
    directory = os.path.join(values.data_dir, problem.name)
    recorded = _Recorded.read(directory)
    problem = dataclasses.replace(problem, **_languages(problem, values, recorded))
    if values["filter"].value:  # some depend on the languages
        problem = dataclasses.replace(problem, filters=tuple(values["filter"].value))
    prepared = os.path.exists(os.path.join(directory, _PREPARED))
    if values.raw_dir is not None:
        if not prepared and not os.path.isdir(values.raw_dir):
            raise ValueError(
                f"--raw_dir: {values.raw_dir!r} is not a directory; give the folder of the downloaded archives"
            )
        problem = problem.with_raw_dir(values.raw_dir)
    if given or problem.takes_files and needs_text and (values.raw_dir is not None or not prepared):
        problem = problem.with_files(**files)
    weights: dict[str, Any] = {name: values[name].value for name in WEIGHTS if values[name].value}
    if weights:  # one of them replaces the other one, which the problem may have
        weights = {"train_weight": (), "train_temperature": 0.0} | weights
    problem = dataclasses.replace(problem, linearization=_linearization(problem, values, recorded), **weights)
    for name, path in _files_of(problem):
        if files[name]:
            must_open(f"{name} {path!r}", path, "give a UTF-8 text file")
        else:
            folders = f"{PROBLEMS.folder(problem.name)!r} nor in {os.getcwd()!r}"
            where = "" if os.path.isabs(path) else f", neither in {folders}"
            must_open(f"{path!r} of problem {problem.name!r}{where}", path, "put a UTF-8 text file there")
    problem = dataclasses.replace(problem, **_sizes(problem, values, recorded), **_given_vocabulary(recorded))
    return dataclasses.replace(problem, filters=_filters(problem, values, recorded))


def with_vocabulary_of(run: Run, problem: Problem, values: flags.FlagValues) -> Problem:
    """Returns `problem` with the vocabulary of a run. Raises UsageError if `--vocab_size` is another size."""
    size = run.problem.vocab_size
    if values.vocab_size not in (None, size):
        raise launcher.UsageError(
            f"--vocab_size={values.vocab_size}: the vocabulary of {run.directory!r} has {size} subwords; leave it out"
        )
    return run.share_vocabulary(problem)


def _files_of(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yields (flag, path) of each text file of `problem`."""
    for split in SPLITS:
        for corpus in problem.corpora(split):
            if isinstance(corpus, TextFiles):
                yield f"{split}_source", corpus.source
                yield f"{split}_target", corpus.target
            elif isinstance(corpus, TsvFile):
                yield f"{split}_tsv", corpus.path
            elif isinstance(corpus, TmxFile):
                yield f"{split}_tmx", corpus.path
            elif isinstance(corpus, Trees) and corpus.path and not corpus.sections:
                yield f"{split}_trees", corpus.path


def _languages(problem: Problem, values: flags.FlagValues, recorded: _Recorded) -> dict[str, Any]:
    """Returns the languages from the flags, else from prepared data, of a problem that has none."""
    given = {name: values[name].value for name in _LANGUAGES if values[name].value}
    for name, language in given.items():
        if getattr(problem, name) not in ("", language):
            raise ValueError(
                f"problem {problem.name!r} has its own languages and takes no --{name}; see {problem.task.own_files}"
            )
    own = {name: language for name in _LANGUAGES if (language := getattr(problem, name))}
    prepared = {name: recorded.problem[name] for name in _LANGUAGES if isinstance(recorded.problem.get(name), str)}
    return prepared | own | given


def _sizes(problem: Problem, values: flags.FlagValues, recorded: _Recorded) -> dict[str, Any]:
    """Returns the problem's sizes: from the flags, else from prepared data, else its own."""
    prepared = recorded.sizes()
    sizes = {name: prepared.get(name, getattr(problem, name)) for name in SIZES}
    given = {name: values[name].value for name in SIZES if values[name].value is not None}
    for name, value in given.items():
        if value != prepared.get(name, value):
            raise ValueError(
                f"{recorded.directory!r} holds other data: its {name} is {prepared[name]}, not {value}; leave out "
                f"--{name}, or give another --data_dir"
            )
    for name in SIZES:
        if name not in given and sizes[name] != getattr(problem, name):
            launcher.report(f"--{name}={sizes[name]}, as the data in {recorded.directory!r} was prepared")
    return sizes | given


def _linearization(problem: Problem, values: flags.FlagValues, recorded: _Recorded) -> str:
    """Returns the linearization from the flag, else from prepared data, else the problem's own."""
    given, found = values["linearization"].value, recorded.problem
    prepared = found.get("linearization", LINEARIZATIONS[0]) if found else given or problem.linearization
    if given and not problem.task.takes_trees:
        raise ValueError(f"problem {problem.name!r} has no trees and takes no --linearization; leave it out")
    if given and given != prepared:
        raise ValueError(
            f"{recorded.directory!r} holds other data: its linearization is {prepared!r}, not {given!r}; leave out "
            "--linearization, or give another --data_dir"
        )
    if not given and prepared != problem.linearization:
        launcher.report(f"--linearization={prepared}, as the data in {recorded.directory!r} was prepared")
    return str(prepared)


def _filters(problem: Problem, values: flags.FlagValues, recorded: _Recorded) -> tuple[str, ...]:
    """Returns the filters: those of the flags, which `problem` already has, else those of prepared data, else
    the problem's own."""
    found = recorded.problem.get("filters", []) if recorded.problem else problem.filters
    prepared = tuple(map(str, found)) if isinstance(found, list | tuple) else ()
    if not values["filter"].value:
        if prepared != problem.filters:
            launcher.report(f"{_filter_flags(prepared)}, as the data in {recorded.directory!r} was prepared")
        return prepared
    if prepared != problem.filters:
        raise ValueError(
            f"{recorded.directory!r} holds other data: it was prepared with {_filter_flags(prepared)}, not "
            f"{_filter_flags(problem.filters)}; leave out --filter, or give another --data_dir"
        )
    return prepared


def _filter_flags(filters: tuple[str, ...]) -> str:
    return " ".join(f"--filter={each}" for each in filters) or "no --filter"


def _given_vocabulary(recorded: _Recorded) -> dict[str, Any]:
    """Returns the other fields of the vocabulary of prepared data if a run gave it; {} if it was learned."""
    if not recorded.vocabulary.get("given_by"):
        return {}
    return {name: recorded.problem[name] for name in ("vocab_kind", "min_character_count") if name in recorded.problem}
