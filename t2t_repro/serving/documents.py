"""Requests with texts of any number of sentences: a row for each sentence, and the answer with a row for each text."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from t2t_repro.documents.aligned import aligned_document
from t2t_repro.documents.document import Document, joined, ranked
from t2t_repro.serving.json_values import BadRequest, Limits
from t2t_repro.serving.model import GLOSSARY, MARKUP, ServedModel
from t2t_repro.serving.protocol import Request, checked_positions, defaults
from t2t_repro.text.translations import ALIGNMENT_OUTPUTS, WORDS, distinct, of_outputs, sentences_json

_PAIR: dict[str, Callable[[Any], Any]] = {  # outputs of a translation
    "outputs": lambda pair: pair[0].encode("utf-8"),
    "scores": lambda pair: pair[1],
}
_ALIGNED: dict[str, Callable[[Any], Any]] = _PAIR | {
    "alignments": lambda found: found.pharaoh.encode("utf-8"),
    "confidences": lambda found: found.confidence,
    "word_confidences": lambda found: " ".join(f"{each:.4f}" for each in found.probabilities).encode("utf-8"),
    "num_tokens": lambda found: found.tokens,
    "sentences": lambda found: sentences_json(found.sentences),
}
_MISSING = {"scores": -np.inf, "confidences": 0.0, "num_tokens": 0, "sentences": [], **dict.fromkeys(WORDS, [])}


class Sentences(NamedTuple):
    """The documents of a request, and the same request for their sentences."""

    documents: list[Document]
    request: Request

    def joined(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of the documents, by those of their sentences: see `documents.ranked`.

        A score is the mean of those of the sentences, 0 without any. Alignments have the sentences too, as lists.
        """
        join, columns = (aligned_document, _ALIGNED) if "alignments" in outputs else (joined, _PAIR)
        columns = columns | {name: operator.attrgetter(name) for name in WORDS if name in outputs}
        sentences = self._translations(outputs)
        found = [ranked(document, [next(sentences) for _ in document.spans], join) for document in self.documents]
        shape = len(found), *outputs["scores"].shape[1:]
        most = (*shape, 1)[1]
        results = {}
        for name, of in columns.items():
            rows = ([*map(of, some), *[_MISSING.get(name, b"")] * most][:most] for some in found)
            dtype = outputs[name].dtype if name in outputs else object
            results[name] = np.fromiter(itertools.chain.from_iterable(rows), dtype).reshape(shape)
        return results

    def _translations(self, outputs: dict[str, np.ndarray]) -> Iterator[list[tuple[str, float]]]:
        """Yields the translations of each sentence that differ in more than space, best first."""
        sentences = [sentence for document in self.documents for sentence in document.sentences]
        names = ["outputs", "scores", *(name for name in (*ALIGNMENT_OUTPUTS, *WORDS) if name in outputs)]
        for number, sentence in enumerate(sentences):
            row = zip(*(np.atleast_1d(outputs[name][number]).tolist() for name in names), strict=True)
            every = [of_outputs(sentence, *each) for each in row]
            yield distinct([each for each in every if each[1] > -np.inf] or every[:1], len(every))


def split(request: Request, model: ServedModel, limits: Limits) -> Sentences:
    """Splits the texts of a request with a language. The limits of a request hold for the sentences.

    Takes milliseconds for ordinary text, and up to a second for 200,000 bytes of hostile text. Raises `BadRequest`,
    also if sentencex is not installed.
    """
    if model.task.name != "translation":
        raise BadRequest(f'this model is for {model.task.name}, and "documents" is for translation')
    try:
        splitter = model.splitter(request.language or None)
    except ValueError as error:
        raise BadRequest(f'"documents": {error}') from None
    split = splitter.marked if MARKUP in request.options else splitter
    documents = split([text.decode("utf-8", "replace") for text in request.inputs["inputs"]])
    counts = [len(document.spans) for document in documents]
    rows = sum(counts)
    if rows > limits.rows:
        raise BadRequest(f"too many sentences in one request: {rows:,}; at most {limits.rows:,}")
    inputs = {name: np.repeat(column, counts) for name, column in request.inputs.items()}
    sentences = [sentence.encode("utf-8") for document in documents for sentence in document.sentences]
    inputs["inputs"] = np.array(sentences, object)
    values = {**defaults(model.signatures), **inputs, **request.options}
    positions = checked_positions(rows, model.signatures[request.signature], values, limits)
    times = 2 if GLOSSARY in request.options else 1
    return Sentences(documents, replace(request, inputs=inputs, rows=rows, positions=times * positions, language=None))
