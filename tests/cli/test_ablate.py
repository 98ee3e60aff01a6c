"""t2t-ablate: rows, commands, parallel jobs, stopping and continuing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import CHECKOUT
from helpers.made_runs import make_run
from helpers.tiny_model import test_pairs as pairs_of_test
from helpers.tiny_model import train_pairs, validation_pairs

from t2t_repro.bin import t2t_ablate
from t2t_repro.cli import jobs as cli_jobs
from t2t_repro.cli import launcher
from t2t_repro.data.dataset import Dataset
from t2t_repro.evaluation.report_runs import read_runs
from t2t_repro.registry import get_problem
from t2t_repro.selection import Selection

LETTERS = {"A": 4, "B": 2, "C": 7, "D": 4, "E": 1}


def test_rows():
    everything = t2t_ablate.rows(["all"])
    assert len(everything) == 20 and everything[:2] == ["base", "big"]
    assert {letter: len(t2t_ablate.rows([letter])) for letter in LETTERS} == LETTERS
    assert t2t_ablate.rows(["big", "E", "a_h1", "big"]) == ["big", "a_h1", "e_learned"]
    with pytest.raises(KeyError, match=r"unknown row 'F' in --rows; known: A, B"):
        t2t_ablate.rows(["A", "F"])


def test_no_row(program, tmp_path):
    code, out, err = program(
        "t2t-ablate", "--rows=", "--problem=translate_ende_cldr", f"--data_dir={tmp_path}", "--output_dir=r"
    )
    assert (code, out) == (2, "") and err.startswith("t2t-ablate: --rows names no row; give letters or names")


@pytest.fixture
def texts(tmp_path):
    """Flags that name small files."""
    flags = []
    for split, pairs in (("train", train_pairs), ("validation", validation_pairs), ("test", pairs_of_test)):
        for side, lines in zip(("source", "target"), zip(*pairs(), strict=True), strict=True):
            path = tmp_path / f"{split}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
            flags.append(f"--{split}_{side}={path}")
    return ["--problem=translate_files", "--vocab_size=330", *flags]


def test_commands(program, texts, tmp_path, monkeypatch):
    """The data is prepared once. Every row gets the user's flags and its own."""
    prepared, ran = [], []
    monkeypatch.setattr(cli_jobs, "program", lambda *arguments: prepared.append(arguments))
    monkeypatch.setattr(cli_jobs, "run", lambda *arguments: ran.append(arguments) or [])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})  # on one core, --jobs=2 is refused
    runs, data = str(tmp_path / "runs"), f"--data_dir={tmp_path / 'data'}"
    os.makedirs(runs)
    options = ["--train_steps=3", "--override=dropout=0.2", "--override=d_k=8"]
    arguments = [*texts, data, f"--output_dir={runs}", "--rows=c_n2,big", "--scale=tiny", "--jobs=2", *options]
    result = program("t2t-ablate", *arguments)
    assert result.code == 0 and result.err == "2 rows, 0 of them already done\n"
    assert prepared == [("t2t_datagen", sorted([*texts, data], key=prepared[0][1].index))]
    [(commands, jobs, directory)] = ran
    assert list(commands) == ["big@tiny", "c_n2@tiny"]  # the costlier first
    assert (jobs, directory) == (2, runs)
    name, *given = commands["c_n2@tiny"]
    own = ["--hparams=c_n2@tiny", f"--output_dir={runs}/c_n2@tiny", "--split=validation"]
    assert name == "t2t_trainer" and sorted(given) == sorted([*texts, data, *options, *own])


PATIENT = "2 scores in a row are no better than the validation perplexity 8.31 of step 600 (patience=3)"


@pytest.mark.parametrize(
    ("reason", "flags", "code", "error"),
    [
        (PATIENT, ["--patience=3"], 0, "1 rows, 1 of them already done\n"),
        (PATIENT, ["--patience=9"], 0, "1 rows, 0 of them already done\n"),  # t2t-trainer continues
        (None, ["--patience=3"], 0, "1 rows, 0 of them already done\n"),
        (None, ["--train_steps=900"], 0, "1 rows, 1 of them already done\n"),
        (None, ["--train_steps=1000"], 0, "1 rows, 0 of them already done\n"),
        (PATIENT, ["--patience=3", "--seed=7"], 1, "its seed is 1, not 7; give another --output_dir"),
        (PATIENT, ["--patience=3", "--override=dropout=0.5"], 1, "its dropout is 0.1, not 0.5; give another"),
        (
            PATIENT,
            ["--patience=3", "--precision=float32"],
            1,
            "its precision is 'bfloat16', not 'float32'",
        ),
        (PATIENT, ["--patience=3", "--override=alpha=1.4"], 0, "1 rows, 0 of them already done\n"),  # scored again
        (PATIENT, ["--patience=3", "other text"], 1, "was trained on other text than that in "),
        (PATIENT, ["--patience=3", "other vocabulary"], 1, "its vocabulary_sha256 is "),
    ],
)
def test_a_row_is_done_if_it_ended_as_asked(program, texts, tmp_path, monkeypatch, reason, flags, code, error):
    """It is scored at the step at which validation ended it. Without that record, training continues."""
    monkeypatch.setattr(cli_jobs, "program", lambda *arguments: None)
    monkeypatch.setattr(cli_jobs, "run", lambda *arguments: [])
    files = dict(flag[2:].split("=", 1) for flag in texts[2:])
    problem = replace(get_problem("translate_files").with_files(**files), vocab_size=330)
    how = {"step": 900, "scores": [("validation", 1, {"bleu": 30.0})], "text_sha256": "text of the run"}
    run = make_run(tmp_path, "c_n2@tiny", problem, **how)
    run.note(replace(run.training, selection=Selection(stopped_step=900 if reason else None, reason=reason)))
    os.rename(run.directory, tmp_path / "runs" / "c_n2@tiny")
    other = flags.pop() if flags[-1].startswith("other") else ""
    vocabulary = SimpleNamespace(sha256=other if "vocabulary" in other else run.vocabulary_sha256)
    dataset = Dataset(f"{tmp_path}/data/translate_files", SimpleNamespace(vocabulary=vocabulary))
    monkeypatch.setattr(Dataset, "open", lambda directory: dataset)
    monkeypatch.setattr(Dataset, "text_sha256", lambda *_: other if "text" in other else "text of the run")
    arguments = [f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/runs", "--rows=c_n2", "--scale=tiny"]
    result = program("t2t-ablate", *texts, *arguments, *flags)
    assert result.code == code and error in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--validate_by=f1",), "--validate_by must be one of perplexity, bleu, chrf for this problem, got 'f1'"),
        (("--override=decay_steps=1", "--patience=2"), "the learning rate falls to 0 at --train_steps="),
    ],
)
def test_wrong_options_are_rejected_before_the_preparation(program, texts, tmp_path, flags, error):
    arguments = [f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/runs", "--rows=c_n2", "--scale=tiny"]
    found = program("t2t-ablate", *texts, *arguments, *flags)
    assert found.code == 1 and found.err.startswith(f"t2t-ablate: {error}") and not (tmp_path / "data").exists()


def test_more_jobs_than_cores_are_rejected(program, texts, tmp_path):
    result = program("t2t-ablate", *texts, f"--data_dir={tmp_path}", f"--output_dir={tmp_path}/runs", "--jobs=9999")
    assert result.code == 2 and "--jobs=9999 is more than the" in result.err


def test_failed_rows_are_named_and_the_others_continue(tmp_path, capfd):
    commands = {"good": ["t2t_registry"], "bad": ["t2t_registry", "--problem=nothing"], "last": ["t2t_registry"]}
    assert cli_jobs.run(commands, 1, str(tmp_path)) == ["bad"]
    assert "unknown problem 'nothing'" in (tmp_path / "bad.log").read_text()
    assert "translate_files" in (tmp_path / "last.log").read_text()
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "good: started (1 of 3)"
    assert any(line.startswith(f"bad: failed with exit code 2, see {tmp_path}/bad.log") for line in said)


def test_programs_do_not_import_modules_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('not the module of Python')")
    monkeypatch.chdir(tmp_path)
    cli_jobs.program("t2t_registry", [])
    assert cli_jobs.run({"row": ["t2t_registry"]}, 1, "logs") == []


@pytest.fixture
def started(monkeypatch):
    """The started programs: sleeping ones stand in. One that reads standard input would end, because it is closed."""
    programs, real = [], subprocess.Popen

    def sleeper(command, **options):
        programs.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return programs[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    return programs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_preparation(started, capfd, number):
    timer = threading.Thread(target=_when, args=(lambda: started, lambda: os.kill(os.getpid(), number)))
    timer.start()
    with pytest.raises(launcher.Stopped, match="the same command continues") as stopped:
        cli_jobs.program("t2t_datagen", [])
    timer.join()
    assert stopped.value.code == 128 + number and started[0].returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_is_forwarded_and_no_row_is_started(tmp_path, started, capfd, number):
    timer = threading.Thread(target=_when, args=(lambda: started, lambda: os.kill(os.getpid(), number)))
    timer.start()
    with pytest.raises(launcher.Stopped, match="the same command continues") as stopped:
        cli_jobs.run({"one": ["x"], "two": ["y"]}, 1, str(tmp_path))
    timer.join()
    assert stopped.value.code == 128 + number
    assert len(started) == 1 and started[0].returncode == -number
    assert "one: stopped after" in capfd.readouterr().err


def _when(condition, action):
    while not condition():
        time.sleep(0.01)
    action()


@pytest.mark.slow
def test_rows_are_trained_scored_and_skipped_the_second_time(texts, tmp_path):
    """The real programs: two rows in parallel, then one more. The report has all three."""
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_ablate", *texts, f"--data_dir={tmp_path}/data"]
    command += [f"--output_dir={runs}", "--scale=tiny", "--train_steps=2"]

    def ablate(*more):
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=True)

    ablate("--rows=c_n2,d_ls0", "--jobs=2")
    again = ablate("--rows=c_n2,d_ls0,base")
    assert "3 rows, 2 of them already done" in again.stderr
    outcomes, _ = read_runs(str(runs))
    assert sorted(outcome.set_name for outcome in outcomes) == ["base", "c_n2", "d_ls0"]
    for outcome in outcomes:
        assert outcome.training.step == 2 and outcome.training.flops > 1e9
        assert outcome.score("validation", 1)["step"] == 2
