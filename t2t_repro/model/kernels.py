"""The fast paths of the model. The docstring of each function starts with its formula. tests/model/test_kernels.py
compares value and gradient with a plain implementation. Nothing else in `model` has a custom gradient or casts.

Shapes: B batch, L query length, M key length, T rows: the positions of all sentences (B L), D d_model, I inputs and O
outputs of a linear layer, H heads, K d_k, E d_v, V vocabulary.

Measured gains, for base in bfloat16 on two CPU cores (AMD EPYC, AVX512-BF16) unless stated:

| trick                                                        | gain, as speed after over before unless stated      |
|--------------------------------------------------------------|-----------------------------------------------------|
| custom gradients, and casts repeated instead of kept:        | peak memory of a step 1,289 MB instead of 1,479;    |
|   `linear`, `layer_norm`, `dropout`, attention; rows flat    |   8,800 operations instead of 12,300, traced in     |
|                                                              |   12 s instead of 20                                |
| one gradient for product and bias, `sum_of_rows`, 16 bits    | 1.05 together; `sum_of_rows` a half to a seventh of |
|   for an element of a mask, `layer_norm` with a pass less    |   the time of TensorFlow's sum                      |
| decoding: weights cast outside the loop, `prepared_products` | 1.97 for one sentence, 1.27 for 24 (beam 4)         |
| decoding: matrices packed once, `packed.packed_linear`       | 1.3 to 1.9 in bfloat16, 1.3 for one sentence in     |
|                                                              |   float32 (Intel Xeon with AMX)                     |
| decoding: in float32 only large matrices are packed,         | small: 1.24 for one sentence, 0.98 for 64; one line |
|   `packed.gains`                                             |   0.97 of the time (Intel Xeon without AMX)         |
| decoding: packed matrices in the encoder too, and ReLU in    | 1.06 for 64 sentences, int8 1.09; 2% more peak      |
|   the kernel of its product, `fused`, in bfloat16            |   memory (Intel Xeon with AMX)                      |
| decoding: 8-bit integers in the encoder too, in float32      | 1.08 for 64 sentences, 1.19 greedily (Intel Xeon    |
|                                                              |   without AMX)                                      |
| decoding: small matrices in float32 instead of 8-bit         | small: 2.01 for one sentence, 1.21 for 64 (Intel    |
|   integers, `int8.int8_or_float32`                           |   Xeon without AMX)                                 |
| decoding: rows of 8-bit integers are unsigned, `int8.SHIFT`  | 1.10 for 64 sentences, 1.05 greedily (Intel Xeon    |
|                                                              |   without AMX)                                      |
| decoding: W_Q, W_K, W_V joined, rows flat, `joined_products` | 1.14 for one sentence (float32)                     |
| decoding: heads move as integers, `swapped_as_integers`      | a third of the time of a transposition, which took  |
|                                                              |   30% of all operations' time for one sentence      |
| decoding: keys and values written in place, `cache_writer`   | 1.12 for one sentence in int8, 1.06 in float32;     |
|                                                              |   0.93 of the peak memory in float32 (Intel Xeon    |
|                                                              |   without AMX)                                      |
| decoding: caches grow by 8 positions, `incremental.BLOCK`,   | 1.05 for 64 sentences in int8; 0.97 of the peak     |
|   and are copied only when sentences leave                   |   memory (Intel Xeon without AMX)                   |
| training: a product with a bias is a convolution, with its   | 1.10 for base, 1.08 for d_model 256, 1.02 for 128   |
|   ReLU, `_convolved_rows`, in bfloat16                       |   (Intel Xeon with AMX)                             |
| training: a micro-batch per core up to d_model 256,          | 1.23 for d_model 128, 1.13 for 256; 1.11 and 1.06   |
|   `training.parallel`                                        |   times the memory (Intel Xeon with AMX)            |
| training: huge pages, `system.heap`                          | 1.05 for base, 1.03 for small; 1.00 and 1.01 times  |
|                                                              |   the memory (Intel Xeon with AMX)                  |
| loading a run: `unset_weights`                               | the model is made in 0.26 s instead of 0.83 (Intel  |
|                                                              |   Xeon, AMX-BF16)                                   |
| loading a run: encoder and decoder prepared on a core each,  | one line takes 0.95 of the time with base, 0.98     |
|   `inference.ensemble`                                       |   with small; the same peak (Intel Xeon, AMX-BF16)  |
| decoding: operations of layers copied, `copies.Copies`       | the search is traced in 0.58 of the processor time, |
|                                                              |   one line takes 0.87 (Intel Xeon, AMX-BF16)        |
| decoding: constants shared by copies, no tensors of zeros    | one line takes 0.95 of the processor time; 957      |
|   captured, and no passes in MLIR (`graph_options`)          |   operations in a step instead of 1,266 (Xeon, AMX) |
| decoding: no folding of constants, no arithmetic passes      | one line takes 0.94 of the time with base, together |
|   (`graph_options`), one kernel for weights of a name        |   (Intel Xeon without AMX)                          |
| decoding: softmax overwrites the logits, `candidates`; 8-bit | 0.95 of the peak memory in int8, 1.02 for 64        |
|   matrices rounded in parts; freed memory returned           |   sentences (Intel Xeon without AMX)                |
| decoding: embeddings read from the rounded matrix,           | 0.98 of the peak memory of the process in int8      |
|   `int8.int8_embedding`                                      |   (Intel Xeon without AMX)                          |
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from keras import ops

from t2t_repro.model.flat_rows import flat_rows, from_rows
from t2t_repro.model.random_masks import keep_mask
from t2t_repro.system import processor

Linear = Callable[[Any], Any]  # x [T, I] to x W + b [T, O]

EPSILON = 1e-6  # of layer normalization; tensor2tensor's value, as the paper has none


# Weights.


_UNSET: ContextVar[bool] = ContextVar("unset", default=False)


@contextlib.contextmanager
def unset_weights() -> Iterator[None]:
    """Leaves the values of weights created in the context undefined, for a caller that assigns every weight."""
    with _set(_UNSET, True):
        yield


def initializer(initial: Any) -> Any:
    """Returns the Keras initializer `initial`, or inside `unset_weights` one that only reserves memory."""
    return _reserved if _UNSET.get() else initial


def _reserved(shape: Any, dtype: Any) -> Any:
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)


# Dtypes.


def cast_again(x: Any, dtype: Any, upstream: Any) -> Any:
    """Returns x in `dtype` for the backward pass, cast only after `upstream` is computed.

    Without this dependency TensorFlow merges the cast with that of the forward pass, and keeps the result in memory.
    """
    with tf.control_dependencies([upstream]):
        return tf.cast(x, dtype)


def in_dtype(x: Any, dtype: Any) -> Any:
    """Returns x rounded to `dtype`."""
    return tf.cast(x, dtype)


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` computed in float64, with a float32 result, at any precision of the model."""

    @functools.wraps(function)
    def computed(x: Any, *args: Any) -> Any:
        return tf.cast(function(tf.cast(x, tf.float64), *args), tf.float32)

    return computed


# Linear layers.


def linear(x_BLI: Any, weight_IO: Any, bias_O: Any = None, activation: Callable[[Any], Any] | None = None) -> Any:
    """activation(x W + b), in the dtype of `x_BLI`. Without `bias_O` b is 0, without `activation` it is the identity.

    `activation` must be element-wise. Inside `prepared_products` the prepared product of `weight_IO` and `bias_O` is
    used if there is one.
    """
    x_TI, sizes = flat_rows(x_BLI)
    product = (_PREPARED.get() or {}).get(product_key(weight_IO, bias_O))
    if product and activation in (activated := getattr(product, "activated", {})):
        return from_rows(activated[activation](x_TI), sizes)
    if product:
        y_TO = product(x_TI)
    elif bias_O is not None and x_TI.dtype == tf.bfloat16 and onednn_computes_bfloat16() and not tf.executing_eagerly():
        relu = activation is ops.relu
        weights = [tf.convert_to_tensor(each) for each in (weight_IO, bias_O)]
        y_TO = _with_gradient(lambda x, w, b: _convolved_rows(x, w, b, relu), x_TI, *weights)
        activation = None if relu else activation
    else:
        weights = [tf.convert_to_tensor(each) for each in (weight_IO, bias_O) if each is not None]
        y_TO = _with_gradient(_linear_rows, x_TI, *weights)
    return from_rows(activation(y_TO) if activation else y_TO, sizes)


def _with_gradient(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the first result of `function`, with the second as its gradient; inside `prepared_products` without."""
    return tf.custom_gradient(function)(*arguments) if _PREPARED.get() is None else function(*arguments)[0]


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
    product = (_PREPARED.get() or {}).get(product_key(embedding_VD))
    if product:
        return from_rows(product(x_TD), sizes)
    logits_TV = _with_gradient(_linear_rows, x_TD, tf.transpose(tf.convert_to_tensor(embedding_VD)))
    return from_rows(tf.cast(logits_TV, tf.float32), sizes)


def table_rows(table_VD: Any, ids: Any) -> Any:
    """Row ids[i] of the table for each i: [..., D]. Inside `prepared_products` those of its product, if it has rows."""
    product = (_PREPARED.get() or {}).get(product_key(table_VD))
    rows = rows_of(product) if product else None
    return rows(ids) if rows else ops.take(table_VD, ids, axis=0)


def narrow_linear(weight_IO: Any, bias_O: Any = None, result: Any = None, *, dtype: Any) -> Linear:
    """Returns x -> x W + b, computed in `dtype` with weights cast here, and returned as `result` if that is given."""
    weight_IO = tf.cast(tf.convert_to_tensor(weight_IO), dtype)
    bias_O = None if bias_O is None else tf.cast(tf.convert_to_tensor(bias_O), dtype)

    def apply(x_TI: Any) -> Any:
        y_TO = tf.matmul(x_TI, weight_IO)
        return tf.cast(y_TO if bias_O is None else y_TO + bias_O, result or dtype)

    return prepared(apply, weight_IO, bias_O)


def sum_of_rows(x_TO: Any) -> Any:
    """The sum over the first axis [O], computed as a product with ones."""
    return tf.matmul(tf.ones((1, tf.shape(x_TO)[0]), x_TO.dtype), x_TO)[0]


def prepared(
    product: Linear,
    *tensors: Any,
    activated: Mapping[Callable[[Any], Any], Linear] | None = None,
    rows: Callable[[Any], Any] | None = None,
) -> Linear:
    """Returns `product` for `prepared_products`, with the `tensors` that it reads; None among them is left out.

    `linear` takes activated[f] in place of f(x W + b), and `table_rows` takes `rows`.
    """
    product.tensors = tuple(each for each in tensors if each is not None)  # type: ignore[attr-defined]
    product.activated = activated or {}  # type: ignore[attr-defined]
    product.rows = rows  # type: ignore[attr-defined]
    return product


def tensors_read_by(product: Linear) -> tuple[Any, ...]:
    """Returns the tensors of `prepared`."""
    return product.tensors  # type: ignore[attr-defined]


def rows_of(product: Linear) -> Callable[[Any], Any] | None:
    """Returns the `rows` of `prepared`."""
    return product.rows  # type: ignore[attr-defined]


def product_key(weight: Any, bias: Any = None) -> tuple[int, int]:
    """Returns the key of x W + b in `prepared_products`."""
    return id(weight), id(bias)


_PREPARED: ContextVar[Mapping[tuple[int, int], Linear] | None] = ContextVar("prepared", default=None)


@contextlib.contextmanager
def prepared_products(products: Mapping[tuple[int, int], Linear]) -> Iterator[None]:
    """Replaces x W + b by products[product_key(W, b)](x), without a gradient, inside the context: decoding casts W
    once.

    This is for products what `keras.StatelessScope` is for the values of variables.
    """
    with _set(_PREPARED, products):
        yield


def joined_products(weights_IO: tuple[Any, ...], product: Linear) -> dict[tuple[int, int], Linear]:
    """Returns x W_1, x W_2, ... for `prepared_products`, as slices of one `product` with the concatenated matrices.

    The product is computed once for consecutive calls with the same x.
    """
    widths = [weight_IO.shape[1] for weight_IO in weights_IO]
    latest: list[tuple[Any, list[Any]]] = [(None, [])]

    def part(number: int) -> Linear:
        def apply(x_TI: Any) -> Any:
            if latest[0][0] is not x_TI:
                latest[0] = x_TI, tf.split(product(x_TI), widths, axis=-1)
            return latest[0][1][number]

        return apply

    return {product_key(weight_IO): part(number) for number, weight_IO in enumerate(weights_IO)}


# Layer normalization.


def layer_norm(gain_D: Any, bias_D: Any, *terms_BLD: Any) -> Any:
    """(x - mean(x)) / sqrt(var(x) + epsilon) gain + bias over the last axis, where x is the sum of `terms_BLD`.

    Statistics and gradient are float32. The backward pass keeps x, which in bfloat16 takes half the memory of x - mean.
    """
    flats = [flat_rows(each) for each in terms_BLD]
    gain_D, bias_D = tf.convert_to_tensor(gain_D), tf.convert_to_tensor(bias_D)
    rows = [each.rows for each in flats]
    return from_rows(_with_gradient(_layer_norm_rows, gain_D, bias_D, *rows), flats[0].sizes)


def _layer_norm_rows(gain_D: Any, bias_D: Any, *terms_TD: Any) -> Any:
    """With c = x - mean, s = 1 / sqrt(var + epsilon), g = dy gain: dx = s (g - mean(g) - c s^2 mean(g c)).

    Means and sums of rows are products with a vector, which read the matrix only once.
    """
    x_TD = sum(terms_TD[1:], terms_TD[0])
    x32_TD = tf.cast(x_TD, tf.float32)
    mean_T1 = tf.reduce_mean(x32_TD, axis=-1, keepdims=True)
    centered_TD = x32_TD - mean_T1
    scale_T1 = tf.math.rsqrt(tf.reduce_mean(tf.square(centered_TD), axis=-1, keepdims=True) + EPSILON)

    def grad(upstream_TD: Any) -> tuple[Any, ...]:
        upstream_TD = tf.cast(upstream_TD, tf.float32)
        centered_TD = cast_again(x_TD, tf.float32, upstream_TD) - mean_T1
        both_TD = upstream_TD * centered_TD
        mean_D1 = tf.reshape(gain_D, (-1, 1)) / gain_D.shape[0]
        mean_g_T1 = tf.matmul(upstream_TD, mean_D1)
        mean_gc_T1 = tf.matmul(both_TD, mean_D1) * tf.square(scale_T1)
        d_x_TD = tf.cast((upstream_TD * gain_D - (mean_g_T1 + centered_TD * mean_gc_T1)) * scale_T1, x_TD.dtype)
        d_gain_D = tf.matmul(scale_T1, both_TD, transpose_a=True)[0]
        return d_gain_D, sum_of_rows(upstream_TD), *([d_x_TD] * len(terms_TD))

    return tf.cast(centered_TD * scale_T1 * gain_D + bias_D, x_TD.dtype), grad


# Dropout.


def _drop(mask: Any, rate: float) -> Callable[[Any], Any]:
    """Returns x -> mask x / (1 - rate), which is its own gradient.

    The factor is float32: bfloat16 rounds 1.1111 to 1.1094, so that all kept values would be 0.16% too small.
    """
    return lambda x: tf.where(mask, tf.cast(tf.cast(x, tf.float32) * (1 / (1 - rate)), x.dtype), 0.0)


def dropout(x: Any, rate: float, seed: Any) -> Any:
    """mask x / (1 - rate) for `x` of any shape, with a mask from `keep_mask`. Returns x without a seed or a rate."""
    if seed is None or rate == 0:
        return x
    x_TD, sizes = flat_rows(x)
    drop = _drop(keep_mask(x_TD, rate, seed), rate)
    return from_rows(tf.custom_gradient(lambda x_TD: (drop(x_TD), drop))(x_TD), sizes)


# Attention.


def cache_writer(keys_BHMK: Any, values_BHME: Any, width: Any, position: Any) -> Callable[[Any, Any], Any]:
    """Returns (cache, new) -> cache with the `width` entries `new` [B, H, W, K or E] at `position`, for every layer.

    A cache has `width` entries per position, and all have the shapes of the given one. It is overwritten in place, so
    nothing may read it afterwards but the result, and its memory must be its own.
    """
    batch, heads, entries, _ = tf.unstack(tf.shape(keys_BHMK))
    rows = tf.range(batch * heads) * (entries // width) + position
    shapes = {
        size: (tf.stack([-1, width * size]), tf.stack([batch, heads, entries, size]))
        for size in {keys_BHMK.shape[3], values_BHME.shape[3]}
    }

    def write(cache_BHMK: Any, new_BHWK: Any) -> Any:
        in_rows, complete = shapes[cache_BHMK.shape[3]]
        old, new = (tf.reshape(each, in_rows) for each in (cache_BHMK, new_BHWK))
        written_BHMK = tf.reshape(tf.raw_ops.InplaceUpdate(x=old, i=rows, v=new), complete)
        written_BHMK.set_shape(cache_BHMK.shape)
        return written_BHMK

    return write


def split_heads(x_BLO: Any, num_heads: int) -> Any:
    """Returns [B, L, H K] as [B, H, L, K]."""
    x_TO, sizes = flat_rows(x_BLO)
    heads_BHLK = _swapped(sizes.restore(x_TO, num_heads, x_TO.shape[-1] // num_heads))
    heads_BHLK._t2t_sizes = sizes
    return heads_BHLK


def join_heads(heads_BHLE: Any) -> Any:
    """Returns [B, H, L, E] as [B, L, H E]: Concat(head_1, ..., head_h)."""
    sizes, x_BLHE = getattr(heads_BHLE, "_t2t_sizes", None), _swapped(heads_BHLE)
    if sizes is None:
        return tf.reshape(x_BLHE, [-1, tf.shape(x_BLHE)[1], x_BLHE.shape[2] * x_BLHE.shape[3]])
    return from_rows(tf.reshape(x_BLHE, [-1, x_BLHE.shape[2] * x_BLHE.shape[3]]), sizes)


def _swapped(x: Any) -> Any:
    """Returns x with the second and third axes swapped.

    Inside `prepared_products` x is swapped as integers, without a gradient: TensorFlow moves integers in its own loop,
    and floating-point numbers with oneDNN, which takes longer to start.
    """
    if _PREPARED.get() is None:
        return tf.transpose(x, (0, 2, 1, 3))
    return swapped_as_integers(x)


def swapped_as_integers(x: Any) -> Any:
    """Returns x with the second and third axes swapped, without a gradient."""
    integers = tf.bitcast(x, tf.int16 if x.dtype.size == 2 else tf.int32)
    return tf.bitcast(tf.transpose(integers, (0, 2, 1, 3)), x.dtype)


def scaled_dot_product_attention(
    queries_BHLK: Any,
    keys_BHMK: Any,
    values_BHME: Any,
    bias: Any,
    dropout_rate: float = 0.0,
    seed: Any = None,
    name: str = "",
) -> Any:
    """softmax(Q K^T / sqrt(d_k) + bias) V (section 3.2.1, eq. 1): [B, H, L, E], in the dtype of V.

    Args:
        bias: float32, broadcast to [B, H, L, M]: 0, or `attention.MASKED` for masked keys.
        dropout_rate: of the softmax.
        seed: of that dropout, [2] int32; None for no dropout.
        name: the name under which `recorded_attention` keeps the softmax.
    """
    record = _RECORD.get()
    if record is not None or _PREPARED.get() is not None:
        weights_BHLM = attention_weights(queries_BHLK, keys_BHMK, bias)
        if record is not None:
            record[name] = weights_BHLM
        heads_BHLE = tf.matmul(tf.cast(weights_BHLM, values_BHME.dtype), values_BHME)
    else:
        attend = functools.partial(_attention, bias=bias, dropout_rate=dropout_rate, seed=seed)
        heads_BHLE = tf.custom_gradient(lambda *qkv: attend(*qkv))(queries_BHLK, keys_BHMK, values_BHME)
    heads_BHLE._t2t_sizes = getattr(queries_BHLK, "_t2t_sizes", None)
    return heads_BHLE


def attention_weights(queries_BHLK: Any, keys_BHMK: Any, bias: Any) -> Any:
    """softmax(Q K^T / sqrt(d_k) + bias), float32: [B, H, L, M]. A softmax in a narrow dtype loses small weights."""
    scaled_BHLK = queries_BHLK * (1 / math.sqrt(queries_BHLK.shape[-1]))
    scores_BHLM = tf.matmul(scaled_BHLK, keys_BHMK, transpose_b=True)
    return tf.nn.softmax(tf.cast(scores_BHLM, tf.float32) + bias)


def _attention(
    queries_BHLK: Any, keys_BHMK: Any, values_BHME: Any, *, bias: Any, dropout_rate: float, seed: Any
) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
    """O = P V for the softmax P of the scores S, and its gradient: dV = P^T dO, dP = dO V^T, dS = P (dP - sum(P dP)).

    The backward pass keeps P in the dtype of the product: in bfloat16 a third of what automatic differentiation keeps.
    """
    dtype, scale = values_BHME.dtype, 1 / math.sqrt(queries_BHLK.shape[-1])
    narrow_BHLM = tf.cast(attention_weights(queries_BHLK, keys_BHMK, bias), dtype)
    drop: Callable[[Any], Any] = tf.identity
    if seed is not None and dropout_rate:
        drop = _drop(keep_mask(narrow_BHLM, dropout_rate, seed), dropout_rate)
    dropped_BHLM = drop(narrow_BHLM)

    def grad(d_heads_BHLE: Any) -> tuple[Any, Any, Any]:
        d_weights_BHLM = drop(tf.matmul(d_heads_BHLE, values_BHME, transpose_b=True))
        weights_BHLM = cast_again(narrow_BHLM, tf.float32, d_heads_BHLE)
        d_scores_BHLM = weights_BHLM * tf.cast(d_weights_BHLM, tf.float32)
        d_scores_BHLM -= weights_BHLM * tf.reduce_sum(d_scores_BHLM, axis=-1, keepdims=True)
        d_scores_BHLM = tf.cast(d_scores_BHLM, dtype)
        d_queries_BHLK = tf.matmul(d_scores_BHLM, keys_BHMK) * scale
        d_keys_BHMK = tf.matmul(d_scores_BHLM, queries_BHLK * scale, transpose_a=True)
        return d_queries_BHLK, d_keys_BHMK, tf.matmul(dropped_BHLM, d_heads_BHLE, transpose_a=True)

    return tf.matmul(dropped_BHLM, values_BHME), grad


_RECORD: ContextVar[dict[str, Any] | None] = ContextVar("record", default=None)


@contextlib.contextmanager
def recorded_attention() -> Iterator[dict[str, Any]]:
    """Records the attention weights [B, H, L, M], float32, of each call in the context, by its name."""
    with _set(_RECORD, {}) as record:
        yield record


@contextlib.contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
