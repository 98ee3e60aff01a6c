"""Changes of dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def cast_again(x: Any, dtype: Any, upstream: Any) -> Any:
    """Returns x in `dtype` for the backward pass, cast only after `upstream` is computed.

    Without this dependency TensorFlow merges the cast with that of the forward pass, and keeps the result in memory.
    """
    with tf.control_dependencies([upstream]):
        return tf.cast(x, dtype)


def in_dtype(x: Any, dtype: Any) -> Any:
    """Returns x rounded to `dtype`."""
    return tf.cast(x, dtype)


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` computed in float64, with a float32 result, at any precision of the model."""

    @functools.wraps(function)
    def computed(x: Any, *args: Any) -> Any:
        return tf.cast(function(tf.cast(x, tf.float64), *args), tf.float32)

    return computed
