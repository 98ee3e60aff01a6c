"""Curves of a run: which metrics they show, runs of every kind, and failures."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import matplotlib.image
import pytest
from conftest import CHECKOUT

from t2t_repro.charts.training_curves import read_metrics, training_panels, write_curves
from t2t_repro.run import Run

TRAINING = {"loss": 5.0, "perplexity": 90.0, "accuracy": 0.2, "learning_rate": 4e-4, "target_tokens_per_second": 9e3}
VALIDATION = {"validation_loss": 4.5, "validation_perplexity": 70.0, "validation_accuracy": 0.3}


@pytest.fixture
def run(tmp_path) -> Run:
    """The run of version 0.1 in the fixtures, which has no metrics yet."""
    shutil.copytree(CHECKOUT / "tests" / "fixtures" / "run", tmp_path / "run")
    return Run.open(str(tmp_path / "run"))


def log(run: Run, *lines: dict[str, object]) -> None:
    Path(run.metrics).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def drawn(run: Run) -> dict[str, list[str]]:
    """Returns the names of the curves by the title of their panel."""
    panels = training_panels(read_metrics(run.metrics))
    return {panel.title: [curve.name for curve in panel.curves] for panel in panels}


def test_panels_of_a_translation_run(run):
    log(run, {"step": 10} | TRAINING, {"step": 10} | VALIDATION | {"sample_BLEU": 12.0}, {"step": 20} | TRAINING)
    both = ["training", "validation"]
    assert drawn(run) == {
        "Loss": both,
        "Perplexity": both,
        "Accuracy": both,
        "BLEU": ["validation"],
        "Learning rate": ["training"],
        "Speed": ["training"],
    }


def test_other_validation_sets_and_scores_of_the_complete_one_are_drawn(run):
    others = {"validation_perplexity_general": 80.0, "validation_perplexity_news": 90.0}
    log(run, {"step": 10} | TRAINING, {"step": 10} | VALIDATION | others | {"validation_chrf": 30.0})
    assert drawn(run)["Perplexity"] == ["training", "validation", "general", "news"]
    assert drawn(run)["Validation chrF"] == ["validation"]
    [panel] = [panel for panel in training_panels(read_metrics(run.metrics)) if panel.title == "Perplexity"]
    assert len({curve.color for curve in panel.curves}) == 4


def test_a_validation_set_named_like_a_curve_does_not_replace_it(run):
    others = {"validation_perplexity_training": 80.0, "validation_perplexity_validation": 90.0}
    log(run, {"step": 10} | TRAINING, {"step": 10} | VALIDATION | others)
    names = ["training", "validation", "training (other)", "validation (other)"]
    assert drawn(run)["Perplexity"] == names


def test_panels_of_a_parsing_run_without_validation_loss(run):
    log(run, {"step": 10, "loss": 5.0}, {"step": 10, "sample_F1": 40.0})
    assert drawn(run) == {"Loss": ["training"], "F1": ["validation"]}


def test_learning_rate_is_in_powers_of_ten(run):
    log(run, {"step": 1, "learning_rate": 1e-4}, {"step": 2, "learning_rate": 7e-4})
    [panel] = training_panels(read_metrics(run.metrics))
    assert panel.unit == "in units of 10⁻⁴"
    assert [value for _, value in panel.curves[0].points] == pytest.approx([1, 7])


def test_continued_run_has_each_step_once(run):
    """After a kill, steps since the last checkpoint are taken again: their later values count."""
    log(run, *({"step": step, "loss": loss} for step, loss in ((10, 5.0), (20, 4.0), (30, 3.0), (20, 2.0), (40, 1.0))))
    assert read_metrics(run.metrics)["loss"] == [(10, 5.0), (20, 2.0), (40, 1.0)]


def test_values_of_a_diverged_model_are_left_out(run):
    log(run, {"step": 10, "loss": float("nan")}, {"step": 20, "loss": 3.0}, {"step": 30, "loss": 1e31})
    assert read_metrics(run.metrics)["loss"] == [(20, 3.0)]


@pytest.mark.parametrize("lines", [1, 2, 900])
def test_files(run, lines):
    log(run, *({"step": 10 * n} | TRAINING for n in range(1, lines + 1)))
    svg, png = write_curves(run, pytest.fail)
    assert ">translate_ende_cldr, tiny<" in Path(svg).read_text("utf-8")
    assert matplotlib.image.imread(png).shape[1] == 1520
    assert os.path.getsize(svg) < 60_000
    assert not [name for name in os.listdir(run.directory) if ".tmp-" in name]


@pytest.mark.parametrize("lines", [None, [], [{"step": 10, "loss": float("nan")}]])
def test_run_without_values_has_no_curves_and_no_message(run, lines):
    if lines is not None:
        log(run, *lines)
    assert write_curves(run, pytest.fail) == []
    assert not list(Path(run.directory).glob("curves*"))


@pytest.mark.parametrize("line", ["[1]", '{"loss": 1.0}', '{"step": 1, "loss": "low"}', '{"step": "1"}'])
def test_damaged_metrics_are_one_line(run, line):
    Path(run.metrics).write_text(f'{{"step": 1, "loss": 2.0}}\n{line}\n', "utf-8")
    messages = []
    assert write_curves(run, messages.append) == []
    [message] = messages
    assert "metrics.jsonl is damaged: line 2 is not a" in message and "\n" not in message


def test_file_that_cannot_be_written_is_one_line(run):
    log(run, {"step": 10} | TRAINING)
    os.mkdir(os.path.join(run.directory, "curves.svg"))
    messages = []
    assert write_curves(run, messages.append) == []
    [message] = messages
    assert message.startswith(f"the curves of {run.directory} are not drawn: ") and "Is a directory" in message


def test_missing_matplotlib_is_one_line(run, monkeypatch):
    log(run, {"step": 10} | TRAINING)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    messages = []
    assert write_curves(run, messages.append) == []
    assert len(messages) == 1 and "matplotlib" in messages[0]


def test_training_ends_with_the_curves(trained):
    """The run of a real trainer: its log has everything that the curves read."""
    titles = [panel.title for panel in training_panels(read_metrics(trained.metrics))]
    assert titles == ["Loss", "Perplexity", "Accuracy", "Learning rate", "Speed"]
    assert "Perplexity" in Path(trained.directory, "curves.svg").read_text("utf-8")
