"""Checkpoint averaging: writes a run whose checkpoint is the mean of the newest ones of another run (section 6.1)."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import write_json
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.selection import Selection
from t2t_repro.training.checkpointing.checkpoint_list import AVERAGED, Averaging, step_of, to_average
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.checkpointing.weights import load_weights
from t2t_repro.training.precision import POLICIES


def average(
    output_dir: str,
    average_dir: str,
    checkpoints: int | None = None,
    best: bool = False,
    moving_average: bool = False,
) -> list[str]:
    """Writes a run to `average_dir` whose one checkpoint is the mean of the newest `checkpoints` of `output_dir`.

    `checkpoints` defaults to `average_checkpoints` of the run. With `best`, those with the best validation scores are
    averaged. With `moving_average`, the weights of a checkpoint are the moving average that it holds. The new run is
    decoded and scored like any other. It has no optimizer state: it cannot continue, but another run can start from it.
    Returns the paths of the averaged checkpoints. Raises ValueError if the run has fewer, if they are of different
    runs or hold no moving average, or if `average_dir` is not empty.
    """
    run = Run.open(output_dir)
    last = run.hparams.average_checkpoints if checkpoints is None else checkpoints
    found = len(to_average(run, 10**9, best))
    if not 1 <= last <= found:
        scored = " with a validation score" * best
        raise ValueError(
            f"{output_dir!r} has {found} checkpoints{scored}, and {last} are to be averaged; ask for 1 to {found}"
        )
    path = os.path.realpath(average_dir)
    if os.path.ismount(path):
        raise ValueError(f"average_dir: {average_dir!r} is the root of a file system; give a new directory in it")
    if os.path.exists(average_dir) and (not os.path.isdir(average_dir) or os.listdir(average_dir)):
        raise ValueError(f"average_dir: {average_dir!r} exists and is not empty; give a new directory")
    model = Transformer(Vocabulary(run.vocabulary).size, run.hparams, dtype=POLICIES[run.precision])
    chosen = load_weights(run, model, Averaging(last, best, moving_average))
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        new = dataclasses.replace(run, directory=temporary).start(run.vocabulary)
        step = step_of(chosen[-1])
        new.note(dataclasses.replace(run.training, selection=Selection(stopped_step=step)))  # the mean has no score
        Checkpoints(new, {"model": model}, keep=1).save(step)
        names = [os.path.basename(path) for path in chosen]
        record: dict[str, Any] = {"run": os.path.abspath(output_dir), "checkpoints": names}
        record |= {"moving_average": True} if moving_average else {}
        write_json(os.path.join(temporary, AVERAGED), record)
        if os.path.isdir(path):  # it may be the working directory of a shell, so it stays
            for name in sorted(os.listdir(temporary), key="run.json".__eq__):  # run.json last: then it is a run
                os.rename(os.path.join(temporary, name), os.path.join(path, name))
        else:
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return chosen
