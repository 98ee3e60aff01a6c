"""Checkpoints of a run in training: saved atomically, restored completely or not at all.

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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from filelock import FileLock, Timeout

from t2t_repro.io import sync, without_wildcards
from t2t_repro.run import Run
from t2t_repro.system.log import short_reason
from t2t_repro.training.checkpointing.checkpoint_list import files_of, paths, regular, step_of, write_list
from t2t_repro.training.checkpointing.damage import damage
from t2t_repro.training.checkpointing.weights import fingerprint_in, shapes_in, variables_of

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
            # TensorFlow renames its files without syncing them
            for name in files_of(self._run, os.path.basename(path)):
                sync(os.path.join(self._run.checkpoints, name))
            sync(self._run.checkpoints)
            write_list(self._run, self._kept([*before, path], best))
        except tf.errors.OpError as error:
            raise OSError(f"cannot write {path}: {short_reason(error)}; the checkpoints before it are intact") from None
        finally:
            _remove_unfinished(self._run, is_first=not before)
        return path

    def remove_except(self, best: Collection[int]) -> None:
        """Removes the checkpoints that `save` would remove: the oldest beyond `keep`, except those of `best`."""
        existing = paths(self._run)
        if existing and (kept := self._kept(existing, best)) != existing:
            write_list(self._run, kept)
            _remove_unfinished(self._run)

    def _kept(self, existing: list[str], best: Collection[int]) -> list[str]:
        """Returns the newest checkpoint of any kind, the newest regular ones, and the best ones."""
        newest = regular(self._run, existing)
        last = {*newest[max(len(newest) - self._keep, 0) :], existing[-1]}
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
        found = len(shapes_in(newest))
        if found != len(self._members):
            raise ValueError(
                f"{newest} holds {found} variables, but this run has {len(self._members)}: damaged, or an average, "
                "which has no optimizer state; start a new run from it (`init_from`)"
            )
        with without_wildcards(newest) as plain:
            status = self._checkpoint.read(plain)
        status.expect_partial()  # the run's fingerprint, which is copied below
        status.assert_existing_objects_matched()
        self._fingerprint.assign(fingerprint_in(newest))
        return True

    def _without_damaged(self, existing: list[str]) -> list[str]:
        """Renames the newest checkpoints if they are damaged, and returns the others."""
        intact = list(existing)
        reasons: dict[str, str] = {}  # by path, newest first
        while intact and (reason := damage(intact[-1])):
            reasons[intact.pop()] = reason
        self._set_aside(reasons, intact)
        return intact

    def set_aside_damaged(self) -> None:
        """Reads every checkpoint, and reports and renames the damaged ones. Raises ValueError if all are damaged."""
        reasons = {path: reason for path in paths(self._run) if (reason := damage(path))}
        self._set_aside(reasons, [path for path in paths(self._run) if path not in reasons])

    def _set_aside(self, reasons: Mapping[str, str], intact: list[str]) -> None:
        folder = self._run.checkpoints
        if not reasons:
            return
        if not intact:
            raise ValueError(
                f"every checkpoint in {folder!r} is damaged, the newest too ({next(iter(reasons.values()))}); restore "
                "one from a copy, or give another output_dir to start over"
            )
        write_list(self._run, intact)
        for path, reason in reasons.items():
            name, used = os.path.basename(path), os.path.basename(intact[-1])
            self._report(f"{path} is damaged ({reason}): renamed to damaged-{name}, {used} is used")
            for file in files_of(self._run, name):
                os.replace(os.path.join(folder, file), os.path.join(folder, f"damaged-{file}"))


def _remove_unfinished(run: Run, is_first: bool = False) -> None:
    """Removes files that the list does not name, left by a trainer that was killed while writing or removing them.

    With `is_first`, there was no checkpoint before, and there need not be a list.
    """
    existing = {name: name.partition(".")[0] for name in files_of(run)}
    has_no_list = is_first and not os.path.exists(run.checkpoint_list)
    listed = set() if has_no_list else {os.path.basename(path) for path in paths(run)}
    for name in os.listdir(run.checkpoints):
        path = os.path.join(run.checkpoints, name)
        if _UNFINISHED.fullmatch(name) and os.path.isdir(path):
            shutil.rmtree(path)
        elif _UNFINISHED.fullmatch(name) or (name in existing and existing[name] not in listed):
            os.remove(path)


@contextmanager
def exclusive_lock(run: Run) -> Iterator[None]:
    """Holds the run's lock. Two trainers in one directory would delete each other's checkpoints."""
    lock = FileLock(f"{run.directory}/.lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another t2t-trainer is running in {run.directory!r}; wait for it, or stop it") from None
