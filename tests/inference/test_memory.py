"""t2t_repro.inference.memory: as many batches run in parallel as fit into memory."""

from __future__ import annotations

import pytest
from helpers.tiny_model import shared_model

from t2t_repro.evaluation import evaluator
from t2t_repro.inference import memory
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.memory import SEARCH_BYTES, batch_bytes, batches_in_memory, search_bytes
from t2t_repro.training import parallel

GIB = 1 << 30


@pytest.mark.parametrize(("total", "batches"), [(64 * GIB, 37), (4 * GIB, 2), (GIB, 1), (None, 1)])
def test_batches_in_memory_fill_half_of_memory(monkeypatch, total, batches):
    """2,048 tokens of 37,000 subwords at 12 bytes per logit need 867 MiB."""
    monkeypatch.setattr(memory, "total_bytes", lambda: total)
    assert batches_in_memory(2_048, 37_000) == batches


@pytest.mark.parametrize(
    ("total", "cores", "expected"),
    [(64 * GIB, 2, SEARCH_BYTES), (64 * GIB, 64, GIB // 2), (8 * GIB, 16, GIB // 4), (None, 64, SEARCH_BYTES)],
)
def test_batch_bytes_are_split_among_the_cores(monkeypatch, total, cores, expected):
    monkeypatch.setattr(memory, "total_bytes", lambda: total)
    assert batch_bytes(cores) == expected


def test_search_bytes_count_beams_times_vocabulary():
    ensemble = Ensemble.of(shared_model())
    few, many = (search_bytes(ensemble, vocab_size, 8, 3) for vocab_size in (1_000, 38_000))
    assert many - few == 8 * 12 * 37_000
    assert search_bytes(ensemble, 37_000, 64, 3) > 64 * 12 * 37_000


def test_search_bytes_count_the_caches_of_the_decoder_alone():
    """Each layer of the decoder keeps keys and values, in float32, of every beam and of the source."""

    def layer(**depth):
        return search_bytes(Ensemble.of(shared_model(**depth)), 11, 8, 3)

    h = shared_model().hparams
    cached = (8 + 1) * 3 * h.num_heads * (h.d_k + h.d_v) * 4
    assert layer(num_decoder_layers=3) - layer() == cached
    assert layer(num_encoder_layers=3) == layer()


def test_evaluation_runs_only_batches_that_fit_into_memory(trained, monkeypatch):
    asked = []

    def parallel_map(function, batches, most=None):
        asked.append(most)
        return parallel.parallel_map(function, batches, most)

    monkeypatch.setattr(evaluator, "parallel_map", parallel_map)
    monkeypatch.setattr(memory, "total_bytes", lambda: 1)
    monkeypatch.setattr(memory, "must_fit", lambda *search: None)
    evaluator.evaluate(trained.directory, beam_size=1)
    assert asked == [1]
