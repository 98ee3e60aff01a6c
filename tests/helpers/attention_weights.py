"""Artificial attention weights."""

from __future__ import annotations

import numpy as np

from t2t_repro.evaluation import attention_view
from t2t_repro.evaluation.attention_view import END_WORD, START_WORD, Attention, View


def made_up(source: str, layers: int = 3, count: int = 4) -> Attention:
    """Returns artificial weights, for tests that do not depend on their values."""
    words = [piece if not n else f" {piece}" for n, piece in enumerate(source.split(" "))] + [END_WORD]
    rng = np.random.default_rng(2)
    views = {}
    for name in attention_view.VIEWS:
        right = [START_WORD, *words[:-1]] if name == "decoder" else words
        weights = rng.dirichlet(np.full(len(right), 0.3), (layers, count, len(words))).astype(np.float32)
        views[name] = View(name, words, right, weights)
    return Attention(source, source.upper(), views)
