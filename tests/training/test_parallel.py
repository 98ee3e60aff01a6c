"""Parallel batches: their number, the order of results, and no other effect."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import tensorflow as tf
from helpers.tiny_model import SMALL

from t2t_repro.training import parallel


@pytest.mark.parametrize(
    ("machine", "threads", "gpus", "batches", "microbatches"),
    [(8, 0, 0, 8, 1), (8, 1, 0, 8, 8), (8, 3, 0, 2, 2), (2, 4, 0, 1, 1), (8, 1, 1, 1, 1), (8, 0, 1, 1, 1)],
)
def test_batches_fill_the_cores(monkeypatch, machine, threads, gpus, batches, microbatches):
    monkeypatch.setattr(parallel, "usable_cores", lambda: machine)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"] * gpus)
    assert parallel.num_parallel_batches() == batches
    assert parallel.num_parallel_microbatches() == microbatches


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (3, 3), (0, 8)])
def test_threads_are_those_of_all_cores_by_zero(monkeypatch, threads, expected):
    given: list[int] = []
    monkeypatch.setattr(parallel, "usable_cores", lambda: 8)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", given.append)
    parallel.set_threads(threads)
    assert given == [expected]


@pytest.mark.parametrize(
    ("d_model", "batch_tokens", "cores", "expected"),
    [(256, 4_096, 2, [1]), (128, 4_096, 1, [1]), (256, 4_096, 16, [4]), (256, 25_000, 16, [5]), (256, 1_024, 2, [2])]
    + [(512, 4_096, 2, [])],  # as TensorFlow has them
)
def test_micro_batches_of_small_models_share_the_cores(monkeypatch, d_model, batch_tokens, cores, expected):
    threads: list[int] = []
    monkeypatch.setattr(parallel, "set_threads", threads.append)
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    hparams = replace(SMALL, d_model=d_model, batch_tokens=batch_tokens)
    parallel.set_training_threads(hparams)
    assert threads == expected
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 0)  # by other code, before
    assert parallel.microbatch_shares(hparams) == (cores // expected[0] if expected else 1)


def test_batches_run_in_parallel_and_return_in_order(monkeypatch):
    monkeypatch.setattr(parallel, "num_parallel_batches", lambda: 3)
    all_three = threading.Barrier(3, timeout=30)  # passed only when three threads run in parallel

    def squared(number: int) -> int:
        all_three.wait()
        return number * number

    assert list(parallel.parallel_map(squared, range(9))) == [number * number for number in range(9)]
    assert list(parallel.parallel_map(squared, [])) == []


def test_most_limits_parallel_batches(monkeypatch):
    monkeypatch.setattr(parallel, "num_parallel_batches", lambda: 4)
    running: list[int] = []

    def counted(number: int) -> int:
        running.append(number)
        time.sleep(0.02)
        seen = len(running)
        running.remove(number)
        return seen

    assert max(parallel.parallel_map(counted, range(12), most=2)) == 2


def test_error_of_a_batch_is_raised_and_stops_the_others(monkeypatch):
    monkeypatch.setattr(parallel, "num_parallel_batches", lambda: 2)
    started = []

    def fails(number: int) -> None:
        started.append(number)
        time.sleep(0.05)
        raise ValueError(f"batch {number}")

    with pytest.raises(ValueError, match="batch 0"):
        list(parallel.parallel_map(fails, range(50)))
    assert len(started) < 50


def test_threads_cannot_change_after_the_first_computation():
    tf.constant(1)
    before = tf.config.threading.get_intra_op_parallelism_threads()
    parallel.set_threads(before + 1)
    assert tf.config.threading.get_intra_op_parallelism_threads() == before
