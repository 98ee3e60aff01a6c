"""Checkpoints of a run: saved whole, restored in full or not at all, averaged (section 6.1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.run import Run


class Checkpoints:
    """The checkpoints of one run in training. `state` maps names to what is saved: model, optimizer, position."""

    def __init__(self, run: Run, state: Mapping[str, Any], keep: int):
        self._checkpoint = tf.train.Checkpoint(**state)
        self._manager = tf.train.CheckpointManager(self._checkpoint, run.checkpoints, max_to_keep=keep)
        self._run = run
        self._num_variables = sum(len(_variables(part)) for part in state.values())

    def save(self, step: int) -> str:
        path = self._manager.save(checkpoint_number=step)
        if path is None:
            raise OSError(f"could not write a checkpoint to {self._run.checkpoints!r}")
        return str(path)

    def restore_newest(self) -> bool:
        """Restores the newest checkpoint, all of it; False where there is none yet."""
        if not paths(self._run):
            return False
        newest = paths(self._run)[-1]
        found = _count(newest)
        if found != self._num_variables:
            raise ValueError(f"{newest} holds {found} variables where this run has {self._num_variables}: damaged")
        status = self._checkpoint.restore(newest)
        status.assert_existing_objects_matched()
        return True


def paths(run: Run) -> list[str]:
    """The run's checkpoints, oldest first. Raises ValueError where there are files and no index of them."""
    state = tf.train.get_checkpoint_state(run.checkpoints)
    if state is not None:
        return [str(path) for path in state.all_model_checkpoint_paths]
    if os.path.isdir(run.checkpoints) and any(name.endswith(".index") for name in os.listdir(run.checkpoints)):
        raise ValueError(
            f"{run.checkpoints!r} holds checkpoints, but its file 'checkpoint', which lists them, is missing or "
            "damaged; restore that file from a copy, or move the folder away to start anew"
        )
    return []


def load_weights(run: Run, model: tf.Module, average: int = 1) -> list[str]:
    """Gives `model` the mean of the weights of the run's newest `average` checkpoints, and returns their paths.

    Fewer are averaged where there are fewer. Raises FileNotFoundError where there is none.
    """
    chosen = paths(run)[-average:]
    if not chosen:
        raise FileNotFoundError(f"{run.directory!r} has no checkpoint yet; train it first (t2t-trainer)")
    variables = _variables(model)
    sums = [np.zeros(variable.shape, np.float64) for variable in variables]
    for path in chosen:
        found = _count(path, "model/")
        if found != len(variables):
            raise ValueError(f"{path} holds {found} weights where this model has {len(variables)}")
        status = tf.train.Checkpoint(model=model).restore(path)
        status.expect_partial()
        status.assert_existing_objects_matched()
        for total, variable in zip(sums, variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, variables, strict=True):
        variable.assign((total / len(chosen)).astype(np.float32))
    return chosen


def _variables(part: Any) -> list[tf.Variable]:
    if isinstance(part, tf.Variable):
        return [part]
    return [
        getattr(weight, "value", weight) for weight in (part.weights if hasattr(part, "weights") else part.variables)
    ]


def _count(path: str, prefix: str = "") -> int:
    """How many variables a checkpoint holds, by their names: a layer that was left out of it would show here."""
    names = [name for name, _ in tf.train.list_variables(path)]
    ours = [n for n in names if n.startswith(prefix) and n != "save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    return sum(n.endswith("/.ATTRIBUTES/VARIABLE_VALUE") and "seed_generator" not in n for n in ours)
