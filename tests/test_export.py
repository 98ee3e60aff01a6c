"""t2t_repro.inference.export: what is exported stands on its own, and says what the run says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small import PROBLEM, SMALL, random_model, train_pairs

from t2t_repro.data.vocabulary import Vocabulary, learn
from t2t_repro.inference.decode import Translator
from t2t_repro.inference.export import export
from t2t_repro.run import Run
from t2t_repro.training.checkpoints import Checkpoints

TEXTS = ["3 red cats and 4 old dogs", "", "12 big cows", "and " * 700, "12 big cows and 1 red dog"]
STRANGER = """
import json, sys
import tensorflow as tf, tensorflow_text

path, texts = sys.argv[1], json.loads(sys.argv[2])
model = tf.saved_model.load(path)
inputs = tf.constant(texts)
best = model.signatures["serving_default"](inputs=inputs)
search = {"beam_size": 3, "alpha": 0.0, "extra_length": 5, "n_best": 2}
search = {name: tf.constant(value) for name, value in search.items()}
several = model.signatures["translate"](inputs=inputs, **search)
scores = model.signatures["score"](inputs=inputs, targets=inputs)
none = model.signatures["serving_default"](inputs=tf.constant([], tf.string))
odd = model.signatures["serving_default"](inputs=tf.constant([b"\\xff\\xfe 3 cats"]))
assert not [name for name in sys.modules if name.startswith("t2t_repro")]
print(json.dumps({
    "best": [text.decode() for text in best["outputs"].numpy()],
    "scores": best["scores"].numpy().tolist(),
    "several": [[text.decode() for text in row] for row in several["outputs"].numpy()],
    "log_probabilities": scores["log_probabilities"].numpy().tolist(),
    "tokens": scores["token_log_probabilities"].numpy().sum(axis=1).tolist(),
    "none": len(none["outputs"]),
    "odd": len(odd["outputs"]),
}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was never trained, which is no matter here."""
    folder = tmp_path_factory.mktemp("export")
    vocabulary = str(folder / "vocabulary.model")
    learn([side for pair in train_pairs() for side in pair], vocabulary, "bpe", PROBLEM.vocab_size)
    sha256 = Vocabulary(vocabulary).sha256
    run = Run(str(folder / "run"), PROBLEM, SMALL, str(folder), 1, "float32", sha256).start(vocabulary)
    Checkpoints(run, {"model": random_model(PROBLEM.vocab_size)}, keep=1).save(1)
    return run


def test_a_stranger_gets_what_the_run_gives(run, tmp_path):
    path = export(run.directory, str(tmp_path / "exported"))
    argv = [sys.executable, "-c", STRANGER, path, json.dumps(TEXTS)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    translator = Translator.from_run(run.directory)
    n_best = translator.n_best(TEXTS, 1)
    assert found["best"] == [hypotheses[0][0] for hypotheses in n_best]
    assert found["best"][1] == ""
    assert found["scores"] == pytest.approx([hypotheses[0][1] for hypotheses in n_best], abs=1e-4)
    assert found["several"][0] != [found["best"][0]] * 2
    expected = translator.score([(text, text) for text in TEXTS])
    assert found["log_probabilities"] == pytest.approx(expected, rel=1e-4)
    assert found["tokens"] == pytest.approx(expected, rel=1e-4)
    assert (found["none"], found["odd"]) == (0, 1)


def test_exports_are_numbered_and_whole(run, tmp_path):
    folder = tmp_path / "exported"
    assert export(run.directory, str(folder)) == str(folder / "1")
    assert export(run.directory, str(folder)) == str(folder / "2")
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    card = json.loads((folder / "2" / "model_card.json").read_text())
    assert card["problem"]["name"] == "animals"
    assert card["checkpoints"] == ["ckpt-1"]


def test_a_failed_export_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tensorflow.saved_model.save", full)
    with pytest.raises(OSError, match="no space left"):
        export(run.directory, str(tmp_path / "exported"))
    assert list((tmp_path / "exported").iterdir()) == []


def test_an_export_folder_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; give a directory"):
        export(run.directory, str(tmp_path / "file"))
