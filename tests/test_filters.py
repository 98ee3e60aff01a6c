"""Filters: what each drops, in text of several scripts, and how they are written and refused."""

from __future__ import annotations

import pytest

from t2t_repro.filters import FILTERS, SCRIPTS, SCRIPTS_OF_LANGUAGE, normalized, num_words, predicates, resolve, script
from t2t_repro.problem import Problem, Trees

ORDINARY = [  # pairs that no filter drops, by the languages of their sides
    ("en", "de", "Two young men are talking.", "Zwei junge Männer unterhalten sich."),
    ("en", "ru", "She reads a book in the park.", "Она читает книгу в парке."),
    ("en", "el", "The weather is fine today.", "Ο καιρός είναι καλός σήμερα."),
    ("en", "ar", "The boy plays with the ball.", "الولد يلعب بالكرة."),
    ("en", "he", "We live near the sea.", "אנחנו גרים ליד הים."),
    ("en", "hi", "My name is Ravi Kumar.", "मेरा नाम रवि कुमार है।"),
    ("en", "ta", "I am learning Tamil now.", "நான் இப்போது தமிழ் கற்கிறேன்."),
    ("en", "zh", "I would like a cup of tea, please.", "请给我一杯茶，谢谢。"),
    ("en", "ja", "Tokyo is a very big city.", "東京はとても大きい都市です。"),
    ("en", "ko", "This cake is very good.", "이 케이크는 아주 맛있어요."),
    ("en", "th", "Where is the station?", "สถานีรถไฟอยู่ที่ไหน"),
    ("en", "ka", "Good morning, my friend.", "დილა მშვიდობისა, ჩემო მეგობარო."),
    ("en", "am", "He is in the house.", "እሱ ቤት ውስጥ ነው።"),
    ("sr", "en", "Он чита књигу.", "He is reading a book."),
    ("sr", "en", "On čita knjigu.", "He is reading a book."),
]


def dropped_by(source: str, target: str, *filters: str, languages: tuple[str, str] = ("en", "de")) -> str:
    """Returns the name of the first filter that drops the pair, or ""."""
    tests = predicates(resolve(filters, languages))
    return next((name for name, drops in tests.items() if drops((source, target))), "")


@pytest.mark.parametrize(("source_language", "target_language", "source", "target"), ORDINARY)
def test_ordinary_text_passes_every_filter(source_language, target_language, source, target):
    filters = [name for name in FILTERS if name not in ("duplicate", "overlap", "misaligned")]
    assert dropped_by(source, target, *filters, languages=(source_language, target_language)) == ""


@pytest.mark.parametrize(("source_language", "target_language", "source", "target"), ORDINARY)
def test_wrong_script_drops_swapped_sides(source_language, target_language, source, target):
    has_other = any(script(each) not in ("", "Latin") for each in source + target)
    found = dropped_by(target, source, "wrong_script", languages=(source_language, target_language))
    assert found == ("wrong_script" if has_other else "")


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("Москва is the capital of Russia", False),  # a name in another script
        ("Μόσχα, столица России", True),
        ("12:30 – 14:45", False),  # no letters
        ("ＦＵＬＬ ＷＩＤＴＨ", False),
        ("Ꭳ Ꮳ Ꮃ", True),
        ("ㇰ", True),
    ],
)
def test_wrong_script_counts_letters(text, is_wrong):
    assert bool(dropped_by(text, "Text", "wrong_script=Latin")) == is_wrong


def test_wrong_script_takes_several_scripts_and_both_orders():
    assert resolve(["wrong_script=Latin:Katakana+Han+Hiragana"], ("", "")) == (
        "wrong_script=Latin:Han+Hiragana+Katakana",
    )
    for languages in (("en", "ja"), ("en-US", "JA"), ("EN", "ja_JP")):
        assert resolve(["wrong_script"], languages) == ("wrong_script=Latin:Han+Hiragana+Katakana",)
    assert resolve(["wrong_script=Greek"], ("", "")) == ("wrong_script=Greek:Greek",)
    assert resolve(["wrong_script"], ("en", ""), has_trees=True) == ("wrong_script=Latin:Latin",)


@pytest.mark.parametrize(
    ("text", "is_dropped"),
    [
        ("a \ufffd b cde", True),  # a replacement character
        ("caf\x82 au lait", True),  # a control character: text decoded with the wrong table
        ("line\x0bbreak", True),
        ("tab\tseparated words", False),
        ("\ue000 private use", True),
        ("a noncharacter \U0001fffe", True),
        ("$$$ 1,234.56 (12%) >>>", True),  # no letters
        ("I'm 19.", True),  # 2 letters of 6 visible characters
        ("Route 66 is long", False),
        ("ab12", False),  # exactly half
        ("ab123", True),
        ("हिन्दी में", False),  # vowel signs are parts of letters
        ("がぎ", False),  # combining marks after Kana
    ],
)
def test_not_text(text, is_dropped):
    for pair in ((text, "Ein Satz"), ("A sentence", text)):
        assert dropped_by(*pair, "not_text") == ("not_text" if is_dropped else "")


def test_not_text_value_is_the_share_of_letters():
    assert dropped_by("I'm 19.", "Ich", "not_text=0.3") == ""
    assert dropped_by("2014", "2014", "not_text=0") == ""
    assert dropped_by("2014\x00", "2014", "not_text=0") == "not_text"


@pytest.mark.parametrize("source", ["New York", "new  york", " NEW\u00a0YORK\t", "Straße", "МОСКВА"])
def test_identical_ignores_case_and_white_space(source):
    assert dropped_by(source, source.title(), "identical") == "identical"
    assert dropped_by(source, f"{source}.", "identical") == ""


def test_words_of_scripts_without_spaces_are_characters():
    assert [num_words(text) for text in ("a b", "naïve idea", "你好 世界", "hello世界", "ไทย", "안녕 하세요")] == [
        2,
        2,
        4,
        3,
        3,
        2,
    ]


def test_too_few_and_too_many_words():
    assert dropped_by("Hello", "Guten Tag", "too_few_words") == "too_few_words"
    assert dropped_by("Hello", "Hallo", "too_few_words=1") == ""
    assert dropped_by("你好", "Guten Tag", "too_few_words") == ""
    assert dropped_by("a " * 100, "b", "too_many_words") == ""
    assert dropped_by("b", "a " * 101, "too_many_words") == "too_many_words"
    assert dropped_by("茶" * 8, "tea", "too_many_words=7") == "too_many_words"


def test_length_ratio_is_of_characters_and_of_bytes():
    assert dropped_by("a" * 10, "b" * 30, "length_ratio") == ""
    assert dropped_by("a" * 10, "b" * 31, "length_ratio") == "length_ratio"
    assert dropped_by("b" * 31, "a" * 10, "length_ratio") == "length_ratio"
    assert dropped_by("a" * 31, "茶" * 9, "length_ratio") == ""  # 3.4 in characters, but 1.1 in bytes
    assert dropped_by("ж" * 10, "a" * 6, "length_ratio=1.7") == ""  # 3.3 in bytes, but 1.67 in characters
    assert dropped_by("a" * 10, "b" * 16, "length_ratio=1.5") == "length_ratio"


def test_first_filter_of_the_fixed_order_drops_a_pair():
    filters = ["identical", "too_few_words", "not_text"]
    assert dropped_by("@", "@", *filters) == dropped_by("@", "@", *filters[::-1]) == "not_text"
    assert dropped_by("same", "same", *filters) == "identical"


def test_resolved_filters_are_in_order_and_have_values():
    filters = ["misaligned", "overlap", "length_ratio=2.50", "not_text", "duplicate", "too_few_words=03"]
    expected = ("not_text=0.5", "too_few_words=3", "length_ratio=2.5", "duplicate", "overlap=either", "misaligned=0")
    assert resolve(filters, ("", "")) == resolve(expected, ("", "")) == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (["Duplicate"], "unknown filter 'Duplicate': did you mean 'duplicate'[?] known: duplicate, identical, "),
        (["xyzzy"], "unknown filter 'xyzzy'; known: duplicate, identical, "),
        (["duplicate", "duplicate"], "filter 'duplicate' is given twice; give it once"),
        (["duplicate=1"], "filter 'duplicate' takes no value. Received: 'duplicate=1'"),
        (["length_ratio=0.5"], "filter 'length_ratio': expected a number of at least 1. Received: 'length_ratio=0.5'"),
        (["length_ratio=nan"], "expected a number of at least 1. Received: 'length_ratio=nan'"),
        (["length_ratio="], "expected a number of at least 1. Received: 'length_ratio='"),
        (["not_text=2"], "expected a number of at least 0 and at most 1. Received: 'not_text=2'"),
        (["too_few_words=1.5"], "expected a whole number of at least 1. Received: 'too_few_words=1.5'"),
        (["misaligned=inf"], "expected a number of at least -10 and at most 10. Received: 'misaligned=inf'"),
        (["overlap=test"], "filter 'overlap': expected one of either, source, pair. Received: 'overlap=test'"),
        (["wrong_script=Cyrilic"], "'Cyrilic': did you mean 'Cyrillic'[?] known: .*. Received: 'wrong_script=Cyrilic'"),
        (["wrong_script=Latin:Han:Thai"], "expected the scripts of source and target, such as Latin:Cyrillic"),
        (["wrong_script"], "filter 'wrong_script' needs scripts, as the problem names no languages; write 'wrong_scr"),
        ("duplicate", "filters: expected a list such as .*. Received: 'duplicate'"),
    ],
)
def test_wrong_filters_are_refused(filters, message):
    with pytest.raises((KeyError, ValueError), match=message):
        resolve(filters, ("", ""))


def test_wrong_script_names_a_language_whose_scripts_are_not_known():
    with pytest.raises(ValueError, match="'wrong_script' needs scripts, as the scripts of 'tlh-AQ' are not known; wri"):
        resolve(["wrong_script"], ("en", "tlh-AQ"))


@pytest.mark.parametrize("name", ["identical", "length_ratio", "misaligned"])
def test_trees_have_one_side(name):
    with pytest.raises(ValueError, match=f"filter '{name}' compares the two sides of a translation; leave it out for"):
        Problem(name="p", description="", metric="f1", train=(Trees("a"),), filters=(name,))
    assert Problem(name="p", description="", metric="f1", train=(Trees("a"),), filters=("duplicate",)).filters


def test_problem_resolves_its_filters():
    problem = Problem(name="p", description="", source_language="en", target_language="uk", filters=["wrong_script"])
    assert problem.filters == ("wrong_script=Latin:Cyrillic",)
    assert problem.to_dict()["filters"] == ["wrong_script=Latin:Cyrillic"]
    assert Problem(**problem.to_dict()) == problem
    assert Problem(name="p", description="").filters == ()


def test_languages_have_known_scripts():
    assert {name for scripts in SCRIPTS_OF_LANGUAGE.values() for name in scripts.split("+")} <= {*SCRIPTS, "Mongolian"}
    assert len(SCRIPTS_OF_LANGUAGE) > 170
    letters = {"Latin": "aßŁ", "Greek": "αΏ", "Cyrillic": "яЄ", "Han": "漢㐀", "Hangul": "한ㄱ", "Katakana": "カｶ"}
    letters |= {
        "Arabic": "عﻉپ",
        "Devanagari": "अ",
        "Thai": "ก",
        "Canadian": "ᐁ",
        "Tifinagh": "ⴰ",
        "Yi": "ꀀ",
        "": "1.ー µªº",
    }
    assert {name: {script(each) for each in text} for name, text in letters.items()} == {
        name: {name} for name in letters
    }


def test_normalized_ignores_case_and_white_space_only():
    assert normalized(" A\u3000 cup\tof TEA ") == "a cup of tea"
    assert normalized("naïve") != normalized("naive")


def test_large_numbers_are_written_in_full():
    assert resolve(["too_many_words=1000000000000"], ("en", "de")) == ("too_many_words=1000000000000",)


def test_case_and_length_are_compared_by_characters():
    assert normalized("STRASSE") == normalized("straße")
    assert dropped_by("a" * 10, "ä" * 30, "length_ratio") == ""  # three times as many characters
