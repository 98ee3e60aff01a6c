"""Searches that one thread executes: the same results, without a second thread."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.tiny_model import random_model

from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.inference.graphs import Graphs
from t2t_repro.inference.search import one_thread

VOCAB = 300
BFLOAT16 = pytest.param("mixed_bfloat16", False, marks=pytest.mark.bfloat16)


def arguments() -> tuple[tf.Tensor, ...]:
    source_BM = tf.constant([[5, 6, 7, 8, 1], [9, 1, 0, 0, 0], [4, 5, 1, 0, 0]])
    return source_BM, tf.constant(4), tf.constant(0.6), tf.constant(6), tf.zeros([3, 0], tf.int32), tf.constant(0)


def graphs(dtype: str, int8: bool) -> Graphs:
    return Graphs(FixedEnsemble([random_model(VOCAB, 1, dtype)], int8), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "int8"), [("float32", True), BFLOAT16])
def test_results_are_those_of_the_usual_executor(dtype: str, int8: bool) -> None:
    both = graphs(dtype, int8)
    assert one_thread.gains(both.ensemble)
    found, expected = both.search(*arguments()), both._search(*arguments())
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "int8"), [("float32", True), BFLOAT16])
def test_loops_are_functions_and_nothing_has_branches(dtype: str, int8: bool) -> None:
    """A branch would wait for a second thread: see the module."""
    searched = graphs(dtype, int8)
    with one_thread.executing():
        concrete = searched._search_in_one_thread.get_concrete_function()
    functions = concrete.graph.as_graph_def().library.function
    nodes = [*concrete.graph.as_graph_def().node, *(node for each in functions for node in each.node_def)]
    operations = {node.op for node in nodes}
    loops = [node for node in nodes if node.op in ("While", "StatelessWhile")]
    assert len(loops) == 3 and not any("_lower_using_switch_merge" in node.attr for node in loops)
    assert not operations & {"If", "StatelessIf", "Case", "StatelessCase"}
    assert not operations & {"MatMul", "BatchMatMulV2", "Softmax"}  # those of TensorFlow, which are slow in loops


def test_products_in_float32_and_other_models_are_left_to_the_usual_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(VOCAB, 1, "float32")
    assert not one_thread.gains(FixedEnsemble([model])) and not one_thread.gains(Ensemble([model]))
    ensemble = FixedEnsemble([model], int8=True)
    monkeypatch.setattr(one_thread, "can_pack", lambda dtype: False)
    assert not one_thread.gains(ensemble)


def test_a_search_needs_one_thread() -> None:
    """All threads of TensorFlow: one. With a branch in the loop, this would hang."""
    program = f"""
import sys, threading
sys.path[:0] = [{str(CHECKOUT)!r}, {str(CHECKOUT / "tests")!r}]
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from {__name__.rpartition(".")[2]} import arguments, graphs
searched = graphs("float32", True)
threads = [threading.Thread(target=searched.search, args=arguments()) for _ in range(3)]
[each.start() for each in threads]
[each.join() for each in threads]
print(searched.search(*arguments()).ids.shape)
"""
    folder = CHECKOUT / "tests" / "inference" / "search"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("(3, 4, "), done.stderr[-2_000:]
