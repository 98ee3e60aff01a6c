"""Word alignments of long text: the words and links of its sentences, numbered in the whole text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from t2t_repro.documents.document import Document, joined
from t2t_repro.documents.marked import MarkedDocument
from t2t_repro.text.translations import AlignedText, Sentence
from t2t_repro.text.words import SPACES, split_words

_LEAST = 5e-324  # a confidence that is rounded to 0


def aligned_document(document: Document, sentences: Sequence[AlignedText]) -> AlignedText:
    """Returns a translation of a document, by those of its sentences.

    Two sentences without a space between them share a word, whose probability is the product. With markup they do not:
    the words are those of each sentence, one after the other. The confidence is the geometric mean of the probabilities
    of all tokens; without tokens, of the confidences of the sentences.
    """
    found = AlignedText(joined(document, sentences))
    if isinstance(document, MarkedDocument):
        found.source_words = [word for sentence in sentences for word in sentence.source_words]
        found.words = [word for sentence in sentences for word in sentence.words]
        firsts = _one_after_the_other(sentences)
    else:
        found.source_words, found.words = split_words(document.text), split_words(found.text)
        firsts = _in_the_text(document, sentences)
    found.probabilities = [1.0] * len(found.words)
    links = []
    for (source, target), sentence in zip(firsts, sentences, strict=True):
        links += [(source + one, target + other) for one, other in sentence.links]
        for place, probability in enumerate(sentence.probabilities, start=target):
            found.probabilities[place] *= probability
    found.links = list(dict.fromkeys(links))
    found.tokens = sum(sentence.tokens for sentence in sentences)
    weights = [sentence.tokens if found.tokens else 1 for sentence in sentences]
    weighted = zip(weights, sentences, strict=True)
    log_p = sum(weight * math.log(sentence.confidence or _LEAST) for weight, sentence in weighted)
    found.confidence = math.exp(log_p / max(1, sum(weights)))
    both = zip(document.sentences, sentences, strict=True)
    found.sentences = [Sentence(source, each.text, each.confidence) for source, each in both]
    return found


def _one_after_the_other(sentences: Sequence[AlignedText]) -> Iterator[tuple[int, int]]:
    """Yields the numbers of the first source word and the first target word of each sentence."""
    source = target = 0
    for sentence in sentences:
        yield source, target
        source, target = source + len(sentence.source_words), target + len(sentence.words)


def _in_the_text(document: Document, sentences: Sequence[AlignedText]) -> Iterator[tuple[int, int]]:
    """Yields the same, where two sentences may share a word."""
    *pieces, _ = document.pieces([sentence.text for sentence in sentences])
    sources, targets, before = _Counter(), _Counter(), 0
    for (start, stop), space, translation in zip(document.spans, pieces[::2], pieces[1::2], strict=True):
        sources.add(document.text[before:start])
        targets.add(space)
        yield sources.add(document.text[start:stop]), targets.add(translation)
        before = stop


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
