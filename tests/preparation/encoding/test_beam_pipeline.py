"""The pipeline of Apache Beam on its direct runner: the same shards as without it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from helpers import small_treebank
from helpers.prepared_data import bytes_of
from helpers.tiny_model import PROBLEM, silent

from t2t_repro.data.dataset_record import CorpusRecord
from t2t_repro.parsing import treebank
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Problem, TextFiles, Trees
from t2t_repro.registry import PROBLEMS


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A problem on files, which has no validation text, and whose training text has what is dropped and duplicates."""
    pairs = [*PROBLEM.train[0].function(), ("", "leer"), ("much " * 70, "viel")]  # type: ignore[union-attr]
    pairs += pairs[:20]
    paths = [tmp_path / side for side in ("source", "target")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in side), "utf-8")
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 120)
    return dataclasses.replace(PROBLEM, train=(TextFiles(*map(str, paths)),), validation=(), sample=250)


@pytest.mark.parametrize("filters", [(), ("duplicate", "too_few_words", "overlap")])
def test_the_same_as_without_it(
    problem: Problem, tmp_path: Path, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("apache_beam", reason="the extra 'beam' is not installed")
    from t2t_repro.preparation.encoding import beam_pipeline

    monkeypatch.setattr(beam_pipeline, "CHUNK_PAIRS", 100)
    monkeypatch.setattr(beam_pipeline, "BATCH_PAIRS", 30)
    problem = dataclasses.replace(problem, filters=filters)
    here = prepare(problem, str(tmp_path / "here"), silent)
    there = prepare(problem, str(tmp_path / "there"), silent, beam=["--runner=DirectRunner"])
    assert there.record == here.record
    assert not filters or here.record.splits["train"].dropped["duplicate"] > 5
    assert len(here.shards("train")) == 3 and here.record.splits["train"].held_out
    for split in ("train", "validation"):
        for one, other in zip(here.shards(split), there.shards(split), strict=True):
            assert Path(one).read_bytes() == Path(other).read_bytes()


@pytest.mark.parametrize(("sample", "filters"), [(0, ()), (250, ()), (0, ("duplicate", "overlap"))])
def test_the_same_trees_as_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int, filters: tuple[str, ...]
):
    """Two corpora, one of them written by a parser. A worker starts at the trees of its chunk."""
    pytest.importorskip("apache_beam", reason="the extra 'beam' is not installed")
    from t2t_repro.preparation.encoding import beam_pipeline

    monkeypatch.setattr(beam_pipeline, "CHUNK_PAIRS", 100)
    monkeypatch.setattr(beam_pipeline, "BATCH_PAIRS", 30)
    monkeypatch.setattr(treebank, "CHUNK_CHARACTERS", 1_000)
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 120)
    gold, parsed = tmp_path / "gold.mrg", tmp_path / "parsed.mrg"
    gold.write_text(small_treebank.trees(1, 150), "utf-8")
    parsed.write_text(f"{small_treebank.trees(2, 100)}\n(())\n{small_treebank.trees(3, 100)}", "utf-8")
    trees = (Trees(str(gold)), Trees(str(parsed), by_parser=True))
    problem = dataclasses.replace(PROBLEMS["parse_files"], train=trees, vocab_size=330, sample=sample, filters=filters)
    here = prepare(problem, str(tmp_path / "here"), silent, processes=2)
    there = prepare(problem, str(tmp_path / "there"), silent, beam=["--runner=DirectRunner"])
    assert there.record == here.record and there.record.corpora["train"][1] == CorpusRecord(lines=200, not_trees=1)
    assert bytes_of(here.directory) == bytes_of(there.directory)


def test_without_beam_installed(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "t2t_repro.preparation.encoding.beam_pipeline", raising=False)
    monkeypatch.delattr("t2t_repro.preparation.encoding.beam_pipeline", raising=False)
    with pytest.raises(ValueError, match=r"Apache Beam cannot be imported \(.*\); pip install 't2t_repro\[beam\]'"):
        prepare(problem, str(tmp_path / "data"), silent, beam=[])
