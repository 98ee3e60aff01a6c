"""t2t-avg-checkpoints: writes a run with the mean of another run's last checkpoints."""

from __future__ import annotations

import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, SMALL, random_model, train_pairs

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.io import read_json
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.run import Run
from t2t_repro.selection import Selection
from t2t_repro.training.checkpointing.averaging import average
from t2t_repro.training.checkpointing.checkpoint_list import Averaging
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.checkpointing.weights import load_weights

STEPS = (10, 20, 30)
TEXTS = ["3 red cats and 4 old dogs", "12 big cows"]


def make_run(directory, folder, seed=1, weights=STEPS, **changes):
    """Returns an untrained run whose checkpoint at each step holds random weights."""
    vocabulary = str(folder / "vocabulary.model")
    if not os.path.exists(vocabulary):
        learn_vocabulary([side for pair in train_pairs() for side in pair], vocabulary, "bpe", PROBLEM.vocab_size)
    hparams = dataclasses.replace(SMALL, average_checkpoints=2, checkpoint_steps=10, **changes)
    run = Run(str(directory), PROBLEM, hparams, "DATA", seed, "float32", Vocabulary(vocabulary).sha256)
    run.start(vocabulary)
    model = random_model(PROBLEM.vocab_size, **changes)
    checkpoints = Checkpoints(run, {"model": model, "step": tf.Variable(0)}, keep=5)
    for step in weights:
        for weight, other in zip(model.weights, random_model(PROBLEM.vocab_size, step, **changes).weights, strict=True):
            weight.assign(other)
        checkpoints.save(step)
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average")
    return make_run(folder / "RUN", folder)


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """Copies that run to RUN in a temporary folder, for tests that damage it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made.directory, "RUN")
    shutil.copy(made.vocabulary, "vocabulary.model")
    return Run.open("RUN")


def test_the_card_of_an_export_names_the_averaged_checkpoints(run, tmp_path):
    """The same card for a run that is already averaged, and for averaging during the export."""
    average("RUN", "MEAN", 2)
    for directory, number, checkpoints in (("MEAN", 1, ["ckpt-30"]), ("RUN", 2, ["ckpt-20", "ckpt-30"])):
        card = read_json(f"{export(directory, str(tmp_path / 'E'), number, format='ctranslate2')}/model_card.json")
        assert (card["checkpoints"], card["average_of"]) == (checkpoints, ["ckpt-20", "ckpt-30"])


def test_programs_report_an_average_over_fewer(run, program):
    line = "RUN has 3 of the 9 checkpoints that --average_checkpoints asks for: ckpt-10, ckpt-20, ckpt-30\n"
    asked = ["--output_dir=RUN", "--average_checkpoints=9"]
    assert program("t2t-decoder", *asked, stdin=b"12\n").err == line
    assert program("t2t-exporter", *asked, "--export_dir=E", "--format=ctranslate2").err == line
    assert program("t2t-attention", *asked, "12 cows", "--target=12").err.startswith(line)
    assert program("t2t-eval", *asked).err.startswith(line)  # and then finds no data
    assert program("t2t-decoder", "--output_dir=RUN", "--average_checkpoints=3", stdin=b"12\n").err == ""


def variables(directory, step):
    reader = tf.train.load_checkpoint(os.path.join(directory, "checkpoints", f"ckpt-{step}"))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if n.startswith("model/")}


def test_equals_a_manual_average(run):
    average("RUN", "NEW", 3)
    each = [variables("RUN", step) for step in STEPS]
    new = variables("NEW", 30)
    weights = [name for name in new if "seed_generator" not in name]
    assert new.keys() == each[0].keys() and len(weights) > 40
    for name in weights:
        by_hand = np.mean([np.float64(one[name]) for one in each], axis=0).astype(np.float32)
        np.testing.assert_allclose(new[name], by_hand, rtol=1e-6, atol=1e-7)
        assert not np.array_equal(new[name], each[2][name])


def test_an_average_of_the_best(run, program):
    """The mean has no score of its own, so its run does not inherit those of the checkpoints."""
    scores = {"10": 3.0, "20": 9.0, "30": 4.0}
    run.note(dataclasses.replace(run.training, selection=Selection(scores={"perplexity": scores})))
    code, out, _ = program("t2t-avg-checkpoints", "--output_dir=RUN", "--average_dir=NEW", "--average_best")
    assert (code, out) == (0, "NEW: the mean of ckpt-10, ckpt-30\n")
    assert read_json("NEW/averaged.json")["checkpoints"] == ["ckpt-10", "ckpt-30"]
    assert Run.open("NEW").training.selection == Selection(stopped_step=30) and Run.open("NEW").last_step == 30
    assert program("t2t-decoder", "--output_dir=RUN", "--average_best", stdin=b"12\n").err == (
        "RUN: best by validation: ckpt-10\n"
    )
    card = read_json(f"{export('RUN', 'E', average_best=True, format='ctranslate2')}/model_card.json")
    assert card["checkpoints"] == card["average_of"] == ["ckpt-10"]


def test_load_takes_the_best(run):
    scores = {"10": 3.0, "20": 9.0, "30": 4.0}
    run.note(dataclasses.replace(run.training, selection=Selection(scores={"perplexity": scores})))
    assert t2t_repro.load("RUN", average_best=True).checkpoints == [["RUN/checkpoints/ckpt-10"]]


def test_new_run_equals_averaging_on_the_fly(run):
    average("RUN", "NEW", 3)
    models = [random_model(PROBLEM.vocab_size) for _ in range(2)]
    load_weights(run, models[0], Averaging(3))
    load_weights(Run.open("NEW"), models[1])
    for one, other in zip(*(model.trainable_weights for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_new_run_translates_wherever_it_is_moved(run):
    average("RUN", "NEW")
    shutil.rmtree("RUN")
    shutil.move("NEW", "MOVED")
    assert len(Translator.from_run("MOVED", 5).translate(TEXTS)) == 2


def test_new_run_records_its_source(run):
    average("RUN", "deep/NEW/", 2)
    new = Run.open("deep/NEW")
    assert dataclasses.replace(new, directory="RUN") == run
    made_from = {"run": os.path.abspath("RUN"), "checkpoints": ["ckpt-20", "ckpt-30"]}
    assert read_json("deep/NEW/averaged.json") == made_from
    assert os.listdir("deep") == ["NEW"]


def test_new_run_cannot_be_trained_on(run):
    average("RUN", "NEW", 2)
    state = {"model": random_model(PROBLEM.vocab_size), "step": tf.Variable(0)}
    with pytest.raises(
        ValueError, match="ckpt-30 holds .* or an average, which has no optimizer state; start a new run"
    ):
        Checkpoints(Run.open("NEW"), state, keep=5).restore_newest()


def test_program(program, run):
    code, out, err = program("t2t-avg-checkpoints", "--output_dir=RUN", "--average_dir=NEW")
    assert (code, out, err) == (0, "NEW: the mean of ckpt-20, ckpt-30\n", "")
    record = read_json("NEW/run.json")
    assert record["command"] == ["t2t-avg-checkpoints", "--output_dir=RUN", "--average_dir=NEW"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--average_checkpoints=5"], "'RUN' has 3 checkpoints, and 5 are to be averaged; ask for 1 to 3"),
        (["--average_dir=RUN"], "--average_dir: 'RUN' exists and is not empty; give a new directory"),
        (["--average_dir=RUN/run.json"], "--average_dir: 'RUN/run.json' is a file; give a directory"),
        (["--output_dir=NEW"], "--output_dir: no directory 'NEW'; give the one that t2t-trainer wrote"),
    ],
)
def test_invalid_arguments(program, run, arguments, message):
    run_flag = [] if arguments[0].startswith("--output_dir") else ["--output_dir=RUN"]
    result = program("t2t-avg-checkpoints", *run_flag, "--average_dir=NEW", *arguments)
    assert result == (1, "", f"t2t-avg-checkpoints: {message}\n")
    assert not os.path.exists("NEW")


def test_root_of_a_file_system_is_rejected(run, monkeypatch):
    os.mkdir("NEW")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == os.path.abspath("NEW"))
    with pytest.raises(ValueError, match="average_dir: 'NEW' is the root of a file system; give a new directory in it"):
        average("RUN", "NEW")


def test_an_empty_folder_stays_the_same(run):
    """It may be the working directory of a shell, or one that a symbolic link names."""
    os.mkdir("TARGET")
    os.symlink("TARGET", "NEW")
    before = os.stat("TARGET").st_ino
    average("RUN", "NEW", 2)
    assert os.path.islink("NEW") and Run.exists("TARGET") and os.stat("TARGET").st_ino == before
    Translator.from_run("NEW")


def put_checkpoint_of(directory, step):
    """Replaces checkpoint `step` of RUN by that of another run."""
    for end in ("index", "data-00000-of-00001"):
        shutil.copy(f"{directory}/checkpoints/ckpt-{step}.{end}", f"RUN/checkpoints/ckpt-{step}.{end}")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 2}, "ckpt-20, ckpt-30 in 'RUN/checkpoints' are checkpoints of different runs; keep those of one"),
        ({"dropout": 0.5}, "ckpt-20, ckpt-30 in 'RUN/checkpoints' are checkpoints of different runs; keep those of"),
        ({"d_k": 6}, r".*ckpt-30 does not fit this run's model: .* such as \[16, 12\] and \[16, 10\]"),
        ({"num_layers": 1}, ".*ckpt-30 holds 31 weights, but this model has 61"),
    ],
)
def test_checkpoints_of_different_runs_are_rejected(run, tmp_path, other, message):
    make_run(tmp_path / "OTHER", tmp_path, weights=STEPS[2:], **other)
    put_checkpoint_of("OTHER", 30)
    with pytest.raises(ValueError, match=message):
        average("RUN", "NEW", 2)
    assert sorted(os.listdir()) == ["OTHER", "RUN", "vocabulary.model"]


def test_a_continued_run_stays_the_same_run(run):
    """Also if a later version identifies runs by another field."""
    state = {"model": random_model(PROBLEM.vocab_size), "step": tf.Variable(0)}
    checkpoints = Checkpoints(dataclasses.replace(run, seed=9), state, keep=5)
    assert checkpoints.restore_newest()
    checkpoints.save(40)
    assert len(load_weights(run, state["model"], Averaging(4))) == 4
