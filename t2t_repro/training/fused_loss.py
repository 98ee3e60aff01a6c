"""The loss and its gradient from the decoder's states, without storing the logits.

`projected_loss` is `loss.smoothed_cross_entropy` of the logits states embedding^T. The loss is a sum over tokens, so
the softmax of a chunk determines the chunk's gradient up to one factor. Both products of the backward pass are computed
while the chunk's logits exist. If p is the softmax, the gradient with respect to the logits is p - (1 - eps) one-hot -
eps / V. Only p is dense. Sums are taken in float32; the logits have the dtype of the states.

With R-Drop it is `loss.r_drop_loss`, and a chunk holds both passes of its tokens. If q is the softmax of the other
pass and z the difference of their logits, KL(p || q) + KL(q || p) = sum (p - q) z, because the normalizers cancel. Its
gradient with respect to the logits of p is p - q + p (z - sum p z).

Peak memory of a step of base in bfloat16: blocks of the vocabulary save 100 MB, and casting them one after the other
saves 30 MB more.

Shapes: T target tokens, D d_model, V vocabulary, C tokens of one chunk, J subwords of one block of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2t_repro.model.kernels import cast_again
from t2t_repro.text.token_ids import PAD
from t2t_repro.training.loss import Loss

CHUNK = 512  # maximum number of tokens whose logits exist at one time
BLOCK = 4_000  # subwords whose logits are computed at one time

Sums = tuple[tf.Tensor, ...]  # the first three numbers of `Loss`


def vocabulary_blocks(embedding_VD: tf.Tensor) -> list[tf.Tensor]:
    """Splits the matrix into blocks of subwords, so that the results for a block are still cached when they are read.

    On a GPU, where launching each operation has a cost, the matrix is one block.
    """
    vocab_size = embedding_VD.shape[0]
    size = vocab_size if tf.config.list_physical_devices("GPU") else BLOCK
    return [embedding_VD[start : start + size] for start in range(0, vocab_size, size)]


def projected_loss(
    states_TD: tf.Tensor,
    blocks_JD: Sequence[tf.Tensor],
    rows_TD: tf.Tensor,
    targets_T: tf.Tensor,
    label_smoothing: float,
    factor: tf.Tensor | float = 1.0,
    r_drop: float = 0.0,
) -> tuple[tf.Tensor, Loss]:
    """Computes `smoothed_cross_entropy` of the logits states embedding^T, over the targets that are not `PAD`.

    Returns `factor` times the smoothed loss, and the loss itself. Only the former has a gradient. With `r_drop` above
    0, computes `r_drop_loss`.

    Args:
        states_TD: the decoder's output. With `r_drop`, that of a pass and then that of another, of the same targets.
        blocks_JD: the embedding, float32, in `vocabulary_blocks`.
        rows_TD: the rows of the embedding for the targets, float32. The embedding's gradient is the sum of the
            gradients of blocks and rows. That of the rows is sparse.
        targets_T: the token ids, int32.
        label_smoothing: eps.
        factor: a float32 scalar. It is applied before the states' gradient is rounded to their dtype: without the loss
            scale most of that gradient underflows in float16, and bfloat16 cannot represent 1 / tokens.
        r_drop: alpha.
    """
    factor, eps = tf.convert_to_tensor(factor, tf.float32), label_smoothing
    if r_drop:  # from here on the sum over both passes, instead of their mean
        factor /= 2

    @tf.custom_gradient
    def fused(
        states_TD: tf.Tensor, rows_TD: tf.Tensor, *blocks_JD: tf.Tensor
    ) -> tuple[Sums, Callable[..., tuple[tf.Tensor, ...]]]:
        sums, d_states_TD, d_blocks_JD = _over_chunks(states_TD, rows_TD, targets_T, blocks_JD, eps, factor, r_drop)

        def grad(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_rows_TD = cast_again(states_TD, tf.float32, upstream) * ((eps - 1) * factor * upstream)
            d_states = d_states_TD * tf.cast(upstream, d_states_TD.dtype)
            return d_states, d_rows_TD, *(d_block_JD * (factor * upstream) for d_block_JD in d_blocks_JD)

        return (factor * sums[0], *sums), grad

    # a state of zeros adds nothing to the gradient of the embedding, and gets no gradient
    real_T = targets_T != PAD
    scaled, smoothed, plain, correct = fused(tf.where(real_T[:, None], states_TD, 0), rows_TD, *blocks_JD)
    loss = Loss(smoothed, plain, correct, tf.math.count_nonzero(real_T, dtype=tf.float32))
    return scaled, Loss(*(each / 2 for each in loss)) if r_drop else loss


def _over_chunks(
    states_TD: tf.Tensor,
    rows_TD: tf.Tensor,
    targets_T: tf.Tensor,
    blocks_JD: Sequence[tf.Tensor],
    eps: float,
    factor: tf.Tensor,
    r_drop: float,
) -> tuple[Sums, tf.Tensor, tuple[tf.Tensor, ...]]:
    """Returns the sums of `_chunk` over all chunks and the gradients of states and blocks.

    The states' gradient includes `factor`. The blocks' gradient does not, and excludes the targets' rows.
    """
    vocab_size, rows = sum(block_JD.shape[0] for block_JD in blocks_JD), tf.shape(states_TD)[0]
    chunks = tf.maximum((rows + CHUNK - 1) // CHUNK, 1)
    tokens = rows // 2 if r_drop else rows  # of each pass
    size = (tokens + chunks - 1) // chunks  # one size, because XLA needs static shapes
    mean_row_D = tf.add_n([tf.reduce_sum(block_JD, axis=0) for block_JD in blocks_JD]) / vocab_size
    inputs = [_in_chunks(each, chunks, size, r_drop) for each in (states_TD, rows_TD, targets_T)]

    def add(number: tf.Tensor, sums: Sums, d_states: tf.TensorArray, d_blocks_JD: tuple[tf.Tensor, ...]) -> Any:
        states_CD, rows_CD, targets_C = (each[number] for each in inputs)
        chunk = states_CD, rows_CD, targets_C, blocks_JD, mean_row_D, eps, factor, r_drop
        more, d_states_CD, d_more_JD = _chunk(*chunk)
        sums, d_blocks_JD = (tuple(map(tf.add, *both)) for both in ((sums, more), (d_blocks_JD, d_more_JD)))
        return number + 1, sums, d_states.write(number, d_states_CD), d_blocks_JD

    uniform_D = -eps / vocab_size * tf.reduce_sum(tf.cast(states_TD, tf.float32), axis=0)
    start = (
        tf.constant(0),
        (tf.constant(0.0),) * 3,
        tf.TensorArray(states_TD.dtype, chunks, element_shape=(None, states_TD.shape[-1])),
        tuple(tf.broadcast_to(uniform_D, block_JD.shape) for block_JD in blocks_JD),
    )
    _, sums, d_states, d_blocks_JD = tf.while_loop(
        lambda number, *_: number < chunks, add, start, parallel_iterations=1
    )
    # not `concat`: on a GPU it copies the lengths of all chunks to the host
    d_states_NCD = d_states.stack()
    parts = tf.split(d_states_NCD, 2, axis=1) if r_drop else [d_states_NCD]
    d_passes_TD = [tf.reshape(part, [-1, states_TD.shape[-1]])[:tokens] for part in parts]
    return sums, tf.concat(d_passes_TD, axis=0) if r_drop else d_passes_TD[0], d_blocks_JD


def _in_chunks(x: tf.Tensor, chunks: tf.Tensor, size: tf.Tensor, r_drop: float = 0.0) -> tf.Tensor:
    """Returns [T, ...] as N chunks [N, C, ...], padded with zeros; with `r_drop` both passes of a token are in one."""
    if r_drop:
        return tf.concat([_in_chunks(each, chunks, size) for each in tf.split(x, 2)], axis=1)
    padded = tf.pad(x, [[0, chunks * size - tf.shape(x)[0]]] + [[0, 0]] * (len(x.shape) - 1))
    return tf.reshape(padded, [chunks, size, *x.shape[1:]])


def _chunk(
    states_CD: tf.Tensor,
    rows_CD: tf.Tensor,
    targets_C: tf.Tensor,
    blocks_JD: Sequence[tf.Tensor],
    mean_row_D: tf.Tensor,
    eps: float,
    factor: tf.Tensor,
    r_drop: float,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, list[tf.Tensor]]:
    """Returns the first three numbers of `Loss` for one chunk, and the gradients of the first one.

    The gradient with respect to the states includes `factor` and has their dtype. The gradient with respect to each
    block of the embedding is float32, and contains only the term of p.
    """
    states32_CD, real_C = tf.cast(states_CD, tf.float32), tf.cast(targets_C != PAD, tf.float32)
    logits_CJ = _logits(states_CD, blocks_JD)
    highest_C, exps_CJ, total_C = _exps(logits_CJ)
    chosen_C = tf.cast(_chosen(logits_CJ, targets_C), tf.float32)
    log_total_C = highest_C + tf.math.log(total_C)
    mean_logit_C = tf.linalg.matvec(states32_CD, mean_row_D)
    sums = (
        tf.reduce_sum(real_C * (log_total_C - (1 - eps) * chosen_C - eps * mean_logit_C)),
        tf.reduce_sum(real_C * (log_total_C - chosen_C)),
        tf.reduce_sum(real_C * tf.cast(chosen_C >= highest_C, tf.float32)),
    )
    weights_CJ = exps_CJ  # `total_C` times the dense part of the logits' gradient
    if r_drop:
        divergence, weights_CJ = _divergence(logits_CJ, exps_CJ, total_C, r_drop / 2)
        sums, total_C = (sums[0] + divergence, *sums[1:]), tf.ones_like(total_C)
    weights_CJ = [tf.cast(block_CJ, states_CD.dtype) for block_CJ in weights_CJ]
    expected_CD = _weighted_sum(weights_CJ, blocks_JD) * (factor / total_C)[:, None]
    d_states_CD = expected_CD - ((1 - eps) * factor) * rows_CD - (eps * factor) * mean_row_D
    scaled_CD = tf.cast(states32_CD / total_C[:, None], states_CD.dtype)
    d_blocks_JD = [tf.cast(tf.matmul(block_CJ, scaled_CD, transpose_a=True), tf.float32) for block_CJ in weights_CJ]
    return sums, tf.cast(d_states_CD, states_CD.dtype), d_blocks_JD


def _logits(states_CD: tf.Tensor, blocks_JD: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the logits of each block in the dtype of the states."""
    logits_CJ: list[tf.Tensor] = []
    for block_JD in blocks_JD:
        logits_CJ.append(tf.matmul(states_CD, _narrow(block_JD, states_CD.dtype, logits_CJ[-1:]), transpose_b=True))
    return logits_CJ


def _exps(logits_CJ: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Returns the maximum logit over all blocks [C], exp(logits - maximum) of each block, and their sum [C].

    All are float32.
    """
    highest_C = tf.reduce_max(tf.stack([_highest(block_CJ) for block_CJ in logits_CJ]), axis=0)
    highest_C = tf.cast(highest_C, tf.float32)
    exps_CJ = [tf.exp(tf.cast(block_CJ, tf.float32) - highest_C[:, None]) for block_CJ in logits_CJ]
    total_C = tf.add_n([tf.reduce_sum(block_CJ, axis=-1) for block_CJ in exps_CJ])
    return highest_C, exps_CJ, total_C


def _divergence(
    logits_CJ: Sequence[tf.Tensor], exps_CJ: Sequence[tf.Tensor], total_C: tf.Tensor, weight: float
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns `weight` (KL(p || q) + KL(q || p)), summed over the tokens, and p plus the gradient of that sum.

    p are the softmaxes of both passes, the halves of the axis of C, and q those of the other pass. With respect to the
    logits of p, the gradient is

        p + weight (p - q + p (z - sum p z)) = u ((1 + weight - sum u z) / weight + z) - v

    for u = weight p and v = weight q. The second pass has -z, and u and v change places. Each block of gradients has
    the dtype of the logits.
    """
    half = tf.shape(total_C)[0] // 2
    blocks: list[tuple[tf.Tensor, ...]] = []  # of each: u, v and z of the first pass
    for block_CJ, block_exps_CJ in zip(logits_CJ, exps_CJ, strict=True):
        wide_CJ = tf.cast(block_CJ, tf.float32)
        u_CJ = block_exps_CJ * (weight / total_C)[:, None]
        blocks.append((u_CJ[:half], u_CJ[half:], wide_CJ[:half] - wide_CJ[half:]))
    mean = tf.add_n([tf.reduce_sum(u * z, axis=-1, keepdims=True) for u, _, z in blocks])
    other_mean = tf.add_n([tf.reduce_sum(v * z, axis=-1, keepdims=True) for _, v, z in blocks])
    own, others = (1 + weight - mean) / weight, (1 + weight + other_mean) / weight
    gradients_CJ = []
    for u, v, z in blocks:
        both = u * (own + z) - v, v * (others - z) - u
        gradients_CJ.append(tf.concat([tf.cast(each, logits_CJ[0].dtype) for each in both], axis=0))
    return tf.reduce_sum(mean - other_mean), gradients_CJ


def _highest(x_CJ: tf.Tensor) -> tf.Tensor:
    """Returns the maximum of each row: [C].

    Numbers of 16 bits are compared by their bits, as integers: positive numbers have the same order, negative ones the
    opposite. On a CPU, TensorFlow takes a third of the time for them.
    """
    if x_CJ.dtype.size != 2 or tf.config.list_physical_devices("GPU"):
        return tf.reduce_max(x_CJ, axis=-1)
    bits_CJ = tf.bitcast(x_CJ, tf.int16)
    highest_C, lowest_C = tf.reduce_max(bits_CJ, axis=-1), tf.reduce_min(bits_CJ, axis=-1)
    return tf.bitcast(tf.where(highest_C >= 0, highest_C, lowest_C), x_CJ.dtype)


def _weighted_sum(weights_CJ: Sequence[tf.Tensor], blocks_JD: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the weighted sum of the rows of all blocks: [C, D], float32."""
    parts_CD: list[tf.Tensor] = []
    for block_CJ, block_JD in zip(weights_CJ, blocks_JD, strict=True):
        product_CD = tf.matmul(block_CJ, _narrow(block_JD, block_CJ.dtype, [*weights_CJ, *parts_CD[-1:]]))
        parts_CD.append(tf.cast(product_CD, tf.float32))
    return tf.add_n(parts_CD)


def _narrow(block_JD: tf.Tensor, dtype: tf.DType, after: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the block in `dtype`. It is cast after `after` is computed, so only one cast block exists at a time."""
    with tf.control_dependencies(after):
        return tf.cast(block_JD, dtype)


def _chosen(logits_CJ: list[tf.Tensor], targets_C: tf.Tensor) -> tf.Tensor:
    """Returns the logit of each target: [C]."""
    size = logits_CJ[0].shape[1]
    block_C, word_C = targets_C // size, targets_C % size
    chosen_C = tf.zeros_like(logits_CJ[0][:, 0])
    for number, block_CJ in enumerate(logits_CJ):
        found_C = tf.gather(block_CJ, tf.minimum(word_C, block_CJ.shape[1] - 1), batch_dims=1)
        chosen_C = tf.where(block_C == number, found_C, chosen_C)
    return chosen_C
