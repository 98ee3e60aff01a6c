"""A run that starts from another run: weights, vocabulary, first score, kills, and parents that do not fit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.continued_runs import must_be_bitwise_equal, stopped_at
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, on_cpus, silent, values

from t2t_repro.charts.training_curves import read_metrics
from t2t_repro.data.dataset import Dataset
from t2t_repro.exporting.exporter import export
from t2t_repro.io import read_json
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Generated
from t2t_repro.run import Run, TrainingData
from t2t_repro.training import training_loop
from t2t_repro.training.checkpointing.averaging import average
from t2t_repro.training.checkpointing.checkpoint_list import paths, write_list
from t2t_repro.training.checkpointing.parent import find_origin
from t2t_repro.training.dry_run import profiler
from t2t_repro.training.dry_run.estimate import dry_run
from t2t_repro.training.trainer import train

CHILD = replace(TINY, name="child", train_steps=4, dropout=0.0, batch_tokens=1_000, warmup_steps=2)


def farm_pairs():
    for number in range(60):
        yield f"{number} young sheep ☃", f"{number} junge Schafe ☃"


FARM = replace(PROBLEM, name="farm", train=(Generated(farm_pairs),), vocab_size=400)


@pytest.fixture(autouse=True)
def as_trained(on_replicas):
    on_replicas(1)


@pytest.fixture
def parent(trained, tmp_path):
    """A copy of `trained`, to be changed or removed."""
    return Run.open(str(shutil.copytree(trained.directory, tmp_path / "PARENT")))


def start(parent, data, output_dir, hparams=CHILD, problem=PROBLEM, report=silent, **options):
    options = {"init_from": str(getattr(parent, "directory", parent)), "prepare": prepare, "report": report} | options
    return train(problem, hparams, data, str(output_dir), FLOAT32, **options)


def weights(run, step):
    return {name: value for name, value in values(run, step).items() if name.startswith("model/")}


def lines(run):
    with open(run.metrics, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# The start.


class Started(NamedTuple):
    """A run that started from `trained`."""

    run: Run
    said: list[str]
    first: dict[str, np.ndarray]  # the variables of its checkpoint of step 0, which training removes


@pytest.fixture(scope="module")
def started(trained, data, tmp_path_factory) -> Started:
    """A child of `trained` with checkpoints at 2 and 4. Do not change it."""
    folder, said, first = tmp_path_factory.mktemp("started"), [], {}
    save, options = training_loop.Checkpoints.save, replace(FLOAT32, checkpoint_steps=2)

    def recorded(self, step, keep=()):
        path = save(self, step, keep)
        if step == 0:
            first.update(values(Run.open(str(folder / "CHILD")), 0))
        return path

    with on_cpus(1) as patch:
        patch.setattr(training_loop.Checkpoints, "save", recorded)
        how = {"init_from": trained.directory, "prepare": prepare, "report": said.append}
        return Started(train(PROBLEM, CHILD, data, str(folder / "CHILD"), options, **how), said, first)


@pytest.fixture
def child(started, tmp_path) -> Run:
    """A copy of that child."""
    return replace(started.run, directory=str(shutil.copytree(started.run.directory, tmp_path / "CHILD")))


def test_first_validation_is_the_parents_last(started, trained):
    """The same weights on the same text: to the last digit. It is in the log, in metrics.jsonl and in the curves."""
    (last,) = [line for line in lines(trained) if line["step"] == 8 and "validation_loss" in line]
    (first,) = [line for line in lines(started.run) if line["step"] == 0]
    assert first == last | {"step": 0}
    assert any(line.startswith("checkpoint at step 0: validation ppl ") for line in started.said)
    assert read_metrics(started.run.metrics)["validation_perplexity"][0] == (0, last["validation_perplexity"])
    assert [line["step"] for line in lines(started.run) if "learning_rate" in line][-1] == 4


def test_weights_are_the_parents_and_the_optimizer_is_new(started, trained):
    for name, value in weights(trained, 8).items():
        np.testing.assert_array_equal(started.first[name], value, name)
    moments = [
        value for name, value in started.first.items() if name.startswith(("optimizer/first", "optimizer/second"))
    ]
    assert moments and not any(np.any(value) for value in moments)
    assert started.first["position/.ATTRIBUTES/VARIABLE_VALUE"].tolist() == [0, 0, 0]


def test_run_json_and_the_model_card_record_the_parent(started, trained, data, tmp_path):
    recorded = read_json(os.path.join(started.run.directory, "run.json"))["parent"]
    assert recorded["problem"] == "animals" and recorded["fingerprint"] == f"{trained.fingerprint:016x}"
    assert (recorded["step"], recorded["checkpoints"]) == (8, ["ckpt-8"])
    assert TrainingData.from_json(recorded["data"]) == trained.training.data
    assert recorded["directory"] == trained.directory
    card = read_json(f"{export(started.run.directory, str(tmp_path / 'E'), format='ctranslate2')}/model_card.json")
    assert card["parent"] == {name: value for name, value in recorded.items() if name != "directory"}
    grandchild = start(started.run, data, tmp_path / "GRANDCHILD", replace(CHILD, train_steps=1))
    assert grandchild.parent.parent == started.run.parent


def test_first_checkpoint_is_never_averaged(started):
    """The paper averages checkpoints of training; step 0 is another run's."""
    assert [os.path.basename(path) for path in paths(started.run)] == ["ckpt-2", "ckpt-4"]


def test_one_checkpoint_of_a_run(trained, data, tmp_path):
    checkpoint = f"{trained.directory}/checkpoints/ckpt-4"
    child = start(checkpoint, data, tmp_path / "CHILD", replace(CHILD, train_steps=1))
    assert child.parent.checkpoints == ("ckpt-4",)
    (earlier,) = [line for line in lines(trained) if line["step"] == 4 and "validation_loss" in line]
    assert lines(child)[0] == earlier | {"step": 0}
    by_file = find_origin(f"{checkpoint}.index", PROBLEM, CHILD, str(tmp_path / "OTHER"))
    assert by_file.parent == child.parent


def test_an_averaged_run_is_a_parent(parent, data, tmp_path):
    average(parent.directory, str(tmp_path / "MEAN"), 2)
    mean = Run.open(str(tmp_path / "MEAN"))
    with pytest.raises(ValueError, match=r"an average, which has no optimizer state; start a new run from it"):
        train(PROBLEM, parent.hparams, data, mean.directory, FLOAT32, prepare=prepare, report=silent)
    child = start(mean, data, tmp_path / "CHILD", replace(CHILD, train_steps=1))
    assert child.parent.checkpoints == ("ckpt-4", "ckpt-8")
    with pytest.raises(ValueError, match="its parent is 'animals, mean of ckpt-4 [+] ckpt-8 .*not 'animals, ckpt-8 "):
        start(parent, data, child.directory)


def test_a_run_of_an_old_version_is_a_parent(data, tmp_path):
    """Version 0.1 wrote it, on the built-in problem."""
    fixture = Run.open(str(CHECKOUT / "tests/fixtures/run"))
    hparams = replace(fixture.hparams, train_steps=1, dropout=0.1)
    child = start(fixture, str(tmp_path), tmp_path / "CHILD", hparams, FARM)
    assert child.problem.vocab_size == 400 and child.parent.problem == "translate_ende_cldr"


# Kills.


class Killed(Exception):
    pass


@pytest.mark.slow
def test_killed_at_the_start_equals_uninterrupted(started, parent, data, tmp_path, monkeypatch):
    """Before weights are loaded, before they are saved, and after. Meanwhile the parent trains on: the run keeps the
    checkpoint that it started from."""

    def kill(*_):
        raise Killed

    moments = [
        (training_loop, "load_checkpoint"),
        (training_loop.Checkpoints, "save"),
        (training_loop.TrainingLoop, "record_progress"),
    ]
    for owner, name in moments:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(owner, name, kill)
            start(parent, data, tmp_path / "CHILD")
        if owner is training_loop:
            longer = replace(parent.hparams, train_steps=9)
            train(PROBLEM, longer, data, parent.directory, FLOAT32, prepare=prepare, report=silent)
            assert os.path.basename(paths(parent)[-1]) == "ckpt-9"
    child = start(parent, data, tmp_path / "CHILD")
    assert child.parent.checkpoints == ("ckpt-8",)
    must_be_bitwise_equal(child, started.run, 4)


def test_a_run_with_a_checkpoint_does_not_need_its_parent(started, child, parent, data, tmp_path):
    from_copy = replace(child, parent=replace(child.parent, directory=parent.directory)).start(child.vocabulary)
    stopped = stopped_at(from_copy, 2, tmp_path / "STOPPED")
    os.rename(parent.directory, tmp_path / "MOVED")
    assert start(parent.directory, data, stopped.directory).parent == from_copy.parent
    must_be_bitwise_equal(stopped, started.run, 4)
    moved = start(tmp_path / "MOVED", data, stopped.directory)  # finished, and the same parent wherever it is
    assert moved.parent.directory == str(tmp_path / "MOVED")
    with pytest.raises(FileNotFoundError, match="init_from: no directory '.*other'"):
        start(tmp_path / "other", data, stopped.directory)


@pytest.mark.parametrize("other", [False, True])
def test_a_run_with_a_checkpoint_continues_beside_what_became_of_its_parent(parent, data, tmp_path, other):
    """Its checkpoints are gone, or another run is there."""
    child = start(parent, data, tmp_path / "OWN", replace(CHILD, train_steps=1))
    shutil.rmtree(parent.checkpoints)
    if other:
        shutil.rmtree(parent.directory)
        train(PROBLEM, replace(CHILD, train_steps=1), data, parent.directory, replace(FLOAT32, seed=5), report=silent)
    run = start(parent, data, child.directory, replace(CHILD, train_steps=2))
    assert run.training.step == 2 and run.parent == child.parent


def test_a_parent_that_trains_on_while_the_data_is_prepared(parent, data, tmp_path):
    """The checkpoint that was its newest is gone: its newest one now is taken."""
    newest = paths(parent)[-1]

    def slow(*arguments, **options):
        step = int(newest.rpartition("-")[2])
        for name in os.listdir(parent.checkpoints):
            path = os.path.join(parent.checkpoints, name)
            os.rename(path, path.replace(f"ckpt-{step}.", "ckpt-900."))
        write_list(parent, [newest.replace(f"ckpt-{step}", "ckpt-900")])
        return prepare(*arguments, **options)

    run = start(parent, data, tmp_path / "LATE", replace(CHILD, train_steps=1), prepare=slow)
    assert run.parent.step == 900 and run.training.step == 1


def test_a_parent_that_is_gone_too_early(parent, data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training_loop, "load_checkpoint", lambda *_: (_ for _ in ()).throw(Killed))
        start(parent, data, tmp_path / "CHILD")
    shutil.rmtree(parent.directory)
    with pytest.raises(FileNotFoundError, match="init_from: no directory '.*PARENT'; give the one that t2t-trainer wr"):
        start(parent.directory, data, tmp_path / "CHILD")


# What must fit.


def test_another_parent_is_another_run(child, parent, trained, data):
    with pytest.raises(
        ValueError, match="holds another run: its parent is 'animals, ckpt-8 .*, not 'none'; give anoth"
    ):
        train(PROBLEM, CHILD, data, child.directory, FLOAT32, prepare=prepare, report=silent)
    with pytest.raises(ValueError, match="its parent is 'none', not 'animals, ckpt-4 .*'; give another output_dir"):
        start(f"{parent.directory}/checkpoints/ckpt-4", data, trained.directory, trained.hparams)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_ff": 32}, "init_from: the weights in '.*' have d_ff=24. Received: d_ff=32; take those of the run"),
        ({"num_layers": 2}, "have num_layers=1. Received: num_layers=2;"),
        ({"num_encoder_layers": 3}, "have num_encoder_layers=1. Received: num_encoder_layers=3;"),
        (
            {"num_heads": 1, "d_k": 10, "d_v": 14},
            "have num_heads=2, d_k=5, d_v=7. Received: num_heads=1, d_k=10, d_v=14",
        ),
        ({"positions": "learned"}, "have positions=sinusoid. Received: positions=learned;"),
    ],
)
def test_sizes_that_weights_fix(trained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        find_origin(trained.directory, PROBLEM, replace(CHILD, **changes), str(tmp_path))


def test_length_of_learned_positions_is_fixed(trained, tmp_path):
    def learned(run, max_positions):
        return replace(run.hparams, positions="learned", max_positions=max_positions)

    run = replace(trained, directory=str(tmp_path / "RUN"), hparams=learned(trained, 512))
    run.start(trained.vocabulary)
    message = "have max_positions=512. Received: max_positions=1024; take those of the run"
    with pytest.raises(ValueError, match=message):
        find_origin(run.directory, PROBLEM, learned(trained, 1024), "none")


def test_fields_that_weights_do_not_fix(trained, tmp_path):
    free = {"dropout": 0.3, "attention_dropout": 0.1, "label_smoothing": 0.0, "batch_tokens": 500, "warmup_steps": 9}
    free |= {"max_positions": 64, "learning_rate_scale": 0.5, "adam_beta2": 0.99, "num_encoder_layers": 1}
    origin = find_origin(trained.directory, FARM, replace(CHILD, **free), str(tmp_path))
    assert origin.problem == replace(FARM, vocab_size=PROBLEM.vocab_size)


def test_another_task_is_rejected(trained, tmp_path):
    parsing = replace(PROBLEM, name="trees", metric="f1", train=(), validation=(), test=())
    message = "is a translation run, and problem 'trees' is parsing; give a run of the same task"
    with pytest.raises(ValueError, match=message):
        find_origin(trained.directory, parsing, TINY, str(tmp_path))


def test_a_child_without_checkpoints_may_start_from_a_newer_checkpoint(parent, tmp_path):
    """It failed before its first checkpoint, and the parent trained on and removed the one that the child noted."""
    origin = find_origin(f"{parent.directory}/checkpoints/ckpt-4", PROBLEM, CHILD, str(tmp_path / "CHILD"))
    child = Run(str(tmp_path / "CHILD"), PROBLEM, CHILD, "DATA", 1, "float32", parent.vocabulary_sha256, origin.parent)
    child.start(parent.vocabulary)
    assert find_origin(parent.directory, PROBLEM, CHILD, child.directory).parent.step == 4
    write_list(parent, ["ckpt-8"])
    for file in Path(parent.checkpoints).glob("ckpt-4.*"):
        file.unlink()
    assert find_origin(parent.directory, PROBLEM, CHILD, child.directory).parent.step == 8


def test_checkpoints_that_cannot_be_loaded(parent, data, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no checkpoint ckpt-5; give one of ckpt-4, ckpt-8"):
        start(f"{parent.directory}/checkpoints/ckpt-5", data, tmp_path / "CHILD")
    path = f"{parent.directory}/checkpoints/ckpt-8.data-00000-of-00001"
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(ValueError, match="ckpt-8 is damaged .*; take another checkpoint of its run"):
        start(parent, "no data yet", tmp_path / "CHILD")
    assert not os.path.exists("no data yet")
    shutil.rmtree(parent.checkpoints)
    with pytest.raises(FileNotFoundError, match="init_from: '.*' has no checkpoint yet; train it first"):
        start(parent, data, tmp_path / "CHILD")


# The vocabulary.


def test_text_is_prepared_with_the_vocabulary_of_the_parent(parent, tmp_path):
    """Characters that the parent never saw are spelled in bytes."""
    child = start(parent, str(tmp_path / "data"), tmp_path / "CHILD", replace(CHILD, train_steps=1), FARM)
    dataset = Dataset.open(str(tmp_path / "data/farm"))
    assert dataset.record.vocabulary.given_by == parent.directory
    assert dataset.record.vocabulary.sha256 == child.vocabulary_sha256 == parent.vocabulary_sha256
    assert dataset.record.problem.vocab_size == child.problem.vocab_size == PROBLEM.vocab_size
    (file,) = dataset.shards("train")
    record = tf.io.parse_single_example(
        next(iter(tf.data.TFRecordDataset(file))), {"inputs": tf.io.VarLenFeature(tf.int64)}
    )
    from t2t_repro.data.vocabulary import Vocabulary

    (text,) = Vocabulary(parent.vocabulary).decode([record["inputs"].values.numpy().tolist()])
    assert text.endswith(" young sheep ☃")


def test_another_vocabulary_is_rejected(parent, tmp_path):
    data = str(tmp_path / "data")
    prepare(replace(FARM, vocab_size=PROBLEM.vocab_size), data, silent)
    message = (
        "farm' was prepared with another vocabulary than that of the run '.*PARENT'; give another `data_dir`, where"
    )
    with pytest.raises(ValueError, match=message):
        start(parent, data, tmp_path / "CHILD", problem=FARM)
    with pytest.raises(ValueError, match=message):
        start(parent, data, tmp_path / "CHILD", problem=FARM, prepare=None)
    with pytest.raises(ValueError, match=message):
        dry_run(FARM, CHILD, data, str(tmp_path / "CHILD"), FLOAT32, init_from=parent.directory, report=silent)
    assert not os.path.exists(tmp_path / "CHILD")


@pytest.mark.slow
def test_dry_run_of_a_run_from_a_parent(parent, tmp_path, monkeypatch):
    """The data is not prepared: random tokens of the parent's vocabulary take its place. Nothing is written."""
    monkeypatch.setattr(profiler, "TIMED_SECONDS", 0.0)
    shown = []
    how = {"init_from": parent.directory, "show": shown.append, "report": silent}
    dry_run(FARM, CHILD, str(tmp_path / "data"), str(tmp_path / "CHILD"), FLOAT32, **how)
    count = CHILD.num_parameters(PROBLEM.vocab_size)
    assert f"parameters  {count:,} with {PROBLEM.vocab_size} subwords" in shown
    assert "starts from animals, ckpt-8" in "\n".join(shown)
    assert sorted(os.listdir(tmp_path)) == ["PARENT"]
