"""Decoding speed (tokens per second) and memory, relative to CTranslate2, OpenNMT-tf, Marian and JoeyNMT.

    pip install ctranslate2
    python -m benchmarks.environments opennmt marian joeynmt     # once
    python -m benchmarks.decode

Every contestant runs in a separate process, and all decode the same sources to translations of the same length
(`benchmarks.decode_workload`): warmed up, then alternating, one at a time while the others wait. CTranslate2 and Marian
have our weights. They and we share the sentences among the cores, a batch for each; "on all cores", one batch has them
all, as in OpenNMT-tf and JoeyNMT. With "shortlist", a contestant decodes among 4,096 of the subwords, which are the
same for all (`t2t-shortlist`). A ratio is the median over rounds, with the extremes after it. Memory is the peak over
all cases beyond the imports.

    python -m benchmarks.decode --only='ours bf|CTranslate2' --cases='one|greedy' --rounds=9
    python -m benchmarks.decode --only='shortlist|int8$' --rounds=9
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decode_workload import CASES
from benchmarks.environments import cache_folder, interpreters
from benchmarks.shapes import SHAPES
from benchmarks.train import ROOT, Worker, spread


@dataclass(frozen=True)
class Contestant:
    title: str
    worker: str  # module of `benchmarks.workers`
    mode: str
    environment: str = ""  # "" is the one that runs this module
    decodes_text: bool = True

    def __str__(self) -> str:
        return f"{self.title} {self.mode}"


MODES = ("int8", "bfloat16", "float32")
HOW = "", ", on all cores", ", shortlist"
OURS = [Contestant("ours", "decode_ours", f"{mode}{how}") for how in HOW for mode in MODES]
PEERS = [
    *(
        Contestant("CTranslate2", "decode_ctranslate2", mode)
        for mode in (f"{mode}{how}" for how in HOW for mode in ("float32", "int8"))
    ),
    Contestant("OpenNMT-tf", "decode_opennmt", "float32", "opennmt", decodes_text=False),
    *(Contestant("Marian", "decode_marian", mode, "marian", decodes_text=False) for mode in ("float32", "int8")),
    Contestant("JoeyNMT", "decode_joeynmt", "bfloat16", "joeynmt", decodes_text=False),
]

Results = dict[str, dict[str, Any]]  # by contestant: "seconds" of each round by case, and "memory" in bytes


def measure(
    contestants: Sequence[Contestant],
    pythons: dict[str, Path],
    arguments: Sequence[str],
    cases: Sequence[int],
    rounds: int,
) -> Results:
    """Measures each contestant that runs."""
    results: Results = {}
    with contextlib.ExitStack() as stack:
        workers = []
        for contestant in contestants:
            try:
                workers.append(Worker(contestant, pythons[contestant.environment], arguments))
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            stack.callback(workers[-1].close)
            results[str(contestant)] = {"seconds": {CASES[case].name: [] for case in cases}}
            print(f"{contestant} is warm", file=sys.stderr)
        for case in cases:
            for turn in range(rounds):
                for worker in workers:
                    if CASES[case].is_text and not worker.contestant.decodes_text:
                        continue
                    seconds = worker.run([case] * CASES[case].repeats)["seconds"]
                    results[str(worker.contestant)]["seconds"][CASES[case].name].append(seconds)
                print(f"{CASES[case].name}: round {turn + 1} of {rounds}", file=sys.stderr)
        for worker in workers:
            memory = worker.end()
            results[str(worker.contestant)]["memory"] = int(memory["peak_bytes"] - memory["imported_bytes"])
    return results


def table(results: Results) -> str:
    """Returns our tokens per second and memory relative to each peer's, by case."""
    ours = [str(each) for each in OURS if str(each) in results]
    peers = [str(each) for each in PEERS if str(each) in results]
    lines = [
        "| case | contestant " + "".join(f"| tokens/s over {peer} " for peer in peers) + "|",
        "|---" * (2 + len(peers)) + "|",
    ]
    for case in next(iter(results.values()))["seconds"]:
        for name in ours:
            seconds = results[name]["seconds"][case]
            rounds = [results[peer]["seconds"][case] for peer in peers]  # none if the peer has no such case
            cells = [spread(each, seconds) if each else "" for each in rounds]
            lines.append(f"| {' | '.join([case, name, *cells])} |")
    for name in ours:
        cells = [f"{results[name]['memory'] / results[peer]['memory']:.2f}" for peer in peers]
        lines.append(f"| {' | '.join(['memory beyond imports', name, *cells])} |")
    return "\n".join(lines) + "\n"


def runnable(only: str, pythons: dict[str, Path]) -> list[Contestant]:
    """Returns the contestants whose name matches and whose environment is installed."""
    found = [each for each in OURS + PEERS if re.search(only, str(each))]
    for each in found:
        if each.environment not in pythons:
            print(f"{each} is left out: python -m benchmarks.environments {each.environment}", file=sys.stderr)
    return [each for each in found if each.environment in pythons]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", choices=SHAPES)
    parser.add_argument("--only", default="", metavar="REGEX", help="contestants, as the table names them")
    parser.add_argument("--cases", default="", metavar="REGEX", help="as the table names them")
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--cache", help="folder of the environments")
    parser.add_argument("--json", help="file for all measurements")
    arguments = parser.parse_args()
    cases = [number for number, case in enumerate(CASES) if re.search(arguments.cases, case.name)]
    if not cases:
        parser.error(f"no case matches {arguments.cases!r}; there are: {', '.join(case.name for case in CASES)}")
    pythons = interpreters(cache_folder(arguments.cache))
    contestants = runnable(arguments.only, pythons)
    with tempfile.TemporaryDirectory() as weights:
        given = [f"--model={arguments.model}", f"--weights={weights}"]
        for peer in ("ctranslate2", "marian"):
            if any(each.worker == f"decode_{peer}" for each in contestants):
                command = [sys.executable, "-m", "benchmarks.workers.decode_weights", *given, f"--mode={peer}"]
                quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
                subprocess.run(command, cwd=ROOT, env=os.environ | quiet, check=True)
        results = measure(contestants, pythons, given, cases, arguments.rounds)
    print(f"### {SHAPES[arguments.model]}\n\n{table(results)}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
