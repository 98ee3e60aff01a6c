"""Several training corpora: one path of preparation for text files, TSV and TMX, and an account of each."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from helpers.prepared_data import bytes_of, records
from helpers.tiny_model import silent

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.corpora import corpus_of, read_pairs
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Pair, Problem, TextFiles, TmxFile, TsvFile

NEWS = [(f"the red house number {n}", f"das rote Haus Nummer {n}") for n in range(200)]
WEB = [(f"click & see page {n}", f"siehe Seite {n}") for n in range(90)]
MEMORY = [(f"press button {n}", f"Knopf {n} drücken") for n in range(50)]
TOO_LONG = ("much " * 60, "viel")
ALL = (NEWS, WEB, MEMORY)


def tmx(pairs: list[Pair], target: str = "de-DE") -> str:
    units = (
        f'<tu><tuv xml:lang="EN"><seg>{escape(a)}</seg></tuv><tuv xml:lang="{target}"><seg>{b}</seg></tuv></tu>\n'
        for a, b in pairs
    )
    return f"<tmx><body>{''.join(units)}</body></tmx>"


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """Three corpora of three kinds, each with pairs that are dropped, and validation text of two."""
    sides = [tmp_path / "news.en", tmp_path / "news.de"]
    for path, side in zip(sides, zip(*NEWS, ("", "leer"), strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in side), "utf-8")
    for name, pairs in (("web.tsv.gz", [*WEB, TOO_LONG]), ("valid.tsv.gz", WEB[:4])):
        (tmp_path / name).write_bytes(gzip.compress("".join(f"{a}\t{b}\n" for a, b in pairs).encode()))
    memory = tmx(MEMORY).replace("</body>", f"{tmx([('only', 'seulement')], 'fr')[len('<tmx><body>') :]}", 1)
    (tmp_path / "memory.tmx").write_text(memory.replace("</body></tmx></tmx>", "</body></tmx>"), "utf-8")
    (tmp_path / "valid.tmx").write_text(tmx(MEMORY[:3]), "utf-8")

    def path(name: str) -> str:
        return str(tmp_path / name)

    return Problem(
        name="several",
        description="",
        train=(
            TextFiles(*map(str, sides)),
            TsvFile(path("web.tsv.gz"), "web"),
            TmxFile(path("memory.tmx"), "en", "de"),
        ),
        validation=(TmxFile(path("valid.tmx"), "en", "de"), TsvFile(path("valid.tsv.gz"))),
        vocab_size=340,
        max_length=60,
    )


def corpora_of(dataset: Dataset, split: str) -> list[int]:
    """Returns the number of the corpus of each pair."""
    return input_pipeline._corpora(input_pipeline._all_records(dataset.shards(split))).numpy().tolist()


def test_all_kinds_of_corpora_are_prepared_together(problem: Problem, tmp_path: Path):
    said: list[str] = []
    dataset = prepare(problem, str(tmp_path / "data"), said.append)
    assert Counter(records(dataset, "train")) == Counter(NEWS + WEB + MEMORY)
    assert records(dataset, "validation") == MEMORY[:3] + WEB[:4]
    for split, texts in (("train", ALL), ("validation", (MEMORY, WEB))):
        for pair, corpus in zip(records(dataset, split), corpora_of(dataset, split), strict=True):
            assert pair in texts[corpus]
    dropped = "dropped 1 of 51 units, which do not have both 'en' and 'de'"
    assert f"{tmp_path}/memory.tmx: {dropped}" in said
    assert [line for line in said if line.endswith("; pairs of news.en 200, web 90, memory.tmx 50")]


def test_dataset_json_has_pairs_and_tokens_of_each_corpus(problem: Problem, tmp_path: Path):
    dataset = prepare(problem, str(tmp_path / "data"), silent)
    record = json.loads(Path(dataset.directory, "dataset.json").read_text("utf-8"))
    train = record["splits"]["train"]
    assert [(each["name"], each["pairs"]) for each in train["corpora"]] == [
        ("news.en", 200),
        ("web", 90),
        ("memory.tmx", 50),
    ]
    for side in ("inputs", "targets"):
        assert sum(each["tokens"][side] for each in train["corpora"]) == train["tokens"][side]
    lengths = Counter[int]()
    for batch in input_pipeline.evaluation_batches(dataset.shards("train")).as_numpy_iterator():
        lengths[int(batch["corpus"])] += int((batch["inputs"] > 0).sum())
    assert [lengths[number] for number in range(3)] == [each["tokens"]["inputs"] for each in train["corpora"]]
    assert [each["name"] for each in record["splits"]["validation"]["corpora"]] == ["valid.tmx", "valid.tsv.gz"]
    assert [each["lines"] for each in record["corpora"]["train"]] == [201, 91, 50]
    assert record["corpora"]["train"][2]["without_language"] == 1
    described = record["sources"]["train"]
    assert (described[1]["name"], described[2]["tmx"]["languages"]) == ("web", "en-de")
    assert described[1]["tsv"]["sha256"] and described[2]["tmx"]["bytes"] == os.path.getsize(tmp_path / "memory.tmx")


def test_validation_split_keeps_the_corpus_of_its_pairs(problem: Problem, tmp_path: Path):
    dataset = prepare(replace(problem, validation=()), str(tmp_path / "data"), silent)
    found = Counter(corpora_of(dataset, "validation"))
    shares = dataset.record.splits["validation"].corpora
    assert shares and [share.pairs for share in shares] == [found[number] for number in range(3)]
    assert len(found) > 1 and [share.name for share in shares] == ["news.en", "web", "memory.tmx"]
    for pair, corpus in zip(records(dataset, "validation"), corpora_of(dataset, "validation"), strict=True):
        assert pair in ALL[corpus]


@pytest.mark.parametrize("sample", [7, 100, 341])
def test_sample_keeps_the_corpus_of_its_pairs(problem: Problem, tmp_path: Path, sample: int):
    """Whatever the sizes of corpora and sample, a pair has the number of the corpus that it comes from."""
    dataset = prepare(replace(problem, sample=sample), str(tmp_path / "data"), silent)
    for pair, corpus in zip(records(dataset, "train"), corpora_of(dataset, "train"), strict=True):
        assert pair in ALL[corpus]
    assert dataset.record.splits["train"].pairs_read == sample


def test_filters_name_the_place_in_each_kind_of_corpus(problem: Problem, tmp_path: Path):
    pair = "the same words twice"
    news, target = (tmp_path / f"news.{side}" for side in ("en", "de"))
    for path in (news, target):
        path.write_text(f"{pair} 1\n{path.read_text('utf-8')}", "utf-8")
    web = tmp_path / "web.tsv.gz"
    web.write_bytes(gzip.compress(gzip.decompress(web.read_bytes()) + f"{pair} 2\t{pair} 2\n".encode()))
    memory = tmp_path / "memory.tmx"
    memory.write_text(memory.read_text("utf-8").replace("</body>", tmx([(f"{pair} 3", f"{pair} 3")])[11:-6]), "utf-8")
    problem = replace(problem, filters=("identical",))
    dataset = prepare(problem, str(tmp_path / "data"), silent)
    train = dataset.record.splits["train"]
    places = [f"{news}, line 1", f"{web}, line 92", f"{memory}, pair 51"]
    assert train.filtered is not None and [example.place for example in train.filtered["identical"]] == places
    assert [share.pairs for share in train.corpora or ()] == [200, 90, 50]
    assert Counter(corpora_of(dataset, "train")) == {0: 200, 1: 90, 2: 50}


def test_corpus_of_passes_over_empty_corpora():
    assert [corpus_of(number, (2, 2, 3)) for number in range(3)] == [0, 0, 2]
    assert corpus_of(0, ()) is None


def test_weights_do_not_change_the_data(problem: Problem, tmp_path: Path):
    """They may change without preparing again."""
    plain = prepare(problem, str(tmp_path / "plain"), silent)
    weighted = replace(problem, train_weight=(1, 2, 0.5))
    assert bytes_of(prepare(weighted, str(tmp_path / "weighted"), silent).directory) == bytes_of(plain.directory)
    said: list[str] = []
    prepare(replace(problem, train_temperature=5), str(tmp_path / "plain"), said.append, verify=True)
    assert said == [f"{tmp_path}/plain/{problem.name}: all bytes are as they were written"]


def test_another_name_or_language_is_other_data(problem: Problem, tmp_path: Path):
    prepare(problem, str(tmp_path / "data"), silent)
    for position, changes in ((1, {"name": "pages"}), (2, {"target_language": "fr"})):
        train = list(problem.train)
        train[position] = replace(train[position], **changes)
        with pytest.raises(ValueError, match="holds other data: its train text was .* (named pages|en-fr)") as error:
            prepare(replace(problem, train=tuple(train)), str(tmp_path / "data"), silent)
        assert "named web" in str(error.value) and "en-de" in str(error.value)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("held", [pytest.param(False, marks=pytest.mark.slow), True])
def test_preparation_resumes_after_every_write(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
):
    """Stops before the n-th rename of a complete file, for every n; the next start gives the same bytes."""
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 150)
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 64)
    problem = replace(problem, validation=() if held else problem.validation)
    expected = bytes_of(prepare(problem, str(tmp_path / "whole"), silent).directory)
    rename, left = os.replace, 0

    def limited(source: str, target: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Stopped
        rename(source, target)

    monkeypatch.setattr(os, "replace", limited)
    for stop in range(60):
        data, left = str(tmp_path / f"data{stop}"), stop
        try:
            prepare(problem, data, silent)
            break
        except Stopped:
            left = 1_000
            assert bytes_of(prepare(problem, data, silent).directory) == expected
    assert 15 < stop < 59


def test_beam_writes_the_same(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("apache_beam", reason="the extra 'beam' is not installed")
    from t2t_repro.preparation.encoding import beam_pipeline

    monkeypatch.setattr(beam_pipeline, "CHUNK_PAIRS", 100)
    monkeypatch.setattr(beam_pipeline, "BATCH_PAIRS", 30)
    here = prepare(problem, str(tmp_path / "here"), silent)
    there = prepare(problem, str(tmp_path / "there"), silent, beam=["--runner=DirectRunner"])
    assert bytes_of(here.directory) == bytes_of(there.directory)


def test_a_chunk_read_alone_has_the_same_pairs(problem: Problem):
    """As a worker of Beam reads it."""
    for corpus in problem.train:
        pairs = list(read_pairs(corpus))  # type: ignore[arg-type]
        assert list(read_pairs(corpus, 17)) == pairs[17:]  # type: ignore[arg-type]


# TSV.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\td\te\n", "line 2: expected source and target separated by one tab, got 3 columns"),
        (b"a\tb\n\nc\td\n", "line 2: expected source and target separated by one tab, got 1 column$"),
        (b"a b\n", "line 1: expected source and target separated by one tab, got 1 column$"),
        (b"a\tb\ncaf\xe9\tc\n", "line 2: not UTF-8"),
    ],
)
def test_tsv_errors_name_the_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "text.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"text.tsv, {message}"):
        list(read_pairs(TsvFile(str(path))))


def test_empty_tsv_is_an_error(tmp_path: Path):
    path = tmp_path / "text.tsv.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="is empty; expected two columns separated by a tab"):
        list(read_pairs(TsvFile(str(path))))


def test_columns_may_be_empty(tmp_path: Path):
    path = tmp_path / "text.tsv"
    path.write_bytes(b"\tb\r\na\t\n")
    assert list(read_pairs(TsvFile(str(path)))) == [("", "b"), ("a", "")]
