"""Any amount of text like given text, for benchmarks of preparation: as long in its lines, and as rich in new words.

A made line is the first half of one line and the second half of another one of similar length, on both sides of the
pair, so lengths are those of the given text. New words follow Heaps' law, V = K n^b distinct words in n words, with K
and b of the given text: one word of a half, at a random place, is replaced with a probability that continues the law.
A replacement is number r of the words that the given text lacks, made of the beginning of a known word and the end of
another. If the frequency of a word falls as r^(-1/b), the number of distinct words grows as n^b.

Lines are joined from ready pieces, whose numbers numpy draws: about 230,000 pairs per processor second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from t2t_repro.problem import Pair

BLOCK_PAIRS = 50_000
VARIANTS = 4  # places of the word in a half that may be replaced
NEIGHBORS = 500  # shorter and as many longer lines whose second half may follow a first half; at most 1/50 of all
_COLUMNS = 8  # pieces of a line: of each half what precedes the word, the word or a new one in two parts, the rest
_HASHES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd


class NewsText:
    """Makes text like `pairs`, in which no side is empty."""

    def __init__(self, pairs: Sequence[Pair]):
        ordered = sorted(pairs, key=lambda pair: len(pair[0].split(" ")))
        self._lines, self._neighbors = len(ordered), min(NEIGHBORS, len(ordered) // 50)
        rng = np.random.default_rng(1)
        self._sides = [_Side([pair[side] for pair in ordered], rng) for side in (0, 1)]

    def blocks(self, number: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields `number` pairs as blocks of lines, UTF-8: (source, target). The same `seed` gives the same text."""
        rng = np.random.default_rng(seed)
        for start in range(0, number, BLOCK_PAIRS):
            first = rng.integers(self._lines, size=min(BLOCK_PAIRS, number - start))
            steps = rng.integers(-self._neighbors, self._neighbors + 1, size=len(first))
            second = (first + steps).clip(0, self._lines - 1)
            source, target = (side.text(first, second, rng) for side in self._sides)
            yield source, target


class _Side:
    """The lines of one side, as pieces that lines are made of."""

    def __init__(self, lines: list[str], rng: np.random.Generator):
        known = sorted({word for line in lines for word in line.split(" ")})
        self._known = len(known)
        words, self._exponent = heaps(lines)
        self._pieces: list[bytes] = []
        halves = 0
        for line in lines:
            split = line.split(" ")
            middle = (len(split) + 1) // 2
            halves += 1 + (len(split) > 1)
            for half, space, end in ((split[:middle], "", ""), (split[middle:], " ", "\n")):
                for place in rng.integers(max(len(half), 1), size=VARIANTS).tolist():
                    self._pieces += _around(half, place, space if half else "", end)
        share = new_share(len(known), words, self._exponent)
        self._is_new = min(1.0, share * words / halves)
        self._new = len(self._pieces)
        self._pieces += [word[: len(word) // 2 + 1].encode() for word in known]
        self._pieces += [word[len(word) // 2 :].encode() for word in known]
        self._pieces.append(b"")

    def text(self, first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> bytes:
        """Returns lines made of the first halves of lines `first` [N] and the second halves of lines `second` [N]."""
        numbers = np.empty((len(first), _COLUMNS), np.int64)
        for half, lines in enumerate((first, second)):
            variants = (2 * lines + half) * VARIANTS + rng.integers(VARIANTS, size=len(lines))
            columns = numbers[:, 4 * half : 4 * half + 4]
            columns[:, 0], columns[:, 1], columns[:, 3] = 3 * variants, 3 * variants + 1, 3 * variants + 2
            columns[:, 2] = len(self._pieces) - 1
            (new,) = np.nonzero(rng.random(len(lines)) < self._is_new)
            columns[new, 1:3] = self._new_words(len(new), rng)
        return b"".join(map(self._pieces.__getitem__, numbers.ravel().tolist()))

    def _new_words(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draws words that the lines lack. Returns the numbers of their two pieces, [N, 2]."""
        power = self._exponent / (self._exponent - 1)
        ranks = np.minimum(self._known * (1 - rng.random(number)) ** power, 2.0**62).astype(np.uint64)
        hashes = (ranks[:, None] * _HASHES) >> np.uint64(32)
        return self._new + (hashes % np.uint64(self._known)).astype(np.int64) + np.array([0, self._known])


def _around(half: list[str], place: int, space: str, end: str) -> list[bytes]:
    before, after = half[:place], half[place + 1 :]
    parts = [space + "".join(f"{word} " for word in before), "".join(half[place : place + 1])]
    return [part.encode() for part in (*parts, "".join(f" {word}" for word in after) + end)]


def heaps(lines: Sequence[str]) -> tuple[int, float]:
    """Returns the number of words of the lines, and the exponent of Heaps' law from half of them to all."""
    rng, seen, counts, total = np.random.default_rng(0), set[str](), list[tuple[int, int]](), 0
    for number, line in enumerate(rng.permutation(np.array(lines, object)), start=1):
        words = line.split(" ")
        total += len(words)
        seen.update(words)
        if number in (len(lines) // 2, len(lines)):
            counts.append((total, len(seen)))
    (half, distinct), (whole, known) = counts
    return whole, math.log(known / distinct) / math.log(whole / half)


def new_share(known: int, words: int, exponent: float) -> float:
    """Returns the share of words beyond the `known` ones in endless text, of which `words` have been read.

    Of m words drawn with frequencies r^(-1/b) for r > `known`, m large, known (m (1/b - 1) / known)^b G(1 - b) - known
    are distinct, with Euler's gamma function G. The share makes this known (n / words)^b - known.
    """
    return known / words / ((1 / exponent - 1) * math.gamma(1 - exponent) ** (1 / exponent))
