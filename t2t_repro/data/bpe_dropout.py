"""BPE-dropout (Provilkov et al., 2020): each training sentence is segmented differently in each epoch.

Algorithm 1 of the paper, for each word:

    split the word into characters
    repeat:
        drop each possible merge with probability p
        apply the merge of highest priority that is left; if none is left, return the subwords

With p = 0 this is `Vocabulary.encode`. A word extends from a space to the next one. A word of more than `LONG`
characters, such as a Chinese sentence, is cut after some of its subwords: of its many merges hardly ever all are
dropped, so it would almost always be segmented as with p = 0.

A merge that is dropped may be applied in a later round, as in the paper. sentencepiece's own sampling never considers
it again, so it cuts words into more subwords at the same p, and its random numbers depend on the number of threads.

The characters of a word are known from its ids, so no text is read. The best merge of each round is rarely dropped, so
most words keep the ids of the shard: the first round in which it is dropped has a geometric distribution, and a word
without such a round before its last merge needs no work. The random numbers of a word are a hash of (seed, epoch,
window, pair, side, word), so neither threads nor the other pairs change them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from t2t_repro.config import HParams
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import SIDES
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.problem import Problem
from t2t_repro.system.processor import usable_cores
from t2t_repro.text.token_ids import EOS, NUM_FIXED

SENTENCES = 2_000  # segmented at a time by a thread, so that arrays fit in its cache
LONG, CUT = 24, 8  # characters: a longer word is cut about every CUT
_SPACE = "\u2581"  # sentencepiece's symbol for a space
_STREAM = 2  # a fourth number of the seed: independent of the order of a window, and of the draws of `corpus_weights`
_NONE = 2**31 - 1  # in place of the id of a merged subword: this pair cannot be merged
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Ids = tuple[np.ndarray, np.ndarray]  # ids of B sentences [T], int32; where each starts and ends [B + 1], int64


def bpe_dropout(hparams: HParams, problem: Problem, dataset: Dataset) -> BpeDropout | None:
    """Returns the segmentation of training text by a hyperparameter set; None if its `bpe_dropout` is 0.

    Raises ValueError if the vocabulary of the data has no merges.
    """
    if not hparams.bpe_dropout:
        return None
    sides = problem.task.segmented_sides
    return BpeDropout(Vocabulary(dataset.vocabulary), hparams.bpe_dropout, problem.max_length, sides)


class BpeDropout:
    """Segments sentences at random, with the merges of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, rate: float, max_length: int, sides: Sequence[str] = SIDES):
        """Reads the merges: any two subwords whose concatenation is a subword, with its id as priority.

        Args:
          vocabulary: of the data.
          rate: the probability p of dropping a merge, above 0 and below 1.
          max_length: a sentence that would have more tokens keeps the ids of the shard.
          sides: those that are segmented.

        Raises ValueError if the vocabulary has no merges.
        """
        self.rate, self.max_length, self.sides = rate, max_length, sides
        subwords = vocabulary.subwords
        numbers = {subword: number for number, subword in enumerate(subwords) if number >= NUM_FIXED}
        spelled = [[numbers[each] for each in subword] for subword in subwords[NUM_FIXED:]]
        spelled = [[number] for number in range(NUM_FIXED)] + spelled  # the fixed ids are never merged
        self._counts = np.array([len(characters) for characters in spelled])
        self._first = np.cumsum(self._counts) - self._counts
        self._characters = np.array(list(itertools.chain.from_iterable(spelled)))
        self._starts_word = np.array([subword.startswith(_SPACE) for subword in subwords])
        self._starts_word[EOS] = True
        merges = {
            (numbers[subword[:at]], numbers[subword[at:]]): number
            for subword, number in numbers.items()
            for at in range(1, len(subword))
            if subword[:at] in numbers and subword[at:] in numbers
        }
        if not merges:
            raise ValueError(
                f"bpe_dropout needs a vocabulary with merges; {vocabulary.path} has only bytes and single characters: "
                "raise vocab_size, or set bpe_dropout to 0"
            )
        self._size = vocabulary.size
        pairs = np.array([left * self._size + right for left, right in merges])
        order = np.argsort(pairs)
        self._pairs = np.append(pairs[order], 2**62)  # the last one equals no pair
        self._merged = np.append(np.array(list(merges.values()))[order], _NONE)

    def segment(self, window: Mapping[str, Ids], seeds: tuple[int, int, int]) -> dict[str, Ids]:
        """Returns other ids of the same text for a window of pairs.

        `window` has "inputs" and "targets". `seeds` are the seed, the epoch and the number of the window.
        """
        base = np.random.default_rng((*seeds, _STREAM)).integers(2**64, size=len(SIDES), dtype=np.uint64)
        return {
            side: self._in_threads(*window[side], key) if side in self.sides else window[side]
            for side, key in zip(SIDES, base, strict=True)
        }

    def _in_threads(self, ids: np.ndarray, splits: np.ndarray, key: np.uint64) -> Ids:
        """Segments the sentences of one side of a window. NumPy releases Python's lock in most of the work."""
        keys = _random_bits(key, np.arange(len(splits) - 1))

        def some(first: int) -> Ids:
            bounds = splits[first : first + SENTENCES + 1]
            return self.sentences(ids[bounds[0] : bounds[-1]], bounds - bounds[0], keys[first : first + SENTENCES])

        with ThreadPoolExecutor(usable_cores()) as pool:
            parts = list(pool.map(some, range(0, len(keys), SENTENCES)))
        lengths = [np.diff(bounds) for _, bounds in parts]
        return np.concatenate([flat for flat, _ in parts]), np.cumsum(np.concatenate([[0], *lengths]))

    def sentences(self, ids: np.ndarray, splits: np.ndarray, keys: np.ndarray) -> Ids:
        """Segments sentences, each with its random 64-bit key [B]."""
        # A: ids, C: characters, W: words. Every id starts at one of its characters.
        counts_A = self._counts[ids]
        at_A = np.cumsum(counts_A) - counts_A
        starts_A = self._starts_word[ids]
        starts_A[splits[:-1]] = True
        first_W = np.flatnonzero(starts_A)
        subwords_W = np.diff(first_W, append=len(ids))
        inside_A = at_A - np.repeat(at_A[first_W], subwords_W)
        long_A = np.repeat(np.add.reduceat(counts_A, first_W) > LONG, subwords_W)
        starts_A |= long_A & (np.diff(inside_A // CUT, prepend=0) > 0)
        first_W = np.flatnonzero(starts_A)
        subwords_W = np.diff(first_W, append=len(ids))
        words = np.cumsum(starts_A)[splits[1:] - 1]  # [B]: of all sentences up to this one
        words_of = np.diff(words, prepend=0)
        number_W = np.arange(len(first_W)) - np.repeat(words - words_of, words_of)
        key_W = _random_bits(np.repeat(keys, words_of), number_W)
        sizes_W = np.add.reduceat(counts_A, first_W)
        merges_W = sizes_W - subwords_W  # each merge leaves one subword less
        dropped_W = self._first_dropped(_uniform(key_W, 0), int(merges_W.max()))
        changes_W = dropped_W < merges_W

        tokens_C, is_token_C = np.zeros(sizes_W.sum(), np.int32), np.zeros(sizes_W.sum(), bool)
        tokens_C[at_A], is_token_C[at_A] = ids, True
        changes_A = np.repeat(changes_W, subwords_W)
        place, tokens = self._spell(ids[changes_A], at_A[changes_A])
        is_token_C[place] = True
        self._merge(tokens_C, is_token_C, place, tokens, sizes_W[changes_W], dropped_W[changes_W], key_W[changes_W])
        ends = np.append(at_A, len(tokens_C))[splits]  # [B + 1]: the characters of each sentence
        lengths = np.add.reduceat(is_token_C, ends[:-1], dtype=np.int64)
        if (longer := lengths > self.max_length).any():
            longer_A = np.repeat(longer, np.diff(splits))
            is_token_C[np.repeat(longer, np.diff(ends))] = False
            tokens_C[at_A[longer_A]], is_token_C[at_A[longer_A]] = ids[longer_A], True
            lengths = np.where(longer, np.diff(splits), lengths)
        return tokens_C[is_token_C], np.cumsum(np.append(0, lengths))

    def _first_dropped(self, chances: np.ndarray, most: int) -> np.ndarray:
        """Returns the first round in which the best merge is dropped: n with probability p (1 - p)^n, at most `most`.

        It compares powers, because logarithms differ in the last bit between processors.
        """
        powers = np.cumprod(np.full(most, 1 - self.rate))
        return np.searchsorted(-powers, -chances)

    def _spell(self, ids: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the place of each character of the subwords `ids`, which start at the places `at`, and its id."""
        counts = self._counts[ids]
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(at, counts) + inside, self._characters[np.repeat(self._first[ids], counts) + inside]

    def _merge(
        self,
        tokens_C: np.ndarray,
        is_token_C: np.ndarray,
        place: np.ndarray,
        tokens: np.ndarray,
        sizes: np.ndarray,
        dropped: np.ndarray,
        keys: np.ndarray,
    ) -> None:
        """Merges the characters `tokens` of several words, in rounds: each round is one of every word.

        Writes the subwords into `tokens_C` and `is_token_C`, at the place of their first character. `sizes`, `dropped`
        and `keys` are of words: characters, the first round whose best merge is dropped, and the random key.
        """
        tokens_C[place] = tokens
        ends = np.cumsum(sizes) - 1
        merged = self._lookup(tokens, np.append(tokens[1:], 0))  # of each token with the next one
        merged[ends] = _NONE
        for number in itertools.count(start=1):
            if not len(tokens):
                return
            starts = ends - sizes + 1
            ranked = merged << 32 | np.arange(len(merged))  # the leftmost of equal merges first
            best = np.minimum.reduceat(ranked, starts)
            drops = (dropped == number - 1) | ((dropped < number - 1) & (_uniform(keys, number << 32) < self.rate))
            if drops.any():  # the best one; then the others with probability p
                dropping = np.flatnonzero(np.repeat(drops, sizes))
                inside = dropping - np.repeat(starts[drops], sizes[drops])
                chance = _uniform(np.repeat(keys[drops], sizes[drops]), number << 32 | (inside + 1))
                ranked[dropping[chance < self.rate]] = _NONE << 32
                ranked[best[drops] & 0xFFFFFFFF] = _NONE << 32
                best = np.minimum.reduceat(ranked, starts)
            continues = best < _NONE << 32
            left = best[continues] & 0xFFFFFFFF
            tokens[left] = best[continues] >> 32
            tokens_C[place[left]] = tokens[left]
            is_token_C[place[left + 1]] = False
            merged[left] = merged[left + 1]  # _NONE at the end of a word
            kept = np.repeat(continues, sizes)
            kept[left + 1] = False
            left = (np.cumsum(kept) - 1)[left]
            tokens, merged, place = tokens[kept], merged[kept], place[kept]
            sizes, dropped, keys = sizes[continues] - 1, dropped[continues], keys[continues]
            ends = np.cumsum(sizes) - 1
            for changed in (left[left < ends], left[left > ends - sizes + 1] - 1):
                merged[changed] = self._lookup(tokens[changed], tokens[changed + 1])

    def _lookup(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Returns the id of the concatenation of each two subwords; _NONE if it is not a subword."""
        pairs = left.astype(np.int64) * self._size + right
        found = np.searchsorted(self._pairs, pairs)
        return np.where(self._pairs[found] == pairs, self._merged[found], _NONE)


def _random_bits(keys: np.ndarray | np.uint64, counters: np.ndarray | int) -> np.ndarray:
    """Returns number `counters` of the stream of SplitMix64 with the seed `keys`: uint64 (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        bits = keys + (np.asarray(counters, np.uint64) + np.uint64(1)) * _GOLDEN
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _uniform(keys: np.ndarray, counters: np.ndarray | int) -> np.ndarray:
    """Returns numbers above 0 and below 1."""
    return ((_random_bits(keys, counters) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
