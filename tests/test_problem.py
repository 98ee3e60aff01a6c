"""Problem: declarations, and the errors for impossible ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from t2t_repro.problem import Generated, Problem, TextFiles

FILES = Problem(name="my_files", description="the user's own text")
MADE = Problem(name="made", description="made up", train=(Generated(lambda: iter([("a", "b")])),))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "My-Problem", "a problem's name must be lower-case letters, digits and _, got 'My-Problem'"),
        ("name", "", "a problem's name must be lower-case letters, digits and _, got ''"),
        ("vocab_kind", "letters", "vocab_kind must be .*, got 'letters'"),
        ("vocab_size", 0, "vocab_size must be at least 1, got 0"),
        ("max_length", 1, r"max_length must be at least 2 \(one token and EOS\), got 1"),
        ("metric", "taste", "metric must be .*, got 'taste'"),
    ],
)
def test_impossible_value(field, value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(FILES, **{field: value})


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
            "problem 'my_files' takes no `test_trees`; give `train_source` and `train_target`",
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
