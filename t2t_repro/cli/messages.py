"""Translates the library's messages for the command line: argument names become flags."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator

from t2t_repro.config import HParams
from t2t_repro.system.log import LOGGER

_FIELDS = {field.name for field in dataclasses.fields(HParams)}
_CALLS = {"prepare(verify=True)": "t2t-datagen --verify"}  # functions of the library and the programs that call them
_NAME = re.compile(
    r"""(?<!\w)'[^']*'|(?<!\w)"[^"]*"|Received:[^;]*|\bknown: .*"""  # the user's own text, and lists of names
    r"""|`(?P<quoted>[^`]*)`"""
    r"""|(?<![\w/.=-])(?<!\bits )(?P<name>[a-z]\w*)(?P<after>=(?=\S)|: | must |(?![\w/]|\.\w))"""
)


def in_flags(message: str, names: Iterable[str]) -> str:
    """Returns a message of the library with the arguments in `names` written as flags.

    At the start, `output_dir: ` becomes `--output_dir: ` and `alpha must ` becomes `--alpha must `. Anywhere,
    `precision=float32` becomes `--precision=float32`, and a name of several words, such as `data_dir`, gets its dashes.
    A hyperparameter is one of `--override`: `batch_tokens=2048` becomes `--override=batch_tokens=2048`. A name between
    backticks becomes a flag without them. Quoted and received values and lists of known names stay as they are, and so
    does `its seed`, which belongs to a run.
    """
    flags = set(names)

    def flag(match: re.Match[str]) -> str:
        name, after, quoted = match["name"], match["after"], match["quoted"]
        if quoted:
            return f"--{quoted}" if quoted in flags else _CALLS.get(quoted, match[0])
        at_start = match.start() == 0 and after in (": ", " must ")
        if name in flags and (after == "=" or at_start or "_" in name):
            return f"--{match[0]}"
        if name in _FIELDS and after == "=" and "override" in flags:
            return f"--override={match[0]}"
        return match[0]

    return _NAME.sub(flag, message)


@contextlib.contextmanager
def logged_in_flags(names: Iterable[str]) -> Iterator[None]:
    """Rewrites the library's log messages with `in_flags`."""

    def rewrite(record: logging.LogRecord) -> bool:
        record.msg, record.args = in_flags(record.getMessage(), names), None
        return True

    LOGGER.addFilter(rewrite)
    try:
        yield
    finally:
        LOGGER.removeFilter(rewrite)
