"""Constrained decoding for parsing: the output contains the words of the sentence, in order, and balanced brackets.

A linearized tree contains the words of its sentence (`linearization`), so that a parser chooses only the brackets.

Shapes: B sentences, G ids of required words, W beam width, T steps done, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.inference.search.decoding_loop import NEG_INF, Beams, Sentences
from t2t_repro.inference.search.top_k import top_k
from t2t_repro.parsing.linearization import CLOSE, IN_ORDER, OPEN, TOP_DOWN, UNKNOWN_TAG, symbol_of, tree_words
from t2t_repro.text.token_ids import EOS, PAD

# The type of a token. _FIRST_OPENING opens a bracket as the first token, and continues a word elsewhere.
_INSIDE, _WORD, _OPENING, _FIRST_OPENING, _CLOSING = range(5)
_SPACE = "\u2581"  # sentencepiece's symbol for a space


class ParseConstraint:
    """The `Constraint` of parsing, for one vocabulary. The state of each beam is in its `Beams`."""

    def __init__(self, subwords: Sequence[str], linearization: str = TOP_DOWN):
        """Classifies `subwords`, the spelling of each id. A bracket has a space before it except at the start of the
        text."""
        self._in_order = linearization == IN_ORDER
        starts = {_SPACE + OPEN: _OPENING, OPEN: _FIRST_OPENING, _SPACE + CLOSE: _CLOSING, _SPACE: _WORD}
        numbers = {subword: number for number, subword in enumerate(subwords)}

        def kind(subword: str) -> int:
            return next((kind for start, kind in starts.items() if subword.startswith(start)), _INSIDE)

        self._kinds = np.array([kind(subword) for subword in subwords], np.int32)
        self._kinds[[PAD, EOS]] = _WORD  # never part of a bracket
        closings = [numbers.get(_SPACE + CLOSE + subword.removeprefix(_SPACE)[1:], -1) for subword in subwords]
        self._closings = np.array(closings, np.int32)  # ids of the closing subwords; -1: any closing subword is allowed

    def required_words(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns tokenized sentences with single spaces, and their words as spelled in the output: with a space before
        each, but in order not before the first, which starts the output.

        A word that would be read as a bracket is XX.
        """
        sentences = [tree_words(text) for text in texts]
        spelled = ["".join(f" {symbol_of(word)}" for word in words) for words in sentences]
        if self._in_order:
            spelled = [text.removeprefix(" ") for text in spelled]
        return [" ".join(words) for words in sentences], spelled

    def required_words_tensor(self, texts_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bracketless_B = tf.strings.regex_replace(tf.strings.regex_replace(texts_B, r"\(", "-LRB-"), r"\)", "-RRB-")
        words = tf.strings.split(bracketless_B)
        begins_with_mark = tf.strings.regex_full_match(words.flat_values, f"[{OPEN}{CLOSE}](?s:.*)")
        symbols = tf.where(begins_with_mark, UNKNOWN_TAG, words.flat_values)
        spelled_B = tf.strings.reduce_join(words.with_flat_values(tf.strings.join([" ", symbols])), axis=1)
        if self._in_order:
            spelled_B = tf.strings.regex_replace(spelled_B, "^ ", "")
        return tf.strings.reduce_join(words, axis=1, separator=" "), spelled_B

    def candidates(
        self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the k most likely allowed bracket tokens and the next token of the words, or EOS after the root.

        The result is log-probabilities and ids, [B, W, C]. Forbidden tokens have the log-probability `NEG_INF`.

        Probabilities are those of the model, and the probability of a word token is that of all word tokens, one of
        which is required. They are not renormalized over the allowed tokens: otherwise a mistake after which only one
        token is allowed would cost nothing.

        Top down, if the length and the vocabulary permit, the root is opened first. A constituent contains a word. Only
        the innermost one is closed, and the root after the last word.

        In order, a constituent is opened after a word or a closing bracket. Words follow only inside one, if the length
        and the vocabulary permit. A closed one with words left is opened around. A single word may be a tree.

        Nothing is opened without room to close it. A label of several tokens is closed by its first one, which
        `linearization.rebuild` repairs.
        """
        kinds_V = tf.constant(self._kinds)
        width, vocab_size = tf.shape(logits_BWV)[1], logits_BWV.shape[2]
        left_BW = tf.math.count_nonzero(sentences.required, axis=1, keepdims=True, dtype=tf.int32) - beams.written
        next_BW = tf.gather(
            sentences.required, tf.minimum(beams.written, tf.shape(sentences.required)[1] - 1), batch_dims=1
        )
        depth_BW, innermost_BW, is_new_BW = self._innermost(beams.ids)
        between_BW = (left_BW <= 0) | (tf.gather(kinds_V, next_BW) == _WORD)
        places_BW = sentences.longest[:, None] - step - 1  # after this token
        opens_BW = between_BW & (places_BW > left_BW + depth_BW + 1)
        closes_BW = between_BW & (depth_BW > 0)
        if self._in_order:
            opens_BW &= (step > 0) & ~is_new_BW
            closes_BW &= (depth_BW > 1) | (left_BW <= 0) | (places_BW > left_BW + 2)
            opening_V = kinds_V == _OPENING
            must_open_BW = opens_BW & (depth_BW == 0)
        else:
            opens_BW &= (left_BW > 0) & ((step == 0) | (depth_BW > 0))
            closes_BW &= ~is_new_BW & ((depth_BW > 1) | (left_BW <= 0))
            opening_V = kinds_V == tf.where(step == 0, _FIRST_OPENING, _OPENING)
            must_open_BW = opens_BW & (step == 0)
        must_open_BW &= (left_BW > 0) & tf.reduce_any(opening_V)
        ends_BW = (left_BW <= 0) & (~closes_BW | (places_BW <= 0))

        closing_BW = tf.gather(self._closings, tf.maximum(innermost_BW, 0))[:, :, None]
        closing_BWV = tf.where(closing_BW < 0, kinds_V == _CLOSING, tf.range(vocab_size) == closing_BW)
        goes_on_BW = between_BW & beams.in_opening & (places_BW > left_BW + depth_BW)
        goes_on_BWV = goes_on_BW[:, :, None] & (kinds_V == _INSIDE)
        free_BWV = (opens_BW[:, :, None] & opening_V) | (closes_BW[:, :, None] & closing_BWV) | goes_on_BWV
        is_word_BWV = (kinds_V == _WORD) | ((kinds_V == _INSIDE) & ~goes_on_BWV)
        is_word_BWV |= (kinds_V == _FIRST_OPENING) & (self._in_order | (step > 0))
        writes_BW = (left_BW > 0) & ~must_open_BW
        is_word_BWV &= (writes_BW | ends_BW)[:, :, None]

        words_BW1 = tf.reduce_logsumexp(tf.where(is_word_BWV, logits_BWV, NEG_INF), axis=2, keepdims=True)
        all_BW1 = tf.reduce_logsumexp(logits_BWV, axis=2, keepdims=True)
        values, ids = top_k(tf.reshape(tf.where(free_BWV, logits_BWV, NEG_INF), [-1, vocab_size]), k)
        values, ids = (tf.reshape(x, [-1, width, tf.shape(x)[1]]) for x in (values, ids))
        values = tf.concat([values, words_BW1], axis=2)
        ids = tf.concat([ids, tf.where(next_BW == PAD, EOS, next_BW)[:, :, None]], axis=2)
        return values - all_BW1, ids

    def advanced(self, beams: Beams, parents_BW: tf.Tensor) -> Beams:
        """Returns `beams` with the constraint's state after the newest tokens. `parents_BW` are the slots the beams
        came from."""
        written, in_opening = (tf.gather(x, parents_BW, batch_dims=1) for x in (beams.written, beams.in_opening))
        kinds_BW = tf.gather(self._kinds, beams.tokens)
        is_opening_BW = self._is_opening(kinds_BW, tf.shape(beams.ids)[2] == 1)
        in_opening = is_opening_BW | (in_opening & (kinds_BW == _INSIDE))
        is_word_BW = ~in_opening & (kinds_BW != _CLOSING)
        return beams._replace(written=written + tf.cast(is_word_BW, tf.int32), in_opening=in_opening)

    def _innermost(self, ids_BWT: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns [B, W]: the number of open constituents, the first token of the innermost one, and true if nothing
        follows that."""
        kinds_BWT = tf.gather(self._kinds, tf.pad(ids_BWT, [[0, 0], [0, 0], [1, 0]]))
        places_T = tf.range(tf.shape(kinds_BWT)[2])
        is_opening_BWT = self._is_opening(kinds_BWT, places_T == 1)  # after the padding
        depths_BWT = tf.cumsum(tf.cast(is_opening_BWT, tf.int32) - tf.cast(kinds_BWT == _CLOSING, tf.int32), axis=2)
        depth_BW = depths_BWT[:, :, -1]
        at_BW = tf.reduce_max(tf.where(is_opening_BWT & (depths_BWT == depth_BW[:, :, None]), places_T, 0), axis=2)
        newest_BW = tf.reduce_max(tf.where(kinds_BWT != _INSIDE, places_T, 0), axis=2)
        innermost_BW = tf.gather(tf.pad(ids_BWT, [[0, 0], [0, 0], [1, 0]]), at_BW, batch_dims=2)
        return depth_BW, innermost_BW, (at_BW == newest_BW) & (depth_BW > 0)

    def _is_opening(self, kinds: tf.Tensor, is_first: tf.Tensor) -> tf.Tensor:
        """Returns true for tokens that open a constituent. `is_first` is true for the first token of a text, which in
        order is part of a word."""
        return (kinds == _OPENING) | ((kinds == _FIRST_OPENING) & is_first & (not self._in_order))
