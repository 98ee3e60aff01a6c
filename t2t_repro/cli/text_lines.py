"""Input and output lines of t2t-decoder."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from t2t_repro.text.lines import decode_lines, open_lines, side_by_side

Items = Callable[[], Iterator[tuple[str, ...]]]  # starts at the first line at each call


def read(path: str | None) -> Iterator[str]:
    """Returns the lines of a file, or of standard input if `path` is None, as training reads them.

    Raises an OSError for a missing file or a directory, and ValueError for text that `text.lines.decode_lines`
    rejects.
    """
    if path is not None:
        if not os.path.exists(path):
            raise FileNotFoundError(f"no file {path!r}; give a UTF-8 text file")
        if os.path.isdir(path):
            raise IsADirectoryError(f"{path!r} is a directory; give a UTF-8 text file")
        return open_lines(path)
    if sys.stdin is None:
        raise ValueError("standard input is closed; give --decode_from_file")
    stream: Any = sys.stdin.buffer
    if not stream.seekable():
        # a separate stream: at exit, a thread may still wait for the next line and hold the lock of sys.stdin
        stream = open(os.dup(sys.stdin.fileno()), "rb")
        os.set_blocking(stream.fileno(), True)  # otherwise, a pause would look like the end
    return decode_lines(stream, "standard input")


def count(items: Items, *paths: str | None) -> int | None:
    """Returns the number of items in the files `paths`. Reads them completely, so that errors are found early.

    Returns None if one of them is a pipe, which can be read only once. A path of None is standard input.
    """
    if any(path and os.path.exists(path) and not os.path.isfile(path) for path in paths):
        return None
    if None not in paths:
        return sum(1 for _ in items())
    if sys.stdin is None or not sys.stdin.buffer.seekable():
        return None
    start = sys.stdin.buffer.tell()
    number = sum(1 for _ in items())
    sys.stdin.buffer.seek(start)
    return number


def texts(path: str | None) -> Iterator[tuple[str]]:
    """Returns each line to translate, as a tuple of one."""
    return ((text,) for text in read(path))


def with_prefixes(path: str | None, prefix_file: str) -> Iterator[tuple[str, str]]:
    """Yields each line to translate with its line of `prefix_file`. Raises ValueError if the files differ in length."""

    def unequal(lines: int, prefixes: int) -> str:
        return f"{prefix_file}: expected {lines:,} prefixes, one per line to translate, got {prefixes:,}"

    return side_by_side(read(path), read(prefix_file), unequal)


def pairs(path: str) -> Iterator[tuple[str, str]]:
    """Yields (source, target) of each line, separated by one tab. Raises ValueError for another number of tabs."""
    for number, line in enumerate(read(path), start=1):
        source, *targets = line.split("\t")
        if len(targets) != 1:
            raise ValueError(f"{path}, line {number}: expected a source, a tab and a target, got {len(targets)} tabs")
        yield source, targets[0]


def write(lines: Iterable[str]) -> None:
    """Writes lines to standard output and flushes it."""
    sys.stdout.flush()
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
    sys.stdout.buffer.flush()


def best(sentences: Iterable[Sequence[tuple[str, float]]]) -> list[str]:
    """Returns the first translation of each sentence."""
    return [_one_line(translations[0][0]) for translations in sentences]


def scored(sentences: Iterable[Sequence[tuple[str, float]]], n: int) -> list[str]:
    """Returns n lines `score <tab> text` per sentence; missing translations have score -inf and no text."""
    written = []
    for translations in sentences:
        filled = _filled(translations, n, ("", float("-inf")))
        written += [f"{score:.4f}\t{_one_line(text)}" for text, score in filled]
    return written


def with_links(lines: Iterable[str], sentences: Iterable[Sequence[Any]], n: int) -> list[str]:
    """Returns the lines of n translations per sentence, each with a tab and its links in Pharaoh format."""
    links = [each.pharaoh if each else "" for translations in sentences for each in _filled(translations, n, None)]
    return [f"{line}\t{its_links}" for line, its_links in zip(lines, links, strict=True)]


def objects(sentences: Iterable[Sequence[Any]], n: int) -> list[str]:
    """Returns n JSON objects per sentence, those of `AlignedText`; missing translations have the score null."""
    missing = {"text": "", "score": None}
    return [
        json.dumps(each.to_json() if each else missing, ensure_ascii=False)
        for translations in sentences
        for each in _filled(translations, n, None)
    ]


def _filled(translations: Sequence[Any], n: int, missing: Any) -> list[Any]:
    return [*translations, *[missing] * n][:n]


def token_scores(sentences: Iterable[Sequence[tuple[str, float]]]) -> list[str]:
    """Returns `sum <tab> log-probability of each token` per sentence, space-separated; -inf if there are none."""
    return [
        f"{sum(log_p for _, log_p in tokens) if tokens else -math.inf:.4f}\t"
        f"{' '.join(f'{log_p:.4f}' for _, log_p in tokens)}"
        for tokens in sentences
    ]


def converse(answer: Callable[[str], Iterable[str]]) -> None:
    """Answers each line of input until its end. On a terminal, "> " is the prompt."""
    for number, line in enumerate(_typed()):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            print("the line is not valid UTF-8; type it again", file=sys.stderr)
            continue
        write(answer(line.removeprefix("\ufeff") if number == 0 else line))
        sys.stdout.flush()


def _typed() -> Iterator[str]:
    """Yields lines from the keyboard or a pipe as soon as they arrive, without the carriage return at the end."""
    if sys.stdin.isatty():
        try:
            import readline  # noqa: F401  (adds editing and history to input())
        except ImportError:
            pass
    else:
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
    while True:
        try:
            if sys.stdin.isatty() and not sys.stdout.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            yield input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "").removesuffix("\r")
        except EOFError:
            return


def _one_line(text: str) -> str:
    """Returns `text` without newlines, which byte subwords can spell: output line n must translate input line n."""
    return text.replace("\n", " ")
