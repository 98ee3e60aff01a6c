"""Graphs of beam search that are kept: a later process loads one, and translates the same to the bit."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.tiny_model import random_model, train_pairs

from t2t_repro.alignment.head import AlignmentHead
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference import graph_cache, graphs
from t2t_repro.inference.ensemble import FixedEnsemble
from t2t_repro.inference.translator import Translator
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

TEXTS = ["3 red cats and 4 old dogs", "12 big cows", ""]
MODELS = {  # dtype, whether in 8-bit integers, number of models
    "float32": ("float32", False, 1),
    "bfloat16": ("mixed_bfloat16", False, 1),
    "int8": ("float32", True, 1),
    "two models": ("float32", False, 2),
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", 300)
    return Vocabulary(path)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder, still missing, in which this process keeps graphs."""
    monkeypatch.setattr(graph_cache, "allowed", True)
    monkeypatch.setenv(graph_cache.FOLDER, str(tmp_path / "graphs"))
    return tmp_path / "graphs"


@pytest.fixture
def traced(monkeypatch) -> list[int]:
    """Returns a list that gets an element for each search that is traced."""
    calls, search = [], graphs.beam_search
    monkeypatch.setattr(graphs, "beam_search", lambda *given: calls.append(1) or search(*given))
    return calls


def translator(vocabulary: Vocabulary, dtype="float32", int8=False, count=1, seed=1, **changes) -> Translator:
    models = [random_model(vocabulary.size, seed + number, dtype, **changes) for number in range(count)]
    return Translator(FixedEnsemble(models, int8), vocabulary, models[0].hparams)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "which", [pytest.param(name, marks=[pytest.mark.slow] * (name == "two models")) for name in MODELS]
)
def test_a_loaded_graph_reads_the_weights_of_its_own_model(vocabulary, folder, traced, monkeypatch, which):
    """The graph was kept by another model of the same sizes, and loaded by a third one. Results are equal to the
    bit."""
    with monkeypatch.context() as patch:
        patch.setenv(graph_cache.FOLDER, "")
        expected = translator(vocabulary, *MODELS[which]).n_best(TEXTS, 3)
    of_another = translator(vocabulary, *MODELS[which], seed=7).n_best(TEXTS, 3)
    assert of_another != expected
    assert len(files(folder)) == 1 and len(traced) == 2
    assert translator(vocabulary, *MODELS[which], seed=7).n_best(TEXTS, 3) == of_another
    found = translator(vocabulary, *MODELS[which])
    assert found.n_best(TEXTS, 3) == expected and found.n_best(TEXTS[:1], 1, beam_size=3) == [expected[0][:1]]
    assert len(files(folder)) == 1 and len(traced) == 2


def test_threads_that_search_first_together_get_one_call(vocabulary, monkeypatch):
    """From Python 3.12 on, `cached_property` has no lock. Each call packs its own matrices."""
    looked_up = []

    def slow(*_):
        time.sleep(0.2)
        looked_up.append(1)
        return lambda: None

    monkeypatch.setattr(graph_cache, "loaded_or_kept", slow)
    found = translator(vocabulary)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: found._search.function(), range(2))
    assert first is second and looked_up == [1]


def test_whatever_changes_the_graph_changes_the_file(vocabulary, folder, traced, monkeypatch):
    translator(vocabulary).translate(TEXTS)
    translator(vocabulary, num_heads=1).translate(TEXTS)
    for owner, name, value in (
        (graph_cache, "__version__", "9.9"),
        (graph_cache, "_PACKAGE", folder),  # other source files: none
        (graph_cache.processor, "features", lambda: ()),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            translator(vocabulary).translate(TEXTS)
    assert len(files(folder)) == len(traced) == 5


def test_other_searches_are_traced(vocabulary, folder):
    """Alignments and samples have other outputs, and an export has a graph around the search."""
    plain = translator(vocabulary)
    plain.with_alignments(AlignmentHead(1, 1, "writing")).n_best(TEXTS, 1)
    plain.sample(TEXTS)
    tf.function(lambda: plain.search(tf.constant([[5, 1]]), 2, 0.6, 3).scores)()
    assert not folder.exists()


def test_a_damaged_file_is_written_again(vocabulary, folder, traced):
    expected = translator(vocabulary).n_best(TEXTS, 3)
    (name,) = files(folder)
    content = (folder / name).read_bytes()
    for damaged in (content[:-9], b""):
        (folder / name).write_bytes(damaged)
        assert translator(vocabulary).n_best(TEXTS, 3) == expected
        assert files(folder) == [name]
    assert translator(vocabulary).n_best(TEXTS, 3) == expected and len(traced) == 3


def test_a_folder_that_cannot_be_written_changes_nothing(vocabulary, folder, tmp_path, monkeypatch, traced):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(graph_cache.FOLDER, str(tmp_path / "file" / "graphs"))
    assert translator(vocabulary).n_best(TEXTS, 3) == translator(vocabulary).n_best(TEXTS, 3)
    assert len(traced) == 2 and (tmp_path / "file").read_text() == ""


def test_a_tensorflow_without_the_calls_traces(vocabulary, folder, monkeypatch):
    from tensorflow.python.eager.context import Context

    monkeypatch.delattr(Context, "add_function_def")
    assert len(translator(vocabulary).translate(TEXTS)) == 3 and not folder.exists()


def test_graphs_that_were_used_last_are_kept(vocabulary, folder, monkeypatch):
    monkeypatch.setattr(graph_cache, "MOST_GRAPHS", 2)
    folder.mkdir()
    old, newer = (folder / (letter * 64) for letter in "ba")
    for seconds, path in enumerate((old, newer, folder / "another file")):
        path.write_text("")
        os.utime(path, (seconds, seconds))
    translator(vocabulary).translate(TEXTS)
    assert not old.exists() and newer.exists() and len(files(folder)) == 3


def test_python_code_that_may_have_changed_the_model_traces(vocabulary, folder, monkeypatch):
    monkeypatch.setattr(graph_cache, "allowed", False)  # the default
    translator(vocabulary).translate(TEXTS)
    assert not folder.exists()


def test_decoder_loads_the_graph_that_it_kept(program, traced, monkeypatch, tmp_path):
    """By default from the cache folder of the user."""
    monkeypatch.delenv(graph_cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = ["t2t-decoder", f"--output_dir={CHECKOUT}/tests/fixtures/run"]
    first, second = (program(*run, stdin=b"12 years\n\n4 April 2017\n") for _ in range(2))
    assert first == second and first.code == 0 and len(traced) == 1
    assert len(files(tmp_path / "t2t_repro" / "graphs")) == 1


@pytest.mark.slow
def test_threads_that_search_at_the_same_time(vocabulary, folder, traced):
    expected = translator(vocabulary).n_best(TEXTS, 3)
    for each in (translator(vocabulary), translator(vocabulary, num_heads=1)):  # its graph is loaded, and traced
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _, each=each: each.n_best(TEXTS, 3), range(8)))
        assert all(one == found[0] for one in found) and (found[0] == expected) == (len(traced) == 1)
    assert len(files(folder)) == len(traced) == 2
