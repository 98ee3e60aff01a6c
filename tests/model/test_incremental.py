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
        lambda tokens, position, past, bias: step(tokens, position, past, memories, bias, model.source_bias(SOURCE)),
        autograph=False,
        reduce_retracing=True,
    )
    past, found = empty_past(model, batch), []
    tokens_BW = tf.zeros([batch, width], tf.int32)
    for position in range(length):
        past = with_room(past, position, width)
        own_WC = np.tile(np.eye(width, dtype=bool), capacity(position))
        own_WC[:, (position + 1) * width :] = False
        beam_bias = mask_bias(np.broadcast_to(own_WC, (batch, 1, *own_WC.shape)))
        logits_BWV, past = run(tokens_BW, tf.constant(position), past, beam_bias)
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


def test_caches_have_few_sizes_and_hold_one_position_per_step(monkeypatch):
    """oneDNN compiles a product for each size, and keeps it."""
    monkeypatch.setattr(incremental, "BLOCK", 4)
    model = random_model(VOCAB)
    batch, length = TARGET.shape
    memories = source_keys_values(model, tf.constant(SOURCE), {})
    step, past = DecodingStep(model), empty_past(model, batch)
    for position in range(length):
        past = with_room(past, position, 3)
        room = 4 if position < 4 else 8
        bias = mask_bias(np.arange(room * 3) < (position + 1) * 3)[None, None, None]
        _, past = step(tf.zeros([batch, 3], tf.int32), position, past, memories, bias, model.source_bias(SOURCE))
        for both in past:
            for cache in both:
                assert cache.shape[2] == room * 3
                filled = np.abs(cache).max(axis=(0, 1, 3)) > 0
                np.testing.assert_array_equal(filled, np.arange(room * 3) < (position + 1) * 3)


@pytest.mark.parametrize("name", ["activation", "pre-norm"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_changed_models_decode_in_int8(monkeypatch, dtype, name):
    for change in CHANGES[name]:
        monkeypatch.setattr(*change)
    model = random_model(VOCAB, d_model=64, d_ff=96, num_encoder_layers=2, num_decoder_layers=1, dtype=dtype)
    expected = full_logits(model)
    furthest = np.abs(step_by_step(model, int8=True)[:, 0] - expected).max() / np.abs(expected).max()
    assert 0 < furthest < 0.1
