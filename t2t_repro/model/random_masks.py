"""The random masks of dropout. Each site of the model draws its own mask, which is a function of the seed."""

from __future__ import annotations

import hashlib
from typing import Any

import tensorflow as tf
from keras import ops


def site_key(site: str) -> tuple[int, int]:
    """Returns two numbers below 2^30 that `site_seed` adds to the seed of a forward pass.

    They are added because a GPU reads its seeds from host memory, where TensorFlow has integer addition but no
    exclusive or.

    Two sites draw the same mask only if both numbers differ by as much as two seeds do. The seeds of a run differ by
    less than 2^22 in the first number, the step, and by less than 2^12 in the second, the micro-batch. A test shows
    that no two sites of a model of 64 layers are that close.
    """
    digest = hashlib.blake2b(site.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little") >> 2, int.from_bytes(digest[4:], "little") >> 2


def site_seed(seed: Any, site: str) -> Any:
    """Returns seed + key(site): the seed [2] of the mask of `site`."""
    return ops.add(seed, tf.constant(site_key(site), tf.int32))


def generated_seed(generator: Any) -> Any:
    """Returns the next seed [2] of a `keras.random.SeedGenerator`, int32 and at least 0."""
    return tf.cast(tf.bitwise.bitwise_and(generator.next(), 0x7FFFFFFF), tf.int32)


def keep_mask(like: Any, rate: float, seed: Any) -> Any:
    """Returns booleans of the shape of `like`, each true with probability 1 - rate: a function of the seed [2], int32.

    Sixteen random bits decide an element, so that the probability is exact to within 2^-17.
    """
    shape, size = tf.shape(like), tf.size(like)
    # as `tf.random.stateless_uniform`, but without its key, which a GPU would copy from the host for each mask
    words = tf.raw_ops.StatelessRandomUniformFullInt(shape=[size // 4 + 1], seed=seed, dtype=tf.int64)
    bits = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    return tf.reshape(bits >= min(round(rate * 2**16), 2**16 - 1) - 2**15, shape)
