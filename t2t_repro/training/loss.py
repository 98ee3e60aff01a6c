"""Cross-entropy with label smoothing (section 5.4), from the decoder's states to one number.

Shapes: N target tokens, D d_model, V vocabulary, C tokens of one chunk, K words of one block of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2t_repro.model.kernels import cast_again
from t2t_repro.model.transformer import PAD

CHUNK = 512  # tokens, at most, whose logits exist at one time
BLOCK = 4_000  # words whose logits are computed at one time


class Loss(NamedTuple):
    """Sums over tokens, float32 scalars."""

    smoothed: tf.Tensor  # what is minimised
    plain: tf.Tensor  # negative log-likelihood in nats: exp(plain / tokens) is the perplexity per token
    # Tokens whose likeliest prediction is the target. If several words have the highest logit, in the dtype of the
    # states, `projected_loss` counts any of them as right, and `smoothed_cross_entropy` the one with the lowest id.
    correct: tf.Tensor
    tokens: tf.Tensor


def smoothed_cross_entropy(logits_NV: tf.Tensor, targets_N: tf.Tensor, label_smoothing: float) -> Loss:
    """The cross-entropy against (1 - eps) one-hot + eps / V (Szegedy et al., 2016, section 7), as plainly as can be.

    `logits_NV` float32, `targets_N` int32 without padding.
    """
    log_p_NV = tf.nn.log_softmax(logits_NV)
    plain_N = -tf.gather(log_p_NV, targets_N, batch_dims=1)
    smoothed_N = (1 - label_smoothing) * plain_N - label_smoothing * tf.reduce_mean(log_p_NV, axis=-1)
    correct_N = tf.equal(
        tf.argmax(logits_NV, axis=-1), tf.cast(targets_N, tf.int64)
    )  # a GPU compares int32 on the host
    return Loss(
        tf.reduce_sum(smoothed_N),
        tf.reduce_sum(plain_N),
        tf.reduce_sum(tf.cast(correct_N, tf.float32)),
        tf.cast(tf.size(targets_N), tf.float32),
    )


def vocabulary_blocks(embedding_VD: tf.Tensor) -> list[tf.Tensor]:
    """The matrix cut into blocks of words, so that what is computed of a block is read again while a cache still has
    it. Not on a GPU, where each operation costs its start: there it is one block."""
    vocab_size = embedding_VD.shape[0]
    size = BLOCK if _on_cpu() else vocab_size
    return [embedding_VD[start : start + size] for start in range(0, vocab_size, size)]


def _on_cpu() -> bool:
    return not tf.config.list_physical_devices("GPU")


def projected_loss(
    states_ND: tf.Tensor,
    blocks_KD: Sequence[tf.Tensor],
    rows_ND: tf.Tensor,
    targets_N: tf.Tensor,
    label_smoothing: float,
    factor: tf.Tensor | float = 1.0,
) -> tuple[tf.Tensor, Loss]:
    """`smoothed_cross_entropy` of the logits states_ND embedding_VD^T where targets are not `PAD`, with the gradient
    computed on the way.

    Returns `factor`, a float32 scalar, times the smoothed loss, and the loss itself. Only the former has a gradient. It
    is multiplied by `factor` in float32, before the states' gradient is rounded to their dtype: float16 cannot hold
    most of it without the loss scale, and bfloat16 cannot hold 1 / tokens.

    The embedding is given twice, float32: whole, in `vocabulary_blocks`, and as `rows_ND`, the rows of the targets. Its
    gradient is the sum of both, of which the latter is sparse.

    The loss is a sum, so its gradient is known, up to one factor, as soon as a chunk's softmax is: both products of
    the backward pass are done while the chunk's logits are at hand, and no logits are kept. With p the softmax, the
    gradient with respect to the logits is p - (1 - eps) one-hot - eps / V, of which only p is dense. Sums are taken in
    float32; the logits are in the dtype of `states_ND`.
    """
    eps, vocab_size = label_smoothing, sum(block_KD.shape[0] for block_KD in blocks_KD)
    factor = tf.convert_to_tensor(factor, tf.float32)
    tokens = tf.shape(states_ND)[0]
    chunks = tf.maximum((tokens + CHUNK - 1) // CHUNK, 1)
    size = (tokens + chunks - 1) // chunks  # C: all alike, for XLA knows no others

    def in_chunks(x: tf.Tensor) -> tf.Tensor:
        """[N, ...] as [chunks, C, ...], zeros at the end."""
        padded = tf.pad(x, [[0, chunks * size - tokens]] + [[0, 0]] * (len(x.shape) - 1))
        return tf.reshape(padded, [chunks, size, *x.shape[1:]])

    @tf.custom_gradient
    def fused(
        states_ND: tf.Tensor, rows_ND: tf.Tensor, *blocks_KD: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, ...]]]:
        mean_row_D = tf.add_n([tf.reduce_sum(block_KD, axis=0) for block_KD in blocks_KD]) / vocab_size
        all_states, all_rows, all_targets = in_chunks(states_ND), in_chunks(rows_ND), in_chunks(targets_N)

        def add(number: tf.Tensor, sums: tuple, d_states: tf.TensorArray, d_blocks_KD: tuple[tf.Tensor, ...]) -> tuple:
            chunk = all_states[number], all_rows[number], all_targets[number]
            more, d_states_CD, d_more_KD = _chunk(*chunk, blocks_KD, mean_row_D, eps, factor)
            sums, d_blocks_KD = (tuple(map(tf.add, *both)) for both in ((sums, more), (d_blocks_KD, d_more_KD)))
            return number + 1, sums, d_states.write(number, d_states_CD), d_blocks_KD

        uniform_D = -eps / vocab_size * tf.reduce_sum(tf.cast(states_ND, tf.float32), axis=0)
        _, sums, d_states, d_blocks_KD = tf.while_loop(
            lambda number, *_: number < chunks,
            add,
            (
                tf.constant(0),
                (tf.constant(0.0),) * 3,
                tf.TensorArray(states_ND.dtype, chunks, element_shape=(None, states_ND.shape[-1])),
                tuple(tf.broadcast_to(uniform_D, block_KD.shape) for block_KD in blocks_KD),
            ),
            parallel_iterations=1,
        )
        # not `concat`, for which a GPU copies the lengths of all chunks to the host
        d_states_ND = tf.reshape(d_states.stack(), [-1, states_ND.shape[-1]])[:tokens]

        def grad(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_rows_ND = cast_again(states_ND, tf.float32, upstream) * ((eps - 1) * factor * upstream)
            d_states = d_states_ND * tf.cast(upstream, d_states_ND.dtype)
            return d_states, d_rows_ND, *(d_block_KD * (factor * upstream) for d_block_KD in d_blocks_KD)

        return (factor * sums[0], *sums), grad

    # a state of zeros has no part in the gradient of the embedding, nor gets one itself
    real_N = targets_N != PAD
    scaled, *sums = fused(tf.where(real_N[:, None], states_ND, 0), rows_ND, *blocks_KD)
    return scaled, Loss(*sums, tf.math.count_nonzero(real_N, dtype=tf.float32))


def _chunk(
    states_CD: tf.Tensor,
    rows_CD: tf.Tensor,
    targets_C: tf.Tensor,
    blocks_KD: Sequence[tf.Tensor],
    mean_row_D: tf.Tensor,
    eps: float,
    factor: tf.Tensor,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, list[tf.Tensor]]:
    """Of one chunk: the first three numbers of `Loss`, and the gradient of the first of them with respect to the
    states, times `factor`, in their dtype, and, where it is that of p, to each block of the embedding, float32."""
    states32_CD, real_C = tf.cast(states_CD, tf.float32), tf.cast(targets_C != PAD, tf.float32)
    logits_CK = _logits(states_CD, blocks_KD)
    highest_C, exps_CK, total_C = _exps(logits_CK)
    chosen_C = tf.cast(_chosen(logits_CK, targets_C), tf.float32)
    log_total_C = highest_C + tf.math.log(total_C)
    mean_logit_C = tf.linalg.matvec(states32_CD, mean_row_D)
    sums = (
        tf.reduce_sum(real_C * (log_total_C - (1 - eps) * chosen_C - eps * mean_logit_C)),
        tf.reduce_sum(real_C * (log_total_C - chosen_C)),
        tf.reduce_sum(real_C * tf.cast(chosen_C >= highest_C, tf.float32)),
    )
    expected_CD = _weighted_sum(exps_CK, blocks_KD) * (factor / total_C)[:, None]
    d_states_CD = expected_CD - ((1 - eps) * factor) * rows_CD - (eps * factor) * mean_row_D
    scaled_CD = tf.cast(states32_CD / total_C[:, None], states_CD.dtype)
    return sums, tf.cast(d_states_CD, states_CD.dtype), [_product(block_CK, scaled_CD) for block_CK in exps_CK]


def _product(weights_CK: tf.Tensor, states_CD: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.matmul(weights_CK, states_CD, transpose_a=True), tf.float32)


def _logits(states_CD: tf.Tensor, blocks_KD: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Of each block, in the dtype of the states."""
    logits_CK: list[tf.Tensor] = []
    for block_KD in blocks_KD:
        logits_CK.append(tf.matmul(states_CD, _narrow(block_KD, states_CD.dtype, logits_CK[-1:]), transpose_b=True))
    return logits_CK


def _exps(logits_CK: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """The highest logit of all blocks [C], float32; exp(logits - highest) of each, in their dtype; the sum of all
    these [C], float32."""
    highest_C = tf.reduce_max(tf.stack([_highest(block_CK) for block_CK in logits_CK]), axis=0)
    exps_CK = [tf.exp(tf.cast(block_CK - highest_C[:, None], tf.float32)) for block_CK in logits_CK]
    total_C = tf.add_n([tf.reduce_sum(block_CK, axis=-1) for block_CK in exps_CK])
    return tf.cast(highest_C, tf.float32), [tf.cast(block_CK, highest_C.dtype) for block_CK in exps_CK], total_C


def _highest(x_CK: tf.Tensor) -> tf.Tensor:
    """The highest of each row [C]. The bits of floating-point numbers, read as integers, are in the same order where
    the sign is +, and in the opposite where it is -: and of integers TensorFlow takes a sixth of the time on a CPU."""
    if x_CK.dtype.size != 2 or not _on_cpu():
        return tf.reduce_max(x_CK, axis=-1)
    bits_CK = tf.bitcast(x_CK, tf.int16)
    highest_C, lowest_C = tf.reduce_max(bits_CK, axis=-1), tf.reduce_min(bits_CK, axis=-1)
    return tf.bitcast(tf.where(highest_C >= 0, highest_C, lowest_C), x_CK.dtype)


def _weighted_sum(weights_CK: Sequence[tf.Tensor], blocks_KD: Sequence[tf.Tensor]) -> tf.Tensor:
    """The rows of all blocks by their weights: [C, D], float32."""
    parts_CD: list[tf.Tensor] = []
    for block_CK, block_KD in zip(weights_CK, blocks_KD, strict=True):
        product_CD = tf.matmul(block_CK, _narrow(block_KD, block_CK.dtype, [*weights_CK, *parts_CD[-1:]]))
        parts_CD.append(tf.cast(product_CD, tf.float32))
    return tf.add_n(parts_CD)


def _narrow(block_KD: tf.Tensor, dtype: tf.DType, after: Sequence[tf.Tensor]) -> tf.Tensor:
    """The block in that dtype, cast when `after` is there: so the whole matrix never is, nor a block twice as long."""
    with tf.control_dependencies(after):
        return tf.cast(block_KD, dtype)


def _chosen(logits_CK: list[tf.Tensor], targets_C: tf.Tensor) -> tf.Tensor:
    """The logit of each target: [C]."""
    size = logits_CK[0].shape[1]
    block_C, word_C = targets_C // size, targets_C % size
    chosen_C = tf.zeros_like(logits_CK[0][:, 0])
    for number, block_CK in enumerate(logits_CK):
        found_C = tf.gather(block_CK, tf.minimum(word_C, block_CK.shape[1] - 1), batch_dims=1)
        chosen_C = tf.where(block_C == number, found_C, chosen_C)
    return chosen_C
