"""Reference implementation of decoding for tests of t2t_repro.inference: lists of hypotheses, no cache, no batches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.search.decoding_loop import NEG_INF
from t2t_repro.inference.search.sampling import sample
from t2t_repro.text.token_ids import EOS, PAD

IDS = tf.TensorSpec([None, None], tf.int32)
INT, FLOAT = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
DRAWS = tf.TensorSpec([None, None, None], tf.float32)

Hypothesis = tuple[tuple[int, ...], float]  # ids up to EOS, score


def batch(rows: Sequence[Sequence[int]], extra_columns: int = 0) -> np.ndarray:
    width = max(map(len, rows)) + extra_columns
    return np.array([[*ids] + [PAD] * (width - len(ids)) for ids in rows], np.int32).reshape(len(rows), width)


@functools.cache
def compiled_search(*models):
    """Returns beam search as one graph for all shapes."""

    @tf.function(input_signature=[IDS, INT, FLOAT, INT, IDS, INT])
    def search(source_BM, beam_size, alpha, extra_length, prefix_BP, min_length):
        return beam_search(models, source_BM, beam_size, alpha, extra_length, prefix_BP, min_length)

    return search


@functools.cache
def compiled_sample(*models):
    @tf.function(input_signature=[IDS, DRAWS, FLOAT, INT, INT, IDS, INT])
    def drawn(source_BM, draws_BWL, temperature, k, extra_length, prefix_BP, min_length):
        return sample(models, source_BM, draws_BWL, temperature, k, extra_length, prefix_BP, min_length)

    return drawn


@functools.cache
def compiled_log_p(model):
    """Returns the full decoder's log p [B, L, V] as one graph."""

    @tf.function(input_signature=[IDS, IDS])
    def log_p(source_BM, target_BL):
        return tf.nn.log_softmax(model({"inputs": source_BM, "targets": target_BL}))

    return log_p


def hypotheses(found) -> list[list[Hypothesis]]:
    """Returns the hypotheses of each sentence, and checks that each contains EOS once, followed only by padding."""
    all_found = []
    for some_ids, some_scores in zip(found.ids.numpy(), found.scores.numpy(), strict=True):
        whole = [(row.tolist(), float(score)) for row, score in zip(some_ids, some_scores, strict=True)]
        whole = [(row, score) for row, score in whole if score > NEG_INF / 1e6]
        for row, _ in whole:
            assert row.count(EOS) == 1 and PAD not in row[: row.index(EOS)] and not any(row[row.index(EOS) + 1 :])
        all_found.append([(tuple(row[: row.index(EOS) + 1]), score) for row, score in whole])
    return all_found


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def next_log_p(models, source: Sequence[int], starts: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns log p [len(starts), V] of the token after each start, by the full decoder, averaged over the models."""
    sources, targets = batch([source] * len(starts)), batch([[*ids, PAD] for ids in starts])
    p = [np.exp(compiled_log_p(model)(sources, targets).numpy()[:, -1].astype(np.float64)) for model in models]
    return np.log(np.mean(p, axis=0))


def greatest_length(source: Sequence[int], extra_length: int, prefix: Sequence[int], min_length: int) -> int:
    return max(len(source) + extra_length, max(len(prefix), min_length) + 1 if prefix or min_length else 0)


def allowed(step: int, longest: int, prefix: Sequence[int], min_length: int, vocab_size: int) -> Iterable[int]:
    """Returns the tokens allowed at this step."""
    if step < len(prefix):
        return [prefix[step]]
    if step + 1 >= longest:
        return [EOS]
    return range(EOS if step >= min_length else EOS + 1, vocab_size)


def plain_beam(
    models, source, beam_size, alpha, extra_length, prefix: Sequence[int] = (), min_length: int = 0
) -> list[Hypothesis]:
    """Returns the result of beam search as in Wu et al.: finished when no open beam can beat the worst of W finished
    ones."""
    longest = greatest_length(source, extra_length, prefix, min_length)
    open_now, finished = [((), 0.0)], []
    for step in range(longest):
        log_p = next_log_p(models, source, [ids for ids, _ in open_now])
        tokens = allowed(step, longest, prefix, min_length, log_p.shape[1])
        longer = [
            ((*ids, token), score + log_p[row, token]) for row, (ids, score) in enumerate(open_now) for token in tokens
        ]
        longer.sort(key=lambda each: -each[1])
        longer = longer[: 2 * beam_size if beam_size > 1 else 1]
        finished += [(ids, score / penalty(len(ids), alpha)) for ids, score in longer if ids[-1] == EOS]
        finished = sorted(finished, key=lambda each: -each[1])[:beam_size]
        open_now = [each for each in longer if each[0][-1] != EOS][:beam_size]
        if not open_now:
            break
        if len(finished) == beam_size and finished[-1][1] >= open_now[0][1] / penalty(longest, alpha):
            break
    return finished


def plain_sample(
    models, source, draws, temperature, k, extra_length, prefix: Sequence[int] = (), min_length: int = 0
) -> Hypothesis:
    """Returns one sample: each number of `draws` selects the token at which the cumulative probability reaches it.

    The tokens are in descending order of probability if k is given, and otherwise in the order of their ids.
    """
    longest = greatest_length(source, extra_length, prefix, min_length)
    ids: tuple[int, ...] = ()
    total = 0.0
    while EOS not in ids:
        log_p = next_log_p(models, source, [ids])[0]
        tokens = list(allowed(len(ids), longest, prefix, min_length, len(log_p)))
        if k:
            tokens = sorted(tokens, key=lambda token: -log_p[token])[:k]
        weights = np.exp(log_p[tokens] / temperature)
        place = int((np.cumsum(weights) <= float(draws[len(ids)]) * weights.sum()).sum())
        total += log_p[tokens[place]]
        ids = (*ids, tokens[place])
    return ids, total
