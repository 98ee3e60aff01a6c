"""Decoding with a shortlist: a search among S of the V subwords (`t2t_repro.data.shortlist`).

The search has its own token ids, the places of the subwords in the ascending `ids_S`. These start with PAD and EOS, so
that both are the same in the search and in the vocabulary. Log-probabilities are normalized over the S subwords.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.decoding_loop import Hypotheses
from t2t_repro.model.incremental import DecodingStep, KeysValues


def search_among(
    ids_S: tf.Tensor, ensemble: Ensemble, prefix_BP: tf.Tensor, search: Callable[[Ensemble, tf.Tensor], Hypotheses]
) -> Hypotheses:
    """Returns the result of `search`, which gets an ensemble and a prefix in the ids of the search.

    `ids_S`, int32, is ascending and contains PAD, EOS and all ids of `prefix_BP`.
    """
    places_BP = tf.reshape(tf.searchsorted(ids_S, tf.reshape(prefix_BP, [-1])), tf.shape(prefix_BP))
    found = search(_Shortlisted(ensemble, ids_S), places_BP)
    return found._replace(ids=tf.gather(ids_S, found.ids))


class _Shortlisted(Ensemble):
    """An ensemble whose decoding step takes places in `ids_S`, and returns the logits of these subwords alone."""

    def __init__(self, ensemble: Ensemble, ids_S: tf.Tensor):
        super().__init__(ensemble.models)
        self.int8, self.head, self._ensemble, self._ids_S = ensemble.int8, ensemble.head, ensemble, ids_S

    def memories(self, source_BM: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        return self._ensemble.memories(source_BM)

    def steps(self) -> tuple[DecodingStep, ...]:
        return tuple(step.among(self._ids_S) for step in self._ensemble.steps())

    def stepper(
        self, steps: tuple[DecodingStep, ...], memories: tuple[Any, ...], source_BM: tf.Tensor
    ) -> Callable[..., tuple[tf.Tensor, tuple[Any, ...]]]:
        step = self._ensemble.stepper(steps, memories, source_BM)
        return lambda tokens_BW, *rest: step(tf.gather(self._ids_S, tokens_BW), *rest)
