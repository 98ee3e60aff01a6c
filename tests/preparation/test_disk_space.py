"""Disk space of preparation: estimated before any download and compared with the free space."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from t2t_repro.preparation import disk_space
from t2t_repro.preparation.disk_space import Need, check, needs
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Problem, TextFiles, Trees
from t2t_repro.registry import PROBLEMS

GB = 10**9
ARCHIVES = {  # bytes, as tensorflow-datasets has them
    "training-parallel-europarl-v7.tgz": 657_632_379,
    "training-parallel-commoncrawl.tgz": 918_311_367,
    "training-parallel-nc-v9.tgz": 80_418_416,
    "dev.tgz": 38_654_961,
}


def needed(problem: Problem, folder: Path) -> dict[str, int]:
    """Expected bytes by kind."""
    found = needs(problem, str(folder / "data"), str(folder / "data/shuffle"), str(folder / "downloads"))
    return {need.kind: need.expected for need in found}


def files(folder: Path, content: bytes, form: str = "text.{}") -> TextFiles:
    paths = [folder / form.format(side) for side in ("en", "de")]
    for path in paths:
        path.write_bytes(content)
    return TextFiles(*map(str, paths))


def free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: SimpleNamespace(free=number))


def test_archives_have_their_known_size(tmp_path: Path):
    found = needed(PROBLEMS["translate_ende_wmt14"], tmp_path)
    assert found["archives"] == sum(ARCHIVES.values())
    assert sum(found.values()) == pytest.approx(4.8 * GB, rel=0.03)  # as docs/data.md has it
    assert sum(needed(PROBLEMS["translate_enfr_wmt14"], tmp_path).values()) == pytest.approx(30 * GB, rel=0.03)


def test_existing_files_reduce_the_need(tmp_path: Path):
    problem = PROBLEMS["translate_ende_wmt14"]
    before = needed(problem, tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "dev.tgz").touch()
    downloads = tmp_path / "downloads" / "wmt14_translate"
    downloads.mkdir(parents=True)
    with open(downloads / "www.stat.org_wmt13_train-para-commoncrawl0123.tgz", "wb") as file:
        file.truncate(ARCHIVES["training-parallel-commoncrawl.tgz"])  # takes no room on the disk
    unpacked = tmp_path / "downloads/unpacked/wmt14_translate-de-en/training-parallel-nc-v9.tgz"
    unpacked.mkdir(parents=True)
    (unpacked / "unpacked.json").touch()
    (tmp_path / "data" / "shuffle").mkdir(parents=True)
    for name, size in (("train-00000-of-00023.tfrecord", 1_000), ("shuffle/chunk-00000", 300)):
        (tmp_path / "data" / name).write_bytes(bytes(size))
    after = needed(problem.with_raw_dir(str(tmp_path / "raw")), tmp_path)
    assert after["archives"] == ARCHIVES["training-parallel-europarl-v7.tgz"]
    assert before["unpacked text"] - after["unpacked text"] == 201_288 * 300
    assert before["shards"] - after["shards"] == 1_000
    assert before["shuffle files"] - after["shuffle files"] == 300


def test_own_text_is_estimated_from_its_bytes(tmp_path: Path):
    plain = Problem(name="plain", description="", train=(files(tmp_path, b"a house\n" * 1_000),))
    encoded = int(60 * (16_000 // 140) + 0.45 * 16_000)
    assert needed(plain, tmp_path) == {
        "archives": 0,
        "unpacked text": 0,
        "linearized trees": 0,
        "shuffle files": encoded,
        "shards": encoded,
        "decisions of filters": 0,
    }
    packed = files(tmp_path, gzip.compress(b"a house\n" * 1_000), "text.{}.gz")
    size = 2 * 3 * os.path.getsize(packed.source)
    shards = needed(dataclasses.replace(plain, train=(packed,)), tmp_path)["shards"]
    assert shards == int(60 * (size // 140) + 0.45 * size)
    (tmp_path / "t.mrg").write_bytes(bytes(4_250))
    trees = Problem(name="trees", description="", train=(Trees(str(tmp_path / "t.mrg")),), metric="f1")
    assert needed(trees, tmp_path)["shards"] == int(60 * 10 + 0.45 * 4_250)
    assert needed(trees, tmp_path)["linearized trees"] == int(1.4 * 4_250)
    (tmp_path / "t.mrg.gz").write_bytes(bytes(700))
    packed = dataclasses.replace(trees, train=(Trees(str(tmp_path / "t.mrg.gz")),))
    assert needed(packed, tmp_path)["linearized trees"] == int(1.4 * (6 * 700))
    sample = needed(dataclasses.replace(plain, sample=10), tmp_path)
    assert sample["shards"] == pytest.approx(10 * (60 + 0.45 * 140), rel=0.01)
    assert sum(needed(PROBLEMS["translate_ende_cldr"], tmp_path).values()) == 0


def test_small_disk_is_rejected_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 2 * GB)  # for 1.7 GB of archives, but not for what is in them
    message = (
        rf"the disk is too small: about 4\.8 GB needed in '{tmp_path}.*' \(archives 1\.7, unpacked text 1\.4, "
        r"shuffle files 0\.9, shards 0\.9\), 2\.0 GB free; make room, or prepare in another data directory"
    )
    with pytest.raises(OSError, match=message):
        prepare(PROBLEMS["translate_ende_wmt14"], str(tmp_path), lambda line: None)
    assert not (tmp_path / "downloads").exists()


def test_decisions_of_filters_take_a_byte_per_training_pair(tmp_path: Path):
    problem = PROBLEMS["translate_ende_wmt14"]
    assert needed(problem, tmp_path)["decisions of filters"] == 0
    filtered = dataclasses.replace(problem, filters=("duplicate",))
    assert needed(filtered, tmp_path)["decisions of filters"] == pytest.approx(4_520_620, rel=0.05)
    assert needed(dataclasses.replace(filtered, sample=1_000), tmp_path)["decisions of filters"] == 1_000


@pytest.mark.parametrize(
    ("available", "reported"),
    [
        (29, []),
        (30, ["it may become full"]),
        (79, ["it may become full"]),
        (80, ["GB free"]),
    ],
)
def test_needs_are_reported_or_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available, reported):
    """80 GB expected, of which 30 are sure."""
    wanted = [Need("archives", str(tmp_path), 10 * GB, 10 * GB), Need("shards", str(tmp_path / "x"), 70 * GB, 20 * GB)]
    free(monkeypatch, available * GB)
    lines: list[str] = []
    if not reported:
        with pytest.raises(OSError, match=r"\(archives 10\.0, shards 70\.0\), 29\.0 GB free; make room"):
            check(wanted, lines.append)
    else:
        check(wanted, lines.append)
    assert len(lines) == len(reported) and all(part in line for part, line in zip(reported, lines, strict=True))


def test_small_needs_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines: list[str] = []
    small = [Need("shards", str(tmp_path), GB - 1, GB // 4)]
    check(small, lines.append)
    assert lines == []
    free(monkeypatch, GB // 2)
    check(small, lines.append)
    assert len(lines) == 1 and "it may become full" in lines[0]


def test_each_disk_is_checked_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Downloads may be a link to another disk, which has the room that the first one lacks."""
    wanted = [Need("archives", "/far/downloads", 50 * GB, 50 * GB), Need("shards", "/near", GB, GB)]
    monkeypatch.setattr(disk_space, "nearest_folder", lambda path: path)
    monkeypatch.setattr(disk_space.os, "stat", lambda path: SimpleNamespace(st_dev=path))
    room = {"/far/downloads": 60 * GB, "/near": 2 * GB}
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: SimpleNamespace(free=room[path]))
    lines: list[str] = []
    check(wanted, lines.append)
    assert len(lines) == 2 and "'/far/downloads' (archives 50.0), 60.0 GB free" in lines[0]
    room["/far/downloads"] = 40 * GB
    with pytest.raises(OSError, match="about 50.0 GB needed in '/far/downloads'"):
        check(wanted, lines.append)


@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.parametrize(
    ("file", "size"), [("wmt_news_other_years/news.en-de.{}.gz", 37_000), ("tatoeba/tatoeba.en-fr.{}.gz", 16_000)]
)
def test_the_estimate_holds_for_real_text(corpora: Path, tmp_path: Path, file: str, size: int):
    """Within a factor of two: what is sure is a quarter."""
    target = "fr" if "fr" in file else "de"
    sides = [corpora / file.format(side) for side in ("en", target)]
    problem = Problem(name="real", description="", train=(TextFiles(*map(str, sides)),), vocab_size=size)
    expected = needed(problem, tmp_path)
    dataset = prepare(problem, str(tmp_path), lambda line: None)
    shards = sum(shard.bytes for shard in dataset.record.splits["train"].shards)
    assert 0.5 < expected["shards"] / shards < 2
