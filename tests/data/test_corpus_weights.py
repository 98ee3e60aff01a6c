"""Weights of training corpora: how often a pair is in an epoch, and that the draw is a function of seed and epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.corpus_weights import corpus_weights, draw, pairs_per_epoch
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import CorpusShare, DatasetRecord, SplitRecord, VocabularyRecord
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.data.padding_statistics import table
from t2t_repro.data.shards import example, shard_names, write_shard
from t2t_repro.problem import Problem

PAIRS, BUDGET = 240, 128  # tokens per side of a step: 8 parts of 16
WEIGHTS = (0.25, 1.0, 2.5)  # of corpora 0, 1 and 2: pair i is of corpus i mod 3
PROBLEM = Problem(name="several", description="")


def dataset(numbers: tuple[int, ...] | None, directory: str = "DATA") -> Dataset:
    """Prepared data whose training corpora a, b, ... have these numbers of pairs; None if they were not recorded."""
    shares = [CorpusShare(name=name, pairs=n, tokens={}) for name, n in zip("abc", numbers or (), strict=False)]
    train = SplitRecord(pairs=sum(numbers or (1_000,)), shards=(), corpora=tuple(shares) or None)
    vocabulary = VocabularyRecord(size=300, sha256="")
    return Dataset(directory, DatasetRecord(problem=PROBLEM, vocabulary=vocabulary, splits={"train": train}))


def weighted(*weights: float, temperature: float = 0.0) -> Problem:
    return Problem(name="several", description="", train_weight=weights, train_temperature=temperature)


def test_weights_of_a_problem():
    data = dataset((1_000, 200))
    assert corpus_weights(PROBLEM, data) == () and pairs_per_epoch(data) == 1_200
    assert corpus_weights(weighted(0.5, 3), data) == (0.5, 3.0)
    assert pairs_per_epoch(data, (0.5, 3.0)) == 500 + 600


@pytest.mark.parametrize("temperature", [1, 2, 5, 100])
def test_temperature_gives_the_shares_of_its_definition(temperature: float):
    """p_i ~ n_i^(1/T), and an epoch keeps its size."""
    numbers = np.array([1_000_000, 10_000, 0])
    weights = corpus_weights(weighted(temperature=temperature), dataset(tuple(numbers.tolist())))
    shares = weights * numbers / np.sum(weights * numbers)
    expected = numbers ** (1 / temperature) * (numbers > 0)
    np.testing.assert_allclose(shares, expected / expected.sum(), rtol=1e-12)
    assert np.sum(weights * numbers) == pytest.approx(numbers.sum())
    assert temperature > 1 or weights[:2] == pytest.approx((1, 1), rel=1e-12)


@pytest.mark.parametrize("numbers", [(17, 33, 6), (1, 2), (40, 1, 30)])
@pytest.mark.parametrize("temperature", [1.5, 2, 3.3, 5])
def test_temperature_of_few_pairs_is_no_error_of_rounding(numbers: tuple[int, ...], temperature: float):
    weights = corpus_weights(weighted(temperature=temperature), dataset(numbers))
    assert np.sum(np.multiply(weights, numbers)) == pytest.approx(sum(numbers))


@pytest.mark.parametrize(
    ("problem", "numbers", "message"),
    [
        (
            weighted(1, 2, 3),
            (9_000, 9_000),
            r"train_weight must have one weight per training corpus, 2 \(a, b\), got 3",
        ),
        (weighted(1, 2), None, "train_weight: the data in 'DATA' has one corpus, or was prepared before corpora were"),
        (weighted(temperature=2), None, "train_temperature: the data in 'DATA' has one corpus, or"),
        (weighted(0.001, 0.001), (9_000, 9_000), "train_weight leaves fewer than 100 pairs per epoch; raise the"),
    ],
)
def test_weights_that_do_not_fit_the_data(problem: Problem, numbers, message: str):
    with pytest.raises(ValueError, match=message):
        corpus_weights(problem, dataset(numbers))


def test_draw_repeats_each_pair_floor_or_ceiling_of_its_weight():
    corpora = np.tile([0, 1, 2], 2_000)
    places = draw(corpora, WEIGHTS, (1, 0, 0))
    times = np.bincount(places, minlength=len(corpora))
    assert [set(times[corpora == corpus]) for corpus in range(3)] == [{0, 1}, {1}, {2, 3}]
    for corpus, weight in enumerate(WEIGHTS):  # 5 standard deviations of a mean of 2,000 draws
        assert abs(times[corpora == corpus].mean() - weight) < 5 * 0.5 / np.sqrt(2_000)


def test_draw_is_a_function_of_seed_epoch_and_window():
    corpora = np.zeros(500, np.int64)
    drawn = {seeds: draw(corpora, (0.5,), seeds).tolist() for seeds in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}
    assert all(draw(corpora, (0.5,), seeds).tolist() == found for seeds, found in drawn.items())
    assert len(set(map(tuple, drawn.values()))) == len(drawn)


# In batches.


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> tuple[str, ...]:
    """Three files of 80 pairs, whose first id is the number of the pair."""
    rng = np.random.default_rng(1)
    folder: Path = tmp_path_factory.mktemp("shards")
    paths = [str(folder / name) for name in shard_names("train", 3)]
    pairs = [[[i + 2, *rng.integers(2, 50, n).tolist(), 1] for n in rng.integers(1, 12, 2)] for i in range(PAIRS)]
    for number, path in enumerate(paths):
        chosen = range(80 * number, 80 * (number + 1))
        write_shard(path, (example(*pairs[i], corpus=i % 3) for i in chosen))
    return tuple(paths)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(batching, "PART_TOKENS", 16)
    monkeypatch.setattr(input_pipeline, "WINDOW", 100)


def elements(shards, seed=1, epoch=0, weights=WEIGHTS, replicas=1, **options):
    batches = TrainingText(shards, BUDGET, seed, weights).batches(epoch, Layout(replicas), **options)
    return list(batches.as_numpy_iterator())


def pairs_of(element) -> list[int]:
    """Returns the number of each pair of an element."""
    sizes = element["sizes"][:, 0]
    return [int(n) - 2 for part, size in zip(element["inputs"], sizes, strict=True) if size for n in part[:size, 0]]


def times(found) -> np.ndarray:
    return np.bincount([pair for element in found for pair in pairs_of(element)], minlength=PAIRS)


def same(one, two) -> bool:
    return len(one) == len(two) and all(np.array_equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)


def test_expected_frequency_over_epochs(shards):
    """The mean over 60 epochs of 80 pairs per corpus is within 5 standard deviations of the weight."""
    epochs = 60
    seen = times(elements(shards, epochs=epochs)) / epochs
    for corpus, weight in enumerate(WEIGHTS):
        fraction = weight % 1
        deviation = np.sqrt(fraction * (1 - fraction) / (epochs * 80))
        assert abs(seen[corpus::3].mean() - weight) <= 5 * deviation
        assert np.abs(seen[corpus::3] - weight).max() <= 5 * deviation * np.sqrt(80)  # and of each single pair


def test_weights_of_one_give_the_order_without_weights(shards):
    assert same(elements(shards, weights=(1.0, 1.0, 1.0)), elements(shards, weights=()))


def test_order_and_draw_depend_on_seed_and_epoch_alone(shards):
    first = elements(shards)
    assert same(first, elements(shards))
    for other in (elements(shards, epoch=1), elements(shards, seed=2)):
        assert not np.array_equal(times(first), times(other))


@pytest.mark.parametrize("replicas", [2, 3])
def test_step_has_the_same_pairs_on_any_devices(shards, replicas: int):
    one, many = elements(shards), elements(shards, replicas=replicas)
    assert len(many) == len(one) * replicas
    for number, step in enumerate(one):
        shared = [pair for element in many[number * replicas : (number + 1) * replicas] for pair in pairs_of(element)]
        assert Counter(shared) == Counter(pairs_of(step))


@pytest.mark.parametrize("replicas", [1, 2])
def test_position_resumes_at_the_next_step(shards, replicas: int):
    whole = elements(shards, epochs=3, replicas=replicas)
    for at in (5 * replicas, len(whole) // 3 // replicas * replicas, len(whole) - replicas):
        epoch, window, index = (int(number) for number in whole[at - 1]["position"])
        place = {"epoch": epoch, "window": window, "skip": index, "epochs": 3 - epoch}
        assert same(elements(shards, **place, replicas=replicas), whole[at:])


def test_windows_match_the_training_elements(shards):
    made = elements(shards)
    planned = [window.parts() for window in TrainingText(shards, BUDGET, 1, WEIGHTS).windows(epoch=0)]
    np.testing.assert_array_equal(np.concatenate([sizes for sizes, _ in planned]), [each["sizes"] for each in made])


def test_pairs_of_step_returns_repeated_pairs_and_their_places(shards):
    made = elements(shards)
    for number in (0, len(made) - 1):
        window, after = made[number]["position"][1:].tolist()
        found = TrainingText(shards, BUDGET, 1, WEIGHTS).pairs_of_step(0, window, after - 1)
        assert [each.inputs[0] - 2 for each in found] == pairs_of(made[number])
        assert [80 * shards.index(each.shard) + each.record for each in found] == pairs_of(made[number])


def test_windows_without_a_pair_are_passed_over(shards):
    """At a weight of 0.004, most windows of 100 pairs have none."""
    rare = (0.004,) * 3
    found = elements(shards, weights=rare, epochs=40)
    assert 0 < len(found) < 120 and abs(times(found).sum() - 0.004 * 40 * PAIRS) < 5 * np.sqrt(0.004 * 40 * PAIRS)
    sizes = [window.parts()[0] for window in TrainingText(shards, BUDGET, 1, rare).windows(epoch=0)]
    assert sum(int(each[..., 0].sum()) for each in sizes) == times(elements(shards, weights=rare)).sum()


def test_padding_statistics_count_repeated_pairs(shards):
    *_, last = table(shards, BUDGET, WEIGHTS).splitlines()
    assert int(last.split()[2]) == times(elements(shards)).sum()


def test_evaluation_batches_hold_one_corpus_each(shards):
    found: dict[int, list[int]] = {}
    for batch in input_pipeline.evaluation_batches(shards, 24).as_numpy_iterator():
        assert batch["inputs"].size <= 24 and batch["targets"].size <= 24
        found.setdefault(int(batch["corpus"]), []).extend(batch["inputs"][:, 0] - 2)
    assert {corpus: sorted(pairs) for corpus, pairs in found.items()} == {
        corpus: list(range(corpus, PAIRS, 3)) for corpus in range(3)
    }
