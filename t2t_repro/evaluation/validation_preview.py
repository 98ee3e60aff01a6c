"""Previews of a model during training: greedy outputs for a fixed sample of the validation split."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.translator import Translator
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training.validation import Sample

SENTENCES = 64  # of the score
SHOWN = 3
LONGEST = 50  # tokens of the source, or words of a tree: the longest sentence determines the time for all

Item = TypeVar("Item")


class ValidationPreview:
    """Decodes greedily with the model's current weights when called.

    The score is that of the SENTENCES in `references`. It is not the score of the complete split or of beam search, but
    its curve has the same shape.
    """

    def __init__(self, model: Transformer, run: Run, dataset: Dataset):
        self._task, self._run, self._dataset = run.problem.task, run, dataset
        extra = min(run.hparams.extra_length, self._task.preview_extra_length)
        hparams, vocabulary = dataclasses.replace(run.hparams, extra_length=extra), Vocabulary(dataset.vocabulary)
        constraint = self._task.constraint(vocabulary)
        self._translator = Translator(model, vocabulary, hparams, constraint)
        self._complete = Translator(model, vocabulary, run.hparams, constraint)  # no shorter outputs than in a test
        self.references = _chosen(self._task.references(dataset, "validation", vocabulary, LONGEST))

    def __call__(self) -> Sample:
        scores, texts = self._task.preview(self._translator, self.references)
        return Sample(scores, texts[:SHOWN])

    def scores(self, metrics: Sequence[str]) -> dict[str, float]:
        """Returns scores of the complete validation split: those of `evaluate` with a beam of one."""
        language = self._run.problem.target_language
        found = self._task.scores(self._complete, self._all_references, language, beam_size=1, alpha=None)
        return {metric: float(found[metric]) for metric in metrics}

    @functools.cached_property
    def _all_references(self) -> Sequence[Any]:
        return self._task.references(self._dataset, "validation", self._complete.vocabulary)


def _chosen(items: Sequence[Item]) -> list[Item]:
    """Returns SENTENCES of the items, evenly spaced."""
    number = min(len(items), SENTENCES)
    return [items[(which + 1) * len(items) // number - 1] for which in range(number)]
