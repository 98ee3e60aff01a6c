"""Lines of text in and out of t2t-decoder: UTF-8, split at newlines only, whole files or none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence

from t2t_repro.files import MAX_LINE_BYTES, written_whole


def read(path: str | None) -> list[str]:
    """The lines of a file, or of standard input where `path` is None. Raises ValueError for invalid UTF-8.

    Only a newline ends a line: U+2028 or a carriage return belong to the text (`str.splitlines` would cut there).
    More than MAX_LINE_BYTES in a line are an error too: input without newlines does not fill the memory.
    """
    if path is None and sys.stdin is None:
        raise ValueError("standard input is closed; give --decode_from_file")
    lines: list[str] = []
    with open(path, "rb") if path else contextlib.nullcontext(sys.stdin.buffer) as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            where = f"{path or 'standard input'}, line {len(lines) + 1}"
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes; expected one sentence a line")
            try:
                lines.append(line.removesuffix(b"\n").decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{where}: not UTF-8 at byte {error.start + 1} of the line; convert the text"
                ) from None
    return lines


def read_beside(path: str, lines: Sequence[str]) -> list[str]:
    """A line for each of `lines`. Raises ValueError where there are more or fewer."""
    found = read(path)
    if len(found) != len(lines):
        raise ValueError(f"{path} has {len(found):,} lines beside {len(lines):,} to translate; give one for each")
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


def write(lines: Iterable[str], path: str | None) -> None:
    """Writes one line each to a file, whole or not at all, or to standard output where `path` is None."""
    data = b"".join(_one_line(line).encode("utf-8") + b"\n" for line in lines)
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
    lines = []
    for translations in sentences:
        filled = [*translations, *[("", float("-inf"))] * n][:n]
        lines += [f"{score:.4f}\t{text}" for text, score in filled]
    return lines


def token_scores(sentences: Iterable[Sequence[tuple[str, float]]]) -> list[str]:
    """`sum <tab> log-probabilities of the tokens`, a space between them, of each sentence."""
    return [
        f"{sum(log_p for _, log_p in tokens):.4f}\t{' '.join(f'{log_p:.4f}' for _, log_p in tokens)}"
        for tokens in sentences
    ]


def converse(answer: Callable[[str], Iterable[str]]) -> None:
    """Writes the answer to each line that is typed, until the end of the input. Asks with "> " on a terminal."""
    for line in _typed():
        try:
            line.encode("utf-8")
        except UnicodeEncodeError:
            print("that was not UTF-8; type it again", file=sys.stderr)
            continue
        write(answer(line), None)
        sys.stdout.flush()


def _typed() -> Iterable[str]:
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
            yield input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "")
        except EOFError:
            return


def _one_line(text: str) -> str:
    """A model that spells in bytes can spell a newline, and line n must stay the translation of line n."""
    return text.replace("\n", " ")
