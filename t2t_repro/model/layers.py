"""What every sub-layer shares: linear maps, dropout without state, layer normalisation, and `AddNorm` around it all.

Shapes: N positions of all sentences (between the layers their rows are kept flat, for shapes are operations too), D
d_model, F d_ff.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def linear(x_NI: Any, weight_IO: Any, bias_O: Any = None) -> Any:
    """x W + b, in the dtype of `x_NI`.

    What the gradient wants of the weights in that dtype it casts again, and so they are not kept for it.
    """

    @ops.custom_gradient
    def mapped(x_NI: Any, weight_IO: Any, *bias_O: Any) -> Any:
        def grad(*args: Any, upstream: Any = None) -> tuple[Any, ...]:
            upstream_NO = args[0] if upstream is None else upstream
            d_x_NI = ops.matmul(upstream_NO, ops.transpose(cast_again(weight_IO, x_NI.dtype, upstream_NO)))
            d_weight_IO = ops.matmul(ops.transpose(x_NI), upstream_NO)
            d_bias_O = [sum_of_rows(upstream_NO) for _ in bias_O]
            return d_x_NI, *(ops.cast(each, weight_IO.dtype) for each in (d_weight_IO, *d_bias_O))

        return narrow_map(weight_IO, *bias_O, dtype=x_NI.dtype)(x_NI), grad

    # copies, since a function with a gradient of its own takes tensors and no variables
    weights = (weight_IO,) if bias_O is None else (weight_IO, bias_O)
    return mapped(x_NI, *map(ops.copy, weights))


def narrow_map(weight_IO: Any, bias_O: Any = None, result: Any = None, *, dtype: Any) -> Callable[[Any], Any]:
    """x to x W + b, computed in `dtype`, of weights that are cast once; as `result`, if that is another dtype."""
    weight_IO = ops.cast(ops.convert_to_tensor(weight_IO), dtype)
    bias_O = None if bias_O is None else ops.cast(ops.convert_to_tensor(bias_O), dtype)

    def mapped(x_NI: Any) -> Any:
        y_NO = ops.matmul(x_NI, weight_IO)
        return ops.cast(y_NO if bias_O is None else y_NO + bias_O, result or dtype)

    return mapped


def sum_of_rows(x_NO: Any) -> Any:
    """[O]: as a product with ones, which takes a half to a seventh of the time of TensorFlow's own sum on a CPU."""
    return ops.matmul(ops.ones((1, ops.shape(x_NO)[0]), x_NO.dtype), x_NO)[0]


def cast_again(x: Any, dtype: Any, upstream: Any) -> Any:
    """`x` in that dtype, for a gradient whose forward pass has cast it too: done when `upstream` has come. Without that
    TensorFlow sees that both are the same, and keeps the one from the forward pass until then."""
    if keras.backend.backend() != "tensorflow":
        return ops.cast(x, dtype)
    import tensorflow as tf

    with tf.control_dependencies([upstream]):
        return tf.cast(x, dtype)


class _Seed(keras.random.SeedGenerator):
    """Lets the functions of `keras.random` take a seed that is a tensor. Holds no state."""

    def __init__(self, value: Any):
        self.value = value

    def next(self, ordered: bool = True) -> Any:
        return self.value


def keep_mask(shape: Any, rate: float, seed: Any) -> Any:
    """A boolean mask of `shape`, each element true with probability 1 - rate: the same for the same seed [2], int32.

    Sixteen random bits decide an element, so 1 - rate is met to within 2^-17. On TensorFlow each byte drawn is the
    upper eight of one element's and the lower eight of another's, half a mask away. The lower ones count in one case of
    256, so that both are true is at most 2^-10 likelier than of two independent ones; and it takes about an eighth of
    the time of a draw for each element.
    """
    threshold = round(rate * 2**16) - 2**15
    if keras.backend.backend() != "tensorflow":
        return keras.random.randint(shape, -(2**15), 2**15, seed=_Seed(seed)) >= threshold
    import tensorflow as tf

    size = math.prod(shape)
    # what `tf.random.stateless_uniform` draws, without its key, which a GPU would copy from the host for each mask
    words = tf.raw_ops.StatelessRandomUniformFullInt(shape=[size // 8 + 2], seed=seed, dtype=tf.int64)
    drawn = tf.reshape(tf.bitcast(words, tf.int8), [-1])
    halves = [tf.bitcast(tf.reshape(each, [-1, 2]), tf.int16) >= threshold for each in (drawn[:-8], drawn[1:-7])]
    return tf.reshape(tf.concat(halves, 0)[:size], shape)


class Layer(keras.layers.Layer):
    """A Keras layer whose weights stay float32 and are cast where a product needs them.

    Keras' own automatic casting would turn masks and statistics to bfloat16 too.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # its sizes are known, so its weights are made with it

    def weight(self, name: str, shape: tuple[int, ...], initializer: Any = "glorot_uniform") -> Any:
        return self.add_weight(shape=shape, initializer=initializer, name=name, autocast=False)


def site_key(site: str) -> tuple[int, int]:
    """Two numbers below 2^30 that are added to the seed of a forward pass. They are added because a GPU takes its seeds
    from host memory, where TensorFlow has integer addition but no exclusive or.

    Two sites draw the same mask only if both numbers differ by as much as two seeds do. Seeds of one run differ by less
    than 2^22 in the first number, a step, and by less than 2^12 in the second, a micro-batch; a test shows that no two
    sites of a model of 64 layers are so close.
    """
    digest = hashlib.blake2b(site.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little") >> 2, int.from_bytes(digest[4:], "little") >> 2


class Dropout(Layer):
    """Dropout as a pure function of a seed: no state, so nothing to save, and each replica draws its own.

    `site` names the place in the model; every site draws its own mask from the one seed of a forward pass. What is kept
    is multiplied by 1 / (1 - rate) in float32 and then rounded to the dtype of `x`: bfloat16 would round 1.1111 itself
    to 1.1094, and all that is kept would be 0.16% too small.
    """

    def __init__(self, rate: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site

    def call(self, x: Any, seed: Any = None) -> Any:
        """`x` of any shape; `seed` [2] int32, or None for no dropout."""
        drop = self.drawn(ops.shape(x), seed)

        @ops.custom_gradient
        def dropped(x: Any) -> Any:
            return drop(x), lambda *args, upstream=None: drop(args[0] if upstream is None else upstream)

        return dropped(x) if drop else x

    def drawn(self, shape: Any, seed: Any) -> Callable[[Any], Any] | None:
        """A function that drops the same elements of all of that shape that it is given, and scales the others: that is
        its own gradient. None where nothing is dropped."""
        if seed is None or self.rate == 0:
            return None
        mask = keep_mask(shape, self.rate, ops.add(seed, ops.convert_to_tensor(site_key(self.site), "int32")))
        scale = 1 / (1 - self.rate)
        return lambda x: ops.where(mask, ops.cast(ops.cast(x, "float32") * scale, x.dtype), 0.0)


EPSILON = 1e-6  # of layer normalisation; the paper names none, this is tensor2tensor's


@ops.custom_gradient
def layer_norm(gain_D: Any, bias_D: Any, *terms_ND: Any) -> Any:
    """(x - mean) / standard deviation over the last axis, times gain, plus bias, for x the sum of `terms_ND`: in their
    dtype.

    Statistics and gradient are float32. With c = x - mean and g = dy gain, the gradient with respect to x is
    (g - mean(g) - c mean(g c) / variance) / standard deviation; its means and the sums over rows are products with a
    vector, which read their matrix once. What is kept for it is x, which in bfloat16 is half of c.
    """
    x_ND = sum(terms_ND[1:], terms_ND[0])
    x32_ND = ops.cast(x_ND, "float32")
    mean_N1 = ops.mean(x32_ND, axis=-1, keepdims=True)
    centred_ND = x32_ND - mean_N1
    scale_N1 = ops.rsqrt(ops.mean(ops.square(centred_ND), axis=-1, keepdims=True) + EPSILON)

    def grad(*args: Any, upstream: Any = None) -> tuple[Any, ...]:
        upstream_ND = ops.cast(args[0] if upstream is None else upstream, "float32")
        centred_ND = cast_again(x_ND, "float32", upstream_ND) - mean_N1
        both_ND = upstream_ND * centred_ND
        mean_D1 = ops.reshape(gain_D, (-1, 1)) / gain_D.shape[0]
        mean_g_N1 = ops.matmul(upstream_ND, mean_D1)
        mean_gc_N1 = ops.matmul(both_ND, mean_D1) * ops.square(scale_N1)
        d_x_ND = ops.cast((upstream_ND * gain_D - (mean_g_N1 + centred_ND * mean_gc_N1)) * scale_N1, x_ND.dtype)
        d_gain_D = ops.matmul(ops.transpose(scale_N1), both_ND)[0]
        return d_gain_D, sum_of_rows(upstream_ND), *([d_x_ND] * len(terms_ND))

    return ops.cast(centred_ND * scale_N1 * gain_D + bias_D, x_ND.dtype), grad


class LayerNorm(Layer):
    """Layer normalisation (Ba et al., 2016) over the last axis, of the sum of what it is given."""

    def __init__(self, d_model: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.gain = self.weight("gain", (d_model,), "ones")
        self.bias = self.weight("bias", (d_model,), "zeros")

    def call(self, *terms_ND: Any) -> Any:
        return layer_norm(ops.copy(self.gain), ops.copy(self.bias), *terms_ND)


class AddNorm(Layer):
    """LayerNorm(x + Dropout(Sublayer(x))): what stands around every sub-layer (sections 3.1 and 5.4)."""

    def __init__(self, d_model: int, dropout: float, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.dropout = Dropout(dropout, site, dtype=self.dtype_policy)
        self.norm = LayerNorm(d_model, dtype=self.dtype_policy)

    def call(self, x_ND: Any, sublayer_ND: Any, seed: Any = None) -> Any:
        return self.norm(x_ND, self.dropout(sublayer_ND, seed=seed))


class FeedForward(Layer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.w_1 = self.weight("w_1", (d_model, d_ff))
        self.b_1 = self.weight("b_1", (d_ff,), "zeros")
        self.w_2 = self.weight("w_2", (d_ff, d_model))
        self.b_2 = self.weight("b_2", (d_model,), "zeros")

    def call(self, x_ND: Any) -> Any:
        hidden_NF = ops.relu(linear(x_ND, self.w_1, self.b_1))
        return linear(hidden_NF, self.w_2, self.b_2)


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
