"""`ServedModel`: an exported SavedModel with what its signatures take and give. It needs no run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from t2t_repro.saved_model import DEFAULT_SIGNATURE, GRAPH, SavedModel, newest_version
from t2t_repro.serving.cancellation import Cancellation

# Signatures whose outputs are as wide whatever other sentences are in the batch: these may be joined.
JOINED = (DEFAULT_SIGNATURE, "translate", "parse")
ATTENTION = "attention"  # one pair of sentences makes megabytes of JSON, so it is served only on request


@dataclass(frozen=True)
class Input:
    """One input of a signature: `dtype` is numpy's name of it, or "string"; `batched` if it has one value per row.

    One that is not `batched` is an option, one value for all rows; `either` if it may have one value per row too.
    """

    name: str
    dtype: str
    batched: bool
    optional: bool
    either: bool = False
    default: float | None = None


class ServedModel:
    """The newest version in `export_dir`, loaded.

    Raises FileNotFoundError where there is none, and ValueError where it is no SavedModel of `t2t-exporter`.
    """

    def __init__(self, export_dir: str, attention: bool = False):
        """`attention`: whether the signature of that name can be called."""
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
        self.metadata: dict[str, Any] = {  # as TF Serving shows it
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
        """The outputs of a signature, strings as bytes, and of a parser its trees. What has a default may be left out.

        Raises `WrongInput` if the model refuses, and `Cancelled`.
        """
        values = {**self._defaults[signature], **inputs}
        return self.task.served(signature, values, self._model.call(signature, values, cancellation))

    def _takes_rows(self, signature: str) -> bool:
        """Returns whether each input is one value, one per row, or an option of any shape, and one has rows."""
        ranks = {spec.shape.rank for spec in self._model.inputs(signature).values()}
        return ranks <= {0, 1, None} and 1 in ranks

    def _inputs(self, signature: str) -> dict[str, Input]:
        defaults = self._defaults[signature]
        return {
            name: Input(
                name,
                spec.dtype.name,
                batched=spec.shape.rank == 1,
                optional=name in defaults,
                either=spec.shape.rank is None,
                default=defaults[name].item() if name in defaults else None,
            )
            for name, spec in self._model.inputs(signature).items()
        }


def _definitions(path: str) -> dict[str, Any]:
    """The definition of each signature, as the file has it."""
    with open(os.path.join(path, GRAPH), "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    found = saved.meta_graphs[0].signature_def
    return {name: definition for name, definition in found.items() if not name.startswith("__saved_model")}
