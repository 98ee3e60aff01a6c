"""The run directory: starting, opening, and rejection of damaged directories and other runs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CHECKOUT

from t2t_repro.config import LATER, HParams
from t2t_repro.io import append_line, atomic_write, read_json, sha256, write_json
from t2t_repro.problem import Problem
from t2t_repro.run import Parent, Run, TrainingData, TrainingRecord, versions


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocabulary"
    path.write_bytes(b"not really a vocabulary")
    return path


@pytest.fixture
def run(tmp_path, vocabulary):
    return Run(
        directory=str(tmp_path / "run"),
        problem=Problem(name="p", description="a problem", vocab_size=100),
        hparams=HParams(name="h", description="a set", num_layers=2),
        data_dir=str(tmp_path / "data"),
        seed=1,
        precision="float32",
        vocabulary_sha256=hashlib.sha256(vocabulary.read_bytes()).hexdigest(),
    )


def test_open_returns_the_started_run(run, vocabulary):
    assert not Run.exists(run.directory)
    assert run.start(str(vocabulary)) == run
    assert Run.exists(run.directory)
    assert Run.open(run.directory) == run
    assert sorted(os.listdir(run.directory)) == ["checkpoints", "run.json", "vocabulary.model"]


def test_run_json_records_everything_a_result_depends_on(run, vocabulary):
    run.start(str(vocabulary))
    record = read_json(os.path.join(run.directory, "run.json"))
    assert record["format"] == 1
    assert record["hparams"]["num_layers"] == 2 and record["problem"]["vocab_size"] == 100
    assert record["versions"] == versions() and record["versions"]["t2t_repro"] != "not installed"
    assert os.path.isabs(record["data_dir"]) and record["command"]


def test_restart_continues_with_more_steps_or_moved_data(run, vocabulary):
    run.start(str(vocabulary))
    longer = replace(run, hparams=replace(run.hparams, train_steps=7), data_dir="/elsewhere")
    longer.start(str(vocabulary))
    assert Run.open(run.directory) == longer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "its seed is 1, not 2; give another output_dir"),
        ({"precision": "bfloat16"}, "its precision is 'float32', not 'bfloat16'; give another output_dir"),
        (
            {"hparams": HParams(name="h", description="", num_layers=3)},
            "its num_layers is 2, not 3; give another output_dir, or continue that run with num_layers=2",
        ),
        (
            {"hparams": HParams(name="i", description="", num_layers=3)},
            "its hyperparameter set is 'h', not 'i'; give another output_dir",
        ),
        (
            {"problem": Problem(name="q", description="", vocab_size=100)},
            "its problem name is 'p', not 'q'; give another output_dir",
        ),
        ({"vocabulary_sha256": "0"}, "its vocabulary_sha256 is '[0-9a-f]{64}', not '0'; give another output_dir"),
    ],
)
def test_start_rejects_and_keeps_another_run(run, vocabulary, change, message):
    run.start(str(vocabulary))
    before = sha256(os.path.join(run.directory, "run.json"))
    with pytest.raises(ValueError, match=f"holds another run: {message}$"):
        replace(run, **change).start(str(vocabulary))
    assert sha256(os.path.join(run.directory, "run.json")) == before


def test_new_description_is_the_same_run(run, vocabulary):
    run.start(str(vocabulary))
    replace(run, problem=replace(run.problem, description="better said")).start(str(vocabulary))


def test_start_rejects_a_file(run, vocabulary, tmp_path):
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(ValueError, match="output_dir: '.*run' is a file; give a directory"):
        run.start(str(vocabulary))


def test_start_rejects_checkpoints_without_run_json(run, vocabulary):
    os.makedirs(run.checkpoints)
    open(os.path.join(run.checkpoints, "ckpt-1.index"), "w").close()
    with pytest.raises(ValueError, match="holds checkpoints without a run.json; give another output_dir"):
        run.start(str(vocabulary))


def test_start_replaces_the_vocabulary_of_an_unfinished_start(run, vocabulary):
    os.makedirs(run.directory)
    with open(run.vocabulary, "w") as file:
        file.write("from other data")
    run.start(str(vocabulary))
    assert Run.open(run.directory) == run


def test_open_rejects_a_directory_without_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="output_dir: no directory '.*none'; give the one that t2t-trainer"):
        Run.open(str(tmp_path / "none"))
    (tmp_path / "run.json").touch()
    with pytest.raises(FileNotFoundError, match="init_from: '.*run.json' is a file; give the directory that t2t-"):
        Run.open(str(tmp_path / "run.json"), "init_from")
    (tmp_path / "run.json").unlink()
    message = r"is not a run directory \(no run.json\); give the one that t2t-trainer wrote"
    with pytest.raises(FileNotFoundError, match=message):
        Run.open(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run.json is damaged: not JSON"),
        ("[]", "run.json is damaged: expected a JSON object, got list"),
        ('{"format": 99}', "run.json has format 99, this version reads 1; use the version of t2t_repro that wrote it"),
        ('{"format": 1}', "run.json is damaged: no 'problem'"),
        ('{"format": 1, "problem": {"name": "p"}}', "run.json is damaged: .*description"),
        ('{"format": 1, "problem": {"name": "P", "description": ""}}', "run.json is damaged: a problem's name must be"),
    ],
)
def test_open_rejects_damaged_json(run, vocabulary, text, message):
    run.start(str(vocabulary))
    with open(os.path.join(run.directory, "run.json"), "w") as file:
        file.write(text)
    with pytest.raises(ValueError, match=message):
        Run.open(run.directory)


def test_open_names_an_unknown_field(run, vocabulary):
    run.start(str(vocabulary))
    path = os.path.join(run.directory, "run.json")
    record = read_json(path)
    record["hparams"]["d_key"] = 64
    write_json(path, record)
    with pytest.raises(ValueError, match="run.json is damaged: .*'d_key'"):
        Run.open(run.directory)


def test_open_rejects_a_missing_vocabulary(run, vocabulary):
    run.start(str(vocabulary))
    os.remove(run.vocabulary)
    with pytest.raises(FileNotFoundError, match="vocabulary.model is missing; the run cannot be read without"):
        Run.open(run.directory)


def test_open_rejects_another_vocabulary(run, vocabulary):
    run.start(str(vocabulary))
    with open(run.vocabulary, "ab") as file:
        file.write(b"!")
    with pytest.raises(ValueError, match=r"is not the vocabulary that this run was trained with \(SHA-256 differs\)"):
        Run.open(run.directory)


def test_training_record_of_an_old_run():
    """In the format of version 0.1."""
    training = Run.open(str(CHECKOUT / "tests/fixtures/run")).training
    assert (training.step, training.device, training.paper_flops) == (3_000, "2 cores of AMD EPYC", None)
    assert training.data is not None and (training.data.pairs, training.data.vocab_size) == (64_000, 400)
    assert training.data.train == "t2t_repro.problems.cldr.pairs('de', 'train')"


def test_fingerprint_of_an_old_run_stays():
    """Checkpoints contain it, and runs that start from this one record it."""
    run = Run.open(str(CHECKOUT / "tests/fixtures/run"))
    assert run.fingerprint == 1444081604623064700
    parent = Parent(problem="p", fingerprint="1", step=2, checkpoints=("ckpt-2",), directory="/p")
    others = [replace(run, hparams=replace(run.hparams, num_decoder_layers=1)), replace(run, parent=parent)]
    others += [replace(run, parent=replace(parent, checkpoints=("ckpt-1", "ckpt-2")))]
    others += [replace(run, hparams=replace(run.hparams, dropout=0.5))]
    later = {"initializer_gain": 0.5, "bpe_dropout": 0.1, "r_drop": 5.0, "ema_decay": 0.9, "decay_steps": 7}
    assert later.keys() == set(LATER)
    others += [replace(run, hparams=replace(others[-1].hparams, **{name: value})) for name, value in later.items()]
    assert len({each.fingerprint for each in (run, *others)}) == 10
    assert replace(run, parent=replace(parent, directory="/moved")).fingerprint == others[1].fingerprint


def test_later_fields_are_in_run_json_if_they_are_on(run, vocabulary):
    path = os.path.join(run.start(str(vocabulary)).directory, "run.json")
    assert not set(LATER) & read_json(path)["hparams"].keys()
    with pytest.raises(ValueError, match="its r_drop is 0.0, not 5.0"):
        replace(run, hparams=replace(run.hparams, r_drop=5.0)).start(str(vocabulary))
    other = replace(run, directory=run.directory + "2", hparams=replace(run.hparams, r_drop=5.0))
    assert Run.open(other.start(str(vocabulary)).directory) == other


def test_number_of_steps_identifies_a_run_whose_learning_rate_decays(run, vocabulary):
    decays = replace(run, hparams=replace(run.hparams, train_steps=9, decay_steps=3)).start(str(vocabulary))
    with pytest.raises(ValueError, match="holds another run: its train_steps is 9, not 12"):
        replace(decays, hparams=replace(decays.hparams, train_steps=12)).start(str(vocabulary))
    longer = replace(run, hparams=replace(decays.hparams, train_steps=12))
    assert longer.fingerprint != decays.fingerprint


@pytest.mark.parametrize(
    "training",
    [
        TrainingRecord(),
        TrainingRecord(data=TrainingData(pairs=3, vocab_size=9, train="a", incomplete=("section 23",))),
        TrainingRecord(step=7, target_tokens=1.0, flops=2.0, seconds=3.0, device="a GPU", replicas=2, paper_flops=4.0),
        TrainingRecord(device="a GPU", replicas=2, held_tokens=500),
    ],
)
def test_training_record_round_trip(run, vocabulary, training):
    run.start(str(vocabulary)).note(training)
    assert Run.open(run.directory).training == training
    run.start(str(vocabulary))
    assert run.training == training


def test_parent_round_trip(run, vocabulary):
    grandparent = Parent(problem="p", fingerprint="0a", step=7, checkpoints=("ckpt-7",), directory="/g")
    data = TrainingData(pairs=3, vocab_size=9, train="a")
    mean = Parent(
        problem="q",
        fingerprint="0b",
        step=9,
        checkpoints=("ckpt-8", "ckpt-9"),
        directory="/p",
        data=data,
        parent=grandparent,
    )
    started = replace(run, parent=mean).start(str(vocabulary))
    assert Run.open(run.directory) == started
    run.can_start()  # before the first checkpoint
    Path(run.checkpoint_list).touch()
    with pytest.raises(ValueError, match="its parent is 'q, mean of ckpt-8 [+] ckpt-9 .run 0b.', not 'none'"):
        run.start(str(vocabulary))
    path = os.path.join(run.directory, "run.json")
    write_json(path, read_json(path) | {"parent": {"problem": "q"}})
    with pytest.raises(ValueError, match="run.json is damaged: no 'fingerprint'"):
        Run.open(run.directory)


def test_note_keeps_unknown_fields(run, vocabulary):
    run.start(str(vocabulary))
    path = os.path.join(run.directory, "run.json")
    write_json(path, read_json(path) | {"training": {"later": 1}})
    run.note(TrainingRecord(step=2, held_tokens=300))
    assert read_json(path)["training"] == {"later": 1, "step": 2, "held_tokens": 300}
    run.note(TrainingRecord(step=2))
    assert read_json(path)["training"] == {"later": 1, "step": 2}


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ([1], r"run.json is damaged: training must be an object, got \[1\]"),
        ({"step": "2"}, "run.json is damaged: step must be an integer, got '2'"),
        ({"device": "a GPU"}, "run.json is damaged: `replicas` must be given with the device 'a GPU'"),
        ({"device": 1, "replicas": 1}, "run.json is damaged: device must be text, got 1"),
        ({"data": {"pairs": 1}}, "run.json is damaged: no 'vocab_size'"),
        (
            {"data": {"pairs": 1, "vocab_size": 2, "incomplete": [3]}},
            "run.json is damaged: incomplete must be text",
        ),
    ],
)
def test_open_damaged_training_record(run, vocabulary, training, message):
    run.start(str(vocabulary))
    path = os.path.join(run.directory, "run.json")
    write_json(path, read_json(path) | {"training": training})
    with pytest.raises(ValueError, match=message):
        Run.open(run.directory)


def test_atomic_write_is_complete_or_absent(tmp_path):
    path = str(tmp_path / "file")
    with atomic_write(path) as temporary, open(temporary, "w") as file:
        file.write("first")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "first"


def test_write_json_rejects_nan(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(str(tmp_path / "x.json"), {"loss": float("nan")})
    assert os.listdir(tmp_path) == []
    write_json(str(tmp_path / "x.json"), {"text": "größer\u2028"})
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"text": "größer\u2028"}


def test_a_line_that_another_process_still_writes_stays(tmp_path):
    path = str(tmp_path / "scores.jsonl")
    with open(path, "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"half of')
        other.flush()
        appended = threading.Thread(target=append_line, args=(path, "{}"))
        appended.start()
        time.sleep(0.2)
        other.write(b' a line": 1}\n')
    appended.join()
    assert Path(path).read_text() == '{"half of a line": 1}\n{}\n'
