"""The records of dataset.json: what they write they read, and files of earlier versions have defaults."""

from __future__ import annotations

import json

import pytest

from t2t_repro.data.dataset_record import CorpusRecord, DatasetRecord

SHARD = {"name": "train-00000-of-00001.tfrecord", "bytes": 9, "records": 3, "sha256": "0" * 64}
WRITTEN = {
    "format": 1,
    "problem": {"name": "parse_files", "description": "", "metric": "f1"},
    "sources": {"train": [{"trees": {"path": "/a.mrg", "bytes": 90}}], "validation": [], "test": []},
    "corpora": {"train": [{"name": "section 23", "trees_known": 9, "lines": 8, "not_trees": 1}]},
    "vocabulary": {"kind": "bpe", "size": 300, "bytes": 256, "characters": 30, "sha256": "1" * 64, "sentences": 6},
    "splits": {
        "train": {
            "pairs_read": 4,
            "pairs": 3,
            "dropped": {"empty": 1},
            "irregular_but_kept": {},
            "tokens": {"inputs": 9, "targets": 12},
            "length": {"inputs": {"mean": 3.0, "max": 4}, "targets": {"mean": 4.0, "max": 6}},
            "held_out": 1,
            "shards": [SHARD],
            "sample_of": 5,
        }
    },
    "versions": {"python": "3.11"},
}


def test_record_writes_what_it_read_in_the_same_order():
    written = DatasetRecord.from_json(WRITTEN).to_json()
    assert json.dumps(written["splits"]) == json.dumps(WRITTEN["splits"])
    assert list(written) == list(WRITTEN)
    assert {**written, "problem": 0} == {**WRITTEN, "problem": 0}
    assert written["problem"].items() >= WRITTEN["problem"].items()


def test_record_of_an_earlier_version_has_defaults():
    earlier = {name: WRITTEN[name] for name in ("format", "problem", "sources")}
    earlier |= {"vocabulary": {"size": 300, "sha256": ""}, "splits": {"train": {"pairs": 3, "shards": [SHARD]}}}
    record = DatasetRecord.from_json(earlier)
    assert record.corpora == {} and record.vocabulary.characters is None
    assert record.splits["train"].sample_of is None and record.splits["train"].files[0].records == 3
    assert list(record.to_json()["vocabulary"]) == ["kind", "size", "sha256"]


def test_max_lengths_are_of_source_and_target():
    assert DatasetRecord.from_json(WRITTEN).splits["train"].max_lengths == [4, 6]


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        (CorpusRecord(name="section 23", trees_known=2_416, lines=8), "section 23: 8 of 2,416 trees"),
        (CorpusRecord(name="section 23", trees_known=8, lines=8), ""),
        (CorpusRecord(name="europarl", lines_known=9, lines=8), ""),
    ],
)
def test_missing_trees_of_a_treebank(record, missing):
    assert record.missing == missing
