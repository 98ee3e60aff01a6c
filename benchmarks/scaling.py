"""The cost of a step as one size grows, and the cost of the layers in the paper's Table 1.

    python -m benchmarks.scaling

The first table has tokens per second and memory of `t2t-trainer`'s step against sentence length, width, depth,
vocabulary and replicas, one of them changed at a time. Each model runs in a separate process. The models of one axis
are warmed up, then alternate, and are compared with the line of 1.00 among them. Replicas on one processor share its
cores, so their additional cost is overhead. Memory is the peak beyond the imports.

The second table, by `benchmarks.table1`, compares self-attention, recurrent and convolutional layers against length and
width with the growth given in Table 1. `benchmarks.pictures` draws both tables.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import table1
from benchmarks.shapes import Shape
from benchmarks.train import Worker, spread


@dataclass(frozen=True)
class Point:
    """One model and its batch, of which every pair has `length` tokens per side."""

    length: int = 32
    d_model: int = 256
    num_layers: int = 2
    vocab_size: int = 8_000
    batch_tokens: int = 4_096
    replicas: int = 1

    worker = "scaled"  # for `train.Worker`, as are `mode` and `str`

    @property
    def shape(self) -> Shape:
        sizes = (self.num_layers, self.d_model, self.d_model // 64, 4 * self.d_model, self.vocab_size)
        return Shape("scaled", *sizes, self.batch_tokens)

    @property
    def mode(self) -> str:
        return ",".join(str(value) for value in vars(self).values())

    @staticmethod
    def read(mode: str) -> Point:
        return Point(*map(int, mode.split(",")))

    def __str__(self) -> str:
        return f"length {self.length}, d_model {self.d_model}, N {self.num_layers}, V {self.vocab_size:,}, " + (
            f"{self.batch_tokens:,} tokens per side, {self.replicas} replica{'s' * (self.replicas > 1)}"
        )


CENTER = Point()
IN_PARTS = replace(CENTER, batch_tokens=16_384)  # a step of four parts
AXES = {
    "length": [replace(CENTER, length=length) for length in (8, 32, 128, 512)],
    "d_model": [replace(CENTER, d_model=d_model) for d_model in (128, 256, 512, 1024)],
    "num_layers": [replace(CENTER, num_layers=layers) for layers in (1, 2, 4, 8)],
    "vocab_size": [replace(CENTER, vocab_size=size) for size in (2_000, 8_000, 32_000, 128_000)],
    "replicas": [replace(IN_PARTS, replicas=replicas) for replicas in (1, 2, 4)],
}

Measured = dict[Point, tuple[list[float], int]]  # seconds of each round, and bytes beyond the imports


def measure(points: Sequence[Point], precision: str, updates: int, rounds: int) -> Measured:
    """Measures all points of one axis, alternating between them."""
    with contextlib.ExitStack() as stack:
        workers = []
        for point in points:
            workers.append(Worker(point, Path(sys.executable), [f"--precision={precision}"]))
            stack.callback(workers[-1].close)
            print(f"{point} is warm", file=sys.stderr)
        seconds: dict[Point, list[float]] = {point: [] for point in points}
        for _ in range(rounds):
            for worker in workers:
                seconds[worker.contestant].append(worker.run([0] * updates)["seconds"])
        ends = [worker.end() for worker in workers]
    return {
        point: (seconds[point], int(end["peak_bytes"] - end["imported_bytes"]))
        for point, end in zip(points, ends, strict=True)
    }


def rows(axis: str, measured: Measured) -> list[str]:
    """Returns tokens per second and memory of each point, relative to the central one."""
    reference = next(point for point in measured if getattr(point, axis) == getattr(CENTER, axis))
    seconds, memory = measured[reference]
    return [
        f"| {axis} {getattr(point, axis):,} | {spread(seconds, taken)} | {held / memory:.2f} |"
        for point, (taken, held) in measured.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES), help="default: %(default)s")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--updates", type=int, default=3, help="in a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    axes = [axis for axis in arguments.axes.split(",") if axis]
    if unknown := set(axes) - set(AXES):
        parser.error(f"unknown axis {', '.join(sorted(unknown))}; known: {', '.join(AXES)}")
    print(f"### Updates in {arguments.precision}: {CENTER}\n")
    print("| but for | tokens/s over the line of 1.00 | memory over it |\n|---|---|---|")
    for axis in axes:
        measured = measure(AXES[axis], arguments.precision, arguments.updates, arguments.rounds)
        print("\n".join(rows(axis, measured)), flush=True)
    print(f"\n{table1.table(table1.measure(arguments.rounds))}", flush=True)


if __name__ == "__main__":
    main()
