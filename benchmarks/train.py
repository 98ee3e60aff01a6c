"""Training speed (real tokens per second), memory, and share of the machine's matrix-product rate, against peers.

    python -m benchmarks.environments     # once
    python -m benchmarks.train

Every contestant runs in a separate process and environment, and all train the same model on the same padded
batches (`benchmarks.batches`): warmed up, then alternating, one at a time while the others wait. Dropout, label
smoothing and Adam are on; nobody keeps statistics or checkpoints. A ratio is the median over rounds, with the extremes
after it. A peer runs in the fastest of its modes that trains. The docstrings of `benchmarks.workers` name them; --add
tries more.

    python -m benchmarks.train --models=base_25000 --only='ours bf|OpenNMT' --updates=1    # the paper's, in parts
    python -m benchmarks.train --only=ours --add=ours:bfloat16+xla --add=ours:float32+xla
    python -m benchmarks.train --only='ours f' --add=ours:float32+eigen    # without oneDNN
    python -m benchmarks.train --only=OpenNMT --add=opennmt:lazyadam --add=opennmt:lean+adam
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import batches, matmul_rate
from benchmarks.environments import cache_folder, interpreters
from benchmarks.shapes import SHAPES, Shape, update_flops

ROOT = Path(__file__).resolve().parent.parent

WORKERS = {  # module of `benchmarks.workers`: its environment ("" is the one that runs this module), its title
    "ours": ("", "ours"),
    "opennmt": ("opennmt", "OpenNMT-tf float32"),
    "pytorch": ("torch", "PyTorch"),
    "joeynmt": ("joeynmt", "JoeyNMT"),
    "tensor2tensor": ("tensor2tensor", "tensor2tensor float32"),
    "products": ("", "products alone"),
}


@dataclass(frozen=True)
class Contestant:
    worker: str
    mode: str = ""

    @property
    def environment(self) -> str:
        return WORKERS[self.worker][0]

    def __str__(self) -> str:
        return f"{WORKERS[self.worker][1]} {self.mode}".strip()


CONTESTANTS = [
    Contestant("ours", "bfloat16"),
    Contestant("ours", "float32"),
    Contestant("opennmt", "adam"),
    Contestant("pytorch", "bfloat16"),
    Contestant("pytorch", "float32"),
    Contestant("joeynmt", "bfloat16"),
    Contestant("joeynmt", "float32"),
    Contestant("tensor2tensor"),
]
PRODUCTS = [Contestant("products", "bfloat16"), Contestant("products", "float32")]


class Worker:
    """A contestant's process, warm when made. See `benchmarks.workers.protocol`."""

    def __init__(self, contestant: Any, python: Path, arguments: Sequence[str], cwd: Path = ROOT):
        """Starts `contestant`, which has a module of `benchmarks.workers`, a mode, and a title, its `str`, in `cwd`.

        `ready` is its first message.
        """
        self.contestant, self.log = contestant, tempfile.TemporaryFile("w+")  # noqa: SIM115
        quiet = {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
        self.process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.workers.{contestant.worker}", *arguments, f"--mode={contestant.mode}"],
            cwd=cwd,
            env=os.environ | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.ready: dict[str, Any] = self._answer()

    def run(self, indices: Sequence[int]) -> dict[str, float]:
        return self._ask(" ".join(["go", *map(str, indices)]))

    def end(self) -> dict[str, float]:
        """Its memory in bytes: "peak_bytes" in all, "imported_bytes" after its imports."""
        return self._ask("end")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream:
                stream.close()

    def _ask(self, line: str) -> dict[str, float]:
        with contextlib.suppress(BrokenPipeError):  # then it gives no answer either
            print(line, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout  # a pipe
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"{self.contestant} ended:\n" + "".join(self.log.readlines()[-15:]))
        return json.loads(line)


def measure(contestants: Sequence[Contestant], pythons: dict[str, Path], shape: Shape, file: str, rounds: int) -> Any:
    """Returns, for each contestant that runs, seconds per round, last loss and peak memory."""
    indices = range(len(batches.load(file)))
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        workers = []
        for contestant in contestants:
            try:
                arguments = [f"--model={shape.name}", f"--batches={file}"]
                workers.append(Worker(contestant, pythons[contestant.environment], arguments))
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            stack.callback(workers[-1].close)
            print(f"{contestant} is warm", file=sys.stderr)
        for turn in range(rounds):
            for worker in workers:
                answer = worker.run(indices)
                result = results.setdefault(str(worker.contestant), {"seconds": []})
                result["seconds"].append(answer["seconds"])
                result["loss"] = answer["loss"]
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
        for worker in workers:
            results[str(worker.contestant)]["peak_bytes"] = int(worker.end()["peak_bytes"])
    return results


def table(shape: Shape, updates: list[list[batches.Part]], results: dict[str, dict[str, Any]]) -> str:
    """Returns the table of ratios of each contestant's rounds to the reference's, and to the products alone."""
    lengths = [batches.pair_lengths(update) for update in updates]
    flops = sum(update_flops(shape, rows.tolist()) for rows in lengths)
    product_flops = len(updates) * sum(matmul_rate.flops(product) for product in matmul_rate.update_products(shape))
    ceilings = {each.mode: results[str(each)]["seconds"] for each in PRODUCTS if str(each) in results}
    rows = {name: result for name, result in results.items() if name not in map(str, PRODUCTS)}
    reference = next((name for name in rows if name.startswith(WORKERS["opennmt"][1])), next(iter(rows)))
    lines = [
        f"### {shape}",
        "",
        f"{len(updates)} updates of {sum(each.sum() for each in lengths) / len(updates):,.0f} real tokens "
        f"({batches.fill(updates):.3f} of all positions) and {flops / len(updates) / 1e9:,.0f} GFLOP",
        "",
        f"| contestant | tokens/s over {reference} | memory over it "
        + "".join(f"| of the {mode} product rate " for mode in ceilings)
        + "| s per step | loss |",
        "|---" * (5 + len(ceilings)) + "|",
    ]
    for name, result in rows.items():
        cells = [name, spread(rows[reference]["seconds"], result["seconds"])]
        cells.append(f"{result['peak_bytes'] / rows[reference]['peak_bytes']:.2f}")
        cells += [spread(ceiling, result["seconds"], flops / product_flops) for ceiling in ceilings.values()]
        cells += [f"{statistics.median(result['seconds']) / len(updates):.2f}", f"{result['loss']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(numerators: Sequence[float], denominators: Sequence[float], factor: float = 1.0) -> str:
    """Returns median, minimum and maximum of the ratios of seconds in the same rounds."""
    ratios = [factor * a / b for a, b in zip(numerators, denominators, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def chosen(only: str, added: Sequence[str], pythons: dict[str, Path]) -> list[Contestant]:
    """Returns the contestants whose name matches and those added as WORKER:MODE, if their environment is installed."""
    found = [each for each in CONTESTANTS if re.search(only, str(each))]
    found += [Contestant(*text.split(":", 1)) for text in added]
    for each in found:
        if each.environment not in pythons:
            print(f"{each} is left out: python -m benchmarks.environments {each.environment}", file=sys.stderr)
    return [each for each in found + PRODUCTS if each.environment in pythons]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="base,small", help=f"of {', '.join(SHAPES)}; default: %(default)s")
    parser.add_argument("--only", default="", metavar="REGEX", help="contestants, as the table names them")
    parser.add_argument("--add", action="append", default=[], metavar="WORKER:MODE", help="one more; repeatable")
    parser.add_argument("--updates", type=int, default=6, help="in a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the batches")
    parser.add_argument("--cache", help="folder of the environments")
    parser.add_argument("--json", help="file for all measurements")
    arguments = parser.parse_args()
    models = arguments.models.split(",")
    if unknown := set(models) - set(SHAPES):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    if unknown := {text.partition(":")[0] for text in arguments.add} - set(WORKERS):
        parser.error(f"unknown worker {', '.join(sorted(unknown))}; known: {', '.join(WORKERS)}")
    pythons = interpreters(cache_folder(arguments.cache))
    contestants = chosen(arguments.only, arguments.add, pythons)
    record = {}
    for shape in (SHAPES[name] for name in models):
        updates = batches.make(shape, arguments.updates, arguments.seed)
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            batches.save(file.name, updates)
            record[shape.name] = measure(contestants, pythons, shape, file.name, arguments.rounds)
        print(table(shape, updates, record[shape.name]), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
