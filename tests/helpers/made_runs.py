"""Run directories with artificial weights, vocabulary and scores."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t2t_repro import scale
from t2t_repro.problem import Problem
from t2t_repro.run import Run, TrainingData, TrainingRecord

WMT = Problem(name="translate_ende_wmt14", description="", target_language="de")
FILES = Problem(name="translate_files", description="", vocab_size=6_000)


def make_run(
    parent: Path,
    name: str,
    problem: Problem = FILES,
    step: int | None = None,
    pairs: int = 29_000,
    train: str = "train.en",
    scores: Sequence[tuple[str, int, dict[str, Any]]] = (),
    folder: str = "runs",
    seed: int = 1,
    overrides: Sequence[str] = (),
    **more: Any,
) -> Run:
    """Makes a run of the hyperparameter set `name`, such as `a_h1@tiny`, in `parent/folder`.

    `scores` are (split, averaged checkpoints, values), `overrides` hyperparameters such as `dropout=0.2`.
    """
    vocabulary = parent / "vocabulary"
    vocabulary.write_bytes(b"words")
    hparams = scale.scaled(name).override(list(overrides))
    digest = hashlib.sha256(b"words").hexdigest()
    directory = str(parent / folder / f"{name}-{seed}")
    run = Run(directory, problem, hparams, "DATA", seed, "bfloat16", digest).start(str(vocabulary))
    data = TrainingData(pairs=pairs, vocab_size=37_000, train=train)
    step = hparams.train_steps if step is None else step
    spent = {"target_tokens": 1e6, "flops": 2e15, "seconds": 60.0, "device": "2 cores of a CPU", "replicas": 1}
    run.note(TrainingRecord(data=data, step=step, **(spent | more)))
    for split, checkpoints, values in scores:
        names = [f"ckpt-{step - n}" for n in reversed(range(checkpoints))]
        run.keep_scores({"split": split, "checkpoints": names, "step": step, "bleu_interval": 0.5} | values)
    return run
