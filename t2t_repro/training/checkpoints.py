"""Checkpoints of a run: saved whole, restored in full or not at all, averaged (section 6.1)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.run import Run

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the name of every variable in a checkpoint


class Checkpoints:
    """The checkpoints of one run in training. `state` maps names to what is saved: model, optimizer, position."""

    def __init__(self, run: Run, state: Mapping[str, Any], keep: int):
        paths(run)  # raises where their list is damaged
        self._checkpoint = tf.train.Checkpoint(**state)
        # in every checkpoint of a run, so that none of another run is taken for its own; carried on from the first one,
        # as a later version may count other fields to a run
        self._fingerprint = tf.Variable(run.fingerprint, dtype=tf.int64, trainable=False)
        saved = tf.train.Checkpoint(**state, run=self._fingerprint)
        self._manager = tf.train.CheckpointManager(saved, run.checkpoints, max_to_keep=keep)
        self._run = run
        self._num_variables = sum(len(variables_of(part)) for part in state.values())

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
            raise ValueError(
                f"{newest} holds {found} variables where this run has {self._num_variables}: damaged, or the work of "
                "t2t-avg-checkpoints, which cannot be trained on"
            )
        status = self._checkpoint.restore(newest)
        status.expect_partial()  # the run's fingerprint, which is carried on below
        status.assert_existing_objects_matched()
        self._fingerprint.assign(_fingerprint(newest) or self._fingerprint)
        return True


def paths(run: Run) -> list[str]:
    """The run's checkpoints, oldest first. Raises ValueError where there are files and no index of them."""
    try:
        state = tf.train.get_checkpoint_state(run.checkpoints)
    except ValueError:  # an empty list
        state = None
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

    Fewer are averaged where there are fewer. Raises FileNotFoundError where there is none, and ValueError where one has
    weights of other shapes than `model`, or they are of different runs.
    """
    chosen = paths(run)[-average:]
    if not chosen:
        raise FileNotFoundError(f"{run.directory!r} has no checkpoint yet; train it first (t2t-trainer)")
    variables = variables_of(model)
    for path in chosen:
        _must_fit(path, variables)
    if len({_fingerprint(path) for path in chosen} - {None}) > 1:
        names = ", ".join(map(os.path.basename, chosen))
        raise ValueError(f"{names} in {run.checkpoints!r} are checkpoints of different runs; keep those of one")
    sums = [np.zeros(variable.shape, np.float64) for variable in variables]
    for path in chosen:
        status = tf.train.Checkpoint(model=model).restore(path)
        status.expect_partial()
        status.assert_existing_objects_matched()
        for total, variable in zip(sums, variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, variables, strict=True):
        variable.assign((total / len(chosen)).astype(np.float32))
    return chosen


def variables_of(part: Any) -> list[tf.Variable]:
    """Of what is saved under one name: a model, an optimizer, or a variable itself."""
    if isinstance(part, tf.Variable):
        return [part]
    found = part.weights if hasattr(part, "weights") else part.variables
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in found]


def _must_fit(path: str, variables: list[tf.Variable]) -> None:
    """Raises ValueError where a checkpoint's weights are not as many as these, or not of their shapes."""
    there = Counter(tuple(shape) for shape in _shapes(path, "model/"))
    here = Counter(tuple(variable.shape) for variable in variables)
    if there.total() != here.total():
        raise ValueError(f"{path} holds {there.total()} weights where this model has {here.total()}")
    if there != here:
        shapes = " and ".join(f"{list(next(iter(some)))}" for some in (there - here, here - there))
        raise ValueError(f"{path} does not fit this run's model: the shapes of weights differ, such as {shapes}")


def _fingerprint(path: str) -> int | None:
    """Of the run that wrote a checkpoint; None where that was before they had one."""
    reader = tf.train.load_checkpoint(path)
    return int(reader.get_tensor(f"run{_VALUE}")) if reader.has_tensor(f"run{_VALUE}") else None


def _count(path: str, prefix: str = "") -> int:
    return len(_shapes(path, prefix))


def _shapes(path: str, prefix: str = "") -> list[list[int]]:
    """Of the variables that a checkpoint holds, by their names: a layer that was left out of it would show here."""
    return [
        shape
        for name, shape in tf.train.list_variables(path)
        if name.startswith(prefix)
        and name.endswith(_VALUE)
        and name not in (f"save_counter{_VALUE}", f"run{_VALUE}")
        and "seed_generator" not in name
    ]
