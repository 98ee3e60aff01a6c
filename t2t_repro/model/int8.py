"""Products of 8-bit integers, for decoding on CPUs.

A weight matrix is quantized once, with a scale per column. Activations are quantized when they arrive, with a scale per
row: to -127 to 127, and weights to -64 to 64 (seven bits). Sums are exact, in 32 bits, so that a row's product does not
depend on the other rows.

Processors multiply unsigned by signed bytes, so rows are shifted by 128 first. The sums then exceed the right ones by
128 times the sum of a column, which is known in advance and subtracted with the bias, in float32. oneDNN would shift
signed rows itself, in each product.

The reason for seven bits: on a processor without VNNI, oneDNN adds pairs of products in 16 bits (`vpmaddubsw`), which
saturate at 32,767. The largest pair is 255 * 64 * 2 = 32,640; with 65 it is 33,150. With weights up to 127, as VNNI
allows, the products are wrong on those processors, without an error.

Any x86-64 processor that TensorFlow supports will do, if TensorFlow includes oneDNN. Support is detected by computing
products at the limits of both ranges, never by the processor's name: see `must_have_int8` and `must_be_exact`.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.model.kernels import Linear, narrow_linear, prepared, tensors_read_by

AttrValue = tf.compat.v1.AttrValue

LARGEST_ROW = 127  # the range is symmetric, as in oneDNN: -128 is not used
LARGEST_WEIGHT = 64
SHIFT = 128  # added to the numbers of a row, which then are 1 to 255
SMALL_MATRIX = 1 << 16  # elements of the largest matrix that decoding multiplies in float32
ROWS = 2_048  # of the embedding matrix that are quantized at a time
# N, I, O, whether the matrix is transposed: oneDNN may choose different code for a vector, a matrix and each order
PROBES = ((1, 8, 8, False), (5, 100, 40, False), (5, 100, 40, True))
_WRONG = "products of 8-bit integers are wrong on this processor: expected"
_EXPORT_AGAIN = "export the run without int8"


class Int8Matrix(NamedTuple):
    """A quantized matrix: its values times the scale of each column."""

    values: tf.Tensor  # int8, -64 to 64: [I, O], or [O, I] if `is_transposed`
    scales_O: tf.Tensor  # float32
    shift_O: tf.Tensor  # float32: what takes `SHIFT` out of `_quantized_matmul`
    is_transposed: bool = False


def int8_matrix(values: tf.Tensor, scales_O: tf.Tensor, is_transposed: bool = False) -> Int8Matrix:
    """Returns the matrix of `values`, -64 to 64, with what takes `SHIFT` out of its products."""
    sums_O = tf.reduce_sum(tf.cast(values, tf.int32), axis=1 if is_transposed else 0)
    return Int8Matrix(values, scales_O, tf.cast(-SHIFT * sums_O, tf.float32) * (scales_O / LARGEST_ROW), is_transposed)


def int8_linear(weight_IO: tf.Tensor, bias_O: tf.Tensor | None = None, result: Any = "float32") -> Linear:
    """Returns x -> x W + b in the dtype `result`. On a CPU the next operations are faster in float32 than in
    bfloat16.

    W [I, O], float32, is rounded to nearest; the largest absolute value of a column becomes 64. It must not change
    during the life of the graph: the operation packs it once and keeps the packed copy.
    """
    matrix = int8_matrix(*_rounded(tf.convert_to_tensor(weight_IO), 0))
    return _linear(matrix, None if bias_O is None else tf.convert_to_tensor(bias_O), result)


def int8_or_float32(weight_IO: tf.Tensor, bias_O: tf.Tensor | None = None, result: Any = "float32") -> Linear:
    """Returns `int8_linear`, or for a small W the product in float32: rounding the rows would take longer."""
    if math.prod(weight_IO.shape) > SMALL_MATRIX:
        return int8_linear(weight_IO, bias_O, result)
    product = narrow_linear(weight_IO, bias_O, result, dtype="float32")
    return prepared(lambda x_NI: product(tf.cast(x_NI, tf.float32)), *tensors_read_by(product))


def int8_embedding(embedding_VD: tf.Tensor) -> Linear:
    """Returns x -> x E^T, float32, as `int8_linear` does, with the rows of the rounded E for `kernels.table_rows`.

    So decoding does not need E itself. It is rounded `ROWS` at a time: copies of all of it in float32 would be the peak
    of the memory.
    """
    embedding_VD = tf.convert_to_tensor(embedding_VD)
    starts = range(0, embedding_VD.shape[0], ROWS)
    parts = [int8_matrix(*_rounded(embedding_VD[first : first + ROWS], 1), is_transposed=True)[:3] for first in starts]
    values_VD, scales_V, shift_V = (tf.concat(each, axis=0) for each in zip(*parts, strict=True))
    matrix = Int8Matrix(values_VD, scales_V, shift_V, is_transposed=True)

    def rows(ids: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(matrix.values, ids), tf.float32) * tf.gather(matrix.scales_O, ids)[..., None]

    return _linear(matrix, rows=rows)


def _linear(
    matrix: Int8Matrix,
    bias_O: tf.Tensor | None = None,
    result: Any = "float32",
    rows: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Linear:
    """Returns x -> x W + b of `int8_linear` with the rounded W, and `rows` for `kernels.table_rows`."""

    def apply(x_NI: tf.Tensor) -> tf.Tensor:
        x_NI = tf.cast(x_NI, tf.float32)
        largest_N1 = tf.reduce_max(tf.abs(x_NI), axis=1, keepdims=True)
        steps_NI = x_NI * tf.math.divide_no_nan(float(LARGEST_ROW), largest_N1)
        shifted_NI = tf.cast(steps_NI + (SHIFT + 0.5), tf.uint8)  # rounded: a cast drops the fraction
        y_NO = _quantized_matmul(shifted_NI, matrix) * largest_N1
        return tf.cast(y_NO if bias_O is None else y_NO + bias_O, result)

    return prepared(apply, *matrix[:3], bias_O, rows=rows)


def _rounded(weight: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `weight` rounded to nearest as int8, and its scales, float32, above 0, each for all values along
    `axis`."""
    scales = tf.maximum(tf.reduce_max(tf.abs(weight), axis=axis, keepdims=True) / LARGEST_WEIGHT, 1e-30)
    return tf.cast(tf.round(weight * (1 / scales)), tf.int8), tf.squeeze(scales, axis)


def must_have_int8() -> None:
    """Raises ValueError if 8-bit products are missing or wrong on this machine. GPUs have none."""
    if tf.config.list_physical_devices("GPU"):
        raise ValueError("products of 8-bit integers are for CPUs, and there is a GPU; decode without int8")
    try:
        furthest = tf.function(_furthest, autograph=False)
        expected, received = (float(each) for each in furthest(tf.constant(1)))
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"no products of 8-bit integers here ({reason}); decode without int8") from None
    if not _is_exact(expected, received):
        raise ValueError(f"{_WRONG} {expected:.0f}, received {received:.0f}; decode without int8")


def must_be_exact(size: tf.Tensor) -> tf.Operation:
    """Returns an operation that fails with `InvalidArgumentError` if 8-bit products are wrong where the graph runs.

    It is for exported graphs. `size`, an int32 scalar of at least 0, comes from each request, so that TensorFlow cannot
    compute the products before the graph is loaded.
    """
    expected, received = _furthest(size)
    numbers = [tf.as_string(each, precision=0) for each in (expected, received)]
    message = tf.strings.join([_WRONG, numbers[0] + ",", "received", numbers[1] + ";", _EXPORT_AGAIN], separator=" ")
    return tf.debugging.Assert(_is_exact(expected, received), [message])


def _furthest(size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the product at the limits of both ranges with the largest error: float32, expected and received.

    `size` is as for `must_be_exact`.
    """
    zero = tf.cast(tf.minimum(size, 0), tf.uint8)
    pairs = []
    for rows, inputs, outputs, is_transposed in PROBES:
        x_NI, weight_IO = _extremes(rows, inputs) * LARGEST_ROW, _extremes(outputs, inputs).T * LARGEST_WEIGHT
        values = tf.constant(weight_IO.T if is_transposed else weight_IO, tf.int8)
        matrix = int8_matrix(values, tf.fill([outputs], float(LARGEST_ROW)), is_transposed)
        received_NO = _quantized_matmul(tf.constant(x_NI + SHIFT, tf.uint8) + zero, matrix)
        pairs.append((tf.reshape((x_NI @ weight_IO).astype(np.float32), [-1]), tf.reshape(received_NO, [-1])))
    expected, received = (tf.concat(side, axis=0) for side in zip(*pairs, strict=True))
    error = tf.abs(received - expected)
    place = tf.argmax(tf.where(tf.math.is_nan(error), tf.float32.max, error))
    return expected[place], received[place]


def _is_exact(expected: Any, received: Any) -> Any:
    """Returns true if the error is below a half. Sums are integers, and rounding to float32 moves them less."""
    return abs(received - expected) < 0.5


def _extremes(count: int, length: int) -> np.ndarray:
    """Returns [count, length] of 1 and -1: all 1, all -1, alternating, and random."""
    signs = np.random.default_rng(0).choice([-1, 1], (count, length))
    signs[:3] = np.stack([np.ones(length), -np.ones(length), np.arange(length) % 2 * 2 - 1])[:count]
    return signs


def _quantized_matmul(x_NI: tf.Tensor, matrix: Int8Matrix) -> tf.Tensor:
    """Returns the 8-bit product of (x - `SHIFT`) / `LARGEST_ROW`, x uint8, as float32: oneDNN's, by TensorFlow's
    `_QuantizedMatMul`, which has no Python function.

    The operations with a Python function lack a scale per column, or the packed copy of the matrix. The result is never
    requested as bfloat16: without AVX-512 that aborts the process.
    """
    outputs = matrix.scales_O.shape[0]
    # The kernel divides the end of each range by 255 (rows) or 127 (weights), whatever the numbers reach. Of both ends
    # it takes the one that is further from 0.
    ranges = [0.0, 255.0, matrix.scales_O, matrix.scales_O]
    integers = tf.bitcast(x_NI, tf.quint8), tf.bitcast(matrix.values, tf.qint8)  # loops cannot carry these types
    inputs = [*integers, matrix.shift_O, *(tf.convert_to_tensor(each) for each in ranges)]
    attributes = {
        "T1": _type(tf.quint8),
        "T2": _type(tf.qint8),
        "Tbias": _type(tf.float32),
        "U": _type(tf.float32),
        "Tout": _type(tf.float32),
        "Tdevice_inputs": _types([]),
        "Tdevice_outputs": _types([]),
        "Thost_inputs": _types([each.dtype for each in inputs]),
        "Thost_outputs": _types([tf.float32]),
        "fused_ops": AttrValue(list=AttrValue.ListValue(s=[b"BiasAdd", b"Dequantize"])),
        "input_quant_mode": AttrValue(s=b"SCALED"),
        "transpose_b": AttrValue(b=matrix.is_transposed),
    }
    graph = tf.compat.v1.get_default_graph()
    operation = graph.create_op("_QuantizedMatMul", inputs, [tf.float32], attrs=attributes, name="int8_product")
    (y_NO,) = operation.outputs
    y_NO.set_shape([None, outputs])
    return y_NO


def _type(dtype: tf.DType) -> Any:
    return AttrValue(type=dtype.as_datatype_enum)


def _types(dtypes: list[tf.DType]) -> Any:
    return AttrValue(list=AttrValue.ListValue(type=[each.as_datatype_enum for each in dtypes]))
