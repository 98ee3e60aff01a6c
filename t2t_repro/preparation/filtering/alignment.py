"""Word alignment: how much the words of one side say about those of the other, to find targets of other sentences.

IBM Model 1 (Brown et al., 1993, section 4.1) is trained in both directions on a sample of the text that it judges. A
side is the set of its words, without case and punctuation. The score of a pair is its pointwise mutual information,
log p(target | source) - log p(target) in nats per word, added for both directions; p(target) is a unigram model. Where
a pair is in the sample, its own counts are taken out of all of these, so that no pair confirms itself.

Words of only one pair of the sample are one and the same rare word. Scores are a function of the sample and the pair:
sums are computed in the order of the text, and batches do not change them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from t2t_repro.filters import words_or_characters
from t2t_repro.io import atomic_write
from t2t_repro.problem import Pair

SAMPLE_PAIRS = 50_000  # to learn from
MIN_PAIRS = 1_000

_MAX_WORDS = 200  # of a side; the rest is not read
_MAX_LINKS = 2_000_000  # computed at a time, or those of one pair
_ITERATIONS = 5
_UNIGRAM_SHARE = 0.1  # of the unigram model in p(target | source)
_NEGLIGIBLE = 0.1  # p(word | other word) / p(word); links below it in both directions are forgotten
_TINY = 1e-300  # instead of 0, to divide by
_NOTHING_LEFT = 1e-9  # of expected counts without those of the pair: smaller ones are rounding errors
_RARE = 0  # the id of a word that is not in the vocabulary
_PUNCTUATION = (  # at the ends of words
    ".,;:!?\u2026\"'`\u00b4\u201c\u201d\u201e\u201a\u2018\u2019\u00ab\u00bb\u2039\u203a()[]{}<>/\\|*_~-\u2010\u2013"
    "\u2014\u00bf\u00a1\u00b7\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\uff08\uff09\u300a\u300b\u300c\u300d\u300e\u300f"
    "\u3010\u3011\u30fb\u0964\u0965\u060c\u061b\u061f\u06d4\u0589\u1362\u104a\u104b"
)

Sides = tuple[np.ndarray, np.ndarray]  # of source and target


class Table(NamedTuple):
    """The pairs of a source word and a target word that have probabilities."""

    keys: np.ndarray  # ascending, source word * target_words + target word
    source_words: int
    target_words: int

    @property
    def sizes(self) -> tuple[int, int]:
        return self.source_words, self.target_words

    def words(self, side: int) -> np.ndarray:
        """Returns the word of this side in each."""
        return self.keys % self.target_words if side else self.keys // self.target_words

    def untrained(self, given: int) -> Direction:
        """Returns the direction in which every word makes every word with equal probability."""
        return _without_counts(np.ones(len(self.keys)), np.ones(self.sizes[1 - given]))


class Links(NamedTuple):
    """The words of a batch of pairs, one pair after the other, and the links between words of the same pair."""

    words: Sides  # [words of the side] their ids
    pairs: Sides  # [words of the side] the pair in the batch that each is of
    places: Sides  # [links] the linked words, as indices of `words`
    entries: np.ndarray  # [links] indices of `Table.keys`


@dataclass(frozen=True)
class Direction:
    """Probabilities and expected counts of a word of one side, given a word of the other side or none."""

    probability: np.ndarray  # [links of the table]
    null_probability: np.ndarray  # [words]
    counts: np.ndarray  # [links of the table]
    null_counts: np.ndarray  # [words]
    totals: np.ndarray  # [words of the given side] sums of `counts`

    def only(self, chosen: np.ndarray) -> Direction:
        """Returns the probabilities of the chosen links, without counts."""
        return _without_counts(self.probability[chosen], self.null_probability)


@dataclass(frozen=True)
class Model:
    """IBM Model 1 in both directions. `save` and `load` keep it in a file for other processes."""

    vocabularies: tuple[dict[str, int], dict[str, int]]
    frequencies: Sides  # [words] the number of pairs of the sample that have each
    table: Table
    directions: tuple[Direction, Direction]  # target given source, source given target

    def scores(self, pairs: Sequence[Pair], in_sample: np.ndarray) -> np.ndarray:
        """Returns the score of each pair, 0 if a side has no words. `in_sample`: which of them it learned from."""
        found = [np.zeros(0)]
        source_ids, target_ids = self.vocabularies
        ids = [(_known(_words(source), source_ids), _known(_words(target), target_ids)) for source, target in pairs]
        for first, last in batch_spans(ids):
            links = _known_links(ids[first:last], self.table)
            own = in_sample[first:last].astype(np.float64)
            scores = self._score(links, own, 0) + self._score(links, own, 1)
            has_words = [bool(len(source) and len(target)) for source, target in ids[first:last]]
            found.append(np.where(has_words, scores, 0.0))
        return np.concatenate(found)

    def _score(self, links: Links, own: np.ndarray, given: int) -> np.ndarray:
        """Returns the mutual information of each pair in one direction. `own`: 1.0 for pairs of the sample, else 0."""
        made, other, number = self.directions[given], 1 - given, len(own)
        words, pairs, places = links.words[other], links.pairs[other], links.places[other]
        given_places = links.places[given]
        expected, null_expected = _expected(made, links, given)
        expected *= own[pairs[places]]
        null_expected *= own[pairs]
        totals = made.totals[links.words[given]] - np.bincount(given_places, expected, len(links.words[given]))
        null_totals = made.null_counts.sum() - np.bincount(pairs, null_expected, number)
        totals, null_totals = np.maximum(totals, _NOTHING_LEFT), np.maximum(null_totals, _NOTHING_LEFT)
        left = np.maximum(made.counts[links.entries] - expected, 0) / totals[given_places]
        null_left = np.maximum(made.null_counts[words] - null_expected, 0) / null_totals[pairs]
        given_words = np.bincount(links.pairs[given], minlength=number) + 1  # with the empty word
        conditional = (np.bincount(places, left, len(words)) + null_left) / given_words[pairs]
        frequencies, lengths = self.frequencies[other], np.bincount(pairs, minlength=number)
        others = np.maximum(frequencies.sum() - own * lengths, 1)
        unigram = np.maximum(frequencies[words] - own[pairs], 1) / others[pairs]
        information = np.log((1 - _UNIGRAM_SHARE) * conditional / unigram + _UNIGRAM_SHARE)
        return np.bincount(pairs, information, number) / np.maximum(lengths, 1)

    def save(self, path: str) -> None:
        """Writes the model atomically."""
        arrays: dict[str, np.ndarray] = {"keys": self.table.keys}
        for side in (0, 1):
            text = "\n".join(self.vocabularies[side]).encode("utf-8", "surrogatepass")
            arrays[f"vocabulary {side}"] = np.frombuffer(text, np.uint8)
            arrays[f"frequencies {side}"] = self.frequencies[side]
            arrays |= {f"{name} {side}": each for name, each in vars(self.directions[side]).items()}
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str) -> Model:
        """Reads what `save` wrote."""
        with np.load(path) as file:
            arrays = dict(file)
        names = Direction.__dataclass_fields__
        texts = (arrays[f"vocabulary {side}"].tobytes().decode("utf-8", "surrogatepass") for side in (0, 1))
        source, target = (_numbered(text.split("\n") if text else []) for text in texts)
        first, second = (Direction(**{name: arrays[f"{name} {side}"] for name in names}) for side in (0, 1))
        frequencies = arrays["frequencies 0"], arrays["frequencies 1"]
        table = Table(arrays["keys"], len(frequencies[0]), len(frequencies[1]))
        return cls((source, target), frequencies, table, (first, second))


def learn(sample: Iterable[Pair]) -> Model:
    """Returns the model of a sample of at most SAMPLE_PAIRS pairs.

    50,000 pairs of news text take 1.25 GB. Raises ValueError for fewer than MIN_PAIRS.
    """
    texts = [(_words(source), _words(target)) for source, target in sample]
    if len(texts) < MIN_PAIRS:
        raise ValueError(
            f"filter 'misaligned' learns from the pairs that the other filters keep: expected at least {MIN_PAIRS:,}. "
            f"Received: {len(texts):,}; leave it out, or give more text"
        )
    vocabularies = _vocabulary(source for source, _ in texts), _vocabulary(target for _, target in texts)
    ids = [(_known(source, vocabularies[0]), _known(target, vocabularies[1])) for source, target in texts]
    del texts
    frequencies = _frequencies(ids, 0, len(vocabularies[0]) + 1), _frequencies(ids, 1, len(vocabularies[1]) + 1)
    table = Table(_all_keys(ids, len(frequencies[1])), len(frequencies[0]), len(frequencies[1]))
    batches = known_batches(ids, table)
    directions = table.untrained(0), table.untrained(1)
    for _ in range(_ITERATIONS):
        directions = trained(directions[0], batches, table, 0), trained(directions[1], batches, table, 1)
    del batches
    needed = np.zeros(len(table.keys), bool)
    for given, direction in enumerate(directions):
        unigram = frequencies[1 - given] / max(frequencies[1 - given].sum(), 1)
        needed |= direction.probability >= _NEGLIGIBLE * unigram[table.words(1 - given)]
    table = table._replace(keys=table.keys[needed])
    batches = known_batches(ids, table)
    first, second = (
        _counted(direction.only(needed), batches, table, given) for given, direction in enumerate(directions)
    )
    return Model(vocabularies, frequencies, table, (first, second))


def _words(text: str) -> set[str]:
    words = itertools.islice(words_or_characters(text.casefold()), _MAX_WORDS)
    return {stripped for word in words if (stripped := word.strip(_PUNCTUATION))}


def _vocabulary(sides: Iterable[set[str]]) -> dict[str, int]:
    """Returns the ids, from 1, of the words of two sides at least."""
    counts = Counter(itertools.chain.from_iterable(sides))
    return _numbered(sorted(word for word, number in counts.items() if number > 1))


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(words, start=_RARE + 1)}


def _known(words: set[str], vocabulary: dict[str, int]) -> np.ndarray:
    """Returns the ids of the words, ascending."""
    return np.array(sorted({vocabulary.get(word, _RARE) for word in words}), np.int32)


def batch_spans(ids: Sequence[Sides]) -> Iterator[tuple[int, int]]:
    """Yields the first pair and the end of each batch, which has at most _MAX_LINKS links or one pair."""
    first, links = 0, 0
    for number, (source, target) in enumerate(ids):
        more = len(source) * len(target)
        if links + more > _MAX_LINKS and number > first:
            yield first, number
            first, links = number, 0
        links += more
    if ids:
        yield first, len(ids)


def linked(ids: Sequence[Sides], target_words: int) -> Links:
    """Links every word of a source with every word of its target. The entries are keys, as in `Table.keys`."""
    lengths = [np.array([len(pair[side]) for pair in ids], np.int64) for side in (0, 1)]
    words = [np.concatenate([np.zeros(0, np.int32), *(pair[side] for pair in ids)]) for side in (0, 1)]
    pairs = [np.repeat(np.arange(len(ids)), each) for each in lengths]
    partners = lengths[1][pairs[0]]  # of each source word
    source_places = np.repeat(np.arange(len(words[0])), partners)
    starts = (np.cumsum(lengths[1]) - lengths[1])[pairs[0]] - (np.cumsum(partners) - partners)
    target_places = np.arange(len(source_places)) + np.repeat(starts, partners)
    keys = words[0][source_places].astype(np.int64) * target_words + words[1][target_places]
    return Links((words[0], words[1]), (pairs[0], pairs[1]), (source_places, target_places), keys)


def _known_links(ids: Sequence[Sides], table: Table) -> Links:
    """Returns the links that the table has."""
    links = linked(ids, table.target_words)
    entries = np.minimum(np.searchsorted(table.keys, links.entries), len(table.keys) - 1)
    found = np.flatnonzero(table.keys[entries] == links.entries) if len(table.keys) else entries[:0]
    places = links.places[0][found].astype(np.int32), links.places[1][found].astype(np.int32)
    return links._replace(places=places, entries=entries[found].astype(np.int32))


def known_batches(ids: Sequence[Sides], table: Table) -> list[Links]:
    return [_known_links(ids[first:last], table) for first, last in batch_spans(ids)]


def _frequencies(ids: Sequence[Sides], side: int, words: int) -> np.ndarray:
    """Returns the number of pairs that have each word."""
    return np.bincount(np.concatenate([pair[side] for pair in ids]), minlength=words)


def _all_keys(ids: Sequence[Sides], target_words: int) -> np.ndarray:
    """Returns the keys of all links, ascending."""
    return np.unique(
        np.concatenate([np.unique(linked(ids[first:last], target_words).entries) for first, last in batch_spans(ids)])
    )


def _expected(made: Direction, links: Links, given: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probability that each link makes its word, and that no word makes each word."""
    places, words = links.places[1 - given], links.words[1 - given]
    weights, null_weights = made.probability[links.entries], made.null_probability[words]
    sums = np.maximum(np.bincount(places, weights, len(words)) + null_weights, _TINY)
    return weights / sums[places], null_weights / sums


def _counted(made: Direction, batches: Iterable[Links], table: Table, given: int) -> Direction:
    """Returns the direction with the counts that are expected with its probabilities."""
    counts, null_counts = np.zeros_like(made.probability), np.zeros_like(made.null_probability)
    for links in batches:
        expected, null_expected = _expected(made, links, given)
        np.add.at(counts, links.entries, expected)
        np.add.at(null_counts, links.words[1 - given], null_expected)
    totals = np.bincount(table.words(given), counts, table.sizes[given])
    return Direction(made.probability, made.null_probability, counts, null_counts, totals)


def trained(made: Direction, batches: Iterable[Links], table: Table, given: int) -> Direction:
    """Returns the direction after one iteration of expectation maximization."""
    found = _counted(made, batches, table, given)
    probability = found.counts / np.maximum(found.totals, _TINY)[table.words(given)]
    return _without_counts(probability, found.null_counts / max(found.null_counts.sum(), _TINY))


def _without_counts(probability: np.ndarray, null_probability: np.ndarray) -> Direction:
    nothing = np.zeros(0)
    return Direction(probability, null_probability, nothing, nothing, nothing)
