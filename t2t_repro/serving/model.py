"""`ServedModel`: an exported SavedModel with what its signatures take and give. It needs no run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operations)
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from t2t_repro import processor
from t2t_repro.io import read_json
from t2t_repro.serving.cancellation import Cancellation
from t2t_repro.serving.versions import newest_version
from t2t_repro.task import DEFAULT_METRIC, task_of

DEFAULT_SIGNATURE = "serving_default"
# Signatures whose outputs are as wide whatever other sentences are in the batch: these may be joined.
JOINED = (DEFAULT_SIGNATURE, "translate", "parse")
ATTENTION = "attention"  # one pair of sentences makes megabytes of JSON, so it is served only on request
_ASSERTION = re.compile(r"assertion failed: (.*)")


class WrongInput(ValueError):  # noqa: N818
    """The model itself refuses what it was given."""


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
        try:
            self._model = tf.saved_model.load(self.path)
        except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:  # RuntimeError: an unknown operation
            raise ValueError(f"{self.path} cannot be loaded: {' '.join(str(error).split())}") from None
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
        card = os.path.join(self.path, "model_card.json")
        self.card: dict[str, Any] = read_json(card) if os.path.exists(card) else {}
        self.task = task_of(self.card.get("problem", {}).get("metric", DEFAULT_METRIC))
        self._choose_precision()

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray], cancellation: Cancellation | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature, strings as bytes. What has a default may be left out.

        Raises `WrongInput` if the model refuses, and `Cancelled`.
        """
        specs = self._specs(signature)
        values = {**self._defaults[signature], **inputs}
        given = {name: tf.constant(value, specs[name].dtype) for name, value in values.items()}
        try:
            found = (cancellation or Cancellation()).call(self._model.signatures[signature], given)
        except tf.errors.InvalidArgumentError as error:
            refused = _ASSERTION.search(error.message)
            if refused is None:
                raise
            raise WrongInput(" ".join(refused[1].replace("[", " ").replace("]", " ").split())) from None
        return self.task.served(signature, values, {name: value.numpy() for name, value in found.items()})

    def _choose_precision(self) -> None:
        """Raises ValueError if this processor cannot compute in the export's precision."""
        precision = self.card.get("precision")
        fault = "" if tf.config.list_physical_devices("GPU") else processor.bfloat16_fault()
        if precision == "bfloat16" and fault:
            raise ValueError(f"{self.path} computes in bfloat16, and {fault}; export the run in float32")
        # in the whole process; TensorFlow's own default is to multiply float32 in TF32 if a GPU has it
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")

    def _specs(self, signature: str) -> dict[str, tf.TensorSpec]:
        return dict(self._model.signatures[signature].structured_input_signature[1])

    def _takes_rows(self, signature: str) -> bool:
        """Returns whether each input is one value, one per row, or an option of any shape, and one has rows."""
        ranks = {spec.shape.rank for spec in self._specs(signature).values()}
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
            for name, spec in self._specs(signature).items()
        }


def _definitions(path: str) -> dict[str, Any]:
    """The definition of each signature, as the file has it."""
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        saved = saved_model_pb2.SavedModel.FromString(file.read())
    found = saved.meta_graphs[0].signature_def
    return {name: definition for name, definition in found.items() if not name.startswith("__saved_model")}
