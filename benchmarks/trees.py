"""Trees: how many per second are linearized, by one process and by several, and how many are read as text afterwards.

    python -m benchmarks.trees --trees=train.mrg.gz

Repeats the trees of a file to `--number` of them and times, alternating:

- parsing: one pass over the trees by one process. Preparation made four of them before trees were kept as text.
- linearizing: what preparation does once, by one process and by `--processes`, text written to a file.
- reading: one pass over that text.

Prints the median of `--rounds`, and what a preparation's passes cost both ways.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

NUMBER = 50_000
ROUNDS = 3
PASSES = 4  # over the training text: reading, characters, learning, encoding
TARGET = 17_000_000  # trees of section 6.3


def repeated(path: str, number: int, to: str) -> None:
    """Writes `number` trees to a file, those of another one repeated, one per line."""
    from t2t_repro.parsing.trees import read_trees

    lines = [f"{tree}\n" for tree in read_trees(path)]
    with open(to, "w", encoding="utf-8") as file:
        file.writelines(lines[place % len(lines)] for place in range(number))


def ways(path: str, folder: str, processes: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Returns the timed functions, by name."""
    from t2t_repro.parsing.linearization import pair
    from t2t_repro.parsing.linearized_trees import Linearized
    from t2t_repro.parsing.treebank import linearize, read
    from t2t_repro.problem import Trees

    corpus, text = Trees(path, by_parser=True), os.path.join(folder, "trees.tsv")
    yield "parsing", lambda: sum(1 for _ in map(pair, read(corpus)))
    for number in sorted({1, processes}):
        yield (
            f"linearizing, {number}",
            functools.partial(lambda number: Linearized.write(text, {}, linearize(corpus, number)), number),
        )

    def read_again() -> int:
        found = Linearized.open(text, {})
        assert found  # written above
        return sum(1 for _ in found.pairs())

    yield "reading", read_again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", help="a file of trees in Penn Treebank bracketing")
    parser.add_argument("--number", type=int, default=NUMBER, help="of trees; default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    arguments = parser.parse_args()
    if not arguments.trees:
        parser.error("--trees is required")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trees.mrg")
        repeated(arguments.trees, arguments.number, path)
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, work in ways(path, folder, arguments.processes):
                start = time.perf_counter()
                work()
                rates.setdefault(name, []).append(arguments.number / (time.perf_counter() - start))
        size = os.path.getsize(os.path.join(folder, "trees.tsv")) / arguments.number
    print("| way, processes | trees/s | ratio |\n|---|---|---|")
    median = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in median.items():
        print(f"| {name} | {rate:,.0f} | {rate / median['parsing']:.2f} |")
    print(f"\n{size:,.0f} bytes of text per tree")
    hours = [PASSES / median["parsing"], 1 / median[f"linearizing, {arguments.processes}"] + PASSES / median["reading"]]
    before, now = (TARGET * seconds / 3600 for seconds in hours)
    print(f"{TARGET:,} trees, {PASSES} passes, projected: {before:.1f} h before, {now:.1f} h now ({before / now:.1f})")


if __name__ == "__main__":
    main()
