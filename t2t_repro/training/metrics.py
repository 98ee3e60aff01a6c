"""Training metrics: a line in the log, metrics.jsonl, and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.io import append_line
from t2t_repro.run import Run
from t2t_repro.system.log import DETAIL, short_reason
from t2t_repro.training.train_step import StepMetrics

REPORT = 10.0  # seconds between two reports
UNKNOWN = -1.0  # FLOPs as the paper counts them, if the paper gives no rate for the device


class Cost(NamedTuple):
    """The cost of training so far, over all its starts."""

    target_tokens: float = 0.0  # real ones
    flops: float = 0.0
    seconds: float = 0.0
    paper_flops: float = 0.0  # as the paper counts them, or `UNKNOWN`


class Step(NamedTuple):
    """A step of training. `metrics` and `position` are tensors that the device may still be computing."""

    number: int  # from 1
    learning_rate: float
    position: tf.Tensor  # of the next step in the data
    metrics: StepMetrics


@contextlib.contextmanager
def _events_in(directory: str) -> Iterator[None]:
    """Raises OSError instead of TensorFlow's error if events cannot be written, for example to a full disk."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"cannot write events to {directory!r}: {short_reason(error)}") from None


class MetricsLogger:
    """Sums up steps and reports them every `REPORT` seconds. It waits for the device only then.

    On a terminal the newest line replaces the previous one.
    """

    def __init__(
        self,
        run: Run,
        report: Callable[[str], None],
        cost: Cost = Cost(),  # noqa: B008 (immutable)
        paper_rate: float = UNKNOWN,
        on_report: Callable[[list[Step]], None] | None = None,
    ):
        """Starts the clock.

        Args:
          run: the run whose metrics.jsonl and TensorBoard events are written.
          report: called with each complete line.
          cost: the cost of training so far.
          paper_rate: FLOP/s of the devices according to the paper, or `UNKNOWN`.
          on_report: called after each report with the steps since the previous one. Their metrics are Python numbers.
        """
        self._run, self._report = run, report
        self._paper_rate, self._on_report = paper_rate, on_report
        self.cost = cost
        self._counted = time.monotonic()
        with _events_in(run.directory):
            self._events = tf.summary.create_file_writer(run.directory)
        self._started = self._last = time.monotonic()
        self._first_step: int | None = None
        self._steps: list[Step] = []
        self._untimed = 1  # of these steps: the very first one also builds the graph

    def add(self, step: Step) -> None:
        """Adds a step, and reports if a report is due."""
        self._steps.append(step)
        if self._first_step is None:
            self._first_step = step.number - 1
            self._started = self._last = time.monotonic()
        if time.monotonic() - self._last >= REPORT or step.number == self._run.hparams.train_steps:
            self.flush()

    @property
    def seconds(self) -> float:
        """The seconds of training so far, over all its starts."""
        return self.cost.seconds + time.monotonic() - self._counted

    def write(self, step: int, values: dict[str, float], line: str) -> None:
        """Records `values` and shows `line`."""
        append_line(self._run.metrics, json.dumps({"step": step} | values, allow_nan=True))
        with _events_in(self._run.directory):
            with self._events.as_default(step=step):
                for name, value in values.items():
                    tf.summary.scalar(name, np.float64(value))  # a Python float above the range of float32 raises
            self._events.flush()
        self._report(line)

    def show(self, step: int, translations: Sequence[tuple[str, str, str]]) -> None:
        """Shows the source, the reference and the model's translation of some sentences."""
        names = ("source", "reference", "ours")
        rows = [[text.replace("\n", " ") for text in texts] for texts in translations]
        table = [list(names), ["---"] * 3, *([text.replace("|", "\\|") for text in row] for row in rows)]
        with _events_in(self._run.directory):
            with self._events.as_default(step=step):
                tf.summary.text("samples", "\n".join(f"| {' | '.join(row)} |" for row in table))  # Markdown
            self._events.flush()
        for texts in rows:
            for name, text in zip(names, texts, strict=True):
                self._report(f"{DETAIL}{name:<11}{text}")

    def resume(self) -> None:
        """Excludes the time since the last report, such as that of a checkpoint or validation, from the throughput."""
        self._last = time.monotonic()

    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # the disk is full; metrics.jsonl has the same values
            self._events.close()

    def flush(self) -> None:
        """Reports the steps since the last report, if any."""
        if not self._steps:
            return
        steps = [step._replace(metrics=step.metrics.numpy()) for step in self._steps]
        timed, now = steps[self._untimed :], time.monotonic()
        self._steps, self._untimed = [], 0
        if timed:
            elapsed = now - self._last
        else:  # the first step alone: its time includes building the graph
            timed, elapsed = steps, now - self._counted
        self._last = now
        sums, newest = _sums(steps), steps[-1]
        self._add_cost(sums, now)
        speeds = StepMetrics(*(value / max(elapsed, 1e-9) for value in _sums(timed)))
        values = {
            "loss": sums.smoothed / max(sums.tokens, 1),
            "perplexity": safe_exp(sums.plain / max(sums.tokens, 1)),
            "accuracy": sums.correct / max(sums.tokens, 1),
            "target_tokens_per_second": speeds.tokens,
            "learning_rate": newest.learning_rate,
            "gradient_norm": newest.metrics.gradient_norm,
            "skipped_updates": sums.skipped,
            "seconds_per_update": elapsed / len(timed),
            "flops_per_second": speeds.flops,
            "flops_spent": self.cost.flops,
        }
        self.write(newest.number, values, self._line(newest.number, values, now))
        if self._on_report:
            self._on_report(steps)

    def _add_cost(self, sums: StepMetrics, now: float) -> None:
        tokens, flops, before, paper_flops = self.cost
        seconds = now - self._counted
        known = self._paper_rate > 0 and paper_flops >= 0  # once unknown, the sum stays unknown
        paper_flops = paper_flops + self._paper_rate * seconds if known else UNKNOWN
        self.cost = Cost(tokens + sums.tokens, flops + sums.flops, before + seconds, paper_flops)
        self._counted = now

    def _line(self, step: int, values: dict[str, float], now: float) -> str:
        """Returns the line of a report. It ends with the time left. Fits 80 columns up to 300k steps and 100 hours."""
        total = self._run.hparams.train_steps
        per_step = (now - self._started) / max(step - (self._first_step or 0) - 1, 1)
        return (
            f"step {step:,}/{short(total)} loss {values['loss']:.2f} ppl {values['perplexity']:.4g} "
            f"lr {values['learning_rate']:.1e} |g| {values['gradient_norm']:.2g} "
            f"{values['target_tokens_per_second'] / 1000:.3g}k tok/s -{clock((total - step) * per_step)}"
        ).replace("e-0", "e-")


def _sums(steps: list[Step]) -> StepMetrics:
    """Returns the sum of each metric in float64. `skipped` becomes a number of steps."""
    return StepMetrics(*np.array([step.metrics for step in steps], np.float64).sum(axis=0).tolist())


def write_scores(directory: str, scores: dict[str, Any]) -> None:
    """Adds scores to the run's curves in TensorBoard, at the step of the newest weights.

    `scores` is the result of `evaluate`. The curves are `test/bleu`, `test_average5/bleu` for averaged weights, and
    `test_best5/bleu` if they are the best ones; `_ema` is added for moving averages. Raises OSError if they cannot be
    written.
    """
    averaged, best = len(scores.get("average_of", scores["checkpoints"])), scores.get("average_best")
    group = f"{scores['split']}_{'best' if best else 'average'}{averaged}" if averaged > 1 or best else scores["split"]
    group += "_ema" * scores.get("moving_average", False)
    with _events_in(directory):
        with tf.summary.create_file_writer(directory, filename_suffix=".scores").as_default(step=scores["step"]):
            for name in ("bleu", "paper_bleu", "multi30k_bleu", "chrf", "f1", "loss", "perplexity", "accuracy"):
                if name in scores:
                    tf.summary.scalar(f"{group}/{name}", scores[name])


def clock(seconds: float) -> str:
    """Formats a duration as 1:02:03, as 2:03 below an hour, and as 12h34m from ten hours on."""
    hours, rest = divmod(int(max(seconds, 0)), 3600)
    minutes, left = divmod(rest, 60)
    if hours >= 10:
        return f"{hours}h{minutes:02}m"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def short(number: int) -> str:
    """Formats a number as 8,500, and multiples of 1,000 as 300k."""
    return f"{number // 1000:,}k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"


def safe_exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
