"""Learns a `Shortlist` from prepared training data, and measures how much of other text it covers.

IBM Model 1 (Brown et al., 1993, section 4.1) is trained from source to target on a sample of the pairs, as sets of
subwords. Its probabilities rank the candidates of a source subword. To bound time and memory, a source subword first
keeps `WIDER` times as many targets as it may have: those with the highest log-likelihood ratio of occurring together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.filtering import alignment
from t2t_repro.run import Run

VALIDATION_PAIRS = 3_000  # to measure the coverage of
ENOUGH = 100  # pairs of the sample with a source subword; those with a rarer one are preferred
WIDER = 4

_MAX_TOKENS = 200  # of a side; the rest is not read
_MAX_LINKS = 20_000_000  # sorted at a time
_ITERATIONS = 4

Pairs = Iterable[alignment.Sides]  # ids of source and target, EOS last


class Coverage(NamedTuple):
    """The part of a text's target tokens that its shortlists contain."""

    sentences: int
    covered: float  # share of the target tokens
    candidates: float  # mean per sentence


class Sample(NamedTuple):
    pairs: list[alignment.Sides]  # sets of ids, ascending
    frequencies: np.ndarray  # [V] tokens of each target id in all pairs that were read


def learn_for(
    run: Run, dataset: Dataset, path: str, first: int, best: int, pairs: int, report: Callable[[str], None]
) -> str:
    """Learns from `dataset`, the data of `run`, and writes the file `path`. See `t2t_repro.learn_shortlist`."""
    vocabulary = Vocabulary(run.vocabulary)
    if run.problem.task.constraint(vocabulary) is not None:
        raise ValueError(
            f"{run.directory!r} is a {run.problem.task.name} run, whose output repeats the words of its input; "
            "decode it without a shortlist"
        )
    chosen = sample(input_pipeline.pairs(dataset.shards("train")), vocabulary.size, pairs)
    found = learn(chosen, first, best)
    report(f"learned from {len(chosen.pairs):,} pairs: candidates of {len(found.candidates):,} source subwords")
    if dataset.has("validation"):
        text = itertools.islice(input_pipeline.pairs(dataset.shards("validation")), VALIDATION_PAIRS)
        covered = coverage(found, text)
        report(
            f"it contains {covered.covered:.2%} of the target tokens of {covered.sentences:,} validation pairs, with "
            f"{covered.candidates:,.0f} of {vocabulary.size:,} subwords per sentence"
        )
    found.save(path, vocabulary)
    return path


def learn(chosen: Sample, first: int, best: int) -> Shortlist:
    """Returns the shortlist with the `first` most frequent target ids, and the `best` candidates of each source id.

    A source id is also a candidate of itself, as names and numbers are copied. Raises ValueError if there is no pair.
    """
    for name, number in (("first", first), ("best", best)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if not chosen.pairs:
        raise ValueError("a shortlist is learned from pairs of text. Received: no pair with words on both sides")
    vocab_size = len(chosen.frequencies)
    table = alignment.Table(associated(chosen.pairs, vocab_size, WIDER * best), vocab_size, vocab_size)
    batches = alignment.known_batches(chosen.pairs, table)
    direction = table.untrained(0)
    for _ in range(_ITERATIONS):
        direction = alignment.trained(direction, batches, table, 0)
    del batches
    kept = table.keys[_highest(table.words(0), direction.probability, best)]
    sources, targets = np.divmod(kept, vocab_size)
    ids, starts = np.unique(sources, return_index=True)
    lists = np.split(targets, starts[1:])
    candidates = {int(source): [*each.tolist(), int(source)] for source, each in zip(ids, lists, strict=True)}
    ranked = np.argsort(-chosen.frequencies, kind="stable")
    always = ranked[chosen.frequencies[ranked] > 0][:first]
    return Shortlist(vocab_size, always.tolist(), {source: _distinct(ids) for source, ids in candidates.items()})


def sample(pairs: Pairs, vocab_size: int, most: int) -> Sample:
    """Returns `most` of the pairs at most: the first half, then those with a source id of fewer than `ENOUGH` pairs.

    Pairs of prepared data are shuffled, so that the first half is a random sample. The second half makes rare subwords
    known.
    """
    if most < 1:
        raise ValueError(f"the sample must have at least 1 pair, got {most}")
    chosen: list[alignment.Sides] = []
    seen, frequencies = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for source, target in pairs:
        source, target = source[:-1], target[:-1]  # without EOS
        np.add.at(frequencies, target, 1)
        if not (len(source) and len(target)) or (len(chosen) >= most / 2 and seen[source].min() >= ENOUGH):
            continue
        source, target = (np.unique(side[:_MAX_TOKENS]).astype(np.int32) for side in (source, target))
        chosen.append((source, target))
        seen[source] += 1
        if len(chosen) == most:
            break
    return Sample(chosen, frequencies)


def coverage(shortlist: Shortlist, pairs: Pairs) -> Coverage:
    """Returns the coverage of the pairs, each with the shortlist of its own source alone."""
    sentences = tokens = covered = candidates = 0
    for source, target in pairs:
        is_found_V = shortlist.found([source.tolist()])
        sentences += 1
        tokens += len(target)
        covered += int(np.count_nonzero(is_found_V[target]))
        candidates += int(np.count_nonzero(is_found_V))
    return Coverage(sentences, covered / max(tokens, 1), candidates / max(sentences, 1))


def associated(pairs: Sequence[alignment.Sides], vocab_size: int, most: int) -> np.ndarray:
    """Returns the keys, as in `alignment.Table`, of the `most` targets of each source with the highest association.

    It is the leading term of the log-likelihood ratio (Dunning, 1993): n(s, t) log(n(s, t) N / (n(s) n(t))).
    """
    counts = [np.bincount(np.concatenate([pair[side] for pair in pairs]), minlength=vocab_size) for side in (0, 1)]
    kept = [np.zeros(0, np.int64)]
    for first, last in _source_ranges(pairs, vocab_size):
        keys, together = np.unique(_keys(pairs, vocab_size, first, last), return_counts=True)
        sources, targets = np.divmod(keys, vocab_size)
        score = together * np.log(together * (len(pairs) / counts[0][sources]) / counts[1][targets])
        kept.append(np.sort(keys[_highest(sources, score, most)]))
    return np.concatenate(kept)


def _source_ranges(pairs: Sequence[alignment.Sides], vocab_size: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of source ids with _MAX_LINKS links at most, or of a single id."""
    links = np.zeros(vocab_size, np.int64)
    for source, target in pairs:
        links[source] += len(target)
    first, total = 0, 0
    for id in range(vocab_size):
        if total and total + links[id] > _MAX_LINKS:
            yield first, id
            first, total = id, 0
        total += links[id]
    yield first, vocab_size


def _keys(pairs: Sequence[alignment.Sides], vocab_size: int, first: int, last: int) -> np.ndarray:
    """Returns the key of each link of a source id from `first` to before `last`."""
    some = [(source[(source >= first) & (source < last)], target) for source, target in pairs]
    return np.concatenate(
        [alignment.linked(some[start:end], vocab_size).entries for start, end in alignment.batch_spans(some)]
    )


def _highest(groups: np.ndarray, score: np.ndarray, most: int) -> np.ndarray:
    """Returns the places of the `most` highest scores of each group, group by group, the highest first."""
    order = np.lexsort((-score, groups))
    grouped = groups[order]
    rank = np.arange(len(order)) - np.searchsorted(grouped, grouped)
    return order[rank < most]


def _distinct(ids: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(ids))
