"""The archives of a WMT14 problem, with the published names and as many lines as wanted, of made text.

Names of archives, of the files in them and of the corpora come from tensorflow-datasets through
`t2t_repro.preparation.downloads`. Files that the problem does not read (other languages) are missing.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

from benchmarks.news_text import NewsText
from t2t_repro.io import read_json, sha256, write_json
from t2t_repro.preparation import downloads
from t2t_repro.problem import SPLITS, Problem, Wmt

RECORD = "archives.json"  # {name: bytes and SHA-256} of the complete archives
_LEVEL = 1  # of gzip: a third of the time of the usual one
_COPY_BYTES = 1 << 20


def of_size(problem: Problem, pairs: int) -> Problem:
    """Returns a WMT14 problem whose corpora have `pairs` training lines together, in the published proportions.

    Validation and test text have their published numbers.
    """
    corpora = {split: cast(Wmt, problem.corpora(split)[0]) for split in SPLITS}
    builder = downloads._builder(corpora["train"], os.devnull)
    names = {str(split): members for split, members in builder.subsets.items()}["train"]
    known = dict(corpora["train"].lines)
    total, before, left = sum(known[name] for name in names), 0, dict(known)
    for name in names:
        left[name] = (before + known[name]) * pairs // total - before * pairs // total
        before += known[name]
    lines = tuple(left.items())
    sized: dict[str, Any] = {split: (dataclasses.replace(each, lines=lines),) for split, each in corpora.items()}
    return dataclasses.replace(problem, **sized)


def train_pairs(problem: Problem) -> int:
    """Returns the number of training lines of a WMT14 problem."""
    corpus = cast(Wmt, problem.train[0])
    builder = downloads._builder(corpus, os.devnull)
    names = {str(split): members for split, members in builder.subsets.items()}["train"]
    return sum(dict(corpus.lines)[name] for name in names)


def write(folder: str, problem: Problem, text: NewsText, report: Callable[[str], None]) -> None:
    """Writes the archives of a problem to `folder`, without those that are complete.

    The text of each corpus depends on `text`, the name of the corpus and its number of lines alone.
    """
    os.makedirs(folder, exist_ok=True)
    corpus = cast(Wmt, problem.train[0])
    builder = downloads._builder(corpus, os.devnull)
    for url in downloads._members(builder):
        name, done = os.path.basename(url), _record(folder)
        if name in done:
            continue
        work, path = os.path.join(folder, "work"), os.path.join(folder, name)
        shutil.rmtree(work, ignore_errors=True)
        mode, level = ("w:gz", {"compresslevel": _LEVEL}) if name.endswith("gz") else ("w", {})
        members = _write_members(work, builder, corpus, text, url)
        with tarfile.open(path, mode, copybufsize=_COPY_BYTES, **level) as tar:  # type: ignore[call-overload]
            for member in members:
                tar.add(os.path.join(work, member), member)
                os.remove(os.path.join(work, member))
        shutil.rmtree(work)
        done[name] = {"bytes": os.path.getsize(path), "sha256": sha256(path)}
        write_json(os.path.join(folder, RECORD), done)
        report(f"made {name}, {done[name]['bytes']:,} bytes")


def replace_sums(folder: str) -> None:
    """Replaces the SHA-256 sums of this process's tensorflow-datasets by those of the archives in `folder`."""
    from tensorflow_datasets.core.download.checksums import UrlInfo

    made = _record(folder)

    def sums(builder: Any) -> dict[str, Any]:
        urls = {url: os.path.basename(url) for url in downloads._members(builder)}
        return {url: UrlInfo(made[name]["bytes"], made[name]["sha256"], name) for url, name in urls.items()}

    downloads._sums = sums


def total_bytes(folder: str) -> int:
    """Returns the bytes of the complete archives in `folder`."""
    return sum(archive["bytes"] for archive in _record(folder).values())


def _record(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, RECORD)
    return read_json(path) if os.path.exists(path) else {}


def _write_members(work: str, builder: Any, corpus: Wmt, text: NewsText, url: str) -> list[str]:
    """Writes the files of one archive below `work`. Returns their names in it."""
    languages, lines, written = builder.builder_config.language_pair, dict(corpus.lines), []
    for name in (name for names in builder.subsets.values() for name in names):
        subset = downloads._subset(name)
        if subset.get_url(languages[0]) != [url]:
            continue
        members = dict(zip(languages, subset.get_path(languages[0]), strict=True))
        sides = [members[corpus.source_language], members[corpus.target_language]]
        with ExitStack() as stack:
            files = [stack.enter_context(_create(os.path.join(work, member))) for member in sides]
            number = 0
            for block in text.blocks(lines[name], seed=zlib.crc32(name.encode())):
                for file, member, content in zip(files, sides, block, strict=True):
                    file.write(b"".join(_segments(content, number)) if member.endswith(".sgm") else content)
                number += block[0].count(b"\n")
        written += sides
    return written


def _create(path: str) -> BinaryIO:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return cast(BinaryIO, gzip.open(path, "wb", _LEVEL) if path.endswith(".gz") else open(path, "wb"))


def _segments(content: bytes, number: int) -> Iterator[bytes]:
    """Yields lines as the segments of a test set, numbered after `number`."""
    for place, line in enumerate(content.splitlines(), start=number + 1):
        yield b'<seg id="%d">%b</seg>\n' % (place, line)
