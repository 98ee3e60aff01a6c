"""An exported run in Python: the signatures of its SavedModel, with lists as inputs and outputs."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2t_repro.config import HParams
from t2t_repro.data.vocabulary import as_pairs, as_texts
from t2t_repro.documents.splitter import Splitter
from t2t_repro.inference.search.beam_search import n_best_options
from t2t_repro.inference.text_to_text import Found, TextToText, translate_again, with_markup
from t2t_repro.io import with_fields
from t2t_repro.saved_model import (
    ALIGNED_SIGNATURE,
    N_BEST_SIGNATURE,
    WITH_TERMS,
    SavedModel,
    WrongInput,
    holds_graph,
    newest_version,
)
from t2t_repro.text.glossary import AnyGlossary, Glossary, Required, must_be_few
from t2t_repro.text.translations import ALIGNMENT_OUTPUTS, distinct, of_outputs


class ExportedModel(TextToText):
    """The methods of a `Translator` for which the SavedModel has signatures. Instances are thread-safe."""

    def __init__(self, path: str, alignments: bool = False):
        """Loads the SavedModel in the folder `path`, or in its numbered subfolder with the highest number.

        With `alignments`, translations with scores are `AlignedText`. Raises FileNotFoundError if there is none. Raises
        ValueError if it is damaged or lacks the alignments, if TensorFlow lacks one of its operations, or if this
        processor does not support its precision.
        """
        self.path = path if holds_graph(path) else os.path.join(path, str(newest_version(path)))
        self._model = SavedModel(self.path)
        self.task = self._model.task
        try:
            self.hparams = with_fields(HParams, self._model.card["hparams"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path} is damaged: no hyperparameters ({error}); export the run again") from None
        self.has_links = alignments
        if alignments:
            self._must_have_alignments()

    def _must_have_alignments(self) -> None:
        if not self._model.has_alignments:
            raise ValueError(f"{self.path} was exported without alignments; export the run again with them")

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        alpha: float | None = None,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[str]:
        """Returns the best translation of each text; one without more than white space gives an empty one."""
        return [best[0][0] for best in self.n_best(texts, 1, beam_size, alpha, glossary, markup)]

    def splitter(self, language: str | None = None) -> Splitter:
        """Returns the splitter of texts into sentences, by the rules of a language or of the export's sources."""
        return self._model.splitter(language)

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        beam_size: int | None = None,
        alpha: float | None = None,
        glossary: AnyGlossary | None = None,
        markup: bool = False,
    ) -> list[Found]:
        """Returns the n best translations of each text with their scores, best first.

        A score is a log-probability divided by the length penalty. There are fewer than n if the beam holds fewer that
        differ in more than leading and trailing space. Without `beam_size` it is that of the run, or n if that is
        larger. With `glossary` and `markup`, as in `Translator.n_best`, translations contain terms, tags and
        placeholders. The tokenizer is in the graph, so texts of more than `max_positions` tokens are truncated without
        a warning, and terms in the truncated part are required too. Raises ValueError for a text with more than
        `MOST_TERMS` terms, for an export that has no search with terms, and for markup if the export has no alignments.
        """
        texts = as_texts(texts)
        search = functools.partial(self._n_best, n, *n_best_options(self.hparams, n, beam_size, alpha), glossary)
        if not markup:
            return search(ALIGNED_SIGNATURE if self.has_links else N_BEST_SIGNATURE, texts)
        self._must_have_alignments()
        found = with_markup(texts, functools.partial(search, ALIGNED_SIGNATURE))
        marked: list[Found] = [distinct(some, n) for some in found]
        return marked if self.has_links else [[(text, score) for text, score in some] for some in marked]

    def _n_best(
        self,
        n: int,
        width: int,
        penalty: float,
        glossary: AnyGlossary | None,
        signature: str,
        texts: Sequence[str],
    ) -> list[Found]:
        """Returns the n best translations of each text by a signature, which contain the terms of `glossary`."""
        required = None if glossary is None else self._required(Glossary.of(glossary), texts)
        search = functools.partial(self._found, n, width, penalty, signature)
        found = search(texts)
        if required is not None:
            translate_again(found, required, lambda chosen, terms: search([texts[number] for number in chosen], terms))
        return found

    def _required(self, glossary: Glossary, texts: Sequence[str]) -> list[tuple[Required, ...]]:
        if not self._model.has_terms:
            raise ValueError(f"{self.path} was exported without glossaries; export the run again with them")
        required = [glossary.required(text) for text in texts]
        for number, found in enumerate(required, start=1):
            must_be_few(f"text {number}", found)
        return required

    def _found(
        self,
        n: int,
        width: int,
        penalty: float,
        signature: str,
        texts: Sequence[str],
        terms: Sequence[str] | None = None,
    ) -> list[Found]:
        """Returns the n best translations of each text, as `AlignedText` if the signature aligns them."""
        if not texts:
            return []
        found = self._call(
            signature if terms is None else WITH_TERMS,
            inputs=texts,
            beam_size=width,
            alpha=penalty,
            extra_length=self.hparams.extra_length,
            n_best=width if n > 1 else 1,
            **({} if terms is None else {"terms": list(terms)}),
        )
        names = ["outputs", "scores", *(ALIGNMENT_OUTPUTS if signature == ALIGNED_SIGNATURE else ())]
        results: list[Found] = []
        for text, *columns in zip(texts, *(found[name].tolist() for name in names), strict=True):
            every = [of_outputs(text, *each) for each in zip(*columns, strict=True)]
            results.append(distinct([each for each in every if each[1] > -math.inf], n))
        return results

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the log-probability of each target given its source, EOS included."""
        pairs = as_pairs(pairs)
        if not pairs:
            return []
        sources, targets = (as_texts(side) for side in zip(*pairs, strict=True))
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
