"""Searches as graphs, each traced once for every batch and length.

Where packed products (`model.packed`) work, one thread executes a search, one operation after the other. TensorFlow's
usual executor counts what each operation still waits for, and may hand it to another thread. A step of decoding is a
chain of some 1,000 short operations, so little could run in parallel, and the counting costs time.

The executor for one thread runs them in a fixed order. Its loops stay functions, which it calls in its own thread. The
branches of a `tf.cond` would run in another thread, and the program would hang if all threads wait for one. So searches
have none (`decoding_loop.only_if`).

In float32 a matrix is packed for few rows, and with many rows it is faster without. So a search has two graphs then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2t_repro.inference import graph_cache
from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.inference.search.decoding_loop import Hypotheses
from t2t_repro.model import packed
from t2t_repro.model.kernels import onednn


def has_one_thread(ensemble: Ensemble) -> bool:
    """Returns whether one thread executes searches of these models."""
    if not isinstance(ensemble, FixedEnsemble) or not hasattr(tf.experimental, "function_executor_type"):
        return False
    return all(packed.can_pack(model.compute_dtype) for model in ensemble.models)


def packs_by_rows(ensemble: Ensemble) -> bool:
    """Returns whether the graph of a search depends on the number of its rows."""
    in_float32 = any(model.compute_dtype == "float32" for model in ensemble.models)
    return has_one_thread(ensemble) and in_float32 and not ensemble.int8


class SearchGraph:
    """A search with the models of an ensemble: a function of tensors that returns `Hypotheses`."""

    def __init__(
        self,
        search: Callable[..., Hypotheses],
        ensemble: Ensemble,
        signature: Sequence[tf.TensorSpec],
        keep: bool = False,
    ):
        """Traces nothing yet. `signature` are the arguments of `search`. With `keep`, see `graph_cache`."""
        self._search, self._ensemble, self._signature, self._keep = search, ensemble, signature, keep
        self._in_one_thread, self._by_rows = has_one_thread(ensemble), packs_by_rows(ensemble)
        self._functions: dict[bool, Any] = {}  # by whether rows are few
        self._loading = threading.Lock()
        self.usual = self._function(search, "search")  # for the usual executor

    def __call__(self, *arguments: Any, rows: Any = packed.FEW_ROWS + 1) -> Hypotheses:
        """Runs the search. Called while another graph is traced, it becomes a part of that graph.

        `rows` is the number of beams of all sentences. Without it they count as many.
        """
        if not tf.executing_eagerly():
            return self.usual(*arguments)
        are_few = self._by_rows and int(rows) <= packed.FEW_ROWS
        with self._executor():
            return Hypotheses(*self.function(are_few)(*arguments))

    def function(self, are_few: bool = False) -> Any:
        """Returns the traced search for few rows or for many, or the call of a kept graph."""
        with self._loading:
            if are_few not in self._functions:
                traced = self._in_order(are_few) if self._in_one_thread else self.usual
                kept = graph_cache.loaded_or_kept(traced, self._ensemble) if self._keep else None
                self._functions[are_few] = kept or traced
            return self._functions[are_few]

    def concrete(self, are_few: bool = False) -> Any:
        """Returns the graph that is executed."""
        with self._executor():
            return self.function(are_few).get_concrete_function()

    def _executor(self) -> contextlib.AbstractContextManager[None]:
        """Functions that are traced and called in the context are for this executor."""
        if not self._in_one_thread:
            return contextlib.nullcontext()
        return tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")

    def _in_order(self, are_few: bool) -> Any:
        """Returns the search for the executor of one thread."""

        def search(*arguments: Any) -> Hypotheses:
            with onednn.by_name(), packed.few_rows(are_few):
                return self._search(*arguments)

        return self._function(search, "search_of_few_rows" if are_few else "search_in_order")

    def _function(self, search: Callable[..., Hypotheses], name: str) -> Any:
        # the graph only reads weights, so nothing needs control dependencies, whose search takes an eighth of the
        # tracing
        attributes = {"_disable_acd": True}

        def named(*arguments: Any) -> Hypotheses:
            return search(*arguments)

        named.__name__ = name
        return tf.function(named, autograph=False, input_signature=self._signature, experimental_attributes=attributes)
