"""Beam search that writes given words, in their order, and between them brackets that match.

A linearized tree holds the words of its sentence (`linearization`), and a parser has nothing to choose there: it
chooses where brackets stand.

Shapes: B sentences, G ids of given words, W beam width, T steps done, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.inference.decoding_loop import NEG_INF, Beams, Sentences
from t2t_repro.inference.top_k import top_k
from t2t_repro.parsing.linearization import CLOSE, OPEN, UNTOLD, split_words, symbol_of
from t2t_repro.token_ids import END, PAD

# What begins with a piece, if anything does. _FIRST_OPENING: an opening as the first piece, inside a word as any other.
_INSIDE, _WORD, _OPENING, _FIRST_OPENING, _CLOSING = range(5)
_SPACE = "\u2581"  # what sentencepiece writes for it


class ParseConstraint:
    """What may follow, for a vocabulary: a `Constraint`. How far each beam has come is in its `Beams`."""

    def __init__(self, subwords: Sequence[str]):
        """`subwords`: the spelling of each id. A bracket has a space before it, except at the beginning of the text."""
        starts = {_SPACE + OPEN: _OPENING, OPEN: _FIRST_OPENING, _SPACE + CLOSE: _CLOSING, _SPACE: _WORD}
        numbers = {subword: number for number, subword in enumerate(subwords)}

        def kind(subword: str) -> int:
            return next((kind for start, kind in starts.items() if subword.startswith(start)), _INSIDE)

        self._kinds = np.array([kind(subword) for subword in subwords], np.int32)
        self._kinds[[PAD, END]] = _WORD  # never inside of a bracket
        closings = [numbers.get(_SPACE + CLOSE + subword.removeprefix(_SPACE)[1:], -1) for subword in subwords]
        self._closings = np.array(closings, np.int32)  # of the closing subword; -1: any may close

    def given(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Tokenized sentences with one space between tokens, and their words, spelled as after a bracket: with a space
        before each. A word that would be read as a bracket is XX."""
        sentences = [split_words(text) for text in texts]
        spelled = ["".join(f" {symbol_of(word)}" for word in words) for words in sentences]
        return [" ".join(words) for words in sentences], spelled

    def given_tensor(self, texts_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bracketless_B = tf.strings.regex_replace(tf.strings.regex_replace(texts_B, r"\(", "-LRB-"), r"\)", "-RRB-")
        words = tf.strings.split(bracketless_B)
        begins_with_mark = tf.strings.regex_full_match(words.flat_values, f"[{OPEN}{CLOSE}](?s:.*)")
        symbols = tf.where(begins_with_mark, UNTOLD, words.flat_values)
        spelled = words.with_flat_values(tf.strings.join([" ", symbols]))
        return tf.strings.reduce_join(words, axis=1, separator=" "), tf.strings.reduce_join(spelled, axis=1)

    def candidates(
        self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The k likeliest pieces of brackets that may follow, and the next piece of the words, or END after the last
        closing: log-probabilities and ids, [B, W, C]. What may not follow has the log-probability `NEG_INF`.

        Probabilities are the model's, and a word's is that of any word, for which one is given. They are not shared
        out among what may follow: a mistake after which nothing else may follow would cost nothing. With room for
        brackets, and pieces to open one, the root is opened first. A constituent holds a word, only the innermost one
        is closed, the root after the last word, and nothing is opened that there would be no room to close. A label of
        several pieces is closed by its first, which `linearization.rebuild` repairs.
        """
        kinds_V = tf.constant(self._kinds)
        width, vocab_size = tf.shape(logits_BWV)[1], logits_BWV.shape[2]
        left_BW = tf.math.count_nonzero(sentences.given, axis=1, keepdims=True, dtype=tf.int32) - beams.written
        next_BW = tf.gather(sentences.given, tf.minimum(beams.written, tf.shape(sentences.given)[1] - 1), batch_dims=1)
        depth_BW, innermost_BW, is_empty_BW = self._innermost(beams.ids)
        between_BW = (left_BW <= 0) | (tf.gather(kinds_V, next_BW) == _WORD)
        places_BW = sentences.longest[:, None] - step - 1  # after this one
        opens_BW = between_BW & (left_BW > 0) & ((step == 0) | (depth_BW > 0)) & (places_BW > left_BW + depth_BW + 1)
        closes_BW = between_BW & (depth_BW > 0) & ~is_empty_BW & ((depth_BW > 1) | (left_BW <= 0))
        ends_BW = (left_BW <= 0) & (~closes_BW | (places_BW <= 0))

        opening_V = kinds_V == tf.where(step == 0, _FIRST_OPENING, _OPENING)
        closing_BW = tf.gather(self._closings, tf.maximum(innermost_BW, 0))[:, :, None]
        closing_BWV = tf.where(closing_BW < 0, kinds_V == _CLOSING, tf.range(vocab_size) == closing_BW)
        goes_on_BW = between_BW & beams.in_opening & (places_BW > left_BW + depth_BW)
        goes_on_BWV = goes_on_BW[:, :, None] & (kinds_V == _INSIDE)
        free_BWV = (opens_BW[:, :, None] & opening_V) | (closes_BW[:, :, None] & closing_BWV) | goes_on_BWV
        is_word_BWV = (kinds_V == _WORD) | ((kinds_V == _INSIDE) & ~goes_on_BWV)
        is_word_BWV |= (kinds_V == _FIRST_OPENING) & (step > 0)
        writes_BW = (left_BW > 0) & ((step > 0) | ~opens_BW | ~tf.reduce_any(opening_V))
        is_word_BWV &= (writes_BW | ends_BW)[:, :, None]

        words_BW1 = tf.reduce_logsumexp(tf.where(is_word_BWV, logits_BWV, NEG_INF), axis=2, keepdims=True)
        all_BW1 = tf.reduce_logsumexp(logits_BWV, axis=2, keepdims=True)
        values, ids = top_k(tf.reshape(tf.where(free_BWV, logits_BWV, NEG_INF), [-1, vocab_size]), k)
        values, ids = (tf.reshape(x, [-1, width, tf.shape(x)[1]]) for x in (values, ids))
        values = tf.concat([values, words_BW1], axis=2)
        ids = tf.concat([ids, tf.where(next_BW == PAD, END, next_BW)[:, :, None]], axis=2)
        return values - all_BW1, ids

    def advanced(self, beams: Beams, parents_BW: tf.Tensor) -> Beams:
        """`beams`, whose tokens are new, with how far they have come, `parents_BW` being the slots they came from."""
        written, in_opening = (tf.gather(x, parents_BW, batch_dims=1) for x in (beams.written, beams.in_opening))
        kinds_BW = tf.gather(self._kinds, beams.tokens)
        is_opening_BW = _is_opening(kinds_BW, tf.shape(beams.ids)[2] == 1)
        in_opening = is_opening_BW | (in_opening & (kinds_BW == _INSIDE))
        is_word_BW = ~in_opening & (kinds_BW != _CLOSING)
        return beams._replace(written=written + tf.cast(is_word_BW, tf.int32), in_opening=in_opening)

    def _innermost(self, ids_BWT: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """[B, W]: how many constituents are open, the piece that the innermost began with, and whether it is empty."""
        kinds_BWT = tf.gather(self._kinds, tf.pad(ids_BWT, [[0, 0], [0, 0], [1, 0]]))
        places_T = tf.range(tf.shape(kinds_BWT)[2])
        is_opening_BWT = _is_opening(kinds_BWT, places_T == 1)  # behind the padding
        depths_BWT = tf.cumsum(tf.cast(is_opening_BWT, tf.int32) - tf.cast(kinds_BWT == _CLOSING, tf.int32), axis=2)
        depth_BW = depths_BWT[:, :, -1]
        at_BW = tf.reduce_max(tf.where(is_opening_BWT & (depths_BWT == depth_BW[:, :, None]), places_T, 0), axis=2)
        newest_BW = tf.reduce_max(tf.where(kinds_BWT != _INSIDE, places_T, 0), axis=2)
        innermost_BW = tf.gather(tf.pad(ids_BWT, [[0, 0], [0, 0], [1, 0]]), at_BW, batch_dims=2)
        return depth_BW, innermost_BW, (at_BW == newest_BW) & (depth_BW > 0)


def _is_opening(kinds: tf.Tensor, is_first: tf.Tensor) -> tf.Tensor:
    """Returns whether subwords open a constituent; `is_first`: whether they are the first of their text."""
    return (kinds == _OPENING) | ((kinds == _FIRST_OPENING) & is_first)
