"""Attention (section 3.2).

Shapes: B batch, L query length, M key length, N rows of all sentences (B L or B M), D d_model, H heads, K d_k, E d_v.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from t2t_repro.model.layers import Dropout, Layer, cast_again, linear

# What is added to the score of a masked key. The paper has -inf; the largest finite float32 gives the same weights, and
# uniform ones instead of NaN in a row that is padding throughout.
MASKED = -3.4e38


def mask_bias(visible: Any) -> Any:
    """The float32 term to add to scores: 0 where `visible` is true, `MASKED` where it is not."""
    return ops.where(visible, 0.0, MASKED)


def attention(queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any, bias_BHLM: Any) -> tuple[Any, Any]:
    """softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, eq. 1), and the softmax itself.

    `bias_BHLM` (float32, broadcast) is added to the scores. Returns [B, H, L, E] in the dtype of the values, and the
    weights [B, H, L, M] in float32: a softmax in a narrow dtype loses the small ones.
    """
    scale = 1 / math.sqrt(queries_BHLK.shape[-1])
    scores_BHLM = ops.matmul(queries_BHLK * scale, ops.transpose(keys_BHMK, (0, 1, 3, 2)))
    weights_BHLM = ops.softmax(ops.cast(scores_BHLM, "float32") + bias_BHLM)
    return ops.matmul(ops.cast(weights_BHLM, values_BHME.dtype), values_BHME), weights_BHLM


def attention_with_gradient(
    queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any, bias_BHLM: Any, drop: Callable[[Any], Any] | None = None
) -> Any:
    """The first of what `attention` returns, by weights on which `drop` has fallen (see `Dropout.drawn`).

    With P the softmax, O = P V and S the scores, dV = P^T dO, dP = dO V^T and dS = P (dP - sum(P dP)): what is kept for
    that is P as it was multiplied, in bfloat16 a third of what automatic differentiation keeps.
    """
    scale = 1 / math.sqrt(queries_BHLK.shape[-1])

    @ops.custom_gradient
    def attended(queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any) -> Any:
        dtype, scaled_BHLK = values_BHME.dtype, queries_BHLK * scale
        scores_BHLM = ops.matmul(scaled_BHLK, _swapped(keys_BHMK))
        weights_BHLM = ops.softmax(ops.cast(scores_BHLM, "float32") + bias_BHLM)
        narrow_BHLM = ops.cast(weights_BHLM, dtype)
        dropped_BHLM = drop(narrow_BHLM) if drop else narrow_BHLM

        def grad(*args: Any, upstream: Any = None) -> tuple[Any, Any, Any]:
            d_heads_BHLE = args[0] if upstream is None else upstream
            d_dropped_BHLM = ops.matmul(d_heads_BHLE, _swapped(values_BHME))
            d_weights_BHLM = drop(d_dropped_BHLM) if drop else d_dropped_BHLM
            weights_BHLM = cast_again(narrow_BHLM, "float32", d_heads_BHLE)
            d_scores_BHLM = weights_BHLM * ops.cast(d_weights_BHLM, "float32")
            d_scores_BHLM -= weights_BHLM * ops.sum(d_scores_BHLM, axis=-1, keepdims=True)
            d_scores_BHLM = ops.cast(d_scores_BHLM, dtype)
            d_queries_BHLK = ops.matmul(d_scores_BHLM, keys_BHMK) * scale
            d_keys_BHMK = ops.matmul(_swapped(d_scores_BHLM), scaled_BHLK)
            return d_queries_BHLK, d_keys_BHMK, ops.matmul(_swapped(dropped_BHLM), d_heads_BHLE)

        return ops.matmul(dropped_BHLM, values_BHME), grad

    return attended(queries_BHLK, keys_BHMK, values_BHME)


def _swapped(x_BHLM: Any) -> Any:
    return ops.transpose(x_BHLM, (0, 1, 3, 2))


Swap = Callable[[Any], Any]  # [B, L, H, K] to [B, H, L, K], or back


def transposed(x: Any) -> Any:
    return ops.transpose(x, (0, 2, 1, 3))


def moved_as_integers(x: Any) -> Any:
    """`transposed` for small tensors, without a gradient. TensorFlow moves integers by a loop of its own, and floating-
    point numbers by oneDNN, which takes up to three times as long to begin."""
    if keras.backend.backend() != "tensorflow":
        return transposed(x)
    import tensorflow as tf

    integers = tf.bitcast(x, tf.int16 if x.dtype.size == 2 else tf.int32)
    return tf.bitcast(tf.transpose(integers, (0, 2, 1, 3)), x.dtype)


class MultiHeadAttention(Layer):
    """Concat(head_1, ..., head_h) W_O, where head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i) (section 3.2.2); no biases.

    `d_k` and `d_v` are free of d_model / h (Table 3, rows B). The heads' matrices lie side by side in one.
    """

    on_weights: Callable[[Any], None] | None = None  # is shown the weights [B, H, L, M] of each call, where it is set

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        attention_dropout: float = 0.0,
        site: str = "",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        self.w_q = self.weight("w_q", (d_model, num_heads * d_k))
        self.w_k = self.weight("w_k", (d_model, num_heads * d_k))
        self.w_v = self.weight("w_v", (d_model, num_heads * d_v))
        self.w_o = self.weight("w_o", (num_heads * d_v, d_model))
        self.dropout = Dropout(attention_dropout, f"{site}/weights", dtype=self.dtype_policy)

    def call(
        self,
        x_ND: Any,
        memory_ND: Any = None,
        bias_BHLM: Any = 0.0,
        *,
        length: Any,
        memory_length: Any = None,
        seed: Any = None,
    ) -> Any:
        """Attends from `x_ND`, sentences of `length` rows each, to `memory_ND`, or to itself without one: [N, D]."""
        if memory_ND is None:
            memory_ND, memory_length = x_ND, length
        queries_BHLK = self.split_heads(linear(x_ND, self.w_q), length)
        keys_BHMK, values_BHME = self.keys_values(memory_ND, memory_length)
        if seed is None:
            heads_BHLE, weights_BHLM = attention(queries_BHLK, keys_BHMK, values_BHME, bias_BHLM)
            if self.on_weights is not None:
                self.on_weights(weights_BHLM)
        else:
            drop = None
            if self.dropout.rate:
                shape = (ops.shape(queries_BHLK)[0], self.num_heads, length, memory_length)
                drop = self.dropout.drawn(shape, seed)
            heads_BHLE = attention_with_gradient(queries_BHLK, keys_BHMK, values_BHME, bias_BHLM, drop)
        return linear(self.join_heads(heads_BHLE), self.w_o)

    def keys_values(self, memory_ND: Any, length: Any) -> tuple[Any, Any]:
        """K W_K and V W_V: [B, H, M, K] and [B, H, M, E]."""
        keys, values = linear(memory_ND, self.w_k), linear(memory_ND, self.w_v)
        return self.split_heads(keys, length), self.split_heads(values, length)

    def w_qkv(self) -> Any:
        """W_Q, W_K and W_V side by side: [D, H (2 K + E)]."""
        return ops.concatenate([self.w_q, self.w_k, self.w_v], axis=1)

    def split_all_three(self, x: Any, length: Any, swap: Swap) -> tuple[Any, Any, Any]:
        """The products with `w_qkv`, [N, ...], as queries, keys and values [B, H, L, K or E]."""
        width = self.num_heads * self.d_k
        return tuple(self.split_heads(each, length, swap) for each in ops.split(x, [width, 2 * width], axis=-1))

    def split_heads(self, x: Any, length: Any, swap: Swap = transposed) -> Any:
        """[N, H K] as [B, H, L, K]."""
        return swap(ops.reshape(x, (-1, length, self.num_heads, x.shape[-1] // self.num_heads)))

    def join_heads(self, heads_BHLE: Any, swap: Swap = transposed) -> Any:
        """The heads side by side: [N, H E]."""
        return ops.reshape(swap(heads_BHLE), (-1, self.num_heads * self.d_v))
