"""The searches of an ensemble and its probabilities, as graphs.

Shapes: B batch, M source length, L target length, P prefix length, W beam width, S subwords of a shortlist, G words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import tensorflow as tf

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.search.decoding_loop import Constraint, Hypotheses, grid
from t2t_repro.inference.search.sampling import sample
from t2t_repro.inference.search.search_graph import SearchGraph
from t2t_repro.inference.search.shortlisted import search_among
from t2t_repro.inference.terms.progress import TermVocabulary
from t2t_repro.inference.terms.term_search import term_search
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

        def graph(search: Callable[..., Hypotheses], *signature: tf.TensorSpec, keep: bool = False) -> SearchGraph:
            return SearchGraph(search, ensemble, signature, keep)

        options = IDS, _COUNT, _NUMBER, _COUNT
        searched, drawn = (*options, IDS, _COUNT), (IDS, _DRAWS, _TEMPERATURE, _COUNT, _COUNT, IDS, _COUNT)
        self._search = graph(functools.partial(beam_search, ensemble), *searched, keep=True)
        self._search_among = graph(functools.partial(self._among, beam_search), _SHORTLIST, *searched)
        self._search_with_terms = graph(self._with_terms, *searched, _STRINGS)
        self._constrained_search = graph(self._with_words, *options, IDS)
        self._sample = graph(functools.partial(sample, ensemble), *drawn)
        self._sample_among = graph(functools.partial(self._among, sample), _SHORTLIST, *drawn)

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
        rows = _rows(source_BM, beam_size)
        if ids_S is not None:
            return self._search_among(ids_S, *arguments, rows=rows)
        return self._search(*arguments, rows=rows)

    def constrained_search(self, source_BM: Any, beam_size: Any, *others: Any) -> Hypotheses:
        """Runs `search` under the constraint. The last argument is `required_BG`, the words that the output contains,
        in place of a prefix and a minimum length."""
        return self._constrained_search(source_BM, beam_size, *others, rows=_rows(source_BM, beam_size))

    def search_with_terms(self, *arguments: Any) -> Hypotheses:
        """Runs `term_search` with this model: the arguments of `search`, and a string of terms for each sentence."""
        return self._search_with_terms(*arguments)

    def draw(self, source_BM: Any, draws_BWL: Any, *options: Any, ids_S: Any = None) -> Hypotheses:
        """Runs `sampling.sample` with this model, among the ids `ids_S` if they are given."""
        rows = _rows(source_BM, tf.shape(draws_BWL)[1])
        if ids_S is not None:
            return self._sample_among(ids_S, source_BM, draws_BWL, *options, rows=rows)
        return self._sample(source_BM, draws_BWL, *options, rows=rows)

    @cached_property
    def term_vocabulary(self) -> TermVocabulary:
        return TermVocabulary(self.vocabulary)

    def _with_terms(self, *arguments: Any) -> Hypotheses:
        return term_search(self.ensemble, self.term_vocabulary, *arguments)

    def _with_words(
        self, source_BM: Any, beam_size: Any, alpha: Any, extra_length: Any, required_BG: Any
    ) -> Hypotheses:
        options: dict[str, Any] = {"required_BG": required_BG, "constraint": self.constraint}
        return beam_search(self.ensemble, source_BM, beam_size, alpha, extra_length, **options)

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


def _rows(source_BM: Any, width: Any) -> tf.Tensor:
    """Returns the number of beams of all sentences, with the empty ones that `sentences_of` adds."""
    return grid(tf.shape(source_BM)[0]) * width
