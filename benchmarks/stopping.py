"""Scores every saved checkpoint of a run and compares the recommended one with the best.

    python -m benchmarks.stopping --output_dir=noise/replaced/runs/clean
    python -m benchmarks.stopping --output_dir=run --problem=translate_files --hparams=multi30k --patience=10 ...

Any other flags are those of `t2t-trainer`: with them, the run is first trained or continued, and keeps all checkpoints
(`--keep_best`). Each checkpoint is scored as `t2t-eval` does, with the run's beam search, and its score is added to
`scores.jsonl` of the run; after a kill, the same command continues with those that have none. A choice is compared with
the best of all, on the text that is scored: the checkpoint with the lowest perplexity of the validation text, that with
the highest BLEU of it if the run has that score (`--validate_metrics=bleu`), and the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from typing import Any

from benchmarks.noise import ALL


def score(run: Any, path: str, split: str) -> dict[str, Any]:
    """Scores one checkpoint: in a run directory with links to its files, whose list of checkpoints has no other."""
    import dataclasses

    from t2t_repro.evaluation.evaluator import evaluate
    from t2t_repro.training.checkpointing.checkpoint_list import files_of, write_list

    with tempfile.TemporaryDirectory() as folder:
        alone = dataclasses.replace(run, directory=folder)
        os.makedirs(alone.checkpoints)
        for name in ("run.json", "vocabulary.model"):
            shutil.copy(os.path.join(run.directory, name), folder)
        for name in files_of(run, os.path.basename(path)):
            os.symlink(os.path.abspath(os.path.join(run.checkpoints, name)), os.path.join(alone.checkpoints, name))
        write_list(alone, [path])
        return evaluate(folder, split)


def scored(run: Any, split: str) -> dict[int, dict[str, float]]:
    """Returns the scores of each checkpoint alone, by step, as far as scores.jsonl has them."""
    if not os.path.exists(run.scores):
        return {}
    with open(run.scores, encoding="utf-8") as file:
        scores = [each for each in map(json.loads, file) if each["split"] == split and len(each["checkpoints"]) == 1]
    scores = [each for each in scores if not each.get("shortlist")]
    return {each["step"]: each for each in scores if each["beam_size"] == run.hparams.beam_size}


def table(scores: dict[int, dict[str, float]], chosen: dict[str, int], metric: str) -> str:
    """Returns the score of every step, and how far each choice is from the best one."""
    best = max(scores, key=lambda step: scores[step][metric])
    lines = [f"| step | {metric} | chosen by |\n|---|---|---|"]
    for step in sorted(scores):
        why = ", ".join(["best"] * (step == best) + [name for name, each in chosen.items() if each == step])
        lines.append(f"| {step:,} | {scores[step][metric]:.2f} | {why} |")
    lines.append(f"\n| choice | step | {metric} | below the best |\n|---|---|---|---|")
    for name, step in chosen.items():
        own = scores[step][metric]
        lines.append(f"| {name} | {step:,} | {own:.2f} | {scores[best][metric] - own:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="run directory")
    parser.add_argument("--split", default="test", choices=("validation", "test"), help="default: %(default)s")
    parser.add_argument("--metric", default="bleu", help="bleu, chrf or f1 (default: %(default)s)")
    arguments, training = parser.parse_known_args()
    from t2t_repro.cli import jobs, launcher
    from t2t_repro.run import Run
    from t2t_repro.selection import NAMES, Selection

    if training:
        jobs.program("t2t_trainer", [*training, f"--output_dir={arguments.output_dir}", f"--keep_best={ALL}"])
    launcher.load_tensorflow()
    from t2t_repro.training.checkpointing.checkpoint_list import paths
    from t2t_repro.training.checkpointing.checkpoints import is_regular, step_of

    run = Run.open(arguments.output_dir)
    regular = {step_of(path): path for path in paths(run) if is_regular(run, step_of(path))}
    done = scored(run, arguments.split)
    for step, path in regular.items():
        if step not in done:
            run.keep_scores(done.setdefault(step, score(run, path, arguments.split)))
            print(f"{os.path.basename(path)}: {done[step][arguments.metric]:.2f}", flush=True)
    selection = run.training.selection or Selection()
    print(f"{len(regular)} checkpoints; {selection.reason or 'all steps were trained'}\n")
    chosen = {
        f"validation {NAMES[by]}": best
        for by in selection.scores
        for best in Selection(by, selection.scores).best(1, regular)
    }
    print(table({step: done[step] for step in regular}, chosen | {"the last": max(regular)}, arguments.metric))


if __name__ == "__main__":
    main()
