"""The paper's formulas in their simplest form, for tests of faster implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

EPSILON = 1e-6  # of layer normalization: tensor2tensor's, since the paper names none


def equation_1(queries: Any, keys: Any, values: Any, visible: np.ndarray) -> np.ndarray:
    """softmax(Q K^T / sqrt(d_k)) V, one query at a time, in float64."""
    result = np.zeros((*queries.shape[:3], values.shape[-1]))
    for b, h, i in np.ndindex(*queries.shape[:3]):
        seen = np.flatnonzero(visible[b, h, i])
        scores = keys[b, h, seen].astype(np.float64) @ queries[b, h, i] / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max())
        result[b, h, i] = weights / weights.sum() @ values[b, h, seen]
    return result


def layer_norm(gain: Any, bias: Any, x: Any) -> Any:
    """Ba et al. (2016), eq. 4; autodiff finds its gradient."""
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / tf.sqrt(variance + EPSILON) * gain + bias


def value_and_gradients(function: Any, inputs: list[Any], upstream: Any) -> list[Any]:
    """The value of `function(*inputs)`, and the gradients of the sum of its product with `upstream`."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = function(*inputs)
    return [value, *tape.gradient(value, inputs, output_gradients=upstream)]


def within(measured: float, expected: float, number: int) -> None:
    """Asserts that `measured`, a share of `number` draws, is within five standard errors of `expected`."""
    assert abs(measured - expected) < 5 * np.sqrt(expected * (1 - expected) / number)
