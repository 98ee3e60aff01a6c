"""An exported run in Python: the signatures of its SavedModel, with lists as inputs and outputs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from t2t_repro.config import HParams
from t2t_repro.data.vocabulary import must_be_list, must_be_pairs, must_be_unicode
from t2t_repro.inference.beam_search import n_best_options
from t2t_repro.inference.translator import distinct
from t2t_repro.saved_model import SavedModel, WrongInput, holds_graph, newest_version

if TYPE_CHECKING:
    import numpy as np


class ExportedModel:
    """The methods of a `Translator` for which the SavedModel has signatures. Instances are thread-safe."""

    def __init__(self, path: str):
        """Loads the SavedModel in the folder `path`, or in its numbered subfolder with the highest number.

        Raises FileNotFoundError if there is none. Raises ValueError if it is damaged, if TensorFlow lacks one of its
        operations, or if this processor does not support its precision.
        """
        self.path = path if holds_graph(path) else os.path.join(path, str(newest_version(path)))
        self._model = SavedModel(self.path)
        self.task = self._model.task
        try:
            self.hparams = HParams(**self._model.card["hparams"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path} is damaged: no hyperparameters ({error}); export the run again") from None

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the best translation of each text: `translate` with the run's beam size."""
        return self.translate(texts)

    def translate(self, texts: Sequence[str], beam_size: int | None = None, alpha: float | None = None) -> list[str]:
        """Returns the best translation of each text; an empty text gives an empty one."""
        return [best[0][0] for best in self.n_best(texts, 1, beam_size, alpha)]

    def n_best(
        self, texts: Sequence[str], n: int, beam_size: int | None = None, alpha: float | None = None
    ) -> list[list[tuple[str, float]]]:
        """Returns the n best translations of each text with their scores, best first.

        A score is a log-probability divided by the length penalty. There are fewer than n if the beam holds fewer that
        differ in more than leading and trailing space. Without `beam_size` it is that of the run, or n if that is
        larger.
        """
        must_be_list(texts)
        width, penalty = n_best_options(self.hparams, n, beam_size, alpha)
        if not texts:
            return []
        found = self._call(
            "translate",
            inputs=_strings(texts),
            beam_size=width,
            alpha=penalty,
            extra_length=self.hparams.extra_length,
            n_best=width if n > 1 else 1,
        )
        results = []
        for lines, scores in zip(found["outputs"].tolist(), found["scores"].tolist(), strict=True):
            both = zip(lines, scores, strict=True)
            hypotheses = [(line.decode("utf-8"), score) for line, score in both if score > -float("inf")]
            results.append(distinct(hypotheses, n))
        return [hypotheses if text else [("", 0.0)] for text, hypotheses in zip(texts, results, strict=True)]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the log-probability of each target given its source, EOS included."""
        must_be_pairs(pairs)
        if not pairs:
            return []
        sources, targets = (_strings(side) for side in zip(*pairs, strict=True))
        found: list[float] = self._call("score", inputs=sources, targets=targets)["log_probabilities"].tolist()
        return found

    def _call(self, signature: str, **inputs: Any) -> dict[str, np.ndarray]:
        """Calls a signature. Raises ValueError if the model refuses the inputs."""
        try:
            return self._model.call(signature, inputs)
        except WrongInput as error:
            raise ValueError(f"{self.path} refuses this: {error}") from None


def holds_export(path: str) -> bool:
    """Returns true if there is a SavedModel in `path` or in a numbered subfolder of it."""
    if holds_graph(path):
        return True
    with contextlib.suppress(FileNotFoundError):
        newest_version(path)
        return True
    return False


def _strings(texts: Sequence[str]) -> list[str]:
    for number, text in enumerate(texts, start=1):
        must_be_unicode(number, text)
    return list(texts)
