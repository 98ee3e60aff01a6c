"""`ServedModel`: an exported SavedModel with the inputs and outputs of its signatures. It does not need the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from t2t_repro.saved_model import (
    ALIGNED_SIGNATURE,
    DEFAULT_SIGNATURE,
    GRAPH,
    N_BEST_SIGNATURE,
    WITH_TERMS,
    SavedModel,
    WrongInput,
    newest_version,
)
from t2t_repro.serving.cancellation import Cancellation, Cancelled
from t2t_repro.text.glossary import Glossary, lacking, must_be_few, spelled
from t2t_repro.text.markup import MarkedText
from t2t_repro.text.translations import WORDS, links_of

if TYPE_CHECKING:
    from t2t_repro.documents.splitter import Splitter
    from t2t_repro.saved_model import Caller

# Signatures whose outputs have the same width whatever else is in the batch: their requests may share a batch.
JOINED = (DEFAULT_SIGNATURE, ALIGNED_SIGNATURE, N_BEST_SIGNATURE, "parse")
GLOSSARY = "glossary"  # the name of a glossary among the options of a request
MARKUP = "markup"  # the name of that option
ATTENTION = "attention"  # a pair of sentences gives megabytes of JSON, so this signature is served only if enabled


@dataclass(frozen=True)
class Input:
    """One input of a signature. `dtype` is numpy's name, or "string".

    A `batched` input has one value per row. Any other is an option, one value for all rows; with `either` it may also
    have one value per row. An input with a `default` may be left out.
    """

    name: str
    dtype: str
    batched: bool
    either: bool = False
    default: float | None = None


class ServedModel:
    """The newest version in `export_dir`, loaded.

    Raises FileNotFoundError if there is none. Raises ValueError if it is not a SavedModel of `t2t-exporter`.
    """

    def __init__(self, export_dir: str, attention: bool = False):
        """Loads the model. `attention` enables the signature of that name."""
        self.version = newest_version(export_dir)
        self.path = os.path.join(export_dir, str(self.version))
        self._model = SavedModel(self.path)
        self.card, self.task = self._model.card, self._model.task
        definitions = _definitions(self.path)
        if not attention:
            definitions.pop(ATTENTION, None)
        self._defaults = {
            name: {key: tf.make_ndarray(value) for key, value in definition.defaults.items()}
            for name, definition in definitions.items()
        }
        self.metadata: dict[str, Any] = {  # in TF Serving's format
            name: json_format.MessageToDict(definition, preserving_proto_field_name=True)
            for name, definition in definitions.items()
        }
        self.signatures: dict[str, dict[str, Input]] = {
            name: self._inputs(name) for name in definitions if self._takes_rows(name)
        }
        if DEFAULT_SIGNATURE not in self.signatures:
            raise ValueError(f"{self.path} has no signature {DEFAULT_SIGNATURE!r}; give what t2t-exporter wrote")

    def splitter(self, language: str | None = None) -> Splitter:
        """Returns the splitter of texts into sentences: that of `SavedModel`."""
        return self._model.splitter(language)

    @cached_property
    def has_splitter(self) -> bool:
        """Returns true if texts can be split: sentencex is installed, and the model card has `max_positions`."""
        try:
            self.splitter()
        except ValueError:
            return False
        return True

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray], cancellation: Cancellation | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, strings as bytes, and a parser's trees. Inputs with defaults are
        optional.

        Raises `WrongInput` if the model refuses the inputs, and `Cancelled`.
        """
        values = {**self._defaults[signature], **inputs}
        call = cancellation.call if cancellation else None
        glossary = values.pop(GLOSSARY, None)
        lines = None
        if values.pop(MARKUP, False):
            lines = [MarkedText(text.decode("utf-8", "replace")) for text in values["inputs"]]
            values = {**self._defaults[ALIGNED_SIGNATURE], **values}
            values["inputs"] = np.array([line.text.encode("utf-8") for line in lines], object)
        outputs = self._model.call(signature if lines is None else ALIGNED_SIGNATURE, values, call)
        if glossary is not None:
            self._add_terms(glossary.item(), values, outputs, call)
        if lines is not None:
            outputs = marked(lines, outputs, signature, cancellation)
        return self.task.served(signature, values, outputs)

    def _add_terms(
        self, glossary: Glossary, values: Mapping[str, Any], outputs: dict[str, np.ndarray], call: Caller | None
    ) -> None:
        """Replaces the rows of `outputs` that lack a term of the glossary. Raises `WrongInput` for too many terms.

        Terms are required of the entire text, also of what the graph truncates.
        """
        required = [glossary.required(text.decode("utf-8", "replace")) for text in values["inputs"]]
        try:
            for number, found in enumerate(required):
                must_be_few(f"row {number}", found)
        except ValueError as error:
            raise WrongInput(str(error)) from None
        rows = len(required)
        if not rows:
            return
        columns = {name: value.reshape(rows, -1) for name, value in outputs.items()}
        texts = [
            [text.decode("utf-8", "replace") for text, score in zip(*both, strict=True) if score > -np.inf]
            for both in zip(columns["outputs"], columns["scores"], strict=True)
        ]
        chosen = lacking(required, texts)
        if not chosen:
            return
        own = {name: value[chosen] if np.shape(value) == (rows,) else value for name, value in values.items()}
        own["terms"] = np.array([spelled(required[number]).encode("utf-8") for number in chosen], object)
        again = self._model.call(WITH_TERMS, {**self._defaults[WITH_TERMS], **own}, call)
        missing = {"outputs": b"", "scores": -np.inf, "alignments": b"", "word_confidences": b""}  # 0 for numbers
        for name in outputs:
            columns[name][chosen] = missing.get(name, 0)
            columns[name][chosen, : again[name].shape[1]] = again[name]
            outputs[name] = columns[name].reshape(outputs[name].shape)

    def _takes_rows(self, signature: str) -> bool:
        """Returns true if at least one input has one value per row, and the others are options or have one value per
        row too."""
        ranks = {spec.shape.rank for spec in self._model.inputs(signature).values()}
        return ranks <= {0, 1, None} and 1 in ranks

    def _inputs(self, signature: str) -> dict[str, Input]:
        defaults = self._defaults[signature]
        return {
            name: Input(
                name,
                spec.dtype.name,
                batched=spec.shape.rank == 1,
                either=spec.shape.rank is None,
                default=defaults[name].item() if name in defaults else None,
            )
            for name, spec in self._model.inputs(signature).items()
        }


def marked(
    lines: Sequence[MarkedText],
    outputs: Mapping[str, np.ndarray],
    signature: str,
    cancellation: Cancellation | None = None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of a signature with the markup of the lines, from those of the one with alignments.

    With alignments, `WORDS` are added: lists of words without markup. Raises `Cancelled`, between two translations.
    """
    outputs_BN, scores_BN = outputs["outputs"].copy(), outputs["scores"]
    source_words_BN, words_BN = (np.full(outputs_BN.shape, None, object) for _ in WORDS)
    for row, line in enumerate(lines):
        for column, both in enumerate(zip(outputs_BN[row], outputs["alignments"][row], strict=True)):
            if cancellation and cancellation.is_cancelled:
                raise Cancelled
            text, links = both[0].decode("utf-8", "replace"), links_of(both[1].decode())
            is_found = scores_BN[row, column] > -np.inf
            if is_found:
                outputs_BN[row, column] = line.restored(text, links).encode("utf-8")
            if signature == ALIGNED_SIGNATURE:
                source_words_BN[row, column] = line.source_words if is_found else []
                words_BN[row, column] = line.words(text, links) if is_found else []
    if signature == ALIGNED_SIGNATURE:
        words = dict(zip(WORDS, (source_words_BN, words_BN), strict=True))
        return {**outputs, "outputs": outputs_BN, **words}
    found = {"outputs": outputs_BN, "scores": scores_BN}
    return {name: each[:, 0] for name, each in found.items()} if signature == DEFAULT_SIGNATURE else found


def _definitions(path: str) -> dict[str, Any]:
    """Returns the definition of each signature from the file."""
    with open(os.path.join(path, GRAPH), "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    found = saved.meta_graphs[0].signature_def
    return {name: definition for name, definition in found.items() if not name.startswith("__saved_model")}
