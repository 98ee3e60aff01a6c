"""Beam search against exhaustive search, greedy decoding, and the full decoder without a cache."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_decoder import batch, compiled_log_p, compiled_search, hypotheses, penalty
from helpers.tiny_model import random_ids, shared_model

from t2t_repro.inference.search.beam_search import length_penalty
from t2t_repro.inference.search.top_k import top_k
from t2t_repro.text.token_ids import EOS, PAD

pytestmark = pytest.mark.numeric

FEW = 6  # a vocabulary small enough to try everything: PAD, EOS and four words
VOCAB = 30
RNG = np.random.default_rng(1)
SOURCES = [[*ids, EOS] for ids in (random_ids(RNG, VOCAB, n) % (VOCAB - 2) + 2 for n in (1, 2, 3, 3, 4, 5, 6, 7))]


def larger(dtype: str = "float32"):
    """Returns a model of two layers with learned positions; `smaller` has sinusoids."""
    return shared_model(VOCAB, positions="learned", dtype=dtype)


def search(model, sources, beam_size, alpha=0.6, extra_length=4, extra_columns=0):
    """Returns the hypotheses of each sentence, best first: (ids up to EOS, score)."""
    no_prefix = np.zeros([len(sources), 0], np.int32)
    source_BM = batch(sources, extra_columns)
    found = hypotheses(compiled_search(model)(source_BM, beam_size, alpha, extra_length, no_prefix, 0))
    for best in found:
        assert (np.diff([score for _, score in best]) <= 0).all()
    return found


def log_probabilities(model, source: list[int], targets: list[tuple[int, ...]]) -> np.ndarray:
    """Returns the log-probabilities of complete targets, computed by the full decoder."""
    target_BL = batch([list(target) for target in targets])
    log_p_BLV = compiled_log_p(model)(batch([source] * len(targets)), target_BL)
    chosen_BL = tf.gather(log_p_BLV, target_BL, batch_dims=2).numpy().astype(np.float64)
    return np.where(target_BL == PAD, 0, chosen_BL).sum(axis=1)


# Building blocks.


def test_the_length_penalty_of_wu_et_al():
    """((5 + |Y|) / 6)^alpha: 1 for one token, and 2^alpha for seven."""
    np.testing.assert_allclose(
        length_penalty(tf.constant([1, 7, 13]), tf.constant(0.6)), [1, 2**0.6, 3**0.6], rtol=1e-6
    )
    np.testing.assert_allclose(length_penalty(tf.constant([1, 7, 13]), tf.constant(0.0)), 1)


@pytest.mark.parametrize("size", [1, 5, 128, 129, 1000, 1009, 5000])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_top_k_is_tensorflows(size, k):
    x = tf.constant(RNG.permutation(3 * size).reshape(3, size).astype(np.float32))
    k = min(k, size)
    for ours, theirs in zip(top_k(x, k), tf.math.top_k(x, k), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_top_k_of_adjacent_entries():
    x = np.zeros((1, 3000), np.float32)
    x[0, 1024:1032] = range(8, 0, -1)
    values, at = top_k(tf.constant(x), 8)
    assert (values.numpy().tolist(), at.numpy().tolist()) == ([[*range(8, 0, -1)]], [[*range(1024, 1032)]])


def test_top_k_below_zero():
    """The padding of the last group never wins."""
    x = tf.constant(-1e30 - np.arange(300, dtype=np.float32)[None] * 1e29)
    np.testing.assert_array_equal(top_k(x, 2)[1], [[0, 1]])


# Exhaustive search.


def smaller():
    """Returns a model of `FEW` tokens and one layer. Its seed gives short and long sentences, with EOS often second."""
    return shared_model(FEW, seed=8, num_layers=1)


def everything(model, source: list[int], alpha: float, longest: int) -> list[tuple[tuple[int, ...], float]]:
    """Returns every target of at most `longest` tokens with its score, best first.

    The probability of EOS counts even if EOS is forced.
    """
    words = range(2, FEW)
    targets = [(*ids, EOS) for n in range(longest) for ids in itertools.product(words, repeat=n)]
    scores = log_probabilities(model, source, targets) / [penalty(len(target), alpha) for target in targets]
    return sorted(zip(targets, scores.tolist(), strict=True), key=lambda pair: -pair[1])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_wide_beam_is_exhaustive_search(alpha):
    """There are 85 targets of at most 4 tokens: a beam of 100 drops none of them.

    With a model of one layer TensorFlow's optimizer once made the result empty.
    """
    model, sources = smaller(), [[2, EOS], [5, EOS]]
    for source, found in zip(sources, search(model, sources, 100, alpha, 2), strict=True):
        expected = everything(model, source, alpha, longest=4)
        assert len(expected) == 85
        np.testing.assert_allclose([s for _, s in found[:85]], [s for _, s in expected], rtol=1e-4, atol=1e-5)
        assert found[0][0] == expected[0][0]
        assert {ids for ids, _ in found[:85]} == {ids for ids, _ in expected}


@pytest.mark.parametrize("alpha", [0.6, 6.0, 12.0, 40.0])
def test_impossible_beams_never_win(alpha):
    """A beam of 100 has 85 targets: the other 15 beams are no hypotheses at any length penalty."""
    for found in search(smaller(), [[2, EOS], [5, EOS]], 100, alpha, 2):
        scores = np.array([score for _, score in found])
        assert np.isfinite(scores).all() and (scores[:85] > -100).all() and (scores[85:] < -1e29).all()
        assert len({ids for ids, _ in found[:85]}) == 85


def test_larger_alpha_favors_longer_hypotheses():
    """Shows that the tests above exercise the length penalty."""
    model = smaller()
    best = [everything(model, [2, EOS], alpha, 4)[0][0] for alpha in (0.0, 2.0)]
    assert len(best[0]) < len(best[1])


# Against the full decoder.


@functools.cache
def greedy(model, source: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """Returns the likeliest token of each step, by the full decoder without a cache; EOS at the maximum length."""
    ids: list[int] = []
    while len(ids) < longest - 1 and EOS not in ids:
        log_p_BLV = compiled_log_p(model)(np.array([source], np.int32), np.array([[*ids, PAD]], np.int32))
        ids.append(int(log_p_BLV.numpy()[0, -1, EOS:].argmax()) + EOS)  # never PAD
    return tuple(ids if EOS in ids else [*ids, EOS])


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beam_of_one_is_greedy(alpha):
    """EOS is often second here and would score higher; greedy decoding does not take it."""
    model = smaller()
    sources = [[(id - 2) % 4 + 2 if id > EOS else EOS for id in ids] for ids in SOURCES]
    expected = [greedy(model, tuple(source), len(source) + 4) for source in sources]
    assert [hypotheses[0][0] for hypotheses in search(model, sources, 1, alpha)] == expected
    at_the_greatest_length = [len(ids) == len(source) + 4 for ids, source in zip(expected, sources, strict=True)]
    assert {False, True} == set(at_the_greatest_length)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_scores_equal_those_of_the_full_decoder(alpha):
    """Each score is that of the beam's own tokens, although keys are cached and beams are reordered."""
    model = larger()
    found = search(model, SOURCES, 4, alpha)
    for source, best in zip(SOURCES, found, strict=True):
        assert len(best) == 4
        log_p = log_probabilities(model, source, [ids for ids, _ in best])
        expected = log_p / [penalty(len(ids), alpha) for ids, _ in best]
        np.testing.assert_allclose([score for _, score in best], expected, rtol=1e-4, atol=1e-5)
        assert len({ids for ids, _ in best}) == 4


def test_wider_beam_is_no_worse_on_these_sentences():
    """A wider beam is not better in general. Here it is better at least once, and no worse on average."""
    model = larger()
    narrow, wide = ([best[0][1] for best in search(model, SOURCES, width)] for width in (1, 4))
    assert sum(wide) > sum(narrow)


def test_translation_is_independent_of_the_batch():
    """Other sentences, padding, and further steps for longer sentences change nothing."""
    model = larger()
    together = search(model, SOURCES, 4, extra_columns=3)
    for source, best in zip(SOURCES, together, strict=True):
        (alone,) = search(model, [source], 4)
        assert [ids for ids, _ in alone] == [ids for ids, _ in best]
        np.testing.assert_allclose([s for _, s in alone], [s for _, s in best], rtol=1e-4)


@pytest.mark.parametrize("extra_length", [0, 1, 9])
def test_length_is_at_most_source_plus_extra_length(extra_length):
    """`search` has checked that each hypothesis contains EOS once, at its end."""
    found = search(larger(), SOURCES, 4, alpha=5.0, extra_length=extra_length)
    for source, best in zip(SOURCES, found, strict=True):
        lengths = [len(ids) for ids, _ in best]
        assert max(lengths) == len(source) + extra_length  # alpha 5 favors long hypotheses


@pytest.mark.slow
def test_bfloat16_scores_are_near():
    wide, narrow = larger(), larger("mixed_bfloat16")
    for one, other in zip(search(wide, SOURCES, 1, 0.0), search(narrow, SOURCES, 1, 0.0), strict=True):
        assert other[0][1] == pytest.approx(one[0][1], rel=0.2, abs=0.5)
