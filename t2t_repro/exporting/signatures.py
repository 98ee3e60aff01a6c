"""The signatures of an exported run, from strings to strings and scores. The tokenizer is part of the graph.

Shapes: B strings in a batch, N translations of each, M and L tokens of the longest source and target, H heads.

Arguments are checked in the graph, so that the checks hold in any server. A `tf.errors.InvalidArgumentError` reports
what was expected before anything is computed from the argument. A model that multiplies 8-bit integers also checks
those products: on a processor that computes them wrongly each request fails, and the message gives the remedy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_repro.alignment.head import AlignmentHead
from t2t_repro.alignment.words import Words, pharaoh, probabilities
from t2t_repro.exporting.request_graph import Options, after, in_batches, kinds, must, one_each, term_checks
from t2t_repro.inference.memory import SEARCH_BYTES, search_bytes
from t2t_repro.inference.search.decoding_loop import NEG_INF
from t2t_repro.inference.terms.term_search import own_width
from t2t_repro.inference.translator import Translator
from t2t_repro.model.int8 import must_be_exact
from t2t_repro.saved_model import ALIGNED_SIGNATURE, DEFAULT_SIGNATURE, N_BEST_SIGNATURE, WITH_TERMS
from t2t_repro.text.token_ids import EOS, PAD

TOKENS_PER_SEARCH = 4_096  # source positions of one search; larger requests are split into several searches
SCORED_PER_BATCH = 1_024  # target positions scored in one batch: each has the logits of the full vocabulary
MOST_BEAMS = 64
BLANK = r"[\t-\r\x1c-\x1f\x{85}\pZ]*"  # the white space of `str.isspace`
MOST_WEIGHTS = 128 * 128  # per head and layer, over the batch: one pair of 128 tokens, as on the page of t2t-attention


class _Request(NamedTuple):
    """A search for `translate` and the signatures like it: B strings, each with its options."""

    inputs: tf.Tensor  # [B], as the model reads them
    options: Options
    width: tf.Tensor  # [B] int64, number of beams
    sources: tf.RaggedTensor  # ids [B, M]
    required: tf.RaggedTensor | None  # ids [B, G] of the words that a constrained search repeats
    spelled_B: tf.Tensor | None  # terms that the outputs contain
    lengths: tf.Tensor  # [B] int64, of the sources
    most_rows: tf.Tensor  # [B] int64, the number of rows of this length that fit into one search


class ExportedTranslator(tf.Module):
    """The signatures of the SavedModel. The best output is `serving_default` and `signature`, the task's name.

    With `head`, `translate_with_alignments` is one of them, and with `glossaries`, `translate_with_terms`.
    """

    def __init__(
        self,
        translator: Translator,
        signature: str = DEFAULT_SIGNATURE,
        head: AlignmentHead | None = None,
        glossaries: bool = False,
    ):
        super().__init__()
        self._signature, self._glossaries = signature, glossaries
        vocabulary, hparams, constraint = translator.vocabulary, translator.hparams, translator.constraint
        self._translator = translator = Translator(translator.ensemble.portable(), vocabulary, hparams, constraint)
        self._aligned = None if head is None else translator.with_alignments(head)
        self._vocabulary = translator.vocabulary
        # a SavedModel needs these as attributes: the weights, and the tokenizer's resource
        self.weights = tuple(weight.value for weight in translator.model.weights)
        self.tokenizer = translator.vocabulary.tokenizer

    def signatures(self) -> dict[str, Any]:
        """Returns the signatures by name.

        - `serving_default`: the best translation with the run's beam size.
        - `translate`: the n best translations, with options.
        - `translate_with_alignments`: the same, with word alignments, if there is a head that aligns.
        - `translate_with_terms`: one of these two, containing terms, if the export has glossaries.
        - `score`: log-probabilities of given translations.
        - `attention`: the attention weights of a pair.

        A constrained search contains the words of its texts. The options of `translate` default to the run's beam and
        one translation. Each is one value for all strings or a vector with one for each, so that rows of TF Serving's
        REST form may contain them.
        """
        h = self._translator.hparams

        strings, targets, terms = (
            tf.TensorSpec([None], tf.string, name=name) for name in ("inputs", "targets", "terms")
        )
        search = [  # of any shape: one value for all strings, or one per string
            tf.TensorSpec(None, tf.int32, name="beam_size"),
            tf.TensorSpec(None, tf.float32, name="alpha"),
            tf.TensorSpec(None, tf.int32, name="extra_length"),
            tf.TensorSpec(None, tf.int32, name="n_best"),
        ]

        def translating(aligned: Translator | None) -> Any:
            def translate(
                inputs: tf.Tensor,
                beam_size: tf.Tensor = tf.constant(h.beam_size),  # noqa: B008 (an export reads its defaults here)
                alpha: tf.Tensor = tf.constant(h.alpha),  # noqa: B008
                extra_length: tf.Tensor = tf.constant(h.extra_length),  # noqa: B008
                n_best: tf.Tensor = tf.constant(1),  # noqa: B008
            ) -> dict[str, tf.Tensor]:
                options = one_each(tf.size(inputs), beam_size, alpha, extra_length, n_best)
                return self._n_best(inputs, options, aligned)

            return tf.function(translate, autograph=False, input_signature=[strings, *search])

        def translate_with_terms(
            inputs: tf.Tensor,
            terms: tf.Tensor,
            beam_size: tf.Tensor = tf.constant(h.beam_size),  # noqa: B008
            alpha: tf.Tensor = tf.constant(h.alpha),  # noqa: B008
            extra_length: tf.Tensor = tf.constant(h.extra_length),  # noqa: B008
            n_best: tf.Tensor = tf.constant(1),  # noqa: B008
        ) -> dict[str, tf.Tensor]:
            options = one_each(tf.size(inputs), beam_size, alpha, extra_length, n_best)
            return self._n_best(inputs, options, self._aligned, terms)

        best = tf.function(self._best, autograph=False, input_signature=[strings])
        with_terms = {}
        if self._glossaries:
            signature = [strings, terms, *search]
            with_terms[WITH_TERMS] = tf.function(translate_with_terms, autograph=False, input_signature=signature)
        aligning = {} if self._aligned is None else {ALIGNED_SIGNATURE: translating(self._aligned)}
        return {
            self._signature: best,
            DEFAULT_SIGNATURE: best,
            N_BEST_SIGNATURE: translating(None),
            **aligning,
            **with_terms,
            "score": tf.function(self._score, autograph=False, input_signature=[strings, targets]),
            "attention": tf.function(self._attention, autograph=False, input_signature=[strings, targets]),
        }

    def _best(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns "outputs" [B] and "scores" [B] of strings [B]."""
        h, rows = self._translator.hparams, tf.size(inputs)
        options = one_each(rows, *map(tf.constant, (h.beam_size, h.alpha, h.extra_length, 1)))
        return {name: value[:, 0] for name, value in self._n_best(inputs, options).items()}

    def _n_best(
        self,
        inputs: tf.Tensor,
        options: Options,
        aligned: Translator | None = None,
        spelled_B: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns "outputs" [B, N] and "scores" [B, N] of strings [B], best first; white space gives an empty one.

        With `spelled_B`, outputs contain the terms: a line for each, with its forms separated by tabs.

        N is the maximum of `n_best`. If the beam ends with fewer than N translations, or fewer were requested, the
        other outputs are empty with score -inf.

        `aligned` is the translator with alignments. With it, there are also "alignments" [B, N], strings in Pharaoh
        format, "confidences" [B, N], the geometric mean of the probabilities of the tokens, "word_confidences" [B, N],
        strings with the probability of each word, and "num_tokens" [B, N], int32.
        """
        if self._translator.ensemble.int8:
            inputs = after([must_be_exact(tf.size(inputs))], inputs)
        request = self._request(inputs, options, spelled_B)
        columns = tf.reduce_max(tf.concat([[1], options.n_best], axis=0))
        nothing = tf.zeros([0, columns], tf.float32)
        no_text = tf.as_string(nothing)
        none: tuple[tf.Tensor, ...] = no_text, nothing
        if aligned is not None:
            none += no_text, nothing, no_text, tf.cast(nothing, tf.int32)

        def search(start: tf.Tensor, stop: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._search(request, order[start:stop], columns, aligned)

        outputs = in_batches(search, none, request.lengths, request.most_rows, kinds(*options, request.width))
        return _named(tf.strings.regex_full_match(request.inputs, BLANK)[:, None], *outputs)

    def _request(self, inputs: tf.Tensor, options: Options, spelled_B: tf.Tensor | None) -> _Request:
        """Returns the request, whose tensors are available only after its checks have passed."""
        constraint, required = self._translator.constraint, None
        if constraint is not None:
            inputs, words = constraint.required_words_tensor(inputs)
            required = self._vocabulary.encode_tensor(words)[:, :-1]
        sources = self._sources(inputs)
        lengths = sources.row_lengths()
        longest = lengths if required is None else tf.maximum(lengths, required.row_lengths() + 1)
        width, positions = tf.cast(options.beam_size, tf.int64), longest + tf.cast(options.extra_length, tf.int64)
        checks: list[tf.Operation] = []
        if spelled_B is not None:
            checks = term_checks(spelled_B, tf.size(inputs))
            spelled_B = after(checks, spelled_B)
            terms = self._translator.term_vocabulary.terms(spelled_B)
            width = tf.cast(own_width(terms, options.beam_size), tf.int64)
            needed = tf.reduce_sum(terms.shortest_BG, axis=1) + 2  # as in `term_search`
            positions = tf.maximum(positions, tf.cast(needed, tf.int64))
        bytes_B = search_bytes(self._translator.ensemble, self._translator.model.vocab_size, width, positions)
        most_rows = tf.minimum(TOKENS_PER_SEARCH // lengths, SEARCH_BYTES // bytes_B)
        lengths = after([*checks, *self._checks(options, bytes_B)], lengths)
        return _Request(inputs, options, width, sources, required, spelled_B, lengths, most_rows)

    def _search(
        self, request: _Request, rows: tf.Tensor, columns: tf.Tensor, aligned: Translator | None
    ) -> tuple[tf.Tensor, ...]:
        """Returns texts and scores of rows with the same options, and what `_alignments` does: each [rows, N]."""
        *arguments, count = (option[rows[0]] for option in request.options)
        source_BM = tf.gather(request.sources, rows).to_tensor(default_value=PAD)
        translator = aligned or self._translator
        if request.spelled_B is not None:
            no_prefix_BP = tf.zeros([tf.size(rows), 0], tf.int32)
            terms_B = tf.gather(request.spelled_B, rows)
            found = translator.search_with_terms(source_BM, *arguments, no_prefix_BP, 0, terms_B)
        elif request.required is None:
            found = translator.search(source_BM, *arguments)
        else:
            required_BG = tf.gather(request.required, rows).to_tensor(default_value=PAD)
            found = self._translator.constrained_search(source_BM, *arguments, required_BG)
        more = [[0, 0], [0, columns - count]]
        ids = tf.pad(found.ids[:, :count], [*more, [0, 0]], constant_values=PAD)
        texts = self._vocabulary.decode_tensor(tf.reshape(ids, [-1, tf.shape(ids)[2]]))
        scores = tf.pad(found.scores[:, :count], more, constant_values=NEG_INF)
        both = tf.reshape(texts, [-1, columns]), scores
        if aligned is None or (head := aligned.ensemble.head) is None:
            return both
        traces = (tf.pad(trace[:, :count], [*more, [0, 0]]) for trace in found.traces)
        return both + self._alignments(head, source_BM, ids, scores, *traces)

    def _alignments(
        self,
        head: AlignmentHead,
        source_BM: tf.Tensor,
        ids_BNL: tf.Tensor,
        scores_BN: tf.Tensor,
        places_BNL: tf.Tensor,
        log_p_BNL: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Returns the links in Pharaoh format, the confidence of each hypothesis, those of its words, and its number of
        tokens without EOS, [B, N]; see `Hypotheses.traces`."""
        links = Words(self._vocabulary).links(source_BM, ids_BNL, places_BNL, head)
        tokens_BN = tf.maximum(tf.math.count_nonzero(ids_BNL != PAD, axis=2, dtype=tf.int32) - 1, 0)  # without EOS
        sums_BN = tf.gather(log_p_BNL, tokens_BN, batch_dims=2)
        means_BN = sums_BN / tf.cast(tf.maximum(tokens_BN, 1), tf.float32)
        gained_BNL = tf.pad(log_p_BNL[:, :, 1:] - log_p_BNL[:, :, :-1], [[0, 0], [0, 0], [0, 1]])
        of_words = probabilities(links.targets, gained_BNL)
        return pharaoh(links), tf.exp(tf.where(tokens_BN > 0, means_BN, scores_BN)), of_words, tokens_BN

    def _sources(self, inputs: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of each text, truncated as by `Translator`: the first tokens and EOS."""
        tokens = self._vocabulary.encode_tensor(inputs)[:, :-1][:, : self._translator.hparams.max_positions - 1]
        return tf.concat([tokens, tf.fill([tf.size(inputs), 1], EOS)], axis=1)

    def _checks(self, options: Options, bytes_B: tf.Tensor) -> list[tf.Operation]:
        """Returns the checks of the options and of the memory [B] that each search needs."""
        beam_size, alpha, extra_length, n_best = options
        h = self._translator.hparams  # its own values are allowed, whatever they are
        limit, most_beams = max(h.max_positions, h.extra_length), max(MOST_BEAMS, h.beam_size)
        longest_extra = f"extra_length must be from 0 to {limit}, got"
        largest = tf.reduce_max(tf.concat([[0], bytes_B], axis=0))
        needs = "a text, its extra_length and its beam_size need too much memory: MiB for at most"
        return [
            must(1 <= beam_size, beam_size <= most_beams, f"beam_size must be from 1 to {most_beams}, got", beam_size),
            must(1 <= n_best, n_best <= beam_size, "n_best must be at least 1 and at most beam_size, got", n_best),
            must(0 <= alpha, alpha < float("inf"), "alpha must be at least 0 and finite, got", alpha),
            must(0 <= extra_length, extra_length <= limit, longest_extra, extra_length),
            must(largest <= SEARCH_BYTES, True, f"{needs} {SEARCH_BYTES >> 20}, got", largest // (1 << 20)),
        ]

    def _score(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns "log_probabilities" [B] and "token_log_probabilities" [B, L] of sources and targets [B]."""
        sources, references = self._pairs(inputs, targets)
        lengths = tf.maximum(sources.row_lengths(), references.row_lengths())
        longest = tf.cast(references.bounding_shape(1), tf.int32)

        def score(start: tf.Tensor, stop: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor]:
            source_BM, target_BL = (
                tf.gather(side, order[start:stop]).to_tensor(default_value=PAD) for side in (sources, references)
            )
            log_p_BL = self._translator.token_log_probabilities(source_BM, target_BL)
            return (tf.pad(log_p_BL, [[0, 0], [0, longest - tf.shape(log_p_BL)[1]]]),)

        (log_p_BL,) = in_batches(score, (tf.zeros([0, longest], tf.float32),), lengths, SCORED_PER_BATCH // lengths)
        return {"log_probabilities": tf.reduce_sum(log_p_BL, axis=1), "token_log_probabilities": log_p_BL}

    def _attention(self, inputs: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the attention weights of every layer and head for sources and targets [B].

        "encoder" [B, layers, H, M, M], "memory" [B, layers, H, L, M] and "decoder" [B, layers, H, L, L] are float32.
        "input_pieces" [B, M] and "target_pieces" [B, L] are the tokens as text, with U+2581 for a space and "" for
        padding. Row l of "decoder" is the position that predicts token l. Its keys are the previous tokens: key 0 is
        the start, key l is token l - 1.
        """
        sources, references = self._pairs(inputs, targets)
        source_BM, target_BL = sources.to_tensor(default_value=PAD), references.to_tensor(default_value=PAD)
        pairs = tf.cast(tf.shape(source_BM)[0], tf.int64)
        longest = tf.cast(tf.maximum(tf.shape(source_BM)[1], tf.shape(target_BL)[1]), tf.int64)
        longest_side = int(MOST_WEIGHTS**0.5)
        message = f"attention takes one pair of at most {longest_side} tokens per side, or more pairs of fewer: got"
        fits = pairs * longest * longest <= MOST_WEIGHTS
        check = must(fits, True, f"{message} pairs and tokens", tf.stack([pairs, longest]))
        source_BM, target_BL = after([check], source_BM), after([check], target_BL)
        weights = self._translator.model.attention(source_BM, target_BL)._asdict()
        found = {name: tf.stack(of_layers, axis=1) for name, of_layers in weights.items()}
        pieces = {"input_pieces": source_BM, "target_pieces": target_BL}
        return found | {
            name: tf.where(ids == PAD, "", self.tokenizer.id_to_string(ids)) for name, ids in pieces.items()
        }

    def _pairs(self, inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the tokens of both sides, and checks that there are equally many texts and none is too long."""
        number = tf.size(targets)
        checks = [must(tf.size(inputs) == number, True, "there must be as many targets as inputs, got", number)]
        limit = self._translator.hparams.max_positions
        sides = self._vocabulary.encode_tensor(inputs), self._vocabulary.encode_tensor(targets)
        for side in sides:
            longest = side.bounding_shape(1)
            message = f"a text has too many tokens; at most {limit} are scored, got"
            checks.append(must(longest <= limit, True, message, longest))
        sources, references = (after(checks, side) for side in sides)
        return sources, references


def _named(
    empty: tf.Tensor,
    texts: tf.Tensor,
    scores: tf.Tensor,
    alignments: tf.Tensor | None = None,
    confidences: tf.Tensor | None = None,
    word_confidences: tf.Tensor | None = None,
    num_tokens: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Returns the outputs of `_n_best` [B, N] by name, with what rows of empty strings [B, 1] and missing
    translations have."""
    is_first = tf.range(tf.shape(scores)[1]) == 0
    missing = tf.where(empty, ~is_first, scores <= NEG_INF / 1e6)  # an empty text has one translation
    result = {
        "outputs": tf.where(empty | missing, "", texts),
        "scores": tf.where(missing, -float("inf"), tf.where(empty, 0.0, scores)),
    }
    if alignments is not None:
        result["alignments"] = tf.where(empty | missing, "", alignments)
        result["word_confidences"] = tf.where(empty | missing, "", word_confidences)
        result["num_tokens"] = tf.where(empty | missing, 0, num_tokens)
        result["confidences"] = tf.where(missing, 0.0, tf.where(empty, 1.0, confidences))
    return result
