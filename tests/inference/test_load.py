"""t2t_repro.load of a run, an ensemble and an export, from any number of threads."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers.tiny_model import PROBLEM, SMALL, random_model, train_pairs

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.parsing.parser import Parser
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoints import Checkpoints

TEXTS = ["3 red cats and 4 old dogs", "", "12 big cows", "and " * 60]
PAIRS = [("3 red cats", "3 rote Katzen"), ("old dogs", "alte Hunde"), ("12", "")]


def saved(folder: Path, vocabulary: str, seed: int) -> str:
    """Returns the directory of an untrained run."""
    run = Run(str(folder), PROBLEM, SMALL, "", 1, "float32", Vocabulary(vocabulary).sha256).start(vocabulary)
    Checkpoints(run, {"model": random_model(PROBLEM.vocab_size, seed=seed)}, keep=1).save(1)
    return run.directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    vocabulary = str(folder / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], vocabulary, "bpe", PROBLEM.vocab_size)
    return [saved(folder / str(seed), vocabulary, seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory) -> str:
    return export(runs[0], str(tmp_path_factory.mktemp("exported")))


@pytest.fixture(scope="module")
def run_and_export(runs, exported):
    return t2t_repro.load(runs[0]), t2t_repro.load(exported)


@pytest.mark.parametrize("kind", ["run", "ensemble"])
def test_every_weight_is_that_of_the_checkpoint(runs, kind, monkeypatch):
    """Loading computes no initial values, so none can be left."""

    def computed(*args, **options):
        raise AssertionError("an initial value is computed")

    for name in ("RandomNormal", "GlorotUniform", "Zeros", "Ones"):
        monkeypatch.setattr(getattr(keras.initializers, name), "__call__", computed)
    loaded = t2t_repro.load(runs[0] if kind == "run" else runs)
    monkeypatch.undo()
    for seed, model in enumerate(loaded.ensemble.models, start=1):
        truth = random_model(PROBLEM.vocab_size, seed=seed)
        for found, expected in zip(model.trainable_weights, truth.trainable_weights, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_ensemble_averages_probabilities(runs):
    each = [[log_p for _, log_p in t2t_repro.load(run).score_tokens(PAIRS)[0]] for run in runs]
    both = [log_p for _, log_p in t2t_repro.load(runs).score_tokens(PAIRS)[0]]
    np.testing.assert_allclose(np.exp(both), np.mean(np.exp(each), axis=0), rtol=1e-4)


def test_ensemble_requires_one_vocabulary(runs, tmp_path):
    vocabulary = str(tmp_path / "vocabulary.model")
    learn_vocabulary([source for source, _ in train_pairs()], vocabulary, "bpe", 300)
    run = Run(str(tmp_path / "other"), PROBLEM, SMALL, "", 1, "float32", Vocabulary(vocabulary).sha256)
    run.start(vocabulary)
    with pytest.raises(ValueError, match=r"other' has another vocabulary than .*1' \(SHA-256 differs\); runs form"):
        t2t_repro.load([runs[0], run.directory])


def test_ensemble_requires_one_direction(runs, tmp_path):
    directories = [str(shutil.copytree(runs[0], tmp_path / name)) for name in ("de", "fr")]
    for directory in directories:
        path = Path(directory, "run.json")
        record = json.loads(path.read_text())
        record["problem"] |= {"source_language": "en", "target_language": Path(directory).name}
        path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="runs of an ensemble must have one target_language. Received: 'de' of "):
        t2t_repro.load(directories)


@pytest.mark.slow
def test_export_gives_its_runs_results_in_every_thread(runs, exported):
    model, translator = t2t_repro.load(exported), t2t_repro.load(runs[0])
    assert (model.path, model.hparams) == (exported, translator.hparams)
    assert t2t_repro.load(str(Path(exported).parent)).path == exported
    assert model.translate([]) == model.score([]) == []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        every_best = [pool.submit(model.n_best, TEXTS, 4) for _ in range(3)]
        every_score = [pool.submit(model.score, PAIRS) for _ in range(3)]
    truth = translator.n_best(TEXTS, 4)
    for best in every_best:
        for some, expected in zip(best.result(), truth, strict=True):
            assert [text for text, _ in some] == [text for text, _ in expected]
            assert len({text.strip() for text, _ in some}) == len(some)
            assert [score for _, score in some] == pytest.approx([score for _, score in expected], abs=1e-4)
    true_scores = translator.score(PAIRS)
    for scores in every_score:
        assert scores.result() == pytest.approx(true_scores, rel=1e-4)
    assert model.translate(TEXTS, beam_size=1) == translator.translate(TEXTS, beam_size=1)


@pytest.mark.parametrize("other", [None, 0, False, b"", b"12"])
def test_what_is_not_a_string_is_refused(run_and_export, other):
    """It is not an empty text, neither for a run nor for an export."""
    message = f"text 2 is of type {type(other).__name__}, expected str"
    translator = run_and_export[0]
    for model in run_and_export:
        for call in (model, model.translate, lambda texts, model=model: model.n_best(texts, 2)):
            with pytest.raises(ValueError, match=message):
                call(["12", other])
    for call in (translator.sample, Parser(translator).n_best):
        with pytest.raises(ValueError, match=message):
            call(["12", other], 1)


def test_texts_and_pairs_may_be_any_iterable(run_and_export):
    for model in run_and_export:
        assert model.translate(iter(TEXTS)) == model.translate(TEXTS)
        assert model.score(iter(PAIRS)) == pytest.approx(model.score(PAIRS))


def test_errors_of_loading_and_of_arguments(exported, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run directory"):
        t2t_repro.load(str(tmp_path))
    with pytest.raises(ValueError, match="is an export, which has no checkpoints to average"):
        t2t_repro.load(exported, average_checkpoints=5)
    for options in ({"int8": True}, {"precision": "float32"}):
        with pytest.raises(ValueError, match="is an export, whose precision is fixed; load the run instead"):
            t2t_repro.load(exported, **options)
    model = t2t_repro.load(exported)
    with pytest.raises(ValueError, match="n_best must be at least 1 and at most the beam size 2, got 3"):
        model.n_best(TEXTS, 3, beam_size=2)
    with pytest.raises(ValueError, match="text 2 is not Unicode: a lone surrogate"):
        model.translate(["12", "\ud800"])
    for call in (model.translate, model.score):
        with pytest.raises(ValueError, match="must be a list of strings. Received: one string, '12'"):
            call("12")
    (tmp_path / "saved_model.pb").write_bytes(b"no graph")
    (tmp_path / "model_card.json").write_bytes((Path(exported) / "model_card.json").read_bytes())
    with pytest.raises(ValueError, match="is damaged: .*; export the run again"):
        t2t_repro.load(str(tmp_path))


def test_a_run_is_loaded_from_a_folder_that_also_has_an_export(runs, tmp_path):
    folder = shutil.copytree(runs[0], tmp_path / "both")
    export(runs[1], str(folder))
    assert t2t_repro.load(folder).translate(TEXTS) == t2t_repro.load(runs[0]).translate(TEXTS)


def test_a_translator_knows_its_checkpoints(runs):
    """Scores, exports and output files name them, even if a trainer has replaced them since."""
    for search_only in (False, True):
        translator = Translator.from_run(runs, search_only=search_only)
        assert translator.checkpoints == [[os.path.join(run, "checkpoints", "ckpt-1")] for run in runs]


def test_no_run_is_an_error():
    with pytest.raises(ValueError, match="no run is given; give a run directory, an export, or a list of runs"):
        t2t_repro.load([])
