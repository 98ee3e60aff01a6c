"""A SavedModel written by `t2t_repro.exporting`: its location, its model card, and calls of its signatures.

    E/1/saved_model.pb, E/1/model_card.json, E/2/...        numbered folders; the newest is loaded

Finding a version needs only the standard library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from t2t_repro.io import read_json, without_wildcards
from t2t_repro.system import processor
from t2t_repro.task import DEFAULT_METRIC, task_of

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from t2t_repro.documents.splitter import Splitter

    Caller = Callable[[Any, Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]  # of a function, with its inputs

GRAPH, CARD = "saved_model.pb", "model_card.json"
DEFAULT_SIGNATURE = "serving_default"
N_BEST_SIGNATURE = "translate"  # with the option "n_best"
ALIGNED_SIGNATURE = "translate_with_alignments"
WITH_TERMS = "translate_with_terms"  # the signature of a search with terms, of an export with glossaries
_ASSERTION = re.compile(r"assertion failed: (.*)")  # one line: TensorFlow names the node on the next one


class WrongInput(ValueError):  # noqa: N818
    """The model refuses its inputs."""


def holds_graph(path: str) -> bool:
    """Returns true if `path` itself is the folder of a SavedModel."""
    return os.path.isfile(os.path.join(path, GRAPH))


def newest_version(export_dir: str) -> int:
    """Returns the highest number that names a folder with a SavedModel.

    Raises FileNotFoundError if there is none; the message describes what the folder contains.
    """
    if not os.path.isdir(export_dir):
        raise FileNotFoundError(f"export_dir: no directory {export_dir!r}; give the one that t2t-exporter wrote to")
    if holds_graph(export_dir) and os.path.basename(os.path.normpath(export_dir)).isdecimal():
        folder = os.path.dirname(os.path.normpath(export_dir)) or "."
        raise FileNotFoundError(f"export_dir: {export_dir!r} is one version; give the folder of all, {folder!r}")
    numbers = [int(name) for name in os.listdir(export_dir) if re.fullmatch(r"\d+", name)]
    versions = [number for number in numbers if holds_graph(os.path.join(export_dir, str(number)))]
    if not versions:
        what = "its versions are in another format" if numbers else "it has no numbered folder"
        raise FileNotFoundError(f"export_dir: no SavedModel in {export_dir!r}, {what}; write one with t2t-exporter")
    return max(versions)


class SavedModel:
    """A loaded SavedModel from the folder `path`. `card` is its model card, empty if it has none.

    Raises ValueError if it is damaged, if TensorFlow lacks one of its operations, or if this processor does not support
    its precision.
    """

    def __init__(self, path: str):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (registers the operations of the tokenizer)

        self.path = path
        card = os.path.join(path, CARD)
        try:
            self.card: dict[str, Any] = read_json(card) if os.path.exists(card) else {}
            problem = self.card.get("problem", {})
            self.task = task_of(problem.get("metric", DEFAULT_METRIC), problem.get("linearization", ""))
            with without_wildcards(os.path.join(path, "")) as plain:
                self._loaded = tf.saved_model.load(plain)  # kept: signatures do not keep their variables alive
        except (AttributeError, KeyError, TypeError, ValueError, OSError, tf.errors.OpError) as error:
            raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}; export the run again") from None
        except RuntimeError as error:  # an operation is not registered: only those of int8 can be missing
            reason = str(error).partition(".")[0]
            raise ValueError(f"{path} cannot run here: {reason}; export it without int8") from None
        self._choose_precision()

    @property
    def has_terms(self) -> bool:
        """True if it can require terms of a translation."""
        return WITH_TERMS in self._loaded.signatures

    @property
    def has_alignments(self) -> bool:
        """True if it can align the words of a translation."""
        return ALIGNED_SIGNATURE in self._loaded.signatures

    def splitter(self, language: str | None = None) -> Splitter:
        """Returns the splitter of texts into sentences that the model takes. None means its source language.

        The tokenizer is in the graph, so a sentence fits if no tokenizer would make more than `max_positions` tokens of
        it. Raises ValueError if the model card has no `max_positions`, and those of `Splitter`.
        """
        from t2t_repro.documents.splitter import Splitter

        longest = self.card.get("hparams", {}).get("max_positions")
        if not isinstance(longest, int):
            raise ValueError(f"{self.path} has no max_positions in its {CARD}; export the run again")
        own = self.card.get("problem", {}).get("source_language", "")
        return Splitter(own if language is None else language, longest)

    def inputs(self, signature: str) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of a signature."""
        return dict(self._loaded.signatures[signature].structured_input_signature[1])

    def call(self, signature: str, inputs: Mapping[str, Any], caller: Caller | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, strings as bytes.

        With `caller`, another thread can cancel the call: see `t2t_repro.serving.cancellation`. Raises `WrongInput` if
        a check in the graph fails, of the inputs or of this processor's products, and the exceptions of `caller`.
        """
        import tensorflow as tf

        function, takes = self._loaded.signatures[signature], self.inputs(signature)
        given = {name: tf.constant(value, takes[name].dtype) for name, value in inputs.items()}
        try:
            found = caller(function, given) if caller else function(**given)
        except tf.errors.InvalidArgumentError as error:
            refused = _ASSERTION.search(error.message)
            if refused is None:
                raise
            raise WrongInput(" ".join(refused[1].replace("[", " ").replace("]", " ").split())) from None
        return {name: value.numpy() for name, value in found.items()}

    def _choose_precision(self) -> None:
        import tensorflow as tf

        precision = str(self.card.get("precision"))
        fault = "" if tf.config.list_physical_devices("GPU") else processor.precision_fault(precision)
        if fault:
            raise ValueError(f"{self.path} computes in {precision}, and {fault}; export the run in float32")
        # in the entire process; TensorFlow's default is to multiply float32 in TF32 on GPUs that support it
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
