"""Time until a program or `t2t_repro.load` has translated one line, relative to `import tensorflow` alone.

    python -m benchmarks.startup
    python -m benchmarks.startup --models=base --runs=my_run --only=t2t-decoder --rounds=15

Measures complete processes, from start to exit, alternately: one that imports TensorFlow, and three for each run.
`t2t-decoder` loads the graph that the first round kept, or traces it ("traced"), as at the first start; the third calls
`t2t_repro.load`. The runs are those of `--runs`, by default that of the tests, and one with random weights for each of
`--models`. A first round, which does not count, compiles the modules even if PYTHONDONTWRITEBYTECODE is set: those of
an installed package are compiled. Ratios are medians over rounds, with the extremes after them, of the time and of the
processor's time (user and system), which varies less on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shapes import SHAPES
from benchmarks.train import ROOT, spread
from t2t_repro.system import processor

LINE = "12 years and 3 months, 4 April 2017\n"
ALONE = "import tensorflow"
FOLDER = "T2T_REPRO_CACHE"  # of the graphs that a process keeps
LOADED = "import sys, t2t_repro; print(t2t_repro.load(sys.argv[1])([sys.stdin.readline()]))"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FIXTURE = ROOT / "tests" / "fixtures" / "run"

Times = dict[str, dict[str, list[float]]]  # by process: "seconds" and "cpu_seconds" of each round


def processes(runs: dict[str, str]) -> dict[str, list[str]]:
    """Returns the measured commands by name: `import tensorflow`, then three for each run."""
    found = {ALONE: [sys.executable, "-c", ALONE]}
    for name, path in runs.items():
        decoder = [sys.executable, "-m", "t2t_repro.bin.t2t_decoder", f"--output_dir={path}"]
        found[f"t2t-decoder, {name}"] = decoder
        found[f"t2t-decoder, {name}, traced"] = ["env", f"{FOLDER}=", *decoder]
        found[f"t2t_repro.load, {name}"] = [sys.executable, "-c", LOADED, path]
    return found


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Runs a process on `LINE`. Returns its seconds and its processor's seconds. Raises RuntimeError if it fails."""
    with tempfile.TemporaryFile("w+") as line, tempfile.TemporaryFile("w+") as log:
        line.write(LINE)
        line.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=line, stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT, env=ENVIRONMENT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{log.read()[-2000:]}")
    return seconds, usage.ru_utime + usage.ru_stime


def measure(commands: dict[str, list[str]], rounds: int) -> Times:
    """Returns the times of each command. The first run of each, which fills the disk cache, does not count."""
    found: Times = {name: {"seconds": [], "cpu_seconds": []} for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            seconds, cpu_seconds = timed(command)
            if turn:
                found[name]["seconds"].append(seconds)
                found[name]["cpu_seconds"].append(cpu_seconds)
        print(f"round {turn} of {rounds}", file=sys.stderr)
    return found


def table(times: Times) -> str:
    """Returns the table of each process's times relative to those of `import tensorflow`."""
    lines = [f"| process | time over {ALONE} | processor's time over it | s | processor's s |", "|---|---|---|---|---|"]
    for name, found in times.items():
        ratios = [spread(found[kind], times[ALONE][kind]) for kind in ("seconds", "cpu_seconds")]
        medians = [f"{statistics.median(found[kind]):.2f}" for kind in ("seconds", "cpu_seconds")]
        lines.append(f"| {' | '.join([name, *ratios, *medians])} |")
    return "\n".join(lines) + "\n"


def random_run(model: str, folder: str) -> str:
    """Writes a run of `model` with random weights, in the precision that training would choose. Returns its path."""
    fast = processor.has_bfloat16() and not processor.slow_bfloat16()
    path, precision = os.path.join(folder, model), "bfloat16" if fast else "float32"
    os.mkdir(path)
    command = [sys.executable, "-m", "benchmarks.workers.random_run", f"--model={model}", f"--weights={path}"]
    subprocess.run([*command, f"--mode={precision}"], cwd=ROOT, check=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small,base", help=f"of {', '.join(SHAPES)}; default: %(default)s")
    parser.add_argument("--runs", default=str(FIXTURE), metavar="DIR,...", help="run directories; default: %(default)s")
    parser.add_argument("--only", default="", metavar="REGEX", help="processes, as the table names them")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--json", help="file for all measurements")
    arguments = parser.parse_args()
    models = list(filter(None, arguments.models.split(",")))
    if unknown := set(models) - set(SHAPES):
        parser.error(f"unknown model {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    runs = {os.path.relpath(path): os.path.abspath(path) for path in filter(None, arguments.runs.split(","))}
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT[FOLDER] = os.path.join(folder, "graphs")
        runs |= {model: random_run(model, folder) for model in models}
        every = processes(runs)
        chosen = {name: command for name, command in every.items() if name == ALONE or re.search(arguments.only, name)}
        times = measure(chosen, arguments.rounds)
    print(f"{processor.usable_cores()} cores of {processor.name()}, {arguments.rounds} rounds\n\n{table(times)}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(times, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
