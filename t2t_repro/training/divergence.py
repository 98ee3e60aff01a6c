"""Watches a training for what goes wrong silently: a loss that is not finite, that diverges, or that does not fall."""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import write_json
from t2t_repro.run import Run
from t2t_repro.training.optimizer import learning_rate

UPDATES = 100  # whose mean loss is judged: batches of one length differ from those of another by whole nats
SKIPPED = 20  # updates in a row with a gradient that is not finite; a loss scale comes from 2^15 to 1 in fifteen
WARM_UP_SHARE = 4  # a quarter of the warm-up brings a model below the unigram entropy; it took a twelfth on newstest
LEARNT = 0.5  # nats below the unigram entropy: from there on a loss above it is a model that has forgotten


class Diverged(ValueError):
    """The training cannot come to anything: the message says where it stopped, and what to try."""


class Guard:
    """Called with the sums of every update, as `Updater` gives them. The loss it looks at is the plain one, in nats a
    target token: what a model without any context at best has is the entropy of single target tokens.

    `report` is told in a line what is amiss but may mend. Raises `Diverged` for what does not.
    """

    def __init__(self, run: Run, dataset: Dataset, report: Callable[[str], None]):
        self._run, self._shards, self._report = run, dataset.shards("train"), report
        self._vocabulary = Vocabulary(run.vocabulary)
        self._losses: collections.deque[float] = collections.deque(maxlen=UPDATES)
        self._seen = self._skipped = 0
        self._first: float | None = None  # mean loss of the first tenth of UPDATES
        self._entropy: float | None = None  # of single target tokens; found when it is first asked for
        self._learnt = self._judged = False

    def __call__(self, step: int, sums: np.ndarray, positions: list[tf.Tensor]) -> None:
        """Looks at the updates up to `step`: `sums` [U, 7], and where in the data the update after each begins."""
        for index, (row, position) in enumerate(zip(sums, positions, strict=True), start=step + 1 - len(sums)):
            smoothed, plain, _, tokens, _, norm, skipped = row.tolist()
            self._skipped = self._skipped + 1 if skipped else 0
            if not (math.isfinite(smoothed) and math.isfinite(plain)):
                self._stop(index, position, f"the loss is {smoothed}")
            if self._skipped >= SKIPPED:
                self._stop(index, position, f"the gradient's norm is {norm} for the {SKIPPED}th time in a row")
            self._losses.append(plain / max(tokens, 1))
            self._seen += 1
            if self._seen == UPDATES // 10:
                self._first = float(np.mean(self._losses))
        if self._seen >= UPDATES:
            self._judge(step, positions[-1])

    def _judge(self, step: int, position: tf.Tensor) -> None:
        """Looks at the mean loss of the newest UPDATES."""
        mean, entropy = float(np.mean(self._losses)), self.entropy()
        highest = 2 * math.log(self._vocabulary.size)
        self._learnt |= mean < entropy - LEARNT
        if mean > highest:
            self._stop(step, position, f"the loss of {UPDATES} updates is {mean:.2f} nats, twice that of guessing")
        if self._learnt and mean > entropy:
            self._stop(
                step,
                position,
                f"the loss of {UPDATES} updates is {mean:.2f} nats again, above the {entropy:.2f} of"
                " single tokens without any context",
            )
        if self._first is not None and step - self._seen <= 0:
            newest = float(np.mean(list(self._losses)[-(UPDATES // 10) :]))
            if newest >= self._first:
                self._warn(step, f"the loss has not fallen: {self._first:.2f} nats at first, now {newest:.2f}")
            self._first = None
        if not self._judged and step >= max(UPDATES, self._run.hparams.warmup_steps / WARM_UP_SHARE):
            self._judged = True
            if mean > entropy:
                self._warn(
                    step,
                    f"the loss is {mean:.2f} nats, and single target tokens without any context have {entropy:.2f}",
                )

    def entropy(self) -> float:
        """Of single target tokens of the training text, END among them, in nats: what a model has that knows how
        frequent each is, and nothing else. Counted over the first window of an epoch, which is a random sample."""
        if self._entropy is None:
            run = self._run
            window = next(input_pipeline.windows(self._shards, run.hparams.batch_tokens, run.seed, 0))
            counts = np.bincount(window.pairs["targets"].flat_values.numpy())
            shares = counts[counts > 0] / counts.sum()
            self._entropy = float(-(shares * np.log(shares)).sum())
        return self._entropy

    def _warn(self, step: int, what: str) -> None:
        self._report(
            f"warning, step {step:,}: {what}; see that line n of the targets translates line n of the sources, "
            f"and try a {self._other_rate()}"
        )

    def _stop(self, step: int, position: tf.Tensor, what: str) -> None:
        """Writes down the pairs of the update, and raises `Diverged`."""
        epoch, window, after = position.numpy().tolist()
        rate = learning_rate(step, self._run.hparams)
        path = os.path.join(self._run.directory, f"stopped-{step}.json")
        pairs = self._pairs(epoch, window, after - 1)
        place = {"epoch": epoch, "window": window, "step_of_window": after - 1}
        write_json(path, {"step": step, "reason": what, "learning_rate": rate} | place | {"pairs": pairs})
        raise Diverged(
            f"stopped at step {step:,}: {what}, at learning rate {rate:.2e}, in epoch {epoch:,}; "
            f"its {len(pairs):,} pairs are in {path}; nothing was saved since the last checkpoint; "
            f"try a {self._other_rate()}"
        )

    def _other_rate(self) -> str:
        """What to change, as the command line takes it. A run keeps its rate, so this is one of its own."""
        h = self._run.hparams
        wider = "" if self._run.precision == "float32" else ", or --precision=float32"
        return (
            f"lower --override=learning_rate_scale={h.learning_rate_scale / 2:g} or a longer "
            f"--override=warmup_steps={2 * h.warmup_steps}{wider}, in another --output_dir"
        )

    def _pairs(self, *place: int) -> list[dict[str, Any]]:
        found = input_pipeline.pairs_of_step(self._shards, self._run.hparams.batch_tokens, self._run.seed, *place)
        sources = self._vocabulary.decode([pair.inputs for pair in found])
        targets = self._vocabulary.decode([pair.targets for pair in found])
        return [
            {"shard": os.path.basename(pair.shard), "record": pair.record, "source": source, "target": target}
            for pair, source, target in zip(found, sources, targets, strict=True)
        ]
