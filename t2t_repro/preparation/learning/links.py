"""Statistical alignment of subwords, to compare attention with: IBM Model 1 in both directions, symmetrized.

The probability that a token is linked to a position of the other side is that of IBM Model 1 (Brown et al., 1993)
times a prior for the diagonal, exp(-4 |i/m - j/n|) (Dyer et al., 2013). A link is in the alignment if both directions
have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2t_repro.preparation.filtering import alignment
from t2t_repro.preparation.learning.shortlist import Sample, associated

_ITERATIONS = 5
_CANDIDATES = 80  # targets of each source subword
_TENSION = 4.0  # fast_align starts from it


class Aligner(NamedTuple):
    """The probabilities of a target id given a source id, and of a source id given a target id, for `table.keys`."""

    table: alignment.Table
    target: np.ndarray
    source: np.ndarray

    def links(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Returns the source place of each target token, -1 if it has no link. Ids are without EOS."""
        m, n = len(source), len(target)
        if not m or not n or not len(self.table.keys):
            return np.full(n, -1)
        keys = source[:, None].astype(np.int64) * self.table.target_words + target
        entries = np.minimum(np.searchsorted(self.table.keys, keys), len(self.table.keys) - 1)
        distances = np.abs((np.arange(m)[:, None] + 0.5) / m - (np.arange(n) + 0.5) / n)
        prior = np.exp(-_TENSION * distances) * (self.table.keys[entries] == keys)
        both = [each[entries] * prior for each in (self.target, self.source)]
        best, back = both[0].argmax(axis=0), both[1].argmax(axis=1)
        is_mutual = (back[best] == np.arange(n)) & (both[0].max(axis=0) > 0)
        return np.where(is_mutual, best, -1)


def learn(sample: Sample) -> Aligner:
    """Learns from a sample of pairs. Raises ValueError if it has none."""
    if not sample.pairs:
        raise ValueError("an aligner is learned from pairs of text. Received: no pair with words on both sides")
    size = len(sample.frequencies)
    table = alignment.Table(associated(sample.pairs, size, _CANDIDATES), size, size)
    batches = alignment.known_batches(sample.pairs, table)
    directions = [table.untrained(given) for given in (0, 1)]
    for _ in range(_ITERATIONS):
        directions = [alignment.trained(each, batches, table, given) for given, each in enumerate(directions)]
    return Aligner(table, directions[0].probability, directions[1].probability)


class Agreement(NamedTuple):
    """How many links two alignments of the same tokens have, and how many they have in common."""

    proposed: int
    expected: int
    common: int

    @classmethod
    def of(cls, proposed: Sequence[int] | np.ndarray, expected: Sequence[int] | np.ndarray) -> Agreement:
        """Compares the source places of target tokens, -1 for none."""
        ours, theirs = np.asarray(proposed), np.asarray(expected)
        common = (ours == theirs) & (ours >= 0)
        return cls(int((ours >= 0).sum()), int((theirs >= 0).sum()), int(common.sum()))

    def plus(self, other: Agreement) -> Agreement:
        return Agreement(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        return self.common / max(self.proposed, 1)

    @property
    def recall(self) -> float:
        return self.common / max(self.expected, 1)

    @property
    def f1(self) -> float:
        """1 - the alignment error rate (Och and Ney, 2003), if all expected links are sure ones."""
        return 2 * self.common / max(self.proposed + self.expected, 1)
