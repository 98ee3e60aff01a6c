"""Lexically constrained beam search: each required term appears in the translation, in one of its forms.

The search is beam search with dynamic beam allocation (Post and Vilar, 2018), computed for the whole batch as by Hu et
al. (2019): beams with equally many tokens of their terms form a bank, as in the grid of Hokamp and Liu (2017), and the
beams of a sentence are shared out among its banks. (Counted by complete terms, a form of several tokens would rarely be
completed: in the bank of those that have just started it, its next token competes with other starts.) Candidates of
each beam are its likeliest tokens, and the tokens that start or continue a form.

The end-of-sentence token is allowed when all terms are met. When the tokens up to the maximum length are just enough
for the open terms, only tokens that start or continue them are allowed.

Shapes: B sentences, W beam width, G required terms, K subword sequences of their forms, S subwords of the longest one,
C candidates, O offered tokens, V vocabulary.

W is the largest beam width of the batch. Each sentence uses its own (`own_width`), so that it does not get more beams
because other sentences have more terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.beam_search import can_be, length_penalty
from t2t_repro.inference.search.decoding_loop import (
    NEG_INF,
    Beams,
    Hypotheses,
    Sentences,
    candidates,
    one_open_beam,
    search,
    sentences_of,
)
from t2t_repro.inference.terms.progress import NO_LENGTH, Progress, Terms, TermVocabulary, advanced, is_open
from t2t_repro.text.token_ids import EOS, PAD

MOST_BANKS = 17
AHEAD = 5  # tokens after its terms, in which a beam is expected to end


def term_search(
    ensemble: Ensemble,
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
    beams as banks: one more than the tokens of the terms of a sentence, up to `MOST_BANKS`. The maximum length is
    raised if the terms need more.
    """
    sentences = sentences_of(ensemble, source_BM, extra_length, prefix_BP, min_length)
    terms = vocabulary.terms(spelled_B)
    more = tf.shape(sentences.source)[0] - tf.size(spelled_B)
    terms = Terms(*(tf.pad(each, [[0, more], *[[0, 0]] * (each.shape.rank - 1)]) for each in terms))
    needed_B = tf.reduce_sum(terms.shortest_BG, axis=1)
    prefix_B = tf.math.count_nonzero(sentences.prefix, axis=1, dtype=tf.int32)
    # the first token is free, as forms that start a text may be longer
    longest_B = tf.where(needed_B > 0, tf.maximum(sentences.longest, prefix_B + needed_B + 2), sentences.longest)
    sentences = sentences._replace(longest=longest_B, terms=terms)

    width = tf.reduce_max(own_width(terms, beam_size))
    beams = one_open_beam(ensemble, sentences, width)
    shape = tf.shape(beams.tokens)
    zeros_BW = tf.zeros(shape, tf.int32)
    beams = beams._replace(
        state=Progress(
            matched=tf.zeros(tf.concat([shape, tf.shape(terms.ids_BKS)[1:]], axis=0), tf.bool),
            met=tf.zeros(tf.concat([shape, tf.shape(terms.shortest_BG)[1:]], axis=0), tf.bool),
            pending=zeros_BW - 1,
            length=zeros_BW,
            after=zeros_BW,
        )
    )
    strategy = TermSearch(tf.convert_to_tensor(alpha, tf.float32), vocabulary, tf.convert_to_tensor(beam_size))
    found = search(ensemble, sentences, beams, strategy)
    return tf.nest.map_structure(lambda x: x[:, :beam_size], found)


class TermSearch(NamedTuple):
    """The decoding strategy of a search with terms. Finished hypotheses are sorted, best first."""

    alpha: tf.Tensor
    vocabulary: TermVocabulary
    beam_size: tf.Tensor  # number of hypotheses to find; there may be more beams

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        """Returns true while an open beam can still score higher than the worst of `beam_size` finished hypotheses.

        An open beam is expected to end within `AHEAD` tokens after its terms. To the maximum length, beams that repeat
        themselves would keep a third of the sentences open.
        """
        needed_BW = tf.reduce_sum(tf.where(beams.state.met, 0, sentences.terms.shortest_BG[:, None]), axis=2)
        soon_BW = tf.minimum(tf.shape(beams.ids)[2] + needed_BW + AHEAD, sentences.longest[:, None])
        has_terms_B1 = tf.reduce_any(sentences.terms.shortest_BG > 0, axis=1, keepdims=True)
        length_BW = tf.where(has_terms_B1, soon_BW, sentences.longest[:, None])
        reachable_B = tf.reduce_max(beams.log_p / length_penalty(length_BW, self.alpha), axis=1)
        return can_be(tf.reduce_max(beams.log_p, axis=1)) & (beams.finished_scores[:, self.beam_size - 1] < reachable_B)

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        width, own_width_B = tf.shape(logits_BWV)[1], own_width(sentences.terms, self.beam_size)
        offered_BWO, needs_BWO, needed_BW = _offers(step, beams, sentences)
        log_p_BWC, tokens_BWC = candidates(step, logits_BWV, sentences, 2 * width, offered_BWO)
        # the likeliest tokens of a sentence are as many as if it were alone; the forced one and the offered ones follow
        rank_C = tf.range(tf.shape(tokens_BWC)[2])
        last = tf.shape(tokens_BWC)[2] - 1 - tf.shape(offered_BWO)[2]
        is_likely_BWC = (rank_C < 2 * own_width_B[:, None, None] + 2) | (rank_C >= last)
        # a sentence that is done waits for the others without changes: `can_improve` is an estimate
        is_open_B11 = self.can_improve(beams, sentences)[:, None, None]
        log_p_BWC = tf.where(is_likely_BWC & is_open_B11, log_p_BWC, NEG_INF)
        matches_BWCO = (tokens_BWC[..., None] == offered_BWO[:, :, None]) & (offered_BWO != PAD)[:, :, None]
        need_BWC = tf.reduce_min(tf.where(matches_BWCO, needs_BWO[:, :, None], NO_LENGTH), axis=3)
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

        total_B = tf.reduce_sum(sentences.terms.shortest_BG, axis=1)
        banks_B = tf.minimum(total_B + 1, own_width_B)
        done_BWC = tf.maximum(total_B[:, None, None] - need_BWC, 0)
        bank_BWC = -(-done_BWC * (banks_B - 1)[:, None, None] // tf.maximum(total_B, 1)[:, None, None])

        return self._allocated(step, beams, sentences, values_BWC, tokens_BWC, bank_BWC, banks_B, own_width_B)

    def _allocated(
        self,
        step: tf.Tensor,
        beams: Beams,
        sentences: Sentences,
        values_BWC: tf.Tensor,
        tokens_BWC: tf.Tensor,
        bank_BWC: tf.Tensor,
        banks_B: tf.Tensor,
        own_width_B: tf.Tensor,
    ) -> Beams:
        """Returns the beams of the next step: the best of each bank, then the second best, the highest banks first."""
        batch, width, each = tf.unstack(tf.shape(tokens_BWC))
        values, order = tf.math.top_k(tf.reshape(values_BWC, [batch, -1]), width * each)
        tokens, bank = (tf.gather(tf.reshape(x, [batch, -1]), order, batch_dims=1) for x in (tokens_BWC, bank_BWC))
        parents, ends, possible = order // each, tokens == EOS, can_be(values)
        is_in_bank = tf.one_hot(tf.where(possible & ~ends, bank, -1), width, dtype=tf.int32)
        better = tf.gather(tf.cumsum(is_in_bank, axis=1, exclusive=True), bank, axis=2, batch_dims=2)
        slots_B1 = (own_width_B // banks_B)[:, None]
        # as in beam search, which looks at twice as many candidates as beams, and at one for a beam of one
        finishes = possible & ends & (better < tf.where(slots_B1 > 1, 2 * slots_B1, 1))

        def of(values: Any, came_from: tf.Tensor) -> Any:
            return tf.nest.map_structure(lambda x: tf.gather(x, came_from, batch_dims=1), values)

        def longer(at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            newest, came_from = of((tokens, parents), at)
            return tf.concat([of(beams.ids, came_from), newest[:, :, None]], axis=2), newest, came_from

        scores, at = tf.math.top_k(tf.where(finishes, values / length_penalty(step + 1, self.alpha), NEG_INF), width)
        ended_ids, _, ended_from = longer(at)
        finished_ids, finished_traces = tf.nest.map_structure(
            lambda before, new: tf.concat([tf.pad(before, [[0, 0], [0, 0], [0, 1]]), new], axis=1),
            (beams.finished_ids, beams.finished_traces),
            (ended_ids, of(beams.traces, ended_from)),
        )
        finished_scores, kept = tf.math.top_k(tf.concat([beams.finished_scores, scores], axis=1), width)

        turn = better * width + (width - 1 - bank)
        turn, opened = tf.math.top_k(-tf.where(possible & ~ends, turn, NO_LENGTH), width)
        ids, newest, came_from = longer(opened)
        is_beam = (turn > -NO_LENGTH) & (tf.range(width) < own_width_B[:, None])
        before, state = of((beams.tokens, beams.state), came_from)
        return beams._replace(
            tokens=newest,
            log_p=tf.where(is_beam, tf.gather(values, opened, batch_dims=1), NEG_INF),
            ids=ids,
            visible=of(beams.visible, came_from),
            finished_ids=of(finished_ids, kept),
            finished_scores=finished_scores,
            state=advanced(self.vocabulary, sentences.terms, state, before, newest),
            traces=of(beams.traces, came_from),
            finished_traces=of(finished_traces, kept),
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
    is_open_BWK = is_open(terms, state.met)

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


def own_width(terms: Terms, beam_size: tf.Tensor | int) -> tf.Tensor:
    """Returns the beam width of each sentence [B]: at least the number of its banks, up to `MOST_BANKS`."""
    return tf.maximum(beam_size, tf.minimum(tf.reduce_sum(terms.shortest_BG, axis=1) + 1, MOST_BANKS))


def _of_pending(values_BG: tf.Tensor, pending_BW: tf.Tensor) -> tf.Tensor:
    """Returns the value of the pending term of each beam, 0 without one."""
    return tf.where(pending_BW >= 0, tf.gather(values_BG, tf.maximum(pending_BW, 0), batch_dims=1), 0)


def _repeats(tokens_BWC: tf.Tensor, log_p_BWC: tf.Tensor) -> tf.Tensor:
    """Returns true for candidates that stand before in the list: offered tokens may be among the likeliest."""
    number = tf.shape(tokens_BWC)[2]
    is_before_CC = tf.range(number)[None] < tf.range(number)[:, None]
    same_BWCC = (tokens_BWC[..., None] == tokens_BWC[:, :, None]) & can_be(log_p_BWC)[:, :, None]
    return tf.reduce_any(same_BWCC & is_before_CC, axis=3)
