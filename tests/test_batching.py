"""Which pairs share a batch: every pair once, never over the budget, little padding, the same for any devices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.data import batching

hypothesis = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def parts_of(cut: batching.Plan) -> list[np.ndarray]:
    return [cut.order[start:end] for start, end in pairwise(cut.starts)]


def lognormal_lengths(number: int, mean: float = 27) -> np.ndarray:
    """Correlated lengths of sources and targets, as in translation: lognormal, sigma 0.6, at most 256."""
    rng = np.random.default_rng(1)
    source = rng.normal(size=number)
    target = 0.9 * source + np.sqrt(1 - 0.9**2) * rng.normal(size=number)
    scaled = np.exp(np.log(mean) - 0.6**2 / 2 + 0.6 * np.stack([source, target], axis=1))
    return np.clip(scaled, 2, 256).astype(np.int64)


# Parts.


@hypothesis
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200),
    st.integers(40, 200),
    seeds,
)
def test_every_pair_once_and_never_over_the_budget(pairs, budget, seed):
    lengths = np.array(pairs)
    cut = batching.plan(lengths, budget, np.random.default_rng(seed))
    assert sorted(cut.order) == list(range(len(pairs)))
    assert (cut.starts[0], cut.starts[-1]) == (0, len(pairs))
    for part in parts_of(cut):
        assert 0 < len(part) * lengths[part].max() <= budget


def test_the_order_is_the_generators():
    lengths = lognormal_lengths(500)
    first, again, other = (batching.plan(lengths, 256, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.order, again.order)
    np.testing.assert_array_equal(first.starts, again.starts)
    assert not np.array_equal(first.order, other.order)


def test_a_pair_that_fits_in_no_part():
    with pytest.raises(ValueError, match="a pair of 65 tokens does not fit in 64 tokens a part; raise batch_tokens"):
        batching.plan(np.array([[3, 4], [65, 2]]), 64, np.random.default_rng(0))


def test_a_pair_that_just_fits():
    assert parts_of(batching.plan(np.array([[64, 1]]), 64, np.random.default_rng(0)))[0].tolist() == [0]


@pytest.mark.parametrize(("pairs", "share"), [(29_000, 0.95), (100_000, 0.975)])
def test_little_padding(pairs, share):
    """Of the positions that are computed, both sides, so many are tokens: lengths of mean 27, 2,048 tokens a part."""
    lengths = lognormal_lengths(pairs)
    assert 26 < lengths.mean() < 28
    parts = parts_of(batching.plan(lengths, 2_048, np.random.default_rng(1)))
    positions = sum(len(part) * lengths[part].max(axis=0).sum() for part in parts)
    assert lengths.sum() / positions >= share


def test_a_part_nearly_fills_its_budget():
    """The contract of an update is its tokens: the fuller side takes at least nine tenths of them on average."""
    lengths = lognormal_lengths(20_000)
    parts = parts_of(batching.plan(lengths, 2_048, np.random.default_rng(1)))
    assert np.mean([len(part) * lengths[part].max() / 2_048 for part in parts]) >= 0.9


# Updates.


@pytest.mark.parametrize(("tokens", "parts"), [(25_000, 8), (4_096, 1), (2_048, 1), (8_192, 2), (100_000, 32), (1, 1)])
def test_parts_of_an_update(tokens, parts):
    """The paper's batch is eight parts, one for each of its eight GPUs."""
    assert batching.num_parts(tokens) == parts


@hypothesis
@given(st.integers(1, 100), st.sampled_from([1, 2, 4, 8]), seeds)
def test_every_part_is_in_one_update(number, parts, seed):
    starts = np.arange(0, 3 * number + 1, 3)
    groups = batching.updates(starts, parts, np.random.default_rng(seed))
    assert sorted(span for group in groups for span in group) == list(pairwise(starts.tolist()))
    assert sum(len(group) != parts for group in groups) <= 1
    for group in groups:
        assert 0 < len(group) <= parts
        assert all(one[1] == two[0] for one, two in pairwise(group))  # neighbours: of similar lengths


# Shares of devices.


@pytest.mark.parametrize("accumulate", [1, 8, 11])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("spans", [8, 7, 1])
def test_devices_share_the_same_pairs(replicas, spans, accumulate):
    """Whatever the number of devices: the same pairs, none twice, none idle while another has two more parts."""
    update = [(40 * i + 3, 40 * i + 43) for i in range(spans)]
    shares = batching.shares(update, 8, replicas, accumulate)
    assert shares.shape == (replicas, batching.parts_per_replica(8, replicas, accumulate), 2)
    pairs = [pair for start, end in shares.reshape(-1, 2) for pair in range(start, end)]
    assert sorted(pairs) == [pair for start, end in update for pair in range(start, end)]
    work = (shares[:, :, 1] > shares[:, :, 0]).sum(axis=1)
    assert work.max() - work.min() <= 1
    for share, filled in zip(shares, work, strict=True):
        assert (share[filled:] == 0).all() and (share[:filled, 1] > share[:filled, 0]).all()  # the empty ones last


@hypothesis
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 20))
def test_parts_of_few_pairs_are_split_without_loss(sizes, replicas):
    bounds = np.cumsum([0, *sizes]).tolist()
    shares = batching.shares(list(pairwise(bounds)), 8, replicas).reshape(-1, 2)
    assert sorted(pair for start, end in shares for pair in range(start, end)) == list(range(bounds[-1]))


@pytest.mark.parametrize(("replicas", "parts"), [(1, 8), (2, 4), (3, 8), (4, 2), (8, 1), (16, 1), (12, 2)])
def test_parts_of_a_replica(replicas, parts):
    """3 replicas divide no 8 parts: each computes a third of every one. 16 compute halves."""
    assert batching.parts_per_replica(8, replicas) == parts


@pytest.mark.parametrize(
    ("replicas", "accumulate", "pieces", "parts"),
    [(1, 8, 1, 8), (1, 9, 2, 16), (1, 17, 3, 24), (2, 5, 2, 8), (3, 8, 3, 8), (3, 9, 6, 16), (16, 2, 4, 2)],
)
def test_parts_are_cut_until_each_replica_has_enough(replicas, accumulate, pieces, parts):
    assert batching.pieces(8, replicas, accumulate) == pieces
    assert batching.parts_per_replica(8, replicas, accumulate) == parts


def test_a_part_is_cut_down_to_single_pairs():
    """25,000 tokens are eight parts of 3,125, which hold twelve pairs of 256."""
    assert [batching.may_cut(25_000, pieces, 256) for pieces in (1, 8, 11, 12, 16)] == [True, True, True, False, False]
