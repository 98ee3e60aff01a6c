"""Decoding against a plain reference implementation: beams, scores, options, and independence of the batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_decoder import (
    batch,
    compiled_log_p,
    compiled_sample,
    compiled_search,
    greatest_length,
    hypotheses,
    plain_beam,
    plain_sample,
)
from helpers.tiny_model import shared_model

from t2t_repro.inference.search import decoding_loop as search_module
from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.search.sampling import draws
from t2t_repro.model import incremental
from t2t_repro.text.token_ids import EOS

pytestmark = pytest.mark.numeric

VOCAB = 30
RNG = np.random.default_rng(3)
SOURCES = [[*RNG.integers(2, VOCAB, n).tolist(), EOS] for n in (0, 1, 2, 5, 7, 3, 3, 6)]
PREFIXES = [[*RNG.integers(2, VOCAB, n).tolist()] for n in (0, 3, 1, 0, 2, 14, 0, 1)]
NO_PREFIXES = [[] for _ in SOURCES]
EXTRA = 4


def one():
    return (
        shared_model(VOCAB, positions="learned", dtype="float32"),
    )  # the model of tests/inference/test_beam_search.py


def small():
    return shared_model(VOCAB, seed=5, num_layers=1, d_model=8, num_heads=1, d_k=3)


def ensemble():
    """Returns models of different widths, each with its own kind of positions."""
    return small(), shared_model(VOCAB, num_encoder_layers=3, num_decoder_layers=1, positions="learned")


def search(models, sources, beam_size=3, alpha=0.6, prefixes=NO_PREFIXES, min_length=0):
    arguments = (batch(sources), beam_size, alpha, EXTRA, batch(prefixes), min_length)
    return hypotheses(compiled_search(*models)(*arguments))


def assert_equal(found, expected):
    """Checks for the same hypotheses in the same order with the same scores."""
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("models", "beam_size", "alpha", "prefixes", "min_length"),
    [
        (one, 4, 0.6, NO_PREFIXES, 0),
        (one, 1, 0.0, NO_PREFIXES, 0),
        (one, 3, 0.6, PREFIXES, 0),
        (one, 1, 0.6, PREFIXES, 5),
        (one, 3, 0.0, NO_PREFIXES, 4),
        (one, 2, 1.0, PREFIXES, 20),
        (ensemble, 4, 0.6, NO_PREFIXES, 0),
        (ensemble, 3, 0.6, PREFIXES, 3),
    ],
)
def test_beam_search_equals_the_reference(models, beam_size, alpha, prefixes, min_length):
    found = search(models(), SOURCES, beam_size, alpha, prefixes, min_length)
    for source, prefix, hypotheses_found in zip(SOURCES, prefixes, found, strict=True):
        expected = plain_beam(models(), source, beam_size, alpha, EXTRA, prefix, min_length)
        assert_equal(hypotheses_found, expected)
        longest = greatest_length(source, EXTRA, prefix, min_length)
        assert len(expected) == (beam_size if longest > len(prefix) + 1 else 1)
        for ids, _ in expected:
            assert list(ids[: len(prefix)]) == prefix and len(ids) > min_length


def test_results_are_independent_of_the_batch():
    alone = [search(ensemble(), [s], 3, prefixes=[p])[0] for s, p in zip(SOURCES, PREFIXES, strict=True)]
    for order in ([3, 1, 0, 2], [7, 6, 5, 4, 3, 2, 1, 0], [2, 2, 5]):
        together = search(ensemble(), [SOURCES[i] for i in order], 3, prefixes=[PREFIXES[i] for i in order])
        for i, found in zip(order, together, strict=True):
            assert_equal(found, alone[i])


def test_empty_batch():
    nothing = np.zeros([0, 3], np.int32)
    found = compiled_search(*one())(nothing, 3, 0.6, EXTRA, nothing, 0)
    assert found.ids.shape[:2] == found.scores.shape == (0, 3)


@functools.cache
def keeping(share: float, block: int = 64):
    """Runs beam search with `share` as the compaction threshold and room for `block` steps in a cache, at whose end
    sentences are removed whatever the threshold. Returns the number of rows, and of entries of a cache, of each step.
    """
    rows: list[int] = []
    entries: list[int] = []

    class Counted(search_module.Ensemble):
        def stepper(self, *arguments):
            step = super().stepper(*arguments)

            def counted(tokens_BW, position, caches, *arguments):
                def record(tokens, keys_BHNK):
                    rows.append(len(tokens))
                    entries.append(keys_BHNK.shape[2])

                tf.py_function(record, [tokens_BW, caches[0][0][0]], [])
                return step(tokens_BW, position, caches, *arguments)

            return counted

    @tf.function
    def run(source_BM, prefix_BP):
        return beam_search([small()], source_BM, 2, 0.6, EXTRA, prefix_BP)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "COMPACTION_THRESHOLD", share)
        patch.setattr(incremental, "BLOCK", block)
        patch.setattr("t2t_repro.inference.search.beam_search.Ensemble", Counted)
        found = hypotheses(run(batch(SOURCES), batch(PREFIXES)))
    return found, rows, entries


def test_finished_sentences_are_removed_from_the_batch():
    """The results equal those of a batch that keeps all sentences; later steps have fewer rows."""
    all_stay, rows_of_all, _ = keeping(0.0)
    some_leave, rows_of_some, _ = keeping(search_module.COMPACTION_THRESHOLD)
    for found, expected in zip(some_leave, all_stay, strict=True):
        assert_equal(found, expected)
    assert set(rows_of_all) == {len(SOURCES)}
    assert rows_of_some[0] == len(SOURCES) and rows_of_some[-1] < len(SOURCES) / 2
    assert rows_of_some == sorted(rows_of_some, reverse=True) and len(rows_of_some) == len(rows_of_all)


def test_a_full_cache_is_copied_without_the_entries_that_no_beam_sees():
    """The results equal those of caches that are never full."""
    never_full, _, entries_of_all = keeping(0.0)
    copied, rows, entries = keeping(0.0, block=2)
    for found, expected in zip(copied, never_full, strict=True):
        assert_equal(found, expected)
    assert set(entries_of_all) == {2 * 64}
    assert entries[0] == 2 * 2
    assert max(entries) < 2 * len(rows)  # as many are written


# Sampling.


@pytest.mark.parametrize(
    ("temperature", "k", "prefixes", "min_length"),
    [
        (1.0, 0, NO_PREFIXES, 0),
        (0.7, 0, PREFIXES, 4),
        (1.5, 3, NO_PREFIXES, 3),
        (1.0, 3, PREFIXES, 0),
        (1.0, 100, NO_PREFIXES, 0),
        (1.0, 2**31 - 1, NO_PREFIXES, 0),
    ],
)
def test_sampling_equals_the_reference(temperature, k, prefixes, min_length):
    drawn = draws(SOURCES, 3, 40, seed=7)
    arguments = (batch(SOURCES), drawn, temperature, k, EXTRA, batch(prefixes), min_length)
    found = hypotheses(compiled_sample(*one())(*arguments))
    for source, prefix, numbers, samples in zip(SOURCES, prefixes, drawn, found, strict=True):
        expected = [plain_sample(one(), source, row, temperature, k, EXTRA, prefix, min_length) for row in numbers]
        assert_equal(samples, expected)


@pytest.mark.parametrize("k", [0, 3])
def test_no_temperature_allows_a_forbidden_token(k):
    drawn = draws(SOURCES, 3, 40, seed=7)
    found = compiled_sample(*one())(batch(SOURCES), drawn, 1e300, k, EXTRA, batch(NO_PREFIXES), 0)
    assert (found.scores > -1e6).numpy().all()


def test_sample_frequencies_match_probabilities():
    """2,000 first tokens of one sentence have the model's distribution, to within four standard deviations."""
    many = 2_000
    drawn = np.random.default_rng(0).random((1, many, 30)).astype(np.float32)
    source = batch(SOURCES[2:3])
    found = compiled_sample(*one())(source, drawn, 1.0, 0, EXTRA, np.zeros([1, 0], np.int32), 0)
    counts = np.bincount(found.ids.numpy()[0, :, 0], minlength=VOCAB)
    p = np.exp(compiled_log_p(one()[0])(source, np.array([[2, 2]], np.int32)).numpy()[0, 0])
    p[0] = 0  # padding is never drawn
    p /= p.sum()
    assert (np.abs(counts - many * p) <= 4 * np.sqrt(many * p * (1 - p)) + 1e-6).all()


def test_draws_depend_only_on_seed_source_and_number():
    both = draws([[5, 1], [6, 7, 1]], 3, 10, seed=1)
    np.testing.assert_array_equal(draws([[6, 7, 1]], 1, 4, seed=1)[0, 0], both[1, 0, :4])
    every = np.concatenate([both.reshape(-1), draws([[5, 1]], 1, 10, seed=2).reshape(-1)])
    assert len(set(every.tolist())) == len(every) and every.min() >= 0 and every.max() < 1
