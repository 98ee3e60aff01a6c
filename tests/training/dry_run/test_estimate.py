"""The dry run: computed estimates, no traces on disk, and each reason not to fit."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from filelock import FileLock
from helpers.subprocesses import in_a_process
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, on_cpus, refuse_parts

from t2t_repro.config import TrainingOptions
from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.flops import training_flops
from t2t_repro.registry import HPARAMS
from t2t_repro.run import Run
from t2t_repro.selection import Selection
from t2t_repro.training.dry_run import assumed_data, estimate, profiler
from t2t_repro.training.dry_run.estimate import dry_run
from t2t_repro.training.dry_run.profiler import Profiler


def files(folder: str) -> dict[str, tuple[int, int]]:
    """Returns size and time of every file below `folder`."""
    found = [Path(root, name) for root, _, names in os.walk(folder) for name in names if name != ".lock"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.fixture(autouse=True)
def small_on_one_replica(on_replicas):
    on_replicas(1)


def preview(model, run, dataset):
    """Replaces the preview of the command line. Its first call takes longer, like that of a graph."""
    pauses = iter((0.3, 0.1))
    return lambda: time.sleep(next(pauses))


def quick(patch: pytest.MonkeyPatch, seconds: float = 0.0, rates: Iterable[float] = (1e12, 1e12)) -> None:
    """Times few micro-batches, and no product of large matrices: `rates` are what two measurements would give."""
    given = itertools.cycle(rates)
    patch.setattr(profiler, "TIMED_SECONDS", seconds)
    patch.setattr(profiler.hardware, "matrix_rate", lambda precision, devices: next(given))


reports: list[str] = []  # of the dry run `estimated`


@pytest.fixture(scope="module")
def estimated(data, tmp_path_factory):
    """Returns a dry run's estimate and lines, and the data before and after."""
    lines: list[str] = []
    reports.clear()
    before, folder = files(data), str(tmp_path_factory.mktemp("estimated") / "RUN")
    with on_cpus(1) as patch:
        quick(patch, 0.2, rates=(1e12, 1.1e12))  # the machine is somewhat busier at first
        options = TrainingOptions(precision="float32", checkpoint_steps=4)
        found = dry_run(PROBLEM, TINY, data, folder, options, show=lines.append, report=reports.append, preview=preview)
    return found, lines, folder, before


@pytest.fixture(scope="module")
def disturbed(data, tmp_path_factory):
    """Returns the estimate and lines of a dry run of steps that count as long, on a machine with other work."""
    lines: list[str] = []
    folder = str(tmp_path_factory.mktemp("disturbed") / "RUN")
    with on_cpus(1) as patch:
        quick(patch, rates=(1e12, 1.5e12))
        patch.setattr(profiler, "LONG", 0.0)
        found = dry_run(PROBLEM, TINY, data, folder, FLOAT32, show=lines.append, preview=lambda *_: pytest.fail)
    return found, lines


def test_dry_run_writes_nothing(estimated, data):
    _, _, folder, before = estimated
    assert not os.path.exists(folder) and files(data) == before


def test_each_measurement_is_reported_before_it_is_made(estimated):
    number = r"[\d,]+"
    shapes = rf"{number} x {number} x {number} \(pairs, source, target\)"
    whats = (
        "builds the graph of a step",
        f"computes the largest micro-batch, {shapes}",
        "times micro-batches of other sizes",
    )
    whats += ("evaluates the validation text", "decodes samples")
    assert len(reports) == len(whats)
    assert all(re.fullmatch(f"dry run: {what}", line) for what, line in zip(whats, reports, strict=True))


@pytest.mark.slow
def test_compilation_time_of_xla(estimated, data, tmp_path, monkeypatch):
    """Each remaining shape is compiled once."""
    made, lines = [], []
    options = replace(FLOAT32, checkpoint_steps=4, jit_compile=True)
    monkeypatch.setattr(estimate, "Profiler", lambda *arguments: made.append(Profiler(*arguments)) or made[-1])
    found = dry_run(PROBLEM, TINY, data, str(tmp_path / "RUN"), options, show=lines.append)
    (there,) = made
    assert 0 < there.programs() <= len(np.unique(there.sizes.reshape(-1, 3), axis=0))
    assert found.startup_seconds > there.compiling * there.programs() > 0
    assert f"XLA         {there.programs()} programs for as many shapes, " in "\n".join(lines)
    assert found.flops == estimated[0].flops and found.seconds_per_step < there.compiling


def test_counts_equal_those_of_training(estimated, trained):
    """Compares steps per epoch, FLOPs of all steps, and disk space of checkpoints with a real run."""
    found, _, _, _ = estimated
    epoch = list(trained_elements(trained))
    assert (found.steps, found.steps_per_epoch) == (8, len(epoch))
    flops = sum(
        training_flops(TINY, PROBLEM.vocab_size, *size, np.count_nonzero(target))
        for element in epoch
        for target, size in zip(element["targets"], element["sizes"].tolist(), strict=True)
    )
    assert found.flops == pytest.approx(8 * flops / len(epoch))
    weights = 12 * TINY.num_parameters(PROBLEM.vocab_size)  # and two moments
    assert found.disk_bytes == 7 * weights  # five that may be averaged, the newest, and the next one
    (file,) = Path(trained.checkpoints).glob("ckpt-8.data-*")
    assert weights < file.stat().st_size < weights + 200_000  # the names of the variables, however small they are


def trained_elements(trained: Run):
    shards = Dataset.open(os.path.join(trained.data_dir, PROBLEM.name)).shards("train")
    return TrainingText(shards, TINY.batch_tokens, seed=1).batches(0).as_numpy_iterator()


def test_time_is_the_sum_of_its_parts(estimated):
    found, _, _, _ = estimated
    updating = found.startup_seconds + 8 * found.seconds_per_step
    samples = found.sampling_seconds + 2 * found.evaluation_seconds
    assert found.seconds == pytest.approx(updating + samples)
    assert 0 < found.seconds_per_step < found.startup_seconds and found.evaluation_seconds > 0.1
    assert found.sampling_seconds > 0
    assert found.tokens_per_second > 0 and 10**8 < found.peak_bytes < 10**11


def test_long_steps_are_estimated_without_samples(disturbed):
    found, _ = disturbed
    assert found.sampling_seconds == 0 < found.evaluation_seconds


def test_printed_lines(estimated):
    _, lines, _, _ = estimated
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "problem     animals, 300 training pairs\nset         tiny: \n" in text.replace("tiny:\n", "tiny: \n")
    assert f"parameters  {TINY.num_parameters(PROBLEM.vocab_size):,} with 330 subwords" in text and "paper" not in text
    assert "2,000 tokens per side, in micro-batches of 1,000; the longer side of each:" in lines
    assert "epoch       3 steps; 8 to do" in lines
    named = [line.split()[0] for line in lines if line[:1].strip()]  # continuation lines are indented
    assert named[-7:] == "epoch speed time worst memory disk cost".split()


def test_an_existing_run_is_unchanged(trained, data, tmp_path, monkeypatch):
    """A finished run has no steps left. This does not test the time."""
    folder = shutil.copytree(trained.directory, str(tmp_path / "RUN"))
    before = files(folder)
    profilers = []

    def stop(self):
        profilers.append(self)
        raise Stop

    monkeypatch.setattr(Profiler, "measure", stop)
    with pytest.raises(Stop):
        dry_run(PROBLEM, TINY, data, folder, FLOAT32, show=lambda line: None)
    assert files(folder) == before and profilers[0].steps() == 0
    with pytest.raises(ValueError, match="RUN' holds another run: its seed is 1, not 2"):
        dry_run(PROBLEM, TINY, data, folder, replace(FLOAT32, seed=2))


class Stop(Exception):
    pass


def test_the_worst_micro_batch_has_the_longest_pairs(data, monkeypatch):
    """If the window is only part of the data, it is full of the longest pairs; else it is the largest of the window."""
    dataset = Dataset.open(os.path.join(data, PROBLEM.name))
    run = Run("", PROBLEM, replace(TINY, train_steps=100), data, 1, "float32", "")
    whole = Profiler(run, dataset, PROBLEM.vocab_size)
    batch, source, target = whole._worst()
    assert whole.share == 1 and [batch, source, target] in whole.sizes.reshape(-1, 3).tolist()
    monkeypatch.setattr(input_pipeline, "WINDOW", 100)
    sampled = Profiler(run, dataset, PROBLEM.vocab_size)
    longest = dataset.record.splits["train"].max_lengths
    assert sampled.share == pytest.approx(1 / 3)
    assert sampled._worst() == (1_000 // max(longest), *longest)


@pytest.mark.parametrize(
    ("depth", "worst"),
    [("num_encoder_layers", [4, 50, 5]), ("num_decoder_layers", [4, 5, 50])],
    ids=["encoder", "decoder"],
)
def test_the_worst_micro_batch_is_long_on_the_side_with_more_layers(data, depth, worst):
    dataset = Dataset.open(os.path.join(data, PROBLEM.name))
    run = Run("", PROBLEM, replace(TINY, train_steps=1, **{depth: 9}), data, 1, "float32", "")
    profiler = Profiler(run, dataset, PROBLEM.vocab_size)
    profiler.sizes = np.array([[[4, 5, 50]], [[4, 50, 5]]])
    assert profiler._worst() == tuple(worst)


def test_any_prefix_of_ranks_is_evenly_spread():
    assert list(profiler._ranks(7)) == [1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]


def test_the_papers_figures_appear_only_with_its_own_hyperparameter_sets():
    base, big = HPARAMS["base"], HPARAMS["big"]
    assert estimate._papers(base, "millions") == "; the paper prints 65 million"
    assert estimate._papers(replace(base, train_steps=200), "flops") == "; Table 2: 3.3e+18 in 100,000"
    assert estimate._papers(big, "flops") == "; Table 2: 2.3e+19 in 300,000"
    for other in (replace(base, d_k=32), replace(base, name="mine"), HPARAMS["tiny"]):
        assert estimate._papers(other, "millions") == estimate._papers(other, "flops") == ""


# Runs that do not fit.


def test_data_that_is_not_prepared_is_replaced_by_assumed_lengths(tmp_path, monkeypatch, estimated):
    """Estimates that depend only on the hyperparameter set are as with the data; nothing is written."""
    quick(monkeypatch)
    monkeypatch.setattr(assumed_data, "PAIRS", 2_000)
    lines: list[str] = []
    where = str(tmp_path / "data"), str(tmp_path / "RUN")
    found = dry_run(PROBLEM, TINY, *where, replace(FLOAT32, checkpoint_steps=4), show=lines.append, preview=preview)
    assert os.listdir(tmp_path) == []
    shown = " ".join(" ".join(lines).split())
    assert "animals, not prepared: lengths are assumed (27 tokens per side on average, at most 60)" in shown
    assert "epoch unknown; 8 to do" in shown and "to the end, without evaluation" in shown
    (parameters,) = (line for line in estimated[1] if line.startswith("parameters"))
    assert parameters in lines and found.disk_bytes == estimated[0].disk_bytes
    assert found.steps == 8 and math.isnan(found.steps_per_epoch)
    assert found.tokens_per_second > 0 and found.flops > 0 and found.peak_bytes > 10**8
    assert found.evaluation_seconds == found.sampling_seconds == 0


def test_assumed_lengths_match_the_documentation(monkeypatch):
    with assumed_data.assumed(replace(PROBLEM, max_length=100)) as dataset:
        (window,) = TrainingText(dataset.shards("train"), 25_000, seed=1).windows(0)
        folder = dataset.directory
    assert not os.path.exists(folder) and len(window.lengths) == assumed_data.PAIRS
    assert window.lengths.max() == 100 and window.lengths.min() >= 2
    np.testing.assert_allclose(window.lengths.mean(axis=0), assumed_data.MEAN_LENGTH, rtol=0.03)
    ids = window.pairs["targets"].flat_values.numpy()
    assert (ids.min(), ids.max()) == (3, PROBLEM.vocab_size - 1)


def test_an_existing_run_needs_its_data(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no prepared data .*; make it with t2t-datagen"):
        dry_run(PROBLEM, TINY, str(tmp_path), trained.directory)


def test_a_busy_machine_is_reported(estimated, disturbed):
    quiet, busy = (
        re.findall(r"speed .*?time ", " ".join(" ".join(each[1]).split())) for each in (estimated, disturbed)
    )
    assert "; that rate changed by 50% meanwhile: other work" in busy[0]
    assert len(quiet) == len(busy) == 1 and "meanwhile" not in quiet[0]


def test_a_run_with_another_trainer(trained, data, tmp_path):
    folder = shutil.copytree(trained.directory, str(tmp_path / "RUN"))
    with FileLock(os.path.join(folder, ".lock")):
        with pytest.raises(ValueError, match="another t2t-trainer is running in .*RUN'"):
            dry_run(PROBLEM, TINY, data, folder, FLOAT32)


def test_out_of_memory(data, tmp_path, monkeypatch):
    def full(self):
        self.stage = "in the evaluation"
        self.trained = True  # so it was the evaluation
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(Profiler, "measure", full)
    message = "does not fit: out of memory in the evaluation; use a smaller hyperparameter set"
    with pytest.raises(ValueError, match=message):
        dry_run(PROBLEM, TINY, data, str(tmp_path / "RUN"), show=lambda line: None)


@pytest.mark.slow
def test_dry_run_continues_with_smaller_microbatches(data, tmp_path, monkeypatch, estimated):
    """A step has two micro-batches of about forty pairs, unless memory runs out."""
    refuse_parts(monkeypatch, more_than=40)
    quick(monkeypatch)
    lines: list[str] = []
    found = dry_run(PROBLEM, TINY, data, str(tmp_path / "RUN"), FLOAT32, show=lines.append)
    shown = " ".join(lines)
    assert re.search(
        r"out of memory on a micro-batch of \d+ x 13 x 16 .* retrying with\s+micro-batches of 500 tokens", shown
    )
    assert found.flops == pytest.approx(estimated[0].flops, rel=0.05)


def test_too_little_disk(data, estimated, tmp_path, monkeypatch):
    found, _, _, _ = estimated
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(estimate.shutil, "disk_usage", lambda path: usage(10**9, 0, found.disk_bytes - 1))
    monkeypatch.setattr(Profiler, "measure", lambda self: None)
    monkeypatch.setattr(estimate, "_total", lambda *_: found)
    monkeypatch.setattr(estimate, "_outcome", lambda *_: iter(()))
    with pytest.raises(ValueError, match=f"does not fit: checkpoints take .* MiB are free in {str(tmp_path)!r}; give "):
        dry_run(PROBLEM, TINY, data, str(tmp_path / "not" / "there"), show=lambda line: None)


@pytest.mark.parametrize(
    ("child", "code", "error"),
    [
        ("print('done', end='')", 0, ""),
        ("value < 3 and again(value + 1); print('done', end='')", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("os.kill(os.getpid(), 15)", 143, ""),
        (
            "os.kill(os.getpid(), 9)",
            1,
            "t2t-x: does not fit: the process was killed by SIGKILL, as happens when memory runs",
        ),
    ],
)
def test_silent_death_of_a_child_is_explained(child, code, error):
    source = (
        "import os, sys\nfrom absl import flags\nfrom t2t_repro.cli import child_process, launcher\n"
        f"def body():\n    value, again = child_process.continue_in_child(1)\n    {child}\n"
        "sys.argv = ['t2t-x']\nsys.exit(launcher.run('t2t-x', '', flags.FlagValues(), body))\n"
    )
    done = in_a_process("-c", source)
    assert (done.returncode, done.stdout) == (code, "done" if code == 0 else "")
    assert done.stderr.startswith(error) and done.stderr.count("\n") == bool(error)


@pytest.mark.parametrize("at_once", [False, True])
def test_sigterm_ends_the_child_too(at_once):
    """Also if it arrives before anything else after the fork."""
    source = (
        "import os, time\nfrom absl import flags\nfrom t2t_repro.cli import child_process, launcher\nfork = os.fork\n"
        "def forked():\n    child = fork()\n    if child:\n        os.write(1, b'%d\\n' % child)\n"
        f"        {at_once} and os.kill(os.getpid(), 15)\n    return child\nos.fork = forked\n"
        "def body():\n    child_process.continue_in_child(1)\n    os.write(2, b'runs\\n')\n    time.sleep(100)\n"
        "sys = launcher.sys\nsys.argv = ['t2t-x']\nsys.exit(launcher.run('t2t-x', '', flags.FlagValues(), body))\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", source], text=True, **pipes) as process:
        child = int(process.stdout.readline())
        if not at_once:
            assert process.stderr.readline() == "runs\n"
            process.terminate()
        assert process.wait(60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_limits_of_time_and_passes_end_the_estimate(estimated, data, tmp_path, monkeypatch):
    quick(monkeypatch)
    found, epoch = estimated[0], math.ceil(estimated[0].steps_per_epoch)
    for limits, low, high in (({"train_epochs": 1}, epoch, epoch), ({"train_minutes": 1e-9}, 0, 0)):
        less = dry_run(PROBLEM, TINY, data, str(tmp_path / "RUN"), replace(FLOAT32, **limits), show=lambda line: None)
        assert low <= less.steps <= high < found.steps
        assert less.flops == pytest.approx(found.flops / found.steps * less.steps)


def test_the_estimate_ends_within_the_minutes_with_its_evaluations(data, tmp_path, monkeypatch):
    quick(monkeypatch)
    hparams, options = replace(TINY, train_steps=10**6), replace(FLOAT32, checkpoint_steps=1, train_minutes=0.5)
    found = dry_run(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, show=lambda line: None)
    assert 1 < found.steps and 30 - 2 * (found.evaluation_seconds + found.seconds_per_step) < found.seconds <= 30


def test_the_evaluation_is_that_of_training(data, tmp_path, monkeypatch):
    """Pairs are cut to the positions of the model, and other validation sets are evaluated too."""
    quick(monkeypatch)
    make, lengths = profiler.make_evaluator, set[int]()

    def recording(*arguments):
        evaluate = make(*arguments)
        return lambda source, target: lengths.update((source.shape[1], target.shape[1])) or evaluate(source, target)

    monkeypatch.setattr(profiler, "make_evaluator", recording)
    monkeypatch.setattr(profiler, "_twice", lambda function: (function() and 1.0, 1.0))
    problem, hparams = replace(PROBLEM, max_length=4), replace(TINY, max_positions=4)
    alone, both = (
        dry_run(problem, hparams, data, str(tmp_path / "RUN"), options, show=lambda line: None)
        for options in (FLOAT32, replace(FLOAT32, also_validate=(data,)))
    )
    assert max(lengths) == 4 and both.evaluation_seconds == pytest.approx(2 * alone.evaluation_seconds)


def test_a_run_that_minutes_ended_has_no_steps_left(trained, data, tmp_path, monkeypatch):
    """Even if its newest checkpoint has taken less, because the minutes passed while it was scored."""
    quick(monkeypatch)
    run = replace(trained, directory=shutil.copytree(trained.directory, str(tmp_path / "RUN")))
    ended = Selection(stopped_step=8, reason="train_minutes=60 are over")
    run.note(replace(run.training, selection=ended))
    hparams = replace(trained.hparams, train_steps=20)
    found = [
        dry_run(PROBLEM, hparams, data, run.directory, replace(FLOAT32, train_minutes=n), show=lambda line: None)
        for n in (60, 61)
    ]
    assert [each.steps for each in found] == [0, 12]


def test_a_run_that_patience_ended_has_no_steps_left(trained, data, tmp_path, monkeypatch):
    quick(monkeypatch)
    run = replace(trained, directory=shutil.copytree(trained.directory, str(tmp_path / "RUN")))
    scores = {"perplexity": {"4": 2.0, "8": 3.0}}
    run.note(replace(run.training, selection=Selection(scores=scores)))
    hparams = replace(trained.hparams, train_steps=20)
    found = [
        dry_run(PROBLEM, hparams, data, run.directory, replace(FLOAT32, patience=patience), show=lambda line: None)
        for patience in (1, 2)
    ]
    assert [each.steps for each in found] == [0, 12]
    assert found[0].flops == pytest.approx(found[1].flops * 8 / 20)


@pytest.mark.slow
def test_on_two_replicas(estimated, data, tmp_path, on_replicas):
    """Both CPUs of these tests compute one micro-batch each: the same steps at the same cost."""
    on_replicas(2)
    lines: list[str] = []
    found = dry_run(PROBLEM, TINY, data, str(tmp_path / "RUN"), FLOAT32, show=lines.append)
    assert (found.steps_per_epoch, found.flops) == (estimated[0].steps_per_epoch, pytest.approx(estimated[0].flops))
    shown = " ".join(" ".join(lines).split())  # the name of a processor may take more than one line
    assert re.search(r"devices 2 x .* 1 micro-batch per device and step", shown)


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    """Estimates the built-in problem as a user would, without and with data, and leaves nothing behind."""
    data = [f"--data_dir={tmp_path}/data", "--problem=translate_ende_cldr"]
    command = ["-m", "t2t_repro.bin.t2t_trainer", *data, "--hparams=tiny", "--output_dir=RUN", "--dry_run"]
    unprepared = in_a_process(*command, cwd=tmp_path)
    assert unprepared.returncode == 0, unprepared.stderr
    assert "not prepared: lengths are assumed" in " ".join(unprepared.stdout.split())
    assert "dry run: the data is not prepared; pairs of random tokens take its place" in unprepared.stderr
    assert os.listdir(tmp_path) == []
    assert in_a_process("-m", "t2t_repro.bin.t2t_datagen", *data).returncode == 0
    done = in_a_process(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nworst  " in done.stdout and done.stdout.rstrip("\n").rpartition("\n")[2].startswith("cost  ")
    assert os.listdir(tmp_path) == ["data"]
