"""Values and gradients of a loss of decoder states, compared with exact ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def value_and_gradients(
    function: Callable[..., Any],
    states: Any,
    embedding: np.ndarray,
    wanted: np.ndarray,
    parameter: float,
    dtype: tf.DType = tf.float32,
    factor: float = 1.5,
) -> list[np.ndarray]:
    """Returns the loss, and the gradients of 2 * `factor` * loss with respect to states and embedding, in float64.

    `function(states, embedding, wanted, parameter, factor)` returns `factor` * loss and the loss. The embedding is at
    least in float32.
    """
    states, embedding = tf.constant(states, dtype), tf.constant(embedding, max(dtype, tf.float32, key=lambda d: d.size))
    with tf.GradientTape() as tape:
        tape.watch((states, embedding))
        scaled, loss = function(states, embedding, tf.constant(wanted), parameter, factor)
        scaled = 2 * scaled
    np.testing.assert_allclose(scaled, 2 * factor * loss.smoothed, rtol=1e-6)
    found = (*loss, *tape.gradient(scaled, (states, embedding)))
    return [tf.cast(each, tf.float64).numpy() for each in found]


def compare(ours: Sequence[np.ndarray], exact: Sequence[np.ndarray], tolerance: float) -> None:
    """Compares numbers, and gradients relative to their largest element."""
    for found, truth in zip(ours, exact, strict=True):
        assert np.abs(found - truth).max(initial=0) <= tolerance * max(np.abs(truth).max(initial=0), 1)
