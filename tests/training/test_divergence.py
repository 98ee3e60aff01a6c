"""What stops a training, and what it is warned of."""

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
from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import read_json
from t2t_repro.run import Run
from t2t_repro.training.divergence import SKIPPED, UPDATES, Diverged, Guard
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
    """As `trained`, in a folder of its own, with a warm-up of which a quarter is longer than UPDATES."""
    with open(trained.vocabulary, "rb") as file:
        (tmp_path / "vocabulary.model").write_bytes(file.read())
    hparams = replace(TINY, warmup_steps=4 * (UPDATES + 20))
    return replace(trained, directory=str(tmp_path), hparams=hparams)


@pytest.fixture
def guard(run, dataset):
    """`guard(losses)`: looks at updates of such losses, the next ones each time; `guard.said` is what it reports."""

    def look(losses: list[float], skipped: float = 0.0) -> None:
        rows = [[TOKENS * loss, TOKENS * loss, 9, TOKENS, 1e6, 1.0, skipped] for loss in losses]
        look.step += len(rows)
        positions = [tf.constant([0, 0, 1 + step % 3], tf.int64) for step in range(look.step - len(rows), look.step)]
        watch(look.step, np.array(rows, np.float32), positions)

    look.step, look.said = 0, []
    watch = look.guard = Guard(run, dataset, look.said.append)
    return look


def test_entropy_of_single_tokens(guard, run):
    """Counted anew from the text itself."""
    ids = Vocabulary(run.vocabulary).encode([target for _, target in train_pairs()])
    counts = Counter(token for sentence in ids for token in sentence)
    shares = [count / counts.total() for count in counts.values()]
    assert guard.guard.entropy() == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_a_loss_that_is_not_finite(guard, run, dataset):
    """The second of five updates: it is that one's pairs that are written down, not the newest one's."""
    with pytest.raises(
        Diverged, match=r"^stopped at step 2: the loss is nan, at learning rate [\d.e-]+, in epoch 0"
    ) as stop:
        guard([5.0, math.nan, 5.0, 5.0, 5.0])
    assert str(stop.value).count("\n") == 0
    assert "try a lower --override=learning_rate_scale=0.5 or a longer --override=warmup_steps=960" in str(stop.value)
    (name,) = [name for name in os.listdir(run.directory) if name.startswith("stopped")]
    written = read_json(os.path.join(run.directory, name))
    assert (name, written["step"], written["epoch"], written["step_of_window"]) == ("stopped-2.json", 2, 0, 1)
    batches = input_pipeline.training_batches(dataset.shards("train"), TINY.batch_tokens, 1, 0)
    _, second, *_ = batches.as_numpy_iterator()
    assert len(written["pairs"]) == second["sizes"][:, 0].sum()
    assert {(pair["source"], pair["target"]) for pair in written["pairs"]} <= set(train_pairs())


def test_skipped_updates_are_borne_for_a_while(guard):
    guard([5.0] * (SKIPPED - 1), skipped=1.0)
    guard([5.0])
    guard([5.0] * (SKIPPED - 1), skipped=1.0)
    with pytest.raises(Diverged, match="the gradient's norm is 1.0 for the 20th time in a row"):
        guard([5.0], skipped=1.0)


def test_a_loss_that_falls_as_it_should(guard):
    guard(np.linspace(9, 5, UPDATES).tolist())
    guard([1.0] * UPDATES)
    assert guard.said == []


def test_a_loss_that_does_not_fall(guard):
    guard([5.0] * 30 + [5.5] * (UPDATES - 30))
    (line,) = guard.said
    assert line.startswith("warning, step 100: the loss has not fallen: 5.00 nats at first, now 5.50; see that line n ")
    guard([4.9])
    assert len(guard.said) == 1


def test_a_loss_that_stays_above_that_of_single_tokens(guard):
    """Looked at once, when a quarter of the warm-up is over: 120 updates."""
    entropy = guard.guard.entropy()
    guard(np.linspace(entropy + 2, entropy + 1, UPDATES).tolist())
    guard([entropy + 1] * 19)
    assert guard.said == []
    guard([entropy + 1])
    guard([entropy + 1] * UPDATES)
    (line,) = guard.said
    assert line.startswith("warning, step 120: the loss is ")
    assert f"and single target tokens without any context have {entropy:.2f};" in line


def test_what_was_learnt_and_is_forgotten(guard):
    entropy = guard.guard.entropy()
    guard([entropy - 1] * UPDATES)
    guard([entropy + 3] * 20)  # a spike that the mean does not show
    with pytest.raises(Diverged, match=f"the loss of 100 updates is .* nats again, above the {entropy:.2f} of single"):
        guard([entropy + 1] * UPDATES)


def test_a_loss_far_above_that_of_guessing(guard):
    with pytest.raises(Diverged, match="the loss of 100 updates is 15.00 nats, twice that of guessing"):
        guard([15.0] * UPDATES)


def test_a_training_that_explodes_stops(data, tmp_path, monkeypatch):
    """Really trained, at a learning rate without bounds; what it had saved before is still there."""
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", functools.partial(tf.distribute.MirroredStrategy, ["CPU:0"]))
    hparams = replace(TINY, learning_rate_scale=1e38, train_steps=6)
    options = TrainingOptions(precision="float32", checkpoint_steps=1)
    with pytest.raises(
        Diverged, match=r"stopped at step \d: the loss is (nan|inf), at learning rate .*e\+3\d, in epoch"
    ):
        train(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, report=silent)
    (name,) = [name for name in os.listdir(tmp_path / "RUN") if name.startswith("stopped")]
    step = int(name.removeprefix("stopped-").removesuffix(".json"))
    assert step > 1
    assert tf.train.latest_checkpoint(str(tmp_path / "RUN" / "checkpoints")).endswith(f"-{step - 1}")
