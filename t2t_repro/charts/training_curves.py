"""Curves of a run over its steps, read from metrics.jsonl: `curves.svg` and `curves.png` in the run directory.

Training values are means over the steps between two lines of the log. Validation values are those of a checkpoint.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import NamedTuple

from t2t_repro.charts.drawing import COLORS, Curve, Panel, Point, panels_figure, panels_svg, thinned
from t2t_repro.io import atomic_write, read_json_lines
from t2t_repro.run import Run

NAMES = ("curves.svg", "curves.png")
_LARGEST = 1e30  # a perplexity above it is that of a diverged model, and would flatten all others
Metrics = dict[str, list[Point]]  # (step, value) by name, in the order of the steps


class _Chart(NamedTuple):
    """One panel. `metrics` are the names in metrics.jsonl by the names of the curves."""

    title: str
    unit: str
    metrics: dict[str, str]
    log: str = ""
    zero: bool = True


_CHARTS = (
    _Chart("Loss", "nats per token, label-smoothed", {"training": "loss", "validation": "validation_loss"}, zero=False),
    _Chart(
        "Perplexity",
        "per token, logarithmic",
        {"training": "perplexity", "validation": "validation_perplexity"},
        log="y",
    ),
    _Chart(
        "Accuracy",
        "share of tokens, given the reference tokens before",
        {"training": "accuracy", "validation": "validation_accuracy"},
    ),
    _Chart("BLEU", "of some validation sentences, decoded greedily", {"validation": "sample_BLEU"}),
    _Chart("F1", "of some validation sentences, decoded greedily", {"validation": "sample_F1"}),
    _Chart("Validation BLEU", "of the complete validation set, decoded greedily", {"validation": "validation_bleu"}),
    _Chart("Validation chrF", "of the complete validation set, decoded greedily", {"validation": "validation_chrf"}),
    _Chart("Validation F1", "of the complete validation set, decoded greedily", {"validation": "validation_f1"}),
    _Chart("Learning rate", "", {"training": "learning_rate"}),
    _Chart("Speed", "target tokens per second", {"training": "target_tokens_per_second"}),
)
_COLOR = {"training": COLORS[0], "validation": COLORS[1]}
_OTHER = "validation_perplexity_"  # starts the metrics of other validation sets, before their names


def read_metrics(path: str) -> Metrics:
    """Returns the values of each metric in metrics.jsonl that are finite and below 1e30; nothing without the file.

    A run that continued from a checkpoint took some steps twice; their last values are returned. Raises ValueError if a
    line is damaged.
    """
    metrics: Metrics = {}
    for number, line in enumerate(read_json_lines(path) if os.path.exists(path) else (), start=1):
        step = line.get("step")
        if not isinstance(step, int) or any(not isinstance(value, int | float) for value in line.values()):
            raise ValueError(f"{path} is damaged: line {number} is not a step with numbers")
        for name, value in line.items():
            points = metrics.setdefault(name, [])
            while points and points[-1][0] >= step:
                points.pop()
            if abs(value) < _LARGEST:  # false for NaN
                points.append((step, value))
    return metrics


def training_panels(metrics: Metrics) -> list[Panel]:
    """Returns loss, perplexity, BLEU or F1, learning rate and speed over the steps, as far as they were measured."""
    panels = []
    for chart in _CHARTS:
        found = {name: metrics.get(metric) for name, metric in chart.metrics.items()}
        if chart.title == "Perplexity":
            for name in (name for name in metrics if name.startswith(_OTHER)):
                label = name.removeprefix(_OTHER)
                found[f"{label} (other)" if label in found else label] = metrics[name]
        curves = {name: thinned(points) for name, points in found.items() if points}
        if not curves:
            continue
        unit = chart.unit
        if not unit:
            unit, curves = _scaled(curves)
        others = itertools.cycle(COLORS[2:])
        drawn = tuple(Curve(name, points, _COLOR.get(name) or next(others)) for name, points in curves.items())
        panels.append(Panel(chart.title, unit, "steps", drawn, chart.log, chart.zero))
    return panels


def _scaled(curves: Metrics) -> tuple[str, Metrics]:
    """Returns a power of ten as the unit, and the curves in it."""
    highest = max(value for points in curves.values() for _, value in points)
    power = math.floor(math.log10(highest)) if highest > 0 else 0
    unit = f"in units of 10{str(power).translate(_SUPERSCRIPT)}"
    return unit, {name: [(x, y / 10.0**power) for x, y in points] for name, points in curves.items()}


_SUPERSCRIPT = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def write_curves(run: Run, report: Callable[[str], None]) -> list[str]:
    """Writes the curves into the run directory, each file atomically, and returns their paths.

    A run without metrics has none. Any failure, such as a full disk, is only reported: the curves can be drawn again.
    """
    paths = [os.path.join(run.directory, name) for name in NAMES]
    try:
        panels = training_panels(read_metrics(run.metrics))
        if not panels:
            return []
        title = f"{run.problem.name}, {run.hparams.name}"
        with atomic_write(paths[0]) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(panels_svg(panels, 2, title))
        with atomic_write(paths[1]) as temporary:
            panels_figure(panels, 2, title).savefig(temporary, format="png", dpi=144)
    except Exception as error:
        report(f"the curves of {run.directory} are not drawn: {str(error).partition(chr(10))[0]}")
        return []
    return paths
