"""Attention (section 3.2).

Shapes: B batch, L query length, M key length, D d_model, H heads, K d_k, E d_v.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from t2t_repro.model.kernels import join_heads, linear, scaled_dot_product_attention, split_heads
from t2t_repro.model.layers import Dropout, Layer, glorot_uniform

# Added to the score of a masked key. The paper has -inf. A finite value near the float32 limit gives the same weights,
# and uniform weights instead of NaN in a row that contains only padding.
MASKED = -3.4e38

# For an attention and x [B, L, D]: returns the queries, and keys and values of all positions so far (`incremental`).
Cache = Callable[["MultiHeadAttention", Any], tuple[Any, Any, Any]]


def mask_bias(visible: Any) -> Any:
    """Returns the float32 term to add to scores: 0 where `visible` is true, `MASKED` where it is false."""
    return ops.where(visible, 0.0, MASKED)


class MultiHeadAttention(Layer):
    """Concat(head_1, ..., head_h) W_O, where head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i) (section 3.2.2), without
    biases.

    `d_k` and `d_v` are independent of d_model / h (Table 3, rows B). The matrices of all heads are concatenated into
    one. `initializer_gain` multiplies their initial values. `site` is the name of the layer's place in the model.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        attention_dropout: float = 0.0,
        initializer_gain: float = 1.0,
        site: str = "",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        self.w_q = self.weight("w_q", (d_model, num_heads * d_k), glorot_uniform(initializer_gain))
        self.w_k = self.weight("w_k", (d_model, num_heads * d_k), glorot_uniform(initializer_gain))
        self.w_v = self.weight("w_v", (d_model, num_heads * d_v), glorot_uniform(initializer_gain))
        self.w_o = self.weight("w_o", (num_heads * d_v, d_model), glorot_uniform(initializer_gain))
        self.dropout = Dropout(attention_dropout, f"{site}/weights", dtype=self.dtype_policy)
        self.site = site

    def call(self, x_BLD: Any, memory_BMD: Any, bias: Any, seed: Any = None, cache: Cache | None = None) -> Any:
        """Returns the attention from `x_BLD` to `memory_BMD`: [B, L, D]. In self-attention both are the same tensor.

        `bias` is `mask_bias`, broadcast to [B, H, L, M]. A `cache` provides keys and values instead of `memory_BMD`.
        """
        if cache is None:
            queries_BHLK, (keys_BHMK, values_BHME) = self.queries(x_BLD), self.keys_values(memory_BMD)
        else:
            queries_BHLK, keys_BHMK, values_BHME = cache(self, x_BLD)
        dropout = self.dropout.rate, self.dropout.seed(seed)
        heads_BHLE = scaled_dot_product_attention(queries_BHLK, keys_BHMK, values_BHME, bias, *dropout, name=self.site)
        return linear(join_heads(heads_BHLE), self.w_o)

    def queries(self, x_BLD: Any) -> Any:
        """Returns Q W_Q, split into heads: [B, H, L, K]."""
        return split_heads(linear(x_BLD, self.w_q), self.num_heads)

    def keys_values(self, memory_BMD: Any) -> tuple[Any, Any]:
        """Returns K W_K and V W_V, split into heads: [B, H, M, K] and [B, H, M, E]."""
        keys_BMO, values_BMO = linear(memory_BMD, self.w_k), linear(memory_BMD, self.w_v)
        return split_heads(keys_BMO, self.num_heads), split_heads(values_BMO, self.num_heads)
