"""Log messages of the library: the logger "t2t_repro" prints them on standard error.

logging.getLogger("t2t_repro").setLevel(logging.WARNING)   # silences them
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Sequence

DETAIL = "  "  # prefix of a line with details of the line before it
LOGGER = logging.getLogger("t2t_repro")


class _StandardError(logging.Handler):
    """Writes to the current `sys.stderr`.

    On a terminal a progress line replaces the one before it, cut to the terminal's width. Details are shown only on
    a terminal.
    """

    def emit(self, record: logging.LogRecord) -> None:
        line, on_terminal = record.getMessage(), sys.stderr.isatty()
        is_detail, is_progress = line.startswith(DETAIL), line.startswith("step ")
        if is_detail and not on_terminal:
            return
        if on_terminal and (is_detail or is_progress):
            line = line[: shutil.get_terminal_size().columns - 1]
        start = "\r\x1b[K" if on_terminal else ""
        with contextlib.suppress(OSError):  # Ctrl-C also ends the reader of a pipe, which must not prevent saving
            print(start + line, end="" if on_terminal and is_progress else "\n", file=sys.stderr, flush=True)


LOGGER.addHandler(_StandardError())
if LOGGER.level == logging.NOTSET:  # a script may set it before this module is imported
    LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False


def short_reason(error: Exception) -> str:
    """Returns the reason in an error of TensorFlow: its first line without file and operation."""
    return str(error).strip().partition("\n")[0].rpartition("; ")[2].partition(" [Op:")[0]


def report(line: str) -> None:
    """Logs one line of information."""
    LOGGER.info("%s", line)


def warn(texts: Sequence[str], number: int, message: str) -> None:
    """Logs a message about the text of a number, from 0, as a warning. The text itself may be anything."""
    LOGGER.warning("the text %r %s", texts[number][:40] + "...", message)
