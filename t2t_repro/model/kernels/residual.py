"""Dropout and layer normalization around a sub-layer: LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4.

Shapes: B batch, L length, T rows (B L), D d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2t_repro.model.flat_rows import flat_rows, from_rows
from t2t_repro.model.kernels.casts import cast_again
from t2t_repro.model.kernels.linear_layers import sum_of_rows
from t2t_repro.model.kernels.products import with_gradient
from t2t_repro.model.random_masks import keep_mask

EPSILON = 1e-6  # of layer normalization; tensor2tensor's value, as the paper has none


def layer_norm(gain_D: Any, bias_D: Any, *terms_BLD: Any) -> Any:
    """(x - mean(x)) / sqrt(var(x) + epsilon) gain + bias over the last axis, where x is the sum of `terms_BLD`.

    Statistics and gradient are float32. The backward pass keeps x, which in bfloat16 takes half the memory of x - mean.
    """
    flats = [flat_rows(each) for each in terms_BLD]
    gain_D, bias_D = tf.convert_to_tensor(gain_D), tf.convert_to_tensor(bias_D)
    rows = [each.rows for each in flats]
    return from_rows(with_gradient(_layer_norm_rows, gain_D, bias_D, *rows), flats[0].sizes)


def _layer_norm_rows(gain_D: Any, bias_D: Any, *terms_TD: Any) -> Any:
    """With c = x - mean, s = 1 / sqrt(var + epsilon), g = dy gain: dx = s (g - mean(g) - c s^2 mean(g c)).

    Means and sums of rows are products with a vector, which read the matrix only once.
    """
    x_TD = sum(terms_TD[1:], terms_TD[0])
    x32_TD = tf.cast(x_TD, tf.float32)
    mean_T1 = tf.reduce_mean(x32_TD, axis=-1, keepdims=True)
    centered_TD = x32_TD - mean_T1
    scale_T1 = tf.math.rsqrt(tf.reduce_mean(tf.square(centered_TD), axis=-1, keepdims=True) + EPSILON)

    def grad(upstream_TD: Any) -> tuple[Any, ...]:
        upstream_TD = tf.cast(upstream_TD, tf.float32)
        centered_TD = cast_again(x_TD, tf.float32, upstream_TD) - mean_T1
        both_TD = upstream_TD * centered_TD
        mean_D1 = tf.reshape(gain_D, (-1, 1)) / gain_D.shape[0]
        mean_g_T1 = tf.matmul(upstream_TD, mean_D1)
        mean_gc_T1 = tf.matmul(both_TD, mean_D1) * tf.square(scale_T1)
        d_x_TD = tf.cast((upstream_TD * gain_D - (mean_g_T1 + centered_TD * mean_gc_T1)) * scale_T1, x_TD.dtype)
        d_gain_D = tf.matmul(scale_T1, both_TD, transpose_a=True)[0]
        return d_gain_D, sum_of_rows(upstream_TD), *([d_x_TD] * len(terms_TD))

    return tf.cast(centered_TD * scale_T1 * gain_D + bias_D, x_TD.dtype), grad


def drop_with(mask: Any, rate: float) -> Callable[[Any], Any]:
    """Returns x -> mask x / (1 - rate), which is its own gradient.

    The factor is float32: bfloat16 rounds 1.1111 to 1.1094, so that all kept values would be 0.16% too small.
    """
    return lambda x: tf.where(mask, tf.cast(tf.cast(x, tf.float32) * (1 / (1 - rate)), x.dtype), 0.0)


def dropout(x: Any, rate: float, seed: Any) -> Any:
    """mask x / (1 - rate) for `x` of any shape, with a mask from `keep_mask`. Returns x without a seed or a rate."""
    if seed is None or rate == 0:
        return x
    x_TD, sizes = flat_rows(x)
    drop = drop_with(keep_mask(x_TD, rate, seed), rate)
    return from_rows(tf.custom_gradient(lambda x_TD: (drop(x_TD), drop))(x_TD), sizes)
