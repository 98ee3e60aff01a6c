"""BPE-dropout: the same text in other subwords, by Algorithm 1, as a function of seed, epoch and pair."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.sentences import SENTENCES
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.config import HParams
from t2t_repro.data import batching, bpe_dropout, input_pipeline
from t2t_repro.data.bpe_dropout import BpeDropout
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.data.shards import example, shard_names, write_shard
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.problem import Problem
from t2t_repro.text.token_ids import NUM_FIXED

NO_LIMIT = 10**6
PAIRS = [(text, text.swapcase()) for text in SENTENCES[:240]]
BUDGET = 1_024  # tokens per side of a step: 8 parts of 128


def learned(kind: str, folder: Path) -> Vocabulary:
    path = str(folder / "vocabulary.model")
    learn_vocabulary(SENTENCES, path, kind, 450)
    return Vocabulary(path)


@pytest.fixture(scope="module", params=["bpe", "word_piece"])
def vocabulary(request, tmp_path_factory) -> Vocabulary:
    return learned(request.param, tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Vocabulary:
    return learned("bpe", tmp_path_factory.mktemp("bpe"))


def ragged(sequences):
    bounds = np.cumsum([0, *map(len, sequences)])
    return np.array(list(itertools.chain.from_iterable(sequences)), np.int32), bounds


def lists(ids, bounds):
    return [ids[start:end].tolist() for start, end in itertools.pairwise(bounds)]


def segmented(vocabulary, texts, rate=0.3, seeds=(1, 0, 0), max_length=NO_LIMIT):
    """Returns the ids of `texts` as sources."""
    sentences = ragged(vocabulary.encode(texts))
    dropout = BpeDropout(vocabulary, rate, max_length, sides=("inputs",))
    made = dropout.segment({"inputs": sentences, "targets": sentences}, seeds)
    assert made["targets"] is sentences
    assert [part.dtype for part in made["inputs"]] == [np.int32, np.int64]
    return lists(*made["inputs"])


def distribution(vocabulary: Vocabulary, word: str, rate: float) -> dict[tuple[str, ...], float]:
    """Returns the probability of each segmentation, by Algorithm 1 as the paper prints it."""
    numbers = {subword: number for number, subword in enumerate(vocabulary.subwords) if number >= NUM_FIXED}

    @functools.cache
    def ends(split: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        merges = [(numbers.get(one + two), at) for at, (one, two) in enumerate(itertools.pairwise(split))]
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        left = 1.0
        for _, at in sorted(merge for merge in merges if merge[0] is not None):
            after = (*split[:at], split[at] + split[at + 1], *split[at + 2 :])
            for result, chance in ends(after).items():
                found[result] += left * (1 - rate) * chance
            left *= rate  # all merges so far are dropped
        found[split] += left
        return dict(found)

    return ends(tuple(word))


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_segmentations_have_the_probabilities_of_algorithm_1(vocabulary, rate):
    number, subwords = 20_000, vocabulary.subwords
    for word in ("garden", "letter", "bridge."):
        expected = distribution(vocabulary, word, rate)
        assert len(expected) > 4 and sum(expected.values()) == pytest.approx(1)
        made = segmented(vocabulary, [word] * number, rate)
        found = Counter(tuple(subwords[each] for each in ids[:-1]) for ids in made)
        assert found.keys() <= expected.keys()
        for split, chance in expected.items():
            deviation = (number * chance * (1 - chance)) ** 0.5
            assert abs(found[split] - number * chance) < 5 * deviation + 1, split


def test_words_are_segmented_independently(vocabulary):
    """The second word of a text has the probabilities of a word by itself, with its space."""
    expected = distribution(vocabulary, "\u2581garden", 0.3)
    made = segmented(vocabulary, ["letter garden"] * 10_000)
    subwords = vocabulary.subwords
    texts = [[subwords[each] for each in ids[:-1]] for ids in made]
    found = Counter(
        tuple(text[next(at for at, each in enumerate(text) if each.startswith("\u2581")) :]) for text in texts
    )
    assert found.keys() <= expected.keys()
    for split, chance in expected.items():
        assert found[split] / 10_000 == pytest.approx(chance, abs=0.025), split


def test_almost_no_dropout_is_the_usual_segmentation(vocabulary):
    assert segmented(vocabulary, SENTENCES, 1e-12) == vocabulary.encode(SENTENCES)


def test_almost_full_dropout_gives_characters(vocabulary):
    single = {number for number, subword in enumerate(vocabulary.subwords) if len(subword) == 1 or number < NUM_FIXED}
    made = segmented(vocabulary, SENTENCES, 1 - 1e-12)
    assert set(itertools.chain.from_iterable(made)) <= single
    assert vocabulary.decode(made) == SENTENCES


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("abe \u2581\U00100000")))))
def test_any_text_is_kept(vocabulary, texts):
    texts = [*texts, "The  garden \u2581 letter\U00100000"]
    assert vocabulary.decode(segmented(vocabulary, texts, 0.5)) == texts


def test_segmentation_depends_on_seed_epoch_window_pair_and_side_alone(vocabulary, monkeypatch):
    made = segmented(vocabulary, SENTENCES)
    assert vocabulary.decode(made) == SENTENCES
    for other in ((2, 0, 0), (1, 1, 0), (1, 0, 1)):
        assert sum(a == b for a, b in zip(made, segmented(vocabulary, SENTENCES, seeds=other), strict=True)) < 150
    assert len(set(map(tuple, segmented(vocabulary, SENTENCES[:1] * 50)))) > 10
    sentences = ragged(vocabulary.encode(SENTENCES))
    both = BpeDropout(vocabulary, 0.3, NO_LIMIT).segment({"inputs": sentences, "targets": sentences}, (1, 0, 0))
    assert lists(*both["inputs"]) == made != lists(*both["targets"])
    reversed_others = [text if number == 7 else text[::-1] for number, text in enumerate(SENTENCES[:9])]
    assert segmented(vocabulary, reversed_others)[7] == made[7]
    for threads, at_a_time in ((1, 300), (3, 7)):
        monkeypatch.setattr(bpe_dropout, "usable_cores", lambda threads=threads: threads)
        monkeypatch.setattr(bpe_dropout, "SENTENCES", at_a_time)
        assert segmented(vocabulary, SENTENCES) == made


def test_sentence_that_becomes_too_long_keeps_its_ids(vocabulary):
    usual, free = vocabulary.encode(SENTENCES), segmented(vocabulary, SENTENCES)
    limit = max(map(len, usual))
    expected = [short if len(long) > limit else long for short, long in zip(usual, free, strict=True)]
    assert 10 < sum(map(len, free)) - sum(map(len, expected))
    assert segmented(vocabulary, SENTENCES, max_length=limit) == expected


def test_text_without_spaces_is_segmented_too(vocabulary, monkeypatch):
    """With all of its merges to choose from, a long word almost always has one that is not dropped."""
    texts = ["".join(text.split()) for text in SENTENCES]
    texts = ["".join(texts[start : start + 4]) for start in range(0, len(texts), 4)]
    usual = vocabulary.encode(texts)

    def changed() -> float:
        return float(np.mean([a != b for a, b in zip(segmented(vocabulary, texts, 0.1), usual, strict=True)]))

    cut = changed()
    monkeypatch.setattr(bpe_dropout, "LONG", NO_LIMIT)
    assert cut > 0.6 > 0.3 > changed()


def test_rate_of_zero_is_no_dropout_and_a_vocabulary_needs_merges(tmp_path):
    path = str(tmp_path / "vocabulary.model")
    learn_vocabulary(["ab", "ba"], path, "bpe", NUM_FIXED + 2)
    hparams, problem = HParams(name="", description=""), Problem(name="one", description="", max_length=9)
    dataset = SimpleNamespace(vocabulary=path)
    assert bpe_dropout.bpe_dropout(hparams, problem, dataset) is None
    with pytest.raises(ValueError, match="bpe_dropout needs a vocabulary with merges; .* raise vocab_size"):
        bpe_dropout.bpe_dropout(HParams(name="", description="", bpe_dropout=0.1), problem, dataset)


# Batches.


@pytest.fixture
def shards(bpe, tmp_path, monkeypatch) -> list[str]:
    """Three files of 80 pairs, read in windows of 100."""
    monkeypatch.setattr(batching, "PART_TOKENS", 128)
    monkeypatch.setattr(input_pipeline, "WINDOW", 100)
    paths = [str(tmp_path / name) for name in shard_names("train", 3)]
    for number, path in enumerate(paths):
        texts = PAIRS[80 * number : 80 * (number + 1)]
        write_shard(path, itertools.starmap(example, zip(*map(bpe.encode, zip(*texts, strict=True)), strict=True)))
    return paths


def elements(shards, dropout, epoch=0, replicas=1, local=None, **options):
    text = TrainingText(shards, BUDGET, seed=1, dropout=dropout)
    return list(text.batches(epoch, Layout(replicas, local), **options).as_numpy_iterator())


def pairs_of(element):
    for (batch, *_), *sides in zip(*(element[name] for name in ("sizes", "inputs", "targets")), strict=True):
        rows = zip(*(side[:batch] for side in sides), strict=True)
        yield from (tuple(tuple(ids[ids > 0].tolist()) for ids in row) for row in rows)


def same(one, two) -> bool:
    return len(one) == len(two) and all(np.array_equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)


def test_training_batches_are_planned_by_the_lengths_of_their_epoch(bpe, shards):
    dropout, limit = BpeDropout(bpe, 0.3, max_length=100), BUDGET // 8
    epochs, text = [], TrainingText(shards, BUDGET, seed=1, dropout=dropout)
    for epoch in (0, 1):
        made = elements(shards, dropout, epoch)
        pairs = [pair for element in made for pair in pairs_of(element)]
        assert Counter(tuple(bpe.decode(pair)) for pair in pairs) == Counter(PAIRS)
        assert all(batch * max(widths) <= limit for element in made for batch, *widths in element["sizes"])
        epochs.append(Counter(pairs))
        sizes = [window.parts()[0] for window in text.windows(epoch)]
        np.testing.assert_array_equal(np.concatenate(sizes), [element["sizes"] for element in made])
    assert (epochs[0] & epochs[1]).total() < 40
    usual, dropped = (
        sum(np.count_nonzero(each["inputs"]) for each in elements(shards, how)) for how in (None, dropout)
    )
    assert dropped > 1.2 * usual


@pytest.mark.parametrize("replicas", [1, 2])
def test_position_resumes_at_the_next_step(bpe, shards, replicas):
    dropout = BpeDropout(bpe, 0.3, max_length=100)
    whole = elements(shards, dropout, epochs=2, replicas=replicas)
    for at in (replicas, len(whole) - 2 * replicas):
        epoch, window, index = (int(number) for number in whole[at - 1]["position"])
        place = {"epoch": epoch, "window": window, "skip": index, "epochs": 2 - epoch}
        assert same(elements(shards, dropout, **place, replicas=replicas), whole[at:])
    second = [element for number, element in enumerate(whole) if number % replicas == replicas - 1]
    local = range(replicas - 1, replicas)
    assert same(elements(shards, dropout, epochs=2, replicas=replicas, local=local), second)


def test_pairs_of_step_are_the_segmented_ones(bpe, shards):
    dropout = BpeDropout(bpe, 0.3, max_length=100)
    made = elements(shards, dropout, epoch=1)[-1]
    window, after = made["position"][1:].tolist()
    found = TrainingText(shards, BUDGET, seed=1, dropout=dropout).pairs_of_step(1, window, after - 1)
    assert Counter((tuple(each.inputs), tuple(each.targets)) for each in found) == Counter(pairs_of(made))
    for each in found:
        text = PAIRS[80 * shards.index(each.shard) + each.record]
        assert tuple(bpe.decode([each.inputs, each.targets])) == text
