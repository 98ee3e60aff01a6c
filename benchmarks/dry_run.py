"""Accuracy of `t2t-trainer --dry_run`: estimated time and memory over measured time and memory.

    python -m benchmarks.dry_run --problem=translate_ende_cldr --hparams=tiny --data_dir=DATA --steps=200

The data must be prepared (t2t-datagen). The dry run and training run in separate processes, one after the other,
--rounds times; nothing else may run at the same time. The time is that of the steps and of building their graph,
without the final evaluation. The memory is the peak of the process, or of the fullest GPU, from its start to the end of
training, including checkpoint, evaluation and samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from typing import Any

KINDS = ("estimate", "training")


def measure(arguments: argparse.Namespace, output_dir: str) -> dict[str, float]:
    """Runs one of KINDS in this process. Returns the seconds of the steps, and bytes."""
    from t2t_repro.system.heap import one_heap

    one_heap()

    import t2t_repro
    from t2t_repro.config import TrainingOptions
    from t2t_repro.evaluation.validation_preview import ValidationPreview
    from t2t_repro.preparation.pipeline import prepare
    from t2t_repro.training import hardware
    from t2t_repro.training.dry_run.estimate import dry_run
    from t2t_repro.training.trainer import train

    problem = t2t_repro.get_problem(arguments.problem)
    if arguments.vocab_size:
        problem = dataclasses.replace(problem, vocab_size=arguments.vocab_size)
    hparams = t2t_repro.get_hparams(arguments.hparams).override(arguments.override)
    hparams = dataclasses.replace(hparams, train_steps=arguments.steps)
    where = (problem, hparams, arguments.data_dir, output_dir)
    options = TrainingOptions(precision=arguments.precision)
    if arguments.kind == "estimate":
        estimate = dry_run(*where, options, preview=ValidationPreview, show=_say)
        updating = estimate.startup_seconds + estimate.steps * estimate.seconds_per_step
        return {"seconds": updating, "peak_bytes": estimate.peak_bytes}
    # only the last checkpoint: time between checkpoints would not be training time
    options = dataclasses.replace(options, checkpoint_minutes=1e6)
    run = train(*where, options, prepare=prepare, preview=ValidationPreview, report=_say)
    return {"seconds": run.training.seconds or math.nan, "peak_bytes": hardware.peak_bytes() or math.nan}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def in_a_process(kind: str, given: list[str]) -> dict[str, float]:
    """Runs `measure` in a separate process, with an empty folder for its run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.dry_run", *given, f"--kind={kind}", f"--output_dir={folder}/run"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])


def row(estimate: dict[str, float], training: dict[str, float]) -> str:
    """Returns `| 1.03 | 0.98 | 61.0 s | 1.21 GiB |`: estimated over measured, and measured values."""
    ratios = [estimate[name] / training[name] for name in ("seconds", "peak_bytes")]
    taken = f"{training['seconds']:.1f} s | {training['peak_bytes'] / 2**30:.2f} GiB"
    return f"| {ratios[0]:.2f} | {ratios[1]:.2f} | {taken} |"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("problem", "hparams", "data_dir"):
        made.add_argument(f"--{name}", required=True)
    made.add_argument("--vocab_size", type=int, help="as the data was prepared with, where not the problem's")
    made.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    made.add_argument("--precision", default="auto")
    made.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    made.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    made.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    made.add_argument("--output_dir", help=argparse.SUPPRESS)
    return made


def main() -> None:
    arguments = parser().parse_args()
    if arguments.kind:
        print(json.dumps(measure(arguments, arguments.output_dir)))
        return
    print("| time: estimated over measured | memory: the same | time | memory |\n|---|---|---|---|")
    for _ in range(arguments.rounds):
        found: dict[str, Any] = {kind: in_a_process(kind, sys.argv[1:]) for kind in KINDS}
        print(row(found["estimate"], found["training"]), flush=True)


if __name__ == "__main__":
    main()
