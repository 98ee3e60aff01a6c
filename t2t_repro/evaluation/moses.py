"""Tokenization of the paper's BLEU: Moses' replace-unicode-punctuation.perl and tokenizer.perl, and compound splitting.

This is a port of the behavior for English, French and German. It follows Moses since November 2018 (pull request 204),
which always splits off a full stop at the end of a line. The scripts of 2017, the paper's year, kept that of "5." or
"usw.", and gave two systems of WMT17 0.006 and 0.007 BLEU less. The final escaping of & < > and similar characters is
omitted: it changes tokens equally in both files.

    tokenize("KI-Forscher sagten: „Ja, z.B. 1,5 Mio. Euro.", "de")   # KI-Forscher sagten : „ Ja , z.B. 1,5 Mio. Euro .
"""

from __future__ import annotations

import functools
import re
from typing import Any

import regex
from sacremoses.corpus import NonbreakingPrefixes

LANGUAGES = ("de", "en", "fr")

# Full-width forms and typographic marks, as in replace-unicode-punctuation.perl, which turns a full-width 1 into a
# quotation mark and the other digits into digits.
_ASCII = str.maketrans(
    "，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％",
    ',,""::?"")!(;"""032569784~\'-<>[]%',
) | {ord("…"): "..."}
_FULL_STOP = re.compile("[。．] *")
_HYPHEN = re.compile(rb"(\S)-(\S)")

_DOT = "\0"  # replaces each of several consecutive dots; control characters are already removed

# Rules for splitting apostrophes. Alphabetic (A) and numeric (N) are Perl's Unicode properties.
_A, _NOT_A = r"(\p{Alphabetic})", r"(\P{Alphabetic})"
_APOSTROPHES = {
    "de": [("'", " ' ")],
    "en": [
        (rf"{_NOT_A}'{_NOT_A}", r"\1 ' \2"),
        (rf"([^\p{{Alphabetic}}\p{{N}}])'{_A}", r"\1 ' \2"),
        (rf"{_A}'{_NOT_A}", r"\1 ' \2"),
        (rf"{_A}'{_A}", r"\1 '\2"),
        (r"(\p{N})'s", r"\1 's"),
    ],
    "fr": [
        (rf"{_NOT_A}'{_NOT_A}", r"\1 ' \2"),
        (rf"{_NOT_A}'{_A}", r"\1 ' \2"),
        (rf"{_A}'{_NOT_A}", r"\1 ' \2"),
        (rf"{_A}'{_A}", r"\1' \2"),
    ],
}
_RULES: list[tuple[str, Any]] = [
    (r"\s+", " "),
    (r"[\0-\x1f]", ""),
    (" +", " "),
    ("^ | $", ""),
    (r"([^\p{Alphabetic}\p{Nd} .'`,-])", r" \1 "),
    (r"\.{2,}", lambda dots: f" {_DOT * len(dots[0])} "),
    (
        r"(\P{N}),",
        r"\1 , ",
    ),  # a comma stays only between digits; twice, as a match uses up its neighbor
    (r",(\P{N})", r" , \1"),
    (r"(\p{N}),$", r"\1 ,"),
]


def replace_punctuation(text: str) -> str:
    """Returns the text with typographic punctuation and full-width forms as ASCII."""
    return _FULL_STOP.sub(". ", text).translate(_ASCII)


def tokenize(text: str, language: str) -> str:
    """Returns one line as tokens with single spaces. `language` is one of `LANGUAGES`."""
    for pattern, replacement in _rules(language):
        text = pattern.sub(replacement, text)
    words = text.split()
    text = " ".join(_full_stop(*both, language) for both in zip(words, [*words, ""][1:], strict=True))
    return re.sub(r"\.'$", " . '", text).replace(_DOT, ".")


def split_compounds(text: str) -> str:
    """Returns the text with `x ##AT##-##AT## y` for `x-y`, as in tensor2tensor's get_ende_bleu.sh.

    It works on bytes, and a match consumes the adjacent characters, so that only the first hyphen of `a-b-c` is split.
    """
    return _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode("utf-8")).decode("utf-8")


def _full_stop(word: str, following: str, language: str) -> str:
    """Returns `word` with its final full stop split off, unless that belongs to an abbreviation or an ordinal."""
    before = word.removesuffix(".")
    if before == word or not before:
        return word
    always, before_numbers = _abbreviations(language)
    keeps = following and (
        ("." in before and regex.search(r"\p{Alphabetic}", before))
        or before in always
        or regex.match(r"\p{Lowercase}", following)
        or (before in before_numbers and re.match("[0-9]", following))
    )
    return word if keeps else f"{before} ."


@functools.cache
def _rules(language: str) -> list[tuple[Any, Any]]:
    rules = [*_RULES, *_APOSTROPHES[language]]
    return [(regex.compile(pattern), replacement) for pattern, replacement in rules]


@functools.cache
def _abbreviations(language: str) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the words that keep their full stop: always, and only before a number."""
    entries = [entry.partition("#NUMERIC_ONLY#") for entry in NonbreakingPrefixes().words(language)]
    always = frozenset(word for word, mark, _ in entries if not mark)
    return always, frozenset(word.strip() for word, mark, _ in entries if mark)
