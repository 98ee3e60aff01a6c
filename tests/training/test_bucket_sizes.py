"""The sizes that micro-batches are padded to for XLA: few shapes, little padding, the same pairs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2t_repro.data import batching
from t2t_repro.training.train_step import BUCKET_SIZES, bucket_sizes, pad_to_bucket


def test_eight_sizes_per_octave():
    assert BUCKET_SIZES[:20].tolist() == [*range(1, 17), 18, 20, 22, 24]
    assert (np.diff(BUCKET_SIZES[7:]) <= BUCKET_SIZES[7:-1] / 8).all()
    assert BUCKET_SIZES[-1] > 10**6


@pytest.mark.parametrize(
    ("size", "on"),
    [((1, 1, 1), (1, 1)), ((9, 17, 3), (9, 18)), ((17, 3, 255), (18, 256)), ((240, 256, 257), (240, 288))],
)
def test_sizes(size, on):
    assert bucket_sizes(tf.constant(size)).numpy().tolist() == list(on)
    assert bucket_sizes(tf.constant([[size] * 2] * 3)).numpy().tolist() == [[list(on)] * 2] * 3


def test_pairs_are_unchanged():
    source, target = tf.ones((17, 5), tf.int32), 2 * tf.ones((17, 19), tf.int32)
    for padded, ids in zip(pad_to_bucket(source, target), (source, target), strict=True):
        assert padded.shape == (18, 20)
        np.testing.assert_array_equal(padded[:17, : ids.shape[1]], ids)
        assert tf.reduce_sum(padded) == tf.reduce_sum(ids)


def test_few_shapes_and_little_padding():
    """For 100,000 pairs with realistic lengths."""
    rng = np.random.default_rng(1)
    source = np.clip(rng.lognormal(3.1, 0.6, 100_000), 1, 256)
    lengths = np.stack([source, np.clip(source * rng.lognormal(0, 0.2, len(source)), 1, 256)], axis=1).astype(np.int64)
    cut = batching.plan(lengths, 3_125, rng)
    sizes = np.array([(len(rows), *lengths[rows].max(axis=0)) for rows in np.split(cut.order, cut.starts[1:-1])])
    on = bucket_sizes(tf.constant(sizes, tf.int32)).numpy()
    assert len(np.unique(sizes, axis=0)) > 500 and len(np.unique(on, axis=0)) < 90
    assert lengths.sum() / (2 * on.prod(axis=1)).sum() > 0.8
