"""The file of the chosen head."""

from __future__ import annotations

import json

import pytest

from t2t_repro.alignment.head import READING, WRITING, AlignmentHead, ChosenHead

CHOSEN = ChosenHead(
    head=AlignmentHead(2, 3, READING),
    writing_head=AlignmentHead(1, 0, WRITING),
    criterion="F1",
    validation_pairs=10,
    learned_from=20,
    checkpoints=("ckpt-8",),
    f1={"layer 2, head 3, reading": 0.7},
)
HEAD = CHOSEN.head.to_json()


def test_saved_choice_is_loaded(tmp_path):
    CHOSEN.save(str(tmp_path / "alignment.json"))
    assert ChosenHead.load(str(tmp_path / "alignment.json"), 2, 4) == CHOSEN
    assert [each.name for each in tmp_path.iterdir()] == ["alignment.json"]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="choose a head with t2t_repro.choose_alignment_head$"):
        ChosenHead.load(str(tmp_path / "alignment.json"), 2, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged: not JSON"),
        ("[]", "is damaged: expected a JSON object, got list"),
        ("{}", "is damaged: no 'head'"),
        (json.dumps(CHOSEN.to_json() | {"head": 1}), "is damaged: head must be an object, got 1"),
        (json.dumps(CHOSEN.to_json() | {"head": HEAD | {"layer": "x"}}), "layer must be an integer, got 'x'"),
        (json.dumps(CHOSEN.to_json() | {"head": HEAD | {"layer": 0}}), "is damaged: expected a layer from 1"),
        (json.dumps(CHOSEN.to_json()), "names layer 2, head 3, reading, and the model has 1 layers of 4 heads; remove"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path, text, message):
    path = tmp_path / "alignment.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        ChosenHead.load(str(path), 1, 4)
    assert "\n" not in str(error.value)
