"""Responses for a parser's export, and for an older export, which builds trees in its graph."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import t2t_repro
from t2t_repro.exporting.exporter import export
from t2t_repro.run import Run
from t2t_repro.serving import page
from t2t_repro.serving.model import ServedModel

SENTENCES = ["3 red cats .", "", " f  ( x )", "12"]
INPUTS = {"inputs": np.array([text.encode() for text in SENTENCES], object)}


@pytest.fixture(scope="module")
def parser(trained: Run, tmp_path_factory) -> Run:
    """Returns a parsing run with the weights of another task."""
    problem = dataclasses.replace(trained.problem, train=(), validation=(), test=(), metric="f1")
    directory = str(tmp_path_factory.mktemp("parser") / "RUN")
    run = dataclasses.replace(trained, directory=directory, problem=problem).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, run.checkpoints, dirs_exist_ok=True)
    return run


@pytest.fixture(scope="module")
def exported(parser: Run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export(parser.directory, str(folder))
    return folder


@pytest.mark.slow
def test_trees_are_served(parser, exported):
    model, ours = ServedModel(str(exported)), t2t_repro.load(parser.directory)
    expected = ours(SENTENCES)
    found = model.run("parse", INPUTS)
    assert [text.decode() for text in found["outputs"]] == expected
    assert found["repairs"].sum() == ours.repairs and found["scores"].shape == (4,)
    assert [text.decode() for text in found["symbols"]] == ours.translator.translate(SENTENCES)
    shown = page.render(model, "m")
    assert 'data-signature="parse"' in shown and ">Parse</button>" in shown and "tokens separated by spaces" in shown


def test_export_is_loaded_as_a_parser(parser, exported):
    model, ours = t2t_repro.load(str(exported)), t2t_repro.load(parser.directory)
    assert model(SENTENCES) == ours(SENTENCES) and model.summary() == ours.summary()
    assert model.parse([["12", "cats"]]) == ours.parse([["12", "cats"]])


class Older(tf.Module):
    """The signatures of an export that builds its own trees; always the same tree."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def parse(self, inputs):
        written = {"outputs": "(TOP (XX 12))", "symbols": "12", "repairs": 1, "scores": -0.5}
        return {name: tf.fill([tf.size(inputs)], value) for name, value in written.items()}


def test_older_export_is_served_unchanged(exported, tmp_path):
    older = Older()
    signatures = dict.fromkeys(("serving_default", "parse"), older.parse)
    tf.saved_model.save(older, str(tmp_path / "1"), signatures=signatures)
    card = json.loads((exported / "1" / "model_card.json").read_text("utf-8"))
    (tmp_path / "1" / "model_card.json").write_text(json.dumps(card), "utf-8")
    found = ServedModel(str(tmp_path)).run("parse", {"inputs": np.array([b"12"], object)})
    assert {name: values.tolist() for name, values in found.items()} == {
        "outputs": [b"(TOP (XX 12))"],
        "symbols": [b"12"],
        "repairs": [1],
        "scores": [-0.5],
    }
