"""What a training says while it runs: a line on the terminal, metrics.jsonl, and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from t2t_repro.files import append_line
from t2t_repro.run import Run


class Progress:
    """Sums up updates, and reports them every `seconds`: only then is the device waited for.

    `report` takes one finished line. On a terminal the newest line replaces the one before it. `spent` [3], float64, is
    what the training has cost up to the last line, over all its starts: real target tokens, FLOPs, seconds.
    """

    def __init__(
        self, run: Run, report: Callable[[str], None], spent: tuple[float, ...] = (0, 0, 0), seconds: float = 10.0
    ):
        self._run, self._report, self._seconds = run, report, seconds
        self.spent = np.array(spent, np.float64)
        self._counted = time.monotonic()
        self._events = tf.summary.create_file_writer(run.directory)
        self._started = self._last = time.monotonic()
        self._first_step: int | None = None
        self._sums: list[tf.Tensor] = []

    def update(self, step: int, sums: tf.Tensor, rate: float) -> None:
        """Takes the sums of one update, as `Updater` gives them."""
        self._sums.append(sums)
        if self._first_step is None:
            self._first_step = step - 1
            self._started = self._last = time.monotonic()  # the first update also builds the graph
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

    def close(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # on a full disk; what it would write, metrics.jsonl has too
            self._events.close()

    def flush(self, step: int, rate: float) -> None:
        """Reports the updates since the last time, `step` being the newest, where there are any."""
        if not self._sums:
            return
        sums = tf.add_n(self._sums).numpy()
        norm = float(self._sums[-1][5])
        updates, self._sums = len(self._sums), []
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        total = self._run.hparams.train_steps
        per_step = (now - self._started) / max(step - (self._first_step or 0) - 1, 1)
        smoothed, plain, correct, tokens, flops = (float(x) for x in sums[:5])
        self.spent += (tokens, flops, now - self._counted)
        self._counted = now
        values = {
            "loss": smoothed / max(tokens, 1),
            "perplexity": safe_exp(plain / max(tokens, 1)),
            "accuracy": correct / max(tokens, 1),
            "target_tokens_per_second": tokens / elapsed if elapsed > 0 else 0.0,
            "learning_rate": rate,
            "gradient_norm": norm,
            "skipped_updates": float(sums[6]),
            "seconds_per_update": elapsed / updates,
            "flops_spent": float(self.spent[1]),
        }
        self.write(
            step,
            values,
            f"step {step:,}/{total:,}  loss {values['loss']:.3f}  ppl {values['perplexity']:.2f}  "
            f"{values['target_tokens_per_second']:,.0f} tok/s  lr {rate:.2e}  left {clock((total - step) * per_step)}  "
            f"{self.spent[1]:.1e} FLOPs",
        )


def stderr_line(line: str) -> None:
    """Shows a line on standard error; progress lines overwrite each other on a terminal, each cut to its width."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
    elif line.startswith("step "):
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
    else:
        print(f"\r\x1b[K{line}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    hours, rest = divmod(int(max(seconds, 0)), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def safe_exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
