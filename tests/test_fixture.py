"""The run that is committed, `tests/fixtures/make.py` made it: every later version reads it, translates as it did and
could train on."""

from __future__ import annotations

import os
import shutil

import pytest
import tensorflow as tf
from conftest import CHECKOUT

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import paths
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.checkpointing.damage import damage
from t2t_repro.training.optimizer import Adam

FIXTURE = CHECKOUT / "tests/fixtures/run"
TRANSLATIONS = {  # of the mean of both checkpoints, with scores; the next best is at least 0.25 worse
    "in 3 days": ("in 3 Tagen", -2.7453),
    "March 2026": ("März 2026", -1.2958),
    "3 hours, 25 minutes, and 1 second": ("3 Stunden, 25 Minuten und 1 Sekunden", -1.6880),
    "1,250.75": ("1.250,75", -1.4401),
    "12.5%": ("12,5 %", -0.9396),
    "1.25 billion": ("1,25 Milliarden", -1.5699),
    "": ("", 0.0),
}


@pytest.fixture(scope="module")
def run() -> Run:
    return Run.open(str(FIXTURE))


def test_fixture_is_small_and_complete(run):
    files = [path for path in FIXTURE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert [os.path.basename(path) for path in paths(run)] == ["ckpt-1500", "ckpt-3000"]
    assert not any(map(damage, paths(run)))


def test_fixture_translates_as_before():
    model = t2t_repro.load(str(FIXTURE), average_checkpoints=2)
    for (text, (expected, score)), found in zip(TRANSLATIONS.items(), model.n_best(list(TRANSLATIONS), 1), strict=True):
        assert found[0] == (expected, pytest.approx(score, abs=2e-3)), text


def test_program_reads_the_fixture(program):
    text = "".join(f"{line}\n" for line in TRANSLATIONS).encode()
    result = program("t2t-decoder", f"--output_dir={FIXTURE}", "--average_checkpoints=2", stdin=text)
    assert result == (0, "".join(f"{translation}\n" for translation, _ in TRANSLATIONS.values()), "")


def test_fixture_can_be_trained_further(run, tmp_path):
    """The checkpoint has everything that the trainer saves: weights, both moments, step, position and cost."""
    run = Run.open(shutil.copytree(FIXTURE, tmp_path / "RUN"))
    model = Transformer(Vocabulary(run.vocabulary).size, run.hparams)
    step, position = tf.Variable(0, dtype=tf.int64), tf.Variable([0, 0, 0], shape=[None], dtype=tf.int64)
    spent = tf.Variable([0, 0, 0, 0], shape=[None], dtype=tf.float64)
    optimizer = Adam([weight.value for weight in model.trainable_variables], run.hparams)
    state = {"model": model, "optimizer": optimizer, "step": step, "position": position, "spent": spent}
    assert Checkpoints(run, state, keep=5).restore_newest()
    assert (int(step), position.numpy().tolist()) == (3_000, [6, 222])
    assert spent.numpy()[0] == run.training.target_tokens
    assert all(tf.reduce_any(moment != 0) for moment in (*optimizer.first, *optimizer.second))
