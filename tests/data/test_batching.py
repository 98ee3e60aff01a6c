"""Batching: every pair once, within the budget, little padding, independent of the devices."""

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


def test_order_is_a_function_of_the_generator():
    lengths = lognormal_lengths(500)
    first, again, other = (batching.plan(lengths, 256, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.order, again.order)
    np.testing.assert_array_equal(first.starts, again.starts)
    assert not np.array_equal(first.order, other.order)


def test_pair_longer_than_a_part_is_rejected():
    with pytest.raises(ValueError, match="a pair of 65 tokens does not fit in 64 tokens per part; raise batch_tokens"):
        batching.plan(np.array([[3, 4], [65, 2]]), 64, np.random.default_rng(0))


def test_pair_as_long_as_a_part_is_accepted():
    assert parts_of(batching.plan(np.array([[64, 1]]), 64, np.random.default_rng(0)))[0].tolist() == [0]


@pytest.mark.parametrize(("pairs", "share"), [(29_000, 0.95), (100_000, 0.975)])
def test_padding_efficiency_is_high(pairs, share):
    """Real tokens over computed positions, both sides, for lengths of mean 27 and 2,048 tokens per part."""
    lengths = lognormal_lengths(pairs)
    assert 26 < lengths.mean() < 28
    parts = parts_of(batching.plan(lengths, 2_048, np.random.default_rng(1)))
    positions = sum(len(part) * lengths[part].max(axis=0).sum() for part in parts)
    assert lengths.sum() / positions >= share


def test_parts_nearly_fill_their_budget():
    """On average, the fuller side of a part uses at least 90% of its token budget."""
    lengths = lognormal_lengths(20_000)
    parts = parts_of(batching.plan(lengths, 2_048, np.random.default_rng(1)))
    assert np.mean([len(part) * lengths[part].max() / 2_048 for part in parts]) >= 0.9


# Steps.


@pytest.mark.parametrize(("tokens", "parts"), [(25_000, 8), (4_096, 1), (2_048, 1), (8_192, 2), (100_000, 32), (1, 1)])
def test_num_parts_is_a_power_of_two(tokens, parts):
    """The paper's batch has 8 parts, one for each of its 8 GPUs."""
    assert batching.num_parts(tokens) == parts


@hypothesis
@given(st.integers(1, 100), st.sampled_from([1, 2, 4, 8]), seeds)
def test_every_part_is_in_one_step(number, parts, seed):
    starts = np.arange(0, 3 * number + 1, 3)
    groups = batching.group_into_steps(starts, parts, np.random.default_rng(seed))
    assert sorted(span for group in groups for span in group) == list(pairwise(starts.tolist()))
    assert sum(len(group) != parts for group in groups) <= 1
    for group in groups:
        assert 0 < len(group) <= parts
        assert all(one[1] == two[0] for one, two in pairwise(group))  # neighbors have similar lengths


# Assignment to devices.


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("spans", [8, 7, 1])
def test_step_has_the_same_pairs_on_any_devices(replicas, spans, count):
    """No pair is assigned twice, and no replica has two micro-batches more than another."""
    step = [(40 * i + 3, 40 * i + 43) for i in range(spans)]
    shares = batching.assign_to_replicas(step, 8, replicas, count)
    assert shares.shape == (replicas, count, 2)
    pairs = [pair for start, end in shares.reshape(-1, 2) for pair in range(start, end)]
    assert sorted(pairs) == [pair for start, end in step for pair in range(start, end)]
    work = (shares[:, :, 1] > shares[:, :, 0]).sum(axis=1)
    assert work.max() - work.min() <= 1
    for share, filled in zip(shares, work, strict=True):
        assert (share[filled:] == 0).all() and (share[:filled, 1] > share[:filled, 0]).all()  # empty ones last


@hypothesis
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 20), st.integers(1, 9))
def test_assignment_keeps_every_pair_of_small_parts(sizes, replicas, count):
    bounds = np.cumsum([0, *sizes]).tolist()
    shares = batching.assign_to_replicas(list(pairwise(bounds)), 8, replicas, count).reshape(-1, 2)
    assert sorted(pair for start, end in shares for pair in range(start, end)) == list(range(bounds[-1]))


def test_assignment_joins_and_splits_parts():
    """Parts of 3, 5, 2 and 6 pairs as 2, 4, 8 and 3 micro-batches; a short step is treated like a full one."""
    step = [(0, 3), (3, 8), (8, 10), (10, 16)]
    assert batching.assign_to_replicas(step, 4, 1, 2)[0].tolist() == [[0, 8], [8, 16]]
    assert batching.assign_to_replicas(step, 4, 1, 4)[0].tolist() == [list(span) for span in step]
    halves = [[0, 1], [1, 3], [3, 5], [5, 8], [8, 9], [9, 10], [10, 13], [13, 16]]
    assert batching.assign_to_replicas(step, 4, 1, 8)[0].tolist() == halves
    assert batching.assign_to_replicas(step, 4, 3, 1).tolist() == [[[0, 4]], [[4, 9]], [[9, 16]]]  # 4/3 and 8/3 parts
    assert batching.assign_to_replicas(step[:3], 4, 1, 2)[0].tolist() == [[0, 8], [8, 10]]


@pytest.mark.parametrize(
    ("replicas", "microbatch_tokens", "count"),
    [(1, 0, 8), (2, 0, 4), (3, 0, 3), (4, 0, 2), (8, 0, 1), (16, 0, 1), (12, 0, 1)]
    + [(1, 25_000, 1), (1, 12_500, 2), (1, 12_499, 3), (2, 3_000, 5), (8, 1_000, 4), (1, 100, 250)],
)
def test_microbatches_have_at_most_the_requested_tokens(replicas, microbatch_tokens, count):
    """25,000 tokens are 8 parts of 3,125."""
    assert batching.microbatches(25_000, replicas, microbatch_tokens) == count


def test_microbatches_are_halved_down_to_single_pairs():
    """25,000 tokens are 97 pairs of 256."""
    assert [batching.may_halve(25_000, count, 256) for count in (1, 64, 96, 97, 128)] == [
        True,
        True,
        True,
        False,
        False,
    ]
