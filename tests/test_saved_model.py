"""t2t_repro.saved_model: selection of the newest export, and exports that cannot be loaded."""

from __future__ import annotations

import shutil

import pytest

from t2t_repro.saved_model import SavedModel, newest_version


def test_newest_version(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory .*; give the one that t2t-exporter wrote to"):
        newest_version(str(tmp_path / "E"))
    with pytest.raises(FileNotFoundError, match="no SavedModel in .*, it has no numbered folder"):
        newest_version(str(tmp_path))
    for name in ("9", "10", "11", "next"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match="no SavedModel in .*, its versions are in another format"):
        newest_version(str(tmp_path))
    for name in ("9", "10", "next"):
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
    assert newest_version(str(tmp_path)) == 10
    with pytest.raises(FileNotFoundError, match=f"10' is one version; give the folder of all, '{tmp_path}'"):
        newest_version(str(tmp_path / "10"))


@pytest.mark.parametrize(
    ("card", "message"), [("[]", "is damaged: "), ('{"problem": {"metric": "wer"}}', "is damaged: 'wer'")]
)
def test_damaged_model_card(tmp_path, card, message):
    (tmp_path / "model_card.json").write_text(card)
    with pytest.raises(ValueError, match=f"{message}.*; export the run again"):
        SavedModel(str(tmp_path))


def test_a_folder_whose_name_is_a_pattern(exported, tmp_path):
    moved = shutil.copytree(exported, tmp_path / "E[2]" / "1")
    assert SavedModel(str(moved)).card == SavedModel(exported).card
