"""The searches of an ensemble and its probabilities, as graphs.

Shapes: B batch, M source length, L target length, P prefix length, W beam width, S subwords of a shortlist, G words.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import tensorflow as tf

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference import graph_cache
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search import one_thread
from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.search.decoding_loop import Constraint, Hypotheses
from t2t_repro.inference.search.sampling import sample
from t2t_repro.inference.search.shortlisted import search_among
from t2t_repro.inference.terms.progress import TermVocabulary
from t2t_repro.inference.terms.term_search import term_search
from t2t_repro.model.kernels import onednn
from t2t_repro.text.token_ids import PAD

IDS, _COUNT, _NUMBER = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32), tf.TensorSpec([])
_DRAWS, _TEMPERATURE = tf.TensorSpec([None, None, None]), tf.TensorSpec([], tf.float64)
_SHORTLIST = tf.TensorSpec([None], tf.int32)
_STRINGS = tf.TensorSpec([None], tf.string)


class Graphs:
    """Each method is traced once, for every batch and length. Ids are padded with 0."""

    def __init__(self, ensemble: Ensemble, vocabulary: Vocabulary, constraint: Constraint | None = None):
        self.ensemble, self.vocabulary, self.constraint = ensemble, vocabulary, constraint
        self.model = ensemble.models[0]
        self._loading = threading.Lock()  # cached_property has none from Python 3.12 on

    def search(
        self,
        source_BM: tf.Tensor,
        beam_size: tf.Tensor,
        alpha: tf.Tensor,
        extra_length: tf.Tensor,
        prefix_BP: tf.Tensor | None = None,
        min_length: tf.Tensor | int = 0,
        ids_S: tf.Tensor | None = None,
    ) -> Hypotheses:
        """Runs `beam_search` with this model, in one graph for every beam size, batch and length.

        With `ids_S`, it runs among these ids: see `inference.search.shortlisted`.
        """
        if prefix_BP is None:
            prefix_BP = tf.zeros([tf.shape(source_BM)[0], 0], tf.int32)
        arguments = source_BM, beam_size, alpha, extra_length, prefix_BP, min_length
        if ids_S is not None:
            return self._search_among(ids_S, *arguments)
        if not tf.executing_eagerly():
            return self._search(*arguments)
        with one_thread.executing() if self._in_one_thread else contextlib.nullcontext():
            if self._loaded_search:
                return Hypotheses(*self._loaded_search(*arguments))
            return (self._search_in_one_thread if self._in_one_thread else self._search)(*arguments)

    @cached_property
    def _in_one_thread(self) -> bool:
        return one_thread.gains(self.ensemble)

    @cached_property
    def _loaded_search(self) -> graph_cache.Call | None:
        with self._loading:
            function = self._search_in_one_thread if self._in_one_thread else self._search
            if "_loaded_search" not in vars(self):  # else another thread was first
                vars(self)["_loaded_search"] = graph_cache.loaded_or_kept(function, self.ensemble)
            return vars(self)["_loaded_search"]

    # the graph only reads weights, so nothing needs control dependencies, whose search takes an eighth of the tracing
    @tf.function(
        autograph=False,
        input_signature=[IDS, _COUNT, _NUMBER, _COUNT, IDS, _COUNT],
        experimental_attributes={"_disable_acd": True},
    )
    def _search(self, *arguments: tf.Tensor) -> Hypotheses:
        return beam_search(self.ensemble, *arguments)

    @tf.function(
        autograph=False,
        input_signature=[IDS, _COUNT, _NUMBER, _COUNT, IDS, _COUNT],
        experimental_attributes={"_disable_acd": True},
    )
    def _search_in_one_thread(self, *arguments: tf.Tensor) -> Hypotheses:
        with onednn.by_name():
            return beam_search(self.ensemble, *arguments)

    @tf.function(
        autograph=False,
        input_signature=[_SHORTLIST, IDS, _COUNT, _NUMBER, _COUNT, IDS, _COUNT],
        experimental_attributes={"_disable_acd": True},
    )
    def _search_among(self, ids_S: tf.Tensor, *arguments: tf.Tensor) -> Hypotheses:
        return self._among(beam_search, ids_S, *arguments)

    @tf.function(autograph=False, input_signature=[IDS, _COUNT, _NUMBER, _COUNT, IDS])
    def constrained_search(
        self, source_BM: Any, beam_size: Any, alpha: Any, extra_length: Any, required_BG: Any
    ) -> Hypotheses:
        """Runs `search` under the constraint. The output contains the words `required_BG`."""
        options = {"required_BG": required_BG, "constraint": self.constraint}
        return beam_search(self.ensemble, source_BM, beam_size, alpha, extra_length, **options)

    @cached_property
    def term_vocabulary(self) -> TermVocabulary:
        return TermVocabulary(self.vocabulary)

    @tf.function(
        autograph=False,
        input_signature=[IDS, _COUNT, _NUMBER, _COUNT, IDS, _COUNT, _STRINGS],
        experimental_attributes={"_disable_acd": True},
    )
    def search_with_terms(self, *arguments: Any) -> Hypotheses:
        """Runs `term_search` with this model: the arguments of `search`, and a string of terms for each sentence."""
        return term_search(self.ensemble, self.term_vocabulary, *arguments)

    @tf.function(
        autograph=False,
        input_signature=[IDS, _DRAWS, _TEMPERATURE, _COUNT, _COUNT, IDS, _COUNT],
    )
    def _sample(self, *arguments: tf.Tensor) -> Hypotheses:
        return sample(self.ensemble, *arguments)

    @tf.function(autograph=False, input_signature=[_SHORTLIST, IDS, _DRAWS, _TEMPERATURE, _COUNT, _COUNT, IDS, _COUNT])
    def _sample_among(self, ids_S: tf.Tensor, *arguments: tf.Tensor) -> Hypotheses:
        return self._among(sample, ids_S, *arguments)

    def _among(self, search: Callable[..., Hypotheses], ids_S: tf.Tensor, *arguments: tf.Tensor) -> Hypotheses:
        *options, prefix_BP, min_length = arguments
        return search_among(
            ids_S,
            self.ensemble,
            prefix_BP,
            lambda ensemble, places_BP: search(ensemble, *options, places_BP, min_length),
        )

    @tf.function(autograph=False, input_signature=[IDS, IDS])
    def token_log_probabilities(self, source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
        """Returns log p of each target token given the previous ones and the source: [B, L] float32, 0 at padding."""
        self.ensemble.must_have_weights()
        log_p_BLV = tf.nn.log_softmax(self.ensemble.logits(source_BM, target_BL))
        chosen_BL = tf.gather(log_p_BLV, target_BL, batch_dims=2)
        return tf.where(target_BL != PAD, chosen_BL, 0.0)

    @tf.function(autograph=False, input_signature=[IDS, IDS])
    def memory_attention(self, source_BM: tf.Tensor, target_BL: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the first model's attention to the source while it predicts the target: per layer, [B, H, L, M]."""
        self.ensemble.must_have_weights()
        return self.model.attention(source_BM, target_BL).memory
