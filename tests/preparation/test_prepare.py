"""Preparation: kept and dropped pairs, validation split, shuffle, and byte-identical results."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import filelock
import pytest
from conftest import CHECKOUT
from helpers.prepared_data import bytes_of, records
from helpers.tiny_model import silent

from t2t_repro.config import HParams
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import DatasetRecord
from t2t_repro.data.shards import count_records, write_shard
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation import validation_split
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.preparation.validation_split import choose_validation, source_hash
from t2t_repro.problem import Generated, Pair, Problem, TextFiles
from t2t_repro.registry import PROBLEMS
from t2t_repro.run import Run
from t2t_repro.text import lines

PAIRS = [
    (f"the {color} house number {n}", f"das {color}e Haus Nummer {n}") for n in range(200) for color in ("red", "old")
]


def write(folder: Path, name: str, pairs: list[Pair]) -> TextFiles:
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(text + "\n" for text in side).encode())
    return TextFiles(*map(str, paths))


@pytest.fixture
def text(tmp_path: Path) -> Problem:
    """A problem on small files of all three splits."""
    folder = tmp_path / "text"
    folder.mkdir()
    parts = {split: (write(folder, split, pairs),) for split, pairs in
             {"train": PAIRS, "validation": PAIRS[:7], "test": PAIRS[5:10]}.items()}  # fmt: skip
    return Problem(name="small", description="small", vocab_size=330, max_length=40, **parts)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def test_prepare_writes_vocabulary_shards_and_record(text: Problem, data: str):
    said: list[str] = []
    dataset = prepare(text, data, said.append)
    assert dataset.directory == os.path.join(data, "small")
    assert Vocabulary(dataset.vocabulary).size == 330
    assert Counter(records(dataset, "train")) == Counter(PAIRS)
    assert records(dataset, "validation") == PAIRS[:7]
    assert records(dataset, "test") == PAIRS[5:10]
    assert said[0] == "text: 400 train pairs, 7 validation pairs, 5 test pairs"
    parts = "256 bytes, 26 single characters among them"
    assert said[1] == f"vocabulary: 330 subwords (bpe) learned from 800 sentences: {parts}"
    assert said[2].startswith("train: 400 pairs, ")
    assert len(said) == 13  # with two overlaps and three examples of each
    names = {
        "vocabulary.model",
        "dataset.json",
        *(f"{split}-00000-of-00001.tfrecord" for split in dataset.record.splits),
    }
    assert bytes_of(dataset.directory).keys() == names


def test_dataset_json_records_sources_and_statistics(text: Problem, data: str):
    dataset = prepare(text, data, silent)
    record = json.loads(Path(dataset.directory, "dataset.json").read_text("utf-8"))
    assert DatasetRecord.from_json(record) == dataset.record
    assert dataset.record.to_json() == record
    assert Problem(**record["problem"]) == dataclasses.replace(text, train=(), validation=(), test=())
    assert record["sources"]["test"][0]["source"]["path"] == text.test[0].source  # type: ignore[union-attr]
    assert record["vocabulary"]["sha256"] == Vocabulary(dataset.vocabulary).sha256
    assert (record["vocabulary"]["bytes"], record["vocabulary"]["characters"]) == (256, 26)
    assert 26 == len({character for pair in PAIRS for text in pair for character in text})
    assert record["versions"].keys() >= {"sentencepiece", "tensorflow", "t2t_repro"}
    train, vocabulary = record["splits"]["train"], Vocabulary(dataset.vocabulary)
    lengths = [len(ids) for ids in vocabulary.encode([source for source, _ in PAIRS])]
    assert (train["pairs_read"], train["pairs"], train["dropped"]) == (400, 400, {})
    assert train["tokens"]["inputs"] == sum(lengths)
    assert train["length"]["inputs"]["mean"] == round(sum(lengths) / 400, 2)
    assert train["length"]["inputs"]["max"] == max(lengths)
    assert train["length"]["inputs"]["p50"] == sorted(lengths)[199]
    assert sum(shard["records"] for shard in train["shards"]) == 400


def test_prepared_once_for_all(text: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    first = prepare(text, data, silent)
    before = bytes_of(first.directory)
    monkeypatch.setattr(prepare_module, "Preparation", None)
    Path(first.directory, "progress.json").write_text("killed before this was removed")
    said: list[str] = []
    assert prepare(text, data, said.append, verify=True) == first
    assert Dataset.open(first.directory) == first
    assert said == [f"{first.directory}: all bytes are as they were written"] and bytes_of(first.directory) == before


def test_a_global_shuffle_over_shards(text: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 120)
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 33)
    dataset = prepare(text, data, silent)
    shards = dataset.shards("train")
    assert [os.path.basename(path) for path in shards] == [f"train-0000{n}-of-00004.tfrecord" for n in range(4)]
    assert all(60 < count_records(path) < 140 for path in shards)
    order = [PAIRS.index(pair) for pair in records(dataset, "train")]
    assert sorted(order) == list(range(400))
    neighbours = sum(abs(here - there) == 1 for here, there in zip(order, order[1:], strict=False))
    assert neighbours < 10  # expected: two, from 399 pairs of neighbors with probability 2 / 400 each
    quarters = Counter((place // 100, number // 100) for place, number in enumerate(order))
    assert all(quarters[place, number] > 8 for place in range(4) for number in range(4))  # 25 in expectation


def test_validation_and_test_may_have_several_shards(text: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 3)
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 2)
    dataset = prepare(text, data, silent)
    assert [count_records(path) for path in dataset.shards("validation")] == [3, 3, 1]
    assert records(dataset, "validation") == PAIRS[:7]


def test_dropped_pairs_are_counted(text: Problem, data: str, tmp_path: Path):
    irregular = [("", "leer"), ("blank", " \u00a0"), ("red house " * 30, "kurz"), ("short", "altes Haus " * 30)]
    corpus = write(tmp_path, "irregular", irregular)
    said: list[str] = []
    problem = dataclasses.replace(text, train=(*text.train, corpus), test=(corpus,))
    dataset = prepare(problem, data, said.append)
    train, test = dataset.record.splits["train"], dataset.record.splits["test"]
    assert (train.pairs_read, train.pairs, train.dropped) == (404, 400, {"empty": 2, "too_long": 2})
    assert Counter(records(dataset, "train")) == Counter(PAIRS)
    assert (test.pairs, test.irregular_but_kept) == (4, {"empty": 2, "too_long": 2})
    assert records(dataset, "test") == irregular
    assert "2 dropped (a side empty), 2 dropped (longer than 40 tokens)" in said[2]
    assert "2 kept though irregular (longer than 40 tokens)" in said[-1]


def test_a_line_above_1_mib_is_dropped_and_counted_if_the_corpus_allows(
    text: Problem, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in archives of WMT. Nothing of the line is learned from, and no pair moves."""
    corpus = write(tmp_path, "long", [*PAIRS[:9], ("Ж" * 60_000, "Haus"), *PAIRS[9:]])
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100_000)
    with pytest.raises(ValueError, match=r"long\.source, line 10: longer than 100,000 bytes; expected one sentence"):
        prepare(dataclasses.replace(text, train=(corpus,)), data, silent)
    allowed = dataclasses.replace(corpus, drop_long_lines=True)
    problem = dataclasses.replace(text, train=(allowed,), max_length=10**6)  # any number of tokens is allowed
    dataset = prepare(problem, data, silent)
    train = dataset.record.splits["train"]
    assert (train.pairs_read, train.pairs, train.dropped) == (401, 400, {"too_long": 1})
    assert Counter(records(dataset, "train")) == Counter(PAIRS)
    assert dataset.record.vocabulary.sentences == 800
    assert "Ж" not in Vocabulary(dataset.vocabulary).subwords


def test_data_without_a_newer_field_is_still_read(text: Problem, data: str):
    first = prepare(text, data, silent)
    path = Path(first.directory, "dataset.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["problem"].pop("min_character_count") == 0
    for name in ("bytes", "characters"):
        del record["vocabulary"][name]
    path.write_text(json.dumps(record), "utf-8")
    vocabulary = dataclasses.replace(first.record.vocabulary, bytes=None, characters=None)
    assert prepare(text, data, silent, verify=True).record == dataclasses.replace(first.record, vocabulary=vocabulary)
    with pytest.raises(ValueError, match="its min_character_count is 0, not 7; give another"):
        prepare(dataclasses.replace(text, min_character_count=7), data, silent)


def test_length_includes_eos(text: Problem, data: str):
    vocabulary = Vocabulary(prepare(text, data, silent).vocabulary)
    longest = max(len(ids) for pair in PAIRS for ids in vocabulary.encode(pair))
    for max_length, dropped in ((longest, False), (longest - 1, True)):
        problem = dataclasses.replace(text, name=f"at_most_{max_length}", max_length=max_length)
        assert bool(prepare(problem, data, silent).record.splits["train"].dropped) == dropped


def test_no_remaining_training_pair_is_an_error(text: Problem, data: str):
    losses = r"0 to train on, 0 for validation, 400 dropped \(longer than 2 tokens\); raise `max_length`, or give more"
    with pytest.raises(ValueError, match=f"too little training text is left of 400 pairs: {losses} text$"):
        prepare(dataclasses.replace(text, max_length=2), data, silent)
    assert not Dataset.exists(os.path.join(data, "small"))


def test_validation_split_is_taken_from_training_text(text: Problem, data: str, tmp_path: Path):
    doubled = [*PAIRS, *[(source, target + "!") for source, target in PAIRS[::3]]]
    problem = dataclasses.replace(text, train=(write(tmp_path, "doubled", doubled),), validation=())
    said: list[str] = []
    dataset = prepare(problem, data, said.append)
    train, validation = records(dataset, "train"), records(dataset, "validation")
    assert Counter(train + validation) == Counter(doubled)
    assert 20 <= len(validation) <= 0.05 * len(doubled)
    assert not {source for source, _ in train} & {source for source, _ in validation}
    assert dataset.record.splits["validation"].held_out_of == "train"
    assert dataset.record.vocabulary.sentences == 2 * len(train)
    assert said[3].endswith("taken from the training text")


def test_validation_split_is_independent_of_the_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(validation_split, "MAX_PAIRS", 10)
    sources = [f"source {number % 700}" for number in range(1000)]
    chosen = []
    for order in (sources, sources[::-1], sorted(sources)):
        chosen.append(choose_validation((source, "target") for source in order))
    assert chosen[0] == chosen[1] == chosen[2]
    assert 8 <= sum(source_hash(source) in chosen[0] for source in sources) <= 10


def test_validation_split_of_few_sources():
    assert choose_validation([("a", "A")] * 60 + [("b", "B")] * 40) == [source_hash("b")]
    with pytest.raises(ValueError, match=r"too small for a validation split \(pairs: 2, different sources: 1\)"):
        choose_validation([("a", "A"), ("a", "A"), ("b", "")])


def test_without_test_text(text: Problem, data: str):
    dataset = prepare(dataclasses.replace(text, test=()), data, silent)
    assert dataset.has("train") and not dataset.has("test")
    with pytest.raises(ValueError, match="problem 'small' has no test text; take another split .train, valid"):
        dataset.shards("test")
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        dataset.shards("dev")


def test_generated_text(data: str):
    problem = Problem(name="made", description="made", vocab_size=330, train=(Generated(lambda: iter(PAIRS)),))
    dataset = prepare(problem, data, silent)
    assert len(records(dataset, "train")) == 380
    assert prepare(problem, data, silent) == dataset


@pytest.mark.parametrize(("filters", "last"), [((), 390), ((), 401), (("too_many_words=90",), 401)])
def test_text_that_changes_during_preparation_is_an_error(data: str, filters: tuple[str, ...], last: int):
    # hashing, counting, filtering, holding out, learning twice over, overlap, encoding
    sizes = iter([400] * (7 if filters else 6) + [last])
    train = (Generated(lambda: iter([*PAIRS, PAIRS[0]][: next(sizes)])),)
    problem = Problem(name="fickle", description="", vocab_size=330, train=train, filters=filters)
    with pytest.raises(ValueError, match=f"text changed while it was prepared: 400 pairs at first, then {last}"):
        prepare(problem, data, silent)


def test_the_sample_that_the_vocabulary_is_learned_from(text: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare_module, "LEARN_PAIRS", 150)
    assert prepare(text, data, silent).record.vocabulary.sentences == 300


def test_translate_files(text: Problem, data: str):
    given = {
        f"{split}_{side}": getattr(text.corpora(split)[0], side)
        for split in ("train", "test")
        for side in ("source", "target")
    }
    problem = dataclasses.replace(PROBLEMS["translate_files"], vocab_size=330)
    with pytest.raises(ValueError, match="problem 'translate_files' needs your text: give `train_source`"):
        prepare(problem, data, silent)
    dataset = prepare(problem.with_files(**given), data, silent)
    assert len(records(dataset, "train")) == 380 and len(records(dataset, "validation")) == 20
    assert prepare(problem, data, silent) == dataset  # the files need not be named again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 340}, "its vocab_size is 330, not 340; give another `data_dir`"),
        ({"max_length": 50}, "its max_length is 40, not 50; give another"),
        (
            {"test": ()},
            r"its test text was \S*test\.source, 115 bytes \+ \S*test\.target, \d+ bytes, not none; give another",
        ),
        ({"source_language": "de", "target_language": "en"}, "its source_language is 'en', not 'de'; give another"),
        ({"train": (Generated(silent),)}, r"its train text was \S*train\.source, .*, not helpers\.\S*silent; give"),  # type: ignore[arg-type]
    ],
)
def test_directory_with_other_data_is_rejected(text: Problem, data: str, changes: dict, message: str):
    prepare(dataclasses.replace(text, source_language="en"), data, silent)
    with pytest.raises(ValueError, match=f"holds other data: {message}"):
        prepare(dataclasses.replace(text, **changes), data, silent)


def test_fields_without_effect_on_data_may_differ(text: Problem, data: str):
    first = prepare(text, data, silent)
    assert prepare(dataclasses.replace(text, description="other", target_language="de"), data, silent) == first


def test_changed_sources_are_detected(text: Problem, data: str):
    prepare(text, data, silent)
    path = Path(text.train[0].source)  # type: ignore[union-attr]
    content = path.read_bytes()
    path.write_bytes(content)
    prepare(text, data, silent)  # the same text, written again
    path.write_bytes(content + b"one more\n")
    with pytest.raises(ValueError, match="its train text was"):
        prepare(text, data, silent)


@pytest.mark.parametrize("verify", [False, True])
def test_text_of_the_same_size_is_compared_if_it_is_newer(text: Problem, data: str, verify: bool):
    prepare(text, data, silent)
    path = Path(text.train[0].source)  # type: ignore[union-attr]
    path.with_name("new").write_bytes(path.read_bytes().replace(b"red", b"rot"))
    os.utime(path.with_name("new"), (0, 0))  # as `cp -p` and archives keep the time
    path.with_name("new").rename(path)
    with pytest.raises(ValueError, match=r"its train text was .*train\.source, \d+ bytes, SHA-256 [0-9a-f]{12} "):
        prepare(text, data, silent, verify=verify)


def test_text_that_changes_after_it_was_hashed_is_refused(text: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    """Restored afterwards, it is prepared again: nothing made of the other text stays."""
    expected = bytes_of(prepare(text, data, silent).directory)
    shutil.rmtree(data)
    path, sources_of = Path(text.train[0].source), prepare_module.sources_of  # type: ignore[union-attr]

    def then_changed(*arguments):
        found = sources_of(*arguments)
        path.write_bytes(path.read_bytes().replace(b"red", b"rot"))
        return found

    before = path.read_bytes()
    monkeypatch.setattr(prepare_module, "sources_of", then_changed)
    with pytest.raises(ValueError, match="the text of 'small' changed while it was prepared; leave it, and run the co"):
        prepare(text, data, silent)
    monkeypatch.undo()
    path.write_bytes(before)
    assert bytes_of(prepare(text, data, silent, verify=True).directory) == expected


def test_progress_of_text_that_was_changed_and_restored_is_not_resumed(
    text: Problem, data: str, monkeypatch: pytest.MonkeyPatch
):
    expected = bytes_of(prepare(text, data, silent).directory)
    shutil.rmtree(data)
    path, sources_of = Path(text.train[0].source), prepare_module.sources_of  # type: ignore[union-attr]
    before = path.read_bytes()

    def then_changed(*arguments):
        found = sources_of(*arguments)
        path.write_bytes(before.replace(b"red", b"rot"))
        return found

    def stopped(*_):
        raise Stopped

    monkeypatch.setattr(prepare_module, "sources_of", then_changed)
    monkeypatch.setattr(prepare_module.Preparation, "_write_train", stopped)
    with pytest.raises(Stopped):
        prepare(text, data, silent)
    monkeypatch.undo()
    path.write_bytes(before)
    assert bytes_of(prepare(text, data, silent).directory) == expected


CODE = "def pairs():\n    return ((f'{{n}} {}', f'{{n}} {}') for n in range(100))  # {}\n"


def generated(folder: Path, *words: str) -> Problem:
    """Returns a problem on the text of a module in `folder`, which is written first."""
    path, names = folder / "code.py", {"__name__": "mine"}
    path.write_text(CODE.format(*words))
    exec(compile(path.read_text(), path, "exec"), names)
    return Problem(name="small", description="", vocab_size=280, train=(Generated(names["pairs"]),))  # type: ignore[arg-type]


@pytest.mark.parametrize("verify", [False, True])
def test_generated_text_is_compared_if_its_code_is_newer(data: str, tmp_path: Path, verify: bool):
    first = prepare(generated(tmp_path, "one", "two", "comment"), data, silent)
    assert prepare(generated(tmp_path, "one", "two", "other comment"), data, silent, verify=verify) == first
    with pytest.raises(ValueError, match=r"text was mine.pairs, .*, not mine.pairs, .*; give another"):
        prepare(generated(tmp_path, "one", "three", "comment"), data, silent, verify=verify)
    path = Path(first.directory, "dataset.json")
    record = json.loads(path.read_text("utf-8"))
    del record["sources"]["train"][0]["sha256"]  # as earlier versions wrote it
    path.write_text(json.dumps(record), "utf-8")
    assert prepare(generated(tmp_path, "one", "three", "comment"), data, silent, verify=verify)


INSTANCE = "class Pairs:\n    def __call__(self):\n    " + CODE.partition("\n")[2] + "pairs = Pairs()\n"


@pytest.mark.parametrize("code", [CODE, INSTANCE])
def test_generated_text_of_a_notebook_is_always_compared(data: str, monkeypatch: pytest.MonkeyPatch, code: str):
    def cell(*words: str) -> Problem:
        names = {"__name__": "__main__"}
        exec(compile(code.format(*words, ""), "<cell>", "exec"), names)
        return Problem(name="small", description="", vocab_size=280, train=(Generated(names["pairs"]),))  # type: ignore[arg-type]

    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    first = prepare(cell("one", "two"), data, silent)
    assert prepare(cell("one", "two"), data, silent) == first
    with pytest.raises(ValueError, match=r"its train text was .*; give another"):
        prepare(cell("one", "three"), data, silent)


def test_preparation_does_not_resume_on_other_generated_text(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(prepare_module.Preparation, "_write_record", stop)
        prepare(generated(tmp_path, "one", "two", ""), data, silent)
    other = generated(tmp_path, "one", "three", "")
    expected = bytes_of(prepare(other, str(tmp_path / "whole"), silent).directory)
    assert bytes_of(prepare(other, data, silent).directory) == expected


def damage(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_damaged_files_are_named(text: Problem, data: str):
    dataset = prepare(text, data, silent)
    (shard,) = dataset.shards("train")
    again = r"; remove \S*dataset\.json to prepare again"
    damage(shard, 1000)
    assert Dataset.open(dataset.directory) == dataset
    with pytest.raises(ValueError, match=rf"train-00000-of-00001\.tfrecord is damaged \(its SHA-256 differs\){again}"):
        Dataset.open(dataset.directory, verify=True)
    os.truncate(shard, 1000)
    with pytest.raises(ValueError, match=rf"train-00000-of-00001\.tfrecord is damaged: 1000 bytes, not \d+{again}"):
        prepare(text, data, silent)
    with pytest.raises(ValueError, match=r"tfrecord is damaged: cut off after \d+ records"):
        count_records(shard)
    os.remove(shard)
    with pytest.raises(ValueError, match=rf"train-00000-of-00001\.tfrecord is missing{again}"):
        prepare(text, data, silent)


def test_damaged_vocabulary_is_named(text: Problem, data: str):
    dataset = prepare(text, data, silent)
    damage(dataset.vocabulary, 3000)
    with pytest.raises(ValueError, match=r"vocabulary\.model is damaged \(its SHA-256 differs\)"):
        Dataset.open(dataset.directory, verify=True)
    os.remove(dataset.vocabulary)
    with pytest.raises(ValueError, match=r"vocabulary\.model is missing"):
        Dataset.open(dataset.directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(format=2), "has format 2, this version reads 1"),
        (lambda record: record.pop("splits"), "is damaged .*splits"),
        (lambda record: record["splits"].pop("train"), r"is damaged .*splits are \['test', 'validation'\]"),
        (
            lambda record: record["splits"]["test"]["shards"][0].update(name="../../x"),
            r"a file is named '\.\./\.\./x'",
        ),
        (lambda record: record["splits"]["test"]["shards"][0].update(bytes="5"), "bytes must be an integer"),
        (lambda record: record.update(vocabulary=[]), "is damaged"),
        (lambda record: record.update(sources=3), "is damaged"),
        (lambda record: record["sources"].update(train=[{"source": 3}]), "is damaged"),
        (lambda record: record["problem"].update(hidden=1), "is damaged .*hidden"),
    ],
)
def test_damaged_dataset_json_is_rejected(text: Problem, data: str, change, message: str):
    path = Path(prepare(text, data, silent).directory, "dataset.json")
    record = json.loads(path.read_text("utf-8"))
    change(record)
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(ValueError, match=rf"dataset\.json .*{message}"):
        prepare(text, data, silent)
    path.write_text(json.dumps(record)[:-10], "utf-8")
    with pytest.raises(ValueError, match=r"dataset\.json is damaged: not JSON"):
        prepare(text, data, silent)


def test_missing_data_is_an_error(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match=r"holds no prepared data \(no dataset\.json\); make it with t2t-datagen"
    ):
        Dataset.open(str(tmp_path))


def test_invalid_text_leaves_no_files(text: Problem, data: str, tmp_path: Path):
    missing = dataclasses.replace(text, test=(TextFiles("/nowhere/a", "/nowhere/b"),))
    with pytest.raises(FileNotFoundError, match="no file '/nowhere/a'"):
        prepare(missing, data, silent)
    assert not os.path.exists(data)
    (tmp_path / "short").write_bytes(b"one line\n")
    unequal = dataclasses.replace(text, test=(TextFiles(text.test[0].source, str(tmp_path / "short")),))  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"test\.source has 5 lines and \S*short has 1"):
        prepare(unequal, data, silent)
    assert bytes_of(os.path.join(data, "small")) == {}
    with pytest.raises(ValueError, match="vocab_size 5000 is more than the text can give"):
        prepare(dataclasses.replace(text, vocab_size=5000), data, silent)
    assert bytes_of(os.path.join(data, "small")).keys() == {"progress.json"}


@pytest.mark.parametrize("limit", [1_000, 30_000])
def test_full_disk_is_reported(text: Problem, data: str, limit: int):
    """A limit on the size of a file stands for it: the vocabulary or the shuffle does not fit."""
    directory = os.path.join(data, "small")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(OSError, match=f"File too large: '{directory}|{directory}.*File too large"):
            prepare(text, data, silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [name for _, _, names in os.walk(directory) for name in names if "tmp" in name]
    assert prepare(text, data, silent, verify=True)


def test_shard_that_does_not_fit_on_disk_is_reported(tmp_path: Path):
    path = str(tmp_path / "train-00000-of-00001.tfrecord")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OSError, match=f"cannot write {path}: .*File too large"):
            write_shard(path, (bytes(1000) for _ in range(1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_data_dir_that_is_a_file_is_rejected(text: Problem, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="^data_dir: '.*file' is a file; give a directory"):
        prepare(text, str(tmp_path / "file"), silent)


def test_second_preparation_waits_and_reports(text: Problem, data: str):
    directory = os.path.join(data, "small")
    os.makedirs(directory)
    waiting = threading.Event()
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        waiting.set()

    with filelock.FileLock(os.path.join(directory, ".lock")):
        worker = threading.Thread(target=prepare, args=(text, data, report))
        worker.start()
        assert waiting.wait(10)
        assert said == [f"another process prepares {directory}; waiting for it"]
        assert bytes_of(directory) == {}
    worker.join(60)
    assert Dataset.exists(directory)


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("filters", [(), ("duplicate", "not_text", "overlap")])
@pytest.mark.parametrize("held", [False, True])
def test_preparation_resumes_after_any_write(
    text: Problem, tmp_path: Path, held: bool, filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Stopped before any file takes its name, with leftovers about, the same call ends with the same bytes."""
    monkeypatch.setattr(prepare_module, "PAIRS_PER_SHARD", 150)
    problem = dataclasses.replace(text, validation=() if held else text.validation, filters=filters)
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 170)
    names: list[str] = []
    replace = os.replace

    def recorded(temporary: str, path: str) -> None:
        names.append(os.path.basename(path))
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", recorded)
    expected = bytes_of(prepare(problem, str(tmp_path / "whole"), silent).directory)
    learned = names.index("vocabulary.model")
    filtering = ["overlap.npy", "filtered.bin", "progress.json"] if filters else []
    overlapping = ["overlap.npy"] if filters and held else []  # with the validation split, to learn without such pairs
    assert names[: learned + 2] == [*filtering, "progress.json", *overlapping, "vocabulary.model", "progress.json"]
    assert names[-1] == "dataset.json"
    for stop in range(len(names)):
        data, calls = tmp_path / f"data{stop}", iter(range(len(names)))

        def stopped(temporary: str, path: str, stop: int = stop, calls=calls) -> None:
            if next(calls) == stop:
                raise Stopped
            replace(temporary, path)

        monkeypatch.setattr(os, "replace", stopped)
        with pytest.raises(Stopped):
            prepare(problem, str(data), silent)
        for leftover in (
            "vocabulary.model.tmp-1",
            "filtered.bin.tmp-1",
            "train-00001-of-00009.tfrecord",
            "test-00000-of-00001.tfrecord.tmp-7",
        ):
            (data / "small" / leftover).write_bytes(b"half")
        monkeypatch.setattr(os, "replace", replace)
        said: list[str] = []
        assert bytes_of(prepare(problem, str(data), said.append).directory) == expected
        assert any(line.startswith("vocabulary") for line in said) == (stop <= learned + 1)
        last = "validation-00000-of-00001.tfrecord" if held else "train-00002-of-00003.tfrecord"
        recorded = names.index(last) + 2  # progress.json with the shard, and then with the whole of train
        assert any(line.startswith("train") for line in said) == (stop <= recorded)


def test_preparation_resumes_before_the_shuffle_is_removed(
    text: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The account says that the training text is done; the files of the shuffle are still removed."""
    expected = bytes_of(prepare(text, str(tmp_path / "whole"), silent).directory)
    data, remove = str(tmp_path / "data"), shutil.rmtree

    def stopped(path: str, **_: object) -> None:
        if any(name.startswith("train-") for name in os.listdir(os.path.dirname(path))):
            raise Stopped

    monkeypatch.setattr(shutil, "rmtree", stopped)
    with pytest.raises(Stopped):
        prepare(text, data, silent)
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert os.path.isdir(os.path.join(data, "small", "shuffle"))
    assert bytes_of(prepare(text, data, silent).directory) == expected


def test_progress_of_other_text_is_not_resumed(text: Problem, data: str, tmp_path: Path):
    with pytest.raises(ValueError, match="too little training text"):
        prepare(dataclasses.replace(text, max_length=2), data, silent)
    said: list[str] = []
    dataset = prepare(text, data, said.append)
    assert len(said) == 13  # with two overlaps and three examples of each
    assert bytes_of(dataset.directory) == bytes_of(prepare(text, str(tmp_path / "other"), silent).directory)


@pytest.fixture
def giver(text: Problem, tmp_path: Path) -> Run:
    """A run whose vocabulary is of another kind and size."""
    problem = dataclasses.replace(text, name="other", vocab_kind="word_piece", vocab_size=350, min_character_count=2)
    vocabulary = prepare(problem, str(tmp_path / "others"), silent).vocabulary
    hparams = HParams(name="h", description="")
    run = Run(str(tmp_path / "RUN"), problem, hparams, "DATA", 1, "float32", Vocabulary(vocabulary).sha256)
    return run.start(vocabulary)


def test_vocabulary_of_a_run_is_taken_as_it_is(text: Problem, data: str, giver: Run):
    dataset = prepare(text, data, silent, vocabulary_from=giver.directory)
    assert Path(dataset.vocabulary).read_bytes() == Path(giver.vocabulary).read_bytes()
    record = dataset.record
    assert (record.problem.vocab_size, record.problem.vocab_kind) == (350, "word_piece")
    assert (record.vocabulary.size, record.vocabulary.given_by) == (350, giver.directory)
    assert sorted(records(dataset, "train")) == sorted(PAIRS)
    again = prepare(text, data, silent, vocabulary_from=giver.directory)
    assert again == dataset


def test_data_with_another_vocabulary_is_rejected(text: Problem, data: str, giver: Run):
    prepare(dataclasses.replace(text, vocab_size=340), data, silent)
    message = "small' was prepared with another vocabulary than that of the run '.*RUN'; give another `data_dir`, where"
    with pytest.raises(ValueError, match=message):
        prepare(text, data, silent, vocabulary_from=giver.directory)


@pytest.mark.parametrize("given_first", [True, False])
def test_preparation_does_not_resume_with_another_vocabulary(
    text: Problem, data: str, tmp_path: Path, giver: Run, given_first: bool, monkeypatch: pytest.MonkeyPatch
):
    """The text is encoded when preparation stops, and then another vocabulary is asked for."""
    ways: list[str | None] = [giver.directory, None]
    first, second = ways if given_first else ways[::-1]
    expected = bytes_of(prepare(text, str(tmp_path / "whole"), silent, vocabulary_from=second).directory)

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(prepare_module.Preparation, "_write_record", stop)
        prepare(text, data, silent, vocabulary_from=first)
    assert bytes_of(prepare(text, data, silent, vocabulary_from=second).directory) == expected


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"inputs": 3}', '{"inputs": {}, "splits": 3}'])
def test_damaged_progress_restarts_preparation(text: Problem, data: str, damaged: str):
    os.makedirs(os.path.join(data, "small"))
    Path(data, "small", "progress.json").write_text(damaged)
    assert prepare(text, data, silent).has("test")


KILLS = """
import os, random, signal, sys, time
import tensorflow  # once: a fork then starts immediately
from t2t_repro.preparation import pipeline as module
from t2t_repro.problem import Problem, TextFiles

folder, seed, processes, filters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
module.PAIRS_PER_SHARD, module.CHUNK_PAIRS = 1000, 500
text = TextFiles(folder + "/a", folder + "/b")
problem = Problem(name="killed", description="", vocab_size=600, train=(text,), filters=filters)

def start(data):
    child = os.fork()
    if not child:
        module.prepare(problem, data, lambda line: None, processes=processes)
        os._exit(0)
    return child

def contents(data):
    found = {}
    for name in os.listdir(data + "/killed"):
        with open(data + "/killed/" + name, "rb") as file:
            found[name] = file.read()
    return found

began = time.monotonic()
assert os.waitpid(start(folder + "/whole"), 0)[1] == 0
seconds = time.monotonic() - began
expected = contents(folder + "/whole")
rng, kills, finished = random.Random(seed), 0, 0
while kills < 10:
    data = f"{folder}/data{finished}"
    child = start(data)
    time.sleep(rng.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1]:
        kills += 1
    else:
        assert contents(data) == expected
        finished += 1
assert os.waitpid(start(data), 0)[1] == 0
assert contents(data) == expected
print(kills, "kills", len(expected), "files")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "filters"),
    [(1, ()), (2, ()), (2, ("duplicate", "not_text", "overlap")), (2, ("duplicate", "misaligned=-2"))],
)
def test_preparation_survives_ten_random_kills(tmp_path: Path, processes: int, filters: tuple[str, ...]):
    for name, side in zip("ab", zip(*PAIRS * 15, strict=True), strict=True):
        lines_of = (f"{text} {n if n % 20 else ''}\n" for n, text in enumerate(side))  # every 20th is a duplicate
        (tmp_path / name).write_text("".join(lines_of), "utf-8")
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path), "1706", str(processes), *filters],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("10 kills 10 files")
