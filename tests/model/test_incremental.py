"""Decoding position by position gives the logits of the forward pass over complete targets, also for modified
models."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import random_ids, random_model

from t2t_repro.model import incremental
from t2t_repro.model.attention import MultiHeadAttention, mask_bias
from t2t_repro.model.incremental import DecodingStep, capacity, empty_past, source_keys_values, with_room
from t2t_repro.model.int8 import int8_embedding, int8_or_float32
from t2t_repro.model.kernels import linear, split_heads
from t2t_repro.model.layers import AddNorm, FeedForward
from t2t_repro.model.transformer import Transformer

pytestmark = pytest.mark.numeric

VOCAB = 11
RNG = np.random.default_rng(1)
SOURCE = np.pad(random_ids(RNG, VOCAB, 3, 5), [(0, 0), (0, 2)])
TARGET = random_ids(RNG, VOCAB, 3, 6)


def full_logits(model: Transformer) -> np.ndarray:
    """Returns [B, L, V] of the full forward pass."""
    return model({"inputs": tf.constant(SOURCE), "targets": tf.constant(TARGET)}).numpy()


def step_by_step(model: Transformer, width: int = 1, int8: bool = False) -> np.ndarray:
    """Returns [B, W, L, V]: W beams with the same target, each of which sees only its own keys."""
    batch, length = TARGET.shape
    how = {"make": int8_or_float32, "make_embedding": int8_embedding} if int8 else {}
    step = DecodingStep(model, **how)
    memories = source_keys_values(model, tf.constant(SOURCE), {})
    run = tf.function(
        lambda tokens, position, *past: step(tokens, position, *past[:2], memories, past[2], model.source_bias(SOURCE)),
        autograph=False,
        reduce_retracing=True,
    )
    past, room, found = empty_past(model, batch), 0, []
    tokens_BW = tf.zeros([batch, width], tf.int32)
    for position in range(length):
        if position == room:
            room, all_BN = capacity(position), np.tile(np.arange(position * width), (batch, 1))
            past = with_room(past, all_BN, room * width)
        own_WN = np.tile(np.eye(width, dtype=bool), room)
        own_WN[:, (position + 1) * width :] = False
        beam_bias = mask_bias(np.broadcast_to(own_WN, (batch, 1, *own_WN.shape)))
        logits_BWV, past = run(tokens_BW, tf.constant(position), past, tf.constant(position), beam_bias)
        found.append(logits_BWV.numpy())
        tokens_BW = tf.repeat(tf.constant(TARGET[:, position : position + 1]), width, axis=1)
    return np.stack(found, axis=2)


def pre_norm(self, x_BLD, sublayer, seed=None):
    return x_BLD + self.dropout(sublayer(self.norm(x_BLD)), seed=seed)


def gelu_feed_forward(self, x_BLD):
    hidden_BLF = keras.ops.gelu(x_BLD @ self.w_1 + self.b_1)
    return hidden_BLF @ self.w_2 + self.b_2


def sharper_queries(self, x_BLD):
    return 2 * split_heads(linear(x_BLD, self.w_q), self.num_heads)


CHANGES = {
    "none": (),
    "activation": ((FeedForward, "activation", staticmethod(keras.ops.gelu)),),
    "feed-forward network": ((FeedForward, "call", gelu_feed_forward),),
    "queries": ((MultiHeadAttention, "queries", sharper_queries),),
    "pre-norm": ((AddNorm, "call", pre_norm),),
    "pre-norm and activation": (
        (AddNorm, "call", pre_norm),
        (FeedForward, "activation", staticmethod(keras.ops.silu)),
    ),
}


DEEP = {"num_encoder_layers": 1, "num_decoder_layers": 3}


@pytest.mark.parametrize(
    ("name", "shape"), [("none", {}), ("none", {"positions": "learned"}), *((name, DEEP) for name in CHANGES)]
)
def test_step_by_step_decoding_gives_the_logits_of_the_full_sequence(monkeypatch, name, shape):
    plain = full_logits(random_model(VOCAB, **shape))
    for change in CHANGES[name]:
        monkeypatch.setattr(*change)
    model = random_model(VOCAB, **shape)
    expected = full_logits(model)
    assert (np.abs(expected - plain).max() > 1e-2) == (name != "none")
    scale = np.abs(expected).max()
    for width, block in ((1, 16), (3, 2)):
        monkeypatch.setattr(incremental, "BLOCK", block)
        found = step_by_step(model, width)
        np.testing.assert_allclose(found, np.stack([expected] * width, axis=1), rtol=1e-4, atol=1e-5 * scale)


def test_a_step_writes_at_its_place_and_a_larger_cache_holds_what_is_kept():
    model = random_model(VOCAB)
    batch, width = len(SOURCE), 3
    memories = source_keys_values(model, tf.constant(SOURCE), {})
    step = DecodingStep(model)

    def one_step(past, place, entries):
        bias = mask_bias(np.arange(entries) < (place + 1) * width)[None, None, None]
        tokens_BW = tf.constant(RNG.integers(2, VOCAB, (batch, width)), tf.int32)
        return step(tokens_BW, 1, past, place, memories, bias, model.source_bias(SOURCE))[1]

    past = with_room(empty_past(model, batch), np.zeros([batch, 0], np.int32), 6)
    past = one_step(one_step(past, 0, 6), 1, 6)
    kept_BN = np.stack([RNG.permutation(6)[:4] for _ in range(batch)])
    grown = one_step(with_room(past, kept_BN, 12), 2, 12)
    for before, after in zip(tf.nest.flatten(past), tf.nest.flatten(grown), strict=True):
        rows_B11, heads_1H1 = np.ix_(*map(range, before.shape[:2]), [0])[:2]
        assert after.shape[2] == 12
        np.testing.assert_array_equal(after[:, :, :4], before.numpy()[rows_B11, heads_1H1, kept_BN[:, None]])
        filled_N = np.abs(after).max(axis=(0, 1, 3)) > 0
        np.testing.assert_array_equal(filled_N, [True] * 4 + [False] * 2 + [True] * 3 + [False] * 3)


def test_caches_have_few_sizes(monkeypatch):
    """oneDNN compiles a product for each size, and keeps it. A larger cache has room for a block of steps at least."""
    monkeypatch.setattr(incremental, "BLOCK", 4)
    assert [capacity(filled) for filled in range(10)] == [4, 8, 8, 8, 8, 12, 12, 12, 12, 16]


@pytest.mark.parametrize("name", ["activation", "pre-norm"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_changed_models_decode_in_int8(monkeypatch, dtype, name):
    for change in CHANGES[name]:
        monkeypatch.setattr(*change)
    model = random_model(VOCAB, d_model=64, d_ff=96, num_encoder_layers=2, num_decoder_layers=1, dtype=dtype)
    expected = full_logits(model)
    furthest = np.abs(step_by_step(model, int8=True)[:, 0] - expected).max() / np.abs(expected).max()
    assert 0 < furthest < 0.1
