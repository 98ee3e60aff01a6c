"""Selection of checkpoints by their validation scores: which are best, and when further training brings nothing.

Every decision is a function of the scores in run.json and of the options. So a killed run decides as an uninterrupted
one, and a run whose options change decides by the new ones.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.io import JsonRecord

PERPLEXITY = "perplexity"
NAMES = {PERPLEXITY: "perplexity", "bleu": "BLEU", "chrf": "chrF", "f1": "F1"}  # of metrics, in messages
TIME_SHARE = 0.05  # maximum share of training time that decoding the validation set takes by default
LIMITS = ("patience", "train_minutes", "train_epochs")  # options that may end training before `train_steps`
FIRST_INTERVAL = 4  # maximum number of regular checkpoints between the first decoding and the second


class Mean(NamedTuple):
    """The mean of the weights of several checkpoints."""

    name: str  # "best 5"
    steps: tuple[int, ...]  # ascending
    score: float  # by the metric that decides


@dataclass(frozen=True)
class Selection(JsonRecord):
    """Validation scores of the regular checkpoints of a run, and what follows from them. In run.json, "training"."""

    by: str = PERPLEXITY  # the metric that decides
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # by metric and step
    interval: int | None = None  # regular checkpoints between two scorings of decoded text
    stopped_step: int | None = None  # the last step, if training ended before `train_steps`
    reason: str | None = None  # for that
    recommended_steps: tuple[int, ...] | None = None  # whose mean is best, at the end of training

    def steps(self) -> list[int]:
        """Returns the steps that have a score by the deciding metric, in order."""
        return sorted(map(int, self.scores.get(self.by, {})))

    def value(self, step: int) -> float:
        """Returns the score of `step` by the deciding metric."""
        return self.scores[self.by][str(step)]

    def with_scores(self, step: int, values: Mapping[str, float]) -> Selection:
        """Returns the selection with the scores of `step`, by metric. A perplexity that is not finite is the worst."""
        scores = {metric: dict(found) for metric, found in self.scores.items()}
        for metric, value in values.items():
            scores.setdefault(metric, {})[str(step)] = value if math.isfinite(value) else sys.float_info.max
        return dataclasses.replace(self, scores=scores, recommended_steps=None)

    def at(self, step: int) -> Selection:
        """Returns the selection of a run whose newest checkpoint is that of `step`: without what came later.

        The recommendation stays if no score is removed.
        """
        scores = {
            metric: {each: value for each, value in found.items() if int(each) <= step}
            for metric, found in self.scores.items()
        }
        scores = {metric: found for metric, found in scores.items() if found}
        recommended = self.recommended_steps if scores == self.scores else None
        found = dataclasses.replace(self, scores=scores, recommended_steps=recommended)
        return found if self.stopped_step == step else dataclasses.replace(found, stopped_step=None, reason=None)

    def best(self, number: int, among: Collection[int] | None = None) -> list[int]:
        """Returns the steps of the `number` best checkpoints, best first; of two equal ones, the earlier is better.

        With `among`, only these steps are considered.
        """
        steps = [step for step in self.steps() if among is None or step in among]
        return sorted(steps, key=lambda step: (self._loss(self.value(step)), step))[:number]

    def _loss(self, value: float) -> float:
        """Returns a score as a number that is lower for a better one."""
        return value if self.by == PERPLEXITY else -value

    def without_improvement(self) -> int:
        """Returns the number of scores after the best one."""
        steps = self.steps()
        return len(steps) - 1 - steps.index(self.best(1)[0]) if steps else 0

    def described(self, step: int) -> str:
        """Returns the score of `step` as text: `validation perplexity 8.31`."""
        return f"validation {NAMES.get(self.by, self.by)} {_shown(self.value(step))}"

    def exhausted(self, patience: int) -> str:
        """Returns why training ends: `patience` scores in a row without an improvement. "" if it continues."""
        if not 0 < patience <= self.without_improvement():
            return ""
        (best,) = self.best(1)
        count = f"{self.without_improvement()} scores in a row are" if patience > 1 else "the score is"
        return f"{count} no better than the {self.described(best)} of step {best:,} (patience={patience})"

    def out_of_time(self, minutes: float, seconds: float) -> str:
        """Returns why training ends after `seconds` of it, of at most `minutes` (0: no limit). "" if it continues.

        A run that these minutes have ended does not continue: they may have passed while the newest checkpoint, which
        holds the seconds, was scored.
        """
        over = f"train_minutes={minutes:g} are over"
        return over if 0 < 60 * minutes <= seconds or self.reason == over else ""

    def ended_by(self, options: TrainingOptions) -> bool:
        """Returns whether one of the limits of `options` ended training, with the same value."""
        given = {f"{name}={getattr(options, name):g}" for name in LIMITS if getattr(options, name)}
        return not given.isdisjoint(re.findall(r"\w+=[\d.e+-]+", self.reason or ""))

    def recommendation(self, best: Sequence[int], means: Sequence[Mean] = ()) -> tuple[list[int], str]:
        """Returns the checkpoints whose mean to use, by step, and a line that names them with the reason.

        `best` are the steps of the best existing checkpoints, best first. A mean is recommended if its score is better
        than those of the best checkpoint and of the means before it.
        """
        lowest, steps, (first,) = "lowest" if self.by == PERPLEXITY else "highest", self.steps(), self.best(1)
        alone = f"ckpt-{best[0]}, {self.described(best[0])}, the {lowest} of {len(steps):,}"
        if first != best[0]:
            alone += f" but that of step {first:,}, which was removed"
        chosen, least = None, self._loss(self.value(best[0]))
        for mean in means:
            if self._loss(mean.score) < least:
                chosen, least = mean, self._loss(mean.score)
        others = "".join(f"; the mean of the {each.name} has {_shown(each.score)}" for each in means if each != chosen)
        if chosen is None:
            return [best[0]], f"{alone}{others}"
        names = [f"ckpt-{step}" for step in chosen.steps]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        why = f"the mean of {listed}, the {chosen.name}, which has {_shown(chosen.score)}"
        return list(chosen.steps), f"{why}{others}; the best one is {alone}"


def _shown(value: float) -> str:
    return f"{value:.2f}" if value < sys.float_info.max else "inf"


def interval_within(scoring_seconds: float, training_seconds: float) -> int:
    """Returns after how many regular checkpoints to decode the validation set again, a power of two.

    `scoring_seconds` is the time of one decoding, and `training_seconds` that between two regular checkpoints. Decoding
    then takes at most `TIME_SHARE` of the time of training.
    """
    ratio = scoring_seconds / (TIME_SHARE * max(training_seconds, 1e-9))
    return int(2 ** math.ceil(math.log2(max(ratio, 1.0))))


def must_end_at_last_step(hparams: HParams, options: TrainingOptions) -> None:
    """Raises ValueError if the learning rate decays at the end of training, and `options` may end it earlier."""
    limits = {name: getattr(options, name) for name in LIMITS}
    given = " and ".join(f"{name}={value:g}" for name, value in limits.items() if value)
    if hparams.decay_steps and given:
        raise ValueError(
            f"the learning rate falls to 0 at train_steps={hparams.train_steps} (decay_steps={hparams.decay_steps}): "
            f"expected no earlier end, got {given}; leave that out, or set decay_steps=0"
        )


def must_have_metrics(known: Sequence[str], options: TrainingOptions) -> None:
    """Raises ValueError if `options` ask for a metric that is not in `known`, those of the problem's task."""
    for name, given, choices in (
        ("validate_metrics", options.validate_metrics, known),
        ("validate_by", (options.validate_by,), (PERPLEXITY, *known)),
    ):
        for metric in given:
            if metric not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)} for this problem, got {metric!r}")
