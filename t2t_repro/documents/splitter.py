"""`Splitter`: finds the sentences of texts by the rules of a language, and splits those that are too long for a model.

The rules are those of sentencex, for about 300 languages. A line end always ends a sentence. A sentence that is too
long is split near its middle: at a mark between clauses, otherwise at a space, otherwise between two characters; its
parts again, until each fits.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from t2t_repro.documents.document import Document, Span
from t2t_repro.documents.marked import MarkedPlaces

WINDOW = 4_096  # characters that sentencex gets: it takes time quadratic in them
MOST_JOINED = 64  # code points of a character that is not split
_LINE = re.compile("[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_SPACE = re.compile(r"\s")
_MARKS = "\u3001\uff0c\uff1b\uff1a\u3002\uff01\uff1f\u1362\u1363\u1364\u1365"  # a clause ends after one of them
_BREAK = re.compile(rf"\s+|(?<=[{_MARKS}])")
_CLOSING = frozenset(".!?,;:)]\u2026\u060c\u061b\u061f\u2013\u2014" + _MARKS)  # or after one of them and a space
_OPENING = frozenset("([\u2013\u2014")  # or before a space and one of them
_LANGUAGE = re.compile(r"([a-z]{2,3})([-_][a-z0-9]{1,8})*", re.IGNORECASE)

Count = Callable[[Sequence[str]], Sequence[int]]


class Splitter:
    """Splits texts into sentences of at most a number of tokens. Instances are thread-safe."""

    def __init__(self, language: str, max_tokens: int, count: Count | None = None):
        """Takes a language code such as "en"; "" has general rules, and so has a language that sentencex lacks.

        Args:
          language: of the texts.
          max_tokens: of a sentence, with the end-of-sentence token.
          count: returns the number of tokens of each text, with the end-of-sentence token. None means `token_bound`.

        Raises ValueError if `language` is not a code, or if sentencex is not installed.
        """
        must_be_installed()
        code = _LANGUAGE.fullmatch(language) if isinstance(language, str) else None
        if language != "" and code is None:
            raise ValueError(f"language must be an ISO 639 code such as 'en' or 'pt-BR', got {language!r:.40}")
        import sentencex

        self._segment = sentencex.segment
        self._language = code[1].lower() if code else ""
        self._max_tokens, self._count = max_tokens, count

    def __call__(self, texts: Sequence[str]) -> list[Document]:
        """Returns the document of each text. A single character is never split, however many tokens it has."""
        spans: list[list[Span]] = [[] for _ in texts]
        left = [(number, span) for number, text in enumerate(texts) for span in self._sentences(text)]
        while left:
            lengths = self._lengths([texts[number][slice(*span)] for number, span in left])
            parts: list[tuple[int, Span]] = []
            for (number, span), length in zip(left, lengths, strict=True):
                if length <= self._max_tokens or span[1] - span[0] == 1:
                    spans[number].append(span)
                else:
                    parts += [(number, part) for part in _halves(texts[number], *span)]
            left = parts
        return [Document(text, tuple(sorted(found))) for text, found in zip(texts, spans, strict=True)]

    def marked(self, texts: Sequence[str]) -> list[Document]:
        """Returns the document of each text with markup: see `documents.marked`."""
        every = [MarkedPlaces(text) for text in texts]
        plain = self([each.plain for each in every])
        return [each.document(sentences) for each, sentences in zip(every, plain, strict=True)]

    def _sentences(self, text: str) -> Iterator[Span]:
        """Yields the sentences of all lines. One of `WINDOW` characters or more is split at a space, if it has one."""
        for line in _LINE.finditer(text):
            start, end = line.span()
            while start < end:
                stop = min(start + WINDOW, end)
                lengths = self._segments(text[start:stop])
                if stop < end and len(lengths) > 1:
                    lengths.pop()  # the window may end inside of it
                elif stop < end:
                    spaces = [each.end() for each in _SPACE.finditer(text, start, stop)]
                    lengths = [(spaces[-1] if spaces else _between_characters(text, stop, end)) - start]
                for length in lengths:
                    yield from _stripped(text, start, start + length)
                    start += length

    def _segments(self, text: str) -> list[int]:
        """Returns the lengths of the sentences of a line, with the space after them. Their sum is that of the text."""
        plain = _SPACE.sub(" ", text)  # sentencex 1.0.32 panics at a space of several bytes after a sentence
        try:
            found = self._segment(self._language, plain)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust code, which is not an Exception
                raise
            found = []
        return [len(sentence) for sentence in found] if "".join(found) == plain else [len(text)]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each text, or a bound on it that is at most `max_tokens`."""
        lengths = [token_bound(text) for text in texts]
        if self._count is not None:
            unsure = [number for number, length in enumerate(lengths) if length > self._max_tokens]
            for number, length in zip(unsure, self._count([texts[number] for number in unsure]), strict=True):
                lengths[number] = length
        return lengths


def must_be_installed() -> None:
    """Raises ValueError, with the command that installs it, if sentencex is missing."""
    if importlib.util.find_spec("sentencex") is None:
        raise ValueError("sentencex is not installed; install it with: pip install 't2t_repro[documents]'")


def token_bound(text: str) -> int:
    """Returns a number of tokens that no vocabulary exceeds: one per byte, more for the escape of two characters, and
    the end-of-sentence token."""
    return len(text.encode("utf-8")) + 2 * text.count("\u2581") + text.count("\U00100000") + 1


def _halves(text: str, start: int, stop: int) -> list[Span]:
    """Returns two or more characters as two parts, without the space between them."""
    middle, quarter = (start + stop) // 2, (stop - start) // 4

    def preference(place: re.Match[str]) -> tuple[bool, int]:
        before, after = text[place.start() - 1], text[place.end()]
        distance = abs((place.start() + place.end()) // 2 - middle)
        clause = place.start() == place.end() or before in _CLOSING or after in _OPENING
        return not (clause and distance <= quarter), distance

    places = [each for each in _BREAK.finditer(text, start, stop) if start < each.start() and each.end() < stop]
    if places:
        first, second = min(places, key=preference).span()
    else:
        first = second = _between_characters(text, middle, stop)
    return [(start, first), (second, stop)]


def _between_characters(text: str, place: int, stop: int) -> int:
    """Returns the first place from `place` on that is not inside a character with its accents or a joined emoji.

    Returns `place` if that is one of more than `MOST_JOINED` code points.
    """
    for found in range(place, min(place + MOST_JOINED, stop)):
        if text[found] != "\u200d" != text[found - 1] and not unicodedata.category(text[found]).startswith("M"):
            return found
    return place


def _stripped(text: str, start: int, stop: int) -> Iterator[Span]:
    """Yields the span without the space at its ends, if there is more than space."""
    part = text[start:stop]
    inner = part.strip()
    if inner:
        first = start + len(part) - len(part.lstrip())
        yield first, first + len(inner)
