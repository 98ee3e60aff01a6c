"""Stand-ins: words that a model translates in place of placeholders and addresses, and their places in a translation.

A placeholder is a word for the grammar of its sentence, so it must not be removed. But few models have seen `{0}` or a
long address in training: they garble it, and the sentence around it. A short word of capital letters is copied, or its
translation is linked to it. So the stand-in, or else what is linked to it, becomes the placeholder again.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from t2t_repro.text.glossary import is_letter
from t2t_repro.text.words import WORD

_STAND_INS = ("XY", "XZ", "YX", "YZ", "ZX", "ZY")

_Span = tuple[int, int]


class Kept(NamedTuple):
    """A placeholder, an address or an element of the source that is not to be translated."""

    raw: str
    start: int  # of its stand-in in the text for the model
    end: int
    parent: int  # the number of the element that contains it, or of the element that it is
    is_element: bool = False


class Found(NamedTuple):
    """A part of a translation, and what is put in its place: None for nothing."""

    start: int
    end: int
    kept: Kept | None


def chosen(raws: Iterable[str], text: str) -> dict[str, str]:
    """Returns the stand-in of each placeholder or address of a line with this text, in which no stand-in occurs.

    Further ones than there are stand-ins share them.
    """
    free = [each for each in _STAND_INS if each not in text] or list(_STAND_INS)
    return dict(zip(dict.fromkeys(raws), itertools.cycle(free)))


def find(text: str, every: Sequence[Kept], translation: str, links: Sequence[tuple[int, int]]) -> list[Found]:
    """Returns what becomes a placeholder or an address in the translation of `text`, in order.

    That is its stand-in, also as a part of a word, at best of one that is linked to its own word. If there is none, it
    is the words that are linked to its own word alone. Other stand-ins in words that are linked to it are left out.
    """
    source_words, words = ([match.span() for match in WORD.finditer(each)] for each in (text, translation))
    number = {kept: _word_at(source_words, kept.start) for kept in every}
    sources: dict[int, set[int]] = {}  # of each target word
    for source, target in links:
        sources.setdefault(target, set()).add(source)
    stand_ins = "|".join(sorted({text[kept.start : kept.end] for kept in every}))
    places = {match.span(): match[0] for match in re.finditer(stand_ins, translation)} if every else {}
    in_word = {span: _word_at(words, span[0]) for span in places}
    linked: dict[tuple[str, int], list[_Span]] = {}
    equal: dict[str, list[_Span]] = {}
    for span in reversed(places):
        equal.setdefault(places[span], []).append(span)
        for source in sources.get(in_word[span], ()):
            linked.setdefault((places[span], source), []).append(span)

    found: dict[Kept, _Span] = {}
    used: set[_Span] = set()

    def take(kept: Kept, several: list[_Span]) -> None:
        while several and kept not in found:
            span = several.pop()
            if span not in used:
                used.add(span)
                found[kept] = span

    for kept in every:
        take(kept, linked.get((text[kept.start : kept.end], number[kept]), []))
    for kept in every:
        take(kept, equal.get(text[kept.start : kept.end], []))
    taken = {in_word[span] for span in used}
    own: dict[int, list[int]] = {}  # the words that are linked to one source word alone
    for target in sorted(sources):
        if len(sources[target]) == 1 and target < len(words):
            own.setdefault(min(sources[target]), []).append(target)
    for kept in every:
        run = _first_run(own.get(number[kept], []))
        if kept not in found and run and taken.isdisjoint(run) and _is_alone(text, kept, source_words[number[kept]]):
            start, end = words[run[0]][0], words[run[-1]][1]
            letters = [place for place in range(start, end) if is_letter(translation[place])]
            found[kept] = (letters[0], letters[-1] + 1) if letters else (start, end)  # brackets and quotes stay
            taken.update(run)
    results = [Found(*span, kept) for kept, span in found.items()]
    theirs = set(number.values())
    for span in places:
        if in_word[span] not in taken and not theirs.isdisjoint(sources.get(in_word[span], ())):
            results.append(Found(*span, None))
    return sorted(results, key=lambda each: each.start)


def words_with(text: str, found: Sequence[Found]) -> list[str]:
    """Returns the words of a text, with placeholders and addresses in place of what is `found`.

    If a placeholder takes the place of several words, it is the first of them, and the others are "".
    """
    words = []
    waiting = list(reversed(found))
    for match in WORD.finditer(text):
        place, end = match.span()
        parts = []
        while waiting and waiting[-1].start < end:
            start, stop, kept = waiting[-1]
            parts.append(text[place : max(place, start)])
            parts.append(kept.raw if kept and start >= match.start() else "")
            place = min(stop, end)
            if stop > end:
                break
            waiting.pop()
        words.append("".join(parts) + text[place:end])
    return words


def _word_at(words: Sequence[_Span], place: int) -> int:
    """Returns the number of the word that contains this place."""
    return bisect.bisect_right(words, place, key=lambda word: word[0]) - 1


def _first_run(numbers: Sequence[int]) -> list[int]:
    """Returns the numbers from the first one on that follow one another."""
    return [each for place, each in enumerate(numbers) if each == numbers[0] + place]


def _is_alone(text: str, kept: Kept, word: _Span) -> bool:
    """Returns true if the word of a placeholder has no letters or digits beside it."""
    return not any(map(is_letter, text[word[0] : kept.start] + text[kept.end : word[1]]))
