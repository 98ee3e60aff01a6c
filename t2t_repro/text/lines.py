"""Reads text files line by line, for corpora, programs and scores.

A line is UTF-8 and ends with "\\n" alone (U+2028, U+0085 and a lone "\\r" are ordinary characters). One "\\r" before
"\\n" is removed, so Windows files read like others. A byte order mark at the start of a file is removed too. A "\\n" at
the end of a file does not start another, empty line.

The lines of an SGML file of WMT are its segments, `<seg id="1">...</seg>` one per line, unchanged: these files are not
XML, and their `&` is not escaped.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeVar

First = TypeVar("First")
Second = TypeVar("Second")

MAX_LINE_BYTES = 1 << 20  # a sentence has a few hundred; a longer line is not text and could fill the memory
SENTENCES = "one sentence per line"  # what a text file is expected to have, in errors
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # gzip, xz, bzip2, zstd, zip
_SEGMENT = re.compile(r'\s*<seg id="\d+">(.*)</seg>\s*')
_SEGMENT_TAG = re.compile(r"</?seg\b", re.IGNORECASE)


def read_lines(path: str, keep_mark: bool = False, cut: bool = False, expected: str = SENTENCES) -> Iterator[str]:
    """Returns the lines of a text file that is read more than once, so it must be regular and not empty."""
    must_be_file(path, expected)
    return open_lines(path, keep_mark, cut)


def open_lines(path: str, keep_mark: bool = False, cut: bool = False) -> Iterator[str]:
    """Returns the lines of a text file. Decompresses `.gz` files; the lines of an `.sgm` file are its segments.

    See `decode_lines`. The file may be empty or a pipe. Raises ValueError for a segment that is not complete on one
    line, and OSError if the file cannot be opened.
    """
    text = _read_text(path, keep_mark, cut)
    return _segments(text, path) if path.removesuffix(".gz").endswith(".sgm") else text


def _read_text(path: str, keep_mark: bool, cut: bool) -> Iterator[str]:
    with open_bytes(path) as stream:
        yield from decode_lines(stream, path, keep_mark, cut)


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Opens a file to read bytes, and decompresses `.gz` files. Raises ValueError for a damaged one."""
    with open(path, "rb") as raw:
        if not path.endswith(".gz"):
            yield raw
            return
        if not raw.peek(1):
            raise ValueError(f"{path} is an empty file named .gz, not a gzip stream; download it again")
        with gzip.GzipFile(fileobj=raw) as unzipped:
            try:
                yield io.BufferedReader(unzipped, 1 << 16)
            except EOFError:
                raise ValueError(f"{path} is a truncated gzip file; download it again") from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path} is not a valid gzip file ({error}); download it again") from None


def decode_lines(stream: IO[bytes], name: str, keep_mark: bool = False, cut: bool = False) -> Iterator[str]:
    """Yields the lines of a stream of bytes. `name` is its name in errors; with `keep_mark` a byte order mark is text.

    Raises ValueError, naming the line, for bytes that are not valid UTF-8 and for a line of over MAX_LINE_BYTES. With
    `cut`, such a line is cut instead, to a little more than MAX_LINE_BYTES (`is_overlong`).
    """
    for number in itertools.count(1):
        line = stream.readline(MAX_LINE_BYTES + 2)
        if not line:
            return
        ended = line.endswith(b"\n")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > MAX_LINE_BYTES:
            if not cut:
                raise ValueError(
                    f"{name}, line {number:,}: longer than {MAX_LINE_BYTES:,} bytes; expected one sentence per line"
                )
            while not ended and (rest := stream.readline(MAX_LINE_BYTES)):
                ended = rest.endswith(b"\n")
            yield line.decode("utf-8", "replace")  # the cut may split a character
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if number == 1 and line.startswith(_COMPRESSED):
                raise ValueError(
                    f"{name} is compressed; only gzip files whose names end in .gz are read; decompress it"
                ) from None
            raise ValueError(
                f"{name}, line {number:,}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
                "convert the file to UTF-8"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 and not keep_mark else text


def _segments(text: Iterator[str], path: str) -> Iterator[str]:
    for number, line in enumerate(text, start=1):
        tags = len(_SEGMENT_TAG.findall(line))
        if tags == 2 and (segment := _SEGMENT.fullmatch(line)):
            yield segment[1]
        elif tags:
            raise ValueError(f'{path}, line {number:,}: expected <seg id="N">...</seg> on one line, got {line!r:.80}')


def side_by_side(
    first: Iterable[First], second: Iterable[Second], error: Callable[[int, int], str]
) -> Iterator[tuple[First, Second]]:
    """Yields pairs of items. Raises ValueError at the end, with `error(n, m)`, if there are n and m of them, not equal.

    No item may be None.
    """
    pairs = itertools.zip_longest(first, second)
    for number, (one, two) in enumerate(pairs):
        if one is None or two is None:
            longer = number + 1 + sum(1 for _ in pairs)
            raise ValueError(error(number, longer) if one is None else error(longer, number))
        yield one, two


def must_be_file(path: str, expected: str = SENTENCES) -> None:
    """Raises an error unless `path` is a regular file that is not empty. Text is read more than once: no pipes.

    `expected` names its content in errors.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file {path!r}; give a text file with {expected}")
    if os.path.isdir(path):
        raise ValueError(f"{path!r} is a directory; give a text file with {expected}")
    if not os.path.isfile(path):
        raise ValueError(f"{path!r} is not a regular file, and text is read more than once; write it to a file first")
    if not os.path.getsize(path):
        raise ValueError(f"{path} is empty; expected {expected}")


def is_overlong(text: str) -> bool:
    """Returns whether the text has more than MAX_LINE_BYTES: a line that was cut when it was read."""
    return len(text) > MAX_LINE_BYTES // 4 and len(text.encode()) > MAX_LINE_BYTES
