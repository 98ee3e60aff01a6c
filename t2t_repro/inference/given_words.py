"""Beam search that writes given words: those, in their order, each as it is spelled, and between them brackets alone.

A linearised tree holds the words of its sentence (`data.linearise`), and a parser has nothing to choose there: it
chooses where brackets stand. What is written is always a sequence of symbols over exactly the words.

Shapes: B sentences, G ids of given words, W beam width, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.data.linearise import CLOSE, OPEN
from t2t_repro.inference.search import END, NEVER, PAD, Beams, Sentences
from t2t_repro.inference.top_k import top_k

_INSIDE, _WORD, _BRACKET, _FIRST_BRACKET = range(4)  # what begins with a piece, if anything does
_SPACE = "\u2581"  # what sentencepiece writes for it


class GivenWords(NamedTuple):
    """What may follow, for a vocabulary. How far each beam has come is in its `Beams`."""

    kinds: tf.Tensor  # [V] int32

    @classmethod
    def of(cls, pieces: Sequence[str]) -> GivenWords:
        """From the spelling of each id. A bracket has a space before it, except at the beginning of the text."""

        def kind(piece: str) -> int:
            if piece.startswith((_SPACE + OPEN, _SPACE + CLOSE)):
                return _BRACKET
            if piece.startswith((OPEN, CLOSE)):
                return _FIRST_BRACKET
            return _WORD if piece.startswith(_SPACE) else _INSIDE

        kinds = np.array([kind(piece) for piece in pieces], np.int32)
        kinds[[PAD, END]] = _WORD  # never inside of a bracket
        return cls(tf.constant(kinds))

    def candidates(
        self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences, k: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The k likeliest pieces of brackets where one may stand, and the next piece of the words, or END after the
        last: log-probabilities and ids, [B, W, C]. What may not follow has the log-probability `NEVER`.

        The next piece has the probability that no bracket follows, for which word does is given: 1 within a word, where
        none may. Nor may one where it would leave no room for the words that are left, and the end.
        """
        width, vocab_size = tf.shape(logits_BWV)[1], logits_BWV.shape[2]
        number_B1 = tf.math.count_nonzero(sentences.given, axis=1, keepdims=True, dtype=tf.int32)
        next_BW = tf.gather(sentences.given, tf.minimum(beams.written, number_B1), batch_dims=1)
        next_BW = tf.where(next_BW == PAD, END, next_BW)
        has_room_BW = sentences.longest[:, None] - step - 2 >= number_B1 - beams.written
        bracket_BW = has_room_BW & (tf.gather(self.kinds, next_BW) == _WORD)
        begins_V = self.kinds == tf.where(step == 0, _FIRST_BRACKET, _BRACKET)
        goes_on_BWV = beams.in_bracket[:, :, None] & (self.kinds == _INSIDE)
        free_BWV = bracket_BW[:, :, None] & (begins_V | goes_on_BWV)

        values, ids = top_k(tf.reshape(tf.where(free_BWV, logits_BWV, NEVER), [-1, vocab_size]), k)
        values, ids = (tf.reshape(x, [-1, width, tf.shape(x)[1]]) for x in (values, ids))
        none_BW1 = tf.reduce_logsumexp(tf.where(free_BWV, NEVER, logits_BWV), axis=2, keepdims=True)
        values = tf.concat([values, none_BW1], axis=2)
        ids = tf.concat([ids, next_BW[:, :, None]], axis=2)
        return values - tf.reduce_logsumexp(logits_BWV, axis=2, keepdims=True), ids

    def advanced(self, beams: Beams, parents_BW: tf.Tensor) -> Beams:
        """`beams`, whose tokens are new, with how far they have come, `parents_BW` being the slots they came from."""
        written, in_bracket = (tf.gather(x, parents_BW, batch_dims=1) for x in (beams.written, beams.in_bracket))
        kinds_BW = tf.gather(self.kinds, beams.tokens)
        begins_BW = (kinds_BW == _BRACKET) | (kinds_BW == _FIRST_BRACKET)
        in_bracket = begins_BW | (in_bracket & (kinds_BW == _INSIDE))
        return beams._replace(written=written + tf.cast(~in_bracket, tf.int32), in_bracket=in_bracket)
