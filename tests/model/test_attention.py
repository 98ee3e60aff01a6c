"""Attention (section 3.2): equation 1 against a loop in float64, masks, and sizes that are free of each other."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import seed

from t2t_repro.model.attention import (
    MultiHeadAttention,
    attention,
    attention_with_gradient,
    mask_bias,
    moved_as_integers,
)

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)

# A sentence of one token has one key; Keras remarks that a softmax over one score is always 1.
one_key = pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1:UserWarning")


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def equation_1(queries, keys, values, visible):
    """softmax(Q K^T / sqrt(d_k)) V, one query at a time, in float64."""
    result = np.zeros((*queries.shape[:3], values.shape[-1]))
    for b, h, i in np.ndindex(*queries.shape[:3]):
        seen = np.flatnonzero(visible[b, h, i])
        scores = keys[b, h, seen].astype(np.float64) @ queries[b, h, i] / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max())
        result[b, h, i] = weights / weights.sum() @ values[b, h, seen]
    return result


@one_key
@pytest.mark.parametrize(("d_k", "d_v", "length", "keys"), [(4, 4, 5, 5), (3, 9, 2, 7), (16, 1, 6, 1)])
def test_attention_is_equation_1(d_k, d_v, length, keys):
    q, k, v = normal(2, 3, length, d_k), normal(2, 3, keys, d_k), normal(2, 3, keys, d_v)
    visible = RNG.random((2, 3, length, keys)) < 0.7
    visible[..., 0] = True  # so that no row is masked throughout
    output, _ = attention(q, k, v, mask_bias(visible))
    np.testing.assert_allclose(output, equation_1(q, k, v, visible), rtol=1e-5, atol=1e-6)


def test_scores_far_apart():
    """Scores in the thousands: a softmax that is not shifted by its maximum would overflow."""
    q, k, v = 300 * normal(1, 1, 4, 8), 300 * normal(1, 1, 6, 8), normal(1, 1, 6, 3)
    output, _ = attention(q, k, v, 0.0)
    np.testing.assert_allclose(output, equation_1(q, k, v, np.ones((1, 1, 4, 6))), rtol=1e-4, atol=1e-5)


def test_a_masked_key_has_no_weight_at_all():
    visible = np.array([True, False, True, False])
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 4, 4), normal(1, 2, 4, 5)
    output, weights = attention(q, k, v, mask_bias(visible))
    assert np.all(weights.numpy()[..., ~visible] == 0)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-6)
    k[..., ~visible, :], v[..., ~visible, :] = 1e4, -1e30
    again, _ = attention(q, k, v, mask_bias(visible))
    np.testing.assert_array_equal(output, again)


def test_a_row_that_is_masked_throughout_gives_no_nan():
    visible = np.array([[True, True, True], [False, False, False]])
    q, k, v = (tf.constant(normal(1, 1, n, 4)) for n in (2, 3, 3))
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        output, weights = attention(q, k, v, mask_bias(visible))
        total = tf.reduce_sum(output)
    np.testing.assert_allclose(weights[0, 0, 1], 1 / 3, rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in tape.gradient(total, (q, k, v)))


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1), ("float32", 300), ("bfloat16", 1)])
def test_attention_with_a_gradient_of_its_own(dtype, dropping, scale):
    """Value and gradients are those of the plain formula in float64, whatever is dropped of the weights; a row that is
    masked throughout, too."""
    q, k, v, upstream = scale * normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6), normal(2, 3, 5, 6)
    q, k, v, upstream = (tf.cast(x, dtype) for x in (q, k, v, upstream))
    visible = RNG.random((2, 1, 5, 7)) < 0.7
    visible[0, 0, 2] = False
    factors = tf.constant(2.0 * (RNG.random((2, 3, 5, 7)) < 0.5))

    def exact(q, k, v):
        scores = tf.matmul(q, k, transpose_b=True) / 2 + tf.cast(mask_bias(visible), tf.float64)
        weights = tf.nn.softmax(scores)
        return (weights * tf.cast(factors, tf.float64) if dropping else weights) @ v

    drop = (lambda x: x * tf.cast(factors, x.dtype)) if dropping else None
    found = value_and_gradients(
        lambda *qkv: attention_with_gradient(*qkv, mask_bias(visible), drop), [q, k, v], upstream
    )
    wide = [tf.cast(x, tf.float64) for x in (q, k, v)]
    truth = value_and_gradients(exact, wide, tf.cast(upstream, tf.float64))
    for ours, theirs in zip(found, truth, strict=True):
        assert ours.dtype == q.dtype
        tolerance = 1e-5 if dtype == "float32" else 0.02
        np.testing.assert_allclose(tf.cast(ours, tf.float64), theirs, atol=tolerance * max(1, np.abs(theirs).max()))


def value_and_gradients(function, inputs, upstream):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    return [value, *tape.gradient(value, inputs, output_gradients=upstream)]


@pytest.mark.bfloat16
def test_weights_are_float32_in_a_narrow_dtype():
    q, k, v = (tf.cast(normal(1, 1, n, 8), tf.bfloat16) for n in (3, 300, 300))
    output, weights = attention(q, k, v, mask_bias(np.arange(300) < 299))
    assert (output.dtype, weights.dtype) == (tf.bfloat16, tf.float32)
    assert np.all(weights.numpy()[..., 299] == 0)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-5)


# Heads.


def weights_of(layer) -> dict[str, np.ndarray]:
    return {weight.name: weight.numpy().astype(np.float64) for weight in layer.weights}


def by_heads(layer, x, memory, num_heads):
    """Concat(head_1, ..., head_h) W_O, one head at a time (section 3.2.2)."""
    w = weights_of(layer)
    w_q, w_k, w_v = (np.split(w[name], num_heads, axis=1) for name in ("w_q", "w_k", "w_v"))
    heads = []
    for i in range(num_heads):
        q, k, v = ((a @ b)[:, None] for a, b in ((x, w_q[i]), (memory, w_k[i]), (memory, w_v[i])))
        heads.append(equation_1(q, k, v, np.ones((len(x), 1, x.shape[1], memory.shape[1])))[:, 0])
    return np.concatenate(heads, axis=-1) @ w["w_o"]


def called(layer, x_BLD, memory_BMD=None, **keywords):
    """The layer, whose rows are flat, on sentences of one length."""
    rows = [tf.reshape(x, [-1, x.shape[2]]) for x in (x_BLD, memory_BMD) if x is not None]
    memory_length = None if memory_BMD is None else memory_BMD.shape[1]
    attended_ND = layer(*rows, length=x_BLD.shape[1], memory_length=memory_length, **keywords)
    return tf.reshape(attended_ND, [*x_BLD.shape[:2], -1])


@pytest.mark.parametrize(("num_heads", "d_k", "d_v"), [(1, 12, 12), (3, 4, 4), (4, 2, 7), (2, 9, 1)])
def test_heads_of_any_size(num_heads, d_k, d_v):
    layer = MultiHeadAttention(12, num_heads, d_k, d_v)
    x, memory = normal(2, 4, 12), normal(2, 6, 12)
    np.testing.assert_allclose(called(layer, x, memory), by_heads(layer, x, memory, num_heads), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(called(layer, x), by_heads(layer, x, x, num_heads), rtol=1e-4, atol=1e-5)


def test_four_matrices_and_no_bias():
    layer = MultiHeadAttention(12, 3, 4, 5)
    shapes = {name: array.shape for name, array in weights_of(layer).items()}
    assert shapes == {"w_q": (12, 12), "w_k": (12, 12), "w_v": (12, 15), "w_o": (15, 12)}


@one_key
def test_dropout_falls_on_weights_and_by_site():
    """With one key its weight is 1, so an output is 0 or twice as large as without dropout."""
    x, memory = normal(50, 1, 4), normal(50, 1, 4)
    layers = [MultiHeadAttention(4, 1, 4, 4, attention_dropout=0.5, site=site) for site in ("a", "b")]
    plain, dropped = called(layers[0], x, memory).numpy(), called(layers[0], x, memory, seed=seed(1, 2)).numpy()
    kept = np.any(dropped != 0, axis=(1, 2))
    assert 10 < kept.sum() < 40
    np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-5)
    other = np.any(called(layers[1], x, memory, seed=seed(1, 2)).numpy() != 0, axis=(1, 2))
    assert not np.array_equal(kept, other)


@pytest.mark.bfloat16
def test_narrow_products_have_weights_in_float32():
    layer = MultiHeadAttention(8, 2, 4, 4, dtype="mixed_bfloat16")
    assert {weight.dtype for weight in layer.weights} == {"float32"}
    x = keras.ops.cast(normal(2, 3, 8), "bfloat16")
    assert called(layer, x).dtype == tf.bfloat16
    exact = x.numpy().astype(np.float64)
    np.testing.assert_allclose(called(layer, x).numpy().astype(np.float64), by_heads(layer, exact, exact, 2), atol=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_moved_as_integers(dtype):
    """What a transposition gives, NaN and infinities too."""
    x = normal(2, 3, 4, 5)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    moved, expected = moved_as_integers(tf.cast(x, dtype)), tf.transpose(tf.cast(x, dtype), (0, 2, 1, 3))
    np.testing.assert_array_equal(tf.cast(moved, tf.float32), tf.cast(expected, tf.float32))
