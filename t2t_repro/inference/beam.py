"""Beam search in the graph, with length penalty and early stop as in Wu et al. (2016, section 7).

Shapes: B sentences, M source length, W beam width, T steps done, V vocabulary, H heads, K d_k, E d_v.

The beams of a sentence share one set of keys and values, to which each step adds W: nothing is copied when beams change
places. What a beam may see is told by its *path*: the slot it sat in at each step.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from t2t_repro.model.attention import mask_bias
from t2t_repro.model.transformer import Transformer

PAD, END = 0, 1
NEVER = -1e30  # the log-probability of what cannot be; finite, so that no difference of two is NaN
GROUP = 128  # entries whose maximum is looked at first in `top_k`


class Hypotheses(NamedTuple):
    """The W best translations of each sentence, best first."""

    ids: tf.Tensor  # [B, W, L] int32, each ending in END, padded with PAD
    scores: tf.Tensor  # [B, W] float32: log-probability over length penalty; below -1e20 where there are fewer than W


class _Beams(NamedTuple):
    step: tf.Tensor  # T
    tokens: tf.Tensor  # [B, W] int32: the newest token of each open beam
    log_p: tf.Tensor  # [B, W] float32, highest first
    ids: tf.Tensor  # [B, W, T] int32
    path: tf.Tensor  # [B, W, T] int32: the slot of each of those tokens' keys
    finished_ids: tf.Tensor  # [B, W, T] int32
    finished_scores: tf.Tensor  # [B, W] float32, highest first
    caches: tuple  # for each layer [B, H, T W, K] and [B, H, T W, E]


def length_penalty(length: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """((5 + |Y|) / 6)^alpha (Wu et al., 2016, eq. 14); |Y| counts the end of the sentence."""
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def top_k(x_NV: tf.Tensor, k: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` over the last axis in two stages: the k groups with the highest maxima hold the k highest.

    Over 128 rows of 32,000 this takes 15 ms where one stage takes 265. Equal entries may come in another order.
    """
    size = x_NV.shape[-1]
    groups = -(-size // GROUP)
    k = tf.minimum(k, size)

    def two_stages() -> tuple[tf.Tensor, tf.Tensor]:
        return _top_k_of_groups(x_NV, groups, k)

    return tf.cond(k < groups, two_stages, lambda: tuple(tf.math.top_k(x_NV, k)))


def _top_k_of_groups(x_NV: tf.Tensor, groups: int, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    padded = tf.pad(x_NV, [[0, 0], [0, groups * GROUP - x_NV.shape[-1]]], constant_values=x_NV.dtype.min)
    grouped = tf.reshape(padded, [-1, groups, GROUP])
    _, best_groups = tf.math.top_k(tf.reduce_max(grouped, axis=-1), k)
    members = tf.reshape(tf.gather(grouped, best_groups, batch_dims=1), [-1, k * GROUP])
    values, at = tf.math.top_k(members, k)
    return values, tf.gather(best_groups, at // GROUP, batch_dims=1) * GROUP + at % GROUP


def beam_search(
    model: Transformer,
    source_BM: tf.Tensor,
    beam_size: tf.Tensor | int,
    alpha: tf.Tensor | float,
    extra_length: tf.Tensor | int,
) -> Hypotheses:
    """The best translations of `source_BM` (int32 ids, ending in END, padded with PAD), at most as long as the source
    plus `extra_length`, ends included. Every hypothesis is a whole one: at the greatest length only END may follow.

    A sentence is done when no open beam can still score higher than the worst of W finished ones.
    """
    memory_BMD = model.encode(source_BM)
    memories = model.memory_keys_values(memory_BMD)
    longest_B = tf.math.count_nonzero(source_BM != PAD, axis=1, dtype=tf.int32) + extra_length
    alpha = tf.convert_to_tensor(alpha, tf.float32)

    def is_open(beams: _Beams) -> tf.Tensor:
        reachable = beams.log_p[:, 0] / length_penalty(longest_B, alpha)
        can_win = beams.finished_scores[:, -1] < reachable
        return tf.reduce_any(can_win & (beams.step < longest_B))

    def advance(beams: _Beams) -> _Beams:
        # made in each step: TensorFlow 2.21 fuses a mask that comes from outside the loop wrongly (it takes the value
        # for the loop's end), and with one layer the result was empty
        memory_bias = model.source_bias(source_BM)
        path = tf.concat([beams.path, _own_slots(beams.tokens)[:, :, None]], axis=2)
        states_BWD, caches = model.step(
            beams.tokens, beams.step, beams.caches, memories, _path_bias(path, beam_size), memory_bias
        )
        log_p_BWV = tf.nn.log_softmax(model.logits(states_BWD))
        must_end_B = beams.step + 1 >= longest_B
        return _choose(beams, log_p_BWV, path, caches, must_end_B, alpha)

    beams = _first_beams(model, tf.shape(source_BM)[0], beam_size)
    (beams,) = tf.while_loop(
        is_open, lambda beams: (advance(_Beams(*beams)),), (beams,), shape_invariants=(_invariants(beams),)
    )
    return Hypotheses(beams.finished_ids, beams.finished_scores)


def _choose(
    beams: _Beams, log_p_BWV: tf.Tensor, path: tf.Tensor, caches: tuple, must_end_B: tf.Tensor, alpha: tf.Tensor
) -> _Beams:
    """Extends every open beam by its likeliest tokens: those with END join the finished, the best others stay open."""
    beam_size, vocab_size = tf.shape(log_p_BWV)[1], log_p_BWV.shape[2]
    # At most W of 2 W are END, so enough stay open. One beam takes the likeliest token alone: that is greedy decoding.
    candidates = tf.where(beam_size > 1, 2 * beam_size, 1)
    k = tf.minimum(candidates, vocab_size)
    no_padding_V = tf.one_hot(PAD, vocab_size, on_value=NEVER, off_value=0.0)
    only_end_V = tf.one_hot(END, vocab_size, on_value=0.0, off_value=NEVER)
    allowed_B1V = tf.where(must_end_B[:, None, None], only_end_V, no_padding_V)
    log_p_BWV = log_p_BWV + (allowed_B1V + beams.log_p[:, :, None])
    values, tokens = top_k(tf.reshape(log_p_BWV, [-1, vocab_size]), k)
    values, best = tf.math.top_k(tf.reshape(values, [-1, beam_size * k]), tf.minimum(candidates, beam_size * k))
    tokens = tf.gather(tf.reshape(tokens, [-1, beam_size * k]), best, batch_dims=1)
    parents = best // k
    ids = tf.concat([tf.gather(beams.ids, parents, batch_dims=1), tokens[:, :, None]], axis=2)
    ends = tokens == END

    scores = tf.where(ends, values / length_penalty(beams.step + 1, alpha), NEVER)
    finished_ids = tf.concat([tf.pad(beams.finished_ids, [[0, 0], [0, 0], [0, 1]]), ids], axis=1)
    finished_scores, kept = tf.math.top_k(tf.concat([beams.finished_scores, scores], axis=1), beam_size)

    log_p, opened = tf.math.top_k(tf.where(ends, NEVER, values), beam_size)
    return _Beams(
        step=beams.step + 1,
        tokens=tf.gather(tokens, opened, batch_dims=1),
        log_p=log_p,
        ids=tf.gather(ids, opened, batch_dims=1),
        path=tf.gather(path, tf.gather(parents, opened, batch_dims=1), batch_dims=1),
        finished_ids=tf.gather(finished_ids, kept, batch_dims=1),
        finished_scores=finished_scores,
        caches=caches,
    )


def _first_beams(model: Transformer, batch: tf.Tensor, beam_size: tf.Tensor | int) -> _Beams:
    """One open beam a sentence, before its first token; the other slots are beams that can never win."""
    h, dtype = model.hparams, tf.as_dtype(model.compute_dtype)
    nothing = tf.zeros([batch, beam_size, 0], tf.int32)
    only_first = tf.where(tf.range(beam_size) == 0, 0.0, NEVER)
    cache = tf.zeros([batch, h.num_heads, 0, h.d_k], dtype), tf.zeros([batch, h.num_heads, 0, h.d_v], dtype)
    return _Beams(
        step=tf.constant(0),
        tokens=tf.fill([batch, beam_size], PAD),  # the decoder's input starts with padding (section 3.1)
        log_p=tf.tile(only_first[None], [batch, 1]),
        ids=nothing,
        path=nothing,
        finished_ids=nothing,
        finished_scores=tf.fill([batch, beam_size], NEVER),
        caches=(cache,) * h.num_layers,
    )


def _invariants(beams: _Beams) -> _Beams:
    """Shapes of the loop's variables: what grows by a step, and how many there are, is not fixed."""

    def invariant(value: tf.Tensor) -> tf.TensorShape:
        shape = value.shape.as_list()
        return tf.TensorShape([None] * len(shape) if len(shape) < 4 else [None, shape[1], None, shape[3]])

    return tf.nest.map_structure(invariant, beams)


def _own_slots(tokens_BW: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(tokens_BW) + tf.range(tf.shape(tokens_BW)[1])


def _path_bias(path_BWT: tf.Tensor, beam_size: tf.Tensor | int) -> tf.Tensor:
    """Lets each beam see the keys on its own path alone: [B, 1, W, T W]."""
    on_path = tf.one_hot(path_BWT, beam_size, on_value=True, off_value=False)
    flat = tf.concat([tf.shape(path_BWT)[:2], [tf.shape(path_BWT)[2] * beam_size]], axis=0)
    return mask_bias(tf.reshape(on_path, flat))[:, None]
