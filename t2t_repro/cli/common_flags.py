"""The flags that several programs share, and what they choose."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

from absl import flags

from t2t_repro.cli import launcher
from t2t_repro.config import PRECISIONS, HParams, TrainingOptions
from t2t_repro.io import read_json
from t2t_repro.problem import SPLITS, Problem, TextFiles, Trees
from t2t_repro.registry import PROBLEMS, get_hparams, import_user_directory

_TEXT = tuple(f"{split}_{side}" for split in SPLITS for side in ("source", "target"))
_TREES = tuple(f"{split}_trees" for split in SPLITS)
_FILES = (*_TEXT, *_TREES)
DATA_FLAGS = ("problem", "t2t_usr_dir", "vocab_size", "data_dir", "sample", "raw_dir", *_FILES)  # of t2t-datagen
SIZES = ("vocab_size", "sample")  # fields of a problem that a flag replaces
_PREPARED = "dataset.json"  # where t2t_repro.preparation.pipeline is done, it leaves this


def problem_flags(values: flags.FlagValues, files: bool = True) -> None:
    """Defines the flags that choose a problem: `chosen_problem` reads them."""
    flags.DEFINE_string("problem", None, "what to train on, as t2t-registry lists it", flag_values=values)
    flags.DEFINE_string("t2t_usr_dir", None, "folder of your own problems and sets: it is run", flag_values=values)
    flags.DEFINE_integer(
        "vocab_size", None, "size of the vocabulary, in place of the problem's", lower_bound=1, flag_values=values
    )
    if files:
        flags.DEFINE_integer(
            "sample", None, "so many training pairs, evenly spread, in place of all", lower_bound=1, flag_values=values
        )
        flags.DEFINE_string(
            "raw_dir", None, "folder of the problem's downloaded archives, or of its treebank", flag_values=values
        )
        for name in _TEXT:
            split, _, side = name.partition("_")
            flags.DEFINE_string(name, None, f"your own {split} text, its {side} side; may be .gz", flag_values=values)
        for name in _TREES:
            meaning = f"your own {name.partition('_')[0]} trees, for a parsing problem; may be .gz, and repeated"
            flags.DEFINE_multi_string(name, [], meaning, flag_values=values)


def hparams_flags(values: flags.FlagValues) -> None:
    """Defines the flags that choose a set of hyperparameters: `chosen_hparams` reads them."""
    flags.DEFINE_string("hparams", None, "set of hyperparameters, as t2t-registry lists it", flag_values=values)
    override_flag(values)


def override_flag(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string("override", [], "name=value: replaces one field of the set", flag_values=values)


def training_flags(values: flags.FlagValues) -> None:
    """Defines the flags of a training, but for what is trained."""
    flags.DEFINE_string("data_dir", None, "where the prepared data is, or goes", flag_values=values)
    flags.DEFINE_string("output_dir", None, "the run: checkpoints, vocabulary, metrics", flag_values=values)
    precision_flag(values, "that of the run, or the fastest here")
    meaning = "XLA compiles each step, one program for each shape: slower on a CPU"
    flags.DEFINE_boolean("jit_compile", False, meaning, flag_values=values)
    meaning = "the same bits each time on a GPU too, where this is slower"
    flags.DEFINE_boolean("deterministic", False, meaning, flag_values=values)
    meaning = "between two checkpoints at most; 0: only those of checkpoint_steps"
    flags.DEFINE_float("checkpoint_minutes", 10.0, meaning, lower_bound=0, flag_values=values)
    flags.register_validator(
        "checkpoint_minutes", math.isfinite, "expected a finite number of minutes", flag_values=values
    )
    for name, default, lowest, meaning in (
        ("checkpoint_steps", 0, 0, "steps between the checkpoints that may be averaged; 0: the set's"),
        ("train_steps", None, 1, "updates in all, in place of the set's"),
        ("microbatch_tokens", 0, 0, "tokens per side that a device computes at a time, at most; 0: as memory allows"),
        ("seed", 1, 0, "of weights, order and dropout"),
    ):
        flags.DEFINE_integer(name, default, meaning, lower_bound=lowest, flag_values=values)


def training_options(values: flags.FlagValues) -> TrainingOptions:
    """Returns what `training_flags` define, as the library takes it."""
    given: dict[str, Any] = {field.name: values[field.name].value for field in dataclasses.fields(TrainingOptions)}
    return TrainingOptions(**given)


def decoding_flags(values: flags.FlagValues) -> None:
    """Defines the flags of beam search: `check_decoding` looks at them."""
    flags.DEFINE_integer("average_checkpoints", 1, "the last so many, averaged", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("beam_size", None, "in place of the run's", lower_bound=1, flag_values=values)
    flags.DEFINE_float("alpha", None, "length penalty, in place of the run's", flag_values=values)
    precision_flag(values)
    meaning = "the decoder's products in 8-bit integers, all else by --precision: large models faster on a CPU"
    flags.DEFINE_boolean("int8", False, meaning, flag_values=values)
    threads_flag(values)


def precision_flag(values: flags.FlagValues, auto: str = "that of the run") -> None:
    """Defines the flag that `t2t_repro.training.precision.resolve` takes."""
    flags.DEFINE_enum("precision", "auto", list(PRECISIONS), f"of matrix products; auto: {auto}", flag_values=values)


def threads_flag(values: flags.FlagValues) -> None:
    """Defines the flag that `t2t_repro.inference.parallel.set_threads` takes."""
    meaning = "cores for one batch, while the others decode other batches; 0: all"
    flags.DEFINE_integer("threads_per_batch", 1, meaning, lower_bound=0, flag_values=values)


def check_decoding(hparams: HParams, values: flags.FlagValues) -> HParams:
    """A run's hyperparameters with the beam of the command line. Raises ValueError for an impossible value."""
    beam_size = hparams.beam_size if values.beam_size is None else values.beam_size
    return dataclasses.replace(
        hparams, beam_size=beam_size, alpha=hparams.alpha if values.alpha is None else values.alpha
    )


def import_users_code(values: flags.FlagValues) -> None:
    """Runs the user's own problems and sets, where `--t2t_usr_dir` names them. To be called once, first."""
    if values.t2t_usr_dir:
        import_user_directory(values.t2t_usr_dir)


def chosen_problem(values: flags.FlagValues, needs_text: bool = True) -> Problem:
    """The problem of the command line, on the user's files where it takes them. Its text files can be opened.

    If data is prepared already, the files and sizes need not be given again, nor the folder of the archives be there.
    Without `needs_text` they need not be given either. Raises KeyError for an unknown name and ValueError for files
    that are missing, unreadable or not asked for, and for sizes that the prepared data does not have.
    """
    problem = PROBLEMS[values.problem]
    files = {name: values[name].value for name in _FILES}
    given = [f"--{name}" for name, path in files.items() if path]
    if given and not problem.takes_files:
        yours = f"see {problem.task.own_files}"
        raise ValueError(f"problem {problem.name!r} has its own text and takes no {given[0]}; {yours}")
    directory = os.path.join(values.data_dir, problem.name)
    prepared = os.path.exists(os.path.join(directory, _PREPARED))
    if values.raw_dir is not None:
        if not prepared and not os.path.isdir(values.raw_dir):
            raise ValueError(
                f"--raw_dir: {values.raw_dir!r} is not a directory; give the folder of the downloaded archives"
            )
        problem = problem.with_raw_dir(values.raw_dir)
    if given or problem.takes_files and not prepared and needs_text:
        problem = problem.with_files(**files)
    for name, path in _files_of(problem):
        if files[name]:
            _must_open(f"{name} {path!r}", path, "give a UTF-8 text file")
        else:
            where = _looked_in(problem, path)
            _must_open(f"{path!r} of problem {problem.name!r}{where}", path, "put a UTF-8 text file there")
    return dataclasses.replace(problem, **_sizes(problem, values, directory))


def _files_of(problem: Problem) -> Iterator[tuple[str, str]]:
    """Each text file, under the name of the flag for such files."""
    for split in SPLITS:
        for corpus in problem.corpora(split):
            if isinstance(corpus, TextFiles):
                yield f"{split}_source", corpus.source
                yield f"{split}_target", corpus.target
            elif isinstance(corpus, Trees) and corpus.path and not corpus.sections:
                yield f"{split}_trees", corpus.path


def _looked_in(problem: Problem, path: str) -> str:
    """Where a file that the problem declares was looked for."""
    return "" if os.path.isabs(path) else f", neither in {PROBLEMS.folder(problem.name)!r} nor in {os.getcwd()!r}"


def _sizes(problem: Problem, values: flags.FlagValues, directory: str) -> dict[str, Any]:
    """The problem's sizes by the flags or, if they are left out, by the data that is prepared in `directory`."""
    prepared = _prepared_sizes(directory)
    sizes = {name: prepared.get(name, getattr(problem, name)) for name in SIZES}
    given = {name: values[name].value for name in SIZES if values[name].value is not None}
    for name, value in given.items():
        if value != prepared.get(name, value):
            raise ValueError(
                f"{directory!r} holds other data: its {name} is {prepared[name]}, not {value}; leave out --{name}, or "
                "give another --data_dir"
            )
    for name in sizes.keys() - given.keys():
        if sizes[name] != getattr(problem, name):
            launcher.report(f"--{name}={sizes[name]}, as the data in {directory!r} was prepared")
    return sizes | given


def _prepared_sizes(directory: str) -> dict[str, int]:
    """The sizes that dataset.json records; nothing without one, or if it is damaged, which opening the data reports."""
    try:
        recorded = read_json(os.path.join(directory, _PREPARED)).get("problem")
    except (OSError, ValueError):
        return {}
    found = recorded if isinstance(recorded, dict) else {}
    return {name: found[name] for name in SIZES if isinstance(found.get(name), int)}


def chosen_hparams(values: flags.FlagValues) -> HParams:
    """The set of hyperparameters of the command line, with what `--override` replaces.

    Raises KeyError for an unknown name and ValueError for an unknown field or an impossible value.
    """
    return get_hparams(values.hparams).override(values.override)


def must_be_directory(flag: str, path: str) -> None:
    """Raises ValueError where `path`, the value of `--flag`, is there and no directory, or can be none of ours."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # TensorFlow can open none of its files
        raise ValueError(f"--{flag}: the name {path!r} is not UTF-8; give a directory whose name is") from None
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"--{flag}: {path!r} is a file; give a directory")


def must_be_writable(flag: str, path: str) -> None:
    """Raises an OSError where a file `path`, the value of `--flag`, cannot be made."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise IsADirectoryError(f"--{flag}: {path!r} is a directory; give a file")
    if os.path.exists(path) and not os.path.isfile(path):  # replacing a device would remove it
        raise ValueError(f"--{flag}: {path!r} is not a regular file; give the name of one")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"--{flag}: no directory {folder!r}; make it first")
    if not os.access(folder, os.W_OK, effective_ids=True):
        raise PermissionError(f"--{flag}: may not write in {folder!r}")


def _must_open(what: str, path: str, advice: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # opening a pipe would wait
        raise ValueError(f"{what} is not a regular file, and text is read more than once; write it to a file")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"cannot read {what}: {error.strerror}; {advice}") from None
