"""The built-in problems: what the pairs say, and that no test item was trained on."""

import hashlib
import itertools
import random
import re
import subprocess
import sys
from collections import Counter
from datetime import date, time
from decimal import Decimal

import pytest
from conftest import CHECKOUT

from t2t_repro.problem import SPLITS
from t2t_repro.problems import cldr
from t2t_repro.registry import PROBLEMS

MONTHS = "January February March April May June July August September October November December".split()
both = pytest.mark.parametrize("language", ["de", "fr"])


def outcomes(kind: str, language: str, draws: int = 40) -> set[tuple[str, str]]:
    """Returns the texts of `kind` in English and in `language`, over many seeds."""
    import babel.dates
    import babel.lists
    import babel.numbers
    import babel.units

    writers = [cldr.KINDS[kind](random.Random(seed), babel)[1] for seed in range(draws)]
    english, other = babel.Locale("en"), babel.Locale(language)
    return {(write(english).translate(cldr.TYPED), write(other).translate(cldr.TYPED)) for write in writers}


@pytest.fixture
def one_content(monkeypatch):
    """Every draw is of Friday, November 20, 2026, of half past five in the afternoon, and of 21.5 square kilometers."""
    monkeypatch.setattr(cldr, "_day", lambda rng: date(2026, 11, 20))
    monkeypatch.setattr(cldr, "_time", lambda minute: time(17, 30))
    monkeypatch.setattr(cldr, "_number", lambda rng, digits=4: Decimal("21.5"))
    monkeypatch.setattr(cldr, "UNITS", ("square-kilometer",))


def run(script: str) -> str:
    """Returns the output of `script`, run in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout


@both
def test_splits_have_the_promised_sizes(language):
    problem = PROBLEMS[f"translate_en{language}_cldr"]
    corpora = [list(corpus.function()) for split in SPLITS for corpus in problem.corpora(split)]
    assert [len(pairs) for pairs in corpora] == [64_000, 1_000, 1_000]
    assert corpora[2] == [(example.source, example.target) for example in cldr.examples(language)["test"]]


@both
def test_no_text_occurs_in_two_pairs(language):
    examples = itertools.chain(*cldr.examples(language).values())
    owners = Counter(text for example in examples for text in {example.source, example.target})
    assert [text for text, count in owners.items() if count > 1] == []


@both
def test_no_content_is_in_two_splits(language):
    contents = [{example.content for example in cldr.examples(language)[split]} for split in SPLITS]
    for one, other in itertools.combinations(contents, 2):
        assert one.isdisjoint(other)


def test_a_date_in_another_format_is_in_the_same_split():
    """Read from the text: "November 20, 2026 at 5:30 PM" and "11/20/26" are one date."""
    split_of = {example.source: split for split in SPLITS for example in cldr.examples("de")[split]}
    pairs = []
    for source, split in split_of.items():
        if match := re.fullmatch(r"(\w+) (\d+), \d\d(\d\d) at .*", source):
            month, day, year = match.groups()
            pairs.append((split, split_of.get(f"{MONTHS.index(month) + 1}/{day}/{year}")))
    found = Counter(pair for pair in pairs if pair[1])
    assert found["train", "train"] > 10 and all(one == other for one, other in found)


@both
def test_every_kind_has_a_fair_share_of_every_split(language):
    assert len(cldr.KINDS) >= 11
    for examples in cldr.examples(language).values():
        shares = Counter(example.kind for example in examples)
        fair = len(examples) / len(cldr.KINDS)
        assert all(fair / 2 < shares[kind] < fair * 2 for kind in cldr.KINDS)


@both
def test_pairs_hold_what_people_type(language):
    for example in itertools.chain(*cldr.examples(language).values()):
        for text in (example.source, example.target):
            assert text and text == text.strip() and text.isprintable()  # no newline, no tab
            assert not re.search("[\u2009\u202f\u00a0\u2019]", text)


@both
def test_a_source_has_one_translation(language):
    """In new draws of every kind, including repetitions, equal English text always has the same translation."""
    listed = ("countries", "languages")  # their names are a table, and Babel looks them up slowly
    drawn = set().union(*(outcomes(kind, language, 600) for kind in cldr.KINDS if kind not in listed))
    assert [source for source, count in Counter(source for source, _ in drawn).items() if count > 1] == []


@both
@pytest.mark.parametrize("kind", ["countries", "languages"])
def test_every_name_in_a_tested_list_was_trained_on(language, kind):
    known, tested = set(), set()
    for split, codes in (("train", known), ("test", tested)):
        for example in cldr.examples(language)[split]:
            if example.kind == kind and example.content:
                codes.update(example.content.split("+"))
    assert len(tested) > 50 and tested <= known


def test_dates(one_content):
    assert outcomes("date", "de") == {
        ("Friday, November 20, 2026", "Freitag, 20. November 2026"),
        ("November 20, 2026", "20. November 2026"),
        ("Nov 20, 2026", "20.11.2026"),
        ("11/20/26", "20.11.26"),
    }
    assert ("Friday, November 20, 2026", "vendredi 20 novembre 2026") in outcomes("date", "fr")
    assert ("Friday, November 20, 2026 at 5:30 PM", "Freitag, 20. November 2026 um 17:30") in outcomes("datetime", "de")
    assert ("Friday, November 20, 2026 at 5:30 PM", "vendredi 20 novembre 2026 à 17:30") in outcomes("datetime", "fr")


def test_month_of_may_5_is_written_in_full(monkeypatch):
    """English writes it in full and in short alike, German "5. Mai 2026" and "05.05.2026"."""
    monkeypatch.setattr(cldr, "_day", lambda rng: date(2026, 5, 5))
    assert [target for source, target in outcomes("date", "de") if source == "May 5, 2026"] == ["5. Mai 2026"]


@both
def test_12_hour_times_become_24_hour_times(language):
    """5:30 PM is 17:30, 12:05 AM is 00:05."""
    checked = 0
    for example in cldr.examples(language)["train"]:
        if match := re.fullmatch(r"(\d+):(\d\d) (AM|PM)", example.source):
            hour = int(match[1]) % 12 + (12 if match[3] == "PM" else 0)
            assert example.target == f"{hour:02}:{match[2]}"
            checked += 1
    assert checked > 500


def test_quantities(one_content):
    assert outcomes("quantity", "de") == {("21.5 square kilometers", "21,5 Quadratkilometer"), ("21.5 km²", "21,5 km²")}
    assert ("21.5 square kilometers", "21,5 kilomètres carrés") in outcomes("quantity", "fr")
    assert outcomes("percent", "de") == {("21.5%", "21,5 %"), ("21.5 percent", "21,5 Prozent")}
    assert ("21.5 billion", "21,5 Milliarden") in {
        (source.replace("23.5", "21.5"), target.replace("23,5", "21,5")) for source, target in outcomes("compact", "de")
    }


def test_numbers_have_the_separators_of_the_language():
    german, french = str.maketrans(",.", ".,"), str.maketrans(",.", " ,")
    assert all(source.translate(german) == target for source, target in outcomes("decimal", "de", 300))
    assert all(source.translate(french) == target for source, target in outcomes("decimal", "fr", 300))


def test_another_process_makes_the_same_pairs():
    sizes = 3_000, 40, 40
    here = repr([tuple(example) for example in cldr.examples("de", sizes)["train"]])
    script = (
        "import hashlib; from t2t_repro.problems import cldr\n"
        f"there = repr([tuple(example) for example in cldr.examples('de', {sizes})['train']])\n"
        "print(hashlib.sha256(there.encode()).hexdigest())"
    )
    assert run(script).strip() == hashlib.sha256(here.encode()).hexdigest()


def test_smaller_splits_have_the_same_properties():
    small = cldr.examples("de", (100, 2, 3))
    assert [len(small[split]) for split in SPLITS] == [100, 2, 3]
    assert small["train"] == cldr.examples("de")["train"][:100]


def test_listing_the_problems_imports_no_babel():
    script = (
        "import sys, time\n"
        "import t2t_repro.problem, t2t_repro.registry\n"
        "start = time.perf_counter()\n"
        "import t2t_repro.problems.cldr\n"
        "print(time.perf_counter() - start)\n"
        "print(*t2t_repro.registry.PROBLEMS)\n"
        "print('babel' in sys.modules)"
    )
    seconds, names, babel = run(script).splitlines()
    assert {"translate_ende_cldr", "translate_enfr_cldr"} <= set(names.split())
    assert float(seconds) < 0.3 and babel == "False"  # about 0.01 s on an idle machine
