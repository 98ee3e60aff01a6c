"""Words of a text: what ASCII white space separates, as in Moses and fast_align."""

from __future__ import annotations

import re

SPACES = " \t\n\v\f\r"
WORD = re.compile(f"[^{SPACES}]+")


def split_words(text: str) -> list[str]:
    """Returns the words of a text."""
    return WORD.findall(text)


def around(text: str, start: int, end: int) -> tuple[str, str]:
    """Returns the characters before and after a part of a text, "" at its ends."""
    return text[max(start - 1, 0) : start], text[end : end + 1]
