"""Speed and peak memory of two versions of this package: what a change costs, or gains.

    python -m benchmarks.compare main HEAD
    python -m benchmarks.compare HEAD . --only='train base bfloat16|decode base int8' --rounds=9

OLD and NEW are git revisions of this repository, or paths of checkouts: "." is the working tree. The training step is
that of `benchmarks.train`, decoding is that of `benchmarks.decode`. Each version runs in separate processes with its
own library, in the same environment and with the same measuring code, which is that of the running checkout. If a
version lacks a name which that code calls, the cell is left out, with a line that says so. Both are warmed up, then
alternate, and change places in every round. Half of the rounds are of processes that are started in the other order.

A ratio of speed is the median over rounds, with the extremes after it. Memory is the peak of a process, over all cases
that decode in it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import batches
from benchmarks.decode import MODES
from benchmarks.decode_workload import CASES
from benchmarks.shapes import SHAPES
from benchmarks.train import ROOT, Worker, spread
from t2t_repro.system import processor

LACKS = re.compile(r"(ImportError|ModuleNotFoundError|AttributeError|TypeError)\b")  # of a name that is not there


@dataclass(frozen=True)
class Version:
    """A checkout whose library is measured. `folder` has its files, and the measuring code of this one."""

    side: str  # "OLD" or "NEW"
    name: str  # as given
    folder: Path

    def __str__(self) -> str:
        return f"{self.side} ({self.name})"


@dataclass(frozen=True)
class Contest:
    """The cells that one process of each version measures."""

    kind: str  # "train" or "decode"
    model: str
    mode: str

    @property
    def worker(self) -> str:
        return {"train": "ours", "decode": "decode_ours"}[self.kind]

    def cells(self, updates: int) -> dict[str, list[int]]:
        if self.kind == "train":
            return {str(self): list(range(updates))}
        return {f"{self}, {case.name}": [index] * case.repeats for index, case in enumerate(CASES)}

    def __str__(self) -> str:
        return f"{self.kind} {self.model} {self.mode}"


def contests(models: Sequence[str]) -> list[Contest]:
    found = [Contest("train", model, mode) for model in models for mode in ("bfloat16", "float32")]
    return found + [Contest("decode", model, mode) for model in models for mode in MODES]


@contextlib.contextmanager
def checked_out(side: str, name: str) -> Iterator[Version]:
    """Provides the files of a revision, or of the checkout at a path, with this checkout's `benchmarks`.

    Raises ValueError if `name` is neither.
    """
    with tempfile.TemporaryDirectory(prefix=f"t2t_repro_{side}_") as temporary:
        source, folder = Path(temporary, "source"), Path(temporary, "checkout")
        if Path(name, "t2t_repro", "__init__.py").is_file():
            source = Path(name).resolve()
        else:
            _extract(name, source)
        folder.mkdir()
        for each in source.iterdir():
            if each.name != "benchmarks":
                (folder / each.name).symlink_to(each)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        yield Version(side, name, folder)


def _extract(revision: str, folder: Path) -> None:
    """Writes the files of a revision to `folder`. Raises ValueError if there is no such revision."""
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", "--end-of-options", revision]
    archive = subprocess.run(git, capture_output=True)
    if archive.returncode:
        raise ValueError(
            f"expected a git revision of this repository or the path of a checkout. Received: {revision!r}"
            f" ({archive.stderr.decode(errors='replace').strip()})"
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    if not (folder / "t2t_repro" / "__init__.py").is_file():
        raise ValueError(f"revision {revision!r} has no t2t_repro/__init__.py; give a later one")


class Side(Worker):
    """A version's process for one contest, warm when made. Raises RuntimeError in one line if it cannot run."""

    def __init__(self, version: Version, contest: Contest, arguments: Sequence[str]):
        self.version = version
        try:
            super().__init__(contest, Path(sys.executable), arguments, cwd=version.folder)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            lacks = "lacks a name that this checkout's benchmark calls" if LACKS.match(reason) else "cannot run"
            raise RuntimeError(f"{contest} is left out: {version} {lacks}: {reason}") from None
        expected = str(version.folder / "t2t_repro")
        if self.ready.get("library") != expected:
            self.close()
            raise RuntimeError(f"{contest} is left out: {version} ran {self.ready.get('library')}, not {expected}")


def measure(versions: Sequence[Version], contest: Contest, arguments: Sequence[str], cells: Any, rounds: int) -> Any:
    """Returns "peak_bytes" of each version, and for each of `cells` the seconds of its rounds."""
    found: dict[str, Any] = {name: {version.side: [] for version in versions} for name in cells}
    with contextlib.ExitStack() as stack:
        sides = []
        for version in versions:
            sides.append(Side(version, contest, arguments))
            stack.callback(sides[-1].close)
            print(f"{contest}: {version} is warm, with {sides[-1].ready['library']}", file=sys.stderr)
        for name, indices in cells.items():
            for turn in range(rounds):
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    found[name][side.version.side].append(side.run(indices)["seconds"])
            print(f"{name}: {rounds} rounds", file=sys.stderr)
        return found | {"peak_bytes": {side.version.side: side.end()["peak_bytes"] for side in sides}}


def measure_both_ways(
    versions: Sequence[Version], contest: Contest, arguments: Sequence[str], cells: Any, rounds: int
) -> Any:
    """Returns `measure` of half of the rounds with the processes of OLD started first, and of half with those of NEW.

    The process that starts second is the faster one: 1.03 to 1.08 times in 8-bit integers, for equal versions.
    """
    first = measure(versions, contest, arguments, cells, math.ceil(rounds / 2))
    if rounds == 1:
        return first
    second = measure(versions[::-1], contest, arguments, cells, rounds // 2)
    sides = [version.side for version in versions]
    found = {name: {side: first[name][side] + second[name][side] for side in sides} for name in cells}
    return found | {"peak_bytes": {side: max(each["peak_bytes"][side] for each in (first, second)) for side in sides}}


def row(name: str, seconds: dict[str, list[float]], peak_bytes: dict[str, float]) -> str:
    memory = peak_bytes["NEW"] / peak_bytes["OLD"]
    return f"| {name} | {spread(seconds['OLD'], seconds['NEW'])} | {memory:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="git revision, or path of a checkout")
    parser.add_argument("new", metavar="NEW", help="git revision, or path of a checkout")
    parser.add_argument("--models", default="small,base", help=f"of {', '.join(SHAPES)}; default: %(default)s")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells, as the table names them")
    parser.add_argument("--updates", type=int, default=3, help="in a round of training; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=8, help="best an even number; default: %(default)s")
    parser.add_argument("--json", help="file for all measurements")
    arguments = parser.parse_args()
    models = arguments.models.split(",")
    if unknown := set(models) - set(SHAPES):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    every = {contest: contest.cells(arguments.updates) for contest in contests(models)}
    chosen = {
        contest: {name: indices for name, indices in cells.items() if re.search(arguments.only, name)}
        for contest, cells in every.items()
    }
    chosen = {contest: cells for contest, cells in chosen.items() if cells}
    if not chosen:
        known = ", ".join(name for cells in every.values() for name in cells)
        parser.error(f"no cell matches {arguments.only!r}; there are: {known}")
    record: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        try:
            given = (("OLD", arguments.old), ("NEW", arguments.new))
            versions = [stack.enter_context(checked_out(*each)) for each in given]
        except ValueError as error:
            parser.error(str(error))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        machine = f"{processor.usable_cores()} cores of {processor.name()}, {platform.system()}"
        print(f"### {arguments.new} over {arguments.old}, {machine}\n", flush=True)
        print("| cell | speed, NEW over OLD | peak memory, NEW over OLD |\n|---|---|---|", flush=True)
        for contest, cells in chosen.items():
            file = os.path.join(folder, f"{contest.model}.npz")
            if contest.kind == "train" and not os.path.exists(file):
                batches.save(file, batches.make(SHAPES[contest.model], arguments.updates))
            inputs = f"--batches={file}" if contest.kind == "train" else f"--weights={folder}"
            try:
                found = measure_both_ways(
                    versions, contest, [f"--model={contest.model}", inputs], cells, arguments.rounds
                )
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            record[str(contest)] = found
            for name in cells:
                print(row(name, found[name], found["peak_bytes"]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if not record:
        sys.exit(1)


if __name__ == "__main__":
    main()
