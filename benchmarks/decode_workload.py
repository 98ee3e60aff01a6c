"""The workload of `benchmarks.decode`. Standard library only: every contestant imports this module.

Sources are random words. Their translations are made to have a given length, the same for every contestant, so that all
do the same work whatever the weights, and none is done sooner by ending sooner.

The sentences of a text have lengths as in `benchmarks.batches`. They differ in each turn, so that contestants meet
batch sizes and lengths for which they have not compiled products yet, as they do in a text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE_TOKENS = TARGET_TOKENS = 27  # EOS included
ALPHA = 0.6
PAD, EOS, FIRST_WORD = 0, 1, 4
MEAN_LENGTH, SIGMA, SHORTEST, LONGEST = 27, 0.6, 2, 128  # of the sentences of a text: lognormal, EOS included
SHORTLIST = 4_096  # subwords that contestants with a shortlist decode among, if the vocabulary has twice as many
BATCH_TOKENS = 1_024  # positions of a batch of a text, padding included


@dataclass(frozen=True)
class Case:
    name: str
    beam_size: int
    sentences: int
    repeats: int  # of one measurement, so that it is not too short
    is_text: bool = False  # true if lengths differ

    def sources(self, vocab_size: int, turn: int = 0) -> list[list[int]]:
        """Returns the ids of each source, EOS last. A text has other sentences in each turn."""
        rng = random.Random(turn if self.is_text else self.sentences)
        lengths = [self._length(rng) for _ in range(self.sentences)]
        return [[*(rng.randrange(FIRST_WORD, vocab_size) for _ in range(length - 1)), EOS] for length in lengths]

    def _length(self, rng: random.Random) -> int:
        if not self.is_text:
            return SOURCE_TOKENS
        length = rng.lognormvariate(math.log(MEAN_LENGTH) - SIGMA**2 / 2, SIGMA)
        return min(max(round(length), SHORTEST), LONGEST)


ONE_LENGTH = (
    Case("beam 4, 64 sentences", 4, 64, 1),
    Case("beam 4, 32 sentences", 4, 32, 1),
    Case("beam 4, one sentence", 4, 1, 5),
    Case("greedy, 32 sentences", 1, 32, 2),
)
CASES = (*ONE_LENGTH, Case("beam 4, text of 256 sentences", 4, 256, 1, is_text=True))


def batches_of_text(sources: Sequence[list[int]]) -> list[list[list[int]]]:
    """Returns batches of sources of similar lengths, longest first: each translation is as long as a batch's longest
    source."""
    batches: list[list[list[int]]] = []
    for source in sorted(sources, key=len, reverse=True):
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(source)
    return batches


def shortlist(vocab_size: int) -> list[int]:
    """Returns the ids of a shortlist, ascending, those of padding, EOS and the unknown word first."""
    words = range(FIRST_WORD, vocab_size)
    chosen = random.Random(0).sample(words, min(SHORTLIST, vocab_size // 2) - FIRST_WORD)
    return [*range(FIRST_WORD), *sorted(chosen)]


def pieces(vocab_size: int) -> list[str]:
    """Returns the word of each id, for contestants that take words."""
    return ["<pad>", "</s>", "<unk>", *(f"w{id}" for id in range(3, vocab_size))]
