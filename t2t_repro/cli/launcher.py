"""What every program shares: its command line, its help, its exit code, and one clear line for a failure.

Exit codes: 0 done, 1 a failure, 2 a wrong command line; ended by a signal: 128 and its number, so 130 for Ctrl-C and
141 when the reader of the output has gone.
"""

from __future__ import annotations

import atexit
import difflib
import errno
import functools
import gc
import importlib
import io
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from absl import flags

from t2t_repro import __version__
from t2t_repro.cli.messages import in_flags, logged_in_flags
from t2t_repro.run import Run

WIDTH = 80
_ENVIRONMENT = dict(os.environ)  # as the program was started
_HELP, _VERSION = ("-h", "-help", "--help"), ("-version", "--version")
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
            given = _parse(values, required, files)
            with logged_in_flags(values):
                body(*given)
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
        unknown_name = isinstance(error, KeyError)  # what a registry raises
        return _fail(name, _message(error, values), 2 if unknown_name else 1)


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


def _message(error: Exception, names: Iterable[str] = ()) -> str:
    """The line for an error: where it speaks of arguments of the library, those in `names` are flags."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        message = f"standard output: {error.strerror}"  # whatever else is written is named by who writes it
    else:
        message = in_flags(str(error.args[0]) if isinstance(error, KeyError) else str(error), names)
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


def report(line: str) -> None:
    """Says what a program is about; standard output is for results."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)  # in one piece, whatever other threads say


def report_average(runs: Sequence[Run], number: int) -> None:
    """Reports that fewer than `number` checkpoints of a run are averaged, if it has fewer."""
    from t2t_repro.training.checkpoints import to_average

    for run in runs:
        names = [os.path.basename(path) for path in to_average(run, number)]
        if 0 < len(names) < number:
            found = f"{len(names)} of the {number} checkpoints that --average_checkpoints asks for"
            report(f"{run.directory} has {found}: {', '.join(names)}")


def keep_scores(output_dir: str, scores: dict[str, Any]) -> None:
    """Adds a scoring to the run's scores.jsonl and to its curves in TensorBoard; a run that cannot be written to is
    scored none the less."""
    from t2t_repro.training.metrics import write_scores

    try:
        Run.open(output_dir).keep_scores(scores)
        write_scores(output_dir, scores)
    except OSError as error:
        report(f"t2t_repro: the scores are shown and not kept: {_message(error)}")


def start_again() -> NoReturn:
    """Runs the same command line again in place of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], _ENVIRONMENT)


def go_on_in_a_child(value: int) -> tuple[int, Callable[[int], NoReturn]]:
    """Continues in a process of its own, while this one waits and ends as that does. So it can report what the kernel
    does silently, killing a process that takes too much memory. To be called before TensorFlow is loaded.

    Returns, in the child, `value` and a function that ends the child and continues in another one with another value.
    Raises ValueError if the child was killed.
    """
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            return value, functools.partial(_end_with, writer)
        os.close(writer)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the child too, which reports it
        answer = os.read(reader, 32)
        os.close(reader)
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGINT, before)
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGKILL, -signal.SIGABRT):
            from t2t_repro.training.memory import REMEDY

            ended = f"it was ended by {signal.Signals(-code).name}, as happens if memory runs out"
            raise ValueError(f"does not fit: {ended}; {REMEDY}")
        if code or not answer:
            sys.exit(128 - code if code < 0 else code)
        value = int(answer)


def _end_with(writer: int, value: int) -> NoReturn:
    os.write(writer, str(value).encode("ascii"))
    sys.exit(0)


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
