"""The workload of `benchmarks.decode`. Standard library only: every contestant imports this module.

Sources are random words. Their translations are made to have a given length, the same for every contestant, so that all
do the same work whatever the weights, and none is done sooner by ending sooner.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SOURCE_TOKENS = TARGET_TOKENS = 27  # EOS included
ALPHA = 0.6
PAD, EOS, FIRST_WORD = 0, 1, 4


@dataclass(frozen=True)
class Case:
    name: str
    beam_size: int
    sentences: int
    repeats: int  # of one measurement, so that it is not too short

    def sources(self, vocab_size: int) -> list[list[int]]:
        """Returns the ids of each source, EOS last."""
        rng = random.Random(self.sentences)
        words = range(SOURCE_TOKENS - 1)
        return [[*(rng.randrange(FIRST_WORD, vocab_size) for _ in words), EOS] for _ in range(self.sentences)]


CASES = (
    Case("beam 4, 64 sentences", 4, 64, 1),
    Case("beam 4, 32 sentences", 4, 32, 1),
    Case("beam 4, one sentence", 4, 1, 5),
    Case("greedy, 32 sentences", 1, 32, 2),
)


def pieces(vocab_size: int) -> list[str]:
    """Returns the word of each id, for contestants that take words."""
    return ["<pad>", "</s>", "<unk>", *(f"w{id}" for id in range(3, vocab_size))]
