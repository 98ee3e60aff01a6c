"""Filters of training text: what each is called, what it drops, and its predicate. `Problem.filters` declares them.

A filter is written `name` or `name=value`, in a declaration as on the command line. A pair is dropped, and counted, by
the first filter of `FILTERS` that drops it, whatever the order of the declaration.

A side is the source or the target of a pair; of a tree, only its words are a side. Three filters need more than one
pair and have no predicate here: `t2t_repro.preparation.filtering` finds duplicates, the overlap with other splits, and
misaligned pairs.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from t2t_repro.config import nearest
from t2t_repro.text.glossary import WITHOUT_SPACES

Drops = Callable[[Sequence[str]], bool]  # takes the sides of a pair

MIN_SCRIPT_SHARE = 0.5  # of the letters of a side
OVERLAPS = ("either", "source", "pair")

SCRIPTS = (  # as the Unicode standard calls them, and as the names of their letters start; "Han" is CJK there
    "Arabic Armenian Bengali Bopomofo Canadian Cherokee Cyrillic Devanagari Ethiopic Georgian Greek Gujarati "
    "Gurmukhi Han Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya "
    "Sinhala Syriac Tamil Telugu Thaana Thai Tibetan Tifinagh Yi"
).split()

_LANGUAGES = {  # scripts of the ISO 639-1 languages; a text in any one of them, or in several, is right
    "Arabic": "ar fa ps sd ug ur",
    "Armenian": "hy",
    "Bengali": "as bn",
    "Canadian+Latin": "cr iu oj",
    "Cyrillic": "ab av ba be bg ce cu cv kv ky mk os ru tg tt uk",
    "Cyrillic+Latin": "az kk sr uz",
    "Cyrillic+Mongolian": "mn",
    "Devanagari": "hi mr ne sa",
    "Devanagari+Arabic": "ks",
    "Ethiopic": "am ti",
    "Georgian": "ka",
    "Greek": "el",
    "Gujarati": "gu",
    "Gurmukhi+Arabic": "pa",
    "Han": "zh",
    "Han+Hiragana+Katakana": "ja",
    "Hangul+Han": "ko",
    "Hebrew": "he yi",
    "Kannada": "kn",
    "Khmer": "km",
    "Lao": "lo",
    "Latin": (
        "aa af ak an ay bi bm br bs ca ch co cs cy da de ee en eo es et eu ff fi fj fo fr fy ga gd gl gn gv ha ho hr "
        "ht hu hz ia id ie ig ik io is it jv ki kj kl kr kw la lb lg li ln lt lu lv mg mh mi ms mt na nb nd ng nl nn "
        "no nr nv ny oc om pl pt qu rm rn ro rw sc se sg sk sl sm sn so sq ss st su sv sw tk tl tn to tr ts tw ty ve "
        "vi vo wa wo xh yo za zu"
    ),
    "Latin+Arabic": "ku",
    "Malayalam": "ml",
    "Myanmar": "my",
    "Oriya": "or",
    "Sinhala": "si",
    "Tamil": "ta",
    "Telugu": "te",
    "Thaana": "dv",
    "Thai": "th",
    "Tibetan": "bo dz",
    "Yi": "ii",
}
SCRIPTS_OF_LANGUAGE = {code: scripts for scripts, codes in _LANGUAGES.items() for code in codes.split()}

# Control characters except the tab, the replacement character, noncharacters and private-use characters.
_NONCHARACTERS = "".join(chr(plane << 16 | last) for plane in range(15) for last in (0xFFFE, 0xFFFF))
_NOT_TEXT = re.compile(
    f"[\x00-\x08\x0a-\x1f\x7f-\x9f\ufffd\ufdd0-\ufdef{_NONCHARACTERS}\ue000-\uf8ff\U000f0000-\U0010ffff]"
)
_ANY_SCRIPT = "\u00aa\u00b5\u00ba"  # letters that are used as signs: ordinal indicators, micro
_WORD = re.compile(rf"[{WITHOUT_SPACES}]|[^\s{WITHOUT_SPACES}]+")


class Filter(NamedTuple):
    """A kind of filter. `parse` reads its value and raises ValueError, naming what it expected, for a wrong one."""

    meaning: str  # the pairs that it drops
    default: str = ""  # the value if none is given; "": see the meaning, or none
    parse: Callable[[str], Any] | None = None  # None: it takes no value
    predicate: Callable[[Any], Drops] | None = None  # None: one pair is not enough to decide
    needs_two_sides: bool = False  # not for trees


def normalized(text: str) -> str:
    """Returns the text as overlap and equal sides compare it: without case, and with single spaces for white space."""
    return " ".join(text.casefold().split())


def words_or_characters(text: str) -> list[str]:
    """Returns the words: runs without white space, and single characters of scripts without spaces."""
    return text.split() if text.isascii() else _WORD.findall(text)


def num_words(text: str) -> int:
    """Returns the number of words."""
    return len(words_or_characters(text))


@functools.cache
def script(character: str) -> str:
    """Returns the script of a letter, "Other" if it is not one of `SCRIPTS`; "" for all else, modifier letters too."""
    if unicodedata.category(character) not in ("Lu", "Ll", "Lt", "Lo") or character in _ANY_SCRIPT:
        return ""
    name = unicodedata.name(character, "").split(" ")
    first = name[1] if name[0] in ("FULLWIDTH", "HALFWIDTH") else name[0]
    found = "Han" if first == "CJK" else first.capitalize()
    return found if found in SCRIPTS else "Other"


def _is_not_text(share: float) -> Drops:
    return lambda sides: any(_NOT_TEXT.search(side) or _has_few_letters(side, share) for side in sides)


def _has_few_letters(text: str, share: float) -> bool:
    visible = sum(map(len, text.split()))
    if sum(map(str.isalpha, text)) >= share * visible:
        return False  # combining marks, which are parts of letters, can only add to it
    return sum(unicodedata.category(character)[0] in "LM" for character in text) < share * visible


def _is_in_wrong_script(expected: tuple[frozenset[str], ...]) -> Drops:
    return lambda sides: any(map(_has_other_script, sides, expected))


def _has_other_script(text: str, expected: frozenset[str]) -> bool:
    if text.isascii() and "Latin" in expected:
        return False
    found = [each for each in map(script, text) if each]
    return sum(each in expected for each in found) < MIN_SCRIPT_SHARE * len(found)


def _are_unequal_in_length(factor: float) -> Drops:
    def drops(sides: Sequence[str]) -> bool:
        if _ratio(*map(len, sides)) <= factor:
            return False
        return _ratio(*(len(side.encode("utf-8", "replace")) for side in sides)) > factor

    return drops


def _ratio(first: int, second: int) -> float:
    return max(first, second) / max(1, min(first, second))


def _number(kind: type, lowest: float, highest: float = math.inf) -> Callable[[str], float]:
    def parse(text: str) -> float:
        expected = f"{'a whole number' if kind is int else 'a number'} of at least {lowest:g}"
        expected += f" and at most {highest:g}" if highest < math.inf else ""
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(expected) from None
        if not lowest <= value <= highest or not math.isfinite(value):
            raise ValueError(expected)
        return value

    return parse


def _parse_scripts(text: str) -> tuple[frozenset[str], ...]:
    sides = [side.split("+") for side in text.split(":")]
    for name in (name for side in sides for name in side):
        if name not in SCRIPTS:
            raise ValueError(
                f"scripts such as Latin:Cyrillic or Latin:Han+Hiragana+Katakana; {name!r}{nearest(name, SCRIPTS)}"
            )
    if len(sides) > 2:
        raise ValueError("the scripts of source and target, such as Latin:Cyrillic")
    return tuple(map(frozenset, sides if len(sides) == 2 else sides * 2))


def _parse_overlap(text: str) -> str:
    if text not in OVERLAPS:
        raise ValueError(f"one of {', '.join(OVERLAPS)}")
    return text


FILTERS = {  # in the order of their application
    "not_text": Filter(
        "a side has a control, private-use or replacement character, or a lower share of letters than the value",
        "0.5",
        _number(float, 0, 1),
        _is_not_text,
    ),
    "wrong_script": Filter(
        "fewer than half of the letters of a side are of the scripts given as SOURCE:TARGET, by default those of the "
        "problem's languages",
        "",
        _parse_scripts,
        _is_in_wrong_script,
    ),
    "identical": Filter(
        "both sides are equal, except for case and white space",
        predicate=lambda _: lambda sides: normalized(sides[0]) == normalized(sides[1]),
        needs_two_sides=True,
    ),
    "too_few_words": Filter(
        "a side has fewer words than the value",
        "2",
        _number(int, 1),
        lambda lowest: lambda sides: any(num_words(side) < lowest for side in sides),
    ),
    "too_many_words": Filter(
        "a side has more words than the value",
        "100",
        _number(int, 1),
        lambda highest: lambda sides: any(num_words(side) > highest for side in sides),
    ),
    "length_ratio": Filter(
        "one side is longer than the other by more than this factor, in characters and also in bytes",
        "3",
        _number(float, 1),
        _are_unequal_in_length,
        needs_two_sides=True,
    ),
    "duplicate": Filter("the same pair came before"),
    "overlap": Filter(
        "validation or test text has either side (either), the source (source) or the whole pair (pair), except for "
        "case and white space",
        "either",
        _parse_overlap,
    ),
    "misaligned": Filter(
        "the words of one side say less about those of the other than the value, in nats per word, as IBM Model 1 "
        "learns from the text itself",
        "0",
        _number(float, -10, 10),
        needs_two_sides=True,
    ),
}


def resolve(filters: Iterable[str], languages: tuple[str, str], has_trees: bool = False) -> tuple[str, ...]:
    """Returns the filters in the order of their application, each with its value.

    `languages` of source and target are ISO 639-1 codes, also with a region (`en-US`), or "". Raises KeyError for an
    unknown name, and ValueError for a wrong value, a name that is given twice, and a filter that compares two sides if
    there are trees.
    """
    if isinstance(filters, str | Mapping):
        raise ValueError(f"filters: expected a list such as ('duplicate',). Received: {filters!r}")
    found: dict[str, str] = {}
    for each in filters:
        name, equals, value = each.partition("=") if isinstance(each, str) else (repr(each), "", "")
        if name not in FILTERS:
            raise KeyError(f"unknown filter {name!r}{nearest(name, FILTERS)}")
        if name in found:
            raise ValueError(f"filter {name!r} is given twice; give it once")
        kind = FILTERS[name]
        if has_trees and kind.needs_two_sides:
            raise ValueError(f"filter {name!r} compares the two sides of a translation; leave it out for trees")
        if kind.parse is None:
            if equals:
                raise ValueError(f"filter {name!r} takes no value. Received: {each!r}")
            found[name] = name
            continue
        if not equals:
            value = kind.default or _scripts_of(languages, has_trees)
        try:
            parsed = kind.parse(value)
        except ValueError as error:
            raise ValueError(f"filter {name!r}: expected {error}. Received: {each!r}") from None
        found[name] = f"{name}={_written(parsed)}"
    return tuple(found[name] for name in FILTERS if name in found)


def predicates(filters: Sequence[str]) -> dict[str, Drops]:
    """Returns the predicates of resolved filters by their names, in order, for those that one pair is enough for."""
    made: dict[str, Drops] = {}
    for name, value in map(name_and_value, filters):
        kind = FILTERS[name]
        if kind.predicate:
            made[name] = kind.predicate(kind.parse(value) if kind.parse else None)
    return made


def name_and_value(resolved: str) -> tuple[str, str]:
    """Splits `name=value`; the value may be missing."""
    name, _, value = resolved.partition("=")
    return name, value


def _written(parsed: Any) -> str:
    """Returns the only spelling of a value, so that equal filters are equal texts."""
    if isinstance(parsed, tuple):
        return ":".join("+".join(sorted(side)) for side in parsed)
    return f"{parsed:.12g}" if isinstance(parsed, float) else str(parsed)


def _scripts_of(languages: tuple[str, str], has_trees: bool) -> str:
    wanted = languages[:1] if has_trees else languages
    codes = [re.split("[-_]", language.lower())[0] for language in wanted]
    unknown = [language for language, code in zip(wanted, codes, strict=True) if code not in SCRIPTS_OF_LANGUAGE]
    if unknown:
        example = "wrong_script=Latin" if has_trees else "wrong_script=Latin:Cyrillic"
        what = f"the scripts of {unknown[0]!r} are not known" if all(unknown) else "the problem names no languages"
        raise ValueError(f"filter 'wrong_script' needs scripts, as {what}; write {example!r}")
    return ":".join(SCRIPTS_OF_LANGUAGE[code] for code in codes)
