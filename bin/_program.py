"""What every program shares: its flags, its help, its exit code, and one clear line for a failure.

Exit codes: 0 done, 1 a failure, 2 a wrong command line; ended by a signal: 128 and its number, so 130 for Ctrl-C and
141 when the reader of the output has gone.
"""

from __future__ import annotations

import atexit
import dataclasses
import difflib
import errno
import gc
import importlib
import io
import math
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from t2t_repro import __version__, scale
from t2t_repro.config import HParams
from t2t_repro.problem import SPLITS, Problem, TextFiles, Trees
from t2t_repro.registry import PROBLEMS, import_user_directory
from t2t_repro.run import Run

WIDTH = 80
_HELP, _VERSION = ("-h", "-help", "--help"), ("-version", "--version")
_TEXT = tuple(f"{split}_{side}" for split in SPLITS for side in ("source", "target"))
_TREES = tuple(f"{split}_trees" for split in SPLITS)
_FILES = (*_TEXT, *_TREES)
DATA_FLAGS = ("problem", "t2t_usr_dir", "vocab_size", "data_dir", "sample", "raw_dir", *_FILES)  # of t2t-datagen
_PREPARED = "dataset.json"  # where t2t_repro.data.prepare is done, it leaves this
_CLEARER = {  # absl's words for a value of the wrong type, and ours
    ": invalid literal": "expected a whole number",
    ": could not convert": "expected a number",
    ": ('Non-boolean": "expected true or false",
}


class UsageError(Exception):
    """The command line is wrong in a way that no single flag shows: exit code 2."""


class Stopped(Exception):  # noqa: N818 (not an error: it was asked to stop)
    """A signal ended the program, which has put everything in order: exit code 128 and the signal's number."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.code = 128 + signal_number


def run(
    name: str,
    doc: str,
    values: flags.FlagValues,
    body: Callable[..., None],
    required: Sequence[str] = (),
    files: Sequence[str] = (),
) -> int:
    """Reads the command line into `values`, calls `body`, and gives the exit code.

    `required` are flags that must be given. `files` name the arguments that are no flags, which `body` is called with;
    those in brackets may be left out.

    A ValueError or KeyError that this project raises and any OSError are the user's to mend: one line on stderr. Every
    other exception is a defect and passes with its traceback; T2T_REPRO_TRACEBACK=1 lets all of them pass.
    """
    arguments = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if sys.stderr is None:  # closed; print would take standard output in its place
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        return _fail(name, "standard output is closed; give it somewhere to go, such as > /dev/null", 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that a terminal lacks ends no program
    try:
        if any(argument in _HELP for argument in arguments):
            print(_help(name, doc, values, required))
        elif any(argument in _VERSION for argument in arguments):
            print(f"{name} {__version__}")
        else:
            body(*_parse(values, required, files))
        _flush()
        return 0
    except (UsageError, flags.Error) as error:
        return _fail(name, f"{_usage_message(error, values)} (see {name} --help)", 2)
    except Stopped as stopped:
        return _fail(name, str(stopped), stopped.code)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", 130)
    except BrokenPipeError:
        _abandon_output()
        return 141
    except MemoryError as error:
        return _fail(name, f"not enough memory ({error or 'no more is to be had'}); give smaller sizes", 1)
    except (ValueError, KeyError, OSError) as error:
        if os.environ.get("T2T_REPRO_TRACEBACK") == "1" or not _users_to_mend(error):
            raise
        return _fail(name, _message(error), 1)


def _flush() -> None:
    """Writes out what was printed. A disk that is full shows here."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def _abandon_output() -> None:
    """So that Python's last flush finds somewhere to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parse(values: flags.FlagValues, required: Sequence[str], files: Sequence[str]) -> list[str]:
    """Reads the flags into `values`, and gives the other arguments."""
    for flag in values:
        values[flag].unparse()
    values.set_gnu_getopt(bool(files))  # flags may stand behind files
    given: list[str] = values(sys.argv)[1:]
    if len(given) > len(files):
        raise UsageError(f"unexpected argument {given[len(files)]!r}; flags are written --name=value")
    if len(given) < len(files) and not files[len(given)].startswith("["):
        raise UsageError(f"missing {files[len(given)]}")
    for flag in required:
        if not values[flag].value:
            raise UsageError(f"missing --{flag}")
    return given


def _usage_message(error: Exception, values: flags.FlagValues) -> str:
    if not isinstance(error, flags.UnrecognizedFlagError):
        message = str(error)
        for theirs, ours in _CLEARER.items():
            before, found, _ = message.partition(theirs)
            message = f"{before}: {ours}" if found else message
        return message
    known = [f"--{flag}" for flag in values] + ["--help", "--version"]
    close = difflib.get_close_matches(f"--{error.flagname}", known, n=1)
    return f"unknown flag --{error.flagname}" + (f": did you mean {close[0]}?" if close else "")


def _users_to_mend(error: Exception) -> bool:
    """Whether the user can mend it: an OSError always, another where it was raised on purpose, so in our own code."""
    if isinstance(error, OSError):
        return True
    if isinstance(error, KeyError) and " " not in str(error.args[0] if error.args else ""):
        return False  # d["missing"]: a defect, not a sentence
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("t2t_repro", "t2t_usr_dir", "__main__")


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        message = f"standard output: {error.strerror}"  # whatever else is written is named by who writes it
    else:
        message = str(error.args[0]) if isinstance(error, KeyError) else str(error)
    return " ".join([message, *(f"({note})" for note in getattr(error, "__notes__", []))])


def _fail(name: str, message: str, code: int) -> int:
    try:
        sys.stdout.flush()  # what it printed before it failed
    except (AttributeError, OSError):
        _abandon_output()
    print(f"{name}: {' '.join(message.split(chr(10)))}", file=sys.stderr)
    return code


def _help(name: str, doc: str, values: flags.FlagValues, required: Sequence[str]) -> str:
    lines = [doc.strip() or name, "", "Flags:"]
    for flag in values:
        meaning = re.sub(r"<.*>: ", "", " ".join(values[flag].help.split()))  # absl puts <choices> first
        if flag in required:
            meaning += " (required)"
        default = values[flag].default
        if default not in (None, False, [], ""):
            meaning += f" (default: {','.join(default) if isinstance(default, list) else default})"
        form = _form(flag, values)
        start = f"  {form:<26}" if len(form) < 26 else f"  {form}\n{'':28}"
        lines.append(start + textwrap.fill(meaning, WIDTH, initial_indent=" " * 28, subsequent_indent=" " * 28)[28:])
    lines.append(f"  {'--help, --version':<26}this text, the version")
    lines += ["", "T2T_REPRO_TRACEBACK=1 in the environment shows where a failure came from."]
    return "\n".join(lines)


def _form(flag: str, values: flags.FlagValues) -> str:
    """How a flag is written: `--data_dir=DIR`, `--verify`, `--precision=auto|float32|bfloat16`."""
    if values[flag].boolean:
        return f"--{flag}"
    choices = getattr(values[flag].parser, "enum_values", None)
    if choices:
        return f"--{flag}={'|'.join(choices)}"
    kind = {"int": "N", "float": "X"}.get(values[flag].flag_type())
    return f"--{flag}={kind or flag.rpartition('_')[2].upper()}"


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
        flags.DEFINE_string("raw_dir", None, "folder of the problem's originals", flag_values=values)
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
    flags.DEFINE_enum(
        "precision", "auto", ["auto", "float32", "bfloat16", "float16"], "of matrix products", flag_values=values
    )
    flags.DEFINE_float("checkpoint_minutes", 10.0, "between two checkpoints", lower_bound=0, flag_values=values)
    flags.register_validator(
        "checkpoint_minutes", math.isfinite, "expected a finite number of minutes", flag_values=values
    )
    for name, default, lowest, meaning in (
        ("checkpoint_steps", 0, 0, "updates between two checkpoints, in place of minutes"),
        ("train_steps", None, 1, "updates in all, in place of the set's"),
        ("accumulate", 0, 0, "parts of an update that a device computes in turn, at least; 0: as memory asks for"),
        ("seed", 1, 0, "of weights, order and dropout"),
    ):
        flags.DEFINE_integer(name, default, meaning, lower_bound=lowest, flag_values=values)


def decoding_flags(values: flags.FlagValues) -> None:
    """Defines the flags of beam search: `check_decoding` looks at them."""
    flags.DEFINE_integer("average_checkpoints", 1, "the last so many, averaged", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("beam_size", None, "in place of the run's", lower_bound=1, flag_values=values)
    flags.DEFINE_float("alpha", None, "length penalty, in place of the run's", flag_values=values)


def check_decoding(hparams: HParams, values: flags.FlagValues) -> HParams:
    """A run's hyperparameters with the beam of the command line. Raises ValueError for an impossible value."""
    beam_size = hparams.beam_size if values.beam_size is None else values.beam_size
    return dataclasses.replace(
        hparams, beam_size=beam_size, alpha=hparams.alpha if values.alpha is None else values.alpha
    )


def report(line: str) -> None:
    """Says what a program is about; standard output is for results."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)  # in one piece, whatever other threads say


def keep_scores(output_dir: str, scores: dict[str, Any]) -> None:
    """Adds a scoring to the run's scores.jsonl and to its curves in TensorBoard; a run that cannot be written to is
    scored none the less."""
    from t2t_repro.training.progress import write_scores

    try:
        Run.open(output_dir).keep_scores(scores)
        write_scores(output_dir, scores)
    except OSError as error:
        report(f"t2t_repro: the scores are shown and not kept: {_message(error)}")


def import_users_code(values: flags.FlagValues) -> None:
    """Runs the user's own problems and sets, where `--t2t_usr_dir` names them. To be called once, first."""
    if values.t2t_usr_dir:
        import_user_directory(values.t2t_usr_dir)


def chosen_problem(values: flags.FlagValues) -> Problem:
    """The problem of the command line, on the user's files where it takes them. Its text files can be opened.

    Where data is prepared already, the files need not be named again, nor the folder of the originals be there. Raises
    KeyError for an unknown name and ValueError for files that are missing, unreadable or not asked for.
    """
    problem = PROBLEMS[values.problem]
    files = {name: values[name].value for name in _FILES}
    given = [f"--{name}" for name, path in files.items() if path]
    if given and not problem.takes_files:
        yours = "parse_files" if problem.metric == "f1" else "translate_files"
        raise ValueError(f"problem {problem.name!r} has its own text and takes no {given[0]}; see {yours}")
    prepared = os.path.exists(os.path.join(values.data_dir, problem.name, _PREPARED))
    if values.raw_dir is not None:
        if not prepared and not os.path.isdir(values.raw_dir):
            raise ValueError(f"--raw_dir: {values.raw_dir!r} is not a directory; give the folder of the originals")
        problem = problem.with_raw_dir(values.raw_dir)
    if given or problem.takes_files and not prepared:
        problem = problem.with_files(**files)
    for split in SPLITS:
        for corpus in problem.corpora(split):
            if isinstance(corpus, TextFiles):
                _must_open(f"{split}_source", corpus.source)
                _must_open(f"{split}_target", corpus.target)
            elif isinstance(corpus, Trees) and corpus.path and not corpus.sections:
                _must_open(f"{split}_trees", corpus.path)
    changes: dict[str, Any] = {name: values[name].value for name in ("vocab_size", "sample") if values[name].value}
    return dataclasses.replace(problem, **changes)


def chosen_hparams(values: flags.FlagValues) -> HParams:
    """The set of hyperparameters of the command line, with what `--override` replaces.

    Raises KeyError for an unknown name and ValueError for an unknown field or an impossible value.
    """
    return scale.chosen(values.hparams).override(values.override)


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
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"--{flag}: no directory {folder!r}; make it first")
    if not os.access(folder, os.W_OK, effective_ids=True):
        raise PermissionError(f"--{flag}: may not write in {folder!r}")


def _must_open(what: str, path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # opening a pipe would wait
        raise ValueError(f"{what} {path!r} is not a regular file, and text is read more than once; write it to a file")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ValueError(f"cannot read {what} {path!r}: {error.strerror}; give a UTF-8 text file") from None


def go_on_in_a_child() -> None:
    """Goes on in a process of its own, while this one waits and ends as that does. So it is told what the kernel does
    without a word, killing a process whose memory it has not. To be called before TensorFlow is loaded.

    Raises ValueError where the child was killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the child too, which says so
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGINT, before)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGKILL, -signal.SIGABRT):
        from t2t_repro.training.memory import SMALLER

        ended = f"it was ended by {signal.Signals(-code).name}, as happens where memory runs out"
        raise ValueError(f"does not fit: {ended}; {SMALLER}")
    sys.exit(128 - code if code < 0 else code)


def _import_tensorflow() -> None:
    """Without Matplotlib, which Keras imports where it is there, for galleries of pictures: 0.7 s and 27 MB."""
    drawn = sys.modules.setdefault("matplotlib", None)  # type: ignore[arg-type]
    try:
        importlib.import_module("tensorflow")
    finally:
        if drawn is None:
            del sys.modules["matplotlib"]


def load_tensorflow() -> None:
    """Imports TensorFlow, for the Keras of this process too, without the dozen lines it prints about itself.

    What the import prints ignores TF_CPP_MIN_LOG_LEVEL, so stderr is turned away meanwhile; an import that fails shows
    it. Set that variable yourself to see everything.
    """
    atexit.register(gc.freeze)  # else Python looks through all it has for cycles before it ends: 1 to 2 s
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        _import_tensorflow()
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as chatter:
        os.dup2(chatter.fileno(), 2)
        try:
            _import_tensorflow()
        except BaseException:
            chatter.seek(0)
            os.write(stderr, chatter.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
