"""translate_ende_cldr and translate_enfr_cldr: real text to train on, without a download.

The Unicode CLDR, which the Babel library carries, knows how dates, times, quantities, money and names are written in
English, German and French. A seeded generator draws contents (a date, a number with its unit, a list of countries),
and Babel writes each of them in both languages: the target needs reordering, agreement and copying, but no guessing.

    "Friday, November 20, 2026 at 5:30 PM"    "Freitag, 20. November 2026 um 17:30"
    "21.5 square kilometers"                  "21,5 Quadratkilometer"

A hash of the content decides the split: a date in the test set is never trained on as a single date, in any format, but
may end an interval. The pairs are the same in every process and on every machine with the same version of Babel.
"""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from t2t_repro.problem import SPLITS, Generated, Pair, Problem
from t2t_repro.registry import PROBLEMS

if TYPE_CHECKING:  # only `endless` imports Babel, so that listing the problems stays fast
    from babel import Locale

SIZES = (64_000, 1_000, 1_000)  # pairs of train, validation, test
# So small that numbers are spelled. Test BLEU after 1,500 steps of `tiny`: 93.8, and 88.8 with 4,000 subwords, a
# warm-up of 600 instead of 500, and earlier code: two runs, not a controlled comparison.
VOCAB_SIZE = 1_500

# CLDR sets thin and no-break spaces and the curly apostrophe: people type the keyboard's. The en dash of an interval
# stays: word processors make it from a hyphen, and a hyphen before a number would read as a minus.
TYPED = str.maketrans({"\u2009": " ", "\u202f": " ", "\u00a0": " ", "\u2019": "'"})

# Babel does not carry CLDR's "atTime" pattern, the one for a full or long date with a time of day.
AT_TIME = {"en": "{} at {}", "de": "{} um {}", "fr": "{} à {}"}

# Left out: units which English abbreviates alike ("3 pt": points or pints) or not at all ("3 days", German "3 Tage" or
# "3 Tg."), since a source must have one translation.
UNITS = tuple(
    """
    degree acre hectare square-foot square-kilometer square-meter square-mile byte kilobyte megabyte gigabyte terabyte
    megabit pixel megapixel millisecond second minute hour week month quarter year decade ampere volt watt kilowatt
    megawatt horsepower calorie kilocalorie joule kilojoule kilowatt-hour hertz kilohertz megahertz gigahertz
    millimeter centimeter meter kilometer inch foot yard mile nautical-mile light-year kilometer-per-hour mile-per-hour
    meter-per-second knot carat milligram gram kilogram tonne ounce pound ton hectopascal atmosphere celsius fahrenheit
    kelvin milliliter centiliter liter hectoliter teaspoon tablespoon fluid-ounce gallon barrel cubic-centimeter
    cubic-meter cubic-foot cubic-kilometer liter-per-100-kilometer mile-per-gallon
    """.split()
)
# "meter" is left out: Babel 2.18 takes "meter" per "hour" for kilometer-per-hour.
RATE_UNITS = tuple(
    """
    kilobyte megabyte gigabyte gram kilogram milligram tonne ounce pound liter milliliter gallon cubic-meter
    kilometer centimeter millimeter mile joule kilojoule kilocalorie revolution degree
    """.split()
)
PER_UNITS = ("second", "minute", "hour", "day", "week", "month", "year")
SPAN_UNITS = (("year", 99), ("month", 11), ("day", 30), ("hour", 23), ("minute", 59), ("second", 59))  # and their most
CURRENCIES = tuple("AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD ILS INR JPY KRW MXN NOK NZD PLN SEK TRY USD ZAR".split())
NOT_COUNTRIES = ("EU", "EZ", "QO", "UN", "XA", "XB", "ZZ")  # two letters as well, but unions and placeholders
NOT_LANGUAGES = ("na",)  # Nauru: in English the country has the same name, in German ("Nauruisch") it has not

# A kind draws a content, which decides the split (None: training only), and a function that writes it in a language.
Drawn = tuple[str | None, Callable[["Locale"], str]]


class Example(NamedTuple):
    """A pair and its origin: `Example("time", "17:30:00", "5:30 PM", "17:30")`."""

    kind: str
    content: str | None
    source: str
    target: str


def _day(rng: random.Random) -> date:
    """Draws a day from 1950 to 2049: a hundred years, so that a two-digit year ("11/20/26") is unambiguous."""
    return date(1950, 1, 1) + timedelta(rng.randrange(36_525))


def _time(minute: int) -> time:
    """Returns the time of day at a number of minutes since midnight: 1050 is 17:30."""
    return time(*divmod(minute, 60))


def _number(rng: random.Random, digits: int = 4) -> Decimal:
    """Draws a number of up to `digits` digits and two decimals, the last one never 0: 7, 21.5, 1250.75."""
    whole = rng.randrange(10 ** rng.randint(1, digits))
    tenths, hundredths = f".{rng.randint(1, 9)}", f".{rng.randint(0, 9)}{rng.randint(1, 9)}"
    return Decimal(f"{whole}{rng.choice(('', '', tenths, hundredths))}")


def _clock(locale: Locale) -> str:
    """Returns the skeleton of a time of day: 12 hours in English, 24 in German and French."""
    return "hm" if locale.language == "en" else "Hm"


def draw_date(rng: random.Random, babel: ModuleType) -> Drawn:
    """A date: "November 20, 2026" / "20. November 2026"; "11/20/26" / "20.11.26"."""
    day, style = _day(rng), rng.choice(("full", "long", "medium", "short"))
    if style == "medium" and day.month == 5:
        style = "long"  # "May 5, 2026" is both in English, "05.05.2026" or "5. Mai 2026" in German
    return day.isoformat(), lambda locale: babel.dates.format_date(day, style, locale)


def draw_weekday(rng: random.Random, babel: ModuleType) -> Drawn:
    """A date with its weekday: "Fri, Nov 20, 2026" / "Fr., 20. Nov. 2026"; "Fri, 11/20/2026" / "Fr., 20.11.2026"."""
    day, skeleton = _day(rng), rng.choice(("yMMMEd", "yMEd", "GyMMMEd"))
    return day.isoformat(), lambda locale: babel.dates.format_skeleton(skeleton, day, locale=locale)


def draw_datetime(rng: random.Random, babel: ModuleType) -> Drawn:
    """A date and a time: "November 20, 2026 at 5:30 PM" / "20. November 2026 um 17:30"."""
    day, style = _day(rng), rng.choice(("full", "long", "medium", "short"))
    moment = datetime.combine(day, _time(rng.randrange(1440))).replace(second=rng.randrange(60))
    if style in ("medium", "short"):
        return day.isoformat(), lambda locale: babel.dates.format_datetime(moment, style, locale=locale)
    return day.isoformat(), lambda locale: AT_TIME[locale.language].format(
        babel.dates.format_date(day, style, locale), babel.dates.format_time(moment, "short", locale=locale)
    )


def draw_time(rng: random.Random, babel: ModuleType) -> Drawn:
    """A time of day: "5:30 PM" / "17:30"; "5:30:05 PM" / "17:30:05"; "Fri 5:30 PM" / "Fr., 17:30"."""
    style, clock = rng.choice(("short", "medium", "weekday")), _time(rng.randrange(1440))
    if style == "medium":
        clock = clock.replace(second=rng.randrange(60))
    if style != "weekday":
        return clock.isoformat(), lambda locale: babel.dates.format_time(clock, style, locale=locale)
    moment = datetime.combine(date(2026, 11, rng.randint(1, 7)), clock)
    return clock.isoformat(), lambda locale: babel.dates.format_skeleton(f"E{_clock(locale)}", moment, locale=locale)


def draw_days(rng: random.Random, babel: ModuleType) -> Drawn:
    """From a day to a day: "Nov 20 – 23, 2026" / "20.–23. Nov. 2026"; "3/5/2026 – 3/9/2026" / "05.–09.03.2026"."""
    start, skeleton = _day(rng), rng.choice(("yMMMd", "yMMMEd", "yMd"))
    end = start + timedelta(rng.randint(1, rng.choice((10, 100, 1_000))))
    return f"{start} to {end}", lambda locale: babel.dates.format_interval(start, end, skeleton, locale=locale)


def draw_hours(rng: random.Random, babel: ModuleType) -> Drawn:
    """From a time to a time: "9:30 AM – 5:45 PM" / "09:30–17:45 Uhr"; "9:30 – 11:45 AM" / "09:30–11:45 Uhr"."""
    start, end = map(_time, sorted(rng.sample(range(1440), 2)))
    return f"{start} to {end}", lambda locale: babel.dates.format_interval(start, end, _clock(locale), locale=locale)


def draw_period(rng: random.Random, babel: ModuleType) -> Drawn:
    """A month or a quarter: "March 2026" / "März 2026"; "1st quarter 2026" / "1. Quartal 2026".

    No weeks: week 10 of 2026 is another one in English, where a week starts on Sunday.
    """
    skeleton = rng.choice(("yMMMM", "yMMM", "GyMMM", "yQQQQ", "yQQQ"))
    month = rng.randrange(1, 13, 3) if "Q" in skeleton else rng.randint(1, 12)
    first = date(rng.randint(1900, 2099), month, 1)
    return first.isoformat(), lambda locale: babel.dates.format_skeleton(skeleton, first, locale=locale)


def draw_duration(rng: random.Random, babel: ModuleType) -> Drawn:
    """A span of time: "3 hours, 25 minutes, and 1 second" / "3 Stunden, 25 Minuten und 1 Sekunde"."""
    count = rng.choice((2, 3))
    first = rng.randrange(len(SPAN_UNITS) - count + 1)
    parts = [(rng.randint(1, most), unit) for unit, most in SPAN_UNITS[first : first + count]]
    return str(parts), lambda locale: babel.lists.format_list(
        [babel.units.format_unit(n, unit, locale=locale) for n, unit in parts], locale=locale
    )


def draw_relative(rng: random.Random, babel: ModuleType) -> Drawn:
    """A time from now: "in 3 days" / "in 3 Tagen"; "5 years ago" / "vor 5 Jahren"."""
    unit, seconds = rng.choice(babel.dates.TIMEDELTA_UNITS)
    number = rng.choice((-1, 1)) * rng.randint(1, 10 ** rng.randint(1, 3))
    # Granularity and an endless threshold keep Babel to this unit: "in 36 hours", not "in 2 days".
    return f"{number} {unit}", lambda locale: babel.dates.format_timedelta(
        timedelta(seconds=number * seconds), unit, float("inf"), add_direction=True, locale=locale
    )


def draw_quantity(rng: random.Random, babel: ModuleType) -> Drawn:
    """A number with a unit: "21.5 square kilometers" / "21,5 Quadratkilometer"; "3 hr" / "3 Std."."""
    number, unit = _number(rng), rng.choice(UNITS)
    length = "long" if number == 1 else rng.choice(("long", "short"))  # Babel writes "1 m" as "1 Meter"
    return f"{number} {unit}", lambda locale: babel.units.format_unit(number, unit, length, locale=locale)


def draw_rate(rng: random.Random, babel: ModuleType) -> Drawn:
    """A unit per another: "12.5 liters per day" / "12,5 Liter pro Tag"."""
    number, unit, per = _number(rng), rng.choice(RATE_UNITS), rng.choice(PER_UNITS)
    return f"{number} {unit} per {per}", lambda locale: babel.units.format_compound_unit(
        number, unit, denominator_unit=per, locale=locale
    )


def draw_money(rng: random.Random, babel: ModuleType) -> Drawn:
    """An amount: "€12.50" / "12,50 €"; "12.50 US dollars" / "12,50 US-Dollar"."""
    currency = rng.choice(CURRENCIES)
    amount = Decimal(rng.randrange(1, 10 ** rng.randint(2, 6))).scaleb(-babel.numbers.get_currency_precision(currency))
    # Where English has no symbol, Babel sets the code against the number ("CHF12.50"), which nobody writes.
    has_symbol = babel.numbers.get_currency_symbol(currency, "en") != currency
    style = rng.choice(("standard", "name")) if has_symbol else "name"
    return f"{amount} {currency}", lambda locale: babel.numbers.format_currency(
        amount, currency, locale=locale, format_type=style
    )


def draw_percent(rng: random.Random, babel: ModuleType) -> Drawn:
    """A percentage: "12.5%" / "12,5 %"; "12.5 percent" / "12,5 Prozent"."""
    number = _number(rng, digits=3)
    if rng.choice((True, False)):
        return f"{number}%", lambda locale: babel.units.format_unit(number, "percent", locale=locale)
    return f"{number}%", lambda locale: babel.numbers.format_percent(
        number / 100, locale=locale, decimal_quantization=False
    )


def draw_decimal(rng: random.Random, babel: ModuleType) -> Drawn:
    """A number: "1,250.75" / "1.250,75"; "-1,250.75" / "-1.250,75"."""
    number = _number(rng, digits=5) * rng.choice((1, 1, 1, -1))
    return str(number), lambda locale: babel.numbers.format_decimal(number, locale=locale)


def draw_compact(rng: random.Random, babel: ModuleType) -> Drawn:
    """A large round number: "1.25 billion" / "1,25 Milliarden"; "1.25B" / "1,25 Mrd."."""
    # From 2: Babel writes "1 Millionen". No thousands: in German "1.25K" is "1250".
    number = (_number(rng, digits=3) % 997 + 2) * 10 ** rng.choice((6, 9, 12))
    style = rng.choice(("long", "short"))
    return str(number), lambda locale: babel.numbers.format_compact_decimal(
        number, format_type=style, locale=locale, fraction_digits=2
    )


def draw_countries(rng: random.Random, babel: ModuleType) -> Drawn:
    """Countries and territories: "Austria, Spain, and Peru" / "Österreich, Spanien und Peru"."""
    return _names(rng, babel, "territories", NOT_COUNTRIES)


def draw_languages(rng: random.Random, babel: ModuleType) -> Drawn:
    """Languages: "Greek, Welsh, or Hindi" / "Griechisch, Walisisch oder Hindi"."""
    return _names(rng, babel, "languages", NOT_LANGUAGES)


def _names(rng: random.Random, babel: ModuleType, field: str, without: tuple[str, ...]) -> Drawn:
    """Draws one to four names. A single name is for training only: a name in the test set must occur in training."""
    codes = rng.sample(_codes(babel, field, without), rng.choice((1, 2, 3, 4)))
    style = rng.choice(("standard", "or"))
    content = "+".join(sorted(codes)) if len(codes) > 1 else None
    return content, lambda locale: babel.lists.format_list(
        [getattr(locale, field)[code] for code in codes], style, locale
    )


@functools.cache
def _codes(babel: ModuleType, field: str, without: tuple[str, ...]) -> list[str]:
    """Returns the two-letter codes that all three languages name: territories, or the languages of ISO 639-1."""
    english, german, french = (getattr(babel.Locale(language), field) for language in ("en", "de", "fr"))
    known = (code for code in english if code in german and code in french and code not in without)
    return sorted(code for code in known if len(code) == 2)


KINDS: dict[str, Callable[[random.Random, ModuleType], Drawn]] = {
    "date": draw_date,
    "weekday": draw_weekday,
    "datetime": draw_datetime,
    "time": draw_time,
    "days": draw_days,
    "hours": draw_hours,
    "period": draw_period,
    "duration": draw_duration,
    "relative": draw_relative,
    "quantity": draw_quantity,
    "rate": draw_rate,
    "money": draw_money,
    "percent": draw_percent,
    "decimal": draw_decimal,
    "compact": draw_compact,
    "countries": draw_countries,
    "languages": draw_languages,
}


def split_of(content: str | None) -> str:
    """Returns the split of a content: 2% for test, 2% for validation, the rest and None for training."""
    bucket = zlib.crc32(content.encode()) % 50 if content else -1
    return {0: "test", 1: "validation"}.get(bucket, "train")


def endless(language: str, seed: int) -> Iterator[Example]:
    """Yields examples without end, alternating between the kinds.

    No text occurs in two examples, neither as source nor as target. A kind without new contents is skipped.
    """
    import babel.dates
    import babel.lists
    import babel.numbers
    import babel.units

    rng, locales = random.Random(seed), (babel.Locale("en"), babel.Locale(language))
    seen: set[str] = set()
    for kind in itertools.cycle(KINDS):
        for _ in range(8):  # attempts to draw a new text of this kind
            content, write = KINDS[kind](rng, babel)
            source, target = (write(locale).translate(TYPED) for locale in locales)
            if seen.isdisjoint((source, target)):
                seen |= {source, target}
                yield Example(kind, content, source, target)
                break


@functools.cache
def examples(language: str, sizes: tuple[int, int, int] = SIZES, seed: int = 2017) -> dict[str, list[Example]]:
    """Returns the three splits, English to `language` ("de" or "fr"). Takes six seconds, once per process."""
    missing = dict(zip(SPLITS, sizes, strict=True))
    found: dict[str, list[Example]] = {split: [] for split in SPLITS}
    stream = endless(language, seed)
    while any(missing.values()):
        example = next(stream)
        split = split_of(example.content)
        if missing[split]:
            found[split].append(example)
            missing[split] -= 1
    return found


def pairs(language: str, split: str) -> Iterator[Pair]:
    """Yields the pairs of `split`: "train", "validation" or "test"."""
    return ((example.source, example.target) for example in examples(language)[split])


for _language, _name in (("de", "German"), ("fr", "French")):
    _corpora: dict[str, Any] = {split: (Generated(functools.partial(pairs, _language, split)),) for split in SPLITS}
    PROBLEMS.register(
        Problem(
            name=f"translate_en{_language}_cldr",
            description=f"English-{_name}, built in: dates, quantities, money, names, from Unicode CLDR through Babel",
            source_language="en",
            target_language=_language,
            **_corpora,
            vocab_size=VOCAB_SIZE,
            max_length=128,
            example="Friday, November 20, 2026 at 5:30 PM",
        )
    )
