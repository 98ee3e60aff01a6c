"""Products with weights that oneDNN packs once, for decoding on CPUs with weights that no longer change.

A product of few rows takes as long as reading its matrix. TensorFlow's `MatMul` also brings the matrix into oneDNN's
layout, in each call. The kernel of its fused product packs the matrix at the first call and keeps the result, if the
operation declares the matrix constant. TensorFlow declares that of constants of the graph only.

Any x86-64 processor with AVX2 will do, if TensorFlow includes oneDNN. Support is detected by computing a product
(`can_pack`). Elsewhere `kernels.narrow_linear` is used.

Shapes: T rows, I inputs, O outputs, V vocabulary, D d_model.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from t2t_repro.model.kernels import Linear, narrow_linear, prepared, tensors_read_by
from t2t_repro.model.kernels.context import setting
from t2t_repro.system import processor

AttrValue = tf.compat.v1.AttrValue

OPERATION = "_MklNativeFusedMatMul"
# In float32, oneDNN packs for up to 6 rows and for more in different layouts. A call that needs another layout than the
# first one packs the matrix again, which takes four times as long as the product.
FEW_ROWS = 6
SMALL_MATRIX = 1 << 18  # elements of the largest matrix that is not packed in float32
_FEW_ROWS: ContextVar[bool] = ContextVar("few_rows", default=False)
ROUNDING = {"float32": 0.0, "bfloat16": 2**-8}  # relative error of the test's result, whose sums are exact


@contextlib.contextmanager
def few_rows(are_few: bool = True) -> Iterator[None]:
    """Products that are traced in the context are for at most `FEW_ROWS` rows, if `are_few`: in float32 only these use
    packed matrices."""
    with setting(_FEW_ROWS, are_few):
        yield


def packed_linear(weight_IO: Any, bias_O: Any = None, result: Any = None, *, dtype: Any) -> Linear:
    """Returns x -> x W + b as `narrow_linear` does, with W packed at the first call of a graph.

    The weights must not change during the life of the graph. Requires `can_pack(dtype)`. The kernel computes ReLU too,
    before it writes the result (`kernels.prepared`).
    """
    plain = narrow_linear(weight_IO, bias_O, dtype=dtype)
    weight_IO, bias_O = (*tensors_read_by(plain), None)[:2]

    def apply(x_TI: tf.Tensor, relu: bool = False) -> tf.Tensor:
        if x_TI.dtype == tf.float32 and not _FEW_ROWS.get():
            y_TO = tf.nn.relu(plain(x_TI)) if relu else plain(x_TI)
        else:
            y_TO = _packed_matmul(x_TI, weight_IO, bias_O, relu)
        return tf.cast(y_TO, result or dtype)

    return prepared(apply, weight_IO, bias_O, activated={ops.relu: functools.partial(apply, relu=True)})


def packed_embedding(embedding_VD: Any, *, dtype: Any) -> Linear:
    """Returns x -> x E^T, float32, as `packed_linear` does, with the rows of E in `dtype` for `kernels.table_rows`.

    So decoding needs neither E in float32 nor a transposed copy. Not for float32, where more than `FEW_ROWS` rows are
    multiplied without packing.
    """
    embedding_VD = tf.cast(tf.convert_to_tensor(embedding_VD), dtype)

    def apply(x_TD: tf.Tensor) -> tf.Tensor:
        return tf.cast(_packed_matmul(x_TD, embedding_VD, transposed=True), tf.float32)

    def rows(ids: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(embedding_VD, ids), tf.float32)

    return prepared(apply, embedding_VD, rows=rows)


def gains(weight_IO: Any, dtype: str) -> bool:
    """Returns whether packing a matrix makes products of few rows in `dtype` faster."""
    return dtype != "float32" or math.prod(weight_IO.shape) > SMALL_MATRIX


def can_pack(dtype: str) -> bool:
    """Returns whether `packed_linear` computes `dtype` here, correctly.

    TF_ENABLE_ONEDNN_OPTS=0 turns it off. On a GPU it is not needed. In bfloat16, oneDNN needs AVX-512; without it, it
    ends the process.
    """
    if tf.config.list_physical_devices("GPU") or processor.onednn_is_off():
        return False
    if dtype not in ROUNDING or (dtype == "bfloat16" and not processor.onednn_uses_avx512()):
        return False
    return _is_exact(dtype)


@functools.cache
def _is_exact(dtype: str) -> bool:
    """Returns whether packed products of integers, whose sums float32 represents exactly, are right."""
    rng = np.random.default_rng(0)
    x_TI, weight_IO, bias_O = (rng.integers(-8, 9, shape).astype("f") for shape in ((FEW_ROWS, 100), (100, 40), 40))
    products = packed_linear(weight_IO, bias_O, "float32", dtype=dtype), packed_embedding(weight_IO.T, dtype=dtype)

    @tf.function(autograph=False)
    def both(x_TI: tf.Tensor) -> tf.Tensor:
        with few_rows():
            return tf.stack([product(x_TI) for product in products])

    exact_2TO = np.stack([x_TI @ weight_IO + bias_O, x_TI @ weight_IO])
    try:
        error_2TO = np.abs([both(tf.constant(x_TI, dtype)) - exact_2TO for _ in range(2)])  # the first call packs
    except (tf.errors.OpError, ValueError):  # TensorFlow without oneDNN
        return False
    return bool(np.all(error_2TO <= ROUNDING[dtype] * np.abs(exact_2TO)))


def _packed_matmul(
    x_TI: tf.Tensor, weight: tf.Tensor, bias_O: tf.Tensor | None = None, relu: bool = False, transposed: bool = False
) -> tf.Tensor:
    """Returns x W + b, or max(0, x W + b): TensorFlow's `_MklNativeFusedMatMul`, which has no Python function.

    `weight` is [I, O], or [O, I] if it is `transposed`.
    """
    outputs = weight.shape[0 if transposed else 1]
    if bias_O is None:  # without one the kernel ends the process
        bias_O = tf.constant(0, x_TI.dtype, [outputs])
    attributes = {
        "T": AttrValue(type=x_TI.dtype.as_datatype_enum),
        "num_args": AttrValue(i=1),
        "fused_ops": AttrValue(list=AttrValue.ListValue(s=[b"BiasAdd", b"Relu"][: 1 + relu])),
        "transpose_b": AttrValue(b=transposed),
        "is_filter_const": AttrValue(b=True),
        "_kernel": AttrValue(s=b"MklNameChangeOp"),
    }
    graph = tf.compat.v1.get_default_graph()
    inputs = [x_TI, weight, bias_O]
    operation = graph.create_op(OPERATION, inputs, [x_TI.dtype], attrs=attributes, name="packed_product")
    (y_TO,) = operation.outputs
    y_TO.set_shape([None, outputs])
    return y_TO
