"""Texts of hypotheses, with their scores and alignments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.alignment.words import Links
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.search.decoding_loop import NEG_INF, Hypotheses
from t2t_repro.inference.text_to_text import Found
from t2t_repro.text.translations import AlignedText


def hypothesis_texts(vocabulary: Vocabulary, found: Hypotheses, n: int) -> Iterator[Found]:
    """Yields the texts and scores of the first n hypotheses of each source, without those that do not exist."""
    all_ids, all_scores = found.ids.numpy()[:, :n], found.scores.numpy()[:, :n]
    texts = iter(vocabulary.decode(all_ids.reshape(-1, all_ids.shape[2]).tolist()))
    for scores in all_scores:
        both = [(next(texts), float(score)) for score in scores]
        yield [(text, score) for text, score in both if score > NEG_INF / 1e6]


def aligned_hypotheses(
    vocabulary: Vocabulary,
    links_of: Callable[..., Links],
    found: Hypotheses,
    n: int,
    source_BM: tf.Tensor,
    sources: Sequence[str],
) -> Iterator[Found]:
    """Yields the same as `hypothesis_texts`, as `AlignedText`. `sources` are the texts of `source_BM`."""
    ids_BNL, scores_BN, places_BNL, log_p_BNL = (
        each.numpy()[:, :n] for each in (found.ids, found.scores, *found.traces)
    )
    links = links_of(source_BM, ids_BNL, places_BNL)
    lengths_BN = np.count_nonzero(ids_BNL, axis=2) - 1  # without EOS; PAD is 0
    arrays = (*(each.numpy() for each in links), np.diff(log_p_BNL, axis=2), lengths_BN, scores_BN)
    lines = iter(vocabulary.decode(ids_BNL.reshape(-1, ids_BNL.shape[2]).tolist()))
    for source, *rows in zip(sources, *(each.tolist() for each in arrays), strict=True):
        aligned: Found = []
        for sources_L, words_L, kept_L, gained_L, length, score in zip(*rows, strict=True):
            text = next(lines)
            if score > NEG_INF / 1e6:
                pairs = [(one, other) for one, other, kept in zip(sources_L, words_L, kept_L, strict=True) if kept]
                aligned.append(AlignedText.of(text, score, source, pairs, words_L[:length], gained_L[:length]))
        yield aligned
