"""ShuffleFiles: the same bytes from any number of processes, complete chunks are kept, a dead process is an error."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.tiny_model import PROBLEM, silent, train_pairs

from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.encoding.shuffle import Chunk, ShuffleFiles
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.preparation.statistics import SplitStatistics
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.problem import Pair

PAIRS = [*train_pairs(), ("", "leer"), ("much " * 60, "viel")]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([text for pair in train_pairs() for text in pair], path, "bpe", 330)
    return path


@pytest.fixture
def files(vocabulary: str, tmp_path: Path) -> ShuffleFiles:
    hashes = frozenset({source_hash(PAIRS[5][0]), source_hash(PAIRS[77][0])})
    return ShuffleFiles(str(tmp_path / "shuffle"), vocabulary, 3, 60, hashes, chunk_pairs=40)


def chunks(pairs: list[Pair] = PAIRS, size: int = 40) -> Iterator[Chunk]:
    for number, first in enumerate(range(0, len(pairs), size)):
        yield number, first, pairs[first : first + size]


def written(files: ShuffleFiles, processes: int) -> list[list[bytes]]:
    """Returns the examples of each shard, and those for validation."""
    files.start()
    assert list(files.encode(chunks(), processes)) == list(range(8))
    return [list(files.shard(index)) for index in range(4)]


def test_every_pair_is_in_one_shard_and_counted(files: ShuffleFiles):
    shards = written(files, 1)
    assert [len(shard) for shard in shards][-1] == 2
    assert sum(map(len, shards)) == 300
    assert all(80 < len(shard) < 120 for shard in shards[:3])
    train, validation = files.statistics()
    assert (train.read, train.kept, train.dropped) == (302, 298, {"empty": 1, "too_long": 1})
    assert (validation.kept, validation.lengths["inputs"].total()) == (2, 2)


def test_result_is_the_same_for_any_number_of_processes(files: ShuffleFiles, tmp_path: Path):
    expected = written(files, 1)
    assert written(dataclasses.replace(files, folder=str(tmp_path / "more")), 2) == expected


def test_complete_chunks_are_kept(files: ShuffleFiles):
    expected = written(files, 1)
    same = dataclasses.replace(files)
    assert same.start() == set(range(8))
    Path(files.path(3)).write_bytes(Path(files.path(3)).read_bytes()[:-1])
    os.remove(files.path(4) + ".json")
    os.remove(files.path(5))
    Path(files.path(6) + ".json").write_text("{")
    Path(files.folder, "beam.json").write_text("{}")  # an interrupted preparation with --beam leaves it
    assert same.start() == {0, 1, 2, 7}
    missing = [chunk for chunk in chunks() if chunk[0] not in same.start()]
    assert list(same.encode(missing, 1)) == [3, 4, 5, 6]
    assert [list(same.shard(index)) for index in range(4)] == expected


@pytest.mark.parametrize(
    "change", [{"num_shards": 4}, {"max_length": 50}, {"validation_hashes": frozenset()}, {"chunk_pairs": 9}]
)
def test_chunks_of_another_kind_are_not_kept(files: ShuffleFiles, change: dict):
    written(files, 1)
    assert dataclasses.replace(files, **change).start() == set()


def test_dead_process_is_an_error(files: ShuffleFiles):
    files.start()
    encoding = files.encode(chunks(size=4), 2)
    next(encoding)
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(ChildProcessError, match="a worker process was killed"):
        list(encoding)
    assert not multiprocessing.active_children()


def test_worker_error_is_raised_in_the_parent(files: ShuffleFiles):
    os.makedirs(files.path(1))  # no file can take that name
    files.start()
    with pytest.raises(OSError, match="chunk-00001"):
        list(files.encode(chunks(), 2))


def test_statistics_survive_json(files: ShuffleFiles):
    import json

    written(files, 1)
    train, _ = files.statistics()
    assert SplitStatistics.from_json(json.loads(json.dumps(train.to_json()))) == train


def test_prepared_by_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 100)
    made = [prepare(PROBLEM, str(tmp_path / str(number)), silent, processes=number) for number in (1, 2)]
    assert made[0].record == made[1].record
    assert made[1].record.splits["train"].pairs == 300
    assert len(made[1].shards("train")) == 3
