"""Decoding of any number of lines in constant memory: in windows of lines, written in order as soon as each is decoded.

The output file grows as `FILE.partial`, one window at a time, with a record of the command and its input. After an
interruption, even by SIGKILL, the same command resumes and produces the same bytes as an uninterrupted one: windows
start at the same lines, and an unfinished window is written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import IO, Any

from t2t_repro.documents.document import Advance, ReportText
from t2t_repro.io import read_json, target_of, write_json

FIRST_WINDOW, WINDOW = 256, 10_000  # lines: each window has twice as many as the previous one, up to `WINDOW`
PARTIAL = ".partial", ".partial.json"  # ends of the names of files beside an output that is not complete
PAUSE = 0.05  # seconds without a new line, after which the lines received so far are decoded
FIRST_REPORT, REPORT = 10.0, 60.0  # seconds before the first progress report, and between further ones

Item = tuple[str, ...]  # a source with its prefix, or a source with its target
Decode = Callable[[list[Item], ReportText, Advance], list[str]]  # the lines of a window; reports count from its start
Write = Callable[[list[Item], list[str]], None]
Say = Callable[[str], None]


def decode_to_stream(
    items: Iterable[Item], decode: Decode, write: Callable[[list[str]], None], say: Say, total: int | None = None
) -> None:
    """Calls `write` with the lines of each window of `items` as soon as they are decoded.

    `total` is the number of items. None means that they come from a pipe: a window then ends when the input pauses.
    """
    parts = as_they_come(items) if total is None else windows(items)
    _decode_windows(parts, decode, lambda _, lines: write(lines), _Progress(say, total))


def decode_to_file(
    items: Iterable[Item], decode: Decode, path: str, made_by: dict[str, Any], say: Say, total: int | None = None
) -> int:
    """Writes the lines of all `items` to `path`, which appears when it is complete. The same call resumes.

    Returns the number of items that an earlier call had decoded.

    `made_by` contains everything except `items` that the lines depend on, as JSON values. Raises ValueError if another
    process writes to `path`, or if the partial file was written with other settings or from other items.
    """
    with _Partial(target_of(path), made_by) as partial:
        rest = partial.skip_done(iter(items))
        if partial.items:
            say(f"continuing {path} at line {partial.items + 1:,}")
        parts = windows(rest, partial.windows)
        done = partial.items
        _decode_windows(parts, decode, partial.add, _Progress(say, total, done))
        partial.finish()
    return done


def windows(items: Iterable[Item], first: int = 0) -> Iterator[list[Item]]:
    """Yields the items in windows from number `first` on. Window n has `FIRST_WINDOW` 2^n items, up to `WINDOW`."""
    iterator = iter(items)
    for number in itertools.count(first):
        window = list(itertools.islice(iterator, min(FIRST_WINDOW << min(number, 32), WINDOW)))
        if not window:
            return
        yield window


def as_they_come(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yields the items in lists of at most `WINDOW`: those received while the previous list was processed.

    A thread reads `items`, at most `WINDOW` ahead. An error in it is raised here, after the items before it.
    """
    come: queue.Queue[Item | BaseException | None] = queue.Queue(WINDOW)

    def read() -> None:
        try:
            for item in items:
                come.put(item)
            come.put(None)
        except BaseException as error:  # raised again in the thread that uses the items
            come.put(error)

    threading.Thread(target=read, name="reader", daemon=True).start()
    for number in itertools.count():
        window, last = _waiting(come, min(FIRST_WINDOW << min(number, 32), WINDOW))
        if window:
            yield window
        if isinstance(last, BaseException):
            raise last
        if last is None:
            return


def _waiting(come: queue.Queue[Any], most: int) -> tuple[list[Item], Item | BaseException | None]:
    """Returns up to `most` items, waiting for the first, and the last object received: None at the end."""
    window: list[Item] = []
    found = come.get()
    while isinstance(found, tuple):
        window.append(found)
        if len(window) == most:
            break
        try:
            found = come.get(timeout=PAUSE)
        except queue.Empty:
            break
    return window, found


def _decode_windows(parts: Iterable[list[Item]], decode: Decode, write: Write, progress: _Progress) -> None:
    for window in parts:
        before = progress.done
        write(window, decode(window, progress.reporter(before), progress.advance))
        progress.advance(before + len(window) - progress.done)  # those that needed no decoding


class _Progress:
    """Reports the number of finished items, the rate, and the remaining time if `total` is known."""

    def __init__(self, say: Say, total: int | None, done: int = 0):
        self._say, self._total, self.done = say, total, done
        self._start, self._first = time.monotonic(), done
        self._due = self._start + FIRST_REPORT

    def reporter(self, before: int) -> ReportText:
        """Returns a function that reports on texts of a window that starts after `before` items."""
        return lambda number, what: self._say(f"line {before + number + 1:,} {what}")

    def advance(self, number: int) -> None:
        self.done += number
        now = time.monotonic()
        if now >= self._due:
            self._due = now + REPORT
            self._say(self._line(now - self._start))

    def _line(self, seconds: float) -> str:
        rate = (self.done - self._first) / seconds
        line = f"{self.done:,} lines, {rate:,.1f} per second"
        if self._total is None or not rate:
            return line
        left = timedelta(seconds=round((self._total - self.done) / rate))
        return f"{self.done:,} of {self._total:,} lines, {rate:,.1f} per second, {left} left"


class _Partial:
    """`PATH.partial`, of which the bytes listed in its record are valid, and the record `PATH.partial.json`."""

    def __init__(self, path: str, made_by: dict[str, Any]):
        self._path = path
        self._partial, self._record = (path + end for end in PARTIAL)
        self._made_by = made_by
        self._sha256 = hashlib.sha256()
        self.windows = self.items = 0

    def __enter__(self) -> _Partial:
        self._file: IO[bytes] = open(self._partial, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"another process writes {self._path!r}; wait for it, or stop it") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not os.path.exists(self._record):  # there is nothing to resume
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._partial)

    def skip_done(self, items: Iterator[Item]) -> Iterator[Item]:
        """Returns the items that are left to decode, and truncates the file to the complete windows."""
        size = os.path.getsize(self._partial)
        record = self._recorded() if size and os.path.exists(self._record) else {"bytes": 0}
        valid = record["bytes"] if size >= record["bytes"] else 0
        if valid:
            self._must_match(record, "made_by", self._made_by)
            self.windows, self.items = record["windows"], record["items"]
            for item in itertools.islice(items, self.items):
                self._hash(item)
            self._must_match(record, "input_sha256", self._sha256.hexdigest())
        self._file.truncate(valid)
        return items

    def _recorded(self) -> dict[str, Any]:
        record = read_json(self._record)
        expected = {"made_by": dict, "windows": int, "items": int, "bytes": int, "input_sha256": str}
        for name, its_type in expected.items():
            if not isinstance(record.get(name), its_type):
                raise ValueError(f"{self._record} is damaged: no {name}; remove it to translate from the first line")
        return record

    def add(self, items: list[Item], lines: list[str]) -> None:
        """Appends a window and then updates the record."""
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:  # on a full disk Python's error does not name the file
            raise OSError(error.errno, error.strerror, self._path) from None
        for item in items:
            self._hash(item)
        self.windows, self.items = self.windows + 1, self.items + len(items)
        record = {"made_by": self._made_by, "windows": self.windows, "items": self.items}
        record |= {"bytes": os.fstat(self._file.fileno()).st_size, "input_sha256": self._sha256.hexdigest()}
        write_json(self._record, record)

    def finish(self) -> None:
        """Renames the file to its final name."""
        os.fsync(self._file.fileno())
        os.replace(self._partial, self._path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._record)

    def _hash(self, item: Item) -> None:
        self._sha256.update("\n".join((*item, "")).encode("utf-8"))

    def _must_match(self, record: dict[str, Any], name: str, value: Any) -> None:
        if record.get(name) == value:
            return
        what = "from other input"
        if name == "made_by":
            before = record.get(name, {})
            differing = sorted(key for key in {*before, *value} if before.get(key) != value.get(key))
            what = f"by another command (other {', '.join(differing)})"
        raise ValueError(
            f"{self._partial!r} was written {what}; give the same command and input to continue it, or remove it"
        )
