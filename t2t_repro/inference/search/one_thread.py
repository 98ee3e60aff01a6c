"""Searches that one thread executes, one operation after the other.

TensorFlow's usual executor counts what each operation still waits for, and may hand it to another thread. A step of
decoding is a chain of some 1,000 short operations, so little could run in parallel, and the counting costs time. The
executor for one thread runs them in a fixed order.

Its loops stay functions, which it calls in its own thread. The branches of a `tf.cond` would run in another thread,
and the program would hang if all threads wait for one. So searches have none. Packed products in float32 do, and are
left to the usual executor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.model.packed import can_pack


def gains(ensemble: Ensemble) -> bool:
    """Returns whether one thread should execute searches of these models."""
    if not isinstance(ensemble, FixedEnsemble) or not hasattr(tf.experimental, "function_executor_type"):
        return False
    dtypes = {model.compute_dtype for model in ensemble.models}
    return (ensemble.int8 or "float32" not in dtypes) and all(map(can_pack, dtypes))


@contextlib.contextmanager
def executing() -> Iterator[None]:
    """Functions that are traced and called in the context are for the executor of one thread."""
    with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
        yield
