"""Treebanks: the files named by `Trees`, and the trees in them for training and scoring.

The Wall Street Journal of the Penn Treebank is wsj_0001.mrg to wsj_2454.mrg, where the first two digits are the
section. The files may be in folders 00 to 24, all in one folder, or on the complete CD, below parsed/mrg/wsj.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from t2t_repro.data.shards import FileRecord
from t2t_repro.io import atomic_write, sha256
from t2t_repro.parsing.linearization import TOP_DOWN, pair
from t2t_repro.parsing.linearized_trees import Block
from t2t_repro.parsing.trees import Tree, clean, lines_of_trees, parse_lines, read_trees
from t2t_repro.problem import Trees
from t2t_repro.system.processes import map_in_processes
from t2t_repro.system.processor import usable_cores

CHUNK_CHARACTERS = 1 << 20  # linearized by one process at a time: about 2,000 trees
MOST_CHARACTERS = 1 << 25  # of a chunk without a complete tree: it is passed on, and fails to parse
PROCESSES_FROM = 8 * CHUNK_CHARACTERS  # shorter text is linearized faster than processes start
MOST_DROPPED = 0.01  # share of a parser's output: the Berkeley parser fails on fewer, a file in another format on all
FEW = 10  # always allowed, however short the file
TREES_NAME = re.compile(r"(validation|test)\.trees")  # the files that `write_trees` writes
_WSJ = re.compile(r"wsj_(\d\d)\d\d\.mrg(\.gz)?", re.IGNORECASE)


class Chunk(NamedTuple):
    """Adjacent lines of one file, at whose end no tree is open."""

    path: str
    first: int  # the number of the first line, from 1
    lines: list[str]
    by_parser: bool


def read(corpus: Trees) -> Iterator[Tree]:
    """Yields the trees of `corpus` after `clean`. Trees whose only words are traces are omitted.

    Raises FileNotFoundError, and ValueError with the file and line for content that cannot be read.
    """
    return filter(None, map(clean, itertools.chain.from_iterable(map(read_trees, paths(corpus)))))


def linearize(corpus: Trees, processes: int | None = None, linearization: str = TOP_DOWN) -> Iterator[Block]:
    """Yields the linearized trees of `corpus`, in the same order for any number of processes.

    `processes`: None for one per usable core if the text is long. Each tree is passed to `clean`; trees whose only
    words are traces are omitted. In a parser's output, entries that are not trees are dropped and counted; in a
    treebank they are an error. Raises as `read`, and ValueError if there is no tree with words, or if too many entries
    of a parser's output are not trees.
    """
    chunks = itertools.chain.from_iterable(_chunks(path, corpus.by_parser) for path in paths(corpus))
    if processes is None:
        waiting, characters = [], 0
        for chunk in chunks:
            waiting.append(chunk)
            characters += sum(map(len, chunk.lines))
            if characters >= PROCESSES_FROM:
                break
        processes = usable_cores() if characters >= PROCESSES_FROM else 1
        chunks = itertools.chain(waiting, chunks)
    work = functools.partial(_linearized, linearization=linearization)
    blocks = map_in_processes(work, chunks, processes)
    return _checked(blocks, corpus)


def _chunks(path: str, by_parser: bool) -> Iterator[Chunk]:
    """Yields the lines of a file in chunks of about CHUNK_CHARACTERS.

    A chunk ends where no bracket is open. In a parser's output it ends before a line that starts a tree, so that one
    missing bracket costs one tree.
    """
    first, lines, characters, depth, starts_tree = 1, list[str](), 0, 0, _Starts()
    for number, line in enumerate(lines_of_trees(path), start=1):
        outside = starts_tree(line) if by_parser else depth <= 0
        if characters >= CHUNK_CHARACTERS and outside or characters >= MOST_CHARACTERS:
            yield Chunk(path, first, lines, by_parser)
            first, lines, characters, depth = number, [], 0, 0
        lines.append(line)
        characters += len(line) + 1
        depth += line.count("(") - line.count(")")
    yield Chunk(path, first, lines, by_parser)


class _Starts:
    """Called with each line of a parser's output, returns whether it starts a tree or a failure.

    It does not if it is indented more than the line that started the last one, or if it starts with a closing bracket.
    """

    def __init__(self) -> None:
        self._indentation = MOST_CHARACTERS  # of the line that started the last one; of a blank line, any

    def __call__(self, line: str) -> bool:
        text = line.lstrip(" \t")
        indentation = len(line) - len(text)
        if text.startswith(")") or indentation > self._indentation:
            return False
        self._indentation = indentation if text else MOST_CHARACTERS
        return True


def _linearized(chunk: Chunk, linearization: str) -> Block:
    """Linearizes one chunk, in a worker process. Raises ValueError if an entry of a treebank is not a tree."""
    text, read, dropped, fault = list[str](), 0, 0, ""
    for first, lines in _entries(chunk) if chunk.by_parser else [(chunk.first, chunk.lines)]:
        trees: Iterable[Tree] = parse_lines(lines, chunk.path, first)
        if chunk.by_parser:
            try:
                trees = list(trees)
            except ValueError as error:
                dropped, fault = dropped + 1, fault or str(error)
                continue
        for tree in trees:  # one at a time: a list of all costs a quarter of the time, in garbage collection
            read += 1
            if cleaned := clean(tree):
                words, symbols = pair(cleaned, linearization)
                text.append(f"{words}\t{symbols}\t{' '.join(cleaned.tags())}\n")
    return Block(chunk.path, "".join(text).encode(), len(text), read, dropped, fault)


def _entries(chunk: Chunk) -> Iterator[tuple[int, list[str]]]:
    """Yields the lines of each tree of a parser's output, with the number of the first line."""
    first, lines, starts_tree = chunk.first, list[str](), _Starts()
    for number, line in enumerate(chunk.lines, start=chunk.first):
        if starts_tree(line) and lines:
            yield first, lines
            first, lines = number, []
        lines.append(line)
    yield first, lines


def _checked(blocks: Iterable[Block], corpus: Trees) -> Iterator[Block]:
    """Yields the same blocks. Raises ValueError at the end if there are too few trees in them."""
    read, trees, dropped, fault = Counter[str](), 0, 0, ""
    for block in blocks:
        read[block.path] += block.read + block.dropped
        trees, dropped, fault = trees + block.trees, dropped + block.dropped, fault or block.fault
        yield block
    for path, number in read.items():
        if not number:
            raise ValueError(f"{path} has no tree; expected Penn Treebank bracketing, (S (NP (PRP We)) ...)")
    if dropped > max(MOST_DROPPED * read.total(), FEW) or dropped == read.total():
        raise ValueError(
            f"{dropped:,} of {read.total():,} in {corpus.path} are not trees, the first: {fault}. At most "
            f"{MOST_DROPPED:.0%} is dropped; expected a tree per line, or one whose further lines are indented"
        )
    if not trees:
        raise ValueError(f"{corpus.path} has no tree with words; expected (S (NP (PRP We)) ...)")


def paths(corpus: Trees) -> list[str]:
    """Returns the files of `corpus`, sorted by name.

    Raises FileNotFoundError if one is missing, and ValueError if one exists twice.
    """
    if not corpus.sections:
        return [corpus.path]
    if not os.path.isdir(corpus.path):
        raise FileNotFoundError(f"raw_dir: no directory {corpus.path!r}; give the one with the treebank's files")
    found: dict[str, str] = {}
    for folder, names in _folders(corpus.path):
        for name in names:
            match = _WSJ.fullmatch(name)
            if match and int(match[1]) in corpus.sections:
                article, path = name.lower().removesuffix(".gz"), os.path.join(folder, name)
                if article in found:
                    raise ValueError(f"{found[article]} and {path} are the same article; give raw_dir one of them")
                found[article] = path
    missing = sorted({*corpus.sections} - {int(article[4:6]) for article in found})
    if missing:
        numbers = ", ".join(f"{section:02d}" for section in missing)
        raise FileNotFoundError(
            f"raw_dir: {corpus.path!r} has no wsj_{missing[0]:02d}*.mrg (missing sections: {numbers}); "
            "give the folder of the Penn Treebank's Wall Street Journal, sections 02 to 23"
        )
    return [found[article] for article in sorted(found)]


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder in `top` and its files. Follows links, and visits each folder once."""
    visited = set()
    for folder, folders, names in os.walk(top, followlinks=True):
        folders.sort()
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
        else:
            visited.add(real)
            yield folder, names


def describe(corpus: Trees, hashed: bool) -> dict[str, Any]:
    """Returns the path, bytes and SHA-256 of the file. For sections: the number of files, and bytes and SHA-256 of
    all."""
    files = paths(corpus)
    described: dict[str, Any] = {"path": str(dataclasses.replace(corpus, path=os.path.abspath(corpus.path)))}
    described |= {"files": len(files)} if corpus.sections else {}
    described |= {"bytes": sum(map(os.path.getsize, files))}
    if hashed and corpus.sections:
        listed = "".join(f"{sha256(path)} {os.path.relpath(path, corpus.path)}\n" for path in files)
        described["sha256"] = hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()
    elif hashed:
        described["sha256"] = sha256(corpus.path)
    return {"trees": described}


def write_trees(path: str, trees: Iterable[Tree]) -> FileRecord:
    """Writes trees atomically, one per line."""
    records = 0
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for records, tree in enumerate(trees, start=1):  # noqa: B007
            file.write(f"{tree}\n")
    return FileRecord.of(path, records)
