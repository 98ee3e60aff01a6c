"""Dropout masks: rate, independence, and different seeds for all masks of a training run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers.plain_formulas import within
from helpers.tiny_model import SMALL, seed

from t2t_repro.model import random_masks
from t2t_repro.model.random_masks import keep_mask, site_key
from t2t_repro.model.transformer import Transformer

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_rate(rate):
    mask = keep_mask(np.zeros((500, 1000)), rate, seed(3, 4)).numpy()
    within(mask.mean(), 1 - rate, mask.size)


def test_rate_close_to_one_keeps_almost_nothing():
    assert keep_mask(np.zeros((500, 1000)), 1 - 1e-6, seed(3, 4)).numpy().mean() < 1e-4


def test_neighboring_elements_are_independent():
    """Several elements share one random number; neither their rates nor their pairs are affected."""
    mask = keep_mask(np.zeros((1_000_000,)), 0.3, seed(5, 6)).numpy().reshape(-1, 8)
    for i in range(8):
        within(mask[:, i].mean(), 0.7, len(mask))
        for j in range(i):
            within((mask[:, i] & mask[:, j]).mean(), 0.49, len(mask))


@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 3, 5), (7, 9), (0, 4)])
def test_mask_of_any_shape(shape):
    assert keep_mask(np.zeros(shape), 0.5, seed(1, 1)).shape == shape


def test_mask_uses_the_bits_of_stateless_uniform():
    """At a rate of 1/2 one bit decides an element: its sign."""
    words = tf.random.stateless_uniform([100 // 4 + 1], seed(3, 4), minval=None, maxval=None, dtype=tf.int64).numpy()
    expected = np.frombuffer(words.tobytes(), np.int16)[:100] >= 0
    np.testing.assert_array_equal(keep_mask(np.zeros((100,)), 0.5, seed(3, 4)), expected)


def test_same_seed_same_mask():
    masks = [
        keep_mask(np.zeros((40, 25)), 0.5, seed(*parts)).numpy() for parts in ((1, 2), (1, 2), (2, 2), (1, 3), (2, 1))
    ]
    np.testing.assert_array_equal(masks[0], masks[1])
    for other in masks[2:]:
        within((masks[0] == other).mean(), 0.5, 1000)


def test_no_two_sites_draw_from_one_seed(monkeypatch):
    """Checks a model of 64 layers in any two of 2^22 steps and 2^12 micro-batches. No sum overflows int32."""
    drawn: list[str] = []
    monkeypatch.setattr(random_masks, "site_key", lambda site: drawn.append(site) or site_key(site))
    model = Transformer(4, replace(SMALL, num_layers=1, dropout=0.1, attention_dropout=0.1))
    model({"inputs": tf.constant([[3, 1]]), "targets": tf.constant([[2, 1]])}, training=True, seed=seed(1, 2))
    assert len(set(drawn)) == len(drawn) == 2 + (2 + 1) + (3 + 2)
    sites = sorted({site.replace("/0/", f"/{layer}/") for site in drawn for layer in range(64)})
    assert len(sites) == 2 + 64 * (2 + 1) + 64 * (3 + 2)
    keys = np.array([site_key(site) for site in sites])
    assert keys.min() >= 0 and keys.max() < 2**30
    steps, parts = (np.abs(column[:, None] - column) for column in keys.T)
    assert ((steps >= 2**22) | (parts >= 2**12))[~np.eye(len(sites), dtype=bool)].all()
