"""Learning a shortlist: the sample, the candidates of each subword, and the coverage of other text."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_model import PROBLEM, train_pairs
from helpers.tiny_model import test_pairs as held_out_pairs

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning import shortlist
from t2t_repro.preparation.learning.shortlist import Sample, coverage, learn, sample
from t2t_repro.text.token_ids import EOS

DICTIONARY = {10: 20, 11: 21, 12: 22, 13: 23, 14: 24, 15: 25}  # each source id and its translation
FREQUENT = 30  # in every target
V = 40


def ids(*side: int) -> np.ndarray:
    return np.array([*side, EOS], np.int32)


def text(number: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns pairs of three source words, their translations, and a word of every target."""
    rng = np.random.default_rng(seed)
    chosen = (rng.choice(list(DICTIONARY), 3, replace=False).tolist() for _ in range(number))
    return [(ids(*words), ids(FREQUENT, *(DICTIONARY[word] for word in words))) for words in chosen]


def test_best_candidate_is_the_translation():
    found = learn(sample(text(200), V, 1_000), first=1, best=1)
    assert found.always.tolist() == [FREQUENT]
    assert {source: each.tolist() for source, each in found.candidates.items()} == {
        source: [target, source] for source, target in DICTIONARY.items()
    }


def test_result_does_not_depend_on_what_is_sorted_at_a_time(monkeypatch):
    pairs = sample(text(100), V, 1_000)
    whole = learn(pairs, 3, 2)
    monkeypatch.setattr(shortlist, "_MAX_LINKS", 150)
    parts = learn(pairs, 3, 2)
    assert whole.always.tolist() == parts.always.tolist()
    assert {k: v.tolist() for k, v in whole.candidates.items()} == {k: v.tolist() for k, v in parts.candidates.items()}


def test_translation_of_a_neighbor_is_not_a_candidate():
    """21, the translation of 11, occurs with 10 more often than 26, the second translation of 10."""
    pairs = [(ids(12), ids(22))] * 60 + [(ids(11), ids(21))] * 10
    for number, source, more in ((3, [10], []), (9, [10, 11], [21])):
        pairs += [(ids(*source), ids(26, *more))] * number + [(ids(*source), ids(20, *more))] * (2 * number)
    found = learn(sample(pairs, V, 1_000), first=1, best=2)
    assert found.candidates[10].tolist() == [20, 26, 10]


def test_half_of_the_sample_is_the_first_pairs_and_the_rest_has_rare_words(monkeypatch):
    monkeypatch.setattr(shortlist, "ENOUGH", 5)
    pairs = [*text(100), (ids(10, 39), ids(20, 38)), (ids(10), ids(20)), (ids(39), ids(38, 38))]
    found = sample(pairs, V, 60)
    assert [len(found.pairs), *(source.tolist() for source, _ in found.pairs[-2:])] == [32, [10, 39], [39]]
    for chosen, (source, _) in zip(found.pairs[:30], pairs, strict=False):
        assert chosen[0].tolist() == sorted(source[:-1].tolist())
    assert found.frequencies[FREQUENT] == 100 and found.frequencies[38] == 3  # of all pairs that were read
    assert found.frequencies[EOS] == 0
    assert len(sample(pairs, V, 31).pairs) == 18 and len(sample(text(100), V, 1).pairs) == 1


def test_empty_sides_are_left_out_and_nothing_is_refused():
    found = sample([(ids(), ids(20)), (ids(10), ids())], V, 10)
    assert not found.pairs
    with pytest.raises(ValueError, match="learned from pairs of text. Received: no pair with words on both sides"):
        learn(found, 1, 1)


@pytest.mark.parametrize(("first", "best", "name"), [(0, 1, "first"), (1, 0, "best")])
def test_numbers_below_one_are_refused(first, best, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        learn(Sample(text(5), np.ones(V)), first, best)
    with pytest.raises(ValueError, match="the sample must have at least 1 pair, got 0"):
        sample([], V, 0)


def test_coverage_counts_tokens_of_each_sentence():
    limited_to = Shortlist(V, [FREQUENT], {10: [20, 21], 11: [21]})
    found = coverage(limited_to, [(ids(10), ids(20, 22, FREQUENT)), (ids(11), ids(21, 21))])
    assert found == (2, 6 / 7, (5 + 4) / 2)  # EOS and PAD are candidates too


def test_prepared_data_teaches_its_words(data):
    """Half of the target subwords, with 8 for each source subword, cover all but rare targets of other text."""
    dataset = Dataset.open(f"{data}/{PROBLEM.name}")
    vocabulary = Vocabulary(dataset.vocabulary)
    pairs = list(input_pipeline.pairs(dataset.shards("train")))
    texts = sorted(zip(*(vocabulary.decode(side) for side in zip(*pairs, strict=True)), strict=True))
    assert texts == sorted(train_pairs())
    found = learn(sample(pairs, vocabulary.size, 10_000), first=20, best=8)
    sides = ([np.array(ids) for ids in vocabulary.encode(side)] for side in zip(*held_out_pairs(), strict=True))
    covered = coverage(found, zip(*sides, strict=True))
    assert covered.covered > 0.95 and covered.candidates < vocabulary.size / 4
