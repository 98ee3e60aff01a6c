"""Sources: what a line is, and one clear error for each thing that is wrong with a file."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_repro.preparation import statistics
from t2t_repro.preparation.corpora import describe, read_pairs
from t2t_repro.problem import Generated, Pair, TextFiles, TmxFile, Trees, TsvFile
from t2t_repro.text import lines
from t2t_repro.text.lines import decode_lines


@pytest.fixture
def files(tmp_path: Path):
    """`files(b"...", b"...")`: a corpus of two files of those bytes; through gzip where `gz`."""

    def make(source: bytes, target: bytes, gz: bool = False) -> TextFiles:
        paths = [tmp_path / f"{name}{'.gz' * gz}" for name in ("text.en", "text.de")]
        for path, content in zip(paths, (source, target), strict=True):
            path.write_bytes(gzip.compress(content) if gz else content)
        return TextFiles(*map(str, paths))

    return make


@pytest.mark.parametrize("gz", [False, True])
def test_pairs_in_order(files, gz: bool):
    corpus = files("one\n\nthrée".encode(), b"eins\r\nzwei\r\n\r\n", gz)
    assert list(read_pairs(corpus)) == [("one", "eins"), ("", "zwei"), ("thrée", "")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\n", ["a"]),
        (b"a", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n", [""]),
        (b"a\r\nb\r\r\nc\rd\n", ["a", "b\r", "c\rd"]),
        ("a\u2028b\u0085c\x0bd\x0ce\x1cf\n g ".encode(), ["a\u2028b\u0085c\x0bd\x0ce\x1cf", " g "]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"a\0b\n", ["a\0b"]),
    ],
)
def test_lines_end_with_newline_only(content: bytes, expected: list[str]):
    assert list(decode_lines(io.BytesIO(content), "x")) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("character", ["a", "é", "漢"])
def test_a_long_line_is_an_error_or_cut_and_still_too_long(character: str, end: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    for length in range(98, 320):
        line = "x" * (length % 3) + character * (length // len(character.encode()))
        content = line.encode()
        stream = b"before\n" + content + end
        if len(content) <= 100:
            assert list(decode_lines(io.BytesIO(stream), "x")) == ["before", line]
        else:
            with pytest.raises(ValueError, match="x, line 2: longer than 100 bytes; expected one sentence per line"):
                list(decode_lines(io.BytesIO(stream), "x"))
        after = [line, "after"] if end else [line]
        found = list(decode_lines(io.BytesIO(stream + b"after\n" * bool(end)), "x", cut=True))
        assert [found[0], *found[2:]] == ["before", *after[1:]]
        assert statistics.is_overlong(found[1]) == statistics.is_overlong(line) == (len(content) > 100)
        assert len(found[1].encode()) <= 105 and (found[1] == line or len(content) > 100)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), min_size=1))
def test_lines_written_are_lines_read(texts: list[str]):
    texts[0] = texts[0].lstrip("\ufeff")
    assert list(decode_lines(io.BytesIO("".join(text + "\n" for text in texts).encode()), "x")) == texts


@pytest.mark.parametrize(
    "line", ['<seg id="1">a</seg> <seg id="2">b</seg>', '<SEG id="1">a</SEG>', '<seg id="1">a', "a</Seg>", "<seg>a"]
)
def test_line_of_sgml_has_one_segment(tmp_path: Path, line: str):
    path = tmp_path / "text.sgm"
    path.write_text(f'<doc docid="segments">\n<seg id="1">x < y</seg>\n{line}\n')
    with pytest.raises(ValueError, match=r'text.sgm, line 3: expected <seg id="N">...</seg> on one line, got '):
        list(lines.read_lines(str(path)))


def test_missing_file_is_an_error(files, tmp_path: Path):
    corpus = TextFiles(files(b"a\n", b"b\n").source, str(tmp_path / "nowhere.de"))
    for read in (lambda: list(read_pairs(corpus)), lambda: describe(corpus)):
        with pytest.raises(FileNotFoundError, match=r"no file '.*nowhere\.de'; give a text file"):
            read()


def test_directory_is_an_error(files, tmp_path: Path):
    with pytest.raises(ValueError, match="is a directory; give a text file"):
        list(read_pairs(TextFiles(files(b"a\n", b"b\n").source, str(tmp_path))))


def test_pipe_is_an_error(files, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe' is not a regular file, and text is read more than once"):
        list(read_pairs(TextFiles(str(tmp_path / "pipe"), files(b"a\n", b"b\n").target)))


def test_empty_files_are_an_error(files):
    with pytest.raises(ValueError, match=r"text\.de is empty; expected one sentence per line"):
        list(read_pairs(files(b"a\n", b"")))
    with pytest.raises(ValueError, match=r"text\.en\.gz and .*text\.de\.gz are empty"):
        list(read_pairs(files(b"", b"", gz=True)))


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        (TsvFile("empty"), "two columns separated by a tab"),
        (TmxFile("empty", "en", "de"), "translation units in TMX"),
        (Trees("empty"), "trees in Penn Treebank bracketing"),
    ],
)
def test_error_of_an_empty_file_names_what_it_should_have(corpus, expected: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("")
    with pytest.raises(ValueError, match=f"^empty is empty; expected {expected}$"):
        describe(corpus)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [(b"a\nb\nc\n", b"x\n", (3, 1)), (b"a\n", b"x\ny\nz\nw", (1, 4)), (b"\n\n", b"\n", (2, 1))],
)
def test_files_of_unequal_length_are_an_error(files, gz: bool, source: bytes, target: bytes, counts: tuple[int, int]):
    with pytest.raises(ValueError, match=rf"text\.en\S* has {counts[0]} lines and \S*text\.de\S* has {counts[1]}; "):
        list(read_pairs(files(source, target, gz)))


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("bad", [b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"a\xf0\x9f"])
def test_text_that_is_not_utf8_is_an_error(files, gz: bool, bad: bytes):
    with pytest.raises(ValueError, match=r"text\.de\S*, line 3: not UTF-8 \(byte 0x.. at position \d\); convert"):
        list(read_pairs(files(b"a\n" * 4, b"fine\n\n" + bad + b"\nd\n", gz)))


def test_truncated_gzip_is_an_error(files):
    corpus = files(os.urandom(5000).hex().encode() + b"\n", b"x\n", gz=True)
    whole = Path(corpus.source).read_bytes()
    Path(corpus.source).write_bytes(whole[:-1000])
    with pytest.raises(ValueError, match=r"text\.en\.gz is a truncated gzip file"):
        list(read_pairs(corpus))


def test_damaged_gzip_is_an_error(files):
    corpus = files(b"a line of text\n" * 100, b"x\n" * 100, gz=True)
    whole = Path(corpus.source).read_bytes()
    for content in (b"plain text\n", whole[:20] + b"\xff\xff\xff" + whole[23:], whole[:-6] + b"\0" * 6):
        Path(corpus.source).write_bytes(content)
        with pytest.raises(ValueError, match=r"text\.en\.gz is not a valid gzip file"):
            list(read_pairs(corpus))


def test_gigantic_lines_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    assert list(decode_lines(io.BytesIO(b"0123456789\r\n0123456789"), "x")) == ["0123456789"] * 2

    class Endless(io.RawIOBase):
        read_so_far = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
            self.read_so_far += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    endless = Endless()
    with pytest.raises(ValueError, match="here, line 1: longer than 10 bytes; expected one sentence per line"):
        list(decode_lines(io.BufferedReader(endless, 64), "here"))
    assert endless.read_so_far < 1000


def two(first: str = "a", second: str = "b") -> Iterator[Pair]:
    yield first, second
    yield second, first


@dataclass(frozen=True)
class Made:
    kind: str

    def __call__(self) -> Iterator[Pair]:
        yield self.kind, self.kind


def test_generated_pairs():
    assert list(read_pairs(Generated(two))) == [("a", "b"), ("b", "a")]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_text_of_another_name_or_format_is_an_error_that_says_so(files, compress):
    with pytest.raises(ValueError, match=r"text\.en is compressed; only gzip files whose names end in \.gz are read"):
        list(read_pairs(files(compress(b"a\n"), b"b\n")))


@pytest.mark.parametrize("bad", ["ab", ("a",), ("a", 3), ["a", "b"], None])
def test_generated_values_that_are_not_pairs_are_an_error(bad: object):
    with pytest.raises(ValueError, match=r"builtins\.iter\(.*\) gave .*; expected a pair \(source text, target text\)"):
        list(read_pairs(Generated(functools.partial(iter, [bad]))))  # type: ignore[arg-type]


def test_generated_text_that_is_not_unicode_is_an_error_with_its_number():
    corpus = Generated(functools.partial(iter, [("a", "b"), ("c", "d\udc80")]))
    with pytest.raises(ValueError, match=r"builtins\.iter\(.*\), pair 2: a lone surrogate U\+DC80 is not Unicode text"):
        list(read_pairs(corpus))


def test_generator_without_pairs_is_an_error():
    with pytest.raises(ValueError, match="gave no pairs"):
        list(read_pairs(Generated(functools.partial(iter, ()))))


def test_files_are_described(files):
    corpus = files(b"a\n", b"bc\n")
    described = describe(corpus)
    assert described["target"]["bytes"] == 3
    assert described["source"]["sha256"] == "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"
    relative = describe(TextFiles(os.path.relpath(corpus.source), os.path.relpath(corpus.target)))
    assert relative == described
    assert "sha256" not in describe(corpus, hashed=False)["source"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (two, "test_corpora.two"),
        (functools.partial(two, "x", second="y"), "test_corpora.two('x', second='y')"),
        (Made("k"), "test_corpora.Made(kind='k')"),
    ],
)
def test_generators_are_described(function, name: str):
    assert describe(Generated(function), hashed=False) == {"function": name}
    assert describe(Generated(function))["versions"].keys() >= {"t2t_repro"}
