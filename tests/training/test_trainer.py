"""The trainer: the run directory, stopping and continuing, and invalid settings."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from helpers.tiny_model import (
    FLOAT32,
    PART_TOKENS,
    PROBLEM,
    TINY,
    on_cpus,
    refuse_evaluation,
    refuse_parts,
    silent,
    train_pairs,
    validation_pairs,
    values,
)

from t2t_repro.data import batching
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.flops import training_flops
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import SPLITS, Generated
from t2t_repro.run import Run, TrainingData
from t2t_repro.system.signals import Interrupted
from t2t_repro.training import training_loop, validation
from t2t_repro.training.checkpointing.checkpoint_list import paths
from t2t_repro.training.metrics import UNKNOWN
from t2t_repro.training.train_step import validate_settings
from t2t_repro.training.trainer import train

SPENT = "spent/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(autouse=True)
def two_parts(monkeypatch):
    monkeypatch.setattr(batching, "PART_TOKENS", PART_TOKENS)  # as in `trained`


def one_line_is_long():
    yield from validation_pairs()
    yield "3 red cats " * 20_000, "drei"


def metrics(run: Run) -> list[dict[str, float]]:
    with open(run.metrics, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# The run directory.


def test_a_run_directory(trained):
    names = set(os.listdir(trained.directory))
    assert names >= {"run.json", "vocabulary.model", "checkpoints", "metrics.jsonl"}
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert [os.path.basename(path) for path in paths(trained)] == ["ckpt-4", "ckpt-8"]
    run = Run.open(trained.directory)
    assert (run.hparams, run.seed, run.precision) == (replace(TINY, checkpoint_steps=4), 1, "float32")


def test_run_json_records_data_and_cost(trained, data):
    """Tokens and operations are counted again here, over the same steps."""
    training = trained.training
    sizes = {"pairs": 300, "vocab_size": PROBLEM.vocab_size}
    texts = {split: f"helpers.tiny_model.{split}_pairs" for split in SPLITS}
    assert training.data == TrainingData(**sizes, **texts)
    assert training.step == 8 and training.replicas == 1 and training.paper_flops is None
    shards = [os.path.join(data, PROBLEM.name, "train-00000-of-00001.tfrecord")]
    tokens = flops = 0.0
    for element in TrainingText(shards, TINY.batch_tokens, seed=1).batches(0, epochs=None).take(8):
        for target, size in zip(element["targets"].numpy(), element["sizes"].numpy().tolist(), strict=True):
            tokens += np.count_nonzero(target)
            flops += training_flops(TINY, PROBLEM.vocab_size, *size, np.count_nonzero(target))
    assert training.target_tokens == tokens and training.flops == pytest.approx(flops)
    assert training.seconds > 0 and " of " in training.device


def test_metrics(trained):
    """Every line is JSON, and steps increase. All steps are reported by the end, validation at each checkpoint."""
    lines = metrics(trained)
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps) and steps[-1] == 8
    updates = [line for line in lines if "loss" in line]
    validations = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in validations] == [4, 8]
    assert validations[1]["validation_loss"] < validations[0]["validation_loss"]
    for line in updates:
        assert line["target_tokens_per_second"] > 0 and line["gradient_norm"] > 0 and line["skipped_updates"] == 0
        assert 0 <= line["accuracy"] <= 1 < line["perplexity"]
    assert updates[-1]["learning_rate"] == pytest.approx(TINY.d_model**-0.5 * 8**-0.5)


def test_perplexity_has_no_label_smoothing(trained):
    """Label smoothing increases the loss, so exp(loss) would be larger."""
    (line, *_) = [line for line in metrics(trained) if "validation_loss" in line]
    assert math.log(line["validation_perplexity"]) < line["validation_loss"]


def test_a_long_validation_line_does_not_stop_training(tmp_path, monkeypatch, one_replica):
    """One line of 20,000 words: its attention weights would take 4 TB."""
    widths, said = [], []
    make = validation.make_evaluator

    def recorded(*arguments):
        evaluate = make(*arguments)
        return lambda *sides: (widths.extend(side.shape[1] for side in sides), evaluate(*sides))[1]

    monkeypatch.setattr(validation, "make_evaluator", recorded)
    problem = replace(PROBLEM, validation=(Generated(one_line_is_long),))
    hparams = replace(TINY, max_positions=64, train_steps=1)
    run = train(problem, hparams, str(tmp_path), str(tmp_path / "RUN"), FLOAT32, prepare=prepare, report=said.append)
    assert max(widths) == 64 and "validation_loss" in metrics(run)[-1]
    assert "1 validation pairs have more than 64 tokens per side and are cut" in said


# Stopping and continuing.


def test_stopped_and_continued_equals_uninterrupted(trained, data, tmp_path, monkeypatch, one_replica):
    """Stops by a signal in the second epoch, between two checkpoints, and continues to more steps than declared.

    Weights, moments and position are bitwise equal, also with dropout.
    """
    output_dir = str(tmp_path / "RUN")

    def rate(step, hparams):
        if step == 5:
            signal.raise_signal(signal.SIGINT)
        return learning_rate(step, hparams)

    learning_rate, handler = training_loop.learning_rate, signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(training_loop, "learning_rate", rate)
    with pytest.raises(Interrupted, match="stopped by SIGINT; the same command continues") as stopped:
        train(PROBLEM, replace(TINY, train_steps=7), data, output_dir, FLOAT32, report=silent)
    assert stopped.value.signal == signal.SIGINT and signal.getsignal(signal.SIGINT) is handler
    assert [os.path.basename(path) for path in paths(Run.open(output_dir))] == ["ckpt-5"]
    monkeypatch.setattr(training_loop, "learning_rate", learning_rate)

    said: list[str] = []
    run = train(PROBLEM, TINY, data, output_dir, FLOAT32, report=said.append)
    assert f"continuing {output_dir} at step 5" in said
    uninterrupted, continued = values(trained, 8), values(run, 8)
    assert uninterrupted.keys() == continued.keys()
    tokens, flops, seconds, paper = continued.pop(SPENT)
    assert paper == UNKNOWN
    assert [tokens, flops] == pytest.approx(uninterrupted.pop(SPENT)[:2].tolist()) and seconds > 0
    for name, array in continued.items():
        np.testing.assert_array_equal(array, uninterrupted[name], err_msg=name)
    assert continued["position/.ATTRIBUTES/VARIABLE_VALUE"].tolist()[0] >= 1


WITHOUT_DROPOUT = replace(TINY, dropout=0.0, train_steps=6)


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory) -> Run:
    """A run without dropout in micro-batches of 1,000 tokens, with checkpoints at 3 and 6. Do not change it."""
    with on_cpus(1):
        directory = str(tmp_path_factory.mktemp("plain") / "RUN")
        return train(PROBLEM, WITHOUT_DROPOUT, data, directory, replace(FLOAT32, checkpoint_steps=3), report=silent)


def must_be_close(found: Run, expected: Run, step: int) -> None:
    """Asserts that both runs have taken the same steps of the same tokens, except for rounding."""
    ours, theirs = values(found, step), values(expected, step)
    assert ours.keys() == theirs.keys() and ours.pop(SPENT)[0] == theirs.pop(SPENT)[0]
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-3, err_msg=name)


def test_train_halves_micro_batches_if_memory_runs_out(plain, data, tmp_path, monkeypatch, one_replica):
    """A step has two micro-batches of about forty pairs; training continues at the failed step with four."""
    said: list[str] = []
    with monkeypatch.context() as patch:
        refuse_parts(patch, more_than=40)
        hparams = replace(WITHOUT_DROPOUT, train_steps=5)
        run = train(PROBLEM, hparams, data, str(tmp_path / "CUT"), FLOAT32, report=said.append)
    assert "2,000 tokens per side and step = 1 replica x 2 micro-batches" in " ".join(said)
    (line,) = [line for line in said if line.startswith("out of memory")]
    smaller = "2,000 tokens per side and step = 1 replica x 4 micro-batches"
    assert line == f"out of memory in step 1; continuing with {smaller}"
    assert run.training.held_tokens == 500

    said.clear()  # a continued run knows the size that fits
    train(PROBLEM, WITHOUT_DROPOUT, data, str(tmp_path / "CUT"), FLOAT32, report=said.append)
    assert "1 replica x 4 micro-batches" in " ".join(said)
    must_be_close(run, plain, 6)

    run.note(replace(run.training, device="another"))  # of which this size is
    train(PROBLEM, replace(WITHOUT_DROPOUT, train_steps=7), data, str(tmp_path / "CUT"), FLOAT32, report=silent)
    assert run.training.held_tokens is None


@pytest.mark.slow
def test_training_compiled_by_xla(plain, data, tmp_path, one_replica):
    """It learns the same, and a run without XLA can continue it."""
    hparams, options = replace(WITHOUT_DROPOUT, train_steps=3), replace(FLOAT32, jit_compile=True)
    compiled = train(PROBLEM, hparams, data, str(tmp_path / "XLA"), options, report=silent)
    must_be_close(compiled, plain, 3)
    continued = train(PROBLEM, WITHOUT_DROPOUT, data, str(tmp_path / "XLA"), FLOAT32, report=silent)
    must_be_close(continued, plain, 6)


def test_train_reports_that_no_micro_batch_fits(data, tmp_path, monkeypatch, one_replica):
    refuse_parts(monkeypatch, more_than=0)
    message = (
        "out of memory in step 1, 2,000 tokens .* x 63 micro-batches; use a smaller hyperparameter set, "
        r".* \(OOM when allocating"
    )
    with pytest.raises(ValueError, match=message):
        train(PROBLEM, TINY, data, str(tmp_path / "RUN"), report=silent)
    assert not os.listdir(tmp_path / "RUN" / "checkpoints")


@pytest.mark.parametrize(("microbatch_tokens", "number"), [(2_000, 1), pytest.param(667, 3, marks=pytest.mark.slow)])
def test_micro_batches_of_any_size_make_the_same_step(plain, data, tmp_path, one_replica, microbatch_tokens, number):
    """Two micro-batches joined, and cut into thirds: the sums differ by rounding."""
    options, lines = replace(FLOAT32, microbatch_tokens=microbatch_tokens), []
    hparams = replace(WITHOUT_DROPOUT, train_steps=3)
    run = train(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, report=lines.append)
    assert f"1 replica x {number} micro-batch" in " ".join(lines)
    must_be_close(run, plain, 3)


@pytest.mark.slow
def test_validation_continues_in_smaller_batches_if_memory_runs_out(trained, data, tmp_path, monkeypatch, one_replica):
    """Down to batches of one pair. If none fits, training continues without the score."""
    run = Run.open(shutil.copytree(trained.directory, str(tmp_path / "RUN")))
    expected = json.loads(Path(run.metrics).read_text().splitlines()[-1])
    for limit, step in ((1, 9), (0, 10)):
        with monkeypatch.context() as patch:
            refuse_evaluation(patch, more_than=limit)
            lines: list[str] = []
            train(PROBLEM, replace(TINY, train_steps=step), data, run.directory, FLOAT32, report=lines.append)
        newest = json.loads(Path(run.metrics).read_text().splitlines()[-1])
        if limit:
            assert newest["validation_loss"] == pytest.approx(expected["validation_loss"], rel=0.2)
        else:
            assert "validation_loss" not in newest
            assert lines[-1].startswith("checkpoint at step 10: saved, not validated: out of memory (OOM when")
    assert paths(run)[-1].endswith("ckpt-10")


@pytest.mark.slow
def test_two_replicas_train_like_one(trained, data, tmp_path):
    """The trainer uses both CPUs of these tests, with one micro-batch each; the order of sums changes rounding."""
    run = train(PROBLEM, replace(TINY, train_steps=4), data, str(tmp_path / "RUN"), FLOAT32, report=silent)
    one, two = values(trained, 4), values(run, 4)
    assert one.keys() == two.keys()
    for name in (name for name in one if name.startswith("model/") and "seed_generator" not in name):
        assert np.linalg.norm(one[name] - two[name]) <= 1e-3 * np.linalg.norm(one[name]), name


def test_a_finished_run_is_unchanged(copy, data, one_replica):
    """It keeps its checkpoints, also if they are not those of the new interval."""
    run = Run.open(copy)
    before, interval = (paths(run), values(run, 8)), replace(FLOAT32, checkpoint_steps=3)
    train(PROBLEM, TINY, data, copy, interval, report=silent)
    assert paths(run) == before[0]
    for name, array in values(run, 8).items():
        np.testing.assert_array_equal(array, before[1][name])


# Invalid settings.


@pytest.fixture
def copy(trained, tmp_path) -> str:
    return shutil.copytree(trained.directory, str(tmp_path / "RUN"))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"seed": 2}, "RUN' holds another run: its seed is 1, not 2; give another output_dir"),
        ({"d_ff": 25}, {}, "RUN' holds another run: its d_ff is 24, not 25"),
        ({}, {"precision": "bfloat16"}, "RUN' holds another run: its precision is 'float32', not 'bfloat16'"),
        ({}, {"precision": "tf32"}, "'tf32' expects GPUs of compute capability 8.0 or later. Received: no GPU"),
        *[
            (
                {"max_positions": 59, "positions": positions},
                {},
                "max_length must be at most max_positions = 59. Received: max_length=60; raise max_positions, or",
            )
            for positions in ("learned", "sinusoid")
        ],
        (
            {"batch_tokens": 59},
            {},
            "max_length must be at most batch_tokens / 1 = 59. Received: max_length=60; raise batch_tokens",
        ),
        (
            {"decay_steps": 4},
            {"patience": 2, "train_epochs": 1},
            r"falls to 0 at train_steps=8 \(decay_steps=4\): expected no earlier end, got patience=2 and "
            "train_epochs=1; leave that out, or set decay_steps=0",
        ),
        ({"decay_steps": 4}, {"train_minutes": 0.5}, "expected no earlier end, got train_minutes=0.5; leave that out"),
    ],
)
def test_invalid_combinations(copy, data, changes, options, message):
    before = sorted(os.listdir(copy))
    with pytest.raises(ValueError, match=message):
        train(PROBLEM, replace(TINY, **changes), data, copy, replace(FLOAT32, **options), report=silent)
    assert sorted(os.listdir(copy)) == before


def test_a_sentence_longer_than_a_micro_batch_is_rejected():
    """1,600 tokens are two micro-batches of 800."""
    problem, hparams = replace(PROBLEM, max_length=900), replace(TINY, batch_tokens=1_600)
    with pytest.raises(ValueError, match="max_length must be at most batch_tokens / 2 = 800. Received: max_length=900"):
        validate_settings(problem, hparams)
    validate_settings(replace(problem, max_length=800), hparams)


def test_a_run_without_its_list_of_checkpoints_does_not_start_over(copy, data, one_replica):
    os.remove(os.path.join(copy, "checkpoints", "checkpoint"))
    with pytest.raises(ValueError, match="holds checkpoints, but its file 'checkpoint', which lists them, is missing"):
        train(PROBLEM, TINY, data, copy, FLOAT32, report=silent)


def test_two_trainers_in_one_directory(copy, data):
    with FileLock(os.path.join(copy, ".lock")):
        before = Path(copy, "run.json").read_bytes()
        with pytest.raises(ValueError, match="another t2t-trainer is running in .*RUN'; wait for it, or stop it"):
            train(PROBLEM, replace(TINY, train_steps=60), data, copy, FLOAT32, report=silent)
        assert Path(copy, "run.json").read_bytes() == before


def test_a_run_whose_checkpoints_were_moved_away_starts_over(copy, data, one_replica):
    os.rename(os.path.join(copy, "checkpoints"), os.path.join(copy, "moved"))
    said: list[str] = []
    run = train(PROBLEM, replace(TINY, train_steps=2), data, copy, FLOAT32, report=said.append)
    assert any("RUN has no checkpoint of its " in line and line.endswith("starting over") for line in said)
    assert [os.path.basename(path) for path in paths(run)] == ["ckpt-2"] and run.training.step == 2


def test_a_run_does_not_continue_on_other_text(copy, data, tmp_path, one_replica):
    """The position in the data would be one of other text, and run.json would name only that."""
    other = replace(PROBLEM, train=(Generated(lambda: iter([*train_pairs()][:200])),))
    prepare(other, str(tmp_path / "other"), silent, vocabulary_from=copy)
    before = Path(copy, "run.json").read_bytes()
    with pytest.raises(ValueError, match="RUN' was trained on other text than that in .*other/animals'; give"):
        train(other, replace(TINY, train_steps=20), str(tmp_path / "other"), copy, FLOAT32, report=silent)
    assert Path(copy, "run.json").read_bytes() == before
