"""Weights from checkpoints: of one, the mean of several (section 6.1), or layer by layer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from t2t_repro.io import without_wildcards
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import Averaging, paths, to_average
from t2t_repro.training.checkpointing.damage import reason_of

Result = TypeVar("Result")

MODEL, MOVING_AVERAGE = "model", "moving_average"  # names of both models in a checkpoint
_ATTEMPTS = 5  # to read checkpoints that a trainer does not replace meanwhile
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the name of every variable in a checkpoint


class Replaced(ValueError):
    """A trainer replaced checkpoints of a run while they were read."""

    def __init__(self, run: Run):
        super().__init__(f"the trainer of {run.directory!r} replaced checkpoints while they were read; run this again")


def load_weights(run: Run, model: tf.Module, averaging: Averaging = Averaging()) -> list[str]:  # noqa: B008 (immutable)
    """Loads weights of a run into `model`, and returns the paths of the checkpoints whose mean they are.

    Raises FileNotFoundError if there is no checkpoint, and ValueError if the weights of one do not fit `model`, if one
    holds no moving average, or if the checkpoints are of different runs.
    """
    return _undisturbed(run, lambda: _load(model, *_chosen(run, model, averaging)))


def _undisturbed(run: Run, read: Callable[[], Result]) -> Result:
    """Returns what `read` returns. Calls it again if a trainer replaced checkpoints of the run meanwhile."""
    for _ in range(_ATTEMPTS):
        existing = paths(run)
        try:
            return read()
        except ValueError:
            if set(existing) <= set(paths(run)):
                raise
    raise Replaced(run)


def _load(model: tf.Module, part: str, chosen: list[str]) -> list[str]:
    if len(chosen) == 1:
        _read(chosen[0], model, part)
        return chosen
    variables = variables_of(model)
    sums = [np.zeros(variable.shape, np.float64) for variable in variables]
    for path in chosen:
        _read(path, model, part)
        for total, variable in zip(sums, variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, variables, strict=True):
        variable.assign((total / len(chosen)).astype(np.float32))
    return chosen


def layer_loader(
    run: Run, model: tf.Module, averaging: Averaging
) -> tuple[list[str], Callable[[str, Any], Callable[..., None]]]:
    """Returns the paths of the checkpoints, and a function that loads one layer of `model` at a time.

    Its argument is the name of the layer, such as "decoder_layers/0". Until then its weights take no memory. With the
    name "" it loads the weights of the model that are in no layer. It returns a function that frees given weights.
    Checkpoints and errors are those of `load_weights`; if several are averaged, all weights are loaded immediately. The
    function raises `Replaced` if the checkpoint is gone.
    """
    part, chosen = _undisturbed(run, lambda: _chosen(run, model, averaging))
    if len(chosen) > 1:
        return load_weights(run, model, averaging), lambda name, layer: _free
    _free(*model.weights)

    def load(name: str, layer: Any) -> Callable[..., None]:
        if name:
            for each in reversed(name.split("/")):
                layer = tf.train.Checkpoint(**{each: layer})
        else:
            own = {each: value for each, value in vars(layer).items() if isinstance(value, keras.Variable)}
            layer = tf.train.Checkpoint(**own)
        try:
            _read(chosen[0], layer, part)
        except ValueError:
            if chosen[0] in paths(run):
                raise
            raise Replaced(run) from None
        return _free

    return chosen, load


def _free(*weights: Any) -> None:
    """Frees the memory of weights, which then have no values."""
    for weight in weights:
        nothing = tf.zeros([0], weight.dtype)  # unlike `assign`, the operation takes another shape
        tf.raw_ops.AssignVariableOp(resource=weight.value.handle, value=nothing)


def _chosen(run: Run, model: Any, averaging: Averaging) -> tuple[str, list[str]]:
    """Returns the name of the weights in a checkpoint, and the checkpoints. The errors are those of `load_weights`."""
    part = MOVING_AVERAGE if averaging.moving_average else MODEL
    chosen = to_average(run, averaging.checkpoints, averaging.best)
    if not chosen:
        raise FileNotFoundError(f"{run.directory!r} has no checkpoint yet; train it first (t2t-trainer)")
    variables = variables_of(model)
    fingerprints = set()
    for path in chosen:
        with _named(path):
            _must_fit(path, variables, part)
            fingerprints.add(fingerprint_in(path))
    if len(fingerprints) > 1:
        names = ", ".join(map(os.path.basename, chosen))
        raise ValueError(f"{names} in {run.checkpoints!r} are checkpoints of different runs; keep those of one")
    return part, chosen


def load_checkpoint(path: str, model: tf.Module) -> None:
    """Loads the weights of one checkpoint into `model`, bit for bit.

    Raises ValueError if the checkpoint is damaged or missing, or if its weights do not fit `model`.
    """
    with _named(path):
        _must_fit(path, variables_of(model))
    _read(path, model)


def _read(path: str, model: tf.Module, part: str = MODEL) -> None:
    """Loads the weights of a checkpoint, or their moving average, into `model`. Raises ValueError if it is damaged."""
    with _named(path), without_wildcards(path) as plain:
        status = tf.train.Checkpoint(**{part: model}).read(plain)
    status.expect_partial()
    status.assert_existing_objects_matched()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turns an error of reading a checkpoint into a ValueError with its path."""
    try:
        yield
    except (tf.errors.OpError, LookupError, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged ({reason_of(error)}); the same t2t-trainer command renames it and uses the others"
        ) from None


def variables_of(part: Any) -> list[tf.Variable]:
    """Returns the variables of a model or optimizer; a variable itself is returned in a list."""
    if isinstance(part, tf.Variable):
        return [part]
    found = part.weights if hasattr(part, "weights") else part.variables
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in found]


def _must_fit(path: str, variables: list[tf.Variable], part: str = MODEL) -> None:
    """Raises ValueError if number or shapes of a checkpoint's weights differ from those of `variables`."""
    there = Counter(tuple(shape) for shape in shapes_in(path, f"{part}/"))
    if part == MOVING_AVERAGE and not there:
        raise ValueError(
            f"{path} holds no moving average of the weights; leave out `moving_average`, or train with ema_decay=0.999"
        )
    here = Counter(tuple(variable.shape) for variable in variables)
    if there.total() != here.total():
        raise ValueError(f"{path} holds {there.total()} weights, but this model has {here.total()}")
    if there != here:
        shapes = " and ".join(f"{list(next(iter(some)))}" for some in (there - here, here - there))
        raise ValueError(f"{path} does not fit this run's model: the shapes of weights differ, such as {shapes}")


def fingerprint_in(path: str) -> int:
    """Returns the fingerprint of the run that wrote a checkpoint."""
    with without_wildcards(path) as plain:
        return int(tf.train.load_checkpoint(plain).get_tensor(f"run{_VALUE}"))


def shapes_in(path: str, prefix: str = "") -> list[list[int]]:
    """Returns the shapes of the variables in a checkpoint. They reveal a layer that was not saved."""
    with without_wildcards(path) as plain:
        variables = tf.train.list_variables(plain)
    return [
        shape
        for name, shape in variables
        if name.startswith(prefix)
        and name.endswith(_VALUE)
        and name not in (f"save_counter{_VALUE}", f"run{_VALUE}")
        and "seed_generator" not in name
    ]
