"""Cross-entropy with label smoothing (section 5.4). Training computes the same loss with `fused_loss`.

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


def total(losses: Iterable[Loss]) -> Loss:
    """Returns the sum over several batches, as Python numbers."""
    return Loss(*(tf.add_n(list(sums)).numpy().item() for sums in zip(*losses, strict=True)))
