"""Checkpoints: averaged (section 6.1), and restored completely or not at all."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.fault_injection import files_up_to
from helpers.tiny_model import SMALL, random_model

from t2t_repro.problem import Problem
from t2t_repro.run import Run, TrainingRecord
from t2t_repro.selection import Selection
from t2t_repro.training.checkpointing import weights as weights_module
from t2t_repro.training.checkpointing.checkpoint_list import Averaging, paths, to_average
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.checkpointing.damage import damage
from t2t_repro.training.checkpointing.weights import layer_loader, load_weights
from t2t_repro.training.optimizer import Adam

STEPS = (10, 20, 30)


@pytest.fixture
def run(tmp_path) -> Run:
    vocabulary = tmp_path / "vocabulary"
    vocabulary.write_bytes(b"words")
    digest = hashlib.sha256(b"words").hexdigest()
    problem = Problem(name="translate_files", description="", vocab_size=300)
    hparams = replace(SMALL, checkpoint_steps=10)
    return Run(str(tmp_path / "RUN"), problem, hparams, "DATA", 1, "float32", digest).start(str(vocabulary))


def small(seed=1, num_layers=1):
    return random_model(seed=seed, num_layers=num_layers)


def state_of(model):
    """Returns all objects that a trainer saves."""
    optimizer = Adam([weight.value for weight in model.trainable_weights], SMALL)
    return {"model": model, "optimizer": optimizer, "step": tf.Variable(0), "position": tf.Variable([0, 0])}


@pytest.fixture
def weights(run) -> list[list[np.ndarray]]:
    """Saves a checkpoint at each of STEPS, and returns their weights."""
    model, found = small(), []
    checkpoints = Checkpoints(run, {"model": model, "step": tf.Variable(0)}, keep=5)
    for step in STEPS:
        model.set_weights(small(seed=step).get_weights())
        checkpoints.save(step)
        found.append(model.get_weights())
    return found


def names(checkpoints) -> list[str]:
    return [os.path.basename(path) for path in checkpoints]


@pytest.mark.parametrize(("average", "used"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30]), (9, [10, 20, 30])])
def test_the_mean_of_the_last_checkpoints(run, weights, average, used):
    """The newest alone, several, and all, also if more are requested."""
    model = small(seed=5)
    assert names(load_weights(run, model, Averaging(average))) == [f"ckpt-{step}" for step in used]
    for found, *each in zip(model.get_weights(), *weights[-len(used) :], strict=True):
        by_hand = sum(array.astype(np.float64) for array in each) / len(used)
        np.testing.assert_allclose(found, by_hand, rtol=1e-6, atol=1e-7)


def test_none_yet(run):
    with pytest.raises(FileNotFoundError, match="RUN' has no checkpoint yet; train it first"):
        load_weights(run, small())


def test_a_model_of_another_size(run, weights):
    """An encoder and a decoder layer have 12 + 18 weights; the embedding adds one."""
    with pytest.raises(ValueError, match="ckpt-30 holds 31 weights, but this model has 61"):
        load_weights(run, small(num_layers=2))


def test_only_regular_checkpoints_are_averaged(run, weights):
    """Checkpoints of every 20 steps and of the last step count; those from the timer or a signal do not."""
    run = replace(run, hparams=replace(run.hparams, checkpoint_steps=20, train_steps=50))
    checkpoints = Checkpoints(run, {"model": small()}, keep=2)
    for step in (40, 43, 47):
        checkpoints.save(step)
    assert names(paths(run)) == ["ckpt-20", "ckpt-40", "ckpt-47"]
    assert names(to_average(run, 1)) == ["ckpt-47"]
    assert names(to_average(run, 2)) == names(to_average(run, 9)) == ["ckpt-20", "ckpt-40"]
    checkpoints.save(50)
    assert names(paths(run)) == ["ckpt-40", "ckpt-50"] == names(to_average(run, 2))
    rarely = replace(run, hparams=replace(run.hparams, checkpoint_steps=99, train_steps=99))
    assert names(to_average(rarely, 5)) == ["ckpt-50"]


def test_the_best_checkpoints_remain_and_are_averaged(run):
    """`save` keeps the last two regular ones and those of the given steps; `remove_except` then frees one of them."""
    model = small()
    checkpoints = Checkpoints(run, {"model": model}, keep=2)
    for step in (10, 20, 30, 35, 40, 50):
        model.set_weights(small(seed=step).get_weights())
        checkpoints.save(step, best={10, 30})
    assert names(paths(run)) == ["ckpt-10", "ckpt-30", "ckpt-40", "ckpt-50"]
    checkpoints.remove_except({30})
    checkpoints.remove_except({30})
    assert names(paths(run)) == ["ckpt-30", "ckpt-40", "ckpt-50"]
    assert not [name for name in os.listdir(run.checkpoints) if "ckpt-10" in name]

    with pytest.raises(ValueError, match="no checkpoint of .*RUN' has a validation score; use the last ones, without"):
        to_average(run, 1, best=True)
    selection = Selection()
    for step, perplexity in ((10, 1.0), (30, 2.0), (40, 4.0), (50, 3.0)):
        selection = selection.with_scores(step, {"perplexity": perplexity})
    run.note(TrainingRecord(selection=selection))
    assert names(to_average(run, 1, best=True)) == ["ckpt-30"]
    assert names(load_weights(run, model, Averaging(2, best=True))) == ["ckpt-30", "ckpt-50"]
    for found, *each in zip(*(each.get_weights() for each in (model, small(seed=30), small(seed=50))), strict=True):
        np.testing.assert_allclose(found, (each[0].astype(np.float64) + each[1]) / 2, rtol=1e-6, atol=1e-7)


def test_the_step_at_which_training_ended_is_regular(run):
    checkpoints = Checkpoints(run, {"model": small()}, keep=2)
    run.note(TrainingRecord(selection=Selection(stopped_step=27, reason="why")))
    for step in (10, 20, 27):
        checkpoints.save(step)
    assert names(to_average(run, 5)) == ["ckpt-20", "ckpt-27"] and run.last_step == 27


def test_at_most_keep_checkpoints_remain(run):
    model = small()
    checkpoints = Checkpoints(run, {"model": model}, keep=2)
    for step in STEPS:
        checkpoints.save(step)
    assert names(paths(run)) == ["ckpt-20", "ckpt-30"]
    assert not any(name.startswith("ckpt-10.") for name in os.listdir(run.checkpoints))


def test_a_checkpoint_is_on_the_disk_before_the_list_names_it(run, monkeypatch):
    """After a power failure the synced list must not name files that were not synced."""
    events, fsync, replaced = [], os.fsync, os.replace

    def synced(descriptor):
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(old, new):
        events.append(f"-> {os.path.basename(new)}")
        replaced(old, new)

    checkpoints = Checkpoints(run, {"model": small()}, keep=2)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    checkpoints.save(10)
    before = events[: events.index("-> checkpoint")]
    assert {"ckpt-10.index", "ckpt-10.data-00000-of-00001", "checkpoints"} <= set(before)


def test_all_state_is_restored(run):
    state = state_of(small())
    rng = np.random.default_rng(1)
    moments = (*state["optimizer"].first, *state["optimizer"].second)
    for variable in moments:
        variable.assign(rng.normal(size=variable.shape))
    state["step"].assign(7)
    state["position"].assign([1, 3])
    Checkpoints(run, state, keep=5).save(7)
    other = state_of(small(seed=2))
    assert Checkpoints(run, other, keep=5).restore_newest()
    for ours, theirs in zip(other["model"].get_weights(), state["model"].get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip((*other["optimizer"].first, *other["optimizer"].second), moments, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (int(other["step"]), other["position"].numpy().tolist()) == (7, [1, 3])


@pytest.mark.parametrize("folder", ["run[2]", "a*?", "back\\slash"])
def test_a_folder_whose_name_is_a_pattern(run, weights, tmp_path, folder):
    """TensorFlow looks for a checkpoint by a pattern, and no file of `run[2]` matches its own path."""
    run = replace(run, directory=shutil.copytree(run.directory, str(tmp_path / folder)))
    model = small(seed=5)
    assert names(load_weights(run, model)) == ["ckpt-30"] and damage(paths(run)[-1]) == ""
    for found, expected in zip(model.get_weights(), weights[-1], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert Checkpoints(run, {"model": small(seed=6), "step": tf.Variable(0)}, keep=5).restore_newest()


def test_weights_that_are_not_finite_are_not_saved(run, weights):
    model = small()
    model.trainable_weights[0].assign(np.full(model.trainable_weights[0].shape, np.inf))
    with pytest.raises(
        ValueError, match=r"step 40 is not saved: a variable of shape \[.*\] holds numbers that are not"
    ):
        Checkpoints(run, {"model": model, "step": tf.Variable(0)}, keep=5).save(40)
    assert names(paths(run)) == ["ckpt-10", "ckpt-20", "ckpt-30"]


def test_a_damaged_newest_checkpoint_is_renamed_and_the_previous_one_used(run):
    state, said = state_of(small()), []
    checkpoints = Checkpoints(run, state, keep=5)
    for step in STEPS:
        state["step"].assign(step)
        checkpoints.save(step)
    for step, size in ((20, 300), (30, 0)):
        os.truncate(os.path.join(run.checkpoints, f"ckpt-{step}.data-00000-of-00001"), size)
    again = state_of(small(seed=2))
    assert Checkpoints(run, again, keep=5, report=said.append).restore_newest()
    assert int(again["step"]) == 10 and names(paths(run)) == ["ckpt-10"]
    assert [line.partition("ckpt-")[2] for line in said] == [
        f"{step} is damaged (it is cut off): renamed to damaged-ckpt-{step}, ckpt-10 is used" for step in (30, 20)
    ]
    assert sum(name.startswith("damaged-ckpt-30.") for name in os.listdir(run.checkpoints)) == 2
    Checkpoints(run, again, keep=5).save(30)
    assert names(paths(run)) == ["ckpt-10", "ckpt-30"]


def test_an_index_with_a_size_beyond_memory(run, weights):
    """The last 48 bytes of an index: where two blocks begin, how large they are (varints), and a magic number."""
    path = paths(run)[-1]
    with open(path + ".index", "r+b") as index:
        index.seek(-48, os.SEEK_END)
        index.write(b"\0\0\0" + b"\x80" * 8 + b"\x01")  # 2^56 bytes
    assert damage(path) == "it asks for more memory than there is"


def test_incomplete_files_of_a_killed_trainer_are_removed(run, weights):
    for name in (
        "ckpt-40.data-00000-of-00001",
        "ckpt-40.index",
        "checkpoint.tmp-7",
        "notes.txt",
        "damaged-ckpt-5.index",
    ):
        with open(os.path.join(run.checkpoints, name), "w") as file:
            file.write("half")
    os.makedirs(os.path.join(run.checkpoints, "ckpt-50_temp"))
    Checkpoints(run, state_of(small()), keep=5)
    left = {name for name in os.listdir(run.checkpoints) if not name.startswith(("ckpt-10", "ckpt-20", "ckpt-30"))}
    assert left == {"checkpoint", "notes.txt", "damaged-ckpt-5.index"}


def test_killed_between_the_first_checkpoint_and_its_list(run):
    """That checkpoint does not count: the next start trains from the beginning, and does not require a list."""
    Checkpoints(run, state_of(small()), keep=5).save(10)
    os.remove(os.path.join(run.checkpoints, "checkpoint"))
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):  # also while a trainer writes it
        load_weights(run, small())
    assert not Checkpoints(run, state_of(small()), keep=5).restore_newest()
    assert os.listdir(run.checkpoints) == []


def test_tensorflow_reads_the_list(run, weights):
    assert os.path.basename(tf.train.latest_checkpoint(run.checkpoints)) == "ckpt-30"


def test_no_room_for_a_checkpoint(run, weights, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 1_000_000))
    with pytest.raises(OSError, match=r"no room for a checkpoint in '.*': it takes 1\.\d MB, and 1\.0 MB are free"):
        Checkpoints(run, {"model": small(), "step": tf.Variable(0)}, keep=5).save(40)
    assert names(paths(run)) == ["ckpt-10", "ckpt-20", "ckpt-30"]


def test_a_checkpoint_that_does_not_fit_leaves_the_others(run, weights):
    checkpoints = Checkpoints(run, {"model": small(), "step": tf.Variable(0)}, keep=5)
    before = sorted(os.listdir(run.checkpoints))
    with (
        files_up_to(2_000),
        pytest.raises(OSError, match="cannot write .*ckpt-40: File too large; the checkpoints bef"),
    ):
        checkpoints.save(40)
    assert sorted(os.listdir(run.checkpoints)) == before


def test_a_first_checkpoint_that_does_not_fit_leaves_nothing(run):
    """Also if the checkpoints before it were moved away."""
    run.note(replace(run.training, step=30))
    with files_up_to(2_000), pytest.raises(OSError, match="cannot write .*ckpt-40: File too large"):
        Checkpoints(run, {"model": small(), "step": tf.Variable(0)}, keep=5).save(40)
    assert os.listdir(run.checkpoints) == []


@pytest.mark.parametrize("load", [load_weights, lambda *arguments: layer_loader(*arguments)[0]])
@pytest.mark.parametrize("replaced", [1, 9])
def test_checkpoints_that_a_trainer_replaces_while_they_are_read(run, weights, monkeypatch, replaced, load):
    """They are chosen again. If that happens again and again, an error says so, instead of calling one damaged."""
    steps = iter(range(40, 40 + 10 * replaced, 10))

    def chosen(*arguments):
        found = to_average(*arguments)
        for step in itertools.islice(steps, 1):
            Checkpoints(run, {"model": small(), "step": tf.Variable(0)}, keep=3).save(step)
        return found

    monkeypatch.setattr(weights_module, "to_average", chosen)
    if replaced == 1:
        assert names(load(run, small(), Averaging(3))) == ["ckpt-20", "ckpt-30", "ckpt-40"]
    else:
        with pytest.raises(ValueError, match="the trainer of .*RUN' replaced checkpoints while they were read; run"):
            load(run, small(), Averaging(3))


def test_nothing_to_restore(run):
    assert not Checkpoints(run, state_of(small()), keep=5).restore_newest()


def test_a_partial_checkpoint_is_not_restored(run, weights):
    """A model without optimizer state: training would continue with moments of zero."""
    with pytest.raises(ValueError, match="ckpt-30 holds 32 variables, but this run has 96: damaged"):
        Checkpoints(run, state_of(small()), keep=5).restore_newest()


@pytest.mark.parametrize("content", [None, "", "model_checkpoint_path"])
def test_checkpoints_without_a_list_are_an_error(run, weights, content):
    """TensorFlow itself would find no checkpoint, and training would start over."""
    path = os.path.join(run.checkpoints, "checkpoint")
    os.remove(path)
    if content is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    with pytest.raises(ValueError, match="holds checkpoints, but its file 'checkpoint', which lists them, is missing"):
        load_weights(run, small())
    with pytest.raises(ValueError, match="restore that file from a copy, or move the folder away"):
        Checkpoints(run, state_of(small()), keep=5).restore_newest()
