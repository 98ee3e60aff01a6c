"""t2t_repro.saved_model: which of several exports is taken, and what cannot be loaded."""

from __future__ import annotations

import pytest

from t2t_repro.saved_model import SavedModel, newest_version


def test_the_newest_version(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory .*; give the one that t2t-exporter wrote to"):
        newest_version(str(tmp_path / "E"))
    with pytest.raises(FileNotFoundError, match="holds no SavedModel, it has no numbered folder"):
        newest_version(str(tmp_path))
    for name in ("9", "10", "11", "next"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match="holds no SavedModel, its versions are in another format"):
        newest_version(str(tmp_path))
    for name in ("9", "10", "next"):
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
    assert newest_version(str(tmp_path)) == 10


@pytest.mark.parametrize(
    ("card", "message"), [("[]", "is damaged: "), ('{"problem": {"metric": "wer"}}', "is damaged: 'wer'")]
)
def test_a_damaged_card(tmp_path, card, message):
    (tmp_path / "model_card.json").write_text(card)
    with pytest.raises(ValueError, match=f"{message}.*; export the run again"):
        SavedModel(str(tmp_path))
