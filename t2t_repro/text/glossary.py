"""Glossary: terms of the source language, and the forms in which they must appear in a translation.

A file is UTF-8 with one term per line: the term, a tab, and its forms separated by tabs. A term whose second column is
empty keeps the spelling that it has in the source.

    cat\tKatze\tKater
    Acme Cloud\t

A term without capital letters is found in any case, one with capital letters only as it is written: "cat" is found in
"CATS AND A CAT" once, "US" never in "us". Only entire words are found. Where several terms start, the longest is found;
found terms do not overlap, and each occurrence counts. In a translation, one form must appear for each, as an entire
word and as it is written, except that its first letter may be a capital. A word ends where no letter, digit, mark or
underscore follows; in scripts without spaces, every character is a word.
"""

from __future__ import annotations

import os
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from t2t_repro.text.lines import open_lines

MOST_TERMS = 16  # required of one translation
MOST_FORMS = 8  # of one term
MOST_CHARACTERS = 100  # of a term or a form
# Thai, Lao, Tibetan, Myanmar, Khmer, Kana and Han, as in a regular expression of `re` and of RE2
WITHOUT_SPACES = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf" + (
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_JOINERS = "_\u200c\u200d"
_RANGES = [(each[0], each[2]) for each in (WITHOUT_SPACES[at : at + 3] for at in range(0, len(WITHOUT_SPACES), 3))]

Forms = str | Sequence[str] | None  # None: the term stays as it is


class Required(NamedTuple):
    """One occurrence of a term in a source, and the forms of which one must appear in the translation."""

    term: str
    forms: tuple[str, ...]


class Glossary:
    """Terms with their forms; a term without forms is kept as it is. Instances are thread-safe.

    Raises ValueError for a term or a form that is empty, too long, starts or ends with a space, or has a control
    character, and for more than `MOST_FORMS` forms.
    """

    def __init__(self, terms: Mapping[str, Forms]):
        self._as_written: dict[str, tuple[str, ...]] = {}
        self._in_any_case: dict[str, tuple[str, ...]] = {}
        if not isinstance(terms, Mapping):
            raise ValueError(f"a glossary must map terms to forms. Received: {type(terms).__name__}; give a dictionary")
        for term, forms in terms.items():
            _must_be_phrase("a term", term)
            if _folded(term) == term.replace("ς", "σ"):
                self._in_any_case[_folded(term)] = _checked(term, forms)
            else:
                self._as_written[term] = _checked(term, forms)
        lengths: dict[str, set[int]] = {}
        for term in terms:
            lengths.setdefault(_folded(term)[0], set()).add(len(term))
        self._lengths = {first: sorted(every, reverse=True) for first, every in lengths.items()}

    @classmethod
    def load(cls, path: str) -> Glossary:
        """Reads a file. Raises OSError if it cannot be opened, and ValueError, with the line, if it is malformed."""
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no glossary {path!r}; give a file with a term, a tab and its forms on each line")
        found: dict[str, Forms] = {}
        places: dict[str, int] = {}
        for number, line in enumerate(open_lines(path), start=1):
            if not line.strip():
                continue
            what = f"{path}, line {number}"
            term, tab, rest = line.partition("\t")
            if not tab:
                raise ValueError(
                    f"{what}: expected a term, a tab and its forms. Received: {line!r:.60} without a tab; separate "
                    "them by a tab, and write a tab alone after a term that stays as it is"
                )
            if term in places:
                raise ValueError(f"{what}: the term {term!r:.60} is on line {places[term]} too; give its forms there")
            try:
                found[term] = rest.split("\t") if rest else None
                cls({term: found[term]})
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
            places[term] = number
        if not found:
            raise ValueError(f"{path} has no terms; write one per line: the term, a tab and its forms")
        return cls(found)

    @classmethod
    def of(cls, given: AnyGlossary) -> Glossary:
        """Returns the glossary `given`: itself, a dictionary of terms, or the name of a file."""
        if isinstance(given, Glossary):
            return given
        return cls.load(os.fspath(given)) if isinstance(given, str | os.PathLike) else cls(given)

    def __len__(self) -> int:
        return len(self._as_written) + len(self._in_any_case)

    def required(self, text: str) -> tuple[Required, ...]:
        """Returns each occurrence of a term in a source, in the order of the text."""
        found = []
        folded, place = _folded(text), 0
        while place < len(text):
            lengths = self._lengths.get(folded[place], ()) if _is_between_words(text, place) else ()
            for length in lengths:
                end = place + length
                if end > len(text) or not _is_between_words(text, end):
                    continue
                term = text[place:end]
                forms = self._as_written.get(term)
                forms = self._in_any_case.get(folded[place:end]) if forms is None else forms
                if forms is not None:
                    found.append(Required(term, forms or (term,)))
                    place = end - 1
                    break
            place += 1
        return tuple(found)


AnyGlossary = Glossary | Mapping[str, Forms] | str | os.PathLike[str]  # itself, its terms, or the name of a file


def missing(translation: str, required: Iterable[Required]) -> list[Required]:
    """Returns the occurrences for which no form appears in the translation. Each place there counts for one of them.

    A place is that of the longest form there that one more occurrence can have: places are matched with occurrences by
    augmenting paths, from left to right.
    """
    every = list(required)
    takers: dict[int, list[int]] = {}  # the numbers of the occurrences that a place can count for
    place_of: dict[int, int] = {}  # by the number of the occurrence

    def give(place: int, asked: set[int]) -> bool:
        """Gives a place to an occurrence, moving others to their other places. Returns whether that is possible."""
        for number in takers[place]:
            if number not in asked:
                asked.add(number)
                if number not in place_of or give(place_of[number], asked):
                    place_of[number] = place
                    return True
        return False

    place = 0
    while place < len(translation):
        by_length = _forms_at(translation, place, every) if _is_between_words(translation, place) else {}
        length = 1
        for longest in sorted(by_length, reverse=True):
            takers[place] = by_length[longest]
            if give(place, set()):
                length = longest
                break
        place += length
    return [each for number, each in enumerate(every) if number not in place_of]


def _forms_at(text: str, place: int, required: Sequence[Required]) -> dict[int, list[int]]:
    """Returns the numbers of the occurrences that have a form at a place of a text, by its length."""
    found: dict[int, list[int]] = {}
    for number, each in enumerate(required):
        lengths = {len(form) for form in each.forms if text.startswith((form, capitalized(form)), place)}
        for length in lengths:
            if _is_between_words(text, place + length):
                found.setdefault(length, []).append(number)
    return found


def lacking(required: Sequence[Sequence[Required]], outputs: Sequence[Sequence[str]]) -> list[int]:
    """Returns the numbers of the texts of which an output lacks a required form."""
    both = enumerate(zip(required, outputs, strict=True))
    return [number for number, (each, texts) in both if each and any(missing(text, each) for text in texts)]


def must_be_few(what: str, required: Sequence[Required]) -> None:
    """Raises ValueError if more than `MOST_TERMS` are required of the translation of `what`."""
    if len(required) > MOST_TERMS:
        raise ValueError(f"{what} has {len(required):,} terms of the glossary, at most {MOST_TERMS}; split the text")


def spelled(required: Iterable[Required]) -> str:
    """Returns required terms in the form for the search: a line for each, with its forms separated by tabs."""
    return "\n".join("\t".join(each.forms) for each in required)


def capitalized(form: str) -> str:
    """Returns the form with a capital first letter, if there is one of equal length."""
    first = form[:1].upper()
    return first + form[1:] if len(first) == 1 else form


def is_word_character(character: str) -> bool:
    """Returns true for characters that continue a word: letters, digits and marks of scripts with spaces."""
    if character.isascii():
        return character.isalnum() or character == "_"
    if any(first <= character <= last for first, last in _RANGES):
        return False
    return character in _JOINERS or unicodedata.category(character)[0] in "LNM"


def is_letter(character: str) -> bool:
    """Returns true for letters, digits and marks of all scripts, also those without spaces."""
    return is_word_character(character) or unicodedata.category(character)[0] in "LNM"


def _is_between_words(text: str, place: int) -> bool:
    """Returns true if no word continues across this place."""
    return not (0 < place < len(text) and is_word_character(text[place - 1]) and is_word_character(text[place]))


def _folded(text: str) -> str:
    """Returns the text in lower case, of the same length. A sigma at the end of a word is like any other."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(small if len(small := character.lower()) == 1 else character for character in text)
    return lower.replace("ς", "σ")


def _checked(term: str, forms: Forms) -> tuple[str, ...]:
    if forms is None:
        return ()
    every = [forms] if isinstance(forms, str) else forms
    if not isinstance(every, list | tuple) or not every:
        raise ValueError(
            f"the term {term!r:.60} must have a form or a list of forms. Received: {reprlib.repr(forms):.60}; give "
            "one, such as the term itself"
        )
    if len(every) > MOST_FORMS:
        raise ValueError(f"the term {term!r:.60} has {len(every)} forms; give at most {MOST_FORMS}")
    for form in every:
        _must_be_phrase(f"a form of {term!r:.60}", form)
    return tuple(every)


def _must_be_phrase(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what} must be a string. Received: {type(text).__name__} {reprlib.repr(text):.60}")
    if not text.strip():
        raise ValueError(f"{what} is empty; write it, or leave it out")
    if text != text.strip():
        raise ValueError(f"{what} starts or ends with white space. Received: {text!r:.60}; remove it")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{what} has {len(text)} characters; give at most {MOST_CHARACTERS}: {text!r:.60}")
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise ValueError(f"{what} contains the control character U+{ord(character):04X}; remove it: {text!r:.60}")
