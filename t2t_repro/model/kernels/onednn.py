"""Operations of oneDNN by their names.

TensorFlow replaces its own operations by those of oneDNN in the graph of a function, but not in loops that stay
functions (`inference.search.search_graph`). So `by_name` names them there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from t2t_repro.model.kernels.context import setting

_BY_NAME: ContextVar[bool] = ContextVar("by_name", default=False)


@contextlib.contextmanager
def by_name() -> Iterator[None]:
    """In the context `matmul` and `softmax` are oneDNN's. The graph needs a TensorFlow with oneDNN and has no
    gradient."""
    with setting(_BY_NAME, True):
        yield


def matmul(x: Any, y: Any, transpose_b: bool = False) -> Any:
    """The product of matrices [I, K] and [K, O], or of batches of them, as `tf.matmul`."""
    if not _BY_NAME.get():
        return tf.matmul(x, y, transpose_b=transpose_b)
    outputs = y.shape[-2 if transpose_b else -1]
    if len(x.shape) == 2:
        product = _operation("_MklMatMul", x, y, transpose_a=False, transpose_b=transpose_b)
    else:
        product = _operation("_MklBatchMatMulV2", x, y, adj_x=False, adj_y=transpose_b)
    product.set_shape([*x.shape[:-1], outputs])
    return product


def softmax(x: Any) -> Any:
    """The softmax over the last axis, as `tf.nn.softmax`."""
    if not _BY_NAME.get():
        return tf.nn.softmax(x)
    found = _operation("_MklSoftmax", x)
    found.set_shape(x.shape)
    return found


def _operation(name: str, *inputs: Any, **flags: bool) -> Any:
    value = tf.compat.v1.AttrValue
    attributes = {
        "T": value(type=inputs[0].dtype.as_datatype_enum),
        "_kernel": value(s=b"MklNameChangeOp"),
        **{key: value(b=flag) for key, flag in flags.items()},
    }
    graph = tf.compat.v1.get_default_graph()
    operation = graph.create_op(name, list(inputs), [inputs[0].dtype], attrs=attributes, name="onednn")
    return operation.outputs[0]
