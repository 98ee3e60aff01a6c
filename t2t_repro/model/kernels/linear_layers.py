"""Linear layers, logits and embeddings.

Shapes: B batch, L length, T rows (B L), D d_model, I inputs and O outputs of a layer, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import ops

from t2t_repro.model.flat_rows import flat_rows, from_rows
from t2t_repro.model.kernels.casts import cast_again
from t2t_repro.model.kernels.products import narrow_linear, prepared_product, rows_of, with_gradient
from t2t_repro.system import processor


def linear(x_BLI: Any, weight_IO: Any, bias_O: Any = None, activation: Callable[[Any], Any] | None = None) -> Any:
    """activation(x W + b), in the dtype of `x_BLI`. Without `bias_O` b is 0, without `activation` it is the identity.

    `activation` must be element-wise. Inside `prepared_products` the prepared product of `weight_IO` and `bias_O` is
    used if there is one.
    """
    x_TI, sizes = flat_rows(x_BLI)
    product = prepared_product(weight_IO, bias_O)
    if product and activation in (activated := getattr(product, "activated", {})):
        return from_rows(activated[activation](x_TI), sizes)
    if product:
        y_TO = product(x_TI)
    elif bias_O is not None and x_TI.dtype == tf.bfloat16 and onednn_computes_bfloat16() and not tf.executing_eagerly():
        relu = activation is ops.relu
        weights = [tf.convert_to_tensor(each) for each in (weight_IO, bias_O)]
        y_TO = with_gradient(lambda x, w, b: _convolved_rows(x, w, b, relu), x_TI, *weights)
        activation = None if relu else activation
    else:
        weights = [tf.convert_to_tensor(each) for each in (weight_IO, bias_O) if each is not None]
        y_TO = with_gradient(_linear_rows, x_TI, *weights)
    return from_rows(activation(y_TO) if activation else y_TO, sizes)


def _linear_rows(x_TI: Any, weight_IO: Any, *bias_O: Any) -> Any:
    """x W + b; dx = dy W^T, dW = x^T dy, db = the sum of dy's rows."""

    def grad(upstream_TO: Any) -> tuple[Any, ...]:
        return _linear_gradients(x_TI, weight_IO, len(bias_O), upstream_TO)

    return narrow_linear(weight_IO, *bias_O, dtype=x_TI.dtype)(x_TI), grad


def _convolved_rows(x_TI: Any, weight_IO: Any, bias_O: Any, relu: bool) -> Any:
    """x W + b, or max(0, x W + b) if `relu`, as a convolution with one position.

    oneDNN's product of matrices in bfloat16 uses AMX only without a bias; its convolution adds the bias and
    applies ReLU before it writes the result, in a graph. Outside of graphs it fails for 0 rows.
    """
    narrow_IO, narrow_O = (tf.cast(each, x_TI.dtype) for each in (weight_IO, bias_O))
    y_1T1O = tf.nn.bias_add(tf.nn.conv2d(x_TI[None, :, None], narrow_IO[None, None], 1, "SAME"), narrow_O)
    y_TO = tf.reshape(tf.nn.relu(y_1T1O) if relu else y_1T1O, [-1, weight_IO.shape[1]])

    def grad(upstream_TO: Any) -> tuple[Any, ...]:
        if relu:
            upstream_TO = tf.raw_ops.ReluGrad(gradients=upstream_TO, features=y_TO)
        return _linear_gradients(x_TI, weight_IO, 1, upstream_TO)

    return y_TO, grad


def _linear_gradients(x_TI: Any, weight_IO: Any, biases: int, upstream_TO: Any) -> tuple[Any, ...]:
    weight_again_IO = cast_again(weight_IO, x_TI.dtype, upstream_TO)
    d_x_TI = tf.matmul(upstream_TO, weight_again_IO, transpose_b=True)
    d_weight_IO = tf.matmul(x_TI, upstream_TO, transpose_a=True)
    d_bias_O = [sum_of_rows(upstream_TO) for _ in range(biases)]
    return d_x_TI, *(tf.cast(each, weight_IO.dtype) for each in (d_weight_IO, *d_bias_O))


@functools.cache
def onednn_computes_bfloat16() -> bool:
    """Returns whether oneDNN computes bfloat16 here, with the instructions of the processor for it."""
    if tf.config.list_physical_devices("GPU") or processor.onednn_is_off():
        return False
    return processor.has_bfloat16()


def tied_logits(x_BLD: Any, embedding_VD: Any) -> Any:
    """x E^T, float32, with the embedding matrix E."""
    x_TD, sizes = flat_rows(x_BLD)
    product = prepared_product(embedding_VD)
    if product:
        return from_rows(product(x_TD), sizes)
    logits_TV = with_gradient(_linear_rows, x_TD, tf.transpose(tf.convert_to_tensor(embedding_VD)))
    return from_rows(tf.cast(logits_TV, tf.float32), sizes)


def table_rows(table_VD: Any, ids: Any) -> Any:
    """Row ids[i] of the table for each i: [..., D]. Inside `prepared_products` those of its product, if it has rows."""
    product = prepared_product(table_VD)
    rows = rows_of(product) if product else None
    return rows(ids) if rows else ops.take(table_VD, ids, axis=0)


def sum_of_rows(x_TO: Any) -> Any:
    """The sum over the first axis [O], computed as a product with ones."""
    return tf.matmul(tf.ones((1, tf.shape(x_TO)[0]), x_TO.dtype), x_TO)[0]
