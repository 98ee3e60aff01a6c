"""Lines of text in and out of t2t-decoder: read as all programs read them, written as complete files or not at all."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from t2t_repro.files import written_whole


def read(path: str | None) -> list[str]:
    """Returns the lines of a file, or of standard input if `path` is None, as training reads them.

    Raises ValueError for what `t2t_repro.data.sources.lines` refuses.
    """
    from t2t_repro.data.sources import lines, open_lines

    if path is not None:
        return list(open_lines(path))
    if sys.stdin is None:
        raise ValueError("standard input is closed; give --decode_from_file")
    return list(lines(sys.stdin.buffer, "standard input"))


def read_beside(path: str, texts: Sequence[str]) -> list[str]:
    """A line for each of `texts`. Raises ValueError where there are more or fewer."""
    found = read(path)
    if len(found) != len(texts):
        raise ValueError(f"{path} has {len(found):,} lines beside {len(texts):,} to translate; give one for each")
    return found


def pairs(path: str) -> list[tuple[str, str]]:
    """The source and the target of each line, which a tab parts. Raises ValueError for a line without just one tab."""
    found = []
    for number, line in enumerate(read(path), start=1):
        source, *targets = line.split("\t")
        if len(targets) != 1:
            raise ValueError(f"{path}, line {number}: expected a source, a tab and a target, got {len(targets)} tabs")
        found.append((source, targets[0]))
    return found


def write(texts: Iterable[str], path: str | None) -> None:
    """Writes one line each to a file, whole or not at all, or to standard output where `path` is None."""
    data = b"".join(_one_line(line).encode("utf-8") + b"\n" for line in texts)
    if path:
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            file.write(data)
    else:
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


def scored(sentences: Sequence[Sequence[tuple[str, float]]], n: int) -> list[str]:
    """`score <tab> text`, n lines for every sentence: where it has fewer translations, `-inf` and no text fill up."""
    written = []
    for translations in sentences:
        filled = [*translations, *[("", float("-inf"))] * n][:n]
        written += [f"{score:.4f}\t{text}" for text, score in filled]
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
        write(answer(line.removeprefix("\ufeff") if number == 0 else line), None)
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
