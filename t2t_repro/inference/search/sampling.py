"""Sampling in the graph: translations drawn from the model's distribution, with a temperature and top-k truncation.

Shapes: B sentences, M source length, P length of the longest prefix, W samples per sentence, C tokens to draw from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.decoding_loop import (
    NEG_INF,
    Beams,
    Hypotheses,
    Sentences,
    candidates,
    first_beams,
    may_follow,
    only_if,
    search,
    sentences_of,
    vocabulary_size,
)
from t2t_repro.model.transformer import Transformer
from t2t_repro.text.token_ids import EOS


def draws(sources: Sequence[Sequence[int]], samples: int, length: int, seed: int) -> np.ndarray:
    """Returns uniform random numbers [B, samples, length], float32 in [0, 1), for `sample`.

    They depend only on the seed, the source's ids and the number of the sample. A text therefore has the same samples
    whatever else is in its batch, and further samples do not change the first ones.
    """
    drawn = np.empty((len(sources), samples, length), np.float32)
    for row, ids in enumerate(sources):
        digest = hashlib.blake2b(np.asarray(ids, "<i4").tobytes(), digest_size=16).digest()
        for number in range(samples):
            generator = np.random.default_rng([seed, number, *np.frombuffer(digest, "<u4").tolist()])
            drawn[row, number] = generator.random(length, np.float32)
    return drawn


def sample(
    models: Transformer | Sequence[Transformer] | Ensemble,
    source_BM: tf.Tensor,
    draws_BWL: tf.Tensor,
    temperature: tf.Tensor | float,
    k: tf.Tensor | int,
    extra_length: tf.Tensor | int,
    prefix_BP: tf.Tensor | None = None,
    min_length: tf.Tensor | int = 0,
) -> Hypotheses:
    """Returns W translations of each sentence with their log-probabilities under the model.

    Each token is drawn from the k likeliest (0: all) with probability proportional to p^(1 / temperature). It is the
    one at which the cumulative probability reaches a number of `draws_BWL`, in [0, 1). Lengths, prefix and models are
    as in `beam_search`.
    """
    ensemble = Ensemble.of(models)
    sentences = sentences_of(ensemble, source_BM, extra_length, prefix_BP, min_length, draws_BWL)
    beams = first_beams(ensemble, tf.zeros(tf.shape(sentences.draws)[:2]))
    above_zero = tf.maximum(tf.cast(temperature, tf.float64), np.finfo(np.float64).tiny)  # denormals are flushed to 0
    strategy = Sampling(above_zero, tf.convert_to_tensor(k, tf.int32))
    return search(ensemble, sentences, beams, strategy)


class Sampling(NamedTuple):
    """The decoding strategy of sampling. Every beam keeps its slot; finished beams keep decoding and are ignored."""

    temperature: tf.Tensor
    k: tf.Tensor

    def can_improve(self, beams: Beams, sentences: Sentences) -> tf.Tensor:
        return tf.reduce_any(beams.finished_scores <= NEG_INF, axis=1)

    def choose(self, step: tf.Tensor, beams: Beams, logits_BWV: tf.Tensor, sentences: Sentences) -> Beams:
        none = tf.zeros_like(logits_BWV[:, :, :0]), tf.zeros_like(beams.ids[:, :, :0])
        found = only_if(self.k > 0, lambda *_: self._likeliest(step, logits_BWV, sentences), none)
        log_p_BWC, tokens_BWC = only_if(self.k <= 0, lambda *_: self._all(step, logits_BWV, sentences), found)
        # the likeliest has 0 at any temperature, so that even 1e-300 works: sampling is then greedy
        below_BWC = tf.cast(log_p_BWC - tf.reduce_max(log_p_BWC, axis=2, keepdims=True), tf.float64)
        is_allowed_BWC = log_p_BWC > NEG_INF / 2  # a forbidden one has 0 at any temperature, even 1e300
        p_BWC = tf.nn.softmax(tf.where(is_allowed_BWC, below_BWC / self.temperature, -np.inf))
        up_to_BWC = tf.cumsum(p_BWC, axis=2)
        drawn_BW1 = tf.cast(sentences.draws[:, :, step, None], tf.float64) * up_to_BWC[:, :, -1:]
        place_BW = tf.math.count_nonzero(up_to_BWC <= drawn_BW1, axis=2, dtype=tf.int32)
        tokens, gained = (tf.gather(x, place_BW, batch_dims=2) for x in (tokens_BWC, log_p_BWC))

        ids = tf.concat([beams.ids, tokens[:, :, None]], axis=2)
        log_p = beams.log_p + gained
        ends_now = (tokens == EOS) & (beams.finished_scores <= NEG_INF)

        def finished(before: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
            return tf.where(ends_now[:, :, None], now, tf.pad(before, [[0, 0], [0, 0], [0, 1]]))

        return beams._replace(
            tokens=tokens,
            log_p=log_p,
            ids=ids,
            finished_ids=finished(beams.finished_ids, ids),
            finished_scores=tf.where(ends_now, log_p, beams.finished_scores),
            finished_traces=tuple(map(finished, beams.finished_traces, beams.traces)),
        )

    def _likeliest(self, step: tf.Tensor, logits_BWV: tf.Tensor, sentences: Sentences) -> tuple[tf.Tensor, tf.Tensor]:
        log_p_BWC, tokens_BWC = candidates(step, logits_BWV, sentences, self.k)
        log_p_BWk, best = tf.math.top_k(log_p_BWC, tf.minimum(self.k, tf.shape(log_p_BWC)[2]))
        return log_p_BWk, tf.gather(tokens_BWC, best, batch_dims=2)

    def _all(self, step: tf.Tensor, logits_BWV: tf.Tensor, sentences: Sentences) -> tuple[tf.Tensor, tf.Tensor]:
        tokens_BWV = tf.zeros(tf.shape(logits_BWV), tf.int32) + tf.range(vocabulary_size(logits_BWV))
        return tf.where(may_follow(step, tokens_BWV, sentences), tf.nn.log_softmax(logits_BWV), NEG_INF), tokens_BWV
