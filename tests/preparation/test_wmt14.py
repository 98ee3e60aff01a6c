"""The WMT14 problems, on archives in miniature: download, SHA-256, unpacking, pairing, and what TFDS itself makes of
them. Everything but the text and its sums is the real path."""

from __future__ import annotations

import dataclasses
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.wmt_archives import sums, write_archives

from t2t_repro.data.dataset_record import CorpusRecord
from t2t_repro.preparation import downloads
from t2t_repro.preparation.corpora import CorpusFiles, describe, read_pairs
from t2t_repro.preparation.downloads import WmtDownloader
from t2t_repro.problem import SPLITS, Pair, Problem, Wmt
from t2t_repro.registry import PROBLEMS

TRAIN = {
    "de": ["europarl_v7", "commoncrawl", "newscommentary_v9"],
    "fr": ["europarl_v7", "commoncrawl", "multiun", "newscommentary_v9", "gigafren"],
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, list[Pair]]]]:
    """The folder of the miniature archives, and what they hold. Do not change them."""
    folder = tmp_path_factory.mktemp("raw")
    return folder, write_archives(folder)


@pytest.fixture
def raw(archives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the archives, whose sums stand for the real ones."""
    from tensorflow_datasets.core.download import checksums

    folder = tmp_path / "raw"
    shutil.copytree(archives[0], folder)
    monkeypatch.setattr(downloads, "_sums", sums(archives[0]))
    yield folder
    checksums.get_all_url_infos.cache_clear()  # each DownloadManager writes its sums into this cached dictionary


def problem(language: str, raw_dir: Path | None = None) -> Problem:
    """The registered problem without its line counts, which are those of the real text."""
    real = PROBLEMS[f"translate_en{language}_wmt14"]
    splits = {split: tuple(dataclasses.replace(each, lines=()) for each in real.corpora(split)) for split in SPLITS}
    changed = dataclasses.replace(real, vocab_size=420, **splits)
    return changed.with_raw_dir(str(raw_dir)) if raw_dir else changed


def read(texts: list[CorpusFiles]) -> list[Pair]:
    return [pair for text in texts for pair in read_pairs(text.files)]


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("language", ["de", "fr"])
def test_every_pair_in_order_from_raw_dir(archives, raw: Path, tmp_path: Path, language: str):
    held = archives[1][language]
    here = WmtDownloader(str(tmp_path / "downloads"), silent)
    asked = problem(language, raw)
    train = here.fetch(asked.train[0])
    assert [text.name for text in train] == TRAIN[language]
    assert read(train) == [pair for name in TRAIN[language] for pair in held[name]]
    assert read(here.fetch(asked.validation[0])) == held["newstest2013"]
    assert read(here.fetch(asked.test[0])) == held["newstest2014"]
    assert not [name for name in os.listdir(tmp_path / "downloads") if name.startswith("wmt")]  # nothing downloaded


@pytest.mark.parametrize("language", ["de", "fr"])
def test_the_same_pairs_as_tensorflow_datasets(raw: Path, tmp_path: Path, language: str):
    """Its own unpacking and pairing, on the same archives; it leaves out pairs with an empty side."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(f"wmt14_translate/{language}-en", data_dir=tmp_path / "tfds")
    manager = tfds.download.DownloadManager(
        download_dir=tmp_path / "tfds", manual_dir=raw, url_infos=downloads._sums(builder)
    )
    here = WmtDownloader(str(tmp_path / "downloads"), silent)
    for generator in builder._split_generators(manager):
        theirs = [(pair["en"], pair[language]) for _, pair in builder._generate_examples(**generator.gen_kwargs)]
        ours = read(here.fetch(problem(language, raw).corpora(str(generator.name))[0]))
        assert [pair for pair in ours if all(pair)] == theirs


def test_languages_can_be_swapped(archives, raw: Path, tmp_path: Path):
    (corpus,) = problem("de", raw).test
    turned = dataclasses.replace(corpus, source_language="de", target_language="en")
    pairs = read(WmtDownloader(str(tmp_path / "downloads"), silent).fetch(turned))
    assert pairs == [(german, english) for english, german in archives[1]["de"]["newstest2014"]]


def test_description_needs_no_files():
    (corpus,) = PROBLEMS["translate_enfr_wmt14"].train
    brief = {"dataset": "wmt14_translate/fr-en", "split": "train", "languages": "en-fr"}
    assert describe(corpus, hashed=False) == brief
    archives = describe(dataclasses.replace(corpus, raw_dir="/anywhere"), hashed=True).pop("archives")
    assert {os.path.basename(url) for url in archives} == {
        *("dev.tgz", "training-giga-fren.tar", "training-parallel-commoncrawl.tgz"),
        *("training-parallel-europarl-v7.tgz", "training-parallel-nc-v9.tgz", "training-parallel-un.tgz"),
    }
    assert all(len(sha256) == 64 for sha256 in archives.values())  # tensorflow-datasets knows them all


def test_the_declared_line_counts_are_of_its_corpora():
    for language, train in TRAIN.items():
        real = PROBLEMS[f"translate_en{language}_wmt14"]
        (corpus,) = real.train
        assert {name for name, _ in corpus.lines} == {*train, "newstest2013", "newstest2014"}
    assert (
        sum(lines for name, lines in PROBLEMS["translate_ende_wmt14"].train[0].lines if "test" not in name) == 4520620
    )
    assert (
        sum(lines for name, lines in PROBLEMS["translate_enfr_wmt14"].train[0].lines if "test" not in name) == 40842333
    )


# What is there is checked, not trusted.


def test_archive_with_another_sha256_is_rejected(raw: Path, tmp_path: Path):
    with open(raw / "dev.tgz", "ab") as file:
        file.write(b"more")
    address = r"Artifact http://data\.statmt\.org/wmt19/translation-task/dev\.tgz, .*raw/dev\.tgz, has wrong checksum"
    with pytest.raises(ValueError, match=f"{address}: WMT has other archives of the same name; remove the file, or"):
        WmtDownloader(str(tmp_path / "downloads"), silent).fetch(problem("de", raw).test[0])


def test_damaged_unpacked_files_are_unpacked_again(archives, raw: Path, tmp_path: Path):
    (corpus,) = problem("de", raw).test
    said: list[str] = []

    def unpacked() -> list[str]:
        said.clear()
        found = WmtDownloader(str(tmp_path / "downloads"), said.append).fetch(corpus)
        assert read(found) == archives[1]["de"]["newstest2014"]
        return [os.path.basename(line) for line in said if line.startswith("unpacking")]

    assert len(unpacked()) == 4
    assert unpacked() == []
    (file,) = (tmp_path / "downloads").glob("unpacked/*/dev.tgz/dev/newstest2014-deen-src.de.sgm")
    content = file.read_bytes()
    for damaged in (content[:-5], content.replace(b"Haus", b"Maus")):
        file.write_bytes(damaged)
        assert unpacked() == ["dev.tgz"]
    file.unlink()
    assert unpacked() == ["dev.tgz"]
    (file.parent.parent / "unpacked.json").unlink()
    assert unpacked() == ["dev.tgz"]


def test_archive_without_its_files_is_rejected(archives, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(raw / "training-parallel-un.tgz", raw / "dev.tgz")
    monkeypatch.setattr(downloads, "_sums", sums(raw))
    with pytest.raises(ValueError, match=r"dev\.tgz does not contain dev/newstest2013\.de, .*; download it again"):
        WmtDownloader(str(tmp_path / "downloads"), silent).fetch(problem("de", raw).test[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "wmt14_translate/en-de"}, "tensorflow-datasets has no WMT data set 'wmt14_translate/en-de'"),
        ({"dataset": "mnist"}, "tensorflow-datasets has no WMT data set 'mnist'"),
        ({"dataset": "no_such_thing"}, "tensorflow-datasets has no WMT data set 'no_such_thing'"),
        ({"target_language": "fr"}, "wmt14_translate/de-en has the languages de and en, not en and fr"),
        ({"split": "dev"}, "wmt14_translate/de-en has no split 'dev'; it has train, validation, test"),
        (
            {"dataset": "wmt14_translate/cs-en", "target_language": "cs"},
            "wmt14_translate: the corpus czeng_10 is not two files of one archive",
        ),
    ],
)
def test_unknown_data_set_is_rejected(raw: Path, tmp_path: Path, change: dict, message: str):
    corpus = dataclasses.replace(problem("de", raw).test[0], **change)
    with pytest.raises(ValueError, match=f"^{message}"):
        WmtDownloader(str(tmp_path / "downloads"), silent).fetch(corpus)
    if "split" in change:
        assert not (tmp_path / "downloads").exists()  # nothing was downloaded


# Downloading, from a server of our own that stands for statmt.org as a proxy does.


@pytest.fixture
def server(raw: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serves the archives for any host; gives the names that were asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = os.path.basename(self.path)
            asked.append(name)
            path = raw / name
            self.send_response(200 if path.exists() else 404)
            self.end_headers()
            if path.exists():
                self.wfile.write(path.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{serving.server_port}")
        monkeypatch.setenv("no_proxy", "")
        yield asked
        serving.shutdown()


def test_archive_is_downloaded_once_and_again_if_damaged(archives, server: list[str], tmp_path: Path):
    corpus = problem("de").test[0]
    folder = tmp_path / "downloads"
    expected = archives[1]["de"]["newstest2014"]
    assert read(WmtDownloader(str(folder), silent).fetch(corpus)) == expected
    names = ["training-parallel-europarl-v7.tgz", "training-parallel-commoncrawl.tgz", "training-parallel-nc-v9.tgz"]
    assert sorted(server) == sorted([*names, "dev.tgz"])
    server.clear()
    assert read(WmtDownloader(str(folder), silent).fetch(corpus)) == expected
    shutil.rmtree(folder / "unpacked")
    assert read(WmtDownloader(str(folder), silent).fetch(corpus)) == expected
    assert server == []  # what was downloaded is there
    shutil.rmtree(folder / "unpacked")
    (cached,) = folder.glob("wmt14_translate/*dev*.tgz")
    cached.write_bytes(cached.read_bytes()[:-7])
    leftover = folder / "wmt14_translate" / "x.tmp.0123"
    leftover.mkdir()
    assert read(WmtDownloader(str(folder), silent).fetch(corpus)) == expected
    assert server == ["dev.tgz"] and not leftover.exists()


def test_failed_download_is_reported(raw: Path, server: list[str], tmp_path: Path):
    (raw / "training-parallel-commoncrawl.tgz").unlink()
    with pytest.raises(
        OSError, match=r"wmt14_translate/de-en cannot be downloaded \(Failed to get url .*404.*`raw_dir`: http"
    ):
        WmtDownloader(str(tmp_path / "downloads"), silent).fetch(problem("de").test[0])


def test_another_number_of_lines_is_reported_and_recorded(raw: Path, tmp_path: Path):
    from t2t_repro.preparation.pipeline import prepare

    said: list[str] = []

    asked = problem("de", raw)
    lines = (("commoncrawl", 121),)
    asked = dataclasses.replace(asked, train=(dataclasses.replace(asked.train[0], lines=lines),))
    record = prepare(asked, str(tmp_path / "data"), said.append).record
    assert "commoncrawl has 120 lines, and was known to have 121: see dataset.json" in said
    assert CorpusRecord(name="commoncrawl", lines_known=121, lines=120) in record.corpora["train"]


def test_a_line_above_1_mib_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The archive has the right SHA-256, so nobody may edit it."""
    from t2t_repro.preparation.pipeline import prepare

    folder = tmp_path / "raw"
    folder.mkdir()
    held = write_archives(folder, more_words=300_000)
    monkeypatch.setattr(downloads, "_sums", sums(folder))
    said: list[str] = []
    dataset = prepare(problem("de", folder), str(tmp_path / "data"), said.append)
    train = dataset.record.splits["train"]
    assert (train.pairs_read, train.pairs, train.dropped) == (360, 357, {"empty": 2, "too_long": 1})
    assert dataset.record.corpora["train"][1] == CorpusRecord(name="commoncrawl", lines=120)
    assert any("1 dropped (longer than 256 tokens)" in line for line in said)
    texts = WmtDownloader(str(tmp_path / "data" / "downloads"), silent).fetch(problem("de", folder).train[0])
    expected = [pair for name in TRAIN["de"] for pair in held["de"][name]]
    found = read(texts)
    assert [place for place in range(360) if found[place] != expected[place]] == [120 + 9]


def test_only_downloads_take_a_raw_dir():
    with pytest.raises(
        ValueError, match="'translate_ende_cldr' has no downloaded archives or treebank, and takes no `raw_dir`"
    ):
        PROBLEMS["translate_ende_cldr"].with_raw_dir("R")
    assert Wmt("wmt14_translate/de-en", "test", "en", "de").raw_dir is None


# The whole: t2t-datagen.


@pytest.mark.parametrize(("language", "kind"), [("de", "bpe"), ("fr", "word_piece")])
def test_prepared_from_raw_dir(archives, raw: Path, tmp_path: Path, program, registered, language: str, kind: str):
    from t2t_repro.data.dataset import Dataset

    registered(dataclasses.replace(problem(language), name="mini"))
    command = ["t2t-datagen", "--problem=mini", f"--data_dir={tmp_path}/data"]
    done = program(*command, f"--raw_dir={raw}")
    assert done.code == 0, done.err
    dataset = Dataset.open(f"{tmp_path}/data/mini", verify=True)
    names = TRAIN[language]
    assert dataset.record.corpora["train"] == [CorpusRecord(name=name, lines=120) for name in names]
    splits = dataset.record.splits
    assert splits["train"].pairs == 120 * len(names) - 2
    assert splits["train"].dropped == {"empty": 2}
    assert (splits["validation"].pairs, splits["test"].pairs) == (9, 9)
    assert (dataset.record.vocabulary.kind, dataset.record.vocabulary.size) == (kind, 420)
    shutil.rmtree(raw)
    assert program(*command, "--verify").code == 0  # the prepared data stands alone


class Stopped(BaseException):
    pass


@pytest.mark.slow
def test_unpacking_resumes_after_any_write(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Unpacking included: whatever was last written, the same call ends with the same bytes."""
    from helpers.prepared_data import bytes_of

    from t2t_repro.preparation.pipeline import prepare

    asked, replace = problem("de", raw), os.replace
    names: list[str] = []

    def recorded(temporary: str, path: str) -> None:
        names.append(path)
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", recorded)
    expected = bytes_of(prepare(asked, str(tmp_path / "whole"), silent).directory)
    assert sum("/unpacked/" in name for name in names) == 14  # 10 files of four archives, and their records
    for stop in range(len(names)):
        data, calls = str(tmp_path / f"data{stop}"), iter(range(len(names)))

        def stopped(temporary: str, path: str, stop: int = stop, calls: Iterator[int] = calls) -> None:
            if next(calls) == stop:
                raise Stopped
            replace(temporary, path)

        monkeypatch.setattr(os, "replace", stopped)
        with pytest.raises(Stopped):
            prepare(asked, data, silent)
        monkeypatch.setattr(os, "replace", replace)
        assert bytes_of(prepare(asked, data, silent, verify=True).directory) == expected


def test_a_sample_is_spread_over_all_corpora(raw: Path, tmp_path: Path):
    from t2t_repro.preparation.pipeline import prepare

    asked = dataclasses.replace(problem("de", raw), sample=36)
    dataset = prepare(asked, str(tmp_path / "data"), silent)
    train = dataset.record.splits["train"]
    assert (train.pairs_read, train.sample_of) == (36, 360)
    assert dataset.record.splits["test"].pairs == 9
    import tensorflow as tf

    from t2t_repro.data.vocabulary import Vocabulary

    vocabulary, seen = Vocabulary(dataset.vocabulary), []
    for serialised in tf.data.TFRecordDataset(dataset.shards("train")).as_numpy_iterator():
        ids = tf.train.Example.FromString(serialised).features.feature["inputs"].int64_list.value
        seen.append(vocabulary.decode([ids])[0].split()[0])
    assert {seen.count(name) for name in ("Europarl_v7", "Commoncrawl", "Newscommentary_v9")} <= {11, 12}
