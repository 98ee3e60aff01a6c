"""Sentences to learn a small vocabulary from."""

from __future__ import annotations

import itertools

ADJECTIVES, NOUNS = "small big red old new warm quiet".split(), "house tree river garden letter bridge".split()
SENTENCES = [
    f"The {adjective} {noun} is number {number}." if number % 2 else f"Das {noun}-Haus: {adjective}, {number} Stück!"
    for number, (adjective, noun) in enumerate(
        itertools.islice(itertools.cycle(itertools.product(ADJECTIVES, NOUNS)), 300)
    )
]
