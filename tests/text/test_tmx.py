"""TMX: which pairs a translation memory gives, and one line for everything that is wrong with it."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from t2t_repro.text.tmx import _Units, read_units

MIB = 1 << 20


@pytest.fixture
def tmx(tmp_path: Path) -> Callable[..., str]:
    """`tmx(units)`: writes a file with these units; if `whole`, the given document."""

    def write(body: str | bytes, name: str = "memory.tmx", whole: bool = False) -> str:
        content = body if isinstance(body, bytes) else body.encode()
        if not whole:
            head = b'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
            content = head + b'<tmx version="1.4"><header srclang="en"/><body>\n' + content + b"\n</body></tmx>\n"
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    return write


def unit(*variants: tuple[str, str], attribute: str = "xml:lang") -> str:
    inside = "".join(f'<tuv {attribute}="{language}"><seg>{text}</seg></tuv>' for language, text in variants)
    return f"<tu><prop>ignored</prop>{inside}</tu>\n"


def read(path: str, source: str = "en", target: str = "de") -> list[tuple[str, str] | None]:
    return list(read_units(path, source, target))


@pytest.mark.parametrize("name", ["memory.tmx", "memory.tmx.gz"])
def test_units_in_order(tmx, name: str):
    path = tmx(unit(("en", "one &amp; two"), ("de", "eins &#38; zwei")) + unit(("de", "drei"), ("en", "thrée")), name)
    assert read(path) == [("one & two", "eins & zwei"), ("thrée", "drei")]
    assert read(path, "de", "en") == [("eins & zwei", "one & two"), ("drei", "thrée")]


@pytest.mark.parametrize(
    ("asked", "given", "matches"),
    [
        ("en", "en", True),
        ("en", "EN", True),
        ("EN", "en", True),
        ("en", "en-US", True),
        ("en", "en_gb", True),
        ("en-US", "EN-us", True),
        ("pt_BR", "pt-br", True),
        ("en-US", "en", False),
        ("en-US", "en-GB", False),
        ("en", "eng", False),
        ("en", "", False),
    ],
)
def test_language_matches_in_any_case_and_with_any_region(tmx, asked: str, given: str, matches: bool):
    path = tmx(unit(("de", "eins"), (given, "one")) + unit((asked, "two"), ("de", "zwei")))
    assert read(path, asked) == [("one", "eins") if matches else None, ("two", "zwei")]


def test_unit_without_a_language_is_none_and_the_first_variant_is_taken(tmx):
    units = unit(("en", "a"), ("fr", "b")) + unit(("en-GB", "colour"), ("en-US", "color"), ("de", "Farbe")) + "<tu/>"
    assert read(tmx(units)) == [None, ("colour", "Farbe"), None]


def test_variant_with_a_region_that_is_asked_for_is_not_text_of_its_language_too(tmx):
    path = tmx(unit(("pt-BR", "ônibus"), ("pt-BR", "coletivo"), ("pt", "autocarro")) + unit(("pt-BR", "trem")))
    assert read(path, "pt", "pt-BR") == [("autocarro", "ônibus"), None]
    assert read(path, "pt-BR", "pt") == [("ônibus", "autocarro"), None]


def test_no_unit_with_the_languages_is_an_error_that_lists_those_of_the_file(tmx):
    path = tmx(unit(("en-US", "a"), ("fr", "b")))
    with pytest.raises(ValueError, match=r"memory\.tmx has no unit with 'en' and 'de'; its languages: en-us, fr; give"):
        read(path)


def test_language_attribute_of_tmx_1_1(tmx):
    assert read(tmx(unit(("en", "a"), ("de", "b"), attribute="lang"))) == [("a", "b")]


def test_formatting_codes_are_left_out_and_highlights_kept(tmx):
    text = 'press <bpt i="1">&lt;b&gt;<sub>note</sub></bpt><hi>Save</hi><ept i="1">x</ept> now<ph>{0}</ph><it/>'
    assert read(tmx(unit(("en", text), ("de", "Speichern <ut>y</ut>jetzt")))) == [("press Save now", "Speichern jetzt")]


def test_line_breaks_in_a_segment_become_spaces(tmx):
    assert read(tmx(unit(("en", "\n  one\r\n\ttwo\n"), ("de", "eins  zwei")))) == [("one two", "eins  zwei")]


def test_long_run_of_spaces_is_read_in_a_moment(tmx):
    text = "a" + " " * 200_000 + "b"
    started = time.process_time()
    assert read(tmx(unit(("en", text), ("de", "c\n d")))) == [(text, "c d")]
    assert time.process_time() - started < 3


def test_empty_segments_are_pairs_that_preparation_drops(tmx):
    assert read(tmx(unit(("en", ""), ("de", "b")))) == [("", "b")]


def test_utf16(tmx):
    document = f'<?xml version="1.0" encoding="UTF-16"?><tmx>{unit(("en", "é"), ("de", "ü"))}</tmx>'
    assert read(tmx(document.encode("utf-16"), whole=True)) == [("é", "ü")]


BILLION = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (f'<!DOCTYPE tmx [<!ENTITY a0 "ha">\n{BILLION}]><tmx>&a9;</tmx>', "line 1: the entity &a0; is not allowed"),
        ('<!DOCTYPE tmx [\n<!ENTITY x SYSTEM "/etc/passwd">]><tmx>&x;</tmx>', "line 2: the entity &x; is not allowed"),
        ('<!DOCTYPE tmx [<!ENTITY % p SYSTEM "p.dtd"> %p;]><tmx/>', "line 1: the entity &p; is not allowed"),
        ('<!DOCTYPE tmx SYSTEM "t.dtd">\n<tmx>&nbsp;</tmx>', "line 2: the entity &nbsp; is not allowed"),
        ("<tmx>\n<tu>\n</tmx>", r"line 3: not valid XML \(mismatched tag\); export the file again"),
        ("<tmx>\n<tu>", r"line 2: not valid XML \(no element found\)"),
        ("<tmx>\n&nbsp;</tmx>", r"line 2: not valid XML \(undefined entity\)"),
        ("one\ttwo\n", r"line 1: not valid XML \(syntax error\)"),
        ("<xliff></xliff>", "line 1: expected a TMX file, <tmx>, got <xliff>"),
        (b"<tmx>\n<tu>caf\xe9</tu></tmx>", r"line 2: not valid XML \(not well-formed \(invalid token\)\)"),
        (b"<tmx>\n" + b"<a>" * 100, "line 2: more than 64 nested elements"),
        *(
            (f'<?xml version="1.0" encoding="{name}"?><tmx/>', r"line 1: expected UTF-8, .*\(.*\); export it as UTF-8")
            for name in ("nonsense", "GB18030", "Shift_JIS", "base64", "idna")
        ),
    ],
)
def test_malformed_file_is_an_error_with_its_line(tmx, document: str | bytes, message: str):
    path = tmx(document, whole=True)
    with pytest.raises(ValueError, match=f"memory.tmx, {message}"):
        read(path)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"<!--", "a tag or comment longer than 1,048,576 bytes"),
        (b'<tu a="', "a tag or comment longer than 1,048,576 bytes"),
        (b'<tu><tuv lang="en"><seg>', "a segment longer than 1,048,576 bytes"),
    ],
)
def test_gigantic_text_does_not_fill_the_memory(tmx, start: bytes, message: str):
    """64 MiB that compress to 64 kB."""
    path = tmx(b"<tmx>" + start + b"x" * (64 * MIB), "memory.tmx.gz", whole=True)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"memory.tmx.gz, line 1: {message}"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(tmx):
    path = tmx("".join(unit(("en", f"the house number {n}"), ("de", f"das Haus {n}")) for n in range(20_000)))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_units(path, "en", "de")) == 20_000
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_units_that_expat_returns_at_the_end_are_read(tmx, monkeypatch: pytest.MonkeyPatch):
    """Since expat 2.6, those after a long comment come with the end of the file."""
    kept, parse = [], _Units.parse

    def late(self, block: bytes, is_last: bool = False):
        kept.extend(parse(self, block, is_last))
        return list(kept) if is_last else []

    monkeypatch.setattr(_Units, "parse", late)
    assert read(tmx(unit(("en", "cat"), ("de", "Katze")))) == [("cat", "Katze")]


def test_truncated_gzip_is_an_error(tmx):
    path = tmx("".join(unit(("en", f"{n}"), ("de", f"{n * n}")) for n in range(1_000)), "memory.tmx.gz")
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"memory\.tmx\.gz is a truncated gzip file"):
        read(path)
