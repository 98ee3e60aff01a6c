"""Linearized trees as a text file, so that preparation parses each tree once and every later pass reads text.

    trees/train-0.tsv         words, linearized tree and parts of speech, a tab between them: a tree per line
    trees/train-0.tsv.json    numbers of trees, where each block starts, SHA-256; written last

The two are kept until the data is complete. `treebank.linearize` makes the blocks.
"""

from __future__ import annotations

import bisect
import glob
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from t2t_repro.io import atomic_write, read_json, sha256, write_json
from t2t_repro.problem import Pair


class Block(NamedTuple):
    """Neighboring trees of one file: their lines, and what was dropped between them."""

    path: str
    text: bytes
    trees: int  # lines
    read: int  # trees in the file, those without words included
    dropped: int = 0  # what is not a tree, in a parser's output
    fault: str = ""  # why, for the first of those


@dataclass(frozen=True)
class Linearized:
    """The linearized trees of one corpus, in their order."""

    path: str
    trees: int
    dropped: int
    fault: str
    starts: list[list[int]]  # of each block: the number of its first tree, and the byte where it starts

    @classmethod
    def open(cls, path: str, source: dict[str, Any]) -> Linearized | None:
        """Returns what `write` wrote, or None if nothing complete and intact of the same source is there."""
        try:
            account = read_json(_account(path))
            if account.pop("source") == source and sha256(path) == account.pop("sha256"):
                return cls(path, **account)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    @classmethod
    def write(cls, path: str, source: dict[str, Any], blocks: Iterable[Block]) -> Linearized:
        """Writes blocks to `path`, completely or not at all. `source`: the description of the corpus."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for leftover in glob.glob(f"{glob.escape(path)}*"):  # of a killed preparation, or of other text
            os.remove(leftover)
        starts, digest = [], hashlib.sha256()
        place, trees, dropped, fault = 0, 0, 0, ""
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            for block in blocks:
                starts.append([trees, place])
                place += file.write(block.text)
                digest.update(block.text)
                trees += block.trees
                dropped += block.dropped
                fault = fault or block.fault
        account = {"trees": trees, "dropped": dropped, "fault": fault, "starts": starts}
        write_json(_account(path), account | {"source": source, "sha256": digest.hexdigest()})
        return cls(path, **account)  # type: ignore[arg-type]

    def pairs(self, first: int = 0) -> Iterator[Pair]:
        """Yields (words, linearized tree) of each tree from number `first` on. What is before is skipped by offset."""
        return ((words, symbols) for words, symbols, _ in self.lines(first))

    def lines(self, first: int = 0) -> Iterator[tuple[str, str, str]]:
        """Yields (words, linearized tree, parts of speech), as `pairs`."""
        if not self.starts:
            return
        number, place = self.starts[bisect.bisect_right(self.starts, first, key=lambda start: start[0]) - 1]
        with open(self.path, "rb") as file:
            file.seek(place)
            for line in itertools.islice(file, first - number, None):
                words, symbols, tags = line.decode().removesuffix("\n").split("\t")
                yield words, symbols, tags


def _account(path: str) -> str:
    return f"{path}.json"
