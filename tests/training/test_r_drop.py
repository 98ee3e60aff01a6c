"""R-Drop: the loss by its formula, the fused form against the plain one, and a step against two explicit passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.loss_gradients import compare, value_and_gradients
from helpers.tiny_model import SMALL, seed

from t2t_repro.flops import training_flops
from t2t_repro.model.kernels import attention, residual
from t2t_repro.model.random_masks import keep_mask
from t2t_repro.model.transformer import Transformer
from t2t_repro.text.token_ids import PAD
from t2t_repro.training import fused_loss
from t2t_repro.training.fused_loss import projected_loss, vocabulary_blocks
from t2t_repro.training.loss import r_drop_loss, smoothed_cross_entropy
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.train_step import TrainStep

RNG = np.random.default_rng(1)
VOCAB, D_MODEL = 13, 6
HPARAMS = replace(SMALL, num_layers=1, batch_tokens=128, dropout=0.3, attention_dropout=0.2, r_drop=5.0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def targets(number: int) -> np.ndarray:
    return RNG.integers(0, VOCAB, number).astype(np.int32)


def test_a_manually_computed_divergence():
    """p = (1/2, 1/2) and q = (3/4, 1/4): KL(p || q) + KL(q || p) = 1/4 ln 3, and both ways count a quarter each."""
    p, q = np.log([[1 / 2, 1 / 2]]).astype(np.float32), np.log([[3 / 4, 1 / 4]]).astype(np.float32)
    loss = r_drop_loss(tf.constant(p), tf.constant(q), tf.constant([0]), 0.0, 8.0)
    nll = (math.log(2) + math.log(4 / 3)) / 2
    np.testing.assert_allclose(loss.plain, nll, rtol=1e-6)
    np.testing.assert_allclose(loss.smoothed, nll + 8 / 4 * math.log(3) / 4, rtol=1e-6)
    assert (float(loss.correct), float(loss.tokens)) == (1, 1)


def test_the_divergence_is_keras_own():
    logits, others, wanted = 2 * normal(9, VOCAB), 2 * normal(9, VOCAB), targets(9)
    p, q = tf.nn.softmax(logits), tf.nn.softmax(others)
    divergence = tf.keras.losses.KLDivergence(reduction="sum")
    both_ways = divergence(p, q) + divergence(q, p)
    plain, r_drop = (r_drop_loss(logits, others, wanted, 0.1, alpha) for alpha in (0.0, 3.0))
    np.testing.assert_allclose(r_drop.smoothed - plain.smoothed, 3 / 4 * both_ways, rtol=1e-4)


def plainly(states, embedding, wanted, alpha, factor=1.0):
    real = tf.constant(np.tile(wanted != PAD, 2))
    logits = tf.boolean_mask(states, real) @ tf.transpose(embedding)
    loss = r_drop_loss(*tf.split(logits, 2), tf.boolean_mask(wanted, wanted != PAD), 0.1, alpha)
    return factor * loss.smoothed, loss


def fused(states, embedding, wanted, alpha, factor=1.0):
    wanted = tf.concat([wanted, wanted], axis=0)
    blocks, rows = vocabulary_blocks(embedding), tf.gather(embedding, wanted)
    return projected_loss(states, blocks, rows, wanted, 0.1, factor, alpha)


@pytest.mark.numeric
@pytest.mark.parametrize(("tokens", "alpha"), [(0, 5.0), (1, 5.0), (4, 0.5), (5, 5.0), (15, 0.5)])
def test_fused_equals_plain_in_any_number_of_chunks(monkeypatch, tokens, alpha):
    """Chunks of 8 rows, of 4 tokens in two passes, and blocks of 5 words."""
    monkeypatch.setattr(fused_loss, "CHUNK", 8)
    monkeypatch.setattr(fused_loss, "BLOCK", 5)
    case = 2 * normal(2 * tokens, D_MODEL), normal(VOCAB, D_MODEL), targets(tokens), alpha
    compare(value_and_gradients(fused, *case), value_and_gradients(plainly, *case, tf.float64), 3e-6)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(tf.bfloat16, marks=pytest.mark.bfloat16), pytest.param(tf.float16, marks=pytest.mark.float16)],
)
def test_fused_in_16_bits(dtype):
    """The loss to a few thousandths and the gradients to a few hundredths, although p and q differ little.

    Without oneDNN, TensorFlow computes logits in bfloat16 0.003 too near to 0, so the loss is 0.002 too low.
    """
    states = normal(300, 32)
    states = tf.cast(np.concatenate([states, states + 0.1 * normal(300, 32)]), dtype)
    case = 0.5 * normal(400, 32), RNG.integers(0, 400, 300).astype(np.int32), 5.0
    ours = value_and_gradients(fused, states, *case, dtype)
    exact = value_and_gradients(plainly, tf.cast(states, tf.float64), *case, tf.float64)
    np.testing.assert_allclose(ours[:2], exact[:2], rtol=4e-3)
    for found, truth in zip(ours[4:], exact[4:], strict=True):
        assert np.linalg.norm(found - truth) < 0.05 * np.linalg.norm(truth)


def two_passes(monkeypatch, model, source, target, dropout_seed, divisor):
    """Returns loss, gradients and logits of two explicit passes, each with half of the masks of twice the batch."""
    states = []
    variables = [weight.value for weight in model.trainable_weights]
    with tf.GradientTape() as tape:
        for number in (0, 1):

            def half(like, rate, mask_seed, number=number):
                return tf.split(keep_mask(tf.concat([like, like], axis=0), rate, mask_seed), 2)[number]

            for module in (attention, residual):
                monkeypatch.setattr(module, "keep_mask", half)
            pair = {"inputs": source, "targets": target}
            states.append(model(pair, training=True, seed=dropout_seed)[target != PAD])
        monkeypatch.undo()
        loss = r_drop_loss(*states, target[target != PAD], HPARAMS.label_smoothing, HPARAMS.r_drop)
        mean = loss.smoothed / divisor
    return loss, [tf.convert_to_tensor(each) for each in tape.gradient(mean, variables)], states


@pytest.mark.numeric
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradient_is_that_of_two_explicit_passes(monkeypatch, jit_compile):
    model = Transformer(VOCAB, HPARAMS)
    weights = [weight.value for weight in model.trainable_weights]
    train_step = TrainStep(model, Adam(weights, HPARAMS), HPARAMS, 1, jit_compile=jit_compile)
    source = tf.constant([[3, 4, 1, 0], [5, 9, 7, 1], [5, 1, 0, 0]])
    target = tf.constant([[7, 1, 0, 0], [8, 9, 10, 1], [2, 1, 0, 0]])
    case = source, target, seed(3, 7), tf.constant(8.0)
    loss, gradients, (first, second) = two_passes(monkeypatch, model, *case)
    found, ours = train_step.gradients(*case)
    assert np.abs(first - second).max() > 0.1
    plain = smoothed_cross_entropy(first, target[target != PAD], HPARAMS.label_smoothing)
    assert loss.smoothed - plain.smoothed > 0.1 and loss.tokens == 8
    np.testing.assert_allclose(ours, loss, rtol=1e-5)
    for each, truth in zip(found, gradients, strict=True):
        np.testing.assert_allclose(each, truth, atol=1e-5 * max(1, np.abs(truth).max()))


def test_it_costs_two_passes():
    counts = [training_flops(replace(HPARAMS, r_drop=alpha), VOCAB, 3, 4, 5, 12) for alpha in (0.0, 5.0)]
    assert counts[1] == 2 * counts[0]


def test_it_needs_dropout():
    with pytest.raises(ValueError, match=r"^r_drop must be 0 without dropout, .*, got 5.0; raise dropout above 0$"):
        replace(HPARAMS, dropout=0.0, attention_dropout=0.0)
    assert replace(HPARAMS, dropout=0.0).r_drop and replace(HPARAMS, attention_dropout=0.0).r_drop
