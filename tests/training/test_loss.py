"""The loss: a manually computed case, Keras' loss, and the fused form against the plain one, with gradients."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.loss_gradients import compare, value_and_gradients

from t2t_repro.text.token_ids import PAD
from t2t_repro.training import fused_loss
from t2t_repro.training.fused_loss import projected_loss, vocabulary_blocks
from t2t_repro.training.loss import smoothed_cross_entropy

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)
VOCAB, D_MODEL = 13, 6


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def targets(number: int) -> np.ndarray:
    return RNG.integers(0, VOCAB, number).astype(np.int32)


# The plain form.


def test_a_hand_worked_case():
    """p = (1/2, 1/4, 1/8, 1/8), so -log2 p = (1, 2, 3, 3), whose mean is 9/4. With eps 0.2 the loss of target 0 is
    0.8 * 1 + 0.2 * 9/4 = 1.25 bits, and that of target 3 is 0.8 * 3 + 0.2 * 9/4 = 2.85 bits; a bit is ln 2 nats.
    """
    logits = np.log([[1 / 2, 1 / 4, 1 / 8, 1 / 8]] * 2).astype(np.float32)
    loss = smoothed_cross_entropy(tf.constant(logits), tf.constant([0, 3]), 0.2)
    np.testing.assert_allclose(loss.smoothed, (1.25 + 2.85) * math.log(2), rtol=1e-6)
    np.testing.assert_allclose(loss.plain, (1 + 3) * math.log(2), rtol=1e-6)
    assert (float(loss.correct), float(loss.tokens)) == (1, 2)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
def test_the_loss_is_keras(label_smoothing):
    logits, wanted = 3 * normal(9, VOCAB), targets(9)
    theirs = keras.losses.CategoricalCrossentropy(True, label_smoothing, reduction="sum")
    ours = smoothed_cross_entropy(tf.constant(logits), tf.constant(wanted), label_smoothing)
    np.testing.assert_allclose(ours.smoothed, theirs(np.eye(VOCAB)[wanted], logits), rtol=1e-5)


def test_perplexity_uses_the_loss_without_smoothing():
    logits, wanted = tf.constant(normal(9, VOCAB)), tf.constant(targets(9))
    smoothed, plain = (smoothed_cross_entropy(logits, wanted, eps) for eps in (0.1, 0.0))
    np.testing.assert_allclose(smoothed.plain, plain.smoothed, rtol=1e-6)
    assert abs(smoothed.smoothed - plain.smoothed) > 0.1


# The fused form.


def plainly(states, embedding, wanted, label_smoothing, factor=1.0):
    states, wanted = tf.boolean_mask(states, wanted != PAD), tf.boolean_mask(wanted, wanted != PAD)
    loss = smoothed_cross_entropy(states @ tf.transpose(embedding), wanted, label_smoothing)
    return factor * loss.smoothed, loss


def fused(states, embedding, wanted, label_smoothing, factor=1.0):
    blocks, rows = vocabulary_blocks(embedding), tf.gather(embedding, wanted)
    return projected_loss(states, blocks, rows, wanted, label_smoothing, factor)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16, 30])
def test_fused_equals_plain_in_any_number_of_chunks(monkeypatch, tokens, label_smoothing):
    """Chunks of 8: less than one, one, the boundary, several, the last not full. Blocks of 5 words, and one of 3."""
    monkeypatch.setattr(fused_loss, "CHUNK", 8)
    monkeypatch.setattr(fused_loss, "BLOCK", 5)
    case = normal(tokens, D_MODEL), normal(VOCAB, D_MODEL), targets(tokens), label_smoothing
    compare(value_and_gradients(fused, *case), value_and_gradients(plainly, *case, tf.float64), 2e-6)


@pytest.mark.parametrize("scale", [1e-4, 30, 1e3])
def test_fused_equals_plain_for_large_logits(scale):
    """Logits up to about 10,000 give a softmax of 0 and 1, and a loss of thousands of nats."""
    case = scale * normal(20, D_MODEL), normal(VOCAB, D_MODEL), targets(20), 0.1
    compare(value_and_gradients(fused, *case), value_and_gradients(plainly, *case, tf.float64), 5e-6)


def test_one_target_many_times():
    """The gradient of an embedding row is the sum over all its tokens, not that of the last one."""
    case = normal(40, D_MODEL), normal(VOCAB, D_MODEL), np.full(40, 3, np.int32), 0.1
    compare(value_and_gradients(fused, *case), value_and_gradients(plainly, *case, tf.float64), 2e-6)


@pytest.mark.bfloat16
def test_narrow_states(monkeypatch):
    """bfloat16 has 8 bits of precision: errors are a few thousandths. Sums are taken in float32."""
    monkeypatch.setattr(fused_loss, "CHUNK", 64)
    states = tf.cast(normal(300, 32), tf.bfloat16)
    case = 0.5 * normal(VOCAB, 32), targets(300), 0.1
    ours = value_and_gradients(fused, states, *case, tf.bfloat16)
    exact = value_and_gradients(plainly, tf.cast(states, tf.float64), *case, tf.float64)
    np.testing.assert_allclose(ours[:2], exact[:2], rtol=5e-3)
    np.testing.assert_allclose(ours[2], exact[2], atol=6)  # predictions that tie in bfloat16
    for found, truth in zip(ours[4:], exact[4:], strict=True):
        assert np.linalg.norm(found - truth) < 0.01 * np.linalg.norm(truth)


def test_counts():
    embedding, wanted = np.eye(VOCAB, dtype=np.float32), np.arange(9, dtype=np.int32)
    states = np.eye(VOCAB, dtype=np.float32)[[0, 1, 2, 9, 9, 5, 9, 9, 9]]
    _, loss = fused(tf.constant(states), tf.constant(embedding), tf.constant(wanted), 0.1)
    assert (float(loss.correct), float(loss.tokens)) == (3, 8)  # the first is padding


def test_a_tie_counts_as_correct_only_in_training():
    """The tutorial documents it. Subwords 3 and 4 tie for the highest logit; an argmax would read all logits again."""
    embedding, wanted = np.eye(VOCAB, dtype=np.float32), np.array([3, 4, 5], np.int32)
    states = np.tile(embedding[3] + embedding[4], (3, 1))
    _, loss = fused(tf.constant(states), tf.constant(embedding), tf.constant(wanted), 0.1)
    evaluated = smoothed_cross_entropy(tf.constant(states @ embedding.T), tf.constant(wanted), 0.1)
    assert (float(loss.correct), float(evaluated.correct)) == (2, 1)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [0, 5])
def test_padding_alone_has_no_loss(tokens, dtype):
    case = tf.cast(normal(tokens, D_MODEL), dtype), normal(VOCAB, D_MODEL), np.full(tokens, PAD, np.int32), 0.1
    for found in value_and_gradients(fused, *case, dtype):
        assert not found.any()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=["float32", "bfloat16"])
def test_xla_computes_the_same(monkeypatch, dtype):
    monkeypatch.setattr(fused_loss, "CHUNK", 8)
    monkeypatch.setattr(fused_loss, "BLOCK", 5)
    specs = [tf.TensorSpec([None, D_MODEL], dtype), tf.TensorSpec([VOCAB, D_MODEL]), tf.TensorSpec([None], tf.int32)]

    def compiled(states, embedding, wanted, *numbers):
        function = tf.function(lambda *case: fused(*case, *numbers), specs, autograph=False, jit_compile=True)
        return function(states, embedding, wanted)

    case = normal(21, D_MODEL), normal(VOCAB, D_MODEL), targets(21), 0.1
    ours, theirs = (value_and_gradients(function, *case, dtype) for function in (compiled, fused))
    compare(ours, theirs, 2e-6 if dtype == tf.float32 else 0.02)  # 0.011 on a processor without AVX-512


def test_one_graph_for_any_number_of_tokens():
    @tf.function(input_signature=[tf.TensorSpec([None, D_MODEL]), tf.TensorSpec([None], tf.int32)])
    def smoothed(states, wanted):
        return fused(states, embedding, wanted, 0.1)[1].smoothed

    embedding = tf.constant(normal(VOCAB, D_MODEL))
    for tokens in (1, 5, 2000):
        states, wanted = tf.constant(normal(tokens, D_MODEL)), tf.constant(targets(tokens))
        np.testing.assert_allclose(
            smoothed(states, wanted), plainly(states, embedding, wanted, 0.1)[1].smoothed, rtol=1e-4
        )


def test_fused_multiplies_by_the_factor_before_it_rounds_to_bfloat16():
    """The gradients' slope against 1 / tokens is 1 for states and embedding alike; bfloat16 is 0.3% off at 24,892."""
    case = normal(400, 32), normal(VOCAB, 32), targets(400), 0.1, tf.bfloat16
    whole, shares = (value_and_gradients(fused, *case, factor)[4:] for factor in (1.0, 1 / 24_892))
    for one, share in zip(whole, shares, strict=True):
        assert 24_892 * np.vdot(share, one) / np.vdot(one, one) == pytest.approx(1, abs=1e-3)


def test_fused_keeps_small_float16_gradients_with_a_loss_scale():
    """A gradient of 1e-8, which float16 rounds to 0, is right to 3% with a loss scale of 2^15."""
    words = 4_000
    states, wanted = 1e-3 * normal(6, 16), np.full(6, 1, np.int32)
    embedding = 2.0**-21 * RNG.choice([-1.0, 1.0], (words, 16)).astype(np.float32)
    embedding[1] = 0
    ours, exact = (
        value_and_gradients(function, states, embedding, wanted, 0.0, dtype, 2.0**14)[4]
        for function, dtype in ((fused, tf.float16), (plainly, tf.float64))
    )
    assert 0 < np.abs(exact).max() / 2**15 < 3e-8
    assert np.linalg.norm(ours - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_highest_is_the_maximum_whatever_the_signs(dtype):
    rows = np.random.default_rng(0).normal(size=(40, 30)) * 10
    rows[0], rows[1], rows[2, 0] = -np.abs(rows[0]), np.abs(rows[1]), np.inf
    rows[3, 1:], rows[4] = -np.inf, np.where(rows[4] > 0, 0.0, -0.0)
    rows = tf.cast(rows, dtype)
    np.testing.assert_array_equal(fused_loss._highest(rows), tf.reduce_max(rows, axis=-1))
    with_nan = tf.concat([rows, tf.fill([40, 1], tf.constant(math.nan, dtype))], axis=1)
    assert np.isnan(tf.cast(fused_loss._highest(with_nan), tf.float32)).all()
