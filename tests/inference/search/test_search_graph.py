"""Searches that one thread executes: the same results, without a second thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.tiny_model import random_model, train_pairs

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.inference.graphs import Graphs
from t2t_repro.inference.search import search_graph
from t2t_repro.inference.search.search_graph import SearchGraph, has_one_thread, packs_by_rows
from t2t_repro.model import packed
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

BFLOAT16 = pytest.param("mixed_bfloat16", False, marks=pytest.mark.bfloat16)
PRECISIONS = [("float32", False), ("float32", True), BFLOAT16]
SOURCES = [[5, 6, 7, 8, 1], [9, 1, 0, 0, 0], [4, 5, 1, 0, 0]]
SEARCHES = "search", "search_among", "search_with_terms", "constrained_search", "sample", "sample_among"
TWO = "search", "sample_among"  # where all would take long


def made_vocabulary(path: Path) -> Vocabulary:
    if not path.exists():
        learn_vocabulary([side for pair in train_pairs() for side in pair], str(path), "bpe", 300)
    return Vocabulary(str(path))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabulary") / "vocabulary.model"


def graphs(path: Path, dtype: str, int8: bool) -> Graphs:
    vocabulary = made_vocabulary(path)
    ensemble = FixedEnsemble([random_model(vocabulary.size, 1, dtype)], int8)
    return Graphs(ensemble, vocabulary, ParseConstraint(vocabulary.subwords))


def arguments(which: str, sentences: int) -> tuple[tuple[Any, ...], int]:
    """Returns the arguments of a `SearchGraph`, with beams of 2 or 2 samples, and the number of its rows."""
    source_BM = tf.constant(SOURCES[:sentences])
    nothing_BP, search = tf.zeros([sentences, 0], tf.int32), (tf.constant(2), tf.constant(0.6), tf.constant(6))
    given: tuple[Any, ...] = source_BM, *search, nothing_BP, tf.constant(0)
    if which == "constrained_search":
        given = source_BM, *search, source_BM[:, :1]
    elif which.startswith("sample"):
        draws_BWL = np.random.default_rng(0).random((sentences, 2, 20), np.float32)
        temperature, top_k = tf.constant(1.0, tf.float64), tf.constant(5 if which == "sample" else 0)
        given = source_BM, tf.constant(draws_BWL), temperature, top_k, tf.constant(6), nothing_BP, tf.constant(0)
    elif which == "search_with_terms":
        given += (tf.constant(["red\tcats", "", "old dogs\n3"][:sentences]),)
    return (tf.range(0, 300, 2), *given) if which.endswith("among") else given, 2 * sentences


def graph(searched: Graphs, which: str) -> SearchGraph:
    return getattr(searched, f"_{which}")


@pytest.mark.parametrize(("dtype", "int8"), PRECISIONS)
def test_results_are_those_of_the_usual_executor(path: Path, dtype: str, int8: bool) -> None:
    searched = graphs(path, dtype, int8)
    assert has_one_thread(searched.ensemble)
    for which in SEARCHES if int8 else TWO:
        for sentences in (3, 1):
            given, rows = arguments(which, sentences)
            found, expected = graph(searched, which)(*given, rows=rows), graph(searched, which).usual(*given)
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("which", "dtype", "int8"),
    [(which, "float32", True) for which in SEARCHES]
    + [("search", "float32", False), pytest.param("search", "mixed_bfloat16", False, marks=pytest.mark.bfloat16)],
)
def test_loops_are_functions_and_nothing_has_branches(path: Path, which: str, dtype: str, int8: bool) -> None:
    """A branch would wait for a second thread: see the module."""
    concrete = graph(graphs(path, dtype, int8), which).concrete()
    functions = concrete.graph.as_graph_def().library.function
    nodes = [*concrete.graph.as_graph_def().node, *(node for each in functions for node in each.node_def)]
    operations = {node.op for node in nodes}
    loops = [node for node in nodes if node.op in ("While", "StatelessWhile")]
    assert len(loops) >= 3 and not any("_lower_using_switch_merge" in node.attr for node in loops)
    assert not operations & {"If", "StatelessIf", "Case", "StatelessCase"}
    slow = {"MatMul", "BatchMatMulV2", "Softmax"}  # TensorFlow's own, in loops; oneDNN has none for float64
    assert not [node for node in nodes if node.op in slow and node.attr["T"].type != tf.float64.as_datatype_enum]


def packs(searched: Graphs, are_few: bool) -> bool:
    functions = searched._search.concrete(are_few).graph.as_graph_def().library.function
    return any(node.op == packed.OPERATION for each in functions for node in each.node_def)


def test_only_few_rows_in_float32_have_a_graph_with_packed_matrices(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = graphs(path, "float32", False)
    assert packs_by_rows(searched.ensemble) and packs(searched, True) and not packs(searched, False)
    chosen: list[bool] = []
    function = SearchGraph.function
    monkeypatch.setattr(
        SearchGraph, "function", lambda self, are_few=False: chosen.append(are_few) or function(self, are_few)
    )
    most = packed.FEW_ROWS
    for sentences, beam_size in ((1, 4), (1, most), (1, most + 1), (3, most // 3), (3, most), (4, 1), (5, 1), (6, 1)):
        searched.search(tf.constant((2 * SOURCES)[:sentences]), tf.constant(beam_size), 0.6, 3)
    assert chosen == [True, True, False, True, False, True, False, False]  # a batch of 5 gets empty sentences, up to 8


@pytest.mark.parametrize(("dtype", "int8"), PRECISIONS[1:])
def test_other_precisions_have_one_graph(path: Path, dtype: str, int8: bool) -> None:
    searched = graphs(path, dtype, int8)
    assert not packs_by_rows(searched.ensemble)
    for sentences in (1, 3):
        searched.search(tf.constant(SOURCES[:sentences]), tf.constant(4), 0.6, 3)
    assert list(searched._search._functions) == [False]


def test_other_models_are_left_to_the_usual_executor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(made_vocabulary(path).size, 1, "float32")
    ensemble = FixedEnsemble([model])
    assert has_one_thread(ensemble) and not has_one_thread(Ensemble([model]))
    monkeypatch.setattr(search_graph.packed, "can_pack", lambda dtype: False)
    assert not has_one_thread(ensemble) and not packs_by_rows(ensemble)
    searched = Graphs(ensemble, made_vocabulary(path))
    assert searched._search.function() is searched._search.usual


def test_a_search_needs_one_thread(path: Path) -> None:
    """All threads of TensorFlow: one. With a branch in the loop, this would hang."""
    program = f"""
import sys, threading
from pathlib import Path
sys.path[:0] = [{str(CHECKOUT)!r}, {str(CHECKOUT / "tests")!r}]
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from {__name__.rpartition(".")[2]} import arguments, graph, graphs
searched = graphs(Path({str(path)!r}), "float32", True)
for which in {TWO!r}:
    given, rows = arguments(which, 3)
    threads = [threading.Thread(target=graph(searched, which), args=given) for _ in range(3)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    print(which, graph(searched, which)(*given, rows=rows).ids.shape[:2])
"""
    made_vocabulary(path)
    folder = CHECKOUT / "tests" / "inference" / "search"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == [f"{which} (3, 2)" for which in TWO], done.stderr[-2_000:]
