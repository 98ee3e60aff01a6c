"""Splitting of long text: nothing is lost, and every part fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.documents import splitter
from t2t_repro.documents.splitter import Splitter, token_bound


def words(texts):
    """As many tokens as words and commas, and the end-of-sentence token."""
    return [len(text.replace(",", " ,").split()) + 1 for text in texts]


def sentences(text, language="en", max_tokens=1_000_000, count=None):
    (document,) = Splitter(language, max_tokens, count)([text])
    must_be_intact(text, document)
    return document.sentences


def must_be_intact(text, document):
    """Nothing but white space lies outside of the sentences, which have none at their ends."""
    assert document.text == text
    end = 0
    for start, stop in document.spans:
        assert end <= start < stop and not text[end:start].strip()
        assert text[start:stop] == text[start:stop].strip()
        end = stop
    assert not text[end:].strip()


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Mr. Smith came.  He left!\tWhy?", ["Mr. Smith came.", "He left!", "Why?"]),
        ("de", "Am 3. Oktober kam er z.B. an. Dann nicht.", ["Am 3. Oktober kam er z.B. an.", "Dann nicht."]),
        ("de-AT", "Am 3. Oktober kam er. Gut.", ["Am 3. Oktober kam er.", "Gut."]),
        ("zh", "你好。今天天气很好!", ["你好。", "今天天气很好!"]),
        ("hi", "यह एक है। यह दो है।", ["यह एक है।", "यह दो है।"]),
        ("", "One. Two.", ["One.", "Two."]),
        ("xx", "One. Two.", ["One.", "Two."]),
        ("en", "A title\r\n\r\n  The text. More\n", ["A title", "The text.", "More"]),
        ("en", "one\u2028two\x85three\x0bfour", ["one", "two", "three", "four"]),
        ("fr", "Bien\u00a0! Il part.\u00a0Elle reste.\u3000Fin.", ["Bien\u00a0!", "Il part.", "Elle reste.", "Fin."]),
        ("en", "", []),
        ("en", " \t\r\n\u3000\n", []),
        ("en", "...", ["..."]),
        ("en", "\x00\x01", ["\x00\x01"]),
    ],
)
def test_sentences_of_a_text(language, text, expected):
    assert sentences(text, language) == expected


def test_long_sentence_is_split_at_a_clause_near_its_middle():
    text = "when it rained, the old man and his dog stayed at home, and so did the cat"
    halves = ["when it rained, the old man and his dog stayed at home,", "and so did the cat"]
    assert sentences(text, max_tokens=15, count=words) == halves
    assert sentences(text, max_tokens=20, count=words) == [text]
    assert sentences("我们昨天去了,他们今天也去。", "zh", 40) == ["我们昨天去了,", "他们今天也去。"]
    assert sentences("one two (three four five)", max_tokens=5, count=words) == ["one two", "(three four five)"]


def test_without_a_clause_near_its_middle_it_is_split_at_a_space():
    assert sentences("a, b c d e f g h i", max_tokens=6, count=words) == ["a, b c d", "e f g h i"]
    assert sentences("1,000,000 birds", max_tokens=12) == ["1,000,000", "birds"]


def test_without_a_space_it_is_split_between_characters():
    parts = sentences("e\u0301" * 50 + "\U0001f469\u200d\U0001f467" * 20, max_tokens=30)
    assert all(token_bound(part) <= 30 for part in parts)
    assert not [part for part in parts if part[0] in "\u0301\u200d\U0001f467"]
    assert "".join(parts) == "e\u0301" * 50 + "\U0001f469\u200d\U0001f467" * 20
    assert sentences("\U0001f469", max_tokens=2) == ["\U0001f469"]  # never less than a character


def test_only_sentences_that_may_be_too_long_are_counted():
    counted = []

    def count(texts):
        counted.extend(texts)
        return words(texts)

    assert len(sentences("Short one. " * 5 + "Now a sentence of many letters.", max_tokens=20, count=count)) == 6
    assert counted == ["Now a sentence of many letters."]


ALPHABETS = [
    "ab. ",
    "Aa.,!?\"'() 1",
    ". \u00a0\u3000\u200b\t",
    "\r\n\x0b\x0c\x85\u2028 .x",
    "你好。,「」 a",
    "कख।॥ ",
    "กข ",
    "e\u0301\u200d\U0001f469\ufe0f",
    "\x00\x1c\x1f\ufeff\u2581\U00100000.",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.one_of(st.text(max_size=300), *(st.text(alphabet, max_size=300) for alphabet in ALPHABETS)),
    st.sampled_from(["en", "de", "fr", "zh", "ja", "hi", "th", "ar", "my", "am", ""]),
    st.sampled_from([2, 6, 20, 100]),
)
def test_nothing_is_lost(text, language, max_tokens):
    (document,) = Splitter(language, max_tokens)([text])
    must_be_intact(text, document)
    assert all(token_bound(part) <= max_tokens or len(part) == 1 for part in document.sentences)
    joined = document.joined(document.sentences)
    assert "".join(joined.split()) == "".join(text.split())
    assert joined == text or not text.isascii()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["a", "A.", "Mr.", " ", "x" * 30, "!", '"', "你。"]), max_size=300).map("".join))
def test_nothing_is_lost_between_windows(text):
    whole, splitter.WINDOW = splitter.WINDOW, 40
    try:
        (document,) = Splitter("en", 30)([text])
    finally:
        splitter.WINDOW = whole
    must_be_intact(text, document)


@pytest.mark.parametrize(
    "text",
    [each * ((1 << 19) // len(each.encode())) for each in ("x", ".", "Well, ", "\n", "\u0301", "好。")],
    ids=["letters", "marks", "clauses", "lines", "accents", "Chinese"],
)
def test_hostile_half_megabyte(text):
    (document,) = Splitter("en", 1_024)([text])
    must_be_intact(text, document)
    assert all(token_bound(part) <= 1_024 for part in document.sentences)


def test_windows_end_where_sentences_end(monkeypatch):
    text = " ".join(f"This is sentence {number}." for number in range(300))
    expected = sentences(text)
    monkeypatch.setattr(splitter, "WINDOW", 100)
    assert sentences(text) == expected and len(expected) == 300


def test_text_that_the_library_loses_is_kept(monkeypatch):
    import sentencex

    monkeypatch.setattr(sentencex, "segment", lambda language, text: ["lost"])
    assert sentences("One. Two.") == ["One. Two."]


def test_panic_of_the_library_leaves_the_text_whole(monkeypatch):
    class PanicException(BaseException):
        """As Rust code raises it: not an Exception."""

    def segment(language, text):
        raise PanicException if "Two" in text else KeyboardInterrupt

    monkeypatch.setattr("sentencex.segment", segment)
    assert sentences("One. Two.") == ["One. Two."]
    with pytest.raises(KeyboardInterrupt):
        sentences("One.")


@pytest.mark.parametrize("language", ["english", "e", "en us", "e\x00n"])
def test_language_is_a_code(language):
    with pytest.raises(ValueError, match="language must be an ISO 639 code such as 'en' or 'pt-BR', got '"):
        Splitter(language, 100)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        Splitter("en", 100)
    assert str(error.value) == "sentencex is not installed; install it with: pip install 't2t_repro[documents]'"
