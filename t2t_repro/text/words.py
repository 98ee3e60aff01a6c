"""Words of a text: what ASCII white space separates, as in Moses and fast_align."""

from __future__ import annotations

import re

SPACES = " \t\n\v\f\r"
WORD = re.compile(f"[^{SPACES}]+")


def split_words(text: str) -> list[str]:
    """Returns the words of a text."""
    return WORD.findall(text)
