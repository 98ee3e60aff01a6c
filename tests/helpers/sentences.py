"""Sentences to learn a small vocabulary from, and texts that are hard to restore."""

from __future__ import annotations

import itertools

ADJECTIVES, NOUNS = "small big red old new warm quiet".split(), "house tree river garden letter bridge".split()
SENTENCES = [
    f"The {adjective} {noun} is number {number}." if number % 2 else f"Das {noun}-Haus: {adjective}, {number} Stück!"
    for number, (adjective, noun) in enumerate(
        itertools.islice(itertools.cycle(itertools.product(ADJECTIVES, NOUNS)), 300)
    )
]
NASTY = [
    *["", "\0", "a\0b", "\n", "a\nb\r\n", "\t", " ", " x", "x ", "  x  y  ", "\u2028", "\u0085", "\ufeffx", "\u00a0"],
    *[
        "👩‍👩‍👧 🇩🇪",
        "e\u0301 é \u0301",
        "漢字かな交じり文",
        "\ue000\uf8ff\U0010fffd",
        "\ufffe\uffff\U0010ffff",
        "\ufffd",
    ],
    *["<unk>", "</s>", "<pad>", "<s>", "<0x41>", " ⁇ ", "\u2047", "\u2585", "ﬁ Å Å ½ Ⅳ", "İıſß"],
    *[
        "\u2581",
        "a\u2581b",
        " \u2581 ",
        "\u25811",
        "\U00100000",
        "\U001000000",
        "\U001000001",
        "\U00100000\u25810\u2581",
    ],
]
