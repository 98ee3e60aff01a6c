"""Long text with markup: the sentences that stand in it, each with the tags that belong to it.

    "<p>A <b>cat</b> &amp; {0}. <i>Two. Three</i>.</p>"     "A <b>cat</b> &amp; {0}.", "Two.", "Three</i>."

The sentences are found in the text without tags, with placeholders, addresses and elements that are not to be
translated as words. Tags of paragraphs, lines, lists and tables end a sentence. In a text with paragraphs, lists or
tables, a line end is a space, as in a browser, unless the text has `<pre>` or `<textarea>`. What stands between two
sentences stays as it is, so most tags are in none. A tag stands in a sentence if there is text of it on both sides, or
if only a tag separates it from the sentence that has its partner.
"""

from __future__ import annotations

import bisect
import html
import re
from collections.abc import Sequence

from t2t_repro.documents.document import Document, Span
from t2t_repro.text.pieces import SEPARATE, Piece, escape_of, has_markup, partners_of, pieces_of

_WORD = "XY"  # for a placeholder or an address
_LINE_END = re.compile(r"(?:(?<![ \t])[ \t]++)?[\n\r\v\f]\s*")  # each run of blanks is tried once
_SPACE = str.maketrans("\n\r\v\f", "    ")
_KEEPING = {"pre", "textarea"}


class MarkedPlaces:
    """A text with markup, and the text without it whose sentences are found, with the place of each character."""

    def __init__(self, text: str):
        self.text = text
        self._starts: list[int] = []  # of the characters of `plain`, in `text`
        self._ends: list[int] = []
        pieces = pieces_of(text)
        names = {piece.name for piece in pieces}
        is_wrapped = bool(names & (SEPARATE - {"br", "hr"})) and not names & _KEEPING
        places: list[tuple[int, int]] = []
        parts: list[str] = []
        place = 0
        for piece in pieces:
            end = place + len(piece.raw)
            places.append((place, end))
            is_text = piece.kind == "text"
            parts.append(piece.text.translate(_SPACE) if is_text and is_wrapped else _plain(piece))
            self._starts += range(place, end) if is_text else [place] * len(parts[-1])
            self._ends += range(place + 1, end + 1) if is_text else [end] * len(parts[-1])
            place = end
        self.plain = "".join(parts)
        self._elements = [(places[one], places[other]) for one, other in partners_of(pieces).items()]

    def document(self, plain: Document) -> MarkedDocument:
        """Returns the document whose sentences are those of `plain`, with their markup."""
        gaps: list[Span] = []  # of the sentences in `plain`
        spans: list[Span] = []
        for first, last in plain.spans:
            start = max(self._starts[first], spans[-1][1] if spans else 0)  # a placeholder may be split: the first part
            if start < self._ends[last - 1]:
                gaps.append((first, last))
                spans.append((start, self._ends[last - 1]))
        starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
        for (opening, _), (closing, end) in self._elements:
            one, other = (bisect.bisect_right(spans, tag, key=lambda span: span[0]) - 1 for tag in (opening, closing))
            opens_inside, closes_inside = (
                number >= 0 and tag < spans[number][1] for number, tag in ((one, opening), (other, closing))
            )
            if opens_inside and one == other and self._is_near(gaps[one][1], closing):
                stops[one] = max(stops[one], end)
            if closes_inside and not opens_inside and one == other - 1 and self._is_near(gaps[other][0], opening):
                starts[other] = min(starts[other], opening)
        return MarkedDocument(self.text, tuple(zip(starts, stops, strict=True)))

    def _is_near(self, number: int, tag: int) -> bool:
        """Returns true if no character of `plain` separates its gap `number` from a tag."""
        return bisect.bisect_left(self._starts, tag) == number


class MarkedDocument(Document):
    """A document whose sentences have markup. A line end inside a tag stays.

    If any of it has markup, `&` and `<` are escaped in translations of sentences that have none too.
    """

    @property
    def sentences(self) -> list[str]:
        return [self.in_one_line(sentence) for sentence in super().sentences]

    def pieces(self, translations: Sequence[str]) -> list[str]:
        if has_markup(self.text):
            both = zip(self.sentences, translations, strict=True)
            translations = [text if has_markup(one) else escape_of(pieces_of(one))(text) for one, text in both]
        return super().pieces(translations)

    def _between(self, between: str, before: str, after: str, translation: str) -> str:
        """Sees the text without tags. A space that was added stands before the first opening tag.

        Nothing changes beside a reference to a line end or a tab, such as `&#10;`, which is not in the text.
        """
        parts = pieces_of(between)
        if any(html.unescape(part.raw).isspace() for part in parts if part.kind == "whole"):
            return between
        space = "".join(map(_plain, parts))
        new = super()._between(space, *("".join(map(_plain, pieces_of(text))) for text in (before, after, translation)))
        if new == space:
            return between
        kept = [part for part in parts if part.kind != "text"]
        place = next((number for number, part in enumerate(kept) if not part.closes), len(kept))
        raws = [part.raw for part in kept]
        return "".join([*raws[:place], new, *raws[place:]])

    @staticmethod
    def in_one_line(translation: str) -> str:
        return "".join(
            piece.raw if piece.kind in ("tag", "whole", "kept") else _LINE_END.sub(" ", piece.raw)
            for piece in pieces_of(translation)
        )


def _plain(piece: Piece) -> str:
    if piece.kind in ("tag", "whole"):
        return "\n" if piece.name in SEPARATE else ""
    return _WORD if piece.kind == "kept" else piece.text
