"""Where text comes from: files, treebanks and generators, read as a stream of pairs in bounded memory.

What a line is: UTF-8, ended by "\\n" and by nothing else (U+2028, U+0085 and a lone "\\r" are characters like any
other). One "\\r" before that end belongs to the end, so files from Windows read like all others, and so does a byte
order mark at the start of a file. A file that ends in "\\n" has no further, empty line.

Of an SGML file of WMT the lines are its segments, `<seg id="1">...</seg>` one a line, taken as they are: these files
are no XML, and their `&` is a plain one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import importlib.metadata
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

from t2t_repro.io import MAX_LINE_BYTES, sha256
from t2t_repro.parsing.linearized_trees import Linearized
from t2t_repro.problem import Corpus, Generated, Pair, TextFiles, Trees, Wmt

_SEGMENT = re.compile(r'\s*<seg id="\d+">(.*)</seg>\s*')


Readable = TextFiles | Generated | Linearized
Item = TypeVar("Item")


def read_pairs(corpus: Readable, first: int = 0) -> Iterator[Pair]:
    """The pairs of `corpus` from number `first` on, in order, each line once.

    Raises FileNotFoundError and ValueError, naming the file and line, for what cannot be read; files of unequal length
    are known, and raised, at their end.
    """
    if isinstance(corpus, Linearized):
        return corpus.pairs(first)
    pairs = _read_generated(corpus) if isinstance(corpus, Generated) else _read_files(corpus)
    return itertools.islice(pairs, first, None) if first else pairs


def read_pairs_from(first: int, corpora: Iterable[tuple[Readable, int]]) -> Iterator[Pair]:
    """The pairs of several corpora, each given with its number of pairs, from number `first` of all on."""
    for corpus, number in corpora:
        if first < number:
            yield from read_pairs(corpus, first)
        first = max(0, first - number)


def read_lines(path: str, keep_mark: bool = False, cut: bool = False) -> Iterator[str]:
    """The lines of one text file that is read more than once: `open_lines` of a regular file with something in it."""
    _must_be_file(path)
    return open_lines(path, keep_mark, cut)


def open_lines(path: str, keep_mark: bool = False, cut: bool = False) -> Iterator[str]:
    """The lines of one text file, through gzip where its name ends in `.gz`, its segments where it is `.sgm`.

    See `lines`. The file may be empty, and may be a pipe. Raises ValueError for a segment that is not whole on one
    line, and OSError if the file cannot be opened.
    """
    text = _read_text(path, keep_mark, cut)
    return _segments(text, path) if path.removesuffix(".gz").endswith(".sgm") else text


def _read_text(path: str, keep_mark: bool, cut: bool) -> Iterator[str]:
    with open(path, "rb") as raw:
        if not path.endswith(".gz"):
            yield from lines(raw, path, keep_mark, cut)
            return
        if not raw.peek(1):
            raise ValueError(f"{path} is named .gz and is empty, which no gzip stream is; fetch it again")
        with gzip.GzipFile(fileobj=raw) as unzipped:
            try:
                yield from lines(io.BufferedReader(unzipped, 1 << 16), path, keep_mark, cut)
            except EOFError:
                raise ValueError(f"{path} is cut off in the middle of its gzip stream; fetch it again") from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path} is named .gz, but gzip cannot read it ({error}); fetch it again") from None


def lines(stream: IO[bytes], name: str, keep_mark: bool = False, cut: bool = False) -> Iterator[str]:
    """The lines of a stream of bytes. `name` is what errors call it; with `keep_mark` a byte order mark is text.

    Raises ValueError, naming the line, for bytes that are no UTF-8 and for a line of more than MAX_LINE_BYTES. With
    `cut`, such a line is cut instead, and its text has a little more than MAX_LINE_BYTES (`counts.is_overlong`).
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
                    f"{name}, line {number:,}: longer than {MAX_LINE_BYTES:,} bytes; expected one sentence a line"
                )
            while not ended and (rest := stream.readline(MAX_LINE_BYTES)):
                ended = rest.endswith(b"\n")
            yield line.decode("utf-8", "replace")  # the cut may go through a character
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number:,}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
                "convert the file to UTF-8"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 and not keep_mark else text


def evenly(items: Iterator[Item], number: int, taken: int, first: int = 0) -> Iterator[Item]:
    """Of `number` items so many, evenly spread; `items` are those from number `first` on."""
    if taken == number:
        return items
    numbered = enumerate(items, start=first)
    return (item for index, item in numbered if (index + 1) * taken // number != index * taken // number)


def place_evenly(which: int, number: int, taken: int) -> int:
    """The number of the item that `evenly` takes as its number `which`, from 0."""
    return -(-(which + 1) * number // taken) - 1


def _segments(text: Iterator[str], path: str) -> Iterator[str]:
    for number, line in enumerate(text, start=1):
        if segment := _SEGMENT.fullmatch(line):
            yield segment[1]
        elif "<seg" in line or "</seg" in line:
            raise ValueError(f'{path}, line {number:,}: expected <seg id="N">...</seg> on one line, got {line!r:.80}')


def describe(corpus: Corpus, hashed: bool = True) -> dict[str, Any]:
    """What a data set keeps of its source, as JSON can hold it. `hashed` reads the files for their SHA-256.

    Files: absolute path, bytes and SHA-256 of both. A WMT data set: its name, split and languages, and with `hashed`
    the SHA-256 that its archives must have, wherever they lie. A generator: its qualified name and arguments, and with
    `hashed` the versions of the packages that its text may come from. Trees: see `treebank.describe`. Raises
    FileNotFoundError or ValueError for a bad file.
    """
    if isinstance(corpus, Trees):
        from t2t_repro.parsing import treebank

        for path in treebank.paths(corpus):
            _must_be_file(path)
        return treebank.describe(corpus, hashed)
    if isinstance(corpus, TextFiles):
        return {side: _describe_file(getattr(corpus, side), hashed) for side in ("source", "target")}
    described: dict[str, Any]
    if isinstance(corpus, Wmt):
        from t2t_repro.preparation.downloads import archive_sums

        languages = f"{corpus.source_language}-{corpus.target_language}"
        described = {"dataset": corpus.dataset, "split": corpus.split, "languages": languages}
        return described | ({"archives": archive_sums(corpus.dataset)} if hashed else {})
    described = {"function": _name(corpus.function)}
    return described | ({"versions": _generator_versions()} if hashed else {})


def _read_files(corpus: TextFiles) -> Iterator[Pair]:
    sides = [read_lines(path, cut=corpus.drop_long_lines) for path in (corpus.source, corpus.target)]
    pairs = itertools.zip_longest(*sides)
    number = 0
    for source, target in pairs:
        if source is None or target is None:
            break
        number += 1
        yield source, target
    else:
        if not number:
            raise ValueError(f"{corpus.source} and {corpus.target} are empty; expected one sentence a line")
        return
    longer = number + 1 + sum(1 for _ in pairs)
    counts = (number, longer) if source is None else (longer, number)
    raise ValueError(
        f"{corpus.source} has {counts[0]:,} lines and {corpus.target} has {counts[1]:,}; "
        "line n of one must be the translation of line n of the other"
    )


def _read_generated(corpus: Generated) -> Iterator[Pair]:
    empty = True
    for pair in corpus.function():
        empty = False
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ValueError(f"{_name(corpus.function)} gave {pair!r:.80}; expected a pair (source text, target text)")
        yield pair
    if empty:
        raise ValueError(f"{_name(corpus.function)} gave no pairs")


def _must_be_file(path: str) -> None:
    """Raises where `path` is no regular file with something in it. Text is read more than once: no pipes."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file {path!r}; give a text file with one sentence a line")
    if os.path.isdir(path):
        raise ValueError(f"{path!r} is a directory; give a text file with one sentence a line")
    if not os.path.isfile(path):
        raise ValueError(f"{path!r} is not a regular file, and text is read more than once; write it to a file first")
    if not os.path.getsize(path):
        raise ValueError(f"{path} is empty; expected one sentence a line")


def _describe_file(path: str, hashed: bool) -> dict[str, Any]:
    _must_be_file(path)
    described = {"path": os.path.abspath(path), "bytes": os.path.getsize(path)}
    return described | ({"sha256": sha256(path)} if hashed else {})


def _name(function: Callable[..., Any]) -> str:
    """`module.function`, with the arguments that a partial or a dataclass with `__call__` carries; no addresses."""
    if isinstance(function, functools.partial):
        arguments = [repr(value) for value in function.args]
        arguments += [f"{key}={value!r}" for key, value in sorted(function.keywords.items())]
        return f"{_name(function.func)}({', '.join(arguments)})"
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        return f"{type(function).__module__}.{function!r}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _generator_versions() -> dict[str, str]:
    """Of this package, and of Babel where it is installed, which the built-in problems write their text with."""
    from t2t_repro import __version__

    found = {"t2t_repro": __version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["babel"] = importlib.metadata.version("babel")
    return found
