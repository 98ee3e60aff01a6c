"""Training metrics: on a terminal, in a log, and in TensorBoard."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from helpers.tiny_model import TINY, silent
from tensorflow.core.util import event_pb2

from t2t_repro.evaluation.validation_preview import ValidationPreview
from t2t_repro.run import Run
from t2t_repro.system import log
from t2t_repro.training import metrics
from t2t_repro.training.metrics import UNKNOWN, Cost, MetricsLogger, Step, clock, short, write_scores
from t2t_repro.training.train_step import StepMetrics


def events(folder: str) -> dict[str, list[tuple[int, object]]]:
    """Returns (step, value) for each name, as TensorBoard reads them."""
    found: dict[str, list[tuple[int, object]]] = {}
    for path in sorted(Path(folder).glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = event_pb2.Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, tf.make_ndarray(value.tensor).tolist()))
    return found


@pytest.fixture
def clocked(monkeypatch):
    """Sets the clock of the logger to `clocked.now`."""

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    monkeypatch.setattr(metrics, "time", Clock())
    return metrics.time


@pytest.fixture
def run(tmp_path) -> Run:
    hparams = replace(TINY, train_steps=300_000)
    return Run(str(tmp_path), None, hparams, "", 1, "float32", "")  # type: ignore[arg-type]


def step(number: int, tokens: float = 1_000.0, flops: float = 1e9) -> Step:
    sums = (4.2 * tokens, 4.0 * tokens, 0.5 * tokens, tokens, flops, 0.52)
    metrics = StepMetrics(*map(tf.constant, sums), skipped=tf.constant(False))
    return Step(number, 1e-4, tf.constant([0, 0, number]), metrics)


def test_throughput_excludes_the_first_step_and_checkpoints(run, clocked):
    """The first step, which also builds the graph, counts for the loss but not for the throughput. Nor does the time of
    a checkpoint.
    """
    lines: list[str] = []
    seen: list[list[Step]] = []
    shown = MetricsLogger(run, lines.append, on_report=seen.append)
    clocked.now += 50  # of the graph
    shown.add(step(1))
    for number, seconds in ((2, 4), (3, 6)):
        clocked.now += seconds
        shown.add(step(number))
    clocked.now += 1_000  # of a checkpoint
    shown.resume()
    clocked.now += 10
    shown.add(step(4))
    shown.close()
    first, second = (json.loads(line) for line in Path(run.metrics).read_text().splitlines())
    assert (first["step"], second["step"]) == (3, 4)
    assert first["target_tokens_per_second"] == pytest.approx(200) and first["seconds_per_update"] == pytest.approx(5)
    assert first["flops_per_second"] == pytest.approx(2e9 / 10)
    assert second["target_tokens_per_second"] == pytest.approx(100)
    assert first["loss"] == pytest.approx(4.2) and first["flops_spent"] == pytest.approx(3e9)
    assert [[each.number for each in steps] for steps in seen] == [[1, 2, 3], [4]]
    assert seen[0][0].metrics.tokens == 1_000 and seen[0][0].metrics.skipped is False
    assert lines[0].startswith("step 3/300k loss 4.20 ppl 54.6 lr 1.0e-4 |g| 0.52 0.2k tok/s -")
    assert events(run.directory)["flops_per_second"] == [(3, pytest.approx(2e8)), (4, pytest.approx(1e8))]


def test_a_single_first_step_is_reported_with_the_time_of_its_graph(run, clocked):
    shown = MetricsLogger(run, silent)
    clocked.now += 50
    shown.add(step(1))
    shown.flush()
    shown.close()
    (line,) = (json.loads(line) for line in Path(run.metrics).read_text().splitlines())
    assert line["target_tokens_per_second"] == pytest.approx(20) and line["flops_per_second"] == pytest.approx(2e7)


def test_the_papers_cost_uses_the_devices_of_each_start(run, clocked):
    """Ten seconds on two devices, then five on one. With a device of unknown rate the sum stays unknown."""
    cost = Cost()
    for seconds, rate, paper_flops in ((10, 2e12, 2e13), (5, 1e12, 2.5e13), (1, UNKNOWN, UNKNOWN), (5, 1e12, UNKNOWN)):
        shown = MetricsLogger(run, silent, cost, paper_rate=rate)
        shown.add(step(1))
        clocked.now += seconds
        shown.flush()
        shown.close()
        cost = shown.cost
        assert cost.paper_flops == pytest.approx(paper_flops)
    assert cost.seconds == pytest.approx(21)


def test_time_left_of_a_continued_run_is_that_of_its_own_steps(run, clocked):
    """Neither the steps before this start count, nor the time of the first one, which builds the graph."""
    lines: list[str] = []
    shown = MetricsLogger(run, lines.append)
    clocked.now += 50
    shown.add(step(299_001))
    for number in (299_002, 299_003):
        clocked.now += 5
        shown.add(step(number))
    shown.close()
    assert len(lines) == 1 and lines[0].endswith(f" -{clock(997 * 5)}")


def test_the_longest_report_fits_80_columns(run):
    shown = MetricsLogger(run, silent)
    shown._first_step, shown._started = 0, 0.0
    values = {"loss": 4.123, "perplexity": 12.3456, "learning_rate": 1.23e-4, "gradient_norm": 0.5234}
    values["target_tokens_per_second"] = 12_345.6
    line = shown._line(123_456, values, now=123_455 * 1.7)
    shown.close()
    assert line == "step 123,456/300k loss 4.12 ppl 12.35 lr 1.2e-4 |g| 0.52 12.3k tok/s -83h22m"
    assert len(line) <= 80


def test_short_forms():
    assert [short(number) for number in (999, 8_500, 300_000)] == ["999", "8,500", "300k"]
    assert [clock(seconds) for seconds in (59, 3_600, 36_061)] == ["0:59", "1:00:00", "10h01m"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINES = ("step 1/9 loss 4.20", "checkpoint at step 1", "  source     a dog")


def test_a_log_has_one_line_per_report(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for line in LINES:
        log.report(line)
    assert sys.stderr.getvalue() == "step 1/9 loss 4.20\ncheckpoint at step 1\n"


def test_a_terminal_overwrites_reports_and_truncates_details(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "17")
    for line in LINES:
        log.report(line)
    step, rest = sys.stderr.getvalue().split("\r\x1b[K")[1:3], sys.stderr.getvalue().split("\r\x1b[K")[3]
    assert step == ["step 1/9 loss 4.", "checkpoint at step 1\n"] and rest == "  source     a d\n"


def test_a_perplexity_beyond_float32_is_written(run):
    """As that of a model that diverges: metrics.jsonl has the number, TensorBoard infinity."""
    logger = MetricsLogger(run, lambda line: None)
    logger.write(7, {"validation_perplexity": 1e200}, "a line")
    logger.close()
    with open(run.metrics, encoding="utf-8") as file:
        assert json.loads(file.read()) == {"step": 7, "validation_perplexity": 1e200}
    assert events(run.directory)["validation_perplexity"] == [(7, math.inf)]


def test_scores_become_curves(tmp_path):
    scores = {"split": "test", "step": 8, "bleu": 27.3, "loss": 2.0, "checkpoints": ["ckpt-8"], "problem": "p"}
    write_scores(str(tmp_path), scores)
    write_scores(str(tmp_path), scores | {"bleu": 28.0, "checkpoints": ["ckpt-4", "ckpt-8"]})
    found = events(str(tmp_path))
    assert found["test/bleu"] == [(8, pytest.approx(27.3))]
    assert found["test_average2/bleu"] == [(8, pytest.approx(28.0))]
    assert found["test/loss"] == [(8, 2.0)] and len(found) == 4


def test_scores_that_cannot_be_written_are_an_os_error(tmp_path):
    file = tmp_path / "file"
    file.touch()
    scores = {"split": "test", "step": 8, "bleu": 27.3, "checkpoints": ["ckpt-8"]}
    with pytest.raises(OSError, match=f"^cannot write events to '{file}': "):
        write_scores(str(file), scores)


# Samples: translations of a few sentences during training.


def test_samples(trained, data, monkeypatch):
    """Greedy decoding by the current model, always of the same sentences, none longer than LONGEST."""
    from helpers.tiny_model import PROBLEM, validation_pairs

    from t2t_repro.data.dataset import Dataset
    from t2t_repro.evaluation import validation_preview
    from t2t_repro.inference.translator import Translator

    monkeypatch.setattr(validation_preview, "SENTENCES", 6)
    translator = Translator.from_run(trained.directory)
    preview = ValidationPreview(translator.model, trained, Dataset.open(os.path.join(data, PROBLEM.name)))
    first, second = preview(), preview()
    assert first == second and len(first.translations) == 3
    pairs = dict(validation_pairs())
    sources, references, ours = zip(*first.translations, strict=True)
    assert len(set(sources)) == 3 and [pairs[source] for source in sources] == list(references)
    assert list(ours) == translator.translate(list(sources), beam_size=1)
    assert 0 <= first.scores["sample_BLEU"] <= 100 and len(preview.references) == 6
    monkeypatch.setattr(validation_preview, "LONGEST", 1)
    nothing = ValidationPreview(translator.model, trained, Dataset.open(os.path.join(data, PROBLEM.name)))()
    assert nothing == ({}, [])


def test_samples_on_a_full_disk_are_an_os_error(run):
    """TensorFlow calls a full disk exhausted resources, like memory that runs out."""
    logger, before = MetricsLogger(run, lambda line: None), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        with pytest.raises(OSError, match="^cannot write events to .*: File too large$"):
            logger.show(7, [("a", "b", "c")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    logger.close()


def test_samples_are_printed_and_saved(run):
    lines: list[str] = []
    shown = MetricsLogger(run, lines.append)
    shown.show(7, [("a|b", "ein\nHund", "Hund")])
    shown.close()
    assert lines == ["  source     a|b", "  reference  ein Hund", "  ours       Hund"]
    ((step, text),) = events(run.directory)["samples"]
    assert (step, text) == (7, b"| source | reference | ours |\n| --- | --- | --- |\n| a\\|b | ein Hund | Hund |")
