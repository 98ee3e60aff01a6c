"""Word alignments of documents: words and links are those of the sentences, numbered in the whole text."""

from __future__ import annotations

import math

import pytest

from t2t_repro.documents.aligned import aligned_document
from t2t_repro.documents.document import Document
from t2t_repro.text.translations import AlignedText
from t2t_repro.text.words import split_words


def aligned(source, text, links, log_p, score=-1.0):
    """A sentence whose words have one token each."""
    return AlignedText.of(text, score, source, links, list(range(len(split_words(text)))), log_p)


def test_words_and_links_count_in_the_whole_text():
    document = Document("  One cat.\n\nA dog came. ", ((2, 10), (12, 23)))
    first = aligned("One cat.", " Eine Katze.", [(0, 0), (1, 1)], [-0.5, -1.0], -2.0)
    second = aligned("A dog came.", "Da kam ein Hund.", [(2, 1), (0, 2), (1, 3)], [-0.1, -0.2, -0.3, -0.4])
    found = aligned_document(document, [first, second])
    assert found == ("  Eine Katze.\n\nDa kam ein Hund. ", -1.5)
    assert found.source_words == ["One", "cat.", "A", "dog", "came."]
    assert found.words == ["Eine", "Katze.", "Da", "kam", "ein", "Hund."]
    assert found.pharaoh == "0-0 1-1 4-3 2-4 3-5"
    assert found.probabilities == pytest.approx([*first.probabilities, *second.probabilities])
    assert found.tokens == 6 and found.confidence == pytest.approx(math.exp(-2.5 / 6))
    assert [each.source for each in found.sentences] == ["One cat.", "A dog came."]
    assert [each.confidence for each in found.sentences] == [first.confidence, second.confidence]


def test_sentences_without_a_space_share_a_word():
    document = Document("x1x2 y\u3000z", ((0, 2), (2, 4), (5, 6), (7, 8)))
    parts = [aligned(each, each.upper(), [(0, 0)], [math.log(0.5)]) for each in document.sentences]
    found = aligned_document(document, parts)
    assert found.words == ["X1X2", "Y\u3000Z"] and found.source_words == ["x1x2", "y\u3000z"]
    assert found.pharaoh == "0-0 1-1" and found.probabilities == pytest.approx([0.25, 0.25])


def test_chinese_source_gets_spaces_in_the_translation():
    document = Document("\u597d\u3002\u662f\u3002", ((0, 2), (2, 4)))
    found = aligned_document(document, [aligned(each, "Yes.", [(0, 0)], [-1.0]) for each in document.sentences])
    assert found.text == "Yes. Yes." and found.pharaoh == "0-0 0-1"


def test_nothing_to_translate():
    empty = aligned_document(Document(" \n", ()), [])
    assert empty == (" \n", 0.0) and (empty.words, empty.links, empty.confidence, empty.tokens) == ([], [], 1.0, 0)
    assert empty.to_json()["sentences"] == []
    lost = aligned_document(
        Document("a b", ((0, 1), (2, 3))), [aligned("a", "", [], []), aligned("b", "B", [], [-1e4])]
    )
    assert lost == (" B", -1.0) and lost.to_json()["confidence"] == 0.0 and lost.probabilities == [0.0]


def test_a_document_without_translated_words_is_not_certain():
    document = Document("a b", ((0, 1), (2, 3)))
    empty = [aligned(source, "", [], [], math.log(p)) for source, p in (("a", 0.2), ("b", 0.05))]
    assert aligned_document(document, empty).confidence == pytest.approx(0.1)
    assert aligned_document(Document("a", ((0, 1),)), empty[:1]).confidence == pytest.approx(0.2)
