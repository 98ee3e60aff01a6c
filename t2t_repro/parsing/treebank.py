"""Treebanks: the files that `Trees` name, the trees in them as a parser is trained on and scored against.

The Wall Street Journal of the Penn Treebank is wsj_0001.mrg to wsj_2454.mrg, the first two digits being the section:
in folders 00 to 24, all in one folder, or the whole CD, where they are below parsed/mrg/wsj.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from t2t_repro.io import sha256, written_whole
from t2t_repro.parsing.linearization import pair
from t2t_repro.parsing.trees import Tree, clean, read_trees
from t2t_repro.problem import Corpus, Pair, Trees

TREES_NAME = re.compile(r"(validation|test)\.trees")  # what `write_trees` is given to write
_WSJ = re.compile(r"wsj_(\d\d)\d\d\.mrg(\.gz)?", re.IGNORECASE)


def read(corpus: Trees) -> Iterator[Tree]:
    """The trees of `corpus`, each `clean`; one that has no words but traces is left out.

    Raises FileNotFoundError and ValueError, naming file and line, for what cannot be read.
    """
    return filter(None, map(clean, itertools.chain.from_iterable(map(read_trees, paths(corpus)))))


def read_corpora(corpora: Iterable[Corpus]) -> Iterator[Tree]:
    """The trees of several corpora, one after the other."""
    return itertools.chain.from_iterable(read(corpus) for corpus in corpora if isinstance(corpus, Trees))


def read_pairs(corpus: Trees) -> Iterator[Pair]:
    """Of each tree, its words and its linearisation. Raises as `read`, and ValueError where there are none."""
    number = 0
    for number, tree in enumerate(read(corpus), start=1):  # noqa: B007
        yield pair(tree)
    if not number:
        raise ValueError(f"{corpus.path} holds no tree with words in it; expected (S (NP (PRP We)) ...)")


def paths(corpus: Trees) -> list[str]:
    """The files of `corpus`, in the order of their names. Raises FileNotFoundError or ValueError where one is missing
    or there twice."""
    if not corpus.sections:
        return [corpus.path]
    if not os.path.isdir(corpus.path):
        raise FileNotFoundError(
            f"--raw_dir: no directory {corpus.path!r}; give the one that holds the treebank's files"
        )
    found: dict[str, str] = {}
    for folder, _, names in os.walk(corpus.path):
        for name in names:
            match = _WSJ.fullmatch(name)
            if match and int(match[1]) in corpus.sections:
                article, path = name.lower().removesuffix(".gz"), os.path.join(folder, name)
                if article in found:
                    raise ValueError(f"{found[article]} and {path} are the same article; give --raw_dir one of them")
                found[article] = path
    missing = sorted({*corpus.sections} - {int(article[4:6]) for article in found})
    if missing:
        numbers = ", ".join(f"{section:02d}" for section in missing)
        raise FileNotFoundError(
            f"--raw_dir: {corpus.path!r} holds no wsj_{missing[0]:02d}*.mrg (missing sections: {numbers}); "
            "give the folder of the Penn Treebank's Wall Street Journal, sections 02 to 23"
        )
    return [found[article] for article in sorted(found)]


def describe(corpus: Trees, hashed: bool) -> dict[str, Any]:
    """The file's path, bytes and SHA-256; of sections, the number of files, and bytes and SHA-256 of all, names too."""
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


def write_trees(path: str, trees: Iterable[Tree]) -> dict[str, Any]:
    """Writes trees, one a line, whole or not at all. Returns the file's name, bytes, number of trees and SHA-256."""
    records = 0
    with written_whole(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for records, tree in enumerate(trees, start=1):  # noqa: B007
            file.write(f"{tree}\n")
    return {"name": os.path.basename(path), "bytes": os.path.getsize(path), "records": records, "sha256": sha256(path)}
