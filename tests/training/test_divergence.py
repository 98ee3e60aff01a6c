"""Divergence: the reasons for stopping training, and for warnings."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PART_TOKENS, PROBLEM, TINY, silent, train_pairs

from t2t_repro.config import TrainingOptions
from t2t_repro.data import batching
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import read_json
from t2t_repro.run import Run
from t2t_repro.training.divergence import MAX_SKIPPED, WINDOW, LossMonitor, TrainingDiverged
from t2t_repro.training.metrics import Step
from t2t_repro.training.optimizer import learning_rate
from t2t_repro.training.train_step import StepMetrics
from t2t_repro.training.trainer import train

TOKENS = 50.0


@pytest.fixture(autouse=True)
def two_parts(monkeypatch):
    monkeypatch.setattr(batching, "PART_TOKENS", PART_TOKENS)


@pytest.fixture
def dataset(data) -> Dataset:
    return Dataset.open(os.path.join(data, PROBLEM.name))


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """Returns `trained` in a temporary folder, with a warm-up of which a quarter is longer than WINDOW."""
    with open(trained.vocabulary, "rb") as file:
        (tmp_path / "vocabulary.model").write_bytes(file.read())
    hparams = replace(TINY, warmup_steps=4 * (WINDOW + 20))
    return replace(trained, directory=str(tmp_path), hparams=hparams)


@pytest.fixture
def monitor(run, dataset):
    """Returns `monitor(losses)`, which checks the next steps with these losses; `monitor.said` are its reports."""

    def look(losses: list[float], skipped: bool = False) -> None:
        steps = []
        for loss in losses:
            position = tf.constant([0, 0, 1 + look.step % 3], tf.int64)
            look.step += 1
            metrics = StepMetrics(TOKENS * loss, TOKENS * loss, 9.0, TOKENS, 1e6, 1.0, skipped)
            steps.append(Step(look.step, learning_rate(look.step, run.hparams), position, metrics))
        look.monitor(steps)

    look.step, look.said = 0, []
    look.monitor = LossMonitor(run, TrainingText.of(run, dataset), look.said.append)
    return look


def test_entropy_of_single_tokens(monitor, run):
    """Compares with counts from the text."""
    ids = Vocabulary(run.vocabulary).encode([target for _, target in train_pairs()])
    counts = Counter(token for sentence in ids for token in sentence)
    shares = [count / counts.total() for count in counts.values()]
    assert monitor.monitor.entropy == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_a_loss_that_is_not_finite(monitor, run, dataset):
    """The second of five steps: the file has the pairs of that step, not those of the newest one."""
    with pytest.raises(
        TrainingDiverged, match=r"^stopped at step 2: the loss is nan, at learning rate [\d.e-]+, in epoch 0"
    ) as stop:
        monitor([5.0, math.nan, 5.0, 5.0, 5.0])
    assert str(stop.value).count("\n") == 0
    assert "try a lower learning_rate_scale=0.5 or a longer warmup_steps=960" in str(stop.value)
    (name,) = [name for name in os.listdir(run.directory) if name.startswith("stopped")]
    written = read_json(os.path.join(run.directory, name))
    assert (name, written["step"], written["epoch"], written["step_of_window"]) == ("stopped-2.json", 2, 0, 1)
    batches = TrainingText(dataset.shards("train"), TINY.batch_tokens, seed=1).batches(0)
    _, second, *_ = batches.as_numpy_iterator()
    assert len(written["pairs"]) == second["sizes"][:, 0].sum()
    assert {(pair["source"], pair["target"]) for pair in written["pairs"]} <= set(train_pairs())


def test_a_limited_number_of_skipped_steps_is_tolerated(monitor):
    monitor([5.0] * (MAX_SKIPPED - 1), skipped=True)
    monitor([5.0])
    monitor([5.0] * (MAX_SKIPPED - 1), skipped=True)
    with pytest.raises(TrainingDiverged, match="the gradient's norm is 1.0 for the 20th time in a row"):
        monitor([5.0], skipped=True)


def test_a_falling_loss(monitor):
    monitor(np.linspace(9, 5, WINDOW).tolist())
    monitor([1.0] * WINDOW)
    assert monitor.said == []


def test_a_loss_that_does_not_fall(monitor):
    monitor([5.0] * 30 + [5.5] * (WINDOW - 30))
    (line,) = monitor.said
    assert line.startswith("warning, step 100: the loss has not fallen: 5.00 nats at first, now 5.50; see that line n ")
    monitor([4.9])
    assert len(monitor.said) == 1


def test_a_loss_that_stays_above_that_of_single_tokens(monitor):
    """Checked one time, over the 100 steps after a quarter of the warm-up, which is 120 steps."""
    entropy = monitor.monitor.entropy
    monitor(np.linspace(entropy + 2, entropy + 1, WINDOW).tolist())
    monitor([entropy + 1] * 119)
    assert monitor.said == []
    monitor([entropy + 1])
    monitor([entropy + 1] * WINDOW)
    (line,) = monitor.said
    assert line.startswith("warning, step 220: the loss is ")
    assert f"and single target tokens without any context have {entropy:.2f};" in line


def test_a_loss_that_rises_again(monitor):
    entropy = monitor.monitor.entropy
    monitor([entropy - 1] * WINDOW)
    monitor([entropy + 3] * 20)  # a spike that the mean does not show
    with pytest.raises(
        TrainingDiverged, match=f"the loss of 100 steps is .* nats again, above the {entropy:.2f} of single"
    ):
        monitor([entropy + 1] * WINDOW)


def test_a_loss_far_above_that_of_guessing(monitor):
    with pytest.raises(TrainingDiverged, match="the loss of 100 steps is 15.00 nats, twice that of guessing"):
        monitor([15.0] * WINDOW)


def test_a_diverging_run_stops(data, tmp_path, monkeypatch):
    """Trains at a far too large learning rate. The checkpoints saved before remain."""
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", functools.partial(tf.distribute.MirroredStrategy, ["CPU:0"]))
    hparams = replace(TINY, learning_rate_scale=1e38, train_steps=6)
    options = TrainingOptions(precision="float32", checkpoint_steps=1)
    with pytest.raises(
        TrainingDiverged, match=r"stopped at step \d: the loss is (nan|inf), at learning rate .*e\+3\d, in epoch"
    ):
        train(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, report=silent)
    (name,) = [name for name in os.listdir(tmp_path / "RUN") if name.startswith("stopped")]
    step = int(name.removeprefix("stopped-").removesuffix(".json"))
    assert step > 1
    assert tf.train.latest_checkpoint(str(tmp_path / "RUN" / "checkpoints")).endswith(f"-{step - 1}")
