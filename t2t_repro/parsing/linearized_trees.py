"""Linearized trees as a text file, so that preparation parses each tree once and every later pass reads text.

    trees/train-0.tsv           words, linearized tree and parts of speech, separated by tabs: one tree per line
    trees/train-0.tsv.json      numbers of trees, where each block starts, SHA-256; written last

Both are kept until the data set is complete. `treebank.linearize` makes the blocks.
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
    """Adjacent trees of one file: their lines, and the number of dropped entries between them."""

    path: str
    text: bytes
    trees: int  # number of lines
    read: int  # trees in the file, including those without words
    dropped: int = 0  # entries of a parser's output that are not trees
    fault: str = ""  # the reason for the first of those


@dataclass(frozen=True)
class Linearized:
    """The linearized trees of one corpus, in order."""

    path: str
    trees: int
    dropped: int
    fault: str
    starts: list[list[int]]  # per block: the number of its first tree, and its byte offset

    @classmethod
    def open(cls, path: str, source: dict[str, Any]) -> Linearized | None:
        """Returns the text that `write` wrote, or None if there is no complete and intact text of the same source."""
        try:
            account = read_json(_account(path))
            if account.pop("source") == source and sha256(path) == account.pop("sha256"):
                return cls(path, **account)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    @classmethod
    def write(cls, path: str, source: dict[str, Any], blocks: Iterable[Block]) -> Linearized:
        """Writes blocks atomically to `path`. `source` is the description of the corpus."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for leftover in glob.glob(f"{glob.escape(path)}*"):  # from a killed preparation, or from other text
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
        """Yields (words, linearized tree) of each tree from number `first` on. Previous trees are skipped by offset."""
        return ((words, symbols) for words, symbols, _ in self.lines(first))

    def lines(self, first: int = 0) -> Iterator[tuple[str, str, str]]:
        """Yields (words, linearized tree, parts of speech) like `pairs`."""
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
