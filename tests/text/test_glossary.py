"""t2t_repro.text.glossary: terms are found in a source, and missed in a translation that lacks them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from t2t_repro.text.glossary import MOST_FORMS, Glossary, Required, lacking, missing, must_be_few, spelled

GLOSSARY = Glossary(
    {
        "cat": ["Katze", "Kater"],
        "cat food": "Katzenfutter",
        "New York": "New York",
        "York": "York",
        "US": "USA",
        "Acme": None,
        "acme glue": None,
        "犬": "Hund",
        "C++": "C++",
        "naïve": "naiv",
        "οδός": "Straße",
        "Σας": "Sie",
    }
)


def found(text: str) -> list[str]:
    return [each.term for each in GLOSSARY.required(text)]


@pytest.mark.parametrize(
    "text, terms",
    [
        ("A CAT, a Cat and a cat's cat", ["CAT", "Cat", "cat", "cat"]),
        ("cats, concat, cat_1 and cat9", []),  # other words
        ("cat food for the cat", ["cat food", "cat"]),  # the longest one alone
        ("York is not New York, York", ["York", "New York", "York"]),
        ("us in the US", ["US"]),
        ("ACME, Acme, ACME Glue", ["Acme", "ACME Glue"]),  # a capital letter in the glossary means: as written
        ("犬犬と", ["犬", "犬"]),
        ("C++, c++ and C++17", ["C++", "C++"]),
        ("NAÏVE naïve", ["NAÏVE", "naïve"]),
        ("İ cat", ["cat"]),  # in lower case, İ is two characters
        ("οδός ΟΔΌΣ Οδόσ", ["οδός", "ΟΔΌΣ", "Οδόσ"]),  # a sigma at the end of a word is another letter in lower case
        ("İ οδός ΟΔΌΣ, ΟΔΌΣΑ", ["οδός", "ΟΔΌΣ"]),
        ("Σας ΣΑΣ", ["Σας"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_in_any_case_or_as_written(text: str, terms: list[str]):
    assert found(text) == terms


def test_forms_are_those_of_the_glossary_or_the_term_as_it_is():
    assert GLOSSARY.required("acme GLUE for a cat") == (
        Required("acme GLUE", ("acme GLUE",)),
        Required("cat", ("Katze", "Kater")),
    )


@pytest.mark.parametrize(
    "translation, terms",
    [
        ("Katze, Kater, New York, York", []),
        ("York, New York: Katze-Katze", []),
        ("Katzen, Kater, New York, York", ["cat"]),  # "Katzen" is another word
        ("Katze Kater New York", ["York"]),  # one place counts once
        ("katze Kater New York York", ["cat"]),  # as it is written
        ("", ["cat", "cat", "New York", "York"]),
    ],
)
def test_each_place_of_a_translation_counts_for_one_term(translation: str, terms: list[str]):
    required = GLOSSARY.required("a cat and a cat in New York and York")
    assert [each.term for each in missing(translation, required)] == terms


def test_place_of_a_form_of_two_terms_counts_for_the_one_that_needs_it():
    required = Glossary({"house": ["Haus", "Gebäude"], "home": "Haus"}).required("the house is my home")
    assert not missing("das Gebäude ist mein Haus", required) and not missing("mein Haus ist das Gebäude", required)
    assert len(missing("mein Haus", required)) == 1
    required = Glossary({"vehicle": ["Wagen", "Fahrzeug"], "car": ["Auto", "Wagen"]}).required("a vehicle and a car")
    assert not missing("ein Wagen und ein Auto", required) and not missing("ein Auto und ein Wagen", required)
    assert len(missing("ein Wagen", required)) == len(missing("ein Auto", required)) == 1
    required = GLOSSARY.required("New York and York")
    assert not missing("New York, New York", required)  # the second one has a York


def test_form_may_start_with_a_capital_letter():
    required = Glossary({"Hund": "dog"}).required("Hund")
    assert missing("Dogs", required) and missing("DOG", required) and not missing("Dog barks", required)


def test_texts_of_which_any_output_lacks_a_term():
    required = [GLOSSARY.required(text) for text in ("a cat", "a dog", "the cat")]
    assert lacking(required, [["Katze", "Kater"], ["Hund"], ["Katze", "Hund"]]) == [2]


def test_required_terms_as_one_string():
    assert spelled(GLOSSARY.required("cat in York")) == "Katze\tKater\nYork"


def test_too_many_terms_of_one_text_are_refused():
    must_be_few("text 1", GLOSSARY.required("cat " * 16))
    with pytest.raises(ValueError, match="text 1 has 17 terms of the glossary, at most 16; split the text"):
        must_be_few("text 1", GLOSSARY.required("cat " * 17))


def test_file(tmp_path: Path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeffcat\tKatze\tKater\r\n\r\nAcme\t\r\n".encode())
    glossary = Glossary.load(str(path))
    assert len(glossary) == 2
    assert glossary.required("Acme cat") == (Required("Acme", ("Acme",)), Required("cat", ("Katze", "Kater")))
    assert Glossary.of(str(path)).required("Acme") == glossary.required("Acme")
    assert Glossary.of(glossary) is glossary


@pytest.mark.parametrize(
    "text, message",
    [
        ("cat\tKatze\ndog Hund\n", "terms.tsv, line 2: expected a term, a tab and its forms. Received: 'dog Hund'"),
        ("cat\tKatze\tKatze \n", "terms.tsv, line 1: a form of 'cat' starts or ends with white space"),
        ("cat\tKatze\n\ncat\tKater\n", "terms.tsv, line 3: the term 'cat' is on line 1 too"),
        ("\tKatze\n", "terms.tsv, line 1: a term is empty; write it"),
        ("cat\tKatze\t\tKater\n", "terms.tsv, line 1: a form of 'cat' is empty"),
        ("cat\tKa\u0000tze\n", "terms.tsv, line 1: a form of 'cat' contains the control character U"),
        ("cat\t" + "x" * 101, "terms.tsv, line 1: a form of 'cat' has 101 characters; give at most 100"),
        ("cat" + "\tx" * (MOST_FORMS + 1), "terms.tsv, line 1: the term 'cat' has 9 forms; give at most 8"),
        ("\n\n", "terms.tsv has no terms; write one per line"),
    ],
)
def test_malformed_file_is_one_line_with_its_number(tmp_path: Path, text: str, message: str):
    (tmp_path / "terms.tsv").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message) as error:
        Glossary.load(str(tmp_path / "terms.tsv"))
    assert "\n" not in str(error.value)


def test_file_may_be_a_path(tmp_path: Path):
    (tmp_path / "terms.tsv").write_text("cat\tKatze\n", "utf-8")
    assert Glossary.of(tmp_path / "terms.tsv").required("a cat") == (Required("cat", ("Katze",)),)


def test_missing_file_and_invalid_text(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no glossary"):
        Glossary.load(str(tmp_path / "none.tsv"))
    (tmp_path / "terms.tsv").write_bytes(b"cat\t\xff\n")
    with pytest.raises(ValueError, match="terms.tsv, line 1: not UTF-8"):
        Glossary.load(str(tmp_path / "terms.tsv"))


NESTED = functools.reduce(lambda inner, _: [inner], range(10_000), [])  # too deep for `repr`


@pytest.mark.parametrize(
    "terms, message",
    [
        (["cat"], "a glossary must map terms to forms. Received: list; give a dictionary"),
        ({1: "x"}, "a term must be a string. Received: int 1"),
        ({"cat": 1}, "the term 'cat' must have a form or a list of forms. Received"),
        ({"cat": []}, "the term 'cat' must have a form or a list of forms. Received"),
        ({"cat": [NESTED]}, "a form of 'cat' must be a string. Received: list "),
        ({"cat": ["x", None]}, "a form of 'cat' must be a string. Received: NoneType None"),
        ({"cat\n": "x"}, "a term starts or ends with white space"),
        ({"\ud800": "x"}, "a term contains the control character"),
    ],
)
def test_malformed_dictionary(terms, message: str):
    with pytest.raises(ValueError, match=message):
        Glossary(terms)
