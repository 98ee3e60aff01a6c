"""The required terms of a batch as subwords, and which of them each beam has met.

A form is met where its subwords follow one another as a whole word. All partial matches of a beam are kept, as in the
shift-and algorithm (Baeza-Yates and Gonnet, 1992), so overlaps are found. Of several forms the longest counts, and each
place counts for one term. Another segmentation of a form is not found.

Shapes: B sentences, W beam width, G required terms, K subword sequences of their forms, S subwords of the longest one,
N forms of a batch, X spellings of a form, U spellings of a batch that are used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.text.glossary import WITHOUT_SPACES, is_word_character
from t2t_repro.text.token_ids import NUM_FIXED, PAD

NO_LENGTH = 1 << 20  # above every number of tokens
_CLOSING = ".,;:!?)"  # signs that some vocabularies join with the end of a word
_WITHOUT_SIGN = 4  # of the spellings of a form


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
        lines = _nonempty(tf.strings.split(spelled_B, "\n"))
        forms = _nonempty(tf.strings.split(lines.flat_values, "\t"))
        line_N, sentence_G = forms.value_rowids(), tf.cast(lines.value_rowids(), tf.int32)
        place_G = tf.range(tf.size(sentence_G)) - tf.gather(tf.cast(lines.row_starts(), tf.int32), sentence_G)

        spelling_NX, used_NX, at_start_NX = _spellings(forms.flat_values)
        ids = self._vocabulary.encode_tensor(tf.reshape(spelling_NX, [-1]))[:, :-1]
        used_NX &= self._is_separate(ids, tf.shape(spelling_NX))
        later_NX = self._is_offered_later(forms.flat_values, ids, tf.shape(spelling_NX))

        def of_used(values_NX: tf.Tensor) -> tf.Tensor:
            return tf.boolean_mask(tf.broadcast_to(values_NX, tf.shape(used_NX)), used_NX)

        terms_B, batch = tf.cast(lines.row_lengths(), tf.int32), tf.size(spelled_B)
        return _packed(
            tf.ragged.boolean_mask(ids, tf.reshape(used_NX, [-1])),
            of_used(tf.gather(sentence_G, line_N)[:, None]),
            of_used(tf.gather(place_G, line_N)[:, None]),
            of_used(at_start_NX),
            of_used(later_NX),
            sizes=(batch, tf.reduce_max(tf.concat([[0], terms_B], axis=0)) + 1),
        )

    def _is_separate(self, ids: tf.RaggedTensor, shape_NX: tf.Tensor) -> tf.Tensor:
        """Returns [N, X]: whether a spelling is a sequence of its own. With a sign after it, it is one only if both
        share a subword."""
        signs_Y = self._vocabulary.encode_tensor(tf.constant(list(_CLOSING))).to_tensor()[:, 0]
        last_NX = tf.reshape(_column(ids[:, -1:]), shape_NX)
        return (tf.range(shape_NX[1]) < _WITHOUT_SIGN) | tf.reduce_all(last_NX[:, :, None] != signs_Y, axis=2)

    def _is_offered_later(self, form_N: tf.Tensor, ids: tf.RaggedTensor, shape_NX: tf.Tensor) -> tf.Tensor:
        """Returns [N, X]: whether a spelling may be offered elsewhere than as the first tokens. There, forms follow a
        space, except in scripts without spaces."""
        first_NX = tf.reshape(_column(ids[:, :1]), shape_NX)
        spaceless_N = tf.strings.regex_full_match(form_N, f"[{WITHOUT_SPACES}](?s:.*)")
        spaceless_N &= ~tf.gather(self._starts_word, first_NX[:, 0])
        return tf.pad(tf.stack([spaceless_N, ~spaceless_N], axis=1), [[0, 0], [0, shape_NX[1] - 2]])


def _spellings(form_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the spellings of each form, whether each is used, and whether it may be offered as the first tokens.

    All are [N, X]. The first two are the form itself and after a space; `_WITHOUT_SIGN` have no sign at their end.
    """
    first_N = tf.strings.substr(form_N, 0, 1, unit="UTF8_CHAR")
    rest_N = tf.strings.regex_replace(form_N, "^(?s:.)", "")
    capital_N = tf.strings.join([tf.strings.upper(first_N, encoding="utf-8"), rest_N])
    yes_N, differs_N = tf.ones_like(form_N, tf.bool), capital_N != form_N
    no_N = ~yes_N
    spellings = [(form_N, yes_N, yes_N), (tf.strings.join([" ", form_N]), yes_N, no_N)]
    spellings += [(capital_N, differs_N, differs_N), (tf.strings.join([" ", capital_N]), differs_N, no_N)]
    spellings += [(tf.strings.join([text, sign]), used_N, no_N) for text, used_N, _ in spellings for sign in _CLOSING]
    text_NX, used_NX, at_start_NX = (tf.stack(each, axis=1) for each in zip(*spellings, strict=True))
    return text_NX, used_NX, at_start_NX


def _packed(
    ids: tf.RaggedTensor,
    sentence_U: tf.Tensor,
    term_U: tf.Tensor,
    first_U: tf.Tensor,
    later_U: tf.Tensor,
    sizes: tuple[tf.Tensor, tf.Tensor],
) -> Terms:
    """Returns the subword sequences by sentence; `sizes` are B and G. `Terms` describes the others."""
    batch, most = sizes

    def by_sentence(values: tf.Tensor) -> tf.Tensor:
        dense = tf.RaggedTensor.from_value_rowids(values, sentence_U, nrows=batch).to_tensor()
        return tf.pad(dense, [[0, 0], [0, 1], [0, 0]][: values.shape.rank + 1])

    length_U = tf.cast(ids.row_lengths(), tf.int32)
    long_U = tf.where(later_U, length_U, NO_LENGTH)
    shortest = tf.math.unsorted_segment_min(long_U, sentence_U * most + term_U, batch * most)
    return Terms(
        ids_BKS=by_sentence(tf.pad(ids.to_tensor(default_value=PAD), [[0, 0], [0, 1]], constant_values=PAD)),
        term_BK=by_sentence(term_U),
        first_BK=by_sentence(first_U),
        later_BK=by_sentence(later_U),
        shortest_BG=tf.reshape(tf.where(shortest >= NO_LENGTH, 0, shortest), [batch, most]),
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


def _column(ids: tf.RaggedTensor) -> tf.Tensor:
    """Returns rows of at most one token as [rows, 1], with padding for none."""
    return ids.to_tensor(default_value=PAD, shape=[None, 1])
