"""What every sub-layer shares: linear maps, dropout without state, layer normalisation, and `AddNorm` around it all.

Shapes: B batch, L positions, D d_model.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import keras
from keras import ops


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x W + b over the last axis: `x` [..., I], `weight` [I, O], `bias` [O]; computed in the dtype of `x`."""
    inner, outer = weight.shape
    flat = ops.matmul(ops.reshape(x, (-1, inner)), ops.cast(weight, x.dtype))
    if bias is not None:
        flat = flat + ops.cast(bias, x.dtype)
    return flat if len(x.shape) == 2 else ops.reshape(flat, (*ops.shape(x)[:-1], outer))


class _Seed(keras.random.SeedGenerator):
    """Lets the functions of `keras.random` take a seed that is a tensor. Holds no state."""

    def __init__(self, value: Any):
        self.value = value

    def next(self, ordered: bool = True) -> Any:
        return self.value


def keep_mask(shape: Any, rate: float, seed: Any) -> Any:
    """A boolean mask of `shape`, each element true with probability 1 - rate: the same for the same seed [2], int32.

    Sixteen random bits decide an element, so 1 - rate is met to within 2^-17. On TensorFlow they are cut from 64-bit
    draws, which takes about a quarter of the time of a draw for each element.
    """
    threshold = round(rate * 2**16) - 2**15
    if keras.backend.backend() != "tensorflow":
        return keras.random.randint(shape, -(2**15), 2**15, seed=_Seed(seed)) >= threshold
    import tensorflow as tf

    size = tf.reduce_prod(shape)
    draws = tf.random.stateless_uniform([(size + 3) // 4], seed, minval=None, maxval=None, dtype=tf.int64)
    bits = tf.reshape(tf.bitcast(draws, tf.int16), [-1])[:size]
    return tf.reshape(bits >= threshold, shape)


class Layer(keras.layers.Layer):
    """A Keras layer whose weights stay float32 and are cast where a product needs them.

    Keras' own automatic casting would turn masks and statistics to bfloat16 too.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)

    def weight(self, name: str, shape: tuple[int, ...], initializer: Any = "glorot_uniform") -> Any:
        return self.add_weight(shape=shape, initializer=initializer, name=name, autocast=False)


class Dropout(Layer):
    """Dropout as a pure function of a seed: no state, so nothing to save, and each replica draws its own.

    `site` names the place in the model; every site draws its own mask from the one seed of a forward pass.
    """

    def __init__(self, rate: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site

    def call(self, x: Any, seed: Any = None) -> Any:
        """`x` of any shape; `seed` [2] int32, or None for no dropout."""
        if seed is None or self.rate == 0:
            return x
        site = zlib.crc32(self.site.encode()) >> 1
        mask = keep_mask(ops.shape(x), self.rate, ops.bitwise_xor(seed, ops.convert_to_tensor([site, 0], "int32")))
        # what the gradient keeps of this is the mask, in one byte an element; of a product it would be a factor, in two
        return ops.where(mask, x * ops.cast(1 / (1 - self.rate), x.dtype), ops.cast(0, x.dtype))


EPSILON = 1e-6  # of layer normalisation; the paper names none, this is tensor2tensor's


@ops.custom_gradient
def layer_norm(x_ND: Any, gain_D: Any, bias_D: Any) -> Any:
    """(x - mean) / standard deviation over the last axis, times gain, plus bias: in the dtype of `x_ND`.

    Statistics and gradient are float32. With n the normalised x and g = dy gain, the gradient with respect to x is
    (g - mean(g) - n mean(g n)) / standard deviation; its means and the sums over rows are products with a vector, which
    read their matrix once.
    """
    x32_ND = ops.cast(x_ND, "float32")
    centred_ND = x32_ND - ops.mean(x32_ND, axis=-1, keepdims=True)
    scale_N1 = ops.rsqrt(ops.mean(ops.square(centred_ND), axis=-1, keepdims=True) + EPSILON)
    normal_ND = centred_ND * scale_N1

    def grad(*args: Any, upstream: Any = None) -> tuple[Any, Any, Any]:
        upstream_ND = ops.cast(args[0] if upstream is None else upstream, "float32")
        both_ND = upstream_ND * normal_ND
        mean_D1 = ops.reshape(gain_D, (-1, 1)) / gain_D.shape[0]
        mean_g_N1 = ops.matmul(upstream_ND, mean_D1)
        mean_gn_N1 = ops.matmul(both_ND, mean_D1)
        ones_1N = ops.ones((1, ops.shape(x_ND)[0]))
        d_x_ND = (upstream_ND * gain_D - (mean_g_N1 + normal_ND * mean_gn_N1)) * scale_N1
        return ops.cast(d_x_ND, x_ND.dtype), ops.matmul(ones_1N, both_ND)[0], ops.matmul(ones_1N, upstream_ND)[0]

    return ops.cast(normal_ND * gain_D + bias_D, x_ND.dtype), grad


class LayerNorm(Layer):
    """Layer normalisation (Ba et al., 2016) over the last axis."""

    def __init__(self, d_model: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.gain = self.weight("gain", (d_model,), "ones")
        self.bias = self.weight("bias", (d_model,), "zeros")

    def call(self, x: Any) -> Any:
        flat_ND = ops.reshape(x, (-1, self.gain.shape[0]))
        # copies, since a function with a gradient of its own takes tensors and no variables
        normal_ND = layer_norm(flat_ND, ops.copy(self.gain), ops.copy(self.bias))
        return normal_ND if len(x.shape) == 2 else ops.reshape(normal_ND, ops.shape(x))


class AddNorm(Layer):
    """LayerNorm(x + Dropout(Sublayer(x))): what stands around every sub-layer (sections 3.1 and 5.4)."""

    def __init__(self, d_model: int, dropout: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.dropout = Dropout(dropout, site, dtype=self.dtype_policy)
        self.norm = LayerNorm(d_model, dtype=self.dtype_policy)

    def call(self, x_BLD: Any, sublayer_BLD: Any, seed: Any = None) -> Any:
        return self.norm(x_BLD + self.dropout(sublayer_BLD, seed=seed))


class FeedForward(Layer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.w_1 = self.weight("w_1", (d_model, d_ff))
        self.b_1 = self.weight("b_1", (d_ff,), "zeros")
        self.w_2 = self.weight("w_2", (d_ff, d_model))
        self.b_2 = self.weight("b_2", (d_model,), "zeros")

    def call(self, x_BLD: Any) -> Any:
        hidden_BLF = ops.relu(linear(x_BLD, self.w_1, self.b_1))
        return linear(hidden_BLF, self.w_2, self.b_2)


def sinusoids(start: Any, length: Any, d_model: int) -> Any:
    """Positional encodings [length, d_model], float32, of the positions from `start` on (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i+1) the cosine of the same. Angles are computed in
    float64: in bfloat16 positions above 256 would collide, whatever the precision of the model.
    """
    positions = ops.cast(start + ops.arange(length), "float64")
    rates = ops.exp(ops.arange(0, d_model, 2, dtype="float64") * (-math.log(10_000) / d_model))
    angles = ops.expand_dims(positions, 1) * ops.expand_dims(rates, 0)
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.cast(ops.reshape(pairs, (-1, d_model)), "float32")
