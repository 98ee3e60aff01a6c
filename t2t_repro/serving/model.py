"""`ServedModel`: an exported SavedModel with the inputs and outputs of its signatures. It does not need the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from t2t_repro.saved_model import ALIGNED_SIGNATURE, DEFAULT_SIGNATURE, GRAPH, SavedModel, newest_version
from t2t_repro.serving.cancellation import Cancellation

# Signatures whose outputs have the same width whatever else is in the batch: their requests may share a batch.
JOINED = (DEFAULT_SIGNATURE, ALIGNED_SIGNATURE, "translate", "parse")
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

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray], cancellation: Cancellation | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, strings as bytes, and a parser's trees. Inputs with defaults are
        optional.

        Raises `WrongInput` if the model refuses the inputs, and `Cancelled`.
        """
        values = {**self._defaults[signature], **inputs}
        call = cancellation.call if cancellation else None
        return self.task.served(signature, values, self._model.call(signature, values, call))

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


def _definitions(path: str) -> dict[str, Any]:
    """Returns the definition of each signature from the file."""
    with open(os.path.join(path, GRAPH), "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    found = saved.meta_graphs[0].signature_def
    return {name: definition for name, definition in found.items() if not name.startswith("__saved_model")}
