"""Layers shared by encoder and decoder (sections 3.1, 3.3 to 3.5 and 5.4).

They are dropout, layer normalization, the residual connection, the feed-forward network, embeddings and positional
encodings.

Shapes: B batch, L length, D d_model, F d_ff, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from t2t_repro.model import kernels, random_masks
from t2t_repro.model.kernels import linear


class Layer(keras.layers.Layer):
    """A Keras layer with float32 weights; `kernels` casts them where a product needs it.

    Keras' automatic casting would also turn masks and statistics into bfloat16. Layers with weights have names
    without numbers, such as "self_attention": TensorFlow makes a kernel for each different name (0.6 ms).
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # the sizes are known, so the weights are created in the constructor

    def weight(self, name: str, shape: tuple[int, ...], initializer: Any) -> Any:
        return self.add_weight(shape=shape, initializer=kernels.initializer(initializer), name=name, autocast=False)


def glorot_uniform(gain: float) -> Any:
    """Returns the initializer of a matrix [I, O]: uniform in +-gain sqrt(6 / (I + O)) (Glorot and Bengio, 2010)."""
    return keras.initializers.VarianceScaling(gain**2, "fan_avg", "uniform")


class Dropout(Layer):
    """Dropout (section 5.4) as a pure function of a seed. It has no state to save, and each replica draws its own
    masks.

    `site` is the name of the layer's place in the model. Every site draws its own mask from the seed of a forward pass.
    """

    def __init__(self, rate: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site

    def call(self, x: Any, seed: Any = None) -> Any:
        """Returns `x`, of any shape, after dropout. `seed` is [2] int32, or None for no dropout."""
        return kernels.dropout(x, self.rate, self.seed(seed))

    def seed(self, seed: Any) -> Any:
        """Returns the seed [2] of this site; None if nothing is dropped."""
        return None if seed is None or self.rate == 0 else random_masks.site_seed(seed, self.site)


class LayerNorm(Layer):
    """Layer normalization (Ba et al., 2016) of the sum of its arguments, over the last axis."""

    def __init__(self, d_model: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.gain = self.weight("gain", (d_model,), "ones")
        self.bias = self.weight("bias", (d_model,), "zeros")

    def call(self, *terms_BLD: Any) -> Any:
        return kernels.layer_norm(self.gain, self.bias, *terms_BLD)


class AddNorm(Layer):
    """LayerNorm(x + Dropout(Sublayer(x))), the residual connection around every sub-layer (sections 3.1 and 5.4)."""

    def __init__(self, d_model: int, dropout: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.dropout = Dropout(dropout, site, dtype=self.dtype_policy)
        self.norm = LayerNorm(d_model, dtype=self.dtype_policy, name="norm")

    def call(self, x_BLD: Any, sublayer: Callable[[Any], Any], seed: Any = None) -> Any:
        return self.norm(x_BLD, self.dropout(sublayer(x_BLD), seed=seed))


class FeedForward(Layer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3, eq. 2).

    `initializer_gain` multiplies the initial values of both matrices.
    """

    activation = staticmethod(ops.relu)

    def __init__(self, d_model: int, d_ff: int, initializer_gain: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.w_1 = self.weight("w_1", (d_model, d_ff), glorot_uniform(initializer_gain))
        self.b_1 = self.weight("b_1", (d_ff,), "zeros")
        self.w_2 = self.weight("w_2", (d_ff, d_model), glorot_uniform(initializer_gain))
        self.b_2 = self.weight("b_2", (d_model,), "zeros")

    def call(self, x_BLD: Any) -> Any:
        hidden_BLF = linear(x_BLD, self.w_1, self.b_1, self.activation)
        return linear(hidden_BLF, self.w_2, self.b_2)


class Embedding(Layer):
    """Rows of `table_VD` times sqrt(d_model) (section 3.4).

    The table belongs to the model, which saves it and shares it between both embeddings and the softmax.
    """

    def __init__(self, table_VD: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.table_VD = table_VD

    def call(self, tokens_BL: Any) -> Any:
        return kernels.table_rows(self.table_VD, tokens_BL) * math.sqrt(self.table_VD.shape[1])

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing, because the model saves the table."""

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing, because the model loads the table."""


@kernels.in_float64  # in bfloat16 positions above 256 would collide
def sinusoids(positions_L: Any, d_model: int) -> Any:
    """Returns positional encodings [L, D] (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), and PE(pos, 2i+1) is the cosine of the same angle.
    """
    rates = ops.exp(ops.arange(0, d_model, 2, dtype="float64") * (-math.log(10_000) / d_model))
    angles = ops.expand_dims(positions_L, 1) * ops.expand_dims(rates, 0)
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(pairs, (-1, d_model))
