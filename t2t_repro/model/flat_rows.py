"""Activations [B, L, D] as rows [T, D] of all positions, T = B L. Products, sums and dropout operate on rows.

Flattening before each operation and restoring the shape after it would add a fifth to the operations of the graph. A
tensor returned by `from_rows` therefore keeps its rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf


class Sizes:
    """The sizes of activations between the first and the last axis, such as L of [B, L, D]."""

    def __init__(self, x: Any):
        dynamic = None
        sizes: list[Any] = x.shape.as_list()[1:-1]
        for axis, size in enumerate(sizes):
            if size is None:
                dynamic = tf.shape(x) if dynamic is None else dynamic
                sizes[axis] = dynamic[axis + 1]
        self.sizes = sizes
        self._shapes: dict[Any, Any] = {}

    def restore(self, x_TD: Any, *last: int | None) -> Any:
        """Returns [T, D] as [B, L, *last]. A single None is a D that is known only in the graph."""
        if not self.sizes and len(last) == 1:
            return x_TD
        if last == (None,):
            return tf.reshape(x_TD, tf.stack([-1, *self.sizes, tf.shape(x_TD)[1]]))
        if not any(map(tf.is_tensor, self.sizes)):
            return tf.reshape(x_TD, [-1, *self.sizes, *last])
        key = tf.compat.v1.get_default_graph(), last  # a shape made inside a loop cannot be used outside
        if key not in self._shapes:
            self._shapes[key] = tf.stack([-1, *self.sizes, *last])
        return tf.reshape(x_TD, self._shapes[key])


class FlatRows(NamedTuple):
    """Flat rows with the sizes that restore their shape."""

    rows: Any  # [T, D]
    sizes: Sizes


def flat_rows(x: Any) -> FlatRows:
    """Returns the rows of `x` [B, L, D]. A matrix is returned unchanged."""
    flat = getattr(x, "_t2t_flat", None)
    if flat is None:
        rows = x if x.shape.rank <= 2 else tf.reshape(x, [-1, x.shape[-1]])
        flat = FlatRows(rows, Sizes(x))
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if rows is not x and getattr(x, "graph", None) is graph:  # rows made inside a loop cannot be used outside
            x._t2t_flat = flat
    return flat


def from_rows(x_TD: Any, sizes: Sizes) -> Any:
    """Returns [T, D] as [B, L, D], a tensor that keeps its rows."""
    x_BLD = sizes.restore(x_TD, x_TD.shape[-1])
    if x_BLD is not x_TD:
        x_BLD._t2t_flat = FlatRows(x_TD, sizes)
    return x_BLD
