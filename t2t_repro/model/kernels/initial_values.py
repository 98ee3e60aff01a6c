"""Initial values of weights, which loading a run leaves out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from t2t_repro.model.kernels.context import setting

_UNSET: ContextVar[bool] = ContextVar("unset", default=False)


@contextlib.contextmanager
def unset_weights() -> Iterator[None]:
    """Leaves the values of weights created in the context undefined, for a caller that assigns every weight."""
    with setting(_UNSET, True):
        yield


def initializer(initial: Any) -> Any:
    """Returns the Keras initializer `initial`, or inside `unset_weights` one that only reserves memory."""
    return _reserved if _UNSET.get() else initial


def _reserved(shape: Any, dtype: Any) -> Any:
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)
