"""Tokenization of published BLEU scores: Moses' scripts for punctuation and tokens, and tensor2tensor's for compounds.

This is a port of the behavior for English, French and German. It follows Moses since November 2018 (pull request 204),
which always splits off a full stop at the end of a line. The scripts of 2017, the paper's year, kept that of "5." or
"usw.", and gave two systems of WMT17 0.006 and 0.007 BLEU less; `keep_last_stop` and `normalize_punctuation` follow
them, because the tokenized Multi30k was made with those of commit 3a0631a. The final escaping of & < > and similar
characters is omitted: it changes tokens equally in both files.

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

# normalize-punctuation.perl, in its order. It reads bytes, so that letters, digits and white space are those of ASCII.
_SPACES = (" +", " ")
_NO_BREAK = "\u00a0"
_NORMALIZED = [
    *[("\r", ""), (r"\(", " ("), (r"\)", ") "), _SPACES, (r"\) ([.!:?;,])", r")\1"), (r"\( ", "("), (r" \)", ")")],
    *[("([0-9]) %", r"\1%"), (" ([:;])", r"\1"), ("`", "'"), ("''", ' " '), ("[„“”]", '"'), ("–", "-")],
    *[("—", " - "), _SPACES, ("´", "'"), ("([A-Za-z])‘([A-Za-z])", r"\1'\2"), ("([A-Za-z])’([A-Za-z])", r"\1'\2")],
    *[("[‘‚’]", '"'), ("''", '"'), ("…", "...")],
    *[(f"{_NO_BREAK}«{_NO_BREAK}", ' "'), (f"«{_NO_BREAK}?", '"'), (f"{_NO_BREAK}»{_NO_BREAK}", '" ')],
    *[(f"{_NO_BREAK}?»", '"'), (f"{_NO_BREAK}([%:?!;])", r"\1"), (f"nº{_NO_BREAK}", "nº ")],
    *[(f"{_NO_BREAK}(ºC|cm)", r" \1"), (f",{_NO_BREAK}", ", "), _SPACES],
]
_COMMAS = [(',"', '",'), (r'(\.+)"([ \t-\r]*[^<]|$)', r'"\1\2'), (f"([0-9]){_NO_BREAK}([0-9])", r"\1,\2")]
_QUOTATIONS = {
    "de": _COMMAS,
    "fr": _COMMAS,
    "en": [('"([,.]+)', r'\1"'), (f"([0-9]){_NO_BREAK}([0-9])", r"\1.\2")],
}

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
    # a comma stays only between digits; twice, as a match uses up its neighbor
    (r"(\P{N}),", r"\1 , "),
    (r",(\P{N})", r" , \1"),
    (r"(\p{N}),$", r"\1 ,"),
]


def replace_punctuation(text: str) -> str:
    """Returns the text with typographic punctuation and full-width forms as ASCII."""
    return _FULL_STOP.sub(". ", text).translate(_ASCII)


def normalize_punctuation(text: str, language: str) -> str:
    """Returns the text with ASCII quotation marks and dashes, as normalize-punctuation.perl of 2017 writes it.

    A comma or full stop beside a quotation mark moves inside in English, and outside in German and French.
    """
    for pattern, replacement in [*_NORMALIZED, *_QUOTATIONS[language]]:
        text = re.sub(pattern, replacement, text)
    return text


def tokenize(text: str, language: str, keep_last_stop: bool = False) -> str:
    """Returns one line as tokens with single spaces. `language` is one of `LANGUAGES`.

    With `keep_last_stop`, a full stop at the end of the line stays at an abbreviation, as in Moses before 2018.
    """
    for pattern, replacement in _rules(language):
        text = pattern.sub(replacement, text)
    words = text.split()
    after = [*words[1:], "" if keep_last_stop else None]
    text = " ".join(_full_stop(*both, language) for both in zip(words, after, strict=False))
    return re.sub(r"\.'$", " . '", text).replace(_DOT, ".")


def split_compounds(text: str) -> str:
    """Returns the text with `x ##AT##-##AT## y` for `x-y`, as in tensor2tensor's get_ende_bleu.sh.

    It works on bytes, and a match consumes the adjacent characters, so that only the first hyphen of `a-b-c` is split.
    """
    return _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode("utf-8")).decode("utf-8")


def _full_stop(word: str, following: str | None, language: str) -> str:
    """Returns `word` with its final full stop split off, unless that belongs to an abbreviation or an ordinal.

    None follows a word whose full stop always ends the line.
    """
    before = word.removesuffix(".")
    if before == word or not before:
        return word
    always, before_numbers = _abbreviations(language)
    keeps = following is not None and (
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
