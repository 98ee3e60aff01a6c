"""translate_ende_wmt14 and translate_enfr_wmt14: the paper's translation data (section 5.1).

tensorflow-datasets knows the archives and their SHA-256: `wmt14_translate` has `de-en` and `fr-en`, read here in the
other direction. The numbers of lines are the known ones of the files. Preparation drops and counts pairs with an empty
side.

The paper gives 36M sentences for English-French. WMT14 has 40,842,333 lines; the paper does not explain the difference.
"""

from __future__ import annotations

from typing import Any

from t2t_repro.problem import SPLITS, Problem, Wmt
from t2t_repro.registry import PROBLEMS

DE_LINES = (
    ("europarl_v7", 1_920_209),
    ("commoncrawl", 2_399_123),
    ("newscommentary_v9", 201_288),
    ("newstest2013", 3_000),
    ("newstest2014", 3_003),
)
FR_LINES = (
    ("europarl_v7", 2_007_723),
    ("commoncrawl", 3_244_152),
    ("multiun", 12_886_831),
    ("newscommentary_v9", 183_251),
    ("gigafren", 22_520_376),
    ("newstest2013", 3_000),
    ("newstest2014", 3_003),
)

EXAMPLE = "The Law will never be perfect, but its application should be just."  # Figure 4


def _wmt14(language: str, lines: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """Returns the corpora of each split, English to `language`."""
    return {split: (Wmt(f"wmt14_translate/{language}-en", split, "en", language, lines),) for split in SPLITS}


PROBLEMS.register(
    Problem(
        name="translate_ende_wmt14",
        description="WMT14 English-German, 4.5M pairs, newstest2013 and newstest2014: downloads 1.7 GB (section 5.1)",
        source_language="en",
        example=EXAMPLE,
        target_language="de",
        **_wmt14("de", DE_LINES),
        vocab_size=37_000,
    )
)

PROBLEMS.register(
    Problem(
        name="translate_enfr_wmt14",
        description="WMT14 English-French, 40.8M lines, newstest2013 and newstest2014: downloads 6.7 GB (section 5.1)",
        source_language="en",
        example=EXAMPLE,
        target_language="fr",
        **_wmt14("fr", FR_LINES),
        vocab_kind="word_piece",
        vocab_size=32_000,
    )
)
