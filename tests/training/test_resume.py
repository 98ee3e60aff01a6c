"""A run that is stopped at any step and started again is bitwise equal to an uninterrupted one."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace

import pytest
from helpers.continued_runs import must_be_bitwise_equal, must_continue_bitwise
from helpers.tiny_model import PART_TOKENS, PROBLEM, TINY

from t2t_repro.config import TrainingOptions
from t2t_repro.data import batching
from t2t_repro.run import Run
from t2t_repro.system import signals
from t2t_repro.system.signals import caught_signals
from t2t_repro.training.trainer import train

STEPS = 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "part_tokens", "changes"),
    [
        (1, PART_TOKENS, {}),
        (2, PART_TOKENS, {}),
        (1, 10 * PART_TOKENS, {}),
        (2, 10 * PART_TOKENS, {}),
        (2, PART_TOKENS, {"r_drop": 5.0, "ema_decay": 0.7, "decay_steps": 6}),
    ],
    ids=["accumulated", "accumulated on two", "one micro-batch", "one on each of two", "techniques for small data"],
)
def test_continued_from_every_step(data, tmp_path, monkeypatch, on_replicas, replicas, part_tokens, changes):
    """A killed run continues from its newest checkpoint: here one of each step is continued to the end."""
    on_replicas(replicas)
    monkeypatch.setattr(batching, "PART_TOKENS", part_tokens)
    hparams = replace(TINY, train_steps=STEPS, average_checkpoints=STEPS, **changes)
    options = TrainingOptions(precision="float32", checkpoint_steps=1)
    must_continue_bitwise(
        lambda directory, report: train(PROBLEM, hparams, data, directory, options, report=report),
        tmp_path / "whole",
        STEPS,
        range(1, STEPS),
    )


def test_the_second_signal_stops_immediately(monkeypatch):
    """The first signal stops after the current step; the second one has its usual effect, if it is no echo."""
    monkeypatch.setattr(signals, "_ECHO", -1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell disables it in background processes
    terminates = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), caught_signals() as caught:
            signal.raise_signal(signal.SIGTERM)
            assert caught == [signal.SIGTERM]
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) is terminates


@pytest.mark.slow
def test_a_damaged_checkpoint_loses_the_steps_since_the_previous_one(trained, data, tmp_path, on_replicas):
    on_replicas(1)
    run = Run.open(shutil.copytree(trained.directory, str(tmp_path / "RUN")))
    os.truncate(os.path.join(run.checkpoints, "ckpt-8.data-00000-of-00001"), 5_000)
    said: list[str] = []
    options = TrainingOptions(precision="float32", checkpoint_steps=4)
    again = train(PROBLEM, TINY, data, run.directory, options, report=said.append)
    assert "ckpt-8 is damaged (it is cut off): renamed to damaged-ckpt-8, ckpt-4 is used" in said[0]
    must_be_bitwise_equal(again, trained, 8)
