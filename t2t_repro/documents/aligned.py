"""Word alignments of long text: the words and links of its sentences, numbered in the whole text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from t2t_repro.documents.document import Document, joined
from t2t_repro.text.translations import AlignedText
from t2t_repro.text.words import SPACES, split_words

_LEAST = 5e-324  # a confidence that is rounded to 0


def aligned_document(document: Document, sentences: Sequence[AlignedText]) -> AlignedText:
    """Returns a translation of a document, by those of its sentences.

    Two sentences without a space between them share a word, whose probability is the product. The confidence is the
    geometric mean of the probabilities of all tokens.
    """
    *pieces, end = document.pieces([sentence.text for sentence in sentences])
    found = AlignedText(joined(document, sentences))
    found.source_words, found.words = split_words(document.text), split_words(found.text)
    found.probabilities = [1.0] * len(found.words)
    sources, targets, links, before = _Counter(), _Counter(), [], 0
    for number, ((start, stop), sentence) in enumerate(zip(document.spans, sentences, strict=True)):
        sources.add(document.text[before:start])
        targets.add(pieces[2 * number])
        source, target = sources.add(document.text[start:stop]), targets.add(pieces[2 * number + 1])
        links += [(source + one, target + other) for one, other in sentence.links]
        for place, probability in enumerate(sentence.probabilities, start=target):
            found.probabilities[place] *= probability
        before = stop
    found.links = list(dict.fromkeys(links))
    found.tokens = sum(sentence.tokens for sentence in sentences)
    log_p = sum(sentence.tokens * math.log(sentence.confidence or _LEAST) for sentence in sentences)
    found.confidence = math.exp(log_p / max(1, found.tokens))
    return found


class _Counter:
    """Counts the words of a text that is added part by part."""

    def __init__(self) -> None:
        self._words, self._inside = 0, False

    def add(self, text: str) -> int:
        """Returns the number of the first word of `text`, from 0."""
        first = self._words - (self._inside and text[:1] not in SPACES)
        self._words = first + len(split_words(text))
        self._inside = text[-1] not in SPACES if text else self._inside
        return first
