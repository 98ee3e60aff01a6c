"""Cross-entropy with label smoothing (section 5.4), and R-Drop. Training computes the same losses with `fused_loss`.

Shapes: T target tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf


class Loss(NamedTuple):
    """Sums over tokens, float32 scalars."""

    smoothed: tf.Tensor  # the training objective
    plain: tf.Tensor  # negative log-likelihood in nats: exp(plain / tokens) is the perplexity per token
    # Tokens whose most likely prediction is the target. If several subwords tie for the highest logit in the dtype of
    # the states, `projected_loss` counts any of them as correct, `smoothed_cross_entropy` the one with the lowest id.
    correct: tf.Tensor
    tokens: tf.Tensor


def smoothed_cross_entropy(logits_TV: tf.Tensor, targets_T: tf.Tensor, label_smoothing: float) -> Loss:
    """Returns -sum q log p, summed over tokens, for p = softmax(logits) and q = (1 - eps) one-hot(target) + eps / V
    (Szegedy et al., 2016, section 7).

    `logits_TV` float32, `targets_T` int32 without padding.
    """
    log_p_TV = tf.nn.log_softmax(logits_TV)
    plain_T = -tf.gather(log_p_TV, targets_T, batch_dims=1)
    smoothed_T = (1 - label_smoothing) * plain_T - label_smoothing * tf.reduce_mean(log_p_TV, axis=-1)
    predicted_T = tf.argmax(logits_TV, axis=-1)
    correct_T = tf.equal(predicted_T, tf.cast(targets_T, tf.int64))  # a GPU compares int32 on the host
    return Loss(
        smoothed=tf.reduce_sum(smoothed_T),
        plain=tf.reduce_sum(plain_T),
        correct=tf.reduce_sum(tf.cast(correct_T, tf.float32)),
        tokens=tf.cast(tf.size(targets_T), tf.float32),
    )


def r_drop_loss(logits_TV: tf.Tensor, others_TV: tf.Tensor, targets_T: tf.Tensor, eps: float, alpha: float) -> Loss:
    """Returns the mean of two passes, L, and in `smoothed` the objective of R-Drop (Liang et al., 2021, eq. 4), halved:

        sum of (L(p) + L(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p))

    for p = softmax(logits) and q = softmax(others), the logits of two forward passes with different dropout masks, and
    the smoothed cross-entropy L(p) (`smoothed_cross_entropy`). Half of their objective, which is a sum, has the scale
    of a loss without R-Drop; Adam takes the same steps with it.
    """
    log_p_TV, log_q_TV = tf.nn.log_softmax(logits_TV), tf.nn.log_softmax(others_TV)
    both_ways = tf.reduce_sum((tf.exp(log_p_TV) - tf.exp(log_q_TV)) * (log_p_TV - log_q_TV))
    passes = (smoothed_cross_entropy(each, targets_T, eps) for each in (logits_TV, others_TV))
    loss = Loss(*((p + q) / 2 for p, q in zip(*passes, strict=True)))
    return loss._replace(smoothed=loss.smoothed + alpha / 4 * both_ways)


def total(losses: Iterable[Loss]) -> Loss:
    """Returns the sum over several batches, as Python numbers."""
    return Loss(*(tf.add_n(list(sums)).numpy().item() for sums in zip(*losses, strict=True)))
