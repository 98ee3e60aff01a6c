"""`export`: a trained run as a SavedModel, tokenizer and vocabulary inside: strings in, strings and scores out.

It is loaded without this package: `import tensorflow, tensorflow_text`, then `tf.saved_model.load`, or TF Serving.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import Any

import tensorflow as tf

from t2t_repro.data.vocabulary import END, PAD
from t2t_repro.files import write_json
from t2t_repro.inference.beam import NEVER
from t2t_repro.inference.decode import Translator
from t2t_repro.run import Run, versions
from t2t_repro.training.checkpoints import paths

TOKENS_AT_ONCE = 4_096  # source positions a search holds; a larger batch of strings is searched in turns


class ExportedTranslator(tf.Module):
    """The signatures of the SavedModel. B strings in a batch, N translations of each."""

    def __init__(self, translator: Translator):
        super().__init__()
        self._translator = translator
        self._vocabulary = translator.vocabulary
        # what a SavedModel must find in attributes: the weights, and the tokenizer's resource
        self.weights = tuple(weight.value for weight in translator.model.weights)
        self.tokenizer = translator.vocabulary.tokenizer

    def signatures(self) -> dict[str, Any]:
        """`serving_default`: the best translation by the run's own beam; `translate`: the n best by any beam;
        `score`: log-probabilities of given translations."""
        strings = tf.TensorSpec([None], tf.string, name="inputs")
        targets = tf.TensorSpec([None], tf.string, name="targets")
        search = [
            tf.TensorSpec([], tf.int32, name="beam_size"),
            tf.TensorSpec([], tf.float32, name="alpha"),
            tf.TensorSpec([], tf.int32, name="extra_length"),
            tf.TensorSpec([], tf.int32, name="n_best"),
        ]
        return {
            "serving_default": tf.function(self._best).get_concrete_function(strings),
            "translate": tf.function(self._n_best).get_concrete_function(strings, *search),
            "score": tf.function(self._score).get_concrete_function(strings, targets),
        }

    def _best(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B] strings to "outputs" [B] and "scores" [B]."""
        h = self._translator.hparams
        found = self._n_best(inputs, tf.constant(h.beam_size), tf.constant(h.alpha), tf.constant(h.extra_length), 1)
        return {name: value[:, 0] for name, value in found.items()}

    def _n_best(
        self, inputs: tf.Tensor, beam_size: tf.Tensor, alpha: tf.Tensor, extra_length: tf.Tensor, n_best: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """[B] strings to "outputs" [B, N] and "scores" [B, N], best first; an empty string gives empty ones.

        Where the beam ends with fewer than N, the rest is empty with score -inf.
        """
        n_best = tf.clip_by_value(n_best, 1, beam_size)
        # cut as t2t-decoder does: the first tokens, and the end
        tokens = self._vocabulary.encode_tensor(inputs)[:, :-1][:, : self._translator.hparams.max_positions - 1]
        sources = tf.concat([tokens, tf.fill([tf.size(inputs), 1], END)], axis=1)
        texts, scores = self._in_turns(sources, beam_size, alpha, extra_length, n_best)
        empty = (inputs == "")[:, None]
        texts = tf.where(empty | (scores <= NEVER / 1e6), "", texts)
        scores = tf.where(empty, 0.0, tf.where(scores <= NEVER / 1e6, -float("inf"), scores))
        return {"outputs": texts, "scores": scores}

    def _in_turns(
        self, sources: tf.RaggedTensor, beam_size: tf.Tensor, alpha: tf.Tensor, extra: tf.Tensor, n_best: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Searches the shortest sentences first, as many at a time as `TOKENS_AT_ONCE` hold, and restores the order."""
        lengths = tf.cast(sources.row_lengths(), tf.int32)
        order = tf.argsort(lengths, stable=True)
        sorted_sources, sorted_lengths = tf.gather(sources, order), tf.gather(lengths, order)
        size = tf.size(order)

        def turn(start: tf.Tensor, texts: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            positions = tf.range(1, size - start + 1) * sorted_lengths[start:]
            count = tf.maximum(tf.math.count_nonzero(positions <= TOKENS_AT_ONCE, dtype=tf.int32), 1)
            source_BM = sorted_sources[start : start + count].to_tensor(default_value=PAD)
            found = self._translator.search(source_BM, beam_size, alpha, extra)
            ids = tf.reshape(found.ids[:, :n_best], [-1, tf.shape(found.ids)[2]])
            new_texts = tf.reshape(self._vocabulary.decode_tensor(ids), [-1, n_best])
            return (
                start + count,
                tf.concat([texts, new_texts], axis=0),
                tf.concat([scores, found.scores[:, :n_best]], axis=0),
            )

        nothing = tf.zeros([0, n_best], tf.float32)
        _, texts, scores = tf.while_loop(
            lambda start, *_: start < size,
            turn,
            (tf.constant(0), tf.as_string(nothing), nothing),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None, None])),
            parallel_iterations=1,
        )
        back = tf.argsort(order)
        return tf.gather(texts, back), tf.gather(scores, back)

    def _score(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B] sources and targets to "log_probabilities" [B] and, of each token, "token_log_probabilities" [B, L]."""
        source_BM = self._vocabulary.encode_tensor(inputs).to_tensor(default_value=PAD)
        target_BL = self._vocabulary.encode_tensor(targets).to_tensor(default_value=PAD)
        log_p_BL = self._translator.token_log_probabilities(source_BM, target_BL)
        return {"log_probabilities": tf.reduce_sum(log_p_BL, axis=1), "token_log_probabilities": log_p_BL}


def export(output_dir: str, export_dir: str, average_checkpoints: int = 1) -> str:
    """Writes the run in `output_dir` to the next numbered folder of `export_dir`, whole or not at all: its path.

    Beside the SavedModel lies `model_card.json`. Raises FileNotFoundError or ValueError where the run cannot be read.
    """
    run = Run.open(output_dir)
    translator = Translator.from_run(output_dir, average_checkpoints)
    if os.path.exists(export_dir) and not os.path.isdir(export_dir):
        raise ValueError(f"--export_dir: {export_dir!r} is a file; give a directory")
    os.makedirs(export_dir, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".writing-", dir=export_dir)
    try:
        module = ExportedTranslator(translator)
        tf.saved_model.save(module, temporary, signatures=module.signatures())
        write_json(os.path.join(temporary, "model_card.json"), _model_card(run, translator, average_checkpoints))
        os.chmod(temporary, 0o755)
        numbers = [int(name) for name in os.listdir(export_dir) if re.fullmatch(r"\d+", name)]
        path = os.path.join(export_dir, str(max(numbers, default=0) + 1))
        os.rename(temporary, path)
    except tf.errors.OpError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.message.partition("\n")[0].rpartition("; ")[2].partition(" [Op:")[0]
        raise OSError(f"cannot write to {export_dir!r}: {reason}") from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path


def _model_card(run: Run, translator: Translator, average_checkpoints: int) -> dict[str, Any]:
    return {
        "problem": run.problem.to_dict(),
        "hparams": run.hparams.to_dict(),
        "parameters": run.hparams.num_parameters(translator.vocabulary.size),
        "vocabulary": {"kind": translator.vocabulary.kind, "size": translator.vocabulary.size},
        "precision": run.precision,
        "checkpoints": [os.path.basename(path) for path in paths(run)[-average_checkpoints:]],
        "versions": versions(),
    }
