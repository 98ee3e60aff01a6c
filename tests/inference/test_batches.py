"""t2t_repro.inference.batches: which texts share a batch, and the order of their results."""

from __future__ import annotations

import numpy as np
import pytest

from t2t_repro.inference.batches import batches_by_length, padded, run_batches
from t2t_repro.training import parallel


@pytest.mark.parametrize("cores", [1, 3])
def test_batches_have_each_number_once_and_at_most_the_tokens(monkeypatch, cores):
    monkeypatch.setattr(parallel, "num_parallel_batches", lambda: cores)
    rng = np.random.default_rng(1)
    lengths = dict(enumerate(rng.integers(1, 30, [90, 2]).tolist(), start=5))
    batches = batches_by_length(lengths, 200)
    assert sorted(number for batch in batches for number in batch) == sorted(lengths)
    assert len(batches) >= cores
    for batch in batches:
        assert len(batch) * max(max(lengths[number]) for number in batch) <= 200


def test_a_text_longer_than_a_batch_is_a_batch():
    assert batches_by_length({7: [30, 2]}, 10) == [[7]]
    assert batches_by_length({}, 10) == []


def test_results_are_at_their_numbers_and_progress_is_reported():
    results, advanced = ["kept"] * 4, []
    run_batches(lambda numbers: [str(number) for number in numbers], [[3, 0], [1]], results, advanced.append)
    assert results == ["0", "1", "kept", "3"] and advanced == [2, 1]


def test_padded_ids_are_int32():
    ids_BL = padded([[5, 6, 1], [1]])
    assert ids_BL.dtype == "int32" and ids_BL.numpy().tolist() == [[5, 6, 1], [1, 0, 0]]
    assert padded([[], []]).shape == (2, 0)
