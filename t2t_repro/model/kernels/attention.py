"""Scaled dot-product attention, its heads and the caches of decoding.

Shapes: B batch, L query length, M key length, T rows (B L), H heads, K d_k, E d_v, O = H K or H E.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from t2t_repro.model.flat_rows import flat_rows, from_rows
from t2t_repro.model.kernels.casts import cast_again
from t2t_repro.model.kernels.context import setting
from t2t_repro.model.kernels.onednn import matmul, softmax
from t2t_repro.model.kernels.products import in_prepared_products
from t2t_repro.model.kernels.residual import drop_with
from t2t_repro.model.random_masks import keep_mask


def cache_with_room(cache_BHMK: Any, kept_BN: Any, entries: Any) -> Any:
    """Returns [B, H, entries, K]: the entries `kept_BN` of a cache, and zeros after them."""
    kept_BHNK = tf.gather(cache_BHMK, kept_BN, axis=2, batch_dims=1)
    return tf.pad(kept_BHNK, ((0, 0), (0, 0), (0, entries - tf.shape(kept_BN)[1]), (0, 0)))


def cache_writer(keys_BHMK: Any, values_BHME: Any, width: Any, place: Any) -> Callable[[Any, Any], Any]:
    """Returns (cache, new) -> cache with the entries `new` [B, H, W, K or E] from entry `place` times W on, for every
    layer.

    All caches have the shapes of the given one, and their number of entries is a multiple of `width`, W. A cache is
    overwritten in place, so nothing may read it afterwards but the result, and its memory must be its own.
    """
    batch, heads, entries, _ = tf.unstack(tf.shape(keys_BHMK))
    rows = tf.range(batch * heads) * (entries // width) + place
    shapes = {
        size: (tf.stack([-1, width * size]), tf.stack([batch, heads, entries, size]))
        for size in {keys_BHMK.shape[3], values_BHME.shape[3]}
    }

    def write(cache_BHMK: Any, new_BHWK: Any) -> Any:
        in_rows, complete = shapes[cache_BHMK.shape[3]]
        old, new = (tf.reshape(each, in_rows) for each in (cache_BHMK, new_BHWK))
        written_BHMK = tf.reshape(tf.raw_ops.InplaceUpdate(x=old, i=rows, v=new), complete)
        written_BHMK.set_shape(cache_BHMK.shape)
        return written_BHMK

    return write


def split_heads(x_BLO: Any, num_heads: int) -> Any:
    """Returns [B, L, H K] as [B, H, L, K]."""
    x_TO, sizes = flat_rows(x_BLO)
    heads_BHLK = _swapped(sizes.restore(x_TO, num_heads, x_TO.shape[-1] // num_heads))
    heads_BHLK._t2t_sizes = sizes
    return heads_BHLK


def join_heads(heads_BHLE: Any) -> Any:
    """Returns [B, H, L, E] as [B, L, H E]: Concat(head_1, ..., head_h)."""
    sizes, x_BLHE = getattr(heads_BHLE, "_t2t_sizes", None), _swapped(heads_BHLE)
    if sizes is None:
        return tf.reshape(x_BLHE, [-1, tf.shape(x_BLHE)[1], x_BLHE.shape[2] * x_BLHE.shape[3]])
    return from_rows(tf.reshape(x_BLHE, [-1, x_BLHE.shape[2] * x_BLHE.shape[3]]), sizes)


def _swapped(x: Any) -> Any:
    """Returns x with the second and third axes swapped.

    Inside `prepared_products` x is swapped as integers, without a gradient: TensorFlow moves integers in its own loop,
    and floating-point numbers with oneDNN, which takes longer to start.
    """
    if not in_prepared_products():
        return tf.transpose(x, (0, 2, 1, 3))
    return swapped_as_integers(x)


def swapped_as_integers(x: Any) -> Any:
    """Returns x with the second and third axes swapped, without a gradient."""
    integers = tf.bitcast(x, tf.int16 if x.dtype.size == 2 else tf.int32)
    return tf.bitcast(tf.transpose(integers, (0, 2, 1, 3)), x.dtype)


def scaled_dot_product_attention(
    queries_BHLK: Any,
    keys_BHMK: Any,
    values_BHME: Any,
    bias: Any,
    dropout_rate: float = 0.0,
    seed: Any = None,
    name: str = "",
) -> Any:
    """softmax(Q K^T / sqrt(d_k) + bias) V (section 3.2.1, eq. 1): [B, H, L, E], in the dtype of V.

    Inside `recorded_attention` and `prepared_products` there is no dropout.

    Args:
        bias: float32, broadcast to [B, H, L, M]: 0, or `attention.MASKED` for masked keys.
        dropout_rate: of the softmax.
        seed: of that dropout, [2] int32; None for no dropout.
        name: the name under which `recorded_attention` keeps the softmax.
    """
    record = _RECORD.get()
    if record is not None or in_prepared_products():
        weights_BHLM = attention_weights(queries_BHLK, keys_BHMK, bias)
        if record is not None:
            record[name] = weights_BHLM
        heads_BHLE = matmul(tf.cast(weights_BHLM, values_BHME.dtype), values_BHME)
    else:
        attend = tf.custom_gradient(lambda *qkv: _attention(*qkv, bias=bias, dropout_rate=dropout_rate, seed=seed))
        heads_BHLE = attend(queries_BHLK, keys_BHMK, values_BHME)
    heads_BHLE._t2t_sizes = getattr(queries_BHLK, "_t2t_sizes", None)
    return heads_BHLE


def attention_weights(queries_BHLK: Any, keys_BHMK: Any, bias: Any) -> Any:
    """softmax(Q K^T / sqrt(d_k) + bias), float32: [B, H, L, M]. A softmax in a narrow dtype loses small weights."""
    scaled_BHLK = queries_BHLK * (1 / math.sqrt(queries_BHLK.shape[-1]))
    scores_BHLM = matmul(scaled_BHLK, keys_BHMK, transpose_b=True)
    return softmax(tf.cast(scores_BHLM, tf.float32) + bias)


def _attention(
    queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any, *, bias: Any, dropout_rate: float, seed: Any
) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
    """O = P V for the softmax P of the scores S, and its gradient: dV = P^T dO, dP = dO V^T, dS = P (dP - sum(P dP)).

    The backward pass keeps P in the dtype of the product: in bfloat16 a third of what automatic differentiation keeps.
    """
    dtype, scale = values_BHME.dtype, 1 / math.sqrt(queries_BHLK.shape[-1])
    narrow_BHLM = tf.cast(attention_weights(queries_BHLK, keys_BHMK, bias), dtype)
    drop: Callable[[Any], Any] = tf.identity
    if seed is not None and dropout_rate:
        drop = drop_with(keep_mask(narrow_BHLM, dropout_rate, seed), dropout_rate)
    dropped_BHLM = drop(narrow_BHLM)

    def grad(d_heads_BHLE: Any) -> tuple[Any, Any, Any]:
        d_weights_BHLM = drop(tf.matmul(d_heads_BHLE, values_BHME, transpose_b=True))
        weights_BHLM = cast_again(narrow_BHLM, tf.float32, d_heads_BHLE)
        d_scores_BHLM = weights_BHLM * tf.cast(d_weights_BHLM, tf.float32)
        d_scores_BHLM -= weights_BHLM * tf.reduce_sum(d_scores_BHLM, axis=-1, keepdims=True)
        d_scores_BHLM = tf.cast(d_scores_BHLM, dtype)
        d_queries_BHLK = tf.matmul(d_scores_BHLM, keys_BHMK) * scale
        d_keys_BHMK = tf.matmul(d_scores_BHLM, queries_BHLK * scale, transpose_a=True)
        return d_queries_BHLK, d_keys_BHMK, tf.matmul(dropped_BHLM, d_heads_BHLE, transpose_a=True)

    return tf.matmul(dropped_BHLM, values_BHME), grad


_RECORD: ContextVar[dict[str, Any] | None] = ContextVar("record", default=None)


@contextlib.contextmanager
def recorded_attention() -> Iterator[dict[str, Any]]:
    """Records the attention weights [B, H, L, M], float32, of each call in the context, by its name."""
    with setting(_RECORD, {}) as record:
        yield record
