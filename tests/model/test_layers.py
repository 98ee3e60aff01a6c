"""Dropout without state, layer normalisation with its own gradient, eq. 2, and the sinusoids."""

from __future__ import annotations

import functools
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import SMALL, seed

from t2t_repro.model import layers
from t2t_repro.model.layers import (
    AddNorm,
    Dropout,
    FeedForward,
    LayerNorm,
    keep_mask,
    linear,
    sinusoids,
    site_key,
)
from t2t_repro.model.transformer import Transformer

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)
EPSILON = 1e-6  # of layer normalisation: tensor2tensor's, since the paper names none


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def within(measured: float, expected: float, number: int) -> None:
    """`measured`, a share of `number` draws, is within five standard errors of `expected`."""
    assert abs(measured - expected) < 5 * np.sqrt(expected * (1 - expected) / number)


# Dropout.


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_met(rate):
    mask = keep_mask((500, 1000), rate, seed(3, 4)).numpy()
    within(mask.mean(), 1 - rate, mask.size)


def test_neighbouring_elements_are_independent():
    """Several elements may be cut from one random number: neither their rates nor their pairs may show it."""
    mask = keep_mask((1_000_000,), 0.3, seed(5, 6)).numpy().reshape(-1, 8)
    for i in range(8):
        within(mask[:, i].mean(), 0.7, len(mask))
        for j in range(i):
            within((mask[:, i] & mask[:, j]).mean(), 0.49, len(mask))


def test_what_halves_of_a_mask_share_is_next_to_nothing():
    """An element and one half a mask away have eight bits in common, of which one of them hardly ever needs any."""
    first, second = keep_mask((8_000_000,), 0.1, seed(5, 6)).numpy().reshape(2, -1)
    for shift in range(-8, 9):  # the halves are a few elements longer than those of the mask
        assert abs((first & np.roll(second, shift)).mean() - 0.81) < 2**-10 + 5 * np.sqrt(0.81 * 0.19 / len(first))


@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 5), (7, 9), (0, 4)])
def test_a_mask_of_any_shape(shape):
    assert keep_mask(shape, 0.5, seed(1, 1)).shape == shape


def test_a_mask_is_of_the_bits_of_stateless_uniform():
    """A bit of an element decides at a rate of 1/2: the sign of what both bytes make."""
    words = tf.random.stateless_uniform([100 // 8 + 2], seed(3, 4), minval=None, maxval=None, dtype=tf.int64).numpy()
    first, second = words.tobytes()[:-8], words.tobytes()[1:-7]
    expected = np.concatenate([np.frombuffer(each, np.int16) >= 0 for each in (first, second)])[:100]
    np.testing.assert_array_equal(keep_mask((100,), 0.5, seed(3, 4)), expected)


def test_same_seed_same_mask():
    masks = [keep_mask((40, 25), 0.5, seed(*parts)).numpy() for parts in ((1, 2), (1, 2), (2, 2), (1, 3), (2, 1))]
    np.testing.assert_array_equal(masks[0], masks[1])
    for other in masks[2:]:
        within((masks[0] == other).mean(), 0.5, 1000)


def test_every_site_draws_its_own_mask():
    x = np.ones((40, 25), np.float32)
    a, again, b = (
        Dropout(0.5, site)(x, seed=seed(1, 2)).numpy() > 0 for site in ("encoder/0", "encoder/0", "decoder/0")
    )
    np.testing.assert_array_equal(a, again)
    within((a == b).mean(), 0.5, a.size)


def test_no_two_sites_ever_draw_from_one_seed(monkeypatch):
    """Of a model of 64 layers, in any two of 2^22 steps and 2^12 micro-batches; and no sum overflows int32."""
    drawn: list[str] = []
    monkeypatch.setattr(layers, "site_key", lambda site: drawn.append(site) or site_key(site))
    model = Transformer(4, replace(SMALL, num_layers=1, dropout=0.1, attention_dropout=0.1))
    model({"inputs": tf.constant([[3, 1]]), "targets": tf.constant([[2, 1]])}, training=True, seed=seed(1, 2))
    assert len(set(drawn)) == len(drawn) == 2 + (2 + 1) + (3 + 2)
    sites = sorted({site.replace("/0/", f"/{layer}/") for site in drawn for layer in range(64)})
    assert len(sites) == 2 + 64 * (2 + 1) + 64 * (3 + 2)
    keys = np.array([site_key(site) for site in sites])
    assert keys.min() >= 0 and keys.max() < 2**30
    steps, parts = (np.abs(column[:, None] - column) for column in keys.T)
    assert ((steps >= 2**22) | (parts >= 2**12))[~np.eye(len(sites), dtype=bool)].all()


def test_what_is_kept_keeps_the_expectation():
    dropped = Dropout(0.2, "site")(np.full((500, 400), 3, np.float32), seed=seed(7, 8)).numpy()
    np.testing.assert_allclose(np.unique(dropped), [0, 3 / 0.8], rtol=1e-6)
    within(dropped.mean() / (3 / 0.8), 0.8, dropped.size)


@pytest.mark.numeric
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_what_is_kept_is_scaled_without_bias(dtype, rate):
    """Of a hundred thousand numbers the roundings to eight bits cancel to within 2^-9 / sqrt(100,000), about 1e-5."""
    x = tf.cast(np.random.default_rng(1).uniform(1, 2, [1_000, 100]), dtype)
    dropped = tf.cast(Dropout(rate, "site")(x, seed=seed(3, 4)), tf.float64).numpy()
    kept = dropped != 0
    ratio = dropped[kept].sum() / tf.cast(x, tf.float64).numpy()[kept].sum()
    assert ratio == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_no_seed_or_no_rate_changes_nothing():
    x = normal(4, 5)
    np.testing.assert_array_equal(Dropout(0.5, "site")(x), x)
    np.testing.assert_array_equal(Dropout(0.0, "site")(x, seed=seed(1, 2)), x)


def test_the_gradient_of_dropout_is_its_mask():
    x = tf.constant(normal(30, 30))
    with tf.GradientTape() as tape:
        tape.watch(x)
        dropped = Dropout(0.5, "site")(x, seed=seed(1, 2))
    np.testing.assert_allclose(tape.gradient(dropped, x) * x, dropped, rtol=1e-6)


def test_dropout_keeps_a_narrow_dtype():
    dropped = Dropout(0.5, "site", dtype="mixed_bfloat16")(tf.ones([8, 8], tf.bfloat16), seed=seed(1, 2))
    assert dropped.dtype == tf.bfloat16
    assert set(np.unique(tf.cast(dropped, tf.float32))) == {0, 2}


# Layer normalisation.


def plain_layer_norm(x, gain, bias):
    """Ba et al. (2016), eq. 4, as plainly as can be; autodiff finds its gradient."""
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / tf.sqrt(variance + EPSILON) * gain + bias


def with_gradients(function, dtype, *arrays):
    """The value and the gradients of sum(function * upstream), as float64; the last array is upstream."""
    *inputs, upstream = (tf.constant(array, dtype) for array in arrays)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    found = [value, *tape.gradient(value, inputs, output_gradients=upstream)]
    return [tf.cast(each, tf.float64).numpy() for each in found]


EXTREMES = {
    "random": normal(6, 32),
    "far from zero": normal(6, 32) + 1e4,
    "nearly constant": np.float32(1) + 1e-6 * normal(6, 32),
    "constant": np.full((6, 32), 3, np.float32),
    "large": 1e12 * normal(6, 32),
    "small": 1e-12 * normal(6, 32),
    "one outlier": np.where(np.arange(32) == 5, 1e6, normal(6, 32)).astype(np.float32),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_layer_norm_is_as_exact_as_the_plain_formula(name):
    """Value and gradients, against float64: no more than a few times the error of the formula in float32."""
    layer = LayerNorm(32)
    gain, bias, upstream = 1 + 0.3 * normal(32), normal(32), normal(6, 32)
    layer.gain.assign(gain)
    layer.bias.assign(bias)
    arrays = (EXTREMES[name], gain, bias, upstream)
    exact = with_gradients(plain_layer_norm, tf.float64, *arrays)
    plain = with_gradients(plain_layer_norm, tf.float32, *arrays)
    x = tf.constant(EXTREMES[name])
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = layer(x)
    weights = [weight.value for weight in layer.weights]
    ours = [value, *tape.gradient(value, [x, *weights], output_gradients=upstream)]
    for found, formula, truth in zip(ours, plain, exact, strict=True):
        scale = np.abs(truth).max()
        assert np.abs(found - truth).max() <= 4 * np.abs(formula - truth).max() + 1e-6 * scale


def test_layer_norm_of_a_hand_worked_row():
    """Mean 3, variance (4 + 1 + 1 + 4) / 4 = 2.5."""
    expected = np.array([-2, -1, 1, 2]) / np.sqrt(2.5)
    np.testing.assert_allclose(LayerNorm(4)(np.array([[1, 2, 4, 5]], np.float32))[0], expected, rtol=1e-5)


def test_statistics_are_float32_in_a_narrow_dtype():
    """In bfloat16 the mean of 1,000 and 1,004, which it can both hold, would be one of them."""
    x = tf.constant([[1000, 1004] * 8], tf.bfloat16)
    normalised = LayerNorm(16, dtype="mixed_bfloat16")(x)
    assert normalised.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(normalised, tf.float32), [[-1, 1] * 8], rtol=1e-2)


def test_add_norm():
    """LayerNorm(x + Dropout(Sublayer(x))): dropout falls on the sub-layer's output alone (section 5.4)."""
    layer = AddNorm(8, 0.5, "site")
    x, sublayer = normal(6, 8), normal(6, 8)
    norm = lambda y: (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + EPSILON)  # noqa: E731
    np.testing.assert_allclose(layer(x, sublayer), norm(x + sublayer), atol=1e-5)
    dropped = Dropout(0.5, "site")(sublayer, seed=seed(1, 2)).numpy()
    np.testing.assert_allclose(layer(x, sublayer, seed=seed(1, 2)), norm(x + dropped), atol=1e-5)


# Linear maps and the feed-forward network.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_linear_map_is_x_w_plus_b_and_so_are_its_gradients(dtype):
    x, upstream = tf.cast(normal(6, 4), dtype), tf.cast(normal(6, 5), dtype)
    weight, bias = (tf.cast(tf.cast(each, dtype), tf.float32) for each in (normal(4, 5), normal(5)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, weight, bias])
        product, mapped = linear(x, weight), linear(x, weight, bias)
    exact, d_exact = (tf.cast(each, tf.float64).numpy() for each in (x, upstream))
    rtol, atol = (1e-5, 1e-5) if dtype == "float32" else (0.02, 0.05)
    close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    close(tf.cast(product, tf.float64), exact @ weight)
    close(tf.cast(mapped, tf.float64), exact @ weight + bias)
    for value in (product, mapped):
        assert value.dtype == dtype
        d_x, d_weight = tape.gradient(value, [x, weight], output_gradients=upstream)
        assert d_x.dtype == dtype and d_weight.dtype == tf.float32
        close(tf.cast(d_x, tf.float64), d_exact @ np.transpose(weight))
        close(d_weight, exact.T @ d_exact)
    d_bias = tape.gradient(mapped, bias, output_gradients=upstream)
    assert d_bias.dtype == tf.float32
    close(d_bias, d_exact.sum(axis=0))


def test_feed_forward_is_equation_2():
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
    """Section 3.5, one column at a time, in float64."""
    table = np.zeros((len(positions), d_model))
    for i in range(d_model // 2):
        angle = positions / 10_000 ** (2 * i / d_model)
        table[:, 2 * i], table[:, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return table


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_sinusoids_are_the_formula(d_model):
    np.testing.assert_allclose(sinusoids(0, 5_000, d_model), formula(np.arange(5_000), d_model), atol=1e-6)


def test_sinusoids_from_a_later_position():
    np.testing.assert_allclose(sinusoids(4_321, 3, 64), formula(np.arange(4_321, 4_324), 64), atol=1e-6)


def test_sinusoids_are_the_same_under_mixed_precision():
    wide = sinusoids(0, 2_000, 16).numpy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        narrow = sinusoids(0, 2_000, 16)
    finally:
        keras.config.set_dtype_policy("float32")
    assert narrow.dtype == tf.float32
    np.testing.assert_array_equal(narrow, wide)
    assert len(np.unique(wide, axis=0)) == 2_000
