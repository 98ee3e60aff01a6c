"""From subwords to words: the words that a translation's subwords belong to, and the links between words.

A word is what ASCII white space separates, as in Moses and fast_align. A target subword is linked to the source subword
that the head attends to most, and two words are linked if any of their subwords are (Zenkel et al., 2019). A subword
whose attention is highest at the end-of-sentence token has no link.

Shapes: B sentences, N translations of each, M source length, L target length, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.alignment.head import READING, AlignmentHead
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.text.token_ids import EOS, NUM_FIXED, PAD, UNKNOWN
from t2t_repro.text.words import SPACES, split_words


class Links(NamedTuple):
    """The links of each translation: those where `kept` is true, in the order of the translation."""

    sources: tf.Tensor  # [B, N, L] int32, number of the source word
    targets: tf.Tensor  # [B, N, L] int32, number of the target word of each token; -1 if it has none
    kept: tf.Tensor  # [B, N, L] boolean: true at the first of equal links


class Words:
    """The words of the subwords of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        texts = [_text(number, subword) for number, subword in enumerate(vocabulary.subwords)]
        self._runs_V = np.array([len(split_words(text)) for text in texts], np.int32)
        self._after_space_V = np.array([text[:1] in SPACES for text in texts])
        self._before_space_V = np.array([text[-1:] in SPACES for text in texts])

    def of(self, ids_BL: tf.Tensor) -> tf.Tensor:
        """Returns the number of the word of each token, from 0: [B, L] int32; -1 for a space, EOS and PAD."""
        runs_BL, after_space_BL, before_space_BL = (
            tf.gather(tf.constant(table_V), ids_BL)
            for table_V in (self._runs_V, self._after_space_V, self._before_space_V)
        )
        first_BL = tf.pad(before_space_BL, [[0, 0], [1, 0]], constant_values=True)[:, :-1]
        continues_BL = (runs_BL > 0) & ~after_space_BL & ~first_BL
        words_BL = tf.cumsum(runs_BL - tf.cast(continues_BL, tf.int32), axis=1) - 1
        return tf.where(runs_BL > 0, words_BL, -1)

    def links(self, source_BM: tf.Tensor, ids_BNL: tf.Tensor, attended_BNL: tf.Tensor, head: AlignmentHead) -> Links:
        """Returns the links of translations that each end in EOS.

        `attended_BNL` has the place of the source token that the head attends to most, at each position of the decoder.
        """
        shape = tf.shape(ids_BNL)
        if head.position == READING:
            attended_BNL = tf.pad(attended_BNL[:, :, 1:], [[0, 0], [0, 0], [0, 1]])
        targets_BNL = tf.reshape(self.of(tf.reshape(ids_BNL, [-1, shape[2]])), shape)
        sources_BNL = tf.gather(self.of(source_BM), attended_BNL, batch_dims=1)
        is_link_BNL = (targets_BNL >= 0) & (sources_BNL >= 0)
        keys_BNL = tf.cast(targets_BNL, tf.int64) * 2**32 + tf.cast(sources_BNL, tf.int64)
        earlier_LL = tf.range(shape[2])[:, None] > tf.range(shape[2])
        repeated_BNL = tf.reduce_any((keys_BNL[:, :, :, None] == keys_BNL[:, :, None]) & earlier_LL, axis=3)
        return Links(sources_BNL, targets_BNL, is_link_BNL & ~repeated_BNL)


def pharaoh(links: Links) -> tf.Tensor:
    """Returns the links of each translation in Pharaoh format: [B, N] string."""
    shape = tf.shape(links.kept)
    flat = [tf.reshape(each, [-1, shape[2]]) for each in links]
    pairs = tf.strings.join([tf.as_string(flat[0]), "-", tf.as_string(flat[1])])
    lines = tf.strings.reduce_join(tf.ragged.boolean_mask(pairs, flat[2]), axis=1, separator=" ")
    return tf.reshape(lines, shape[:2])


def probabilities(words_BNL: tf.Tensor, log_p_BNL: tf.Tensor) -> tf.Tensor:
    """Returns the probability of each word of each translation, `0.98 0.41`: [B, N] string.

    `words_BNL` are the words of the tokens, -1 for none, and `log_p_BNL` the log-probabilities of the tokens.
    """
    shape = tf.shape(words_BNL)
    rows, length = shape[0] * shape[1], shape[2]
    words_RL = tf.reshape(words_BNL, [rows, length])
    segments_RL = tf.where(words_RL < 0, -1, words_RL + length * tf.range(rows)[:, None])  # -1 is left out
    sums_RL = tf.math.unsorted_segment_sum(tf.reshape(log_p_BNL, [rows, length]), segments_RL, rows * length)
    texts_RL = tf.as_string(tf.exp(tf.minimum(tf.reshape(sums_RL, [rows, length]), 0.0)), precision=4)
    numbers_R = tf.reduce_max(words_RL, axis=1) + 1
    is_word_RL = tf.range(length) < numbers_R[:, None]
    lines_R = tf.strings.reduce_join(tf.ragged.boolean_mask(texts_RL, is_word_RL), axis=1, separator=" ")
    return tf.reshape(lines_R, shape[:2])


def _text(number: int, subword: str) -> str:
    """Returns the text of a subword. A byte that is not ASCII is part of a character."""
    if number in (PAD, EOS):
        return ""
    if number >= NUM_FIXED:
        return subword.replace("\u2581", " ")
    byte = number - UNKNOWN - 1
    return chr(byte) if 0 <= byte < 128 else "?"  # the unknown subword is one character, U+FFFD
