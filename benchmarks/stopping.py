"""Scores every saved checkpoint of a run and compares the recommended one with the best.

    python -m benchmarks.stopping --output_dir=noise/replaced/runs/clean
    python -m benchmarks.stopping --output_dir=run --problem=translate_files --hparams=multi30k --patience=10 ...

Any other flags are those of `t2t-trainer`: with them, the run is first trained or continued, and keeps all checkpoints
(`--keep_best`). Each checkpoint is scored as `t2t-eval` does, with the run's beam search, and its score is added to
`scores.jsonl` of the run; after a kill, the same command continues with those that have none. A choice is compared with
the best of all, on the text that is scored: the checkpoint with the lowest perplexity of the validation text, that with
the highest BLEU of it if the run has that score (`--validate_metrics=bleu`), the mean of the best ones by each, what
the trainer recommends if it keeps as many (`--mean`), and the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from typing import Any

from benchmarks.noise import ALL

Steps = tuple[int, ...]  # of the checkpoints whose mean is scored, ascending


def score(run: Any, steps: Steps, split: str, beam_size: int | None = None) -> dict[str, Any]:
    """Scores the mean of checkpoints: in a run directory with links to its files, whose list has no others."""
    import dataclasses

    from t2t_repro.evaluation.evaluator import evaluate
    from t2t_repro.training.checkpointing.checkpoint_list import files_of, write_list

    with tempfile.TemporaryDirectory() as folder:
        alone = dataclasses.replace(run, directory=folder)
        os.makedirs(alone.checkpoints)
        for name in ("run.json", "vocabulary.model"):
            shutil.copy(os.path.join(run.directory, name), folder)
        for step in steps:
            for name in files_of(run, f"ckpt-{step}"):
                os.symlink(os.path.abspath(os.path.join(run.checkpoints, name)), os.path.join(alone.checkpoints, name))
        write_list(alone, [os.path.join(alone.checkpoints, f"ckpt-{step}") for step in steps])
        ema = run.hparams.ema_decay > 0
        return evaluate(folder, split, average_checkpoints=len(steps), beam_size=beam_size, moving_average=ema)


def scored(run: Any, split: str) -> dict[Steps, dict[str, float]]:
    """Returns the scores that scores.jsonl has, by the steps of the checkpoints."""
    if not os.path.exists(run.scores):
        return {}
    with open(run.scores, encoding="utf-8") as file:
        scores = [each for each in map(json.loads, file) if each["split"] == split and not each.get("shortlist")]
    scores = [each for each in scores if each.get("moving_average", False) == (run.hparams.ema_decay > 0)]
    return {
        tuple(sorted(int(name.rpartition("-")[2]) for name in each["checkpoints"])): each
        for each in scores
        if each["beam_size"] == run.hparams.beam_size
    }


def table(scores: dict[Steps, dict[str, float]], chosen: dict[str, Steps], metric: str) -> str:
    """Returns the score of every checkpoint, and how far each choice is below the best one. A mean may be above it."""
    alone = sorted(steps for steps in scores if len(steps) == 1)
    best = max(alone, key=lambda steps: scores[steps][metric])
    lines = [f"| step | {metric} | chosen by |\n|---|---|---|"]
    for each in alone:
        why = ", ".join(["best"] * (each == best) + [name for name, steps in chosen.items() if steps == each])
        lines.append(f"| {each[0]:,} | {scores[each][metric]:.2f} | {why} |")
    lines.append(f"\n| choice | steps | {metric} | below the best |\n|---|---|---|---|")
    for name, steps in chosen.items():
        own = scores[steps][metric]
        shown = ", ".join(f"{step:,}" for step in steps)
        lines.append(f"| {name} | {shown} | {own:.2f} | {scores[best][metric] - own:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="run directory")
    parser.add_argument("--split", default="test", choices=("validation", "test"), help="default: %(default)s")
    parser.add_argument("--metric", default="bleu", help="bleu, chrf or f1 (default: %(default)s)")
    parser.add_argument("--mean", type=int, default=5, help="best checkpoints to average (default: %(default)s)")
    arguments, training = parser.parse_known_args()
    from t2t_repro.cli import jobs, launcher
    from t2t_repro.run import Run
    from t2t_repro.selection import NAMES, Mean, Selection

    if training:
        try:
            jobs.program("t2t_trainer", [*training, f"--output_dir={arguments.output_dir}", f"--keep_best={ALL}"])
        except launcher.Stopped as stopped:
            sys.exit(str(stopped))
    launcher.load_tensorflow()
    from t2t_repro.training.checkpointing.checkpoint_list import is_regular, paths, step_of

    run = Run.open(arguments.output_dir)
    steps = [step_of(path) for path in paths(run) if is_regular(run, step_of(path))]
    selection = run.training.selection or Selection()
    chosen: dict[str, Steps] = {}
    for by in selection.scores:
        best = Selection(by, selection.scores).best(max(arguments.mean, 1), steps)
        chosen[f"validation {NAMES[by]}"] = (best[0],)
        if arguments.mean > 1:
            chosen[f"validation {NAMES[by]}, mean of {len(best)}"] = tuple(sorted(best))
            means = []
            for name, those in (("best", sorted(best)), ("last", steps[-run.hparams.average_checkpoints :])):
                found: float = score(run, tuple(those), "validation", beam_size=1)[by]
                means.append(Mean(f"{name} {len(those)}", tuple(those), found))
            recommended, why = Selection(by, selection.scores).recommendation(best, means)
            chosen[f"recommended by validation {NAMES[by]}"] = tuple(recommended)
            print(f"recommended: {why}", flush=True)
    chosen["the last"] = (max(steps),)
    done = scored(run, arguments.split)
    wanted = dict.fromkeys([*((step,) for step in steps), *chosen.values()])
    for each in wanted:
        if each not in done:
            run.keep_scores(done.setdefault(each, score(run, each, arguments.split)))
            print(f"{', '.join(f'ckpt-{step}' for step in each)}: {done[each][arguments.metric]:.2f}", flush=True)
    print(f"{len(steps)} checkpoints; {selection.reason or 'all steps were trained'}\n")
    print(table({each: done[each] for each in wanted}, chosen, arguments.metric))


if __name__ == "__main__":
    main()
