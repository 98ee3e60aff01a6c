"""The signatures of an exported run: strings in, strings and scores out, the tokenizer inside.

B strings in a batch, N translations of each; M and L tokens of the longest source and target, H heads.

What is asked for is checked in the graph, so that it holds wherever the model is served: a `tf.errors.
InvalidArgumentError` says what was expected. So are the products of 8-bit integers, of a model that decodes by them: on
a processor that computes them wrongly each request fails, and the message gives the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2t_repro.data.vocabulary import END, PAD
from t2t_repro.inference import tree_graph
from t2t_repro.inference.beam import NEVER
from t2t_repro.inference.decode import Translator
from t2t_repro.model.int8 import must_be_exact

TOKENS_AT_ONCE = 4_096  # source positions a search holds; a larger batch of strings is searched in turns
SCORED_AT_ONCE = 1_024  # target positions that are scored at once: each has the logits of a whole vocabulary
MOST_BEAMS = 64
MOST_WEIGHTS = (
    128 * 128
)  # of a head of a layer, over the batch: one pair of 128 tokens, as on the page of t2t-attention


class ExportedTranslator(tf.Module):
    """The signatures of the SavedModel. `parses`: what the model writes is linearised trees."""

    def __init__(self, translator: Translator, parses: bool = False):
        super().__init__()
        self._parses = parses
        if not translator.ensemble.int8:  # it may keep its matrices in a narrow dtype too: they would be exported twice
            translator = Translator(translator.ensemble.models, translator.vocabulary, translator.hparams)
        self._translator = translator
        self._vocabulary = translator.vocabulary
        # what a SavedModel must find in attributes: the weights, and the tokenizer's resource
        self.weights = tuple(weight.value for weight in translator.model.weights)
        self.tokenizer = translator.vocabulary.tokenizer

    def signatures(self) -> dict[str, Any]:
        """`serving_default`: the best translation by the run's own beam; `translate`: the n best by any beam;
        `score`: log-probabilities of given translations; `attention`: the weights with which one is read and written;
        and of a parser `parse`: the best tree, in brackets.

        The inputs of `translate` but the strings have defaults, which TF Serving fills in: the run's own beam, and one
        translation.
        """
        h = self._translator.hparams

        def translate(
            inputs: tf.Tensor,
            beam_size: tf.Tensor = tf.constant(h.beam_size),  # noqa: B008 (an export reads its defaults here)
            alpha: tf.Tensor = tf.constant(h.alpha),  # noqa: B008
            extra_length: tf.Tensor = tf.constant(h.extra_length),  # noqa: B008
            n_best: tf.Tensor = tf.constant(1),  # noqa: B008
        ) -> dict[str, tf.Tensor]:
            return self._n_best(inputs, beam_size, alpha, extra_length, n_best)

        strings, targets = (tf.TensorSpec([None], tf.string, name=name) for name in ("inputs", "targets"))
        search = [
            tf.TensorSpec([], tf.int32, name="beam_size"),
            tf.TensorSpec([], tf.float32, name="alpha"),
            tf.TensorSpec([], tf.int32, name="extra_length"),
            tf.TensorSpec([], tf.int32, name="n_best"),
        ]
        parse = {"parse": tf.function(self._parse, autograph=False, input_signature=[strings])} if self._parses else {}
        return parse | {
            "serving_default": tf.function(self._best, autograph=False, input_signature=[strings]),
            "translate": tf.function(translate, autograph=False, input_signature=[strings, *search]),
            "score": tf.function(self._score, autograph=False, input_signature=[strings, targets]),
            "attention": tf.function(self._attention, autograph=False, input_signature=[strings, targets]),
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

        Where the beam ends with fewer than N, the rest is empty with score -inf. A parser's outputs hold the words.
        """
        limit = self._translator.hparams.max_positions
        _must(1 <= beam_size, beam_size <= MOST_BEAMS, f"beam_size must be from 1 to {MOST_BEAMS}, got", beam_size)
        _must(1 <= n_best, n_best <= beam_size, "n_best must be at least 1 and at most beam_size, got", n_best)
        _must(0 <= alpha, alpha < float("inf"), "alpha must be at least 0 and finite, got", alpha)
        _must(0 <= extra_length, extra_length <= limit, f"extra_length must be from 0 to {limit}, got", extra_length)
        if self._translator.ensemble.int8:
            with tf.control_dependencies([must_be_exact(tf.size(inputs))]):
                inputs = tf.identity(inputs)
        if self._parses:
            words = tree_graph.split_words(inputs)
            inputs = tf.strings.reduce_join(words, axis=1, separator=" ")
            symbols = tf.ragged.map_flat_values(tree_graph.symbols_of, words)
            spelled = " " + tf.strings.reduce_join(symbols, axis=1, separator=" ")
            given = self._vocabulary.encode_tensor(spelled)[:, :-1]
        # cut as t2t-decoder does: the first tokens, and the end
        tokens = self._vocabulary.encode_tensor(inputs)[:, :-1][:, : limit - 1]
        sources = tf.concat([tokens, tf.fill([tf.size(inputs), 1], END)], axis=1)

        def search(start: tf.Tensor, stop: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            source_BM = tf.gather(sources, order[start:stop]).to_tensor(default_value=PAD)
            if self._parses:
                given_BG = tf.gather(given, order[start:stop]).to_tensor(default_value=PAD)
                found = self._translator.search_given(source_BM, beam_size, alpha, extra_length, given_BG)
            else:
                found = self._translator.search(source_BM, beam_size, alpha, extra_length)
            ids = tf.reshape(found.ids[:, :n_best], [-1, tf.shape(found.ids)[2]])
            return tf.reshape(self._vocabulary.decode_tensor(ids), [-1, n_best]), found.scores[:, :n_best]

        lengths = tf.cast(sources.row_lengths(), tf.int32)
        nothing = tf.zeros([0, n_best], tf.float32)
        texts, scores = _in_turns(search, (tf.as_string(nothing), nothing), lengths, TOKENS_AT_ONCE)
        empty = (inputs == "")[:, None]
        texts = tf.where(empty | (scores <= NEVER / 1e6), "", texts)
        scores = tf.where(empty, 0.0, tf.where(scores <= NEVER / 1e6, -float("inf"), scores))
        return {"outputs": texts, "scores": scores}

    def _parse(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B] sentences, a space between their tokens, to "outputs" [B]: bracketed trees over exactly these tokens.

        "repairs" [B] int32 is what it took to make a tree of the best of the beam, "symbols" [B], whose "scores" [B]
        these are. A sentence without tokens gives an empty text.
        """
        found = self._best(inputs)
        with tf.device("/CPU:0"):  # else the loop is placed on a GPU, which cannot hold its texts
            trees, repairs = tf.map_fn(
                lambda both: tree_graph.rebuild(*both),
                (found["outputs"], tree_graph.split_words(inputs)),
                fn_output_signature=(tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32)),
            )
        return {"outputs": trees, "scores": found["scores"], "repairs": repairs, "symbols": found["outputs"]}

    def _score(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B] sources and targets to "log_probabilities" [B] and, of each token, "token_log_probabilities" [B, L]."""
        sources, references = self._pairs(inputs, targets)
        lengths = tf.cast(tf.maximum(sources.row_lengths(), references.row_lengths()), tf.int32)
        longest = tf.cast(references.bounding_shape(1), tf.int32)

        def score(start: tf.Tensor, stop: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor]:
            source_BM, target_BL = (
                tf.gather(side, order[start:stop]).to_tensor(default_value=PAD) for side in (sources, references)
            )
            log_p_BL = self._translator.token_log_probabilities(source_BM, target_BL)
            return (tf.pad(log_p_BL, [[0, 0], [0, longest - tf.shape(log_p_BL)[1]]]),)

        (log_p_BL,) = _in_turns(score, (tf.zeros([0, longest], tf.float32),), lengths, SCORED_AT_ONCE)
        return {"log_probabilities": tf.reduce_sum(log_p_BL, axis=1), "token_log_probabilities": log_p_BL}

    def _attention(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """[B] sources and targets to the weights of every layer and head.

        "encoder" [B, layers, H, M, M], "memory" [B, layers, H, L, M] and "decoder" [B, layers, H, L, L] are float32;
        "input_pieces" [B, M] and "target_pieces" [B, L] are what stands at each place, a space written U+2581, ""
        behind the end. Place l of "decoder" is what token l is written from, whose keys are the tokens before it: key 0
        is the start, key l the token l - 1.
        """
        sources, references = self._pairs(inputs, targets)
        source_BM, target_BL = sources.to_tensor(default_value=PAD), references.to_tensor(default_value=PAD)
        longest = tf.maximum(tf.shape(source_BM)[1], tf.shape(target_BL)[1])
        size = tf.shape(source_BM)[0] * longest * longest
        message = f"attention takes one pair of at most {int(MOST_WEIGHTS**0.5)} tokens a side, or more of fewer: got"
        _must(size <= MOST_WEIGHTS, True, f"{message} pairs and tokens", tf.stack([tf.shape(source_BM)[0], longest]))
        model = self._translator.model
        parts = {
            "encoder": [layer.self_attention for layer in model.encoder_layers],
            "memory": [layer.memory_attention for layer in model.decoder_layers],
            "decoder": [layer.self_attention for layer in model.decoder_layers],
        }
        seen: dict[str, list[tf.Tensor]] = {name: [] for name in parts}
        try:
            for name, attentions in parts.items():
                for each in attentions:
                    each.on_weights = lambda weights, name=name: seen[name].append(weights)
            model({"inputs": source_BM, "targets": target_BL})
        finally:
            for each in (each for attentions in parts.values() for each in attentions):
                each.on_weights = None
        found = {name: tf.stack(weights, axis=1) for name, weights in seen.items()}
        pieces = {"input_pieces": source_BM, "target_pieces": target_BL}
        return found | {
            name: tf.where(ids == PAD, "", self.tokenizer.id_to_string(ids)) for name, ids in pieces.items()
        }

    def _pairs(self, inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """The tokens of both sides, which must be as many as each other and not too long."""
        _must(
            tf.size(inputs) == tf.size(targets), True, "there must be as many targets as inputs, got", tf.size(targets)
        )
        limit = self._translator.hparams.max_positions
        sides = self._vocabulary.encode_tensor(inputs), self._vocabulary.encode_tensor(targets)
        for side in sides:
            longest = side.bounding_shape(1)
            _must(longest <= limit, True, f"a text has too many tokens; at most {limit} are scored, got", longest)
        return sides


def _must(low: tf.Tensor, high: tf.Tensor | bool, message: str, value: tf.Tensor) -> None:
    """Ends the run of the graph with `message` and `value` where one of the two conditions does not hold."""
    tf.debugging.Assert(tf.logical_and(low, high), [message, value])


Outputs = tuple[tf.Tensor, ...]


def _in_turns(
    run: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Outputs], nothing: Outputs, lengths: tf.Tensor, most: int
) -> Outputs:
    """`run(start, stop, order)` on the shortest rows first, as many at a time as `most` positions hold, padding
    included; outputs are joined and in the rows' own order. `nothing` is the outputs of no rows.
    """
    order = tf.argsort(lengths, stable=True)
    sorted_lengths = tf.gather(lengths, order)
    size = tf.size(order)

    def turn(start: tf.Tensor, outputs: Outputs) -> tuple[tf.Tensor, Outputs]:
        positions = tf.range(1, size - start + 1) * sorted_lengths[start:]
        stop = start + tf.maximum(tf.math.count_nonzero(positions <= most, dtype=tf.int32), 1)
        new = run(start, stop, order)
        return stop, tuple(tf.concat(both, axis=0) for both in zip(outputs, new, strict=True))

    _, outputs = tf.while_loop(
        lambda start, _: start < size,
        turn,
        (tf.constant(0), nothing),
        shape_invariants=(tf.TensorShape([]), tuple(tf.TensorShape([None, None]) for _ in nothing)),
        parallel_iterations=1,
    )
    back = tf.argsort(order)
    return tuple(tf.gather(output, back) for output in outputs)
