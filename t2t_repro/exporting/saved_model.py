"""An exported run in use from Python: the signatures of its SavedModel, with lists in and out."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.data.vocabulary import must_be_list, must_be_pairs, must_be_unicode
from t2t_repro.inference.translator import distinct
from t2t_repro.io import read_json
from t2t_repro.task import DEFAULT_METRIC, task_of
from t2t_repro.training import hardware
from t2t_repro.training.precision import allow_tf32

_GRAPH, _CARD = "saved_model.pb", "model_card.json"
_ASSERTION = re.compile(r"assertion failed: (.*)")  # as far as the line goes: then TensorFlow names the node


class ExportedModel:
    """What a `Translator` does, as far as the SavedModel has signatures for it. Any number of threads may call it."""

    def __init__(self, path: str):
        """`path`: the folder of a SavedModel, or one of numbered folders, of which the highest is taken.

        Raises FileNotFoundError where there is none, and ValueError where it is damaged, if TensorFlow lacks one of its
        operations, or if this processor cannot compute in its precision.
        """
        import tensorflow_text  # noqa: F401  (registers the operations of the tokenizer)

        self.path = _newest_version(path)
        try:
            card = read_json(os.path.join(self.path, _CARD))
            self.hparams = HParams(**card["hparams"])
            self.task = task_of(card["problem"].get("metric", DEFAULT_METRIC))
            self._loaded = tf.saved_model.load(self.path)  # kept, for signatures do not keep their variables
        except (KeyError, TypeError, ValueError, OSError, tf.errors.OpError) as error:
            raise ValueError(f"{self.path} is damaged: {str(error).splitlines()[0]}; export the run again") from None
        except RuntimeError as error:  # an operation is not registered: without int8 no processor lacks one
            reason = str(error).partition(".")[0]
            raise ValueError(f"{self.path} cannot run here: {reason}; export it without int8") from None
        precision = card.get("precision")
        if precision == "bfloat16" and (fault := hardware.bfloat16_fault()):
            raise ValueError(f"{self.path} computes in bfloat16, and {fault}; export the run in float32")
        allow_tf32(precision == "tf32")

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the best translation of each text: `translate` with the run's own beam."""
        return self.translate(texts)

    def translate(self, texts: Sequence[str], beam_size: int | None = None, alpha: float | None = None) -> list[str]:
        """The best translation of each text; an empty text gives an empty one."""
        return [best[0][0] for best in self.n_best(texts, 1, beam_size, alpha)]

    def n_best(
        self, texts: Sequence[str], n: int, beam_size: int | None = None, alpha: float | None = None
    ) -> list[list[tuple[str, float]]]:
        """The n best translations of each text with their scores (log-probability over length penalty), best first.

        There are fewer if the beam holds fewer that differ in more than the space around them. Without a `beam_size` it
        is that of the run, or n if that is more.
        """
        must_be_list(texts)
        width = max(n, self.hparams.beam_size) if beam_size is None else beam_size
        penalty = self.hparams.alpha if alpha is None else alpha
        if not 1 <= n <= width:
            raise ValueError(f"n_best must be at least 1 and at most the beam size {width}, got {n}")
        if not texts:
            return []
        found = self._call(
            "translate",
            inputs=_strings(texts),
            beam_size=tf.constant(width, tf.int32),
            alpha=tf.constant(penalty, tf.float32),
            extra_length=tf.constant(self.hparams.extra_length, tf.int32),
            n_best=tf.constant(width if n > 1 else 1, tf.int32),
        )
        results = []
        for lines, scores in zip(found["outputs"].numpy().tolist(), found["scores"].numpy().tolist(), strict=True):
            both = zip(lines, scores, strict=True)
            hypotheses = [(line.decode("utf-8"), score) for line, score in both if score > -float("inf")]
            results.append(distinct(hypotheses, n))
        return [hypotheses if text else [("", 0.0)] for text, hypotheses in zip(texts, results, strict=True)]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-probability of each target given its source, its end included."""
        must_be_pairs(pairs)
        if not pairs:
            return []
        sources, targets = (_strings(side) for side in zip(*pairs, strict=True))
        return self._call("score", inputs=sources, targets=targets)["log_probabilities"].numpy().tolist()

    def _call(self, signature: str, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Raises ValueError if a check in the graph fails: the inputs are wrong, or this processor's products."""
        try:
            return self._loaded.signatures[signature](**inputs)
        except tf.errors.InvalidArgumentError as error:
            found = _ASSERTION.search(error.message)
            reason = re.sub(r"[\[\]]", "", found[1]) if found else " ".join(error.message.split())
            raise ValueError(f"{self.path} refuses this: {reason}") from None


def holds_export(path: str) -> bool:
    """Whether there is a SavedModel in `path`, or in a numbered folder of it."""
    return bool(_versions(path))


def _newest_version(path: str) -> str:
    versions = _versions(path)
    if not versions:
        raise FileNotFoundError(f"{path!r} holds no {_GRAPH}; give the folder that t2t-exporter wrote")
    return versions[-1]


def _versions(path: str) -> list[str]:
    """Folders with a SavedModel: `path` itself, or the numbered ones in it, lowest first."""
    names = os.listdir(path) if os.path.isdir(path) else []
    numbered = sorted((name for name in names if re.fullmatch(r"\d+", name)), key=int)
    folders = [path] if _GRAPH in names else [os.path.join(path, name) for name in numbered]
    return [folder for folder in folders if os.path.isfile(os.path.join(folder, _GRAPH))]


def _strings(texts: Sequence[str]) -> tf.Tensor:
    for number, text in enumerate(texts, start=1):
        must_be_unicode(number, text)
    return tf.constant(list(texts), tf.string)
