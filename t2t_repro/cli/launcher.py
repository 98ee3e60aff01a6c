"""Runs a program: parses its command line, prints its help, reports errors in one line and sets the exit code.

Exit codes: 0 success, 1 failure, 2 wrong command line, 128 + N if ended by signal N: 130 for Ctrl-C, 141 for a closed
output pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import gc
import importlib
import io
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from absl import flags

from t2t_repro import __version__
from t2t_repro.cli.messages import in_flags, logged_in_flags
from t2t_repro.run import Run
from t2t_repro.system import heap

WIDTH = 80
_ENVIRONMENT = dict(os.environ)  # at the start of the program
_VALUE = re.compile(r"([A-Z][A-Z0-9]*(?:\[?[=,]\S+)?): ")  # the form of a flag's value: FILE, H1,H2, NAME[=VALUE]
_HELP, _VERSION = ("-h", "-help", "--help"), ("-version", "--version")
_CLEARER = {  # absl's message for a wrong value, and ours
    r": invalid literal.*": ": expected a whole number",
    r": could not convert.*": ": expected a number",
    r": \('Non-boolean.*": ": expected true or false",
    r": \S+ is not (an? .*)": r": expected \1",
    r": value should be one of <(.*)>": r": expected \1",
    r"^Missing value for flag (--\S+)": r"\1 needs a value: \1=VALUE",
}


class UsageError(Exception):
    """A wrong combination of flags: exit code 2."""


class Stopped(Exception):  # noqa: N818 (not an error: a request to stop)
    """A signal ended the program, after it cleaned up: exit code 128 + the signal's number."""

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
    """Parses the command line into `values`, calls `body` and returns the exit code.

    Args:
      name: the program's name, for messages.
      doc: its description, for `--help`.
      values: its flags.
      body: called with the positional arguments.
      required: flags that must be given.
      files: names of the positional arguments; those in brackets are optional.

    A ValueError or KeyError that this project raises, and any OSError, is an error that the user can fix: it becomes
    one line on stderr. Any other exception is a bug and shows its traceback, as all errors do with
    T2T_REPRO_TRACEBACK=1.
    """
    arguments = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if sys.stderr is None:  # closed: print would write to standard output instead
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        return _fail(name, "standard output is closed; redirect it, for example to /dev/null", 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the terminal cannot show must not raise
    try:
        if any(argument in _HELP for argument in arguments):
            print(_help(name, doc, values, required))
        elif any(argument in _VERSION for argument in arguments):
            print(f"{name} {__version__}")
        else:
            given = _parse(values, required, files)
            with logged_in_flags(values):
                body(*given)
        sys.stdout.flush()
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
        return _fail(name, f"out of memory ({error or 'no more is available'}); reduce the sizes", 1)
    except (ValueError, KeyError, OSError) as error:
        if os.environ.get("T2T_REPRO_TRACEBACK") == "1" or not _is_user_error(error):
            raise
        unknown_name = isinstance(error, KeyError)  # what a registry raises
        return _fail(name, _message(error, values), 2 if unknown_name else 1)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """The first SIGTERM or SIGHUP raises `Stopped` in this context, so that temporary files are removed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def stop(number: int, _: Any) -> None:
        for each in before:
            signal.signal(each, lambda *_: None)  # while the files are removed
        raise Stopped(f"stopped by {signal.Signals(number).name}", number)

    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as SIGHUP under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _abandon_output() -> None:
    """Redirects standard output to /dev/null, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parse(values: flags.FlagValues, required: Sequence[str], files: Sequence[str]) -> list[str]:
    """Parses the flags into `values` and returns the positional arguments."""
    for flag in values:
        values[flag].unparse()
    values.set_gnu_getopt(bool(files))  # flags may follow positional arguments
    given: list[str] = values(sys.argv)[1:]
    if len(given) > len(files):
        raise UsageError(f"unexpected argument {given[len(files)]!r}; flags are written --name=value")
    if len(given) < len(files) and not files[len(given)].startswith("["):
        raise UsageError(f"missing {files[len(given)]}")
    for flag in required:
        if not values[flag].value:
            raise UsageError(f"missing --{flag}")
    for flag in values:  # --glossary=$UNSET must not mean no glossary
        value, has_none, times = values[flag].value, values[flag].default in (None, []), values[flag].present
        if has_none and times and (value == "" or isinstance(value, list) and (not value or "" in value)):
            raise UsageError(f"--{flag} needs a value: --{flag}=VALUE")
        is_one_list = isinstance(value, list) and not isinstance(values[flag], flags.MultiFlag)
        if times > 1 and is_one_list:
            raise UsageError(f"--{flag} is given twice; give its values together: --{flag}=A,B")
    return given


def _usage_message(error: Exception, values: flags.FlagValues) -> str:
    if not isinstance(error, flags.UnrecognizedFlagError):
        message = str(error)
        for theirs, ours in _CLEARER.items():
            message = re.sub(theirs, ours, message)
        return message
    given = f"--{error.flagname}"
    known = [f"--{flag}" for flag in values] + ["--help", "--version"]
    longer = [flag for flag in known if flag.startswith(given)]
    close = longer[:1] or difflib.get_close_matches(given, known, n=1)
    return f"unknown flag {given}" + (f": did you mean {close[0]}?" if close else "")


def _is_user_error(error: Exception) -> bool:
    """Returns whether the user can fix the error: any OSError, and others only if this project's code raised them."""
    if isinstance(error, OSError):
        return True
    if isinstance(error, KeyError) and " " not in str(error.args[0] if error.args else ""):
        return False  # from d["missing"]: a bug, not a message
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("t2t_repro", "t2t_usr_dir", "__main__")


def _message(error: Exception, names: Iterable[str] = ()) -> str:
    """Returns an error as one line. Library arguments that are in `names` are written as flags."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        message = f"standard output: {error.strerror}"  # errors of other files name the file
    else:
        message = in_flags(str(error.args[0]) if isinstance(error, KeyError) else str(error), names)
    return " ".join([message, *(f"({note})" for note in getattr(error, "__notes__", []))])


def _fail(name: str, message: str, code: int) -> int:
    try:
        sys.stdout.flush()  # print results that precede the failure
    except (AttributeError, OSError):
        _abandon_output()
    report(f"{name}: {' '.join(message.split(chr(10)))}")
    return code


def _help(name: str, doc: str, values: flags.FlagValues, required: Sequence[str]) -> str:
    lines = [doc.strip() or name, "", "Flags:"]
    for flag in sorted(values, key=lambda flag: flag not in required):  # the others in the order of definition
        meaning = re.sub(r"<.*>: ", "", " ".join(values[flag].help.split()))  # absl puts <choices> first
        meaning = meaning.removesuffix("; repeat this option to specify a list of values")  # absl's
        form, meaning = _form(flag, values, meaning)
        if flag in required:
            meaning += " (required)"
        default = values[flag].default
        if default is not False and default not in (None, [], ""):
            shown = ",".join(default) if isinstance(default, list) else default
            meaning += f" (default: {shown:g})" if isinstance(shown, float) else f" (default: {shown})"
        start = f"  {form:<26}" if len(form) < 26 else f"  {form}\n{'':28}"
        lines.append(start + textwrap.fill(meaning, WIDTH, initial_indent=" " * 28, subsequent_indent=" " * 28)[28:])
    lines.append(f"  {'--help, --version':<26}print this help, or the version")
    lines += ["", "Set T2T_REPRO_TRACEBACK=1 in the environment to see the traceback of an error."]
    return "\n".join(lines)


def _form(flag: str, values: flags.FlagValues, meaning: str) -> tuple[str, str]:
    """Returns the usage of a flag and its meaning: `--data_dir=DIR`, `--verify`, `--precision=auto|float32|bfloat16`.

    A meaning that starts with the form of the value, as in "FILE: your text", decides what follows the equals sign.
    """
    if values[flag].boolean:
        return f"--{flag}", meaning
    choices = getattr(values[flag].parser, "enum_values", None)
    if choices:
        return f"--{flag}={'|'.join(choices)}", meaning
    if named := _VALUE.match(meaning):
        return f"--{flag}={named[1]}", meaning[named.end() :]
    kind = {"int": "N", "float": "X"}.get(values[flag].flag_type())
    return f"--{flag}={kind or flag.rpartition('_')[2].upper()}", meaning


def report(line: str) -> None:
    """Prints a line of progress on stderr; standard output is for results."""
    with contextlib.suppress(OSError):  # whoever read them has left
        print(f"{line}\n", end="", file=sys.stderr, flush=True)  # one write: threads must not mix lines


def report_average(runs: Sequence[Run], number: int, best: bool) -> None:
    """Reports that fewer than `number` checkpoints of a run are averaged, if it has fewer, or names the best ones."""
    from t2t_repro.training.checkpointing.checkpoint_list import to_average

    for run in runs:
        names = [os.path.basename(path) for path in to_average(run, number, best)]
        if best:
            report(f"{run.directory}: best by validation: {', '.join(names)}")
        if 0 < len(names) < number:
            found = f"{len(names)} of the {number} checkpoints that --average_checkpoints asks for"
            report(f"{run.directory} has {found}: {', '.join(names)}")


def keep_scores(output_dir: str, scores: dict[str, Any]) -> None:
    """Adds scores to the run's scores.jsonl and TensorBoard curves. A read-only run is only reported, not an error."""
    from t2t_repro.training.metrics import write_scores

    try:
        Run.open(output_dir).keep_scores(scores)
        write_scores(output_dir, scores)
    except OSError as error:
        report(f"t2t_repro: the scores are printed but not completely saved: {_message(error)}")


def restart(**variables: str) -> NoReturn:
    """Replaces this process by a new one with the same command line, and with `variables` in its environment."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], _ENVIRONMENT | variables)


def use_huge_pages() -> None:
    """Restarts this process if it can have huge pages (`system.heap`), which must be requested at its start.

    It does nothing if GLIBC_TUNABLES is set, to whatever value.
    """
    if heap.TUNABLES not in os.environ and heap.can_have_huge_pages():
        restart(**{heap.TUNABLES: heap.HUGE_PAGES})


def _import_tensorflow() -> None:
    """Imports TensorFlow without Matplotlib, which Keras imports for image galleries if installed (0.7 s, 27 MB).

    Python does not search the modules for garbage, neither during the import (0.3 s) nor later: they stay.
    """
    drawn = sys.modules.setdefault("matplotlib", None)  # type: ignore[arg-type]
    collects = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("tensorflow")
    finally:
        gc.freeze()
        if collects:
            gc.enable()
        if drawn is None:
            del sys.modules["matplotlib"]


def load_tensorflow() -> None:
    """Imports TensorFlow and makes it Keras' backend, without the dozen lines that TensorFlow logs on import.

    These lines ignore TF_CPP_MIN_LOG_LEVEL, so stderr is redirected during the import and shown if the import fails.
    Set TF_CPP_MIN_LOG_LEVEL yourself to see everything.
    """
    atexit.register(gc.freeze)  # skips the garbage collection at exit, which takes 1 to 2 s
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        _import_tensorflow()
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.memfd_create("tensorflow"), "rb+") as chatter:  # there may be no folder for a file
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
