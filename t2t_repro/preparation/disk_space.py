"""Disk space of preparation: estimated in advance and compared with the free space.

The sizes of archives are known. Everything else is estimated from the text: from the bytes of its files, or from the
known number of lines of a corpus that is not downloaded yet. Generated text is not counted.
"""

from __future__ import annotations

import collections
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from t2t_repro.io import bytes_in, nearest_folder
from t2t_repro.preparation.corpora import files_of
from t2t_repro.preparation.downloads import GZIP_RATIO, PAIR_BYTES, wmt_disk_space
from t2t_repro.problem import SPLITS, Corpus, Generated, Problem, Trees, Wmt

# Size of a pair in a shard, and again in the shuffle files. Measured: the pairs of Tatoeba, Multi30k, news and CRAFT
# have 70, 135, 279 and 425 bytes of text and take 88, 114, 181 and 263 bytes.
RECORD_BYTES = 60
ID_BYTES = 0.45  # for each byte of text
TREE_RATIO = 1.4  # bytes of linearized trees per byte in brackets
TREE_GZIP_RATIO = 6  # of trees in brackets
LINES_BYTES, TREE_BYTES = 140, 425  # assumed bytes of a pair of lines of unknown length, and of a tree in brackets
SHOWN_FROM = 10**9  # bytes; a smaller need is reported only if it may not fit


class Need(NamedTuple):
    """Bytes that files of one kind will take in `folder`, which need not exist yet."""

    kind: str
    folder: str
    expected: int
    surely: int  # lower bound, even if the estimate is far too high


def needs(problem: Problem, directory: str, shuffle: str, downloads: str) -> list[Need]:
    """Returns the space that preparing `problem` still needs, without files of an earlier preparation."""
    sets, pairs, text, filtered, trees = {}, 0, 0, 0, 0
    for split, corpus in ((each, corpus) for each in SPLITS for corpus in problem.corpora(each)):
        if isinstance(corpus, Wmt):
            size = sets[corpus.dataset] = wmt_disk_space(corpus, downloads)
            found = size.text // PAIR_BYTES, size.text
        else:
            found = _pairs_and_bytes(corpus)
        pairs, text = pairs + found[0], text + found[1]
        trees += found[1] if isinstance(corpus, Trees) else 0
        filtered += found[0] if split == "train" and problem.filters else 0
    taken = min(problem.sample / pairs, 1) if problem.sample and pairs else 1
    encoded = int(taken * (RECORD_BYTES * pairs + ID_BYTES * text))
    archives = sum(size.archives for size in sets.values())
    unpacked = sum(size.unpacked for size in sets.values())
    linearized = os.path.join(directory, "trees")
    shuffled, written = (max(encoded - bytes_in(folder), 0) for folder in (shuffle, directory))
    return [
        Need("archives", downloads, archives, archives),
        Need("unpacked text", downloads, unpacked, unpacked // 2),
        Need("linearized trees", linearized, max(int(TREE_RATIO * trees) - bytes_in(linearized), 0), trees // 2),
        Need("shuffle files", shuffle, shuffled, shuffled // 4),
        Need("shards", directory, written, written // 4),
        Need("decisions of filters", directory, min(filtered, problem.sample or filtered), 0),  # a byte per pair
    ]


def check(needed: list[Need], report: Callable[[str], None]) -> None:
    """Reports what is needed and free on each disk, if it is much or may not fit.

    Raises OSError if what is surely needed does not fit.
    """
    disks = collections.defaultdict(list)
    for need in needed:
        disks[os.stat(nearest_folder(need.folder)).st_dev].append(need)
    for needs_here in disks.values():
        folder = nearest_folder(needs_here[0].folder)
        free, expected = shutil.disk_usage(folder).free, sum(need.expected for need in needs_here)
        listed = ", ".join(f"{need.kind} {need.expected / 1e9:,.1f}" for need in needs_here if need.expected)
        line = f"about {expected / 1e9:,.1f} GB needed in {folder!r} ({listed}), {free / 1e9:,.1f} GB free"
        if free < sum(need.surely for need in needs_here):
            raise OSError(f"the disk is too small: {line}; make room, or prepare in another data directory")
        if free < expected:
            report(f"disk: {line}: it may become full; make room, the same command continues then")
        elif expected >= SHOWN_FROM:
            report(f"disk: {line}")


def _pairs_and_bytes(corpus: Corpus) -> tuple[int, int]:
    """Estimates the pairs and the bytes of text in the files of a corpus; (0, 0) if it has no files."""
    each, ratio = (TREE_BYTES, TREE_GZIP_RATIO) if isinstance(corpus, Trees) else (LINES_BYTES, GZIP_RATIO)
    files = [] if isinstance(corpus, Generated) else files_of(corpus) or []
    text = sum(os.path.getsize(path) * (ratio if path.endswith(".gz") else 1) for path in files)
    return text // each, text
