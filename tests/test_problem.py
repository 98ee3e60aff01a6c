"""Problem: declarations, and the errors for impossible ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from t2t_repro.problem import Generated, Problem, TextFiles, TmxFile, Trees, TsvFile
from t2t_repro.registry import PROBLEMS

FILES = Problem(name="my_files", description="the user's own text")
MADE = Problem(name="made", description="made up", train=(Generated(lambda: iter([("a", "b")])),))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "My-Problem", "a problem's name must be lower-case letters, digits and _, got 'My-Problem'"),
        ("name", "", "a problem's name must be lower-case letters, digits and _, got ''"),
        ("vocab_kind", "letters", "vocab_kind must be .*, got 'letters'"),
        ("vocab_size", 0, "vocab_size must be at least 1, got 0"),
        ("vocab_size", 2**31, "vocab_size must be at most 2,147,483,647, got 2,147,483,648"),
        ("max_length", 1, r"max_length must be at least 2 \(one token and EOS\), got 1"),
        ("metric", "taste", "metric must be .*, got 'taste'"),
    ],
)
def test_impossible_value(field, value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(FILES, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("vocab_size", 300.0), ("sample", np.int32(9)), ("metric", None)])
def test_wrong_type(field, value):
    with pytest.raises(TypeError, match=f"^{field} must be of type (int|str), got "):
        replace(FILES, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("train", TextFiles("a.en", "a.de")), ("train", ("a.en", "a.de")), ("test", "a.en"), ("train_weight", "12")],
)
def test_wrong_type_of_several(field, value):
    with pytest.raises(TypeError, match=f"^{field} must be a tuple of (corpora such as .*|numbers), got "):
        replace(FILES, **{field: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TextFiles("a.en", None), "target must be of type str, got None"),
        (lambda: TextFiles(b"a.en", "a.de"), "source must be of type str, got b'a.en'"),
        (lambda: TextFiles("a.en", "a.de", name=3), "name must be of type str, got 3"),
        (lambda: TsvFile("a.tsv", name=3), "name must be of type str, got 3"),
        (lambda: TmxFile("a.tmx", "en", None), "target_language must be of type str, got None"),
        (lambda: Trees("wsj", sections=23), r"sections must be a tuple of numbers such as \(2, 3\), got 23"),
        (lambda: Trees("wsj", sections="23"), r"sections must be a tuple of numbers such as \(2, 3\), got '23'"),
        (lambda: Generated(iter([("a", "b")])), "function must be callable, got <list_iterator .*, not its result"),
    ],
)
def test_corpus_with_a_wrong_type(make, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        make()


def test_sections_may_be_a_list():
    assert Trees("wsj", sections=[2, 3]) == Trees("wsj", sections=(2, 3))  # type: ignore[arg-type]


def test_paths_may_be_objects():
    corpora = TextFiles(Path("a.en"), Path("a.de")), TsvFile(Path("a.tsv")), TmxFile(Path("a.tmx"), "en", "de")
    assert corpora == (TextFiles("a.en", "a.de"), TsvFile("a.tsv"), TmxFile("a.tmx", "en", "de"))
    assert Trees(Path("a.mrg")) == Trees("a.mrg")
    given = PROBLEMS["translate_files"].with_files(train_source=Path("a.en"), train_target=Path("a.de"))
    assert given.train == (TextFiles("a.en", "a.de"),)


def test_with_files_takes_one_file_of_trees():
    assert PROBLEMS["parse_files"].with_files(train_trees="my.mrg").train == (Trees("my.mrg"),)


def test_only_a_problem_without_training_text_takes_files():
    assert FILES.takes_files and not MADE.takes_files


def test_with_files():
    problem = FILES.with_files(train_source="a.en", train_target="a.de", test_source="t.en.gz", test_target="t.de.gz")
    assert problem.train == (TextFiles("a.en", "a.de"),)
    assert problem.validation == ()
    assert problem.corpora("test") == (TextFiles("t.en.gz", "t.de.gz"),)
    assert not problem.takes_files
    assert problem.name == FILES.name


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "problem 'my_files' needs your text: give `train_source` and `train_target`"),
        ({"test_source": "a", "test_target": "b"}, "problem 'my_files' needs your text: give `train_source` and .*"),
        ({"train_source": "a"}, "`train_source` is given without `train_target`; give both"),
        ({"train_target": "a"}, "`train_target` is given without `train_source`; give both"),
        (
            {"train_source": "a", "train_target": "b", "validation_target": "c"},
            "`validation_target` is given without `validation_source`; give both",
        ),
        (
            {"train_source": "a", "train_target": "b", "test_trees": ["c"]},
            "problem 'my_files' takes no `test_trees`; leave it out",
        ),
    ],
)
def test_with_files_names_the_missing_argument(files, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        FILES.with_files(**files)


def test_unknown_split():
    with pytest.raises(ValueError, match="^split must be one of train, validation, test, got 'dev'$"):
        MADE.corpora("dev")


def test_to_dict_leaves_the_corpora_out_and_is_json():
    record = json.loads(json.dumps(MADE.to_dict()))
    assert Problem(**record) == replace(MADE, train=())
    assert not {"train", "validation", "test"} & record.keys()


# Several corpora.

THREE = (TextFiles("a/x.en", "a/x.de"), TextFiles("b/x.en", "b/x.de"), TsvFile("c/web.tsv.gz", name="web"))


def test_with_files_takes_several_corpora_text_files_first():
    problem = replace(FILES, source_language="en", target_language="de").with_files(
        train_tmx="m.tmx", train_tsv=["t.tsv"], train_source=["a.en", "b.en"], train_target=["a.de", "b.de"]
    )
    assert problem.train == (
        TextFiles("a.en", "a.de"),
        TextFiles("b.en", "b.de"),
        TsvFile("t.tsv"),
        TmxFile("m.tmx", "en", "de"),
    )
    named = FILES.with_files(
        train_source="a", train_target="b", train_tsv="c", train_name=["news", "web"], validation_tsv=["v", "w"]
    )
    assert named.train == (TextFiles("a", "b", name="news"), TsvFile("c", name="web"))
    assert named.labels("train") == ("news", "web") and named.labels("validation") == ("v", "w")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"train_source": ["a", "b"], "train_target": "c"},
            "`train_source` and `train_target` must be given equally often, got 2 and 1; file n of one is the .*",
        ),
        ({"train_tmx": "m.tmx"}, "`train_tmx` needs `source_language` and `target_language`, such as 'en' and 'de'"),
        ({"train_tsv": "a", "train_name": ["x", "y"]}, "train_name must have one name per corpus, 1, got x, y"),
        ({"train_tsv": "a", "validation_name": ["x"]}, "validation_name must have one name per corpus, 0, got x"),
    ],
)
def test_with_files_refuses_unequal_numbers(files, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        FILES.with_files(**files)


def test_labels_are_file_names_all_different():
    problem = replace(FILES, train=THREE)
    assert problem.labels("train") == problem.labels("validation") == ("x.en", "x.en-2", "web")
    assert problem.labels("test") == () == replace(FILES, train=THREE[:1]).labels("train")
    first, second = replace(MADE, train=MADE.train * 2).labels("train")
    assert second == f"{first}-2"
    trees = Problem(name="p", description="", train=(Trees("a"), Trees("b")), metric="f1")
    assert trees.labels("train") == ()  # the shards of trees stay as they were


def test_beside_finds_the_files_of_every_corpus(tmp_path):
    (tmp_path / "m.tmx").touch()
    corpora = (TmxFile("m.tmx", "en", "de"), TsvFile("m.tmx"))
    found = replace(FILES, train=corpora).beside(str(tmp_path)).train
    assert [corpus.path for corpus in found] == [str(tmp_path / "m.tmx")] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train_weight": (1, 0)}, "train_weight must be above 0 and at most 1,000, got 1, 0"),
        ({"train_weight": (1, -2)}, "train_weight must be above 0 .*"),
        ({"train_weight": (1, float("nan"))}, "train_weight must be above 0 .*"),
        ({"train_weight": (1, 1e9)}, "train_weight must be above 0 .*"),
        ({"train_weight": (1, 2)}, "train_weight must have one weight per training corpus, 3, got 1, 2"),
        ({"train_temperature": 0.5}, "train_temperature must be at least 1 and finite, or 0 for none, got 0.5"),
        ({"train_temperature": float("inf")}, "train_temperature must be .*"),
        ({"train_temperature": float("nan")}, "train_temperature must be .*"),
        (
            {"train_weight": (1, 2, 3), "train_temperature": 5},
            "`train_weight` and `train_temperature` exclude each other; give one of them",
        ),
        (
            {"train": (Trees("a"),), "metric": "f1", "train_temperature": 5},
            "trees cannot be weighted; leave out `train_weight` and `train_temperature`",
        ),
    ],
)
def test_impossible_weights(fields, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(FILES, **{"train": THREE} | fields)


def test_weights_are_recorded_only_if_there_are_any():
    weighted = replace(FILES, train=THREE, train_weight=(1, 2.5, 3))
    record = json.loads(json.dumps(weighted.to_dict()))
    assert record["train_weight"] == [1, 2.5, 3] and Problem(**record) == replace(weighted, train=())
    assert not {"train_weight", "train_temperature"} & replace(FILES, train=THREE).to_dict().keys()
