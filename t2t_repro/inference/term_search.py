"""Lexically constrained beam search: each required term appears in the translation, in one of its forms.

The search is beam search with dynamic beam allocation (Post and Vilar, 2018), computed for the whole batch as by Hu et
al. (2019): beams with equally many terms form a bank, as in the grid of Hokamp and Liu (2017), and the beams of a
sentence are shared out among its banks. Candidates of each beam are its likeliest tokens, and the tokens that start or
continue a form.

A form is met where its subwords follow one another as a whole word. All partial matches of a beam are kept, as in the
shift-and algorithm (Baeza-Yates and Gonnet, 1992), so overlaps are found. Of several forms the longest counts, and each
place counts for one term. The end-of-sentence token is allowed when all terms are met. When the tokens up to the
maximum length are just enough for the open terms, only tokens that start or continue them are allowed.

Shapes: B sentences, W beam width, G required terms, K subword sequences of their forms, S subwords of the longest one,
C candidates, O offered tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.beam_search import can_be, length_penalty
from t2t_repro.inference.decoding_loop import (
    NEG_INF,
    Beams,
    Hypotheses,
    Sentences,
    candidates,
    first_beams,
    search,
    sentences_of,
)
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.text.glossary import WITHOUT_SPACES, is_word_character
from t2t_repro.text.token_ids import EOS, NUM_FIXED, PAD

MOST_BANKS = 8  # for more terms, several numbers of met terms share a bank
AHEAD = 5  # tokens after its terms, in which a beam is expected to end
_CLOSING = ".,;:!?)"  # signs that some vocabularies join with the end of a word
_SPACE = "\u2581"  # sentencepiece's symbol for a space
_NONE = 1 << 20  # tokens still needed, if a token belongs to no form


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
        long_X = tf.where(later_X, length_X, _NONE)
        shortest = tf.math.unsorted_segment_min(long_X, sentence_X * most + term_X, batch * most)
        shortest_BG = tf.reshape(tf.where(shortest >= _NONE, 0, shortest), [batch, most])
        return Terms(
            ids_BKS=tf.pad(by_sentence(ids_XS), [[0, 0], [0, 1], [0, 0]]),
            term_BK=tf.pad(by_sentence(term_X), [[0, 0], [0, 1]]),
            first_BK=tf.pad(by_sentence(at_start_X), [[0, 0], [0, 1]]),
            later_BK=tf.pad(by_sentence(later_X), [[0, 0], [0, 1]]),
            shortest_BG=shortest_BG,
        )


def term_search(
    models: Any,
    vocabulary: TermVocabulary,
    source_BM: tf.Tensor,
    beam_size: tf.Tensor | int,
    alpha: tf.Tensor | float,
    extra_length: tf.Tensor | int,
    prefix_BP: tf.Tensor,
    min_length: tf.Tensor | int,
    spelled_B: tf.Tensor,
) -> Hypotheses:
    """Returns the best translations of each source that have its terms, best first, with their scores.

    The arguments are those of `beam_search`; `spelled_B` is as in `TermVocabulary.terms`. There are at least as many
    beams as banks: one more than the terms of a sentence, up to `MOST_BANKS`. The maximum length is raised if the terms
    need more.
    """
    ensemble = Ensemble.of(models)
    sentences = sentences_of(ensemble, source_BM, extra_length, prefix_BP, min_length)
    terms = vocabulary.terms(spelled_B)
    more = tf.shape(sentences.source)[0] - tf.size(spelled_B)
    terms = Terms(*(tf.pad(each, [[0, more], *[[0, 0]] * (each.shape.rank - 1)]) for each in terms))
    needed_B = tf.reduce_sum(terms.shortest_BG, axis=1)
    prefix_B = tf.math.count_nonzero(sentences.prefix, axis=1, dtype=tf.int32)
    # the first token is free, as forms that start a text may be longer
    longest_B = tf.where(needed_B > 0, tf.maximum(sentences.longest, prefix_B + needed_B + 2), sentences.longest)
    sentences = sentences._replace(longest=longest_B, terms=terms)

    number_B = tf.math.count_nonzero(terms.shortest_BG, axis=1, dtype=tf.int32)
    width = tf.maximum(beam_size, tf.minimum(tf.reduce_max(number_B) + 1, MOST_BANKS))
    log_p_W = tf.where(tf.range(width) == 0, 0.0, NEG_INF)
    beams = first_beams(ensemble, tf.tile(log_p_W[None], [tf.shape(sentences.source)[0], 1]))
    each = tf.shape(beams.tokens)
    zeros_BW = tf.zeros(each, tf.int32)
    beams = beams._replace(
        state=Progress(
            matched=tf.zeros(tf.concat([each, tf.shape(terms.ids_BKS)[1:]], axis=0), tf.bool),
            met=tf.zeros(tf.concat([each, tf.shape(terms.shortest_BG)[1:]], axis=0), tf.bool),
            pending=zeros_BW - 1,
            length=zeros_BW,
            after=zeros_BW,
        )
    )
    found = search(ensemble, sentences, beams, TermSearch(tf.convert_to_tensor(alpha, tf.float32), vocabulary))
    return Hypotheses(found.ids[:, :beam_size], found.scores[:, :beam_size])


class TermSearch(NamedTuple):
    """The decoding strategy of a search with terms. Finished hypotheses are sorted, best first."""

    alpha: tf.Tensor
    vocabulary: TermVocabulary

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        """Returns true while an open beam can still score higher than the worst finished hypothesis.

        An open beam is expected to end within `AHEAD` tokens after its terms. To the maximum length, beams that repeat
        themselves would keep a third of the sentences open.
        """
        needed_BW = tf.reduce_sum(tf.where(beams.state.met, 0, sentences.terms.shortest_BG[:, None]), axis=2)
        soon_BW = tf.minimum(tf.shape(beams.ids)[2] + needed_BW + AHEAD, sentences.longest[:, None])
        has_terms_B1 = tf.reduce_any(sentences.terms.shortest_BG > 0, axis=1, keepdims=True)
        length_BW = tf.where(has_terms_B1, soon_BW, sentences.longest[:, None])
        reachable_B = tf.reduce_max(beams.log_p / length_penalty(length_BW, self.alpha), axis=1)
        return can_be(tf.reduce_max(beams.log_p, axis=1)) & (beams.finished_scores[:, -1] < reachable_B)

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        width = tf.shape(logits_BWV)[1]
        offered_BWO, needs_BWO, needed_BW = _offers(step, beams, sentences)
        log_p_BWC, tokens_BWC = candidates(step, logits_BWV, sentences, 2 * width, offered_BWO)
        matches_BWCO = (tokens_BWC[..., None] == offered_BWO[:, :, None]) & (offered_BWO != PAD)[:, :, None]
        need_BWC = tf.reduce_min(tf.where(matches_BWCO, needs_BWO[:, :, None], _NONE), axis=3)
        progresses_BWC = need_BWC < _NONE
        state = beams.state
        previous_BW1 = beams.tokens[:, :, None]
        is_revoked_BWC = ((state.pending >= 0) & (state.after == 0))[:, :, None]
        is_revoked_BWC &= self.vocabulary.joined(previous_BW1, tokens_BWC)
        kept_BWC = (state.pending >= 0)[:, :, None] & ~is_revoked_BWC
        pending_BW1 = _of_pending(sentences.terms.shortest_BG, state.pending)[:, :, None]
        lost_BWC = tf.where(kept_BWC, needed_BW[:, :, None] - pending_BW1, needed_BW[:, :, None])
        need_BWC = tf.minimum(need_BWC, lost_BWC)

        room_B11 = (sentences.longest - step - 2)[:, None, None]
        ends_BWC = tokens_BWC == EOS
        is_forced_B11 = (step < tf.math.count_nonzero(sentences.prefix, axis=1, dtype=tf.int32))[:, None, None]
        is_forced_B11 |= room_B11 < 0
        fits_BWC = is_forced_B11 | (need_BWC <= tf.where(ends_BWC, 0, room_B11))
        fits_BWC &= ~_repeats(tokens_BWC, log_p_BWC)
        values_BWC = tf.where(fits_BWC, log_p_BWC, NEG_INF) + beams.log_p[:, :, None]

        number_B = tf.math.count_nonzero(sentences.terms.shortest_BG, axis=1, dtype=tf.int32)
        met_BW1 = tf.math.count_nonzero(state.met, axis=2, keepdims=True, dtype=tf.int32)
        met_BWC = met_BW1 + tf.cast(kept_BWC, tf.int32) + tf.cast(progresses_BWC, tf.int32)
        banks_B = tf.minimum(number_B + 1, width)
        bank_BWC = tf.minimum(met_BWC, number_B[:, None, None]) * (banks_B - 1)[:, None, None]
        bank_BWC //= tf.maximum(number_B, 1)[:, None, None]

        return self._allocated(step, beams, sentences, values_BWC, tokens_BWC, bank_BWC, banks_B)

    def _allocated(
        self,
        step: tf.Tensor,
        beams: Beams,
        sentences: Sentences,
        values_BWC: tf.Tensor,
        tokens_BWC: tf.Tensor,
        bank_BWC: tf.Tensor,
        banks_B: tf.Tensor,
    ) -> Beams:
        """Returns the beams of the next step: the best of each bank, then the second best, those with more terms
        first."""
        batch, width, each = tf.unstack(tf.shape(tokens_BWC))
        values, order = tf.math.top_k(tf.reshape(values_BWC, [batch, -1]), width * each)
        tokens, bank = (tf.gather(tf.reshape(x, [batch, -1]), order, batch_dims=1) for x in (tokens_BWC, bank_BWC))
        parents, ends, possible = order // each, tokens == EOS, can_be(values)
        is_in_bank = tf.one_hot(tf.where(possible & ~ends, bank, -1), width, dtype=tf.int32)
        better = tf.gather(tf.cumsum(is_in_bank, axis=1, exclusive=True), bank, axis=2, batch_dims=2)
        slots_B1 = (width // banks_B)[:, None]
        # as in beam search, which looks at twice as many candidates as beams, and at one for a beam of one
        finishes = possible & ends & (better < tf.where(slots_B1 > 1, 2 * slots_B1, 1))

        def longer(at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            newest, came_from = (tf.gather(x, at, batch_dims=1) for x in (tokens, parents))
            ids = tf.gather(beams.ids, came_from, batch_dims=1)
            return tf.concat([ids, newest[:, :, None]], axis=2), newest, came_from

        scores, at = tf.math.top_k(tf.where(finishes, values / length_penalty(step + 1, self.alpha), NEG_INF), width)
        finished_ids = tf.concat([tf.pad(beams.finished_ids, [[0, 0], [0, 0], [0, 1]]), longer(at)[0]], axis=1)
        finished_scores, kept = tf.math.top_k(tf.concat([beams.finished_scores, scores], axis=1), width)

        turn = better * width + (width - 1 - bank)
        turn, opened = tf.math.top_k(-tf.where(possible & ~ends, turn, _NONE), width)
        ids, newest, came_from = longer(opened)
        state = tf.nest.map_structure(lambda x: tf.gather(x, came_from, batch_dims=1), beams.state)
        before = tf.gather(beams.tokens, came_from, batch_dims=1)
        return beams._replace(
            tokens=newest,
            log_p=tf.where(turn > -_NONE, tf.gather(values, opened, batch_dims=1), NEG_INF),
            ids=ids,
            history=tf.gather(beams.history, came_from, batch_dims=1),
            finished_ids=tf.gather(finished_ids, kept, batch_dims=1),
            finished_scores=finished_scores,
            state=advanced(self.vocabulary, sentences.terms, state, before, newest),
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
    matched &= _is_open(terms, state.met)[..., None]
    longest_BW = _longest(matched, size_S)

    # a form that has ended counts unless its word continues; it waits while a longer form may still contain it
    has_ended = state.pending >= 0
    stays = has_ended & ~((state.after == 0) & joined_BW)
    waits = stays & (longest_BW > state.length)
    counts = stays & ~waits
    met = state.met | (
        tf.one_hot(state.pending, tf.shape(state.met)[2], on_value=True, off_value=False) & counts[..., None]
    )
    matched &= _is_open(terms, met)[..., None]

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


def _offers(step: tf.Tensor, beams: Beams, sentences: Sentences) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the tokens that continue or start a form [B, W, O], PAD for none; the number of tokens that meet all
    terms after each of them [B, W, O]; and without any progress [B, W]."""
    terms, state = sentences.terms, beams.state
    needed_BW = tf.reduce_sum(tf.where(state.met, 0, terms.shortest_BG[:, None]), axis=2)
    pending_BW1 = _of_pending(terms.shortest_BG, state.pending)[:, :, None]
    own_B1K = tf.gather(terms.shortest_BG, terms.term_BK, batch_dims=1)[:, None]
    length_B1K = tf.math.count_nonzero(terms.ids_BKS, axis=2, dtype=tf.int32)[:, None]
    is_other_BWK = terms.term_BK[:, None] != state.pending[:, :, None]
    is_open_BWK = _is_open(terms, state.met)

    size_S = tf.range(1, tf.shape(terms.ids_BKS)[2] + 1)
    partial = state.matched & (size_S < length_B1K[..., None])
    done_BWK = tf.reduce_max(tf.where(partial, size_S, 0), axis=3)
    continued_BWK = tf.transpose(
        tf.gather(terms.ids_BKS, tf.transpose(done_BWK, [0, 2, 1]), axis=2, batch_dims=2), [0, 2, 1]
    )
    follows_BWK = done_BWK <= state.after[:, :, None]  # it started after the end of the pending form
    continues_BWK = is_open_BWK & (done_BWK > 0) & (is_other_BWK | ~follows_BWK)
    credit_BWK = tf.where(follows_BWK, pending_BW1, 0)
    continued_needs = needed_BW[:, :, None] - credit_BWK - own_B1K + length_B1K - done_BWK - 1

    may_start_BK = tf.where(step == 0, terms.first_BK, terms.later_BK)
    starts_BWK = is_open_BWK & may_start_BK[:, None] & is_other_BWK
    started_needs = needed_BW[:, :, None] - pending_BW1 - own_B1K + length_B1K - 1
    tokens_BWO = tf.concat(
        [tf.where(continues_BWK, continued_BWK, PAD), tf.where(starts_BWK, terms.ids_BKS[:, None, :, 0], PAD)], axis=2
    )
    return tokens_BWO, tf.concat([continued_needs, started_needs], axis=2), needed_BW


def _is_open(terms: Terms, met_BWG: tf.Tensor) -> tf.Tensor:
    """Returns [B, W, K]: true for sequences of terms that are not met."""
    is_met_BWK = tf.gather(met_BWG, terms.term_BK, axis=2, batch_dims=1)
    return ~is_met_BWK & (terms.ids_BKS[:, None, :, 0] != PAD)


def _of_pending(values_BG: tf.Tensor, pending_BW: tf.Tensor) -> tf.Tensor:
    """Returns the value of the pending term of each beam, 0 without one."""
    return tf.where(pending_BW >= 0, tf.gather(values_BG, tf.maximum(pending_BW, 0), batch_dims=1), 0)


def _longest(matched: tf.Tensor, size_S: tf.Tensor) -> tf.Tensor:
    """Returns [B, W]: the number of tokens of the longest match."""
    return tf.reduce_max(tf.where(matched, size_S, 0), axis=[2, 3])


def _repeats(tokens_BWC: tf.Tensor, log_p_BWC: tf.Tensor) -> tf.Tensor:
    """Returns true for candidates that stand before in the list: offered tokens may be among the likeliest."""
    number = tf.shape(tokens_BWC)[2]
    is_before_CC = tf.range(number)[None] < tf.range(number)[:, None]
    same_BWCC = (tokens_BWC[..., None] == tokens_BWC[:, :, None]) & can_be(log_p_BWC)[:, :, None]
    return tf.reduce_any(same_BWCC & is_before_CC, axis=3)


def _nonempty(strings: tf.RaggedTensor) -> tf.RaggedTensor:
    return tf.ragged.boolean_mask(strings, strings != "")
