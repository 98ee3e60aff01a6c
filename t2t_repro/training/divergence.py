"""Detects silent failures of training: a loss that is not finite, that diverges, or that does not fall."""

from __future__ import annotations

import collections
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import write_json
from t2t_repro.run import Run
from t2t_repro.training.metrics import Step

WINDOW = 100  # steps over which the loss is averaged: between batches of different lengths it differs by several nats
MAX_SKIPPED = 20  # consecutive steps without a finite gradient; a loss scale falls from 2^15 to 1 in fifteen
WARM_UP_SHARE = 4  # after a quarter of the warm-up a model is below the unigram entropy; newstest took a twelfth
MARGIN = 0.5  # nats below the unigram entropy: a model that reached this and is above the entropy again has diverged


class TrainingDiverged(ValueError):
    """Training diverged. The message names the step, and what to try."""


class LossMonitor:
    """Monitors the loss of every step without label smoothing, in nats per target token.

    The reference is the unigram entropy: the lowest loss of a model that only knows how frequent each token is.
    `report` is called with a warning if training may still recover. Raises `TrainingDiverged` if it does not.
    """

    def __init__(self, run: Run, text: TrainingText, report: Callable[[str], None]):
        self._run, self._text, self._report = run, text, report
        self._vocabulary = Vocabulary(run.vocabulary)
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._seen = self._skipped = 0
        self._first: float | None = None  # mean loss of the first tenth of WINDOW
        self._learned = self._judged = False

    def __call__(self, steps: list[Step]) -> None:
        """Checks consecutive steps. Their metrics are Python numbers."""
        for step in steps:
            metrics = step.metrics
            self._skipped = self._skipped + 1 if metrics.skipped else 0
            if not (math.isfinite(metrics.smoothed) and math.isfinite(metrics.plain)):
                self._stop(step, f"the loss is {metrics.smoothed}")
            if self._skipped >= MAX_SKIPPED:
                times = f"for the {MAX_SKIPPED}th time in a row"
                self._stop(step, f"the gradient's norm is {metrics.gradient_norm} {times}")
            self._losses.append(metrics.plain / max(metrics.tokens, 1))
            self._seen += 1
            if self._seen == WINDOW // 10:
                self._first = float(np.mean(self._losses))
        if self._seen >= WINDOW:
            self._judge(steps[-1])

    def _judge(self, newest: Step) -> None:
        """Checks the mean loss of the last WINDOW steps."""
        step, mean, entropy = newest.number, float(np.mean(self._losses)), self.entropy
        self._learned |= mean < entropy - MARGIN
        if mean > 2 * math.log(self._vocabulary.size):
            self._stop(newest, f"the loss of {WINDOW} steps is {mean:.2f} nats, twice that of guessing")
        if self._learned and mean > entropy:
            above = f"above the {entropy:.2f} of single tokens without any context"
            self._stop(newest, f"the loss of {WINDOW} steps is {mean:.2f} nats again, {above}")
        if self._first is not None and step - self._seen <= 0 and not self._run.parent:  # which starts low
            last = float(np.mean(list(self._losses)[-(WINDOW // 10) :]))
            if last >= self._first:
                self._warn(step, f"the loss has not fallen: {self._first:.2f} nats at first, now {last:.2f}")
            self._first = None
        if not self._judged and step >= WINDOW + self._run.hparams.warmup_steps / WARM_UP_SHARE:
            self._judged = True
            if mean > entropy:
                context = f"single target tokens without any context have {entropy:.2f}"
                self._warn(step, f"the loss is {mean:.2f} nats, and {context}")

    @functools.cached_property
    def entropy(self) -> float:
        """Returns the entropy of single target tokens of the training text in nats, including EOS.

        They are counted over the first window of an epoch, which is a random sample.
        """
        window = next(self._text.windows(epoch=0))
        counts = np.bincount(tf.gather(window.pairs["targets"], window.rows).flat_values.numpy())
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def _warn(self, step: int, what: str) -> None:
        self._report(
            f"warning, step {step:,}: {what}; see that line n of the targets translates line n of the sources, "
            f"and try a {self._advice()}"
        )

    def _stop(self, step: Step, what: str) -> None:
        """Writes the pairs of the step to a file, and raises `TrainingDiverged`."""
        epoch, window, after = step.position.numpy().tolist()
        path = os.path.join(self._run.directory, f"stopped-{step.number}.json")
        pairs = self._pairs(epoch, window, after - 1)
        place = {"epoch": epoch, "window": window, "step_of_window": after - 1}
        fault = {"step": step.number, "reason": what, "learning_rate": step.learning_rate}
        write_json(path, fault | place | {"pairs": pairs})
        raise TrainingDiverged(
            f"stopped at step {step.number:,}: {what}, at learning rate {step.learning_rate:.2e}, in epoch {epoch:,}; "
            f"its {len(pairs):,} pairs are in {path}; nothing was saved since the last checkpoint; "
            f"try a {self._advice()}"
        )

    def _advice(self) -> str:
        """Returns what to change. A run keeps its learning rate, so a new run is needed."""
        h = self._run.hparams
        wider = "" if self._run.precision == "float32" else ", or precision=float32"
        return (
            f"lower learning_rate_scale={h.learning_rate_scale / 2:g} or a longer "
            f"warmup_steps={2 * h.warmup_steps}{wider}, in another output_dir"
        )

    def _pairs(self, epoch: int, window: int, number: int) -> list[dict[str, Any]]:
        found = self._text.pairs_of_step(epoch, window, number)
        sources = self._vocabulary.decode([pair.inputs for pair in found])
        targets = self._vocabulary.decode([pair.targets for pair in found])
        return [
            {"shard": os.path.basename(pair.shard), "record": pair.record, "source": source, "target": target}
            for pair, source, target in zip(found, sources, targets, strict=True)
        ]
