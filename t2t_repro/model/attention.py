"""Attention (section 3.2).

Shapes: B batch, L query length, M key length, D d_model, H heads, K d_k, E d_v.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from t2t_repro.model.layers import Dropout, Layer, linear

# What is added to the score of a masked key. The paper has -inf; the largest finite float32 gives the same weights, and
# uniform ones instead of NaN in a row that is padding throughout.
MASKED = -3.4e38


def mask_bias(visible: Any) -> Any:
    """The float32 term to add to scores: 0 where `visible` is true, `MASKED` where it is not."""
    return ops.where(visible, 0.0, MASKED)


def attention(
    queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any, bias_BHLM: Any, dropout: Any = None, seed: Any = None
) -> tuple[Any, Any]:
    """softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, eq. 1), and the softmax itself.

    `bias_BHLM` (float32, broadcast) is added to the scores. Returns [B, H, L, E] in the dtype of the values, and the
    weights [B, H, L, M] in float32: a softmax in a narrow dtype loses the small ones.
    """
    scale = 1 / math.sqrt(queries_BHLK.shape[-1])
    scores_BHLM = ops.matmul(queries_BHLK * scale, ops.transpose(keys_BHMK, (0, 1, 3, 2)))
    weights_BHLM = ops.softmax(ops.cast(scores_BHLM, "float32") + bias_BHLM)
    dropped_BHLM = weights_BHLM if dropout is None else dropout(weights_BHLM, seed=seed)
    return ops.matmul(ops.cast(dropped_BHLM, values_BHME.dtype), values_BHME), weights_BHLM


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

    def call(self, x_BLD: Any, memory_BMD: Any = None, bias_BHLM: Any = 0.0, seed: Any = None) -> Any:
        """Attends from `x_BLD` to `memory_BMD`, or to itself without one. Returns [B, L, D]."""
        if memory_BMD is None:
            queries_BHLK, keys_BHMK, values_BHME = self.queries_keys_values(x_BLD)
        else:
            queries_BHLK = self.queries(x_BLD)
            keys_BHMK, values_BHME = self.keys_values(memory_BMD)
        heads_BHLE, weights_BHLM = attention(queries_BHLK, keys_BHMK, values_BHME, bias_BHLM, self.dropout, seed)
        if self.on_weights is not None:
            self.on_weights(weights_BHLM)
        return self.output_projection(heads_BHLE)

    def queries(self, x_BLD: Any) -> Any:
        """Q W_Q: [B, H, L, K]."""
        return self.split_heads(linear(x_BLD, self.w_q), ops.shape(x_BLD)[1])

    def keys_values(self, memory_BMD: Any) -> tuple[Any, Any]:
        """K W_K and V W_V, in one product: [B, H, M, K] and [B, H, M, E]."""
        both = linear(memory_BMD, ops.concatenate([self.w_k, self.w_v], axis=1))
        keys, values = ops.split(both, [self.num_heads * self.d_k], axis=-1)
        length = ops.shape(memory_BMD)[1]
        return self.split_heads(keys, length), self.split_heads(values, length)

    def queries_keys_values(self, x_BLD: Any) -> tuple[Any, Any, Any]:
        """Q W_Q, K W_K and V W_V of self-attention, in one product."""
        return self.split_all_three(linear(x_BLD, self.w_qkv()), ops.shape(x_BLD)[1])

    def w_qkv(self) -> Any:
        """W_Q, W_K and W_V side by side: [D, H (2 K + E)]."""
        return ops.concatenate([self.w_q, self.w_k, self.w_v], axis=1)

    def split_all_three(self, x: Any, length: Any) -> tuple[Any, Any, Any]:
        """The products with `w_qkv`, [B, L, ...] or [B L, ...], as queries, keys and values [B, H, L, K or E]."""
        width = self.num_heads * self.d_k
        return tuple(self.split_heads(each, length) for each in ops.split(x, [width, 2 * width], axis=-1))

    def output_projection(self, heads_BHLE: Any) -> Any:
        """The heads side by side, times W_O: [B, L, D]."""
        joined_BLE = self.join_heads(heads_BHLE, (-1, ops.shape(heads_BHLE)[2]))
        return linear(joined_BLE, self.w_o)

    def split_heads(self, x: Any, length: Any) -> Any:
        """[B, L, H K] or [B L, H K] as [B, H, L, K]."""
        split = ops.reshape(x, (-1, length, self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(split, (0, 2, 1, 3))

    def join_heads(self, heads_BHLE: Any, shape: tuple[Any, ...] = (-1,)) -> Any:
        """The heads side by side, [..., H E], the rest in `shape`."""
        return ops.reshape(ops.transpose(heads_BHLE, (0, 2, 1, 3)), (*shape, self.num_heads * self.d_v))
