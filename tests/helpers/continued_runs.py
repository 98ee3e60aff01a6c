"""Runs that are stopped at a step and continued."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from helpers.tiny_model import values

from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import paths, write_list


def stopped_at(run: Run, step: int, folder: Path) -> Run:
    """Returns a copy of a run in `folder`, as it was when the checkpoint of `step` was its newest one."""
    copy = replace(run, directory=str(shutil.copytree(run.directory, folder)))
    write_list(copy, [path for path in paths(copy) if int(path.rpartition("-")[2]) <= step])
    return copy


def must_be_bitwise_equal(found: Run, expected: Run, step: int) -> None:
    """Asserts that both checkpoints of `step` hold the same bits, except for the seconds of training."""
    ours, theirs = values(found, step), values(expected, step)
    assert ours.keys() == theirs.keys()
    for name in (name for name in ours if not name.startswith("spent")):
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def must_continue_bitwise(train: Callable[..., Run], directory: Path, steps: int, stops: Iterable[int]) -> Run:
    """Asserts that a run of several epochs is the same, to the bit, if it is stopped at each of `stops`.

    Args:
      train: `train(directory, report)` trains to `steps` steps, with a checkpoint of each, or continues.
      directory: a new folder for the run; copies are made beside it.
      steps: the number of steps; the last one must be in the second epoch or later.
      stops: steps after which a copy is continued.

    Returns the run that was not stopped.
    """
    whole = train(str(directory), lambda line: None)
    assert [int(path.rpartition("-")[2]) for path in paths(whole)] == [*range(1, steps + 1)]
    (epoch,) = (value[0] for name, value in values(whole, steps).items() if name.startswith("position"))
    assert epoch >= 1
    for stop in stops:
        copy, said = stopped_at(whole, stop, directory.with_name(f"stopped{stop}")), []
        run = train(copy.directory, said.append)
        assert f"continuing {copy.directory} at step {stop}" in said
        must_be_bitwise_equal(run, whole, steps)
    return whole
