"""Flags that several programs share, and the objects they select."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from t2t_repro.cli import launcher
from t2t_repro.config import LARGEST_INT, PRECISIONS, HParams, TrainingOptions
from t2t_repro.io import target_of
from t2t_repro.registry import get_hparams


def hparams_flags(values: flags.FlagValues) -> None:
    """Defines the flags that select a hyperparameter set: `chosen_hparams` reads them."""
    flags.DEFINE_string("hparams", None, "NAME: hyperparameter set; t2t-registry lists all", flag_values=values)
    override_flag(values)


def override_flag(values: flags.FlagValues) -> None:
    meaning = "NAME=VALUE: replace one hyperparameter (may be repeated)"
    flags.DEFINE_multi_string("override", [], meaning, flag_values=values)


def training_flags(
    values: flags.FlagValues, output_dir: str = "run directory: checkpoints, vocabulary, metrics"
) -> None:
    """Defines the flags of a training run, except its problem and hyperparameters. `output_dir` is a flag's meaning."""
    flags.DEFINE_string("data_dir", None, "directory of the prepared data; created if missing", flag_values=values)
    flags.DEFINE_string("output_dir", None, output_dir, flag_values=values)
    precision_flag(values, "the run's if it exists already, otherwise the fastest on this device")
    meaning = "compile each step with XLA, once per batch shape (slower on a CPU)"
    flags.DEFINE_boolean("jit_compile", False, meaning, flag_values=values)
    meaning = "same bits from the same seed on a GPU too, as on a CPU (slower there)"
    flags.DEFINE_boolean("deterministic", False, meaning, flag_values=values)
    meaning = "maximum minutes between two checkpoints; 0: save only every --checkpoint_steps"
    flags.DEFINE_float("checkpoint_minutes", 10.0, meaning, lower_bound=0, flag_values=values)
    flags.register_validator(
        "checkpoint_minutes", math.isfinite, "expected a finite number of minutes", flag_values=values
    )
    microbatches = (
        "maximum tokens per side in a micro-batch (gradient accumulation); 0: automatic, halved if memory runs out"
    )
    for name, default, lowest, meaning in (
        ("checkpoint_steps", 0, 0, "steps between the checkpoints that are averaged; 0: the hyperparameter set's"),
        ("train_steps", None, 1, "total training steps, instead of the hyperparameter set's"),
        ("train_epochs", 0, 0, "end training after N passes over the data; 0: no limit"),
        ("patience", 0, 0, "end training after N validation scores without an improvement; 0: no limit"),
        ("validate_every", 0, 0, "decode for --validate_metrics at each N-th regular checkpoint; 0: 5% of the time"),
        ("keep_best", 0, 0, "best checkpoints kept beside the last ones; 0: 5 if validation decides anything"),
        ("microbatch_tokens", 0, 0, microbatches),
        ("seed", 1, 0, "random seed of initial weights, data order and dropout"),
    ):
        flags.DEFINE_integer(name, default, meaning, lower_bound=lowest, flag_values=values)
    validation_flags(values)


def validation_flags(values: flags.FlagValues) -> None:
    """Defines the flags of validation scores, and of the time that training may take."""
    meaning = "end training after X minutes of it, over all starts; 0: no limit"
    flags.DEFINE_float("train_minutes", 0.0, meaning, lower_bound=0, flag_values=values)
    flags.register_validator("train_minutes", math.isfinite, "expected a finite number of minutes", flag_values=values)
    meaning = "NAME: score that decides what is best: perplexity, bleu, chrf; parsing: perplexity, f1"
    flags.DEFINE_string("validate_by", "perplexity", meaning, flag_values=values)
    meaning = "NAME,...: score the decoded validation set too: bleu, chrf; parsing: f1"
    flags.DEFINE_list("validate_metrics", [], meaning, flag_values=values)
    meaning = "DIR,...: prepared data with the same vocabulary, whose validation perplexity is reported too"
    flags.DEFINE_list("also_validate", [], meaning, flag_values=values)


def training_options(values: flags.FlagValues) -> TrainingOptions:
    """Returns the values of `training_flags` as `TrainingOptions`."""
    given: dict[str, Any] = {field.name: values[field.name].value for field in dataclasses.fields(TrainingOptions)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return TrainingOptions(**given)


def decoding_flags(values: flags.FlagValues) -> None:
    """Defines the flags of beam search: `check_decoding` reads them."""
    average_flags(values)
    meaning, most = "beam width, instead of the run's", LARGEST_INT
    flags.DEFINE_integer("beam_size", None, meaning, lower_bound=1, upper_bound=most, flag_values=values)
    flags.DEFINE_float(
        "alpha", None, "length penalty of the paper's section 6.1, instead of the run's", flag_values=values
    )
    precision_flag(values)
    meaning = "products of linear layers in int8 (faster for large models on a CPU)"
    flags.DEFINE_boolean("int8", False, meaning, flag_values=values)
    threads_flag(values)


def shortlist_flag(values: flags.FlagValues) -> None:
    """Defines the flag whose value `t2t_repro.data.shortlist.Shortlist.load` takes."""
    meaning = "FILE: what t2t-shortlist wrote; translate with its subwords alone (faster on a CPU)"
    flags.DEFINE_string("shortlist", None, meaning, flag_values=values)


def moved_data_flag(values: flags.FlagValues, purpose: str = "") -> None:
    """Defines the flag for data that is no longer where a run was trained. `purpose` is a part of its meaning."""
    meaning = f"directory of the prepared data{purpose}, if it has moved since training"
    flags.DEFINE_string("data_dir", None, meaning, flag_values=values)


def check_moved_data(values: flags.FlagValues) -> None:
    """Raises ValueError if the value of `moved_data_flag` is not a directory."""
    if values.data_dir:
        must_be_directory("data_dir", values.data_dir)


def check_shortlist(values: flags.FlagValues) -> None:
    """Raises FileNotFoundError or ValueError if the shortlist of the command line cannot be opened."""
    if values.shortlist:
        must_open(f"shortlist {values.shortlist!r}", values.shortlist, "give a file that t2t-shortlist wrote")


def average_flags(values: flags.FlagValues, checkpoints: int | None = 1) -> None:
    """Defines the flags that select checkpoints, for `training.checkpointing.checkpoint_list.to_average`."""
    meaning = "average the last N checkpoints" + ("" if checkpoints else ", instead of the hyperparameter set's number")
    flags.DEFINE_integer("average_checkpoints", checkpoints, meaning, lower_bound=1, flag_values=values)
    meaning = "take the recommended checkpoints, or the N best by validation score, instead of the last"
    if not checkpoints:
        meaning = "average the N best checkpoints by validation score, instead of the last; 1: the recommended ones"
    flags.DEFINE_boolean("average_best", False, meaning, flag_values=values)
    meaning = "take the moving average of the weights in a checkpoint (ema_decay), instead of the weights"
    flags.DEFINE_boolean("moving_average", False, meaning, flag_values=values)


def precision_flag(values: flags.FlagValues, auto: str = "the run's") -> None:
    """Defines the flag whose value `t2t_repro.training.precision.resolve` takes."""
    flags.DEFINE_enum(
        "precision", "auto", list(PRECISIONS), f"precision of matrix products; auto: {auto}", flag_values=values
    )


def threads_flag(values: flags.FlagValues) -> None:
    """Defines the flag whose value `t2t_repro.training.parallel.set_threads` takes."""
    meaning = "CPU cores per batch; the other cores decode other batches in parallel; 0: all cores"
    flags.DEFINE_integer("threads_per_batch", 1, meaning, 0, LARGEST_INT, flag_values=values)


def check_decoding(hparams: HParams, values: flags.FlagValues) -> None:
    """Raises ValueError if the beam width or the length penalty of the command line is impossible."""
    given = {name: values[name].value for name in ("beam_size", "alpha")}
    dataclasses.replace(hparams, **{name: value for name, value in given.items() if value is not None})


def chosen_hparams(values: flags.FlagValues) -> HParams:
    """Returns the hyperparameter set of the command line, with the changes of `--override` and `--train_steps`.

    Raises KeyError for an unknown name and ValueError for an unknown field or an impossible value.
    """
    return get_hparams(values.hparams).override(changes(values))


def changes(values: flags.FlagValues) -> list[str]:
    """Returns `--override` and, if it is given, `--train_steps`, as `HParams.override` takes them."""
    steps = values.train_steps if "train_steps" in values else None
    return [*values.override, *([f"train_steps={steps}"] if steps else [])]


def must_be_directory(flag: str, path: str) -> None:
    """Raises ValueError if `path`, the value of `--flag`, is not a directory, or if its name is not UTF-8."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # TensorFlow cannot open its files
        raise ValueError(f"--{flag}: the name {path!r} is not UTF-8; give a directory whose name is") from None
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"--{flag}: {path!r} is a file; give a directory")


def must_be_writable(flag: str, path: str) -> None:
    """Raises an OSError or ValueError if a file `path`, the value of `--flag`, cannot be written."""
    folder = os.path.dirname(target_of(path)) or "."
    if os.path.isdir(path):
        raise IsADirectoryError(f"--{flag}: {path!r} is a directory; give a file")
    if os.path.exists(path) and not os.path.isfile(path):  # writing renames a file over it, which would remove a device
        raise ValueError(f"--{flag}: {path!r} is not a regular file; give the name of one")
    if path.endswith(".gz"):  # all programs decompress such a file when they read it
        raise ValueError(f"--{flag}: {path!r} would be written without compression; leave out .gz")
    if os.path.exists(path) and any(_is_open_as(path, number) for number in (1, 2)):
        raise ValueError(f"--{flag}: {path!r} is what this program prints to; give another file")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"--{flag}: no directory {folder!r}; create it first")
    if not os.access(folder, os.W_OK, effective_ids=True):
        raise PermissionError(f"--{flag}: no permission to write in {folder!r}")


def _is_open_as(path: str, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except OSError:  # closed
        return False


def must_replace_nothing(flag: str, path: str, read: Mapping[str, str | None], ends: Sequence[str] = ("",)) -> None:
    """Raises UsageError if the output `path`, the value of `--flag`, is a file that is read, or one of the files that
    are written beside it: their names have these `ends`. `read` has the files, by what messages call them."""
    written = [target_of(path) + end for end in ends]
    for what, other in read.items():
        if other and os.path.exists(other) and any(os.path.exists(e) and os.path.samefile(other, e) for e in written):
            raise launcher.UsageError(f"--{flag}={path} would replace {what}; give another one")


def must_differ(paths: Mapping[str, str]) -> None:
    """Raises UsageError if two flags name one file. `paths` are the files to write, by flag."""
    flag_of: dict[str, str] = {}
    for flag, path in paths.items():
        other = flag_of.setdefault(os.path.realpath(path), flag)
        if other != flag:
            raise launcher.UsageError(f"--{other} and --{flag} are both {path!r}; give each a file of its own")


def must_open(what: str, path: str, advice: str) -> None:
    """Raises ValueError if the file `path`, which messages call `what`, cannot be opened for reading."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # opening a pipe would block
        raise ValueError(f"{what} is not a regular file, and text is read more than once; write it to a file")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"cannot read {what}: {error.strerror}; {advice}") from None
