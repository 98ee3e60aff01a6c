"""Joining of translated sentences: paragraphs and white space of the source stay."""

from __future__ import annotations

import pytest

from t2t_repro.documents.document import Document, ranked, translated
from t2t_repro.documents.document import joined as joined_pairs
from t2t_repro.documents.splitter import Splitter


def joined(text, translations, language="en"):
    (document,) = Splitter(language, 1_000)([text])
    return document.joined(translations)


@pytest.mark.parametrize(
    ("text", "translations", "expected"),
    [
        ("  One.  Two.\tThree.\r\n\r\n\u3000Four.\n", ["A.", "B.", "C.", "D."], "  A.  B.\tC.\r\n\r\n\u3000D.\n"),
        ("One. Two.", [" A. ", "B.\n"], "A. B."),
        ("One. Two.", ["two\r\nlines\nand three", "B."], "two lines and three B."),
        ("One. Two.", ["", "B."], " B."),
        ("你好。今天天气很好!是吗?", ["Hello.", "Fine!", "Is it?"], "Hello. Fine! Is it?"),
        ("यह एक है।यह दो है।", ["One.", "Two."], "One. Two."),
        ("你好。今天天气很好!", ["こんにちは。", "いい天気!"], "こんにちは。いい天気!"),
        ("Hello. Fine! Is it?", ["你好。", "很好\uff01", "是吗?"], "你好。很好\uff01是吗?"),
        ("Hello.\nFine!", ["你好。", "很好!"], "你好。\n很好!"),
        ("Hello. Fine!", ["안녕하세요.", "좋아요!"], "안녕하세요. 좋아요!"),
        (" \n\t", [], " \n\t"),
        ("", [], ""),
    ],
)
def test_white_space_of_the_source_stays(text, translations, expected):
    assert joined(text, translations) == expected


def test_word_that_was_too_long_is_joined_without_a_space():
    (document,) = Splitter("en", 20)(["x" * 50])
    assert document.joined([part.upper() for part in document.sentences]) == "X" * 50


def test_every_sentence_needs_a_translation():
    document = Document("One. Two.", ((0, 4), (5, 9)))
    for translations in (["A."], ["A.", "B.", "C."]):
        with pytest.raises(ValueError):
            document.joined(translations)


def test_sentences_of_all_texts_are_translated_in_one_call():
    calls, reports, done = [], [], []

    def answer(texts, report, advance):
        calls.append(texts)
        report(2, "has 17 terms")
        for _ in texts:
            advance(1)
        return [[(text.upper(), -1.0), ("second", -2.0)] for text in texts]

    texts = ["One. Two.", "", "Three.\n\nFour. Five.", " "]
    both = (lambda *found: reports.append(found)), done.append
    found = translated(texts, Splitter("en", 100), answer, *both)
    best, others = [some[0] for some in found], [some[1:] for some in found]
    assert best == [("ONE. TWO.", -1.0), ("", 0.0), ("THREE.\n\nFOUR. FIVE.", -1.0), (" ", 0.0)]
    assert others == [[("second second", -2.0)], [], [("second\n\nsecond second", -2.0)], []]
    assert calls == [["One.", "Two.", "Three.", "Four.", "Five."]]
    assert reports == [(2, "has a sentence that has 17 terms")]
    assert sum(done) == 4 and len(done) == 5


def test_sentences_with_fewer_translations_repeat_their_last():
    document = Document("a. b.", ((0, 2), (3, 5)))
    found = ranked(document, [[("A.", -1.0)], [("B.", -1.0), ("C.", -3.0), ("D.", -4.0)]], joined_pairs)
    assert found == [("A. B.", -1.0), ("A. C.", -2.0), ("A. D.", -2.5)]
    assert ranked(Document(" ", ()), [], joined_pairs) == [(" ", 0.0)]
