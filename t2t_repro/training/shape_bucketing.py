"""The few shapes that parts are padded to where XLA makes a program for each shape.

`python -m benchmarks.pipeline` counts them. Both sides get one length: with one for each there are ten times as many.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# 1 to 8, then eight to an octave: what is rounded up to one of these grows by less than an eighth
GRID = np.array([*range(1, 8), *(eighths << octave for octave in range(20) for eighths in range(8, 16))], np.int32)


def sizes_on_grid(sizes: tf.Tensor) -> tf.Tensor:
    """(B, M, L) of parts [..., 3], int32, as (B, L) [..., 2], both of `GRID`: pairs, and the length of both sides."""
    numbers = tf.stack([sizes[..., 0], tf.reduce_max(sizes[..., 1:], axis=-1)], axis=-1)
    above = tf.searchsorted(GRID, tf.reshape(numbers, [-1]))
    return tf.reshape(tf.gather(GRID, above), tf.shape(numbers))


def on_grid(source_BM: tf.Tensor, target_BL: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The pairs of a part with as much more padding as `sizes_on_grid` wants."""
    (batch, source_length), target_length = tf.unstack(tf.shape(source_BM)), tf.shape(target_BL)[1]
    size_BL = sizes_on_grid(tf.stack([batch, source_length, target_length]))

    def padded(ids: tf.Tensor) -> tf.Tensor:
        return tf.pad(ids, tf.stack([tf.zeros_like(size_BL), size_BL - tf.shape(ids)], axis=1))

    return padded(source_BM), padded(target_BL)
