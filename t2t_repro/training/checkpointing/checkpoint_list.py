"""The list of a run's checkpoints, RUN/checkpoints/checkpoint, in TensorFlow's format, and which of them to average."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from t2t_repro.io import atomic_write, read_json
from t2t_repro.run import Run
from t2t_repro.selection import Selection

AVERAGED = "averaged.json"  # in a run that `averaging.average` wrote: the source run and its checkpoints
_LISTED = re.compile(r'(all_)?model_checkpoint_paths?: "(ckpt-\d+)"')  # a line of the list
_FILE = re.compile(r"(ckpt-\d+)\.(?:index|data-\d{5}-of-\d{5})")  # of a checkpoint


class Averaging(NamedTuple):
    """Which weights of a run are loaded: the mean of those of several checkpoints (see `to_average`)."""

    checkpoints: int = 1  # at most
    best: bool = False  # those with the best validation scores, instead of the last ones
    moving_average: bool = False  # the moving averages in them


def paths(run: Run) -> list[str]:
    """Returns the run's checkpoints, oldest first; none while the first one is written.

    Raises ValueError if there are files without a list.
    """
    try:
        with open(run.checkpoint_list, encoding="utf-8") as file:
            lines = [_LISTED.fullmatch(line) for line in file.read().splitlines() if "timestamp" not in line]
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line[2] for line in lines if line and line[1]]
    newest = [line[2] for line in lines if line and not line[1]]
    if all(lines) and names and newest == names[-1:]:  # else it is truncated, or another file
        return [os.path.join(run.checkpoints, name) for name in names]
    files = files_of(run)
    is_first = len({name.partition(".")[0] for name in files}) == 1 and run.training.step is None
    if files and not (is_first and not os.path.exists(run.checkpoint_list)):
        raise ValueError(
            f"{run.checkpoints!r} holds checkpoints, but its file 'checkpoint', which lists them, is missing or "
            "damaged; restore that file from a copy, or move the folder away to start over"
        )
    return []


def to_average(run: Run, number: int, best: bool = False) -> list[str]:
    """Returns at most `number` of the newest regular checkpoints, oldest first; with `best`, of the best ones.

    Regular checkpoints are those of every `checkpoint_steps` steps and of the last step. Checkpoints written because of
    elapsed time or an interruption are not, and neither is the one at step 0 of a run that starts from another run. If
    `number` is 1, or there is no regular checkpoint, returns the newest checkpoint of any kind.

    The best ones have the best validation scores of those that still exist. If `number` is 1, they are those that the
    trainer recommended at the end, whose mean may be better. Raises ValueError if no checkpoint has a score.
    """
    existing = paths(run)
    if best:
        selection, found = run.training.selection or Selection(), {step_of(path) for path in existing}
        recommended = list(selection.recommended_steps or ()) if number == 1 else []
        steps = recommended if recommended and found.issuperset(recommended) else selection.best(number, found)
        if existing and not steps:
            raise ValueError(
                f"no checkpoint of {run.directory!r} has a validation score; use the last ones, without average_best"
            )
        return [path for path in existing if step_of(path) in steps]
    return existing[-1:] if number == 1 else (regular(run, existing) or existing[-1:])[-number:]


def is_regular(run: Run, step: int) -> bool:
    """Returns whether the checkpoint of `step` is a regular one (see `to_average`)."""
    last = (run.hparams.train_steps, run.last_step)
    return step > 0 and (step % run.hparams.checkpoint_steps == 0 or step in last)


def step_of(path: str) -> int:
    """Returns the step of a checkpoint."""
    return int(path.rpartition("-")[2])


def regular(run: Run, existing: list[str]) -> list[str]:
    """Returns the regular checkpoints of `existing`."""
    return [path for path in existing if is_regular(run, step_of(path))]


def averaged(run: Run) -> list[str]:
    """Returns the names of the checkpoints whose mean the run holds; none if it was trained.

    They are `ckpt-8`, or `ckpt-8 (moving average)` if it is that of their moving averages.
    """
    path = os.path.join(run.directory, AVERAGED)
    record = read_json(path) if os.path.exists(path) else {"checkpoints": []}
    return [f"{name}{' (moving average)' * record.get('moving_average', False)}" for name in record["checkpoints"]]


def files_of(run: Run, name: str = "") -> list[str]:
    """Returns the file names of the checkpoint `name`, or of all checkpoints. They need not be in the list."""
    if not os.path.isdir(run.checkpoints):
        return []
    matches = filter(None, map(_FILE.fullmatch, sorted(os.listdir(run.checkpoints))))
    return [match[0] for match in matches if name in ("", match[1])]


def write_list(run: Run, complete: list[str]) -> None:
    """Writes the list of the complete checkpoints, oldest first, atomically."""
    names = [os.path.basename(path) for path in complete]
    lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
    with atomic_write(run.checkpoint_list) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
