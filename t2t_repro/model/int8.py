"""Matrix products in 8-bit integers, for decoding on processors: of a matrix rounded once with a scale for each column,
and of rows rounded as they come, each with a scale of its own.

Sums are exact, in 32 bits, so a row's product does not depend on the rows beside it.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

AttrValue = tf.compat.v1.AttrValue

LARGEST = 127.0  # the range is symmetric, as oneDNN has it: -128 is not used


class Int8Matrix(NamedTuple):
    """A matrix: `values_IO` / 127 times the scale of each column."""

    values_IO: tf.Tensor  # int8
    scales_O: tf.Tensor  # float32: the largest absolute value of each column


def int8_matrix(weight_IO: tf.Tensor) -> Int8Matrix:
    """`weight_IO` [I, O], float32, to the nearest that can be had."""
    scales_O = tf.reduce_max(tf.abs(weight_IO), axis=0)
    return Int8Matrix(_rounded(weight_IO, scales_O), scales_O)


def int8_map(
    weight_IO: tf.Tensor, bias_O: tf.Tensor | None = None, result: Any = "float32"
) -> Callable[[tf.Tensor], tf.Tensor]:
    """x to x W + b, as `result`: what is done with it next takes less time in float32 than in bfloat16 on a CPU."""
    matrix = int8_matrix(tf.convert_to_tensor(weight_IO))
    bias_O = None if bias_O is None else tf.convert_to_tensor(bias_O)

    def mapped(x_NI: tf.Tensor) -> tf.Tensor:
        y_NO = int8_product(x_NI, matrix, tf.as_dtype(result))
        return y_NO if bias_O is None else y_NO + tf.cast(bias_O, y_NO.dtype)

    return mapped


def int8_product(x_NI: tf.Tensor, matrix: Int8Matrix, dtype: tf.DType) -> tf.Tensor:
    """x W [N, O] as `dtype`.

    `matrix` must stay the same for as long as the graph lives: the operation packs it once and keeps that.
    """
    given = dtype if dtype == tf.bfloat16 else tf.float32  # what the operation can give
    x_NI = tf.cast(x_NI, tf.float32)
    scale_N1 = tf.reduce_max(tf.abs(x_NI), axis=1, keepdims=True)
    y_NO = _quantized_matmul(_rounded(x_NI, scale_N1), matrix, given)
    return tf.cast(y_NO * tf.cast(scale_N1 / LARGEST, given), dtype)


def must_have_int8() -> None:
    """Raises ValueError where TensorFlow has no such products: for a GPU, and for a processor without oneDNN."""
    if tf.config.list_physical_devices("GPU"):
        raise ValueError("products of 8-bit integers are for CPUs, and there is a GPU; decode without int8")
    product = tf.function(int8_map(tf.ones([8, 8])), autograph=False)
    try:
        found = float(product(tf.ones([1, 8]))[0, 0])
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"no products of 8-bit integers here ({reason}); decode without int8") from None
    if abs(found - 8) > 0.1:
        raise ValueError(f"products of 8-bit integers are wrong here ({found} for 8); decode without int8")


def _rounded(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    steps = tf.round(x * (LARGEST / tf.maximum(scale, 1e-30)))  # where all is 0, 0
    return tf.cast(steps, tf.int8)


def _quantized_matmul(x_NI: tf.Tensor, matrix: Int8Matrix, dtype: tf.DType) -> tf.Tensor:
    """oneDNN's product of 8-bit integers. TensorFlow has it as `_QuantizedMatMul`, without a name in Python; of those
    that have one, none takes rows with a sign, or a scale for each column, or keeps the packed matrix."""
    outputs = matrix.scales_O.shape[0]
    bias_O = tf.zeros([outputs])  # the kernel wants one, to give what is no integer
    ranges = [-LARGEST, LARGEST, -matrix.scales_O, matrix.scales_O]
    integers = (tf.bitcast(each, tf.qint8) for each in (x_NI, matrix.values_IO))  # no loop carries that type
    inputs = [*integers, bias_O, *(tf.convert_to_tensor(each) for each in ranges)]
    attributes = {
        "T1": _type(tf.qint8),
        "T2": _type(tf.qint8),
        "Tbias": _type(tf.float32),
        "U": _type(tf.float32),
        "Tout": _type(dtype),
        "Tdevice_inputs": _types([]),
        "Tdevice_outputs": _types([]),
        "Thost_inputs": _types([each.dtype for each in inputs]),
        "Thost_outputs": _types([dtype]),
        "fused_ops": AttrValue(list=AttrValue.ListValue(s=[b"BiasAdd", b"Dequantize"])),
    }
    graph = tf.compat.v1.get_default_graph()
    operation = graph.create_op("_QuantizedMatMul", inputs, [dtype], attrs=attributes, name="int8_product")
    (y_NO,) = operation.outputs
    y_NO.set_shape([None, outputs])
    return y_NO


def _type(dtype: tf.DType) -> AttrValue:
    return AttrValue(type=dtype.as_datatype_enum)


def _types(dtypes: list[tf.DType]) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(type=[each.as_datatype_enum for each in dtypes]))
