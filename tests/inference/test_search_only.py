"""A translator loaded with search_only decodes as one with all weights does, without most of their memory."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, SMALL, random_model, train_pairs

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting.exporter import export
from t2t_repro.inference import loading
from t2t_repro.inference.translator import Translator
from t2t_repro.io import sha256
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.run import Run
from t2t_repro.training.checkpointing import weights as weights_module
from t2t_repro.training.checkpointing.checkpoint_list import write_list
from t2t_repro.training.checkpointing.checkpoints import Checkpoints

TEXTS = ["3 red cats and 4 old dogs", "12 big cows"]
STEPS = 1, 2
OF_RUNS = {
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "int8": {"precision": "float32", "int8": True},
    "mean": {"precision": "float32", "average_checkpoints": 2},
    "moving average": {"precision": "float32", "moving_average": True},
}
SLOW = "int8", "bfloat16", "mean", "moving average"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    """A run with learned positions and two checkpoints, each with a moving average."""
    folder = tmp_path_factory.mktemp("run")
    vocabulary = str(folder / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], vocabulary, "bpe", PROBLEM.vocab_size)
    hparams = dataclasses.replace(SMALL, positions="learned", checkpoint_steps=1)
    run = Run(str(folder / "RUN"), PROBLEM, hparams, "", 1, "float32", Vocabulary(vocabulary).sha256).start(vocabulary)
    models = {name: random_model(PROBLEM.vocab_size, positions="learned") for name in ("model", "moving_average")}
    checkpoints = Checkpoints(run, models, keep=2)
    for step in STEPS:
        for seed, model in enumerate(models.values(), start=10 * step):
            other = random_model(PROBLEM.vocab_size, seed, positions="learned")
            for weight, value in zip(model.weights, other.weights, strict=True):
                weight.assign(value)
        checkpoints.save(step)
    return run.directory


def values(model) -> list[np.ndarray]:
    """Returns the weights of a model, freed ones with size 0."""
    return [weight.value.read_value().numpy() for weight in model.weights]


def freed(model) -> set[int]:
    return {id(weight) for weight, value in zip(model.weights, values(model), strict=True) if value.size == 0}


@pytest.mark.numeric
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * (how in SLOW)) for how in OF_RUNS])
def test_translations_and_samples_are_equal_to_the_bit(directory, how):
    both = [Translator.from_run(directory, search_only=only, **OF_RUNS[how]) for only in (False, True)]
    for call in (lambda each: each.n_best(TEXTS, 4), lambda each: each.sample(TEXTS, 2, temperature=0.5)):
        complete, search_only = map(call, both)
        assert complete == search_only


@pytest.mark.parametrize("read_before", [2, 1_000])
def test_a_checkpoint_that_a_trainer_replaces_is_chosen_again(directory, tmp_path, monkeypatch, read_before):
    """Layers are read one after the other, and the checkpoint may be gone after some of them, or after the last one."""
    run = Run.open(shutil.copytree(directory, str(tmp_path / "RUN")))
    read, calls = weights_module._read, iter(range(1_000))
    expected = Translator.from_run(directory, search_only=True).checkpoints_sha256

    def replace_newest():
        write_list(run, ["ckpt-1"])
        for file in Path(run.checkpoints).glob("ckpt-2.*"):
            file.unlink()

    def read_then_replaced(*arguments):
        if next(calls) == read_before:
            replace_newest()
        read(*arguments)

    monkeypatch.setattr(weights_module, "_read", read_then_replaced)
    monkeypatch.setattr(loading, "sha256", lambda path: (read_before > 2 and replace_newest()) or sha256(path))
    found = Translator.from_run(run.directory, search_only=True)
    assert [os.path.basename(path) for (path,) in found.checkpoints] == ["ckpt-1"]
    assert len(found.checkpoints_sha256) == 1 and found.checkpoints_sha256 != expected
    assert found.translate(TEXTS) == Translator.from_run(run.directory).translate(TEXTS)


@pytest.mark.parametrize("how", ["int8", "float32"])
def test_matrices_that_products_replace_are_freed_and_all_others_loaded(directory, how):
    complete = Translator.from_run(directory, **OF_RUNS[how]).model
    model = Translator.from_run(directory, search_only=True, **OF_RUNS[how]).model
    layers = [*model.decoder_layers, *(model.encoder_layers if how == "int8" else [])]
    matrices = {id(weight) for layer in layers for weight in layer.weights if len(weight.shape) == 2}
    read = {id(weight) for layer in model.decoder_layers for weight in of_the_source(layer) if how == "float32"}
    embedding = {id(model.embedding)} if how == "int8" else set()
    assert freed(model) == matrices - read | embedding
    for left, expected in zip(values(model), values(complete), strict=True):
        if left.size:
            np.testing.assert_array_equal(left, expected)


@pytest.mark.parametrize("how", [{"int8": True}, pytest.param({"precision": "bfloat16"}, marks=pytest.mark.bfloat16)])
def test_a_shortlist_needs_no_embedding(directory, how):
    source_BM, ids_S = tf.constant([[4, 7, 1], [9, 1, 0]]), tf.constant([0, 1, *range(4, 60)])
    both = [Translator.from_run(directory, search_only=only, **how) for only in (False, True)]
    complete, search_only = (each.search(source_BM, 2, 0.6, 4, ids_S=ids_S) for each in both)
    np.testing.assert_array_equal(complete.ids, search_only.ids)
    np.testing.assert_array_equal(complete.scores, search_only.scores)


def of_the_source(layer) -> tuple:
    return layer.memory_attention.w_k, layer.memory_attention.w_v


@pytest.mark.bfloat16
def test_encoder_and_embedding_are_freed_too_where_their_products_are_prepared(directory):
    model = Translator.from_run(directory, search_only=True, precision="bfloat16").model
    layers = model.encoder_layers + model.decoder_layers
    matrices = {id(weight) for layer in layers for weight in layer.weights if len(weight.shape) == 2}
    assert freed(model) == matrices | {id(model.embedding)}


def test_scores_and_attention_are_refused(directory):
    translator = t2t_repro.load(directory, search_only=True)
    ids = tf.constant([[3, 1]])
    for call in (
        lambda: translator.score([("12 cows", "12 Kühe")]),
        lambda: translator.memory_attention(ids, ids),
        translator.ensemble.portable,
    ):
        with pytest.raises(ValueError, match="loaded with search_only, without the weights that scores, attention"):
            call()


@pytest.mark.slow
def test_an_ensemble(directory):
    both = [Translator.from_run([directory, directory], search_only=only).n_best(TEXTS, 2) for only in (False, True)]
    assert both[0] == both[1]


def test_alignments_need_all_weights(directory):
    with pytest.raises(ValueError, match="alignments choose a head by its attention.*without search_only"):
        t2t_repro.load(directory, alignments=True, search_only=True)


def test_an_export_has_no_weights_to_free(directory, tmp_path):
    exported = export(directory, str(tmp_path / "EXPORT"))
    with pytest.raises(ValueError, match="is an export, .* load the run instead"):
        t2t_repro.load(exported, search_only=True)


def test_a_damaged_checkpoint_is_one_line(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "RUN")
    (data,) = (tmp_path / "RUN" / "checkpoints").glob("ckpt-2.data*")
    content = bytearray(data.read_bytes())
    content[len(content) // 4] ^= 1  # the second half is the moving average, which is not read
    data.write_bytes(content)
    with pytest.raises(ValueError, match="ckpt-2 is damaged"):
        Translator.from_run(str(tmp_path / "RUN"), search_only=True)
