"""Weights of the training corpora: how often each pair is trained on per epoch.

A weight w is a mean. A pair of its corpus is in an epoch floor(w) times, and once more with probability w - floor(w).
The draw is a pure function of (seed, epoch, window), like the order, so a resumed run sees the same pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from t2t_repro.data.dataset import Dataset
from t2t_repro.problem import Problem

MIN_PAIRS = 100  # of an epoch, so that no epoch is empty by chance
_STREAM = 1  # a fourth number of the seed: the draws of a window are independent of its order


def corpus_weights(problem: Problem, dataset: Dataset) -> tuple[float, ...]:
    """Returns the weight of each training corpus; () if every pair is trained on once per epoch.

    At temperature T the weights are w_i = p_i N / n_i with p_i ~ n_i^(1/T), for n_i pairs of corpus i and N in total
    (Arivazhagan et al., 2019, section 3.2). An epoch then has N pairs on average.

    Raises ValueError if the data has other corpora, or if an epoch would have almost no pairs.
    """
    if not problem.is_weighted:
        return ()
    shares = dataset.record.splits["train"].corpora
    name = "train_weight" if problem.train_weight else "train_temperature"
    if shares is None:
        raise ValueError(
            f"{name}: the data in {dataset.directory!r} has one corpus, or was prepared before corpora were recorded; "
            "prepare several corpora in another `data_dir`"
        )
    numbers = np.array([share.pairs for share in shares], float)
    if problem.train_weight and len(problem.train_weight) != len(numbers):
        names = ", ".join(share.name for share in shares)
        raise ValueError(
            f"train_weight must have one weight per training corpus, {len(numbers)} ({names}), "
            f"got {len(problem.train_weight)}"
        )
    if not problem.train_weight:  # a corpus whose pairs were all dropped has no weight
        chances = np.where(numbers > 0, np.maximum(numbers, 1) ** (1 / problem.train_temperature), 0)
        return tuple((chances / chances.sum() * numbers.sum() / np.maximum(numbers, 1)).tolist())
    if pairs_per_epoch(dataset, problem.train_weight) < min(MIN_PAIRS, numbers.sum()):
        raise ValueError(f"train_weight leaves fewer than {MIN_PAIRS} pairs per epoch; raise the weights")
    return tuple(problem.train_weight)


def pairs_per_epoch(dataset: Dataset, weights: Sequence[float] = ()) -> float:
    """Returns the mean number of pairs in an epoch with the result of `corpus_weights`."""
    train = dataset.record.splits["train"]
    if not weights or train.corpora is None:
        return train.pairs
    return math.fsum(weight * share.pairs for weight, share in zip(weights, train.corpora, strict=True))


def draw(corpora: np.ndarray, weights: Sequence[float], seeds: tuple[int, int, int]) -> np.ndarray:
    """Returns the places [R] of the pairs to train on, of a window of pairs whose corpora are `corpora` [N]: each as
    often as its weight says. `seeds` are the seed, the epoch and the number of the window."""
    weight = np.asarray(weights)[corpora]
    times = np.floor(weight).astype(np.int64)
    chances = np.random.default_rng((*seeds, _STREAM)).random(len(corpora))
    return np.repeat(np.arange(len(corpora)), times + (chances < weight - times))
