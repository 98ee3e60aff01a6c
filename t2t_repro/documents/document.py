"""`Document`: a text of any number of paragraphs as its sentences and the white space around them.

    "Hello.  How are you?\\n\\nFine.\\n"      sentences "Hello.", "How are you?", "Fine."
    "Hallo.  Wie geht es?\\n\\nGut.\\n"       joined from their translations

Only white space lies outside of the sentences, so nothing of the text is lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from t2t_repro.text.glossary import WITHOUT_SPACES

Span = tuple[int, int]  # the place of a sentence in its text, as of a slice
Pair = tuple[str, float]  # a translation and its score
ReportText = Callable[[int, str], None]  # the number of a text, from 0, and a message: "has 2,000 tokens; ..."
Advance = Callable[[int], None]  # the number of texts just translated

Join = Callable[["Document", Sequence[Any]], Pair]  # a translation of a document, by those of its sentences

# Scripts whose sentences follow one another without a space, and full stops after which other scripts leave it out.
_NO_SPACE = re.compile(f"[{WITHOUT_SPACES}\u3000-\u303f\uff00-\uffef\u0964\u0965\u1362-\u1368]")
_LINE_END = re.compile("[\n\r\v\f]+")


@dataclass(frozen=True)
class Document:
    """A text and the places of its sentences, which are in order, not empty, and neither start nor end with space."""

    text: str
    spans: tuple[Span, ...]

    @property
    def sentences(self) -> list[str]:
        return [self.text[start:stop] for start, stop in self.spans]

    def joined(self, translations: Sequence[str]) -> str:
        """Returns the text with each sentence replaced by its translation: `pieces`, joined."""
        return "".join(self.pieces(translations))

    def pieces(self, translations: Sequence[str]) -> list[str]:
        """Returns the white space before each translation and the translation, alternating, and the space at the end.

        White space stays as it is, with two exceptions. Sentences of a script without spaces are separated by one
        space, and no single space follows a full-width mark such as U+3002 at the end of a translation. A line end
        inside a translation becomes a space. Raises ValueError unless there is one translation for each sentence.
        """
        found: list[str] = []
        end, before = 0, ""  # the sentence before
        for sentence, (start, stop), translation in zip(self.sentences, self.spans, translations, strict=True):
            between = self.text[end:start]
            found += [
                self._between(between, before, sentence, found[-1]) if found else between,
                self.in_one_line(translation).strip(" \t"),
            ]
            end, before = stop, sentence
        return [*found, self.text[end:]]

    @staticmethod
    def in_one_line(translation: str) -> str:
        return _LINE_END.sub(" ", translation)

    def _between(self, between: str, before: str, after: str, translation: str) -> str:
        """Returns what stands after the translation of the sentence `before`, in place of what stood `between` it and
        the sentence `after`."""
        if between not in ("", " ") or not translation:
            return between
        if _is_wide_mark(translation[-1]):
            return ""
        return " " if _NO_SPACE.match(before[-1:]) or _NO_SPACE.match(after) else between


def joined(document: Document, sentences: Sequence[Pair]) -> Pair:
    """Returns a translation of a document and the mean of the scores of its sentences, 0 without any."""
    scores = [score for _, score in sentences]
    return document.joined([text for text, _ in sentences]), sum(scores) / max(1, len(scores))


def ranked(document: Document, found: Sequence[Sequence[Pair]], join: Join) -> list[Pair]:
    """Returns the translations of a document, best first, by those of each of its sentences.

    Number n has translation n of each sentence, or the last one of a sentence with fewer.
    """
    most = max(map(len, found), default=1)
    return [join(document, [some[min(number, len(some) - 1)] for some in found]) for number in range(most)]


def translated(
    texts: Sequence[str],
    split: Callable[[Sequence[str]], list[Document]],
    answer: Callable[..., Sequence[Sequence[Pair]]],
    report: ReportText | None = None,
    advance: Advance | None = None,
    join: Join = joined,
) -> list[list[Pair]]:
    """Returns the translations of each text with their scores, best first: see `ranked`.

    The sentences of all texts are translated in one call.

    Args:
      texts: of any number of sentences and paragraphs.
      split: returns the documents of the texts: a `Splitter`.
      answer: returns the translations of each sentence, best first, as `Translator.n_best` does.
      report: called with the number of a text, and a message about one of its sentences.
      advance: called with the number of texts just translated, in proportion to their sentences.
      join: returns a translation of a document, by those of its sentences.
    """
    documents = split(texts)
    owners = [number for number, document in enumerate(documents) for _ in document.spans]
    options: dict[str, Any] = {}
    if report is not None:
        options["report"] = lambda number, what: report(owners[number], f"has a sentence that {what}")
    if advance is not None:
        options["advance"] = _in_proportion(advance, len(documents), len(owners))
    found = iter(answer([sentence for document in documents for sentence in document.sentences], **options))
    return [ranked(document, [next(found) for _ in document.spans], join) for document in documents]


def _in_proportion(advance: Advance, texts: int, sentences: int) -> Advance:
    """Returns a function of the number of sentences just translated that calls `advance` with the number of texts."""
    done = 0

    def of_sentences(number: int) -> None:
        nonlocal done
        before, done = done, done + number
        advance(done * texts // sentences - before * texts // sentences)

    return of_sentences


def _is_wide_mark(character: str) -> bool:
    wide = unicodedata.east_asian_width(character) in ("W", "F")
    return wide and unicodedata.category(character).startswith("P")
