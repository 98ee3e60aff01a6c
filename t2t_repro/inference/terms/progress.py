"""The required terms of a batch as subwords, and which of them each beam has met.

A form is met where its subwords follow one another as a whole word. All partial matches of a beam are kept, as in the
shift-and algorithm (Baeza-Yates and Gonnet, 1992), so overlaps are found. Of several forms the longest counts, and each
place counts for one term. Another segmentation of a form is not found.

Shapes: B sentences, W beam width, G required terms, K subword sequences of their forms, S subwords of the longest one,
N forms of a batch, X spellings of a form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.text.glossary import WITHOUT_SPACES, is_word_character
from t2t_repro.text.token_ids import NUM_FIXED, PAD

NO_LENGTH = 1 << 20  # above every number of tokens
_CLOSING = ".,;:!?)"  # signs that some vocabularies join with the end of a word


class Terms(NamedTuple):
    """The required terms of a batch as subwords."""

    ids_BKS: tf.Tensor  # int32: the sequences of each form, at the start of the text and after a space; 0 for padding
    term_BK: tf.Tensor  # int32: the term of each sequence
    first_BK: tf.Tensor  # boolean: the sequence may be offered as the first token of the text
    later_BK: tf.Tensor  # boolean: it may be offered elsewhere
    shortest_BG: tf.Tensor  # int32: number of tokens that meet each term anywhere; 0 for padding


class Progress(NamedTuple):
    """The state of each beam. An occurrence counts as met when the next token shows that it is a whole word."""

    matched: tf.Tensor  # [B, W, K, S] boolean: the newest s + 1 tokens start the sequence
    met: tf.Tensor  # [B, W, G] boolean
    pending: tf.Tensor  # [B, W] int32: the term whose form ended last and does not count yet; -1 for none
    length: tf.Tensor  # [B, W] int32: tokens since the start of that form
    after: tf.Tensor  # [B, W] int32: tokens since its end


class TermVocabulary:
    """Splits terms into subwords, and finds the words that a token continues, for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        subwords = vocabulary.subwords
        starts = np.array([is_word_character(each[0]) for each in subwords])
        ends = np.array([is_word_character(each[-1]) for each in subwords])
        fixed = np.array([byte >= 128 or is_word_character(chr(byte)) for byte in range(256)])
        starts[NUM_FIXED - 256 : NUM_FIXED] = ends[NUM_FIXED - 256 : NUM_FIXED] = fixed
        starts[: NUM_FIXED - 256] = ends[: NUM_FIXED - 256] = False
        self._starts_word, self._ends_word, self._vocabulary = starts, ends, vocabulary

    def joined(self, previous: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Returns true where a token continues the word of the previous one."""
        return tf.gather(self._ends_word, previous) & tf.gather(self._starts_word, tokens)

    def terms(self, spelled_B: tf.Tensor) -> Terms:
        """Returns the terms of each sentence. A string has a line for each term, with its forms separated by tabs."""
        batch = tf.size(spelled_B)
        lines = _nonempty(tf.strings.split(spelled_B, "\n"))
        forms = _nonempty(tf.strings.split(lines.flat_values, "\t"))
        sentence_N = tf.gather(tf.cast(lines.value_rowids(), tf.int32), forms.value_rowids())
        within_lines = tf.range(tf.size(lines.flat_values)) - tf.gather(
            tf.cast(lines.row_starts(), tf.int32), lines.value_rowids()
        )
        term_N, form_N = tf.gather(within_lines, forms.value_rowids()), forms.flat_values

        first_N = tf.strings.substr(form_N, 0, 1, unit="UTF8_CHAR")
        rest_N = tf.strings.regex_replace(form_N, "^(?s:.)", "")
        capital_N = tf.strings.join([tf.strings.upper(first_N, encoding="utf-8"), rest_N])
        yes_N, differs_N = tf.ones_like(form_N, tf.bool), capital_N != form_N
        no_N = ~yes_N
        after_space_N, capital_after_space_N = (tf.strings.join([" ", each]) for each in (form_N, capital_N))
        # a spelling, whether it is used, and whether it may be offered as the first tokens
        variants = [(form_N, yes_N, yes_N), (after_space_N, yes_N, no_N)]
        variants += [(capital_N, differs_N, differs_N), (capital_after_space_N, differs_N, no_N)]
        own = len(variants)
        variants += [
            (tf.strings.join([spelling, sign]), used_N, no_N) for spelling, used_N, _ in variants for sign in _CLOSING
        ]
        spelling_NX, used_NX, at_start_NX = (tf.stack(each, axis=1) for each in zip(*variants, strict=True))
        ids = self._vocabulary.encode_tensor(tf.reshape(spelling_NX, [-1]))[:, :-1]
        first_NX, last_NX = (
            tf.reshape(each.to_tensor(default_value=PAD, shape=[None, 1]), tf.shape(spelling_NX))
            for each in (ids[:, :1], ids[:, -1:])
        )
        # a form with a sign after it is a sequence of its own only if both share a subword
        signs_Y = self._vocabulary.encode_tensor(tf.constant(list(_CLOSING))).to_tensor()[:, 0]
        is_shared_NX = tf.reduce_all(last_NX[:, :, None] != signs_Y, axis=2)
        used_X = tf.reshape(used_NX & ((tf.range(len(variants)) < own) | is_shared_NX), [-1])
        # elsewhere, forms follow a space, except in scripts without spaces
        spaceless_N = tf.strings.regex_full_match(form_N, f"[{WITHOUT_SPACES}](?s:.*)")
        spaceless_N &= ~tf.gather(self._starts_word, first_NX[:, 0])
        later_NX = tf.stack([spaceless_N, ~spaceless_N, *[no_N] * (len(variants) - 2)], axis=1)

        copies = len(variants)
        ids = tf.ragged.boolean_mask(ids, used_X)
        sentence_X, term_X, at_start_X, later_X = (
            tf.boolean_mask(each, used_X)
            for each in (
                tf.repeat(sentence_N, copies),
                tf.repeat(term_N, copies),
                tf.reshape(at_start_NX, [-1]),
                tf.reshape(later_NX, [-1]),
            )
        )

        def by_sentence(values: Any) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_value_rowids(values, sentence_X, nrows=tf.cast(batch, sentence_X.dtype))
            return ragged.to_tensor()

        ids_XS = tf.pad(ids.to_tensor(default_value=PAD), [[0, 0], [0, 1]], constant_values=PAD)
        numbers = tf.cast(lines.row_lengths(), tf.int32)
        most = tf.reduce_max(tf.concat([[0], numbers], axis=0)) + 1
        length_X = tf.cast(ids.row_lengths(), tf.int32)
        long_X = tf.where(later_X, length_X, NO_LENGTH)
        shortest = tf.math.unsorted_segment_min(long_X, sentence_X * most + term_X, batch * most)
        shortest_BG = tf.reshape(tf.where(shortest >= NO_LENGTH, 0, shortest), [batch, most])
        return Terms(
            ids_BKS=tf.pad(by_sentence(ids_XS), [[0, 0], [0, 1], [0, 0]]),
            term_BK=tf.pad(by_sentence(term_X), [[0, 0], [0, 1]]),
            first_BK=tf.pad(by_sentence(at_start_X), [[0, 0], [0, 1]]),
            later_BK=tf.pad(by_sentence(later_X), [[0, 0], [0, 1]]),
            shortest_BG=shortest_BG,
        )


def advanced(
    vocabulary: TermVocabulary, terms: Terms, state: Progress, before: tf.Tensor, newest: tf.Tensor
) -> Progress:
    """Returns the state of each beam after its newest token, which follows the token `before`: both [B, W]."""
    joined_BW = vocabulary.joined(before, newest)
    size_S = tf.range(1, tf.shape(terms.ids_BKS)[2] + 1)
    length_BK = tf.math.count_nonzero(terms.ids_BKS, axis=2, dtype=tf.int32)

    starts = tf.broadcast_to(~joined_BW[:, :, None, None], tf.shape(state.matched[..., :1]))
    shifted = tf.concat([starts, state.matched[..., :-1]], axis=3)
    matched = shifted & (terms.ids_BKS[:, None] == newest[:, :, None, None])
    matched &= is_open(terms, state.met)[..., None]
    longest_BW = _longest(matched, size_S)

    # a form that has ended counts unless its word continues; it waits while a longer form may still contain it
    has_ended = state.pending >= 0
    stays = has_ended & ~((state.after == 0) & joined_BW)
    waits = stays & (longest_BW > state.length)
    counts = stays & ~waits
    met = state.met | (
        tf.one_hot(state.pending, tf.shape(state.met)[2], on_value=True, off_value=False) & counts[..., None]
    )
    matched &= is_open(terms, met)[..., None]

    # the longest form that ends here, unless a longer one may contain it
    ends_here = tf.reduce_any(matched & (size_S == length_BK[:, None, :, None]), axis=3)
    ended_BWK = tf.where(ends_here, length_BK[:, None], 0)
    ended_BW = tf.reduce_max(ended_BWK, axis=2)
    is_new = (ended_BW > 0) & (ended_BW == _longest(matched, size_S))
    new = tf.gather(terms.term_BK, tf.argmax(ended_BWK, axis=2, output_type=tf.int32), axis=1, batch_dims=1)
    return Progress(
        matched=matched & ~(is_new[:, :, None, None] & (size_S < ended_BW[:, :, None, None])),  # no overlap
        met=met,
        pending=tf.where(is_new, new, tf.where(waits, state.pending, -1)),
        length=tf.where(is_new, ended_BW, state.length + 1),
        after=tf.where(is_new, 0, state.after + 1),
    )


def is_open(terms: Terms, met_BWG: tf.Tensor) -> tf.Tensor:
    """Returns [B, W, K]: true for sequences of terms that are not met."""
    is_met_BWK = tf.gather(met_BWG, terms.term_BK, axis=2, batch_dims=1)
    return ~is_met_BWK & (terms.ids_BKS[:, None, :, 0] != PAD)


def _longest(matched: tf.Tensor, size_S: tf.Tensor) -> tf.Tensor:
    """Returns [B, W]: the number of tokens of the longest match."""
    return tf.reduce_max(tf.where(matched, size_S, 0), axis=[2, 3])


def _nonempty(strings: tf.RaggedTensor) -> tf.RaggedTensor:
    return tf.ragged.boolean_mask(strings, strings != "")
