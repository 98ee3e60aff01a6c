"""Placement of elements in a translation: the part of it that belongs to each element of the source.

Texts are divided into *units*: runs of letters, runs of digits, single other characters. Word links become links of
units, so that punctuation beside a word does not belong to an element that ends at the word. A *gap* is a place between
units, counted from 0; a *span* is a pair of gaps.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from t2t_repro.text.glossary import is_letter, is_word_character
from t2t_repro.text.words import WORD

_MANY = 8  # units of a word of which only the first and the last are linked: a text without spaces is one word


class Unit(NamedTuple):
    text: str
    start: int  # in the text that it is part of
    end: int
    word: int  # the number of its word
    kept: bool = False  # stands for text that is restored exactly


class Span(NamedTuple):
    start: int  # gaps
    end: int


@dataclass
class Element:
    """A part of the source that gets a part of the translation. `first` and `last` are gaps between source units."""

    opening: str
    closing: str
    parent: int  # the number of an earlier element, -1 for that of the entire text
    first: int
    last: int
    is_point: bool = False  # gets a place instead of text
    leans_left: bool = False  # a point that belongs to the previous unit, rather than to the next one
    in_order: bool = False  # a point that does not overtake others of this kind
    is_half: bool = False  # a point that its siblings do not overtake either: its partner is in another text


def units(text: str, cuts: Collection[int] = (), kept: Mapping[int, int] | None = None) -> list[Unit]:
    """Returns the units of a text.

    Args:
      text: the text.
      cuts: places where a unit ends.
      kept: the start and the end of each unit that is kept as one. Its start and end are among the cuts.
    """
    found, kept = [], kept or {}
    for number, word in enumerate(WORD.finditer(text)):
        place, stop = word.span()
        while place < stop:
            end = kept.get(place) or _end(text, place, stop, cuts)
            found.append(Unit(text[place:end], place, end, number, place in kept))
            place = end
    return found


def _end(text: str, place: int, stop: int, cuts: Collection[int]) -> int:
    """Returns the end of the unit that starts at `place`."""
    end = place + 1
    if not is_word_character(text[place]):
        return end
    is_digit = text[place].isdigit()
    while end < stop and end not in cuts and is_word_character(text[end]) and text[end].isdigit() == is_digit:
        end += 1
    return end


class _Word:
    """The units of a word that are not kept, by their text and by their kind: true for letters and digits."""

    def __init__(self, every: Iterable[tuple[int, Unit]]):
        self.by_text: dict[str, list[int]] = {}
        self.kinds: dict[bool, list[int]] = {True: [], False: []}
        for number, unit in every:
            self.last, self.last_kind = number, is_letter(unit.text[0])
            self.by_text.setdefault(unit.text.lower(), []).append(number)
            self.kinds[self.last_kind].append(number)


def unit_links(source: Sequence[Unit], target: Sequence[Unit], links: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the numbers of the target units that each source unit is linked to, as the bits of an integer.

    Between two linked words, equal units are linked to each other, then all others. Units that are kept have no links.
    What the units of a source word have in common is collected once: a text without spaces is one word of many units.

    `links` are pairs of a source word and a target word, in the order of the translation; others are ignored.
    """
    of_source, of_target = _by_word(source), _by_word(target)
    of_word: dict[int, list[int]] = {}
    for one, other in links:
        if one in of_source and other in of_target:
            of_word.setdefault(other, []).append(one)
    found, excepted = [0] * len(source), [0] * len(source)  # a unit is not linked to the others of its equal's word
    common = {(one, kind): 0 for one in of_source for kind in (True, False)}
    for other, every in of_word.items():
        for one in every:
            left, right = of_source[one], of_target[other]
            pairs = dict(_equal(left, right))
            for a, b in pairs.items():
                found[a] |= 1 << b
            # The mark at the end of a word often attends to the mark of another word: their letters are not linked.
            if one == every[0] or pairs.get(left.last) != right.last or left.last_kind:
                for kind, bits in _others(left, right, pairs):
                    common[one, kind] |= bits
                    for a in pairs:
                        excepted[a] |= bits
    for one, word in of_source.items():
        for kind, numbers in word.kinds.items():
            for number in numbers:
                found[number] |= common[one, kind] & ~excepted[number]
    return found


def _by_word(every: Sequence[Unit]) -> dict[int, _Word]:
    units_of = itertools.groupby(((number, unit) for number, unit in enumerate(every) if not unit.kept), _word_of)
    return {word: _Word(some) for word, some in units_of}


def _word_of(numbered: tuple[int, Unit]) -> int:
    return numbered[1].word


def _equal(left: _Word, right: _Word) -> Iterator[tuple[int, int]]:
    """Yields the pairs of equal units of two words."""
    for text in min(left.by_text, right.by_text, key=len):
        yield from zip(left.by_text.get(text, ()), right.by_text.get(text, ()), strict=False)


def _others(left: _Word, right: _Word, pairs: Mapping[int, int]) -> list[tuple[bool, int]]:
    """Returns kinds of units of a source word, and the target units that those without an equal are linked to.

    Letters and digits are linked to those of the target word, and its other characters to other characters; if there
    are none, all to all.
    """
    used = set(pairs.values())
    numbers = {kind: _without(right.kinds[kind], used) for kind in right.kinds}
    alike = [kind for kind in left.kinds if numbers[kind] and _without(left.kinds[kind], pairs.keys())]
    if alike or pairs:
        return [(kind, _bits(numbers[kind])) for kind in alike]
    return [(kind, _bits(numbers[not kind])) for kind in left.kinds]


def _without(numbers: Sequence[int], used: Collection[int]) -> list[int]:
    """Returns the numbers that are not used, or the first and the last one of more than `_MANY`."""
    if len(numbers) <= _MANY + len(used):
        numbers = [each for each in numbers if each not in used]
        return numbers if len(numbers) <= _MANY else [numbers[0], numbers[-1]]
    return [next(each for each in every if each not in used) for every in (numbers, reversed(numbers))]


def _bits(numbers: Iterable[int]) -> int:
    return functools.reduce(lambda bits, number: bits | 1 << number, numbers, 0)


def spans(elements: Sequence[Element], linked: Sequence[int], length: int) -> list[Span]:
    """Returns the span of each element among the `length` units of the translation. `linked` is that of `unit_links`.

    The span of an element is the smallest that contains all units that its own are linked to. It lies in that of its
    parent, and siblings do not overlap: the one with the shorter span is placed first, and the other gets the part that
    remains with most of its units. An element without a linked unit gets units that nothing is linked to, if they
    follow what precedes it, or an empty span. If a parent has no units beside those of its children, their spans are
    extended to its entire span. Points get a place beside their neighbors, and siblings of a half stay on their side.

    The first element is the entire text. Parents precede their children.
    """
    found = [Span(0, length)] * len(elements)
    children: dict[int, list[int]] = {}
    for number in sorted(range(1, len(elements)), key=lambda each: elements[each].first):
        children.setdefault(elements[number].parent, []).append(number)
    neighbors, bits = _Neighbors(linked), _linked_bits(elements, children, linked)
    for parent, bounds in enumerate(found):  # which the children of earlier elements have changed
        numbers = children.get(parent, ())
        texts = [number for number in numbers if not elements[number].is_point]
        parts = neighbors.parts(numbers, elements, elements[parent], bounds)
        placed = _disjoint({number: _within(parts[number], bits[number]) for number in texts})
        taken = sorted(placed.values())
        for number in texts:
            if number not in placed:
                span = placed[number] = neighbors.unlinked(elements[number], elements[parent], parts[number], taken)
                if span.end > span.start:
                    bisect.insort(taken, span)
        is_all = sum(_size(elements[each]) for each in texts) == _size(elements[parent])
        if texts and is_all and _size(elements[parent]) and all(parts[each] == bounds for each in texts):
            filled = _filled({each: placed[each] for each in texts if _size(elements[each])}, bounds)
            taken = sorted(filled.values())
            gaps = {each: _outside(placed[each].start, bounds.start, taken) for each in texts if each not in filled}
            placed = filled | {each: Span(gap, gap) for each, gap in gaps.items()}
        least = bounds.start
        for number in numbers:
            element = elements[number]
            if element.is_point:
                gap = neighbors.gap(element, elements[parent], bounds)
                gap = min(max(gap, parts[number].start), parts[number].end)
                gap = _outside(max(gap, least) if element.in_order else gap, least, taken)
                least = gap if element.in_order else least
                placed[number] = Span(gap, gap)
        for number, span in placed.items():
            found[number] = span
    return found


def _linked_bits(
    elements: Sequence[Element], children: Mapping[int, Sequence[int]], linked: Sequence[int]
) -> list[int]:
    """Returns the units that those of each element are linked to, as the bits of an integer.

    The bits of an element are computed from those of its children, so that nested elements take linear time.
    """
    found = [0] * len(elements)
    for number in range(len(elements) - 1, -1, -1):
        place, bits = elements[number].first, 0
        for child in children.get(number, ()):
            bits |= _union(linked[place : elements[child].first]) | found[child]
            place = elements[child].last
        found[number] = bits | _union(linked[place : elements[number].last])
    return found


def _union(every: Sequence[int]) -> int:
    return functools.reduce(operator.or_, every, 0)


def _within(bounds: Span, bits: int) -> int:
    """Returns the bits within the bounds."""
    return bits >> bounds.start << bounds.start & (1 << bounds.end) - 1


def _ends(bits: int) -> Span:
    """Returns the span from the first bit to the last one."""
    return Span((bits & -bits).bit_length() - 1, bits.bit_length())


def _disjoint(wanted: Mapping[int, int]) -> dict[int, Span]:
    """Returns spans of elements, of which each contains bits that it wants. Elements that get none are left out."""
    found: dict[int, Span] = {}
    taken: list[Span] = []
    ends = {number: _ends(bits) for number, bits in wanted.items() if bits}
    for number in sorted(ends, key=lambda each: ends[each].end - ends[each].start):
        span = _largest_free(wanted[number], taken)
        if span is not None:
            found[number] = span
            bisect.insort(taken, span)
    return found


def _size(element: Element) -> int:
    """Returns the number of source units of an element."""
    return element.last - element.first


def _filled(placed: Mapping[int, Span], bounds: Span) -> dict[int, Span]:
    """Returns the spans extended to the next one, so that no unit of the bounds is outside."""
    order = sorted(placed, key=lambda each: placed[each])
    starts = [bounds.start, *(placed[number].start for number in order[1:]), bounds.end]
    return {number: Span(*both) for number, both in zip(order, itertools.pairwise(starts), strict=True)}


def _largest_free(wanted: int, taken: list[Span]) -> Span | None:
    """Returns the span around those of the bits between two taken spans that are most; None if all are taken."""
    largest = 0
    while wanted:
        place = bisect.bisect_right(taken, (_ends(wanted).start, float("inf")))
        start = taken[place - 1].end if place else 0
        end = taken[place].start if place < len(taken) else wanted.bit_length()
        free = _within(Span(start, end), wanted)
        if free.bit_count() > largest.bit_count():  # of equal ones the first
            largest = free
        wanted = wanted >> end << end
    return _ends(largest) if largest else None


def _outside(gap: int, least: int, taken: list[Span]) -> int:
    """Returns the gap, or the nearest end of the taken span that it is in."""
    place = bisect.bisect_left(taken, (gap, gap)) - 1
    if place < 0 or taken[place].end <= gap:
        return gap
    start, end = taken[place]
    return start if gap - start < end - gap and start >= least else end


def _next_start(gap: int, taken: list[Span]) -> int:
    place = bisect.bisect_left(taken, (gap, gap))
    return taken[place].start if place < len(taken) else sys.maxsize


class _Neighbors:
    """The nearest source units with links."""

    def __init__(self, linked: Sequence[int]):
        self._linked, self._targets = linked, _union(linked)
        self._previous = [-1] * (len(linked) + 1)  # of each gap
        self._next = [len(linked)] * (len(linked) + 1)
        for number, each in enumerate(linked):
            self._previous[number + 1] = number if each else self._previous[number]
        for number in range(len(linked) - 1, -1, -1):
            self._next[number] = number if linked[number] else self._next[number + 1]

    def parts(
        self, numbers: Sequence[int], elements: Sequence[Element], parent: Element, bounds: Span
    ) -> dict[int, Span]:
        """Returns the part of the bounds that each child may be in, between the halves on both sides of it."""
        found: dict[int, Span] = {}
        left: list[int] = []
        start = bounds.start
        for number in numbers:
            if elements[number].is_half:
                gap = max(start, self.gap(elements[number], parent, bounds))
                found |= {each: Span(start, gap) for each in left} | {number: Span(gap, gap)}
                start, left = gap, []
            else:
                left.append(number)
        return found | {each: Span(start, bounds.end) for each in left}

    def unlinked(self, element: Element, parent: Element, bounds: Span, taken: list[Span]) -> Span:
        """Returns units that nothing is linked to, at most as many as the element has, for an element without links.

        They follow what the previous unit with links is linked to.
        """
        previous = self._previous[element.first]
        gap = self._linked[previous].bit_length() if previous >= parent.first else bounds.start
        start = _outside(min(max(gap, bounds.start), bounds.end), bounds.start, taken)
        stop = min(bounds.end, start + _size(element), _next_start(start, taken))
        following = _within(Span(start, stop), self._targets) if stop > start else 0
        return Span(start, _ends(following).start if following else max(start, stop))

    def gap(self, element: Element, parent: Element, bounds: Span) -> int:
        """Returns the gap of a point within the bounds of its parent."""
        if element.first <= parent.first:
            return bounds.start
        if element.last >= parent.last:
            return bounds.end
        previous, following = self._previous[element.first], self._next[element.last]
        before = self._linked[previous] if previous >= parent.first else 0
        after = self._linked[following] if following < parent.last else 0
        if before and after:  # of several links, the one nearest to the other neighbor
            wanted = _ends(after).start - 1 if element.leans_left else before.bit_length()
            chosen = _nearest(before, wanted) + 1 if element.leans_left else _nearest(after, wanted)
        elif before:
            chosen = before.bit_length()
        else:
            chosen = _ends(after).start if after else bounds.end
        return min(max(chosen, bounds.start), bounds.end)


def _nearest(bits: int, wanted: int) -> int:
    """Returns the bit of an integer that is nearest to the wanted one; of two the lower one."""
    lower = bits & (1 << max(wanted, 0)) - 1
    higher = bits ^ lower
    first, second = lower.bit_length() - 1, _ends(higher).start
    return first if lower and (not higher or wanted - first <= second - wanted) else second
