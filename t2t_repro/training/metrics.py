"""What a training says while it runs: a line on the terminal, metrics.jsonl, and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.io import append_line
from t2t_repro.log import DETAIL
from t2t_repro.run import Run

UNKNOWN = -1.0  # FLOPs as the paper counts them, of a device of which the paper gives no rate


class Progress:
    """Sums up updates, and reports them every `seconds`: only then is the device waited for.

    `report` takes one finished line. On a terminal the newest line replaces the one before it. `spent` [4], float64, is
    what the training has cost up to the last line, over all its starts: real target tokens, FLOPs, seconds, and FLOPs
    as the paper counts them, `paper_rate` a second (`UNKNOWN` if that is). `watch` is called after each report with the
    newest step, the sums [U, 7] of the updates since the last one, and where in the data the update after each begins.
    """

    def __init__(
        self,
        run: Run,
        report: Callable[[str], None],
        spent: tuple[float, ...] = (0, 0, 0, 0),
        seconds: float = 10.0,
        paper_rate: float = UNKNOWN,
        watch: Callable[[int, np.ndarray, list[tf.Tensor]], None] | None = None,
    ):
        self._run, self._report, self._seconds = run, report, seconds
        self._paper_rate, self._watch = paper_rate, watch
        self.spent = np.array(spent, np.float64)
        self._counted = time.monotonic()
        self._events = tf.summary.create_file_writer(run.directory)
        self._started = self._last = time.monotonic()
        self._first_step: int | None = None
        self._sums: list[tf.Tensor] = []
        self._positions: list[tf.Tensor] = []
        self._untimed = 1  # of those updates: the first one of all also builds the graph

    def update(self, step: int, sums: tf.Tensor, rate: float, position: tf.Tensor) -> None:
        """Takes the sums of one update, as `Updater` gives them, and where in the data the next one begins."""
        self._sums.append(sums)
        self._positions.append(position)
        if self._first_step is None:
            self._first_step = step - 1
            self._started = self._last = time.monotonic()
        if time.monotonic() - self._last >= self._seconds or step == self._run.hparams.train_steps:
            self.flush(step, rate)

    def write(self, step: int, values: dict[str, float], line: str) -> None:
        """Records `values` and shows `line`."""
        append_line(self._run.metrics, json.dumps({"step": step} | values, allow_nan=True))
        try:
            with self._events.as_default(step=step):
                for name, value in values.items():
                    tf.summary.scalar(name, value)
            self._events.flush()
        except tf.errors.OpError as error:
            reason = error.message.partition("\n")[0].rpartition("; ")[2]
            raise OSError(f"cannot write events to {self._run.directory!r}: {reason}") from None
        self._report(line)

    def show(self, step: int, translations: Sequence[tuple[str, str, str]]) -> None:
        """Shows source, reference and our own translation of some sentences."""
        names = ("source", "reference", "ours")
        rows = [[text.replace("\n", " ") for text in texts] for texts in translations]
        table = [list(names), ["---"] * 3, *([text.replace("|", "\\|") for text in row] for row in rows)]
        with self._events.as_default(step=step):
            tf.summary.text("samples", "\n".join(f"| {' | '.join(row)} |" for row in table))  # TensorBoard's Markdown
        self._events.flush()
        for texts in rows:
            for name, text in zip(names, texts, strict=True):
                self._report(f"{DETAIL}{name:<11}{text}")

    def resume(self) -> None:
        """What passed since the last report (a checkpoint, an evaluation) is no time of updates."""
        self._last = time.monotonic()

    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # on a full disk; what it would write, metrics.jsonl has too
            self._events.close()

    def flush(self, step: int, rate: float) -> None:
        """Reports the updates since the last time, `step` being the newest, where there are any."""
        if not self._sums:
            return
        sums_U7, positions = tf.stack(self._sums).numpy(), self._positions
        timed_U7 = sums_U7[self._untimed :]
        self._sums, self._positions, self._untimed = [], [], 0
        now = time.monotonic()
        if len(timed_U7):
            elapsed, self._last = now - self._last, now
        else:  # the first update and no other: its time is that of its graph too
            timed_U7, elapsed, self._last = sums_U7, now - self._counted, now
        smoothed, plain, correct, tokens, flops, _, skipped = sums_U7.astype(np.float64).sum(axis=0).tolist()
        speeds = timed_U7.astype(np.float64).sum(axis=0) / max(elapsed, 1e-9)
        seconds = now - self._counted
        self.spent[:3] += (tokens, flops, seconds)
        known = self._paper_rate > 0 and self.spent[3] >= 0  # once unknown, the sum stays unknown
        self.spent[3] = self.spent[3] + self._paper_rate * seconds if known else UNKNOWN
        self._counted = now
        values = {
            "loss": smoothed / max(tokens, 1),
            "perplexity": safe_exp(plain / max(tokens, 1)),
            "accuracy": correct / max(tokens, 1),
            "target_tokens_per_second": float(speeds[3]),
            "learning_rate": rate,
            "gradient_norm": float(sums_U7[-1, 5]),
            "skipped_updates": skipped,
            "seconds_per_update": elapsed / len(timed_U7),
            "flops_per_second": float(speeds[4]),
            "flops_spent": float(self.spent[1]),
        }
        self.write(step, values, self._line(step, values, now))
        if self._watch:
            self._watch(step, sums_U7, positions)

    def _line(self, step: int, values: dict[str, float], now: float) -> str:
        """The report for a person, within 80 columns up to 300,000 steps and 100 hours. Last comes the time left."""
        total = self._run.hparams.train_steps
        per_step = (now - self._started) / max(step - (self._first_step or 0) - 1, 1)
        return (
            f"step {step:,}/{short(total)} loss {values['loss']:.2f} ppl {values['perplexity']:.4g} "
            f"lr {values['learning_rate']:.1e} |g| {values['gradient_norm']:.2g} "
            f"{values['target_tokens_per_second'] / 1000:.3g}k tok/s -{clock((total - step) * per_step)}"
        ).replace("e-0", "e-")


def write_scores(directory: str, scores: dict[str, Any]) -> None:
    """Adds what a scoring found to the run's curves in TensorBoard, at the step of its newest weights.

    `scores` are those of `evaluate`: they become `test/bleu` and the like, or `test_average5/bleu` of averaged weights.
    """
    averaged = len(scores["checkpoints"])
    group = f"{scores['split']}_average{averaged}" if averaged > 1 else scores["split"]
    with tf.summary.create_file_writer(directory, filename_suffix=".scores").as_default(step=scores["step"]):
        for name in ("bleu", "paper_bleu", "chrf", "f1", "loss", "perplexity", "accuracy"):
            if name in scores:
                tf.summary.scalar(f"{group}/{name}", scores[name])


def clock(seconds: float) -> str:
    """1:02:03, 2:03 below an hour, 12h34m from ten hours on."""
    hours, rest = divmod(int(max(seconds, 0)), 3600)
    minutes, left = divmod(rest, 60)
    if hours >= 10:
        return f"{hours}h{minutes:02}m"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def short(number: int) -> str:
    """8,500, and 300k where nothing is lost by it."""
    return f"{number // 1000:,}k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"


def safe_exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
