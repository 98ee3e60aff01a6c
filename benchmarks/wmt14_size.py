"""Prepares as many pairs as WMT14 has, with a kill in the middle: minutes, memory and disk.

    python -m benchmarks.wmt14_size FOLDER --problem=translate_ende_wmt14

Writes archives with the published names to FOLDER/raw, of text like that of two files (`benchmarks.news_text`), and
runs `t2t-datagen --raw_dir` on them in a child process. Only the SHA-256 sums of the archives are replaced. At a third
of the encoding the child is killed with SIGKILL and then started again. At the end the padding efficiency of the first
thousand batches of 25,000 tokens per side is printed, and the files are removed.

--source and --target are English and German or French text, one sentence per line. By default they are the news of
other years in the folder that T2T_REPRO_CORPORA names: wmt_news_other_years/news.en-de.en.gz and so on.

If this command is stopped, the same command continues: complete archives are kept and preparation resumes. FOLDER
must be empty at first. It needs about 800 bytes for each pair: 4 GB for English-German, 30 GB for English-French.

Processor seconds are user and system time of the child and its workers, also of killed ones. They and the
proportional set size of all of them, the peak of which is the memory of a phase, are read every half second.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.prepare import memory
from t2t_repro.io import JsonRecord, nearest_folder, read_json, sha256, write_json
from t2t_repro.problem import Problem

PROBLEMS = {"translate_ende_wmt14": "de", "translate_enfr_wmt14": "fr"}
KILL_AT = 1 / 3  # of the chunks
BATCHES, BATCH_TOKENS = 1_000, 25_000
POLL_SECONDS = 0.5
SAVE_SECONDS = 5.0  # between two looks at the disk, after which the account is saved
PAIR_BYTES = 800  # of archives, unpacked text, shuffle files and shards
MARK = "@phase "  # before the bytes on disk and the name of a phase that the child has ended
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Phase(JsonRecord):
    """One phase of preparation, as far as one process did it."""

    attempt: int
    name: str
    seconds: float
    cpu_seconds: float
    memory: int  # peak, bytes


@dataclass
class Account(JsonRecord):
    """The measurements until now, in FOLDER/account.json."""

    inputs: dict[str, str]  # what the archives are made of
    phases: list[Phase] = field(default_factory=list)
    attempts: int = 0
    kills: int = 0
    disk: int = 0  # peak, bytes, without the archives
    is_complete: bool = False
    running: Phase | None = None  # if this command is stopped, the phase that it was in


class Watch:
    """Watches a process and its descendants, and everything in `folder`. Saves the account every few seconds."""

    def __init__(self, pid: int, folder: str, account: Account, save: Callable[[], None]):
        self._pid, self._folder, self._account, self._save = pid, folder, account, save
        self._lock = threading.Lock()
        self._cpu: dict[tuple[int, str], float] = {}
        self._started, self._spent, self._memory, self._saved = time.monotonic(), 0.0, 0, 0.0

    def look(self) -> None:
        """Notes processor time, memory and disk."""
        with self._lock:
            self._cpu.update(processor_seconds(self._pid))
            self._memory = max(self._memory, memory(self._pid))
            if time.monotonic() - self._saved > SAVE_SECONDS:
                self._saved = time.monotonic()
                self._account.disk = max(self._account.disk, disk_bytes(self._folder))
                self._account.running = self._phase("until a stop")
                self._save()

    def end(self, phase: str, disk: int = 0) -> None:
        """Adds the phase that ends now to the account, with the bytes on disk at its end."""
        self.look()
        with self._lock:
            self._account.disk = max(self._account.disk, disk)
            self._account.phases.append(self._phase(phase))
            self._account.running = None
            self._save()
            self._started, self._spent, self._memory = time.monotonic(), sum(self._cpu.values()), 0

    def _phase(self, name: str) -> Phase:
        times = time.monotonic() - self._started, sum(self._cpu.values()) - self._spent
        return Phase(self._account.attempts, name, *times, self._memory)


def processor_seconds(pid: int) -> dict[tuple[int, str], float]:
    """Returns user and system time of a process and its descendants by process id and time of their start."""
    found = {}
    with contextlib.suppress(OSError, ValueError):  # it has ended
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICKS
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= processor_seconds(int(child))
    return found


def disk_bytes(folder: str) -> int:
    """Returns the bytes of the disk that a folder takes."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


class Measurement:
    """One measurement in `folder`, or the rest of one."""

    def __init__(self, folder: str, problem: str, pairs: int, source: str, target: str, filters: Sequence[str]):
        self.folder, self.name, self.pairs = folder, problem, pairs
        self.source, self.target, self.filters = source, target, tuple(filters)
        self.raw, self.data = os.path.join(folder, "raw"), os.path.join(folder, "data")
        self._path = os.path.join(folder, "account.json")
        inputs = {"problem": problem, "pairs": str(pairs), "filters": " ".join(filters)}
        inputs |= {"source": sha256(source), "target": sha256(target)}
        self.account = self._continued(inputs)

    def _continued(self, inputs: dict[str, str]) -> Account:
        if not os.path.exists(self._path):
            if os.path.isdir(self.folder) and os.listdir(self.folder):
                raise SystemExit(f"expected an empty folder, or one of this command. Received: {self.folder}")
            return Account(inputs)
        account = Account.from_json(read_json(self._path))
        if account.inputs != inputs:
            raise SystemExit(
                f"{self.folder} has another measurement: {account.inputs}, not {inputs}; give another folder"
            )
        if account.running:
            account.phases.append(account.running)
            account.running = None
        return account

    def save(self) -> None:
        """Writes the account."""
        write_json(self._path, self.account.to_json())

    def make_archives(self) -> None:
        """Writes the archives that are missing, and adds the time to the account."""
        from benchmarks import wmt14_archives
        from benchmarks.news_text import NewsText
        from t2t_repro.preparation.corpora import read_pairs
        from t2t_repro.problem import TextFiles

        os.makedirs(self.folder, exist_ok=True)
        self.save()
        started, spent = time.monotonic(), time.process_time()
        pairs = [pair for pair in read_pairs(TextFiles(self.source, self.target)) if all(pair)]
        wmt14_archives.write(self.raw, problem(self.name, self.pairs), NewsText(pairs), say)
        seconds = time.monotonic() - started, time.process_time() - spent
        self.account.phases.append(Phase(0, "making the archives", *seconds, 0))
        self.save()

    def prepare(self, kill_at: float) -> None:
        """Prepares in child processes until the data is complete. Kills the first one; 0: none."""
        while not self.account.is_complete:
            self.account.attempts += 1
            self._attempt(kill_at if not self.account.kills else 0)
        self.account.running = None  # after its last phase
        self.save()

    def child(self, what: str) -> subprocess.Popen[str]:
        """Starts this command again as a child that does one part."""
        given = [self.folder, f"--problem={self.name}", f"--pairs={self.pairs}", f"--child={what}"]
        given += [f"--source={self.source}", f"--target={self.target}", *(f"--filter={each}" for each in self.filters)]
        command = [sys.executable, "-m", "benchmarks.wmt14_size", *given]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _attempt(self, kill_at: float) -> None:
        child = self.child("prepare")
        watch = Watch(child.pid, self.data, self.account, self.save)
        reader = threading.Thread(target=_follow, args=(child, watch))
        reader.start()
        shuffle = os.path.join(self.data, self.name, "shuffle")
        least = max(1, kill_at * chunks_of(self.pairs), chunks_in(shuffle) + 1)  # it encodes before it is killed
        while child.poll() is None:
            watch.look()
            if kill_at and chunks_in(shuffle) >= least:
                watch.look()
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                self.account.kills += 1
                say(f"killed with {chunks_in(shuffle):,} of {chunks_of(self.pairs):,} chunks encoded")
            time.sleep(POLL_SECONDS)
        reader.join()
        if child.returncode == -signal.SIGKILL and kill_at:
            watch.end("encoding until the kill")
        elif child.returncode:
            raise SystemExit(f"preparing failed: exit code {child.returncode}; the same command continues")
        else:
            self.account.is_complete = True

    def remove(self) -> None:
        """Removes what this command wrote."""
        for folder in (self.raw, self.data):
            shutil.rmtree(folder)
        os.remove(self._path)
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(self.folder)


def _follow(child: subprocess.Popen[str], watch: Watch) -> None:
    """Prints the lines of a child, and ends a phase at each mark."""
    assert child.stdout
    for line in child.stdout:
        if line.startswith(MARK):
            disk, _, phase = line.removeprefix(MARK).strip().partition(" ")
            watch.end(phase, int(disk))
        else:
            say(line.rstrip("\n"))


def say(line: str) -> None:
    """Prints a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def chunks_of(pairs: int) -> int:
    """Returns the number of chunks that the text is encoded in."""
    from t2t_repro.preparation.pipeline import CHUNK_PAIRS

    return math.ceil(pairs / CHUNK_PAIRS)


def chunks_in(shuffle: str) -> int:
    """Returns the number of complete chunks in a folder, which may be missing."""
    return sum(name.endswith(".json") for name in os.listdir(shuffle)) if os.path.isdir(shuffle) else 0


def problem(name: str, pairs: int) -> Problem:
    """Returns the registered problem, of that many pairs, with a vocabulary that they can give."""
    from benchmarks.wmt14_archives import of_size
    from t2t_repro.registry import PROBLEMS as REGISTERED

    sized = of_size(REGISTERED[name], pairs)
    return dataclasses.replace(sized, vocab_size=min(sized.vocab_size, max(400, pairs // 10)))


def prepare_here(measurement: Measurement) -> int:
    """Runs t2t-datagen in this process, which prints a mark at the end of each phase. Returns its exit code."""
    from benchmarks import wmt14_archives
    from t2t_repro.preparation import pipeline, problem_text
    from t2t_repro.registry import PROBLEMS as REGISTERED

    def mark(phase: str) -> None:
        print(f"{MARK}{disk_bytes(measurement.data)} {phase}", flush=True)

    def marked(method: Any, phase: str) -> Any:
        def called(*arguments: Any) -> Any:
            result = method(*arguments)
            mark(phase)
            return result

        return called

    wmt14_archives.replace_sums(measurement.raw)
    preparation, text = pipeline.Preparation, problem_text.ProblemText
    text.__init__ = marked(text.__init__, "checking and unpacking archives")  # type: ignore[method-assign]
    for name, phase in (
        ("_read_all", "reading, filters"),
        ("_learn_vocabulary", "vocabulary"),
        ("_encode_train", "encoding"),
        ("_write_train", "writing shards"),
    ):
        setattr(preparation, name, marked(getattr(preparation, name), phase))
    preparation.__post_init__ = marked(preparation.__post_init__, "start")  # type: ignore[method-assign]
    REGISTERED._items[measurement.name] = problem(measurement.name, measurement.pairs)
    sys.argv = ["t2t-datagen", f"--problem={measurement.name}", f"--data_dir={measurement.data}"]
    sys.argv += [f"--raw_dir={measurement.raw}", *(f"--filter={each}" for each in measurement.filters)]
    code: int = importlib.import_module("t2t_repro.bin.t2t_datagen").main()
    mark("validation and test")
    return code


def padding(measurement: Measurement) -> str:
    """Returns the table of the padding efficiency of the first BATCHES batches."""
    import numpy as np

    from t2t_repro.cli import launcher

    launcher.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.input_pipeline import TrainingText
    from t2t_repro.data.padding_statistics import counts_by_width, format_table

    shards = Dataset.open(os.path.join(measurement.data, measurement.name)).shards("train")
    counts, left = [], BATCHES
    for window in TrainingText(shards, BATCH_TOKENS, seed=1).windows(epoch=0):
        sizes, tokens = (each[:left] for each in window.parts())
        counts.append(counts_by_width(sizes, tokens))
        left -= len(sizes)
        if not left:
            break
    return f"first {BATCHES - left:,} batches of {format_table(np.sum(counts, axis=0), BATCH_TOKENS)}"


def table(phases: Sequence[Phase]) -> Iterator[str]:
    """Yields a Markdown table of the phases."""
    yield "| attempt | phase | minutes | processor seconds | peak MB |"
    yield "|---|---|---|---|---|"
    for phase in phases:
        times = f"{phase.seconds / 60:.1f} | {phase.cpu_seconds:,.0f}"
        memory_mb = f"{phase.memory / 1e6:,.0f}" if phase.memory else ""
        yield f"| {phase.attempt or ''} | {phase.name} | {times} | {memory_mb} |"


def summary(measurement: Measurement) -> Iterator[str]:
    """Yields the results."""
    from benchmarks.wmt14_archives import total_bytes

    account, pairs = measurement.account, measurement.pairs
    yield from table(account.phases)
    prepared = [phase for phase in account.phases if phase.attempt]
    minutes, seconds = sum(each.seconds for each in prepared) / 60, sum(each.cpu_seconds for each in prepared)
    yield f"\n{pairs:,} pairs prepared in {minutes:.1f} minutes; kills: {account.kills}"
    yield f"processor time: {seconds:,.0f} s, {pairs / seconds:,.0f} pairs per processor second"
    yield f"peak memory: {max(each.memory for each in prepared) / 1e9:.2f} GB"
    directory = os.path.join(measurement.data, measurement.name)
    record = read_json(os.path.join(directory, "dataset.json"))["splits"]["train"]
    shards = sum(os.path.getsize(os.path.join(directory, shard["name"])) for shard in record["shards"])
    yield f"archives: {total_bytes(measurement.raw) / 1e9:.2f} GB; disk beside them, peak: {account.disk / 1e9:.2f} GB"
    yield f"shards: {shards:,} bytes in {len(record['shards']):,} files, {record['pairs']:,} pairs"
    yield f"dropped: {record['dropped']}; length in tokens: {record['length']}"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", metavar="FOLDER", help="for archives and data")
    made.add_argument("--problem", choices=PROBLEMS, default=next(iter(PROBLEMS)), help="default: %(default)s")
    made.add_argument("--pairs", type=int, help="training pairs; default: those of WMT14")
    made.add_argument("--source", help="English text")
    made.add_argument("--target", help="German or French text")
    made.add_argument("--filter", action="append", default=[], metavar="NAME[=VALUE]", help="as of t2t-datagen")
    made.add_argument("--kill_at", type=float, default=KILL_AT, help="share of the encoding; 0: never")
    made.add_argument("--keep", action="store_true", help="keep the files")
    made.add_argument("--child", choices=["prepare", "padding"], help=argparse.SUPPRESS)
    return made


def default_text(language: str, side: str) -> str:
    """Returns the path of the news in the folder that T2T_REPRO_CORPORA names."""
    corpora = os.environ.get("T2T_REPRO_CORPORA")
    if not corpora:
        raise SystemExit("expected --source and --target, or T2T_REPRO_CORPORA to name a folder of text")
    return os.path.join(corpora, "wmt_news_other_years", f"news.en-{language}.{side}.gz")


def main() -> None:
    given = parser().parse_args()
    language = PROBLEMS[given.problem]
    source, target = given.source or default_text(language, "en"), given.target or default_text(language, language)
    if not given.pairs:
        from benchmarks.wmt14_archives import train_pairs
        from t2t_repro.registry import PROBLEMS as REGISTERED

        given.pairs = train_pairs(REGISTERED[given.problem])
    measurement = Measurement(given.folder, given.problem, given.pairs, source, target, given.filter)
    if given.child == "prepare":
        sys.exit(prepare_here(measurement))
    if given.child == "padding":
        print(padding(measurement))
        return
    if not measurement.account.is_complete:
        needed, here = given.pairs * PAIR_BYTES, nearest_folder(given.folder)
        free = shutil.disk_usage(here).free + disk_bytes(given.folder)
        if free < needed:
            raise SystemExit(f"about {needed / 1e9:.1f} GB needed in {given.folder}, {free / 1e9:.1f} GB free")
        measurement.make_archives()
        measurement.prepare(given.kill_at)
    child = measurement.child("padding")
    efficiency, _ = child.communicate()
    for line in summary(measurement):
        print(line)
    print(efficiency, end="", flush=True)
    if not given.keep:
        measurement.remove()


if __name__ == "__main__":
    main()
