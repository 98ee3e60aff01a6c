"""Translations with their scores: those that differ, and those whose words are aligned with words of the source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from t2t_repro.text.words import split_words

Link = tuple[int, int]  # number of the source word, number of the target word, from 0
_Scored = TypeVar("_Scored", bound=tuple[str, float])


def links_of(pharaoh: str) -> list[Link]:
    """Returns the links in Pharaoh format, `0-0 1-2`."""
    pairs = (each.split("-") for each in pharaoh.split())
    return [(int(source), int(target)) for source, target in pairs]


def distinct(hypotheses: Sequence[_Scored], n: int) -> list[_Scored]:
    """Returns the first n that differ. Texts that differ only in leading or trailing space count as one."""
    first: dict[str, _Scored] = {}
    for each in hypotheses:
        first.setdefault(each[0].strip(), each)
    return list(first.values())[:n]


class Sentence(NamedTuple):
    """A sentence of a document and its translation."""

    source: str
    text: str
    confidence: float


class AlignedText(tuple[str, float]):
    """A translation and its score, as a pair, with its word alignment and the probabilities of its words."""

    source_words: list[str]  # without markup, but with placeholders and addresses
    words: list[str]
    links: list[Link]  # in the order of the translation
    probabilities: list[float]  # of each word: the product over its tokens, each given the previous ones and the source
    confidence: float  # the geometric mean of the probabilities of the tokens
    tokens: int  # the number of these tokens, without EOS
    sentences: Sequence[Sentence] | None = None  # of a document

    @classmethod
    def of(cls, text: str, score: float, source: str, links: Sequence[Link], words_L: Any, log_p_L: Any) -> AlignedText:
        """Returns the translation `text` of `source`. `words_L` are the words of its tokens, -1 for none."""
        found = cls((text, score))
        found.source_words, found.words, found.links = split_words(source), split_words(text), list(links)
        sums = [0.0] * len(found.words)
        for word, log_p in zip(words_L, log_p_L, strict=True):
            if 0 <= word < len(sums):
                sums[word] += log_p
        found.probabilities = [math.exp(min(each, 0.0)) for each in sums]
        mean = sum(log_p_L) / len(log_p_L) if len(log_p_L) else score
        found.confidence = math.exp(min(mean, 0.0))
        found.tokens = len(log_p_L)
        return found

    def replaced(self, text: str, **attributes: Any) -> AlignedText:
        """Returns the same translation with another text and other attributes."""
        found = AlignedText((text, self.score))
        vars(found).update(vars(self) | attributes)
        return found

    @property
    def text(self) -> str:
        return self[0]

    @property
    def score(self) -> float:
        return self[1]

    @property
    def pharaoh(self) -> str:
        """The links in Pharaoh format: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.links)

    def to_json(self) -> dict[str, Any]:
        """Returns the translation as JSON values. Only that of a document has `sentences`."""
        found = {
            "text": self.text,
            "score": round(self.score, 4),
            "confidence": round(self.confidence, 4),
            "source_words": self.source_words,
            "words": self.words,
            "probabilities": [round(each, 4) for each in self.probabilities],
            "alignment": [list(link) for link in self.links],
        }
        return found | ({"sentences": sentences_json(self.sentences)} if self.sentences is not None else {})


def sentences_json(sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
    """Returns sentences as JSON values."""
    return [each._asdict() | {"confidence": round(each.confidence, 4)} for each in sentences]


# Outputs of an export that aligns words, beside "outputs" and "scores", and those that a server adds to texts with
# markup: the arguments `alignment` of `of_outputs`.
ALIGNMENT_OUTPUTS = ("alignments", "word_confidences", "confidences", "num_tokens")
WORDS = ("source_words", "words")


def of_outputs(source: str, output: bytes, score: float, *alignment: Any) -> tuple[str, float]:
    """Returns a translation of `source` from the outputs of an export: an `AlignedText` if they have an alignment."""
    text = output.decode("utf-8", "replace")
    if not alignment:
        return text, score
    links, probabilities, confidence, tokens, *words = alignment
    found = AlignedText((text, score))
    found.source_words, found.words = words or (split_words(source), split_words(text))
    found.links = links_of(links.decode())
    numbers = [float(each) for each in probabilities.split()]
    found.probabilities = (numbers + [0.0] * len(found.words))[: len(found.words)]
    found.confidence, found.tokens = confidence, tokens
    return found
