"""Cross-entropy with label smoothing (section 5.4), from the decoder's states to one number.

Shapes: N target tokens, D d_model, V vocabulary, C tokens of one chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

CHUNK = 512  # tokens whose logits exist at one time


class Loss(NamedTuple):
    """Sums over tokens, float32 scalars."""

    smoothed: tf.Tensor  # what is minimised
    plain: tf.Tensor  # negative log-likelihood in nats: exp(plain / tokens) is the perplexity per token
    correct: tf.Tensor  # tokens whose likeliest prediction is the target
    tokens: tf.Tensor


def smoothed_cross_entropy(logits_NV: tf.Tensor, targets_N: tf.Tensor, label_smoothing: float) -> Loss:
    """The cross-entropy against (1 - eps) one-hot + eps / V (Szegedy et al., 2016, section 7), as plainly as can be.

    `logits_NV` float32, `targets_N` int32 without padding.
    """
    log_p_NV = tf.nn.log_softmax(logits_NV)
    plain_N = -tf.gather(log_p_NV, targets_N, batch_dims=1)
    smoothed_N = (1 - label_smoothing) * plain_N - label_smoothing * tf.reduce_mean(log_p_NV, axis=-1)
    correct_N = tf.equal(tf.argmax(logits_NV, axis=-1, output_type=tf.int32), targets_N)
    return Loss(
        tf.reduce_sum(smoothed_N),
        tf.reduce_sum(plain_N),
        tf.reduce_sum(tf.cast(correct_N, tf.float32)),
        tf.cast(tf.size(targets_N), tf.float32),
    )


def projected_loss(states_ND: tf.Tensor, embedding_VD: tf.Tensor, targets_N: tf.Tensor, label_smoothing: float) -> Loss:
    """`smoothed_cross_entropy` of the logits states_ND embedding_VD^T, with the gradient computed on the way.

    The loss is a sum, so its gradient is known, up to one factor, as soon as a chunk's softmax is: both products of
    the backward pass are done while the chunk's logits are at hand, and no logits are kept. With p the softmax, the
    gradient with respect to the logits is p - (1 - eps) one-hot - eps / V, of which only p is dense. Sums are taken in
    float32; the logits are in the dtype of `states_ND`.
    """
    eps, vocab_size = label_smoothing, embedding_VD.shape[0]

    @tf.custom_gradient
    def fused(states_ND: tf.Tensor, embedding_VD: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], object]:
        matrix_VD = tf.cast(embedding_VD, states_ND.dtype)
        mean_row_D = tf.linalg.matvec(embedding_VD, tf.fill([vocab_size], 1 / vocab_size), transpose_a=True)

        def chunk(start: tf.Tensor, sums: tuple, d_states: tf.TensorArray, d_matrix_VD: tf.Tensor) -> tuple:
            states_CD, targets_C = states_ND[start : start + CHUNK], targets_N[start : start + CHUNK]
            states32_CD = tf.cast(states_CD, tf.float32)
            logits_CV = tf.matmul(states_CD, matrix_VD, transpose_b=True)
            highest_C1 = tf.reduce_max(logits_CV, axis=-1, keepdims=True)
            exps_CV = tf.exp(tf.cast(logits_CV - highest_C1, tf.float32))
            total_C1 = tf.reduce_sum(exps_CV, axis=-1, keepdims=True)
            highest_C = tf.cast(highest_C1[:, 0], tf.float32)
            chosen_C = tf.cast(tf.gather(logits_CV, targets_C, batch_dims=1), tf.float32)
            log_total_C = highest_C + tf.math.log(total_C1[:, 0])
            mean_logit_C = tf.linalg.matvec(states32_CD, mean_row_D)
            sums = (
                sums[0] + tf.reduce_sum(log_total_C - (1 - eps) * chosen_C - eps * mean_logit_C),
                sums[1] + tf.reduce_sum(log_total_C - chosen_C),
                sums[2] + tf.reduce_sum(tf.cast(chosen_C >= highest_C, tf.float32)),
            )
            exps_CV = tf.cast(exps_CV, states_ND.dtype)
            d_dense_CD = tf.cast(tf.matmul(exps_CV, matrix_VD), tf.float32) / total_C1
            d_states_CD = d_dense_CD - (1 - eps) * tf.gather(embedding_VD, targets_C) - eps * mean_row_D
            d_states = d_states.write(start // CHUNK, tf.cast(d_states_CD, states_ND.dtype))
            scaled_CD = tf.cast(states32_CD / total_C1, states_ND.dtype)
            d_matrix_VD += tf.cast(tf.matmul(exps_CV, scaled_CD, transpose_a=True), tf.float32)
            return start + CHUNK, sums, d_states, d_matrix_VD

        size = tf.shape(targets_N)[0]
        chunks = tf.TensorArray(
            states_ND.dtype, (size + CHUNK - 1) // CHUNK, infer_shape=False, element_shape=(None, states_ND.shape[-1])
        )
        _, sums, d_states, d_matrix_VD = tf.while_loop(
            lambda start, *_: start < size,
            chunk,
            (tf.constant(0), (tf.constant(0.0),) * 3, chunks, tf.zeros_like(embedding_VD)),
            parallel_iterations=1,
        )
        states32_ND = tf.cast(states_ND, tf.float32)
        d_matrix_VD -= eps / vocab_size * tf.reduce_sum(states32_ND, axis=0)
        d_matrix_VD = tf.tensor_scatter_nd_sub(d_matrix_VD, targets_N[:, None], (1 - eps) * states32_ND)
        d_states_ND = d_states.concat()

        def grad(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return d_states_ND * tf.cast(upstream, d_states_ND.dtype), d_matrix_VD * upstream

        return sums, grad

    smoothed, plain, correct = fused(states_ND, embedding_VD)
    return Loss(smoothed, plain, correct, tf.cast(tf.size(targets_N), tf.float32))
