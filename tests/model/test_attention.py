"""Multi-head attention (section 3.2.2): heads against a loop in float64, and independent sizes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.plain_formulas import equation_1
from helpers.tiny_model import seed

from t2t_repro.model.attention import MultiHeadAttention

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def called(layer, x_BLD, memory_BMD=None, **keywords):
    """Calls the layer without a mask."""
    return layer(x_BLD, x_BLD if memory_BMD is None else memory_BMD, np.zeros((1, 1), np.float32), **keywords)


def weights_of(layer) -> dict[str, np.ndarray]:
    return {weight.name: weight.numpy().astype(np.float64) for weight in layer.weights}


def by_heads(layer, x, memory, num_heads):
    """Returns Concat(head_1, ..., head_h) W_O, computed one head at a time (section 3.2.2)."""
    w = weights_of(layer)
    w_q, w_k, w_v = (np.split(w[name], num_heads, axis=1) for name in ("w_q", "w_k", "w_v"))
    heads = []
    for i in range(num_heads):
        q, k, v = ((a @ b)[:, None] for a, b in ((x, w_q[i]), (memory, w_k[i]), (memory, w_v[i])))
        heads.append(equation_1(q, k, v, np.ones((len(x), 1, x.shape[1], memory.shape[1])))[:, 0])
    return np.concatenate(heads, axis=-1) @ w["w_o"]


@pytest.mark.parametrize(("num_heads", "d_k", "d_v"), [(1, 12, 12), (3, 4, 4), (4, 2, 7), (2, 9, 1)])
def test_heads_of_any_size(num_heads, d_k, d_v):
    layer = MultiHeadAttention(12, num_heads, d_k, d_v)
    x, memory = normal(2, 4, 12), normal(2, 6, 12)
    np.testing.assert_allclose(called(layer, x, memory), by_heads(layer, x, memory, num_heads), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(called(layer, x), by_heads(layer, x, x, num_heads), rtol=1e-4, atol=1e-5)


def test_weights_are_four_matrices_without_biases():
    layer = MultiHeadAttention(12, 3, 4, 5)
    shapes = {name: array.shape for name, array in weights_of(layer).items()}
    assert shapes == {"w_q": (12, 12), "w_k": (12, 12), "w_v": (12, 15), "w_o": (15, 12)}


def test_dropout_applies_to_weights_with_a_mask_per_site():
    """A single key has weight 1, so that an output is 0 or twice as large as without dropout."""
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
