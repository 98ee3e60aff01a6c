"""Stateless dropout, layer normalization, the residual connection, eq. 2, and the sinusoids."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.plain_formulas import EPSILON, within
from helpers.tiny_model import seed

from t2t_repro.model.layers import AddNorm, Dropout, FeedForward, LayerNorm, sinusoids

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


# Dropout.


def test_every_site_draws_its_own_mask():
    x = np.ones((40, 25), np.float32)
    a, again, b = (
        Dropout(0.5, site)(x, seed=seed(1, 2)).numpy() > 0 for site in ("encoder/0", "encoder/0", "decoder/0")
    )
    np.testing.assert_array_equal(a, again)
    within((a == b).mean(), 0.5, a.size)


def test_dropout_keeps_the_expectation():
    dropped = Dropout(0.2, "site")(np.full((500, 400), 3, np.float32), seed=seed(7, 8)).numpy()
    np.testing.assert_allclose(np.unique(dropped), [0, 3 / 0.8], rtol=1e-6)
    within(dropped.mean() / (3 / 0.8), 0.8, dropped.size)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_scales_without_bias(dtype, rate):
    """In the mean of 100,000 numbers the roundings to eight bits cancel to within 2^-9 / sqrt(100,000), about 1e-5."""
    x = tf.cast(np.random.default_rng(1).uniform(1, 2, [1_000, 100]), dtype)
    dropped = tf.cast(Dropout(rate, "site")(x, seed=seed(3, 4)), tf.float64).numpy()
    kept = dropped != 0
    ratio = dropped[kept].sum() / tf.cast(x, tf.float64).numpy()[kept].sum()
    assert ratio == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_dropout_without_seed_or_rate_changes_nothing():
    x = normal(4, 5)
    np.testing.assert_array_equal(Dropout(0.5, "site")(x), x)
    np.testing.assert_array_equal(Dropout(0.0, "site")(x, seed=seed(1, 2)), x)


def test_gradient_of_dropout_is_its_mask():
    x = tf.constant(normal(30, 30))
    with tf.GradientTape() as tape:
        tape.watch(x)
        dropped = Dropout(0.5, "site")(x, seed=seed(1, 2))
    np.testing.assert_allclose(tape.gradient(dropped, x) * x, dropped, rtol=1e-6)


def test_dropout_keeps_a_narrow_dtype():
    dropped = Dropout(0.5, "site", dtype="mixed_bfloat16")(tf.ones([8, 8], tf.bfloat16), seed=seed(1, 2))
    assert dropped.dtype == tf.bfloat16
    assert set(np.unique(tf.cast(dropped, tf.float32))) == {0, 2}


# Layer normalization and the residual connection.


def test_layer_norm_of_a_manually_computed_row():
    """The mean is 3, the variance (4 + 1 + 1 + 4) / 4 = 2.5."""
    expected = np.array([-2, -1, 1, 2]) / np.sqrt(2.5)
    np.testing.assert_allclose(LayerNorm(4)(np.array([[1, 2, 4, 5]], np.float32))[0], expected, rtol=1e-5)


def test_statistics_are_float32_in_a_narrow_dtype():
    """In bfloat16 the mean of 1,000 and 1,004, which are both exact, would be one of them."""
    x = tf.constant([[1000, 1004] * 8], tf.bfloat16)
    normalised = LayerNorm(16, dtype="mixed_bfloat16")(x)
    assert normalised.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(normalised, tf.float32), [[-1, 1] * 8], rtol=1e-2)


def test_add_norm():
    """LayerNorm(x + Dropout(Sublayer(x))): dropout applies only to the sub-layer's output (section 5.4)."""
    layer = AddNorm(8, 0.5, "site")
    x, sublayer = normal(6, 8), normal(6, 8)
    norm = lambda y: (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + EPSILON)  # noqa: E731
    np.testing.assert_allclose(layer(x, sublayer=lambda x: sublayer * x), norm(x + sublayer * x), atol=1e-5)
    dropped = Dropout(0.5, "site")(sublayer * x, seed=seed(1, 2)).numpy()
    np.testing.assert_allclose(layer(x, sublayer=lambda x: sublayer * x, seed=seed(1, 2)), norm(x + dropped), atol=1e-5)


# The feed-forward network.


def test_feed_forward_equals_equation_2():
    layer = FeedForward(6, 10)
    for weight in layer.weights:
        weight.assign(normal(*weight.shape))
    w = {weight.name: weight.numpy().astype(np.float64) for weight in layer.weights}
    assert {name: array.shape for name, array in w.items()} == {
        "w_1": (6, 10),
        "b_1": (10,),
        "w_2": (10, 6),
        "b_2": (6,),
    }
    x = normal(5, 6)
    expected = np.maximum(0, x @ w["w_1"] + w["b_1"]) @ w["w_2"] + w["b_2"]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


# Positions.


def formula(positions: np.ndarray, d_model: int) -> np.ndarray:
    """Returns the positional encodings of section 3.5, one column at a time, in float64."""
    table = np.zeros((len(positions), d_model))
    for i in range(d_model // 2):
        angle = positions / 10_000 ** (2 * i / d_model)
        table[:, 2 * i], table[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return table


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_sinusoids_equal_the_formula(d_model):
    np.testing.assert_allclose(sinusoids(np.arange(5_000), d_model), formula(np.arange(5_000), d_model), atol=1e-6)


def test_sinusoids_from_a_later_position():
    np.testing.assert_allclose(sinusoids(np.arange(4_321, 4_324), 64), formula(np.arange(4_321, 4_324), 64), atol=1e-6)


def test_sinusoids_are_the_same_under_mixed_precision():
    wide = sinusoids(np.arange(2_000), 16).numpy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        narrow = sinusoids(np.arange(2_000), 16)
    finally:
        keras.config.set_dtype_policy("float32")
    assert narrow.dtype == tf.float32
    np.testing.assert_array_equal(narrow, wide)
    assert len(np.unique(wide, axis=0)) == 2_000
