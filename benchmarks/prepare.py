"""Preparation: pairs per second and peak memory at growing sizes, with a projection to WMT14.

    python -m benchmarks.prepare

Prepares generated text, or the text of two files (`--source`, `--target`), repeated to the requested size. Each size
runs in a separate process; memory is the sum of that process and its workers. Learning a vocabulary takes time and
memory for each distinct word, but repeated text has no new words. So some words of repeated lines are replaced by new
ones, at the rate (`--new_words`) of real text. Memory grows with the vocabulary's sample of `LEARN_PAIRS` pairs until
the text is larger than it. A smaller sample (`--learn_pairs`) shows what else grows.

The projections to WMT14 extrapolate the time of each phase linearly. The vocabulary is learned from at most as many
pairs as in `prepare`, but all pairs are read for it, twice. For other numbers of cores only encoding is divided, and it
never takes less time than reading, which one process does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t_repro.system.processor import usable_cores

SIZES = "100000,200000,400000"
TARGETS = {"WMT14 en-de": 4_520_620, "WMT14 en-fr": 40_842_333}
CORES = (2, 16)
VOCAB_SIZE = 8_000
WORDS = 20_000  # different ones in made-up text
LENGTH = 24  # words of a made-up sentence, in the mean
# In WMT news of other years, by Heaps' law through its 38,071 pairs: the mean share of words, English and
# German, that are new in the text from there to 400,000 pairs. To 2,000,000 pairs it would be 2.2%.
NEW_WORDS = 0.035
POLL_SECONDS = 0.05
PARTS = ("text", "vocabulary", "encoding", "writing")  # the phases


def made_up(number: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Generates pairs of random words with the frequencies of a language (Zipf)."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzäöüé"))
    words = np.array(["".join(rng.choice(letters, rng.integers(1, 12))) for _ in range(WORDS)])
    for _ in range(number):
        source, target = (words[rng.zipf(1.2, max(1, rng.poisson(LENGTH))) % WORDS] for _ in range(2))
        yield " ".join(source) + ".", " ".join(target) + "."


def renewed(text: str, words: Sequence[str], share: float, rng: np.random.Generator) -> str:
    """Returns `text` with that share of its words replaced by new ones: the first half of one of `words` and the second
    half of another."""
    line = text.split(" ")
    for at in np.flatnonzero(rng.random(len(line)) < share):
        first, second = (words[index] for index in rng.integers(len(words), size=2))
        line[at] = first[: len(first) // 2 + 1] + second[len(second) // 2 :]
    return " ".join(line)


def write_text(
    folder: str, number: int, source: str | None, target: str | None, new_words: float = NEW_WORDS
) -> list[str]:
    """Writes two files of `number` lines: those given, repeated.

    A line that is repeated has a number before it, so that no line comes twice, and that share of new words in it.
    """
    from t2t_repro.preparation.corpora import read_pairs
    from t2t_repro.problem import TextFiles

    base = list(read_pairs(TextFiles(source, target))) if source and target else list(made_up(min(number, 50_000)))
    paths = [os.path.join(folder, f"{number}.{side}") for side in ("source", "target")]
    words = [sorted({word for text in side for word in text.split(" ")}) for side in zip(*base, strict=True)]
    rng = np.random.default_rng(1)
    with open(paths[0], "w", encoding="utf-8") as first, open(paths[1], "w", encoding="utf-8") as second:
        for index in range(number):
            again, place = divmod(index, len(base))
            for file, text, known in zip((first, second), base[place], words, strict=True):
                file.write(f"{again} {renewed(text, known, new_words, rng)}\n" if again else f"{text}\n")
    return paths


def prepare_once(source: str, target: str, vocab_size: int, processes: int, learn_pairs: int) -> None:
    """Prepares in this process, and prints the seconds of each phase as JSON."""
    from t2t_repro.cli import launcher

    launcher.load_tensorflow()  # its import is not what is measured
    from t2t_repro.preparation import pipeline as module
    from t2t_repro.problem import Generated, Problem, TextFiles

    module.LEARN_PAIRS = learn_pairs
    encode, marks = module.Preparation._encode_train, [("start", time.perf_counter())]

    def timed(*arguments: Any) -> None:
        encode(*arguments)
        marks.append(("encoding", time.perf_counter()))

    module.Preparation._encode_train = timed  # type: ignore[method-assign, assignment]
    one = Generated(lambda: iter([("one", "pair")]))  # WMT14 has its own validation text
    text = TextFiles(source, target)
    problem = Problem(name="measured", description="", train=(text,), validation=(one,), vocab_size=vocab_size)

    def report(line: str) -> None:
        marks.append((line.partition(":")[0], time.perf_counter()))

    with tempfile.TemporaryDirectory(dir=os.path.dirname(source)) as folder:
        module.prepare(problem, folder, report, processes=processes)
    phases = {name: at - before for (_, before), (name, at) in zip(marks, marks[1:], strict=False)}
    phases["writing"] = phases.pop("train")
    print(json.dumps({name: phases[name] for name in PARTS}))


def measured(arguments: list[str]) -> dict[str, Any]:
    """Runs `prepare_once`; its seconds of each phase, and the peak of its memory and its processes', in MB."""
    command = [sys.executable, "-m", "benchmarks.prepare", "--once", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(POLL_SECONDS):
            peak = max(peak, memory(child.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = child.communicate()
    done.set()
    watcher.join()
    if child.returncode:
        raise SystemExit(f"preparing failed: exit code {child.returncode}")
    return json.loads(out) | {"memory": peak >> 20}


def memory(pid: int) -> int:
    """Returns the proportional set size of a process and its descendants."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(memory(int(child)) for child in (task / "children").read_text().split())
    except (OSError, ValueError):  # it has ended
        pass
    return total


def projection(rows: list[dict[str, Any]], pairs: int, processes: int, cores: int, learn_pairs: int) -> float:
    """Returns the projected seconds for `pairs` pairs on `cores` cores."""
    sizes = [row["pairs"] for row in rows]

    def seconds(phase: str, number: int) -> float:
        return float(np.polyval(np.polyfit(sizes, [row[phase] for row in rows], 1), number))

    learnt = min(pairs, learn_pairs)
    reading = seconds("text", pairs)
    vocabulary = seconds("vocabulary", learnt) + 2 * (reading - seconds("text", learnt))
    return (
        reading + vocabulary + max(seconds("encoding", pairs) * processes / cores, reading) + seconds("writing", pairs)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="pairs; default: %(default)s")
    parser.add_argument("--source", help="text to repeat, instead of generated text")
    parser.add_argument("--target", help="target side of that text")
    meaning = "share of new words in a line that is repeated; default: %(default)s"
    parser.add_argument("--new_words", type=float, default=NEW_WORDS, help=meaning)
    parser.add_argument("--vocab_size", type=int, default=VOCAB_SIZE, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=usable_cores(), help="worker processes; default: %(default)s")
    parser.add_argument("--learn_pairs", type=int, help="the vocabulary's sample; default: what t2t-datagen takes")
    parser.add_argument("--once", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        prepare_once(*arguments.once[:2], *map(int, arguments.once[2:]))
        return
    if arguments.learn_pairs is None:
        from t2t_repro.preparation.pipeline import LEARN_PAIRS

        arguments.learn_pairs = LEARN_PAIRS
    how = [str(number) for number in (arguments.vocab_size, arguments.processes, arguments.learn_pairs)]
    columns = ["pairs", *(f"{part} s" for part in PARTS), "pairs/s", "peak MB"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, arguments.sizes.split(",")):
            paths = write_text(folder, size, arguments.source, arguments.target, arguments.new_words)
            row = measured([*paths, *how]) | {"pairs": size}
            rows.append(row)
            phases = " | ".join(f"{row[part]:.1f}" for part in PARTS)
            rate = size / sum(row[part] for part in PARTS)
            print(f"| {size:,} | {phases} | {rate:,.0f} | {row['memory']:,} |", flush=True)
    print("\n| projected | cores | minutes |\n|---|---|---|")
    for name, pairs in TARGETS.items():
        for cores in CORES:
            minutes = projection(rows, pairs, arguments.processes, cores, arguments.learn_pairs) / 60
            print(f"| {name}, {pairs:,} pairs | {cores} | {minutes:,.0f} |")


if __name__ == "__main__":
    main()
