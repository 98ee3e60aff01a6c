"""Lines of text in and out of t2t-decoder, read as all programs read them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Items = Callable[[], Iterator[tuple[str, ...]]]  # from the first line on


def read(path: str | None) -> Iterator[str]:
    """Returns the lines of a file, or of standard input if `path` is None, as training reads them.

    Raises ValueError for what `t2t_repro.lines.decode_lines` refuses.
    """
    from t2t_repro.lines import decode_lines, open_lines

    if path is not None:
        found: Iterator[str] = open_lines(path)
        return found
    if sys.stdin is None:
        raise ValueError("standard input is closed; give --decode_from_file")
    stream: Any = sys.stdin.buffer
    if not stream.seekable():
        # a stream of its own: a thread may still wait for its next line, and hold its lock, when the program ends
        stream = open(os.dup(sys.stdin.fileno()), "rb")
    found = decode_lines(stream, "standard input")
    return found


def count(items: Items, *paths: str | None) -> int | None:
    """Returns how many items the files `paths` give, after reading them all for what is wrong with them.

    Returns None if one of them is a pipe, which can be read only once. None among `paths` is standard input.
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
    """Returns each line to translate, alone."""
    return ((text,) for text in read(path))


def with_prefixes(path: str | None, prefix_file: str) -> Iterator[tuple[str, str]]:
    """Returns each line to translate and the same line of `prefix_file`. Raises ValueError unless there are as many."""
    lines, prefixes = read(path), read(prefix_file)
    number = 0
    for text in lines:
        prefix = next(prefixes, None)
        if prefix is None:
            more = number + 1 + sum(1 for _ in lines)
            raise ValueError(f"{prefix_file} has {number:,} lines beside {more:,} to translate; give one for each")
        yield text, prefix
        number += 1
    if more := sum(1 for _ in prefixes):
        raise ValueError(f"{prefix_file} has {number + more:,} lines beside {number:,} to translate; give one for each")


def pairs(path: str) -> Iterator[tuple[str, str]]:
    """Returns the source and the target of each line, which a tab separates. Raises ValueError for another number."""
    for number, line in enumerate(read(path), start=1):
        source, *targets = line.split("\t")
        if len(targets) != 1:
            raise ValueError(f"{path}, line {number}: expected a source, a tab and a target, got {len(targets)} tabs")
        yield source, targets[0]


def write(lines: Iterable[str]) -> None:
    """Writes lines to standard output, at once."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def best(sentences: Iterable[Sequence[tuple[str, float]]]) -> list[str]:
    """Returns the first translation of each sentence."""
    return [_one_line(translations[0][0]) for translations in sentences]


def scored(sentences: Iterable[Sequence[tuple[str, float]]], n: int) -> list[str]:
    """`score <tab> text`, n lines for every sentence: where it has fewer translations, `-inf` and no text fill up."""
    written = []
    for translations in sentences:
        filled = [*translations, *[("", float("-inf"))] * n][:n]
        written += [f"{score:.4f}\t{_one_line(text)}" for text, score in filled]
    return written


def token_scores(sentences: Iterable[Sequence[tuple[str, float]]]) -> list[str]:
    """`sum <tab> log-probabilities of the tokens`, a space between them, of each sentence; -inf if it has none."""
    return [
        f"{sum(log_p for _, log_p in tokens) if tokens else -math.inf:.4f}\t"
        f"{' '.join(f'{log_p:.4f}' for _, log_p in tokens)}"
        for tokens in sentences
    ]


def converse(answer: Callable[[str], Iterable[str]]) -> None:
    """Writes the answer to each line that is typed, until the end of the input. Asks with "> " on a terminal."""
    for number, line in enumerate(_typed()):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            print("that was not UTF-8; type it again", file=sys.stderr)
            continue
        write(answer(line.removeprefix("\ufeff") if number == 0 else line))
        sys.stdout.flush()


def _typed() -> Iterator[str]:
    """Lines from the keyboard or a pipe, each given as soon as it is there, without the carriage return of its end."""
    if sys.stdin.isatty():
        try:
            import readline  # noqa: F401  (gives input() its editing and history)
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
    """A model that spells in bytes can spell a newline, and line n must stay the translation of line n."""
    return text.replace("\n", " ")
