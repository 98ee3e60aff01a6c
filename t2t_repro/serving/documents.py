"""Requests with texts of any number of sentences: a row for each sentence, and the answer with a row for each text."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from t2t_repro.documents.document import Document
from t2t_repro.serving.model import GLOSSARY, MARKUP, ServedModel
from t2t_repro.serving.protocol import BadRequest, Limits, Request, checked_positions, defaults


class Sentences(NamedTuple):
    """The documents of a request, and the same request for their sentences."""

    documents: list[Document]
    request: Request

    def joined(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns "outputs" and "scores" of the documents: a score is the mean of those of the sentences, or 0."""
        shape = (len(self.documents), *outputs["outputs"].shape[1:])
        texts = [text.decode("utf-8", "replace") for text in outputs["outputs"].reshape(-1)]
        scores = outputs["scores"].reshape(-1)
        found, means, start = [], [], 0
        for document in self.documents:
            stop = start + len(document.spans)
            found.append(document.joined(texts[start:stop]).encode("utf-8"))
            means.append(scores[start:stop].mean() if start < stop else 0.0)
            start = stop
        columns = {"outputs": np.array(found, object), "scores": np.array(means, np.float32)}
        return {name: column.reshape(shape) for name, column in columns.items()}


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
