"""Cross-entropy with label smoothing (section 5.4), from the decoder's states to one number.

Shapes: N target tokens, D d_model, V vocabulary, C tokens of one chunk, K words of one block of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

CHUNK = 512  # tokens whose logits exist at one time
BLOCK = 4_000  # words whose logits are computed at one time


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

    The vocabulary is cut into blocks, so that what is computed of a block is read again while a cache still has it; not
    on a GPU, where each operation costs its start.
    """
    eps, vocab_size = label_smoothing, embedding_VD.shape[0]
    size = vocab_size if tf.config.list_physical_devices("GPU") else BLOCK
    starts = range(0, vocab_size, size)

    @tf.custom_gradient
    def fused(states_ND: tf.Tensor, embedding_VD: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], object]:
        mean_row_D = tf.linalg.matvec(embedding_VD, tf.fill([vocab_size], 1 / vocab_size), transpose_a=True)

        def chunk(first: tf.Tensor, sums: tuple, d_states: tf.TensorArray, d_blocks_KD: tuple[tf.Tensor, ...]) -> tuple:
            states_CD, targets_C = states_ND[first : first + CHUNK], targets_N[first : first + CHUNK]
            states32_CD = tf.cast(states_CD, tf.float32)
            # cast for each chunk anew, so that the whole matrix is never there in that dtype
            blocks_KD = [tf.cast(embedding_VD[start : start + size], states_ND.dtype) for start in starts]
            logits_CK = [tf.matmul(states_CD, block_KD, transpose_b=True) for block_KD in blocks_KD]
            highest_C = _over(tf.reduce_max, [tf.reduce_max(block_CK, axis=-1) for block_CK in logits_CK])
            exps_CK = [tf.exp(tf.cast(block_CK - highest_C[:, None], tf.float32)) for block_CK in logits_CK]
            total_C = _over(tf.reduce_sum, [tf.reduce_sum(block_CK, axis=-1) for block_CK in exps_CK])
            chosen_C = tf.cast(_chosen(logits_CK, targets_C), tf.float32)
            highest_C = tf.cast(highest_C, tf.float32)
            log_total_C = highest_C + tf.math.log(total_C)
            mean_logit_C = tf.linalg.matvec(states32_CD, mean_row_D)
            sums = (
                sums[0] + tf.reduce_sum(log_total_C - (1 - eps) * chosen_C - eps * mean_logit_C),
                sums[1] + tf.reduce_sum(log_total_C - chosen_C),
                sums[2] + tf.reduce_sum(tf.cast(chosen_C >= highest_C, tf.float32)),
            )
            exps_CK = [tf.cast(block_CK, states_ND.dtype) for block_CK in exps_CK]
            parts_CD = [tf.cast(tf.matmul(*both), tf.float32) for both in zip(exps_CK, blocks_KD, strict=True)]
            d_states_CD = tf.add_n(parts_CD) / total_C[:, None]
            d_states_CD -= (1 - eps) * tf.gather(embedding_VD, targets_C) + eps * mean_row_D
            d_states = d_states.write(first // CHUNK, tf.cast(d_states_CD, states_ND.dtype))
            scaled_CD = tf.cast(states32_CD / total_C[:, None], states_ND.dtype)
            d_blocks_KD = tuple(
                d_block_KD + tf.cast(tf.matmul(block_CK, scaled_CD, transpose_a=True), tf.float32)
                for d_block_KD, block_CK in zip(d_blocks_KD, exps_CK, strict=True)
            )
            return first + CHUNK, sums, d_states, d_blocks_KD

        tokens = tf.shape(targets_N)[0]
        chunks = tf.TensorArray(
            states_ND.dtype, (tokens + CHUNK - 1) // CHUNK, infer_shape=False, element_shape=(None, states_ND.shape[-1])
        )
        zeros_KD = tuple(tf.zeros_like(embedding_VD[start : start + size]) for start in starts)
        _, sums, d_states, d_blocks_KD = tf.while_loop(
            lambda first, *_: first < tokens,
            chunk,
            (tf.constant(0), (tf.constant(0.0),) * 3, chunks, zeros_KD),
            parallel_iterations=1,
        )
        states32_ND = tf.cast(states_ND, tf.float32)
        d_matrix_VD = tf.concat(d_blocks_KD, axis=0) - eps / vocab_size * tf.reduce_sum(states32_ND, axis=0)
        d_matrix_VD = tf.tensor_scatter_nd_sub(d_matrix_VD, targets_N[:, None], (1 - eps) * states32_ND)
        d_states_ND = d_states.concat()

        def grad(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return d_states_ND * tf.cast(upstream, d_states_ND.dtype), d_matrix_VD * upstream

        return sums, grad

    smoothed, plain, correct = fused(states_ND, embedding_VD)
    return Loss(smoothed, plain, correct, tf.cast(tf.size(targets_N), tf.float32))


def _over(reduce: Callable[..., tf.Tensor], of_blocks_C: list[tf.Tensor]) -> tf.Tensor:
    """What `reduce` has given of each block, reduced over the blocks: [C]."""
    return reduce(tf.stack(of_blocks_C), axis=0)


def _chosen(logits_CK: list[tf.Tensor], targets_C: tf.Tensor) -> tf.Tensor:
    """The logit of each target: [C]."""
    size = logits_CK[0].shape[1]
    block_C, word_C = targets_C // size, targets_C % size
    chosen_C = tf.zeros_like(logits_CK[0][:, 0])
    for number, block_CK in enumerate(logits_CK):
        found_C = tf.gather(block_CK, tf.minimum(word_C, block_CK.shape[1] - 1), batch_dims=1)
        chosen_C = tf.where(block_C == number, found_C, chosen_C)
    return chosen_C
