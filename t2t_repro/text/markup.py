"""Markup: tags, placeholders and addresses are taken out of a text, and put back into its translation.

    line = MarkedText("Click <b>here</b> to see &lt;{0}&gt;")
    line.text                               what the model translates: "Click here to see <{0}>"
    line.restored(translation, links)       the translation with the tags, by its word links

`text.pieces` says what these are. Placeholders, addresses and elements that are not to be translated are words that the
translation has exactly as they are. An entity such as `&amp;` is its character for the model.

In the translation, every tag occurs once. The elements have the parents that they have in the source; siblings follow
the order of the translation. Without its tags and with entities as characters, the result is the translation.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from t2t_repro.text.glossary import is_word_character
from t2t_repro.text.pieces import SEPARATE, VOID, Piece, escape_of, partners_of, pieces_of
from t2t_repro.text.placement import Element, Span, Unit, spans, unit_links, units
from t2t_repro.text.stand_ins import Found, Kept, chosen, find, words_with
from t2t_repro.text.translations import AlignedText, Link
from t2t_repro.text.words import SPACES, around


class MarkedText:
    """One line with markup. Instances are thread-safe.

    `text` is the line without tags, for the model. Of white space on both sides of a tag, the first is kept. Tags of
    paragraphs, lines, lists and tables separate words. A line with markup and without letters or digits beside
    placeholders has the text "", and stays as it is.
    """

    def __init__(self, line: str):
        self.line = line
        pieces = pieces_of(line)
        self._has_markup = any(piece.kind != "text" for piece in pieces)
        self._escape = escape_of(pieces)
        builder = _Builder(pieces)
        self._kept = builder.kept
        places = {each.start: each.end for each in self._kept}
        cuts = {place for each in builder.elements for place in (each.first, each.last)}
        self._units = units(builder.text, cuts | set(places) | set(places.values()), places)
        starts = [unit.start for unit in self._units]
        self._elements = [
            replace(each, first=bisect.bisect_left(starts, each.first), last=bisect.bisect_left(starts, each.last))
            for each in builder.elements
        ]
        self._places = {place: number for number, place in enumerate(starts)}
        is_empty = not any(character.isalnum() for unit in self._units if not unit.kept for character in unit.text)
        self.text = "" if self._has_markup and is_empty else builder.text

    def restored(self, translation: str, links: Sequence[Link]) -> str:
        """Returns the translation of `text` with the tags, placeholders, addresses and entities of the line.

        `links` are pairs of a word of `text` and a word of the translation, in the order of the translation.
        """
        if not self._has_markup:
            return translation
        if not self.text:
            return self.line
        found = find(self.text, self._kept, translation, links)
        elements, placed, target, outside = self._placed(translation, links, found)
        for left_out in (outside, {kept for kept in self._kept if kept.is_element}):
            if outside:  # the second time of others: then no element is where it was found
                found = [each._replace(kept=None) if each.kept in left_out else each for each in found]
                elements, placed, target, outside = self._placed(translation, links, found)
        return "".join(_rendered(elements, placed, target, _Text(translation, found, self._escape)))

    def _placed(
        self, translation: str, links: Sequence[Link], found: Sequence[Found]
    ) -> tuple[list[Element], list[Span], list[Unit], set[Kept]]:
        """Returns the elements and their spans among the units of the translation, these units, and the elements that
        are not to be translated and were found where the elements around them do not allow them.
        """
        ends = {start: end for start, end, _ in found}
        target = units(translation, {*ends, *ends.values()}, ends)
        linked = unit_links(self._units, target, links)
        by_start = {unit.start: number for number, unit in enumerate(target)}
        places = {kept: by_start[start] for start, _, kept in found if kept is not None}
        for kept, place in places.items():
            linked[self._places[kept.start]] = 1 << place
        elements, points = list(self._elements), {}
        for kept in self._kept:
            if kept in places:
                continue
            if kept.is_element:
                number, parent = kept.parent, elements[kept.parent].parent
                elements[number] = self._point(kept._replace(parent=parent))
            else:
                number, parent = len(elements), kept.parent
                elements.append(self._point(kept))
            points[number] = kept, parent
        placed = spans(elements, linked, len(target))
        for number, (kept, parent) in points.items():
            elements[number] = self._with_spaces(kept, elements[number], placed[number], placed[parent], target)
        spans_of = {kept: placed[kept.parent] for kept in places if kept.is_element}
        outside = {kept for kept, span in spans_of.items() if not span.start <= places[kept] < span.end}
        return elements, placed, target, outside

    def translation(self, found: AlignedText) -> AlignedText:
        """Returns a translation of `text` as one of the line: the text has the markup, and the words are `words`."""
        own = {"source_words": self.source_words, "words": self.words(found.text, found.links)}
        return found.replaced(self.restored(found.text, found.links), **own)

    @property
    def source_words(self) -> list[str]:
        """The words of `text`, with the placeholders and addresses of the line."""
        return words_with(self.text, [Found(kept.start, kept.end, kept) for kept in self._kept] if self.text else [])

    def words(self, translation: str, links: Sequence[Link]) -> list[str]:
        """Returns the words of the translation of `text`, with the placeholders and addresses that it has."""
        return words_with(translation, find(self.text, self._kept, translation, links) if self.text else [])

    def _point(self, kept: Kept) -> Element:
        """Returns the point at which a placeholder is put that the translation lacks."""
        number = self._places[kept.start]
        before, after = around(self.text, kept.start, kept.end)
        leans_left = bool(before.strip()) and not after.strip()
        return Element(kept.raw, "", kept.parent, number, number + 1, is_point=True, leans_left=leans_left)

    def _with_spaces(self, kept: Kept, point: Element, place: Span, parent: Span, target: Sequence[Unit]) -> Element:
        """Returns the point with a space between the placeholder and the words beside it."""
        if point.leans_left or place.end == parent.end:
            before, _ = around(self.text, kept.start, kept.end)
            separate = place.start and before and (not before.strip() or is_word_character(before))
            return replace(point, opening=f" {kept.raw}" if separate else kept.raw)
        previous, following = target[max(place.end - 1, 0) : place.end], target[place.end : place.end + 1]
        joined = previous and following and previous[0].end == following[0].start
        before = " " if joined and is_word_character(previous[0].text[-1]) else ""
        after = " " if following and is_word_character(following[0].text[0]) else ""
        return replace(point, opening=f"{before}{kept.raw}{after}")


class _Builder:
    """The text for the model, its elements with places in the text, and what is kept."""

    def __init__(self, pieces: Sequence[Piece]):
        self.elements = [Element("", "", -1, 0, 0)]
        self.kept: list[Kept] = []
        self._parts: list[str] = []
        self._length, self._last = 0, ""
        self._added_spaces: set[int] = set()
        self._is_after_tag = self._separates = False
        text = "".join(piece.text for piece in pieces)
        stand_ins = chosen((piece.raw for piece in pieces if piece.kind == "kept"), text)
        partners = partners_of(pieces)
        closing = set(partners.values())
        parents = [0]
        for number, piece in enumerate(pieces):
            if piece.kind in ("text", "entity", "kept"):
                text = stand_ins[piece.raw] if piece.kind == "kept" else piece.text
                self._add(text)
                if piece.kind == "kept":
                    start, parent, is_element = self._length - len(text), parents[-1], bool(piece.name)
                    if is_element:  # one without tags, so that others are beside it or around it
                        self.elements.append(Element("", "", parent, start, self._length))
                        parent = len(self.elements) - 1
                    self.kept.append(Kept(piece.raw, start, self._length, parent, is_element))
                continue
            place = self._length
            if number in closing:
                self.elements[parents.pop()].last = place
            elif number in partners:
                closing_tag = pieces[partners[number]].raw
                self.elements.append(Element(piece.raw, closing_tag, parents[-1], place, place))
                parents.append(len(self.elements) - 1)
            else:
                how = {"in_order": piece.kind == "tag" and not piece.is_alone}
                how["is_half"] = how["in_order"] and piece.name not in VOID
                self.elements.append(Element(piece.raw, "", parents[-1], place, place, True, piece.closes, **how))
            self._is_after_tag = True
            self._separates |= piece.name in SEPARATE
        text = "".join(self._parts)
        self.text = text.rstrip(SPACES) if self._is_after_tag else text
        self.elements[0].last = len(self.text)
        for each in self.elements:
            if each.is_point:
                before, after = (bool(side.strip()) for side in around(self.text, each.first, each.first))
                after |= each.first in self._added_spaces
                each.leans_left = before if before != after else each.leans_left

    def _add(self, text: str) -> None:
        if self._is_after_tag:
            if not self._last.strip(SPACES):
                text = text.lstrip(SPACES)
            elif self._separates and text[:1].strip(SPACES):
                self._added_spaces.add(self._length)
                text = f" {text}"
        if text:
            self._parts.append(text)
            self._length, self._last = self._length + len(text), text[-1]
            self._is_after_tag = self._separates = False


class _Text:
    """A translation that is read from its start to its end."""

    def __init__(self, text: str, found: Sequence[Found], escape: Callable[[str], str]):
        self.length = len(text)
        self._text, self._found, self._escape = text, list(reversed(found)), escape
        self._place = 0

    def until(self, place: int) -> Iterator[str]:
        """Yields what has not been read before `place`, escaped, with placeholders and addresses in their places.

        What is left out between two spaces takes one of them with it.
        """
        while self._found and self._found[-1].start < place:
            start, end, kept = self._found.pop()
            text = self._text[self._place : start]
            before, after = around(self._text, start, end)
            if kept is None and not (before + after).strip(SPACES):
                text, end = text if after else text.removesuffix(before), end + len(after)
            yield self._escape(text)
            yield kept.raw if kept else ""
            self._place = end
        if place > self._place:
            yield self._escape(self._text[self._place : place])
            self._place = place


def _rendered(
    elements: Sequence[Element], placed: Sequence[Span], target: Sequence[Unit], text: _Text
) -> Iterator[str]:
    """Yields the parts of a translation with its elements. Tags have no space between them and their text."""
    children: dict[int, list[int]] = {}
    for number in sorted(range(1, len(elements)), key=lambda each: elements[each].first):
        children.setdefault(elements[number].parent, []).append(number)

    def in_order(number: int) -> Iterator[int]:
        return iter(sorted(children.get(number, ()), key=lambda each: (placed[each].start, placed[each].end)))

    opened = [(0, in_order(0))]
    while opened:
        number, rest = opened[-1]
        child = next(rest, None)
        if child is None:
            opened.pop()
            start, end = placed[number]
            if end > start:
                yield from text.until(target[end - 1].end)
            yield elements[number].closing
            continue
        start, end = placed[child]
        leans_left = start == end and (elements[child].leans_left or start == placed[number].end)
        if leans_left and start:
            yield from text.until(target[start - 1].end)
        elif not leans_left and start < len(target):
            yield from text.until(target[start].start)
        yield elements[child].opening
        opened.append((child, in_order(child)))
    yield from text.until(text.length)
