"""The moving average of the weights: against a Python loop, after a stop, and by every program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.continued_runs import must_be_bitwise_equal, stopped_at
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, on_cpus, values

import t2t_repro
from t2t_repro.config import TrainingOptions
from t2t_repro.evaluation.evaluator import evaluate, table
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.io import read_json
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import Averaging, averaged
from t2t_repro.training.checkpointing.weights import load_weights
from t2t_repro.training.optimizer import MovingAverage
from t2t_repro.training.trainer import train

STEPS, DECAY = 8, 0.7
HPARAMS = replace(TINY, train_steps=STEPS, average_checkpoints=STEPS, ema_decay=DECAY)
EVERY_STEP = TrainingOptions(precision="float32", checkpoint_steps=1, keep_best=1)
PREFIX = "moving_average/"


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """A run with a checkpoint of each step, and what it reported."""
    said: list[str] = []
    with on_cpus(1):
        directory = str(tmp_path_factory.mktemp("ema") / "RUN")
        return train(PROBLEM, HPARAMS, data, directory, EVERY_STEP, report=said.append), said


@pytest.fixture(scope="module")
def run(made):
    return made[0]


def both(run, step):
    """Returns the weights in a checkpoint and their moving averages, by the same names."""
    found = {name: value for name, value in values(run, step).items() if "seed_generator" not in name}
    weights, averages = (
        {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        for prefix in ("model/", PREFIX)
    )
    assert weights.keys() == averages.keys() and len(weights) > 20
    return weights, averages


def test_it_is_the_weighted_mean_of_the_weights_after_each_step(run):
    """By a loop over the checkpoints of all steps: after the first step it is the weights."""
    history = []
    for step in range(1, STEPS + 1):
        weights, averages = both(run, step)
        history.append(weights)
        shares = [DECAY ** (step - each) for each in range(1, step + 1)]
        for name, found in averages.items():
            expected = sum(s * np.float64(one[name]) for s, one in zip(shares, history, strict=True)) / sum(shares)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    assert any(np.abs(averages[name] - weights[name]).max() > 1e-3 for name in weights)


def test_the_first_share_is_exactly_one():
    """At a decay rate whose power float32 cannot subtract from 1: the initial weights are not part of the mean."""
    model = Transformer(11, replace(TINY, ema_decay=0.9999))
    average = MovingAverage.of(model, model.hparams)
    for weight in model.trainable_weights:
        weight.assign(weight + 1)
    average.update(tf.constant(1, tf.int64))
    for one, other in zip(average.model.trainable_weights, model.trainable_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert MovingAverage.of(model, TINY) is None


@pytest.mark.slow
def test_a_stopped_run_is_bitwise_equal(run, data, tmp_path, on_replicas):
    on_replicas(1)
    stopped = stopped_at(run, 3, tmp_path / "RUN")
    said: list[str] = []
    train(PROBLEM, HPARAMS, data, stopped.directory, EVERY_STEP, report=said.append)
    assert f"continuing {stopped.directory} at step 3" in said
    must_be_bitwise_equal(stopped, run, STEPS)


def test_training_does_not_depend_on_it(run, trained):
    """The run of the fixture has the same options, without a moving average."""
    expected, found = values(trained, STEPS), values(run, STEPS)
    assert found.keys() - expected.keys() == {name for name in found if name.startswith(PREFIX)}
    for name in (name for name in expected if not name.startswith(("spent", "run"))):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_validation_scores_it(made):
    """The perplexity in run.json is that of the average, as `evaluate` has it, and the recommendation says how to load
    it."""
    run, said = made
    noted = run.training.selection.scores["perplexity"][str(STEPS)]
    plain, average = (evaluate(run.directory, "validation", 1, 1, moving_average=flag) for flag in (False, True))
    assert noted == pytest.approx(average["perplexity"], rel=1e-4)
    assert noted != pytest.approx(plain["perplexity"], rel=1e-3)
    assert "moving_average" not in plain and average["moving_average"] is True
    assert "ckpt-8, moving average\n" in table(average) and "ckpt-8\n" in table(plain)
    assert said[-1].endswith("; `average_best` and `moving_average` load it")
    mean = evaluate(run.directory, "validation", STEPS, 1, moving_average=True)
    assert f"the last {STEPS}" in said[-1] and f" has {mean['perplexity']:.2f}" in said[-1]


def loaded(run, **how):
    model = Transformer(PROBLEM.vocab_size, run.hparams)
    load_weights(run, model, Averaging(**how))
    return [weight.numpy() for weight in model.trainable_weights]


def test_programs_read_it_on_request(run, tmp_path, program):
    """By load_weights, load, t2t-avg-checkpoints and export."""
    for flag, saved in zip((False, True), both(run, STEPS), strict=True):
        found = loaded(run, moving_average=flag)
        assert sorted(each.sum() for each in found) == sorted(each.sum() for each in saved.values())
        (model,) = t2t_repro.load(run.directory, moving_average=flag).ensemble.models
        for one, other in zip(model.trainable_weights, found, strict=True):
            np.testing.assert_array_equal(one, other)
    line = ("--output_dir", run.directory, "--average_checkpoints=2", "--moving_average", "--average_dir")
    code, out, _ = program("t2t-avg-checkpoints", *line, str(tmp_path / "MEAN"))
    assert (code, out) == (0, f"{tmp_path / 'MEAN'}: the mean of the moving averages in ckpt-7, ckpt-8\n")
    new = replace(run, directory=str(tmp_path / "MEAN"))
    assert averaged(new) == ["ckpt-7 (moving average)", "ckpt-8 (moving average)"]  # the parent of a run from it
    mean = loaded(new)
    for one, other in zip(loaded(run, checkpoints=2, moving_average=True), mean, strict=True):
        np.testing.assert_array_equal(one, other)
    path = export(run.directory, str(tmp_path / "E"), format="ctranslate2", moving_average=True)
    assert read_json(f"{path}/model_card.json")["moving_average"]
    with pytest.raises(
        ValueError, match="holds no moving average of the weights; leave out `moving_average`, or train"
    ):
        Translator.from_run(str(tmp_path / "MEAN"), moving_average=True)


@pytest.mark.slow
def test_a_run_from_other_weights_starts_its_average_there(run, data, tmp_path, on_replicas):
    """The weights of the parent, not its average: at step 0 both models are equal."""
    on_replicas(1)
    child, starts = str(tmp_path / "CHILD"), []

    def report(line):
        if line.startswith("starting from the weights of"):
            starts.append(both(Run.open(child), 0))

    train(PROBLEM, replace(HPARAMS, train_steps=1), data, child, FLOAT32, init_from=run.directory, report=report)
    ((weights, averages),) = starts
    for name, found in averages.items():
        np.testing.assert_array_equal(found, weights[name])
        np.testing.assert_array_equal(found, both(run, STEPS)[0][name])
