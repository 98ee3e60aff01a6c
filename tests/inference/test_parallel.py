"""A batch on each core: how many at once, in which order they come back, and that nothing else changes."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf

from t2t_repro.inference import parallel


@pytest.mark.parametrize(
    ("machine", "threads", "gpus", "expected"), [(8, 0, 0, 1), (8, 1, 0, 8), (8, 3, 0, 2), (2, 4, 0, 1), (8, 1, 1, 1)]
)
def test_batches_fill_the_cores(monkeypatch, machine, threads, gpus, expected):
    monkeypatch.setattr(parallel, "usable_cores", lambda: machine)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"] * gpus)
    assert parallel.batches_at_once() == expected


def test_they_are_computed_together_and_come_in_order(monkeypatch):
    monkeypatch.setattr(parallel, "batches_at_once", lambda: 3)
    all_three = threading.Barrier(3, timeout=30)  # is passed by three at a time, or by none

    def squared(number: int) -> int:
        all_three.wait()
        return number * number

    assert list(parallel.at_once(squared, range(9))) == [number * number for number in range(9)]
    assert list(parallel.at_once(squared, [])) == []


def test_no_more_than_the_most_run_at_once(monkeypatch):
    monkeypatch.setattr(parallel, "batches_at_once", lambda: 4)
    running: list[int] = []

    def counted(number: int) -> int:
        running.append(number)
        time.sleep(0.02)
        seen = len(running)
        running.remove(number)
        return seen

    assert max(parallel.at_once(counted, range(12), most=2)) == 2


def test_an_error_is_that_of_the_batch_and_ends_the_others(monkeypatch):
    monkeypatch.setattr(parallel, "batches_at_once", lambda: 2)
    begun = []

    def fails(number: int) -> None:
        begun.append(number)
        time.sleep(0.05)
        raise ValueError(f"batch {number}")

    with pytest.raises(ValueError, match="batch 0"):
        list(parallel.at_once(fails, range(50)))
    assert len(begun) < 50


def test_threads_stay_as_they_are_once_something_was_computed():
    tf.constant(1)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    parallel.set_threads(before + 1)
    assert tf.config.threading.get_intra_op_parallelism_threads() == before
