"""Decoding of any number of lines in flat memory: windows of lines, each written as soon as it is done, in order.

A file that is decoded to grows under the name `FILE.partial`, a window at a time, beside a record of what made it. So
the same command continues after a stop, however hard, and makes the same bytes as one that was never stopped: windows
begin at the same lines, and what was written of an unfinished window is written again.
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

from t2t_repro.io import read_json, write_json

FIRST_WINDOW, WINDOW = 256, 10_000  # lines: each window has twice as many as the one before it, up to `WINDOW`
PAUSE = 0.05  # seconds without a new line, after which those that have come are decoded
FIRST_REPORT, REPORT = 10.0, 60.0  # seconds to the first report of progress, and from each to the next

Item = tuple[str, ...]  # a text and what belongs to it: a source and its prefix, a source and its target
Report = Callable[[int, str], None]  # the number of a text, from 0, and what was done to it: "has 2,000 tokens; ..."
Advance = Callable[[int], None]  # how many texts were just decoded
Decode = Callable[[list[Item], Report, Advance], list[str]]  # a window to its lines; reports count from its first item
Write = Callable[[list[Item], list[str]], None]
Say = Callable[[str], None]


def decode_to_stream(
    items: Iterable[Item], decode: Decode, write: Callable[[list[str]], None], say: Say, total: int | None = None
) -> None:
    """Calls `write` with the lines of each window of `items`, as soon as they are decoded.

    `total` is the number of items. Without it they come from a pipe: a window then ends if no more come for a while.
    """
    parts = as_they_come(items) if total is None else windows(items)
    _decode_windows(parts, decode, lambda _, lines: write(lines), _Progress(say, total))


def decode_to_file(
    items: Iterable[Item], decode: Decode, path: str, made_by: dict[str, Any], say: Say, total: int | None = None
) -> None:
    """Writes the lines of all `items` to `path`, which appears when it is complete. The same call continues.

    `made_by` is whatever the lines depend on beside `items`, as JSON holds it. Raises ValueError if another process
    writes to `path`, or if what is there to continue was made by something else or from other items.
    """
    with _Partial(path, made_by) as partial:
        rest = partial.skip_done(iter(items))
        if partial.items:
            say(f"continuing {path} at line {partial.items + 1:,}")
        parts = windows(rest, partial.windows)
        _decode_windows(parts, decode, partial.add, _Progress(say, total, partial.items))
        partial.finish()


def windows(items: Iterable[Item], first: int = 0) -> Iterator[list[Item]]:
    """The items in lists of `FIRST_WINDOW`, twice as many, and so on up to `WINDOW`. `first`: number of the first."""
    iterator = iter(items)
    for number in itertools.count(first):
        window = list(itertools.islice(iterator, min(FIRST_WINDOW << min(number, 32), WINDOW)))
        if not window:
            return
        yield window


def as_they_come(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items in lists of at most `WINDOW`: what has come when the one before is done with and input pauses.

    A thread reads `items`, at most `WINDOW` ahead. What it raises is raised here, after the items before it.
    """
    come: queue.Queue[Item | BaseException | None] = queue.Queue(WINDOW)

    def read() -> None:
        try:
            for item in items:
                come.put(item)
            come.put(None)
        except BaseException as error:  # to be raised where the items are used
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
    """At most `most` items, the first of which it waits for, and the last thing that came: None at the end."""
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
        progress.advance(before + len(window) - progress.done)  # those that took no decoding


class _Progress:
    """Reports how many items are done, how fast, and when it will be over if their `total` is known."""

    def __init__(self, say: Say, total: int | None, done: int = 0):
        self._say, self._total, self.done = say, total, done
        self._start, self._first = time.monotonic(), done
        self._due = self._start + FIRST_REPORT

    def reporter(self, before: int) -> Report:
        """Returns what calls `say` for a window that starts after `before` items."""
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
    """`PATH.partial`, of which the bytes that its record names are valid, and `PATH.partial.json`, the record."""

    def __init__(self, path: str, made_by: dict[str, Any]):
        self._path, self._partial, self._record = path, f"{path}.partial", f"{path}.partial.json"
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
        if not os.path.exists(self._record):  # there is nothing to continue
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._partial)

    def skip_done(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items that are left, after those that are done. What was written of others is removed."""
        size = os.path.getsize(self._partial)
        record = read_json(self._record) if size and os.path.exists(self._record) else {"bytes": 0}
        if record["bytes"] and size >= record["bytes"]:
            self._must_match(record, "made_by", self._made_by)
            self.windows, self.items = record["windows"], record["items"]
            for item in itertools.islice(items, self.items):
                self._hash(item)
            self._must_match(record, "input_sha256", self._sha256.hexdigest())
            size = record["bytes"]
        else:
            size = 0
        self._file.truncate(size)
        return items

    def add(self, items: list[Item], lines: list[str]) -> None:
        """Appends a window. Only then does the record name it."""
        with self._errors_named():
            self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())
        for item in items:
            self._hash(item)
        self.windows, self.items = self.windows + 1, self.items + len(items)
        record = {"made_by": self._made_by, "windows": self.windows, "items": self.items}
        record |= {"bytes": os.fstat(self._file.fileno()).st_size, "input_sha256": self._sha256.hexdigest()}
        write_json(self._record, record)

    def finish(self) -> None:
        """Gives the file its name."""
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

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of a full disk, Python does not name the file
            raise OSError(error.errno, error.strerror, self._path) from None
