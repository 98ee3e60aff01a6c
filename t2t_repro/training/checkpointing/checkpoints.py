"""Checkpoints of a run: saved atomically, restored completely or not at all, and averaged (section 6.1).

    RUN/checkpoints/ckpt-500.index, ckpt-500.data-00000-of-00001     one checkpoint, in TensorFlow's format
    RUN/checkpoints/checkpoint                                       lists the complete ones, oldest first

A new checkpoint is written, then added to the list, and then the oldest one is removed. If the trainer is killed at any
moment, every checkpoint in the list is intact. A file that the list does not name is incomplete and is removed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from filelock import FileLock, Timeout

from t2t_repro.io import sync
from t2t_repro.run import Run
from t2t_repro.selection import Selection
from t2t_repro.system.log import short_reason
from t2t_repro.training.checkpointing.checkpoint_list import LIST, files_of, paths, write_list
from t2t_repro.training.checkpointing.damage import damage, reason_of

MODEL, MOVING_AVERAGE = "model", "moving_average"  # names of both models in a checkpoint
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the name of every variable in a checkpoint
_UNFINISHED = re.compile(r"ckpt-\d+_temp|ckpt-\d+\..*tempstate\d*|checkpoint\.tmp.*")


class Checkpoints:
    """The checkpoints of a run in training. `state` maps names to saved objects: model, optimizer, position.

    Only one process at a time may create it, because it removes incomplete files. `report` is called with a line about
    each damaged checkpoint. Raises ValueError if there are checkpoint files without a list.
    """

    def __init__(
        self, run: Run, state: Mapping[str, Any], keep: int, report: Callable[[str], None] = lambda line: None
    ):
        _remove_unfinished(run)  # raises if the list is damaged
        self._checkpoint = tf.train.Checkpoint(**state)
        # Saved in every checkpoint, so that a checkpoint of another run is recognized. It is copied from the first one,
        # because a later version may compute it from other fields.
        self._fingerprint = tf.Variable(run.fingerprint, dtype=tf.int64, trainable=False)
        self._saved = tf.train.Checkpoint(**state, run=self._fingerprint)
        self._run, self._keep, self._report = run, keep, report
        self._members = [member for part in state.values() for member in variables_of(part)]
        self._bytes = sum((each.shape.num_elements() or 0) * each.dtype.size for each in self._members)

    def save(self, step: int, best: Collection[int] = ()) -> str:
        """Writes the checkpoint of `step` and removes the oldest beyond `keep`, except those of the steps `best`.

        Raises OSError if the disk is full, and ValueError if a number is not finite. In both cases nothing has changed.
        """
        self._must_be_finite(step)
        self.must_have_room()
        path = os.path.join(self._run.checkpoints, f"ckpt-{step}")
        before = [each for each in paths(self._run) if each != path]
        try:
            self._saved.write(path)
            for name in files_of(
                self._run, os.path.basename(path)
            ):  # TensorFlow renames its files without syncing them
                sync(os.path.join(self._run.checkpoints, name))
            sync(self._run.checkpoints)
            write_list(self._run, self._kept([*before, path], best))
        except tf.errors.OpError as error:
            raise OSError(f"cannot write {path}: {short_reason(error)}; the checkpoints before it are intact") from None
        finally:
            _remove_unfinished(self._run)
        return path

    def remove_except(self, best: Collection[int]) -> None:
        """Removes the checkpoints that `save` would remove: the oldest beyond `keep`, except those of `best`."""
        existing = paths(self._run)
        if existing and (kept := self._kept(existing, best)) != existing:
            write_list(self._run, kept)
            _remove_unfinished(self._run)

    def _kept(self, existing: list[str], best: Collection[int]) -> list[str]:
        """Returns the newest checkpoint of any kind, the newest regular ones, and the best ones."""
        regular = _regular(self._run, existing)
        last = {*regular[max(len(regular) - self._keep, 0) :], existing[-1]}
        return [path for path in existing if path in last or step_of(path) in best]

    def _must_be_finite(self, step: int) -> None:
        for member in self._members:
            value = tf.convert_to_tensor(member)
            if value.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(value)):
                raise ValueError(
                    f"step {step:,} is not saved: a variable of shape {list(value.shape)} holds numbers that are not "
                    "finite; the checkpoints before it are intact"
                )

    def must_have_room(self) -> None:
        """Raises OSError if the disk has no room for another checkpoint."""
        needed, free = self._bytes + (1 << 20), shutil.disk_usage(self._run.checkpoints).free
        if free < needed:
            raise OSError(
                f"no room for a checkpoint in {self._run.checkpoints!r}: it takes {needed / 1e6:,.1f} MB, and "
                f"{free / 1e6:,.1f} MB are free ({os.strerror(errno.ENOSPC)}); make room, and start again"
            )

    def restore_newest(self) -> bool:
        """Restores the newest intact checkpoint completely. Returns False if there is no checkpoint yet.

        Damaged checkpoints are reported and renamed. Raises ValueError if all are damaged, or if the newest intact one
        does not have the variables of this run.
        """
        existing = paths(self._run)
        intact = self._without_damaged(existing)
        if not intact:
            return False
        newest = intact[-1]
        found = len(_shapes(newest))
        if found != len(self._members):
            raise ValueError(
                f"{newest} holds {found} variables, but this run has {len(self._members)}: damaged, or an average, "
                "which has no optimizer state; start a new run from it (`init_from`)"
            )
        status = self._checkpoint.read(newest)
        status.expect_partial()  # the run's fingerprint, which is copied below
        status.assert_existing_objects_matched()
        self._fingerprint.assign(_fingerprint(newest) or self._fingerprint)
        return True

    def _without_damaged(self, existing: list[str]) -> list[str]:
        """Renames the newest checkpoints if they are damaged, and returns the others."""
        folder, intact = self._run.checkpoints, list(existing)
        reasons: dict[str, str] = {}  # by the name of the checkpoint, newest first
        while intact and (reason := damage(intact[-1])):
            reasons[os.path.basename(intact.pop())] = reason
        if not reasons:
            return intact
        if not intact:
            raise ValueError(
                f"every checkpoint in {folder!r} is damaged, the newest too ({next(iter(reasons.values()))}); restore "
                "one from a copy, or give another output_dir to start over"
            )
        write_list(self._run, intact)
        for name, reason in reasons.items():
            path, used = os.path.join(folder, name), os.path.basename(intact[-1])
            self._report(f"{path} is damaged ({reason}): renamed to damaged-{name}, {used} is used")
            for file in files_of(self._run, name):
                os.replace(os.path.join(folder, file), os.path.join(folder, f"damaged-{file}"))
        return intact


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
    return existing[-1:] if number == 1 else (_regular(run, existing) or existing[-1:])[-number:]


def is_regular(run: Run, step: int) -> bool:
    """Returns whether the checkpoint of `step` is a regular one (see `to_average`)."""
    last = (run.hparams.train_steps, run.last_step)
    return step > 0 and (step % run.hparams.checkpoint_steps == 0 or step in last)


def step_of(path: str) -> int:
    """Returns the step of a checkpoint."""
    return int(path.rpartition("-")[2])


def _regular(run: Run, existing: list[str]) -> list[str]:
    return [path for path in existing if is_regular(run, step_of(path))]


def _remove_unfinished(run: Run) -> None:
    """Removes files that the list does not name, left by a trainer that was killed while writing or removing them."""
    existing = {name: name.partition(".")[0] for name in files_of(run)}
    first = len(set(existing.values())) == 1 and run.training.step is None
    if first and not os.path.exists(os.path.join(run.checkpoints, LIST)):
        listed = set()  # killed before the first list was written
    else:
        listed = {os.path.basename(path) for path in paths(run)}
    for name in os.listdir(run.checkpoints):
        path = os.path.join(run.checkpoints, name)
        if _UNFINISHED.fullmatch(name) and os.path.isdir(path):
            shutil.rmtree(path)
        elif _UNFINISHED.fullmatch(name) or (name in existing and existing[name] not in listed):
            os.remove(path)


def load_weights(
    run: Run, model: tf.Module, average: int = 1, best: bool = False, moving_average: bool = False
) -> list[str]:
    """Loads the mean of the weights of at most `average` newest checkpoints into `model`, and returns their paths.

    With `best`, they are those with the best validation scores (see `to_average`). With `moving_average`, the weights
    of a checkpoint are the moving average that it holds.

    Raises FileNotFoundError if there is no checkpoint, and ValueError if the weights of one do not fit `model`, if one
    holds no moving average, or if the checkpoints are of different runs.
    """
    part, chosen = _chosen(run, model, average, best, moving_average)
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
    run: Run, model: tf.Module, average: int = 1, best: bool = False, moving_average: bool = False
) -> Callable[[str, Any], Callable[..., None]]:
    """Returns a function that loads one layer of `model` at a time, by its name, such as "decoder_layers/0".

    Until then its weights take no memory. With the name "" it loads the weights of the model that are in no layer. The
    function returns one that frees given weights. Checkpoints and errors are those of `load_weights`; if several are
    averaged, all weights are loaded immediately.
    """
    part, chosen = _chosen(run, model, average, best, moving_average)
    if len(chosen) > 1:
        load_weights(run, model, average, best, moving_average)
        return lambda name, layer: _free
    _free(*model.weights)

    def load(name: str, layer: Any) -> Callable[..., None]:
        if name:
            for each in reversed(name.split("/")):
                layer = tf.train.Checkpoint(**{each: layer})
        else:
            own = {each: value for each, value in vars(layer).items() if isinstance(value, keras.Variable)}
            layer = tf.train.Checkpoint(**own)
        _read(chosen[0], layer, part)
        return _free

    return load


def _free(*weights: Any) -> None:
    """Frees the memory of weights, which then have no values."""
    for weight in weights:
        nothing = tf.zeros([0], weight.dtype)  # unlike `assign`, the operation takes another shape
        tf.raw_ops.AssignVariableOp(resource=weight.value.handle, value=nothing)


def _chosen(run: Run, model: Any, average: int, best: bool, moving_average: bool) -> tuple[str, list[str]]:
    """Returns the name of the weights in a checkpoint, and the checkpoints. The errors are those of `load_weights`."""
    part = MOVING_AVERAGE if moving_average else MODEL
    chosen = to_average(run, average, best)
    if not chosen:
        raise FileNotFoundError(f"{run.directory!r} has no checkpoint yet; train it first (t2t-trainer)")
    variables = variables_of(model)
    fingerprints = set()
    for path in chosen:
        with _named(path):
            _must_fit(path, variables, part)
            fingerprints.add(_fingerprint(path))
    if len(fingerprints - {None}) > 1:
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
    with _named(path):
        status = tf.train.Checkpoint(**{part: model}).read(path)
    status.expect_partial()
    status.assert_existing_objects_matched()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turns an error of reading a checkpoint into a ValueError with its path."""
    try:
        yield
    except (tf.errors.OpError, LookupError, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged ({reason_of(error)}); the same t2t-trainer command continues from the one before it"
        ) from None


@contextmanager
def exclusive_lock(run: Run) -> Iterator[None]:
    """Holds the run's lock. Two trainers in one directory would delete each other's checkpoints."""
    lock = FileLock(f"{run.directory}/.lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another t2t-trainer is running in {run.directory!r}; wait for it, or stop it") from None


def variables_of(part: Any) -> list[tf.Variable]:
    """Returns the variables of a model or optimizer; a variable itself is returned in a list."""
    if isinstance(part, tf.Variable):
        return [part]
    found = part.weights if hasattr(part, "weights") else part.variables
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in found]


def _must_fit(path: str, variables: list[tf.Variable], part: str = MODEL) -> None:
    """Raises ValueError if number or shapes of a checkpoint's weights differ from those of `variables`."""
    there = Counter(tuple(shape) for shape in _shapes(path, f"{part}/"))
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


def _fingerprint(path: str) -> int | None:
    """Returns the fingerprint of the run that wrote a checkpoint; None if an old version did not save one."""
    reader = tf.train.load_checkpoint(path)
    return int(reader.get_tensor(f"run{_VALUE}")) if reader.has_tensor(f"run{_VALUE}") else None


def _shapes(path: str, prefix: str = "") -> list[list[int]]:
    """Returns the shapes of the variables in a checkpoint. They reveal a layer that was not saved."""
    return [
        shape
        for name, shape in tf.train.list_variables(path)
        if name.startswith(prefix)
        and name.endswith(_VALUE)
        and name not in (f"save_counter{_VALUE}", f"run{_VALUE}")
        and "seed_generator" not in name
    ]
