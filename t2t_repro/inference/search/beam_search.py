"""Beam search in the graph, with length penalty and early stop as in Wu et al. (2016, section 7).

Shapes: B sentences, M source length, P length of the longest prefix, W beam width, T steps done, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from t2t_repro.config import HParams, must_be_integer, must_be_number
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.decoding_loop import (
    NEG_INF,
    Beams,
    Constraint,
    Hypotheses,
    Sentences,
    candidates,
    one_open_beam,
    search,
    sentences_of,
)
from t2t_repro.model.transformer import Transformer
from t2t_repro.text.token_ids import EOS


def length_penalty(length: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns ((5 + |Y|) / 6)^alpha (Wu et al., 2016, eq. 14). |Y| counts the end-of-sentence token."""
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def n_best_options(hparams: HParams, n: int, beam_size: int | None, alpha: float | None) -> tuple[int, float]:
    """Returns beam size and alpha for the n best translations. The defaults are those of the run, or n if it is larger.

    Raises ValueError or TypeError for values that no search supports.
    """
    must_be_integer("n_best", n, 1)
    width = max(n, hparams.beam_size) if beam_size is None else beam_size
    must_be_integer("beam_size", width, 1)
    penalty = hparams.alpha if alpha is None else alpha
    if n > width:
        raise ValueError(f"n_best must be at least 1 and at most the beam size {width}, got {n}")
    must_be_number("alpha", penalty)
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"alpha must be at least 0 and finite, got {penalty}")
    return width, penalty


def beam_search(
    models: Transformer | Sequence[Transformer] | Ensemble,
    source_BM: tf.Tensor,
    beam_size: tf.Tensor | int,
    alpha: tf.Tensor | float,
    extra_length: tf.Tensor | int,
    prefix_BP: tf.Tensor | None = None,
    min_length: tf.Tensor | int = 0,
    required_BG: tf.Tensor | None = None,
    constraint: Constraint | None = None,
) -> Hypotheses:
    """Returns the best translations of each source with their scores, best first.

    A translation has at most as many tokens as its source plus `extra_length`, EOS included. Every hypothesis is
    complete: at the maximum length only EOS may follow. A score is a log-probability divided by the length penalty. A
    sentence is finished when no open beam can still score higher than the worst of its W finished hypotheses.

    Args:
      models: one model, or several that share a vocabulary, whose probabilities are averaged.
      source_BM: int32 ids, ending in EOS, padded with PAD.
      beam_size: the beam width W.
      alpha: exponent of the length penalty.
      extra_length: tokens that a translation may have beyond the length of its source.
      prefix_BP: tokens that each translation starts with, padded with PAD. A longer prefix raises the maximum length.
      min_length: number of tokens before EOS. A larger number raises the maximum length.
      constraint: limits the tokens that may follow. It excludes `prefix_BP` and `min_length`.
      required_BG: ids of the words that a constrained output must contain, padded with PAD.
    """
    ensemble = Ensemble.of(models)
    sentences = sentences_of(ensemble, source_BM, extra_length, prefix_BP, min_length, required_BG=required_BG)
    beams = one_open_beam(ensemble, sentences, beam_size)
    return search(ensemble, sentences, beams, BeamSearch(tf.convert_to_tensor(alpha, tf.float32), constraint))


class BeamSearch(NamedTuple):
    """The decoding strategy of beam search. Open beams and finished hypotheses are sorted, best first."""

    alpha: tf.Tensor
    constraint: Constraint | None = None

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        reachable = beams.log_p[:, 0] / length_penalty(sentences.longest, self.alpha)
        return can_be(beams.log_p[:, 0]) & (beams.finished_scores[:, -1] < reachable)

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        """Extends open beams by their most likely tokens. Those that end are finished; the best others stay open."""
        beam_size = tf.shape(logits_BWV)[1]
        # At most W of 2 W are EOS, so W stay open. With one beam only the likeliest token is taken: greedy decoding.
        k = tf.where(beam_size > 1, 2 * beam_size, 1)
        if self.constraint is None:
            log_p_BWC, tokens_BWC = candidates(step, logits_BWV, sentences, k)
        else:
            log_p_BWC, tokens_BWC = self.constraint.candidates(step, beams, logits_BWV, sentences, k)
        each = tf.shape(tokens_BWC)[2]
        values, best = tf.math.top_k(tf.reshape(log_p_BWC + beams.log_p[:, :, None], [-1, beam_size * each]), k)
        tokens = tf.gather(tf.reshape(tokens_BWC, [-1, beam_size * each]), best, batch_dims=1)
        parents = best // each
        ids = tf.concat([tf.gather(beams.ids, parents, batch_dims=1), tokens[:, :, None]], axis=2)
        ends = tokens == EOS

        # dividing NEG_INF by a length penalty above 1 would lift an impossible beam above possible ones
        scores = tf.where(ends & can_be(values), values / length_penalty(step + 1, self.alpha), NEG_INF)
        finished_ids = tf.concat([tf.pad(beams.finished_ids, [[0, 0], [0, 0], [0, 1]]), ids], axis=1)
        finished_scores, kept = tf.math.top_k(tf.concat([beams.finished_scores, scores], axis=1), beam_size)

        log_p, opened = tf.math.top_k(tf.where(ends, NEG_INF, values), beam_size)
        open_parents = tf.gather(parents, opened, batch_dims=1)
        finished_traces = [
            tf.concat([tf.pad(before, [[0, 0], [0, 0], [0, 1]]), tf.gather(trace, parents, batch_dims=1)], axis=1)
            for before, trace in zip(beams.finished_traces, beams.traces, strict=True)
        ]
        beams = beams._replace(
            tokens=tf.gather(tokens, opened, batch_dims=1),
            log_p=log_p,
            ids=tf.gather(ids, opened, batch_dims=1),
            visible=tf.gather(beams.visible, open_parents, batch_dims=1),
            finished_ids=tf.gather(finished_ids, kept, batch_dims=1),
            finished_scores=finished_scores,
            traces=tuple(tf.gather(trace, open_parents, batch_dims=1) for trace in beams.traces),
            finished_traces=tuple(tf.gather(each, kept, batch_dims=1) for each in finished_traces),
        )
        return beams if self.constraint is None else self.constraint.advanced(beams, open_parents)


def can_be(log_p: tf.Tensor) -> tf.Tensor:
    """Returns true for the log-probabilities of possible beams. The sum of an impossible beam contains `NEG_INF`."""
    return log_p > NEG_INF / 2
