"""Out of memory on one of two replicas, inside the graph: t2t-trainer starts again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CHECKOUT
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, silent, values

from t2t_repro.run import Run
from t2t_repro.training.trainer import train

SCRIPT = CHECKOUT / "tests/helpers/exhausted_replica.py"


def trainer(data: str, output_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), f"--problem={PROBLEM.name}", "--hparams=smallest", "--precision=float32"]
    command += [f"--data_dir={data}", f"--output_dir={output_dir}", "--split=validation", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}"}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


@pytest.fixture
def halved(data, tmp_path) -> Run:
    """A run whose first micro-batches did not fit."""
    done = trainer(data, tmp_path / "HALVED")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    assert "t2t-trainer: out of memory in step 1; start again with micro-batches of 500 tokens" in lines
    assert any(line.endswith("2,000 tokens per side and step = 2 replicas x 2 micro-batches") for line in lines)
    return Run.open(str(tmp_path / "HALVED"))


def must_equal(found: Run, expected: Run) -> None:
    """Asserts that the weights, moments and positions of both are bitwise equal."""
    ours, theirs = values(found, 5), values(expected, 5)
    assert ours.keys() == theirs.keys()
    for name in (name for name in ours if not name.startswith(("spent", "run"))):
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.slow
def test_training_starts_again_with_smaller_micro_batches(halved, data, tmp_path, on_replicas):
    """The result is that of a run with that size from the start."""
    on_replicas(2)
    hparams, options = replace(TINY, name="smallest", train_steps=5), replace(FLOAT32, microbatch_tokens=500)
    must_equal(halved, train(PROBLEM, hparams, data, str(tmp_path / "SMALL"), options, report=silent))


@pytest.mark.slow
def test_deterministic_operations_give_the_same_result(halved, data, tmp_path):
    small = trainer(data, tmp_path / "SMALL", "--microbatch_tokens=500", "--deterministic")
    assert small.returncode == 0 and "out of memory" not in small.stderr, small.stderr
    must_equal(halved, Run.open(str(tmp_path / "SMALL")))


@pytest.mark.slow
def test_dry_run_starts_again_with_smaller_micro_batches(data, tmp_path):
    done = trainer(data, tmp_path / "RUN", "--dry_run")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "retrying with micro-batches of 500 tokens" in " ".join(done.stdout.split())
    assert "2 micro-batches per device and step" in " ".join(done.stdout.split())
    assert not (tmp_path / "RUN").exists()
