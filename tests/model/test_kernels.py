"""Each kernel against a plain implementation, value and gradient; and the use of kernels in the layers."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import plain_formulas
from helpers.plain_formulas import equation_1, value_and_gradients
from helpers.tiny_model import SMALL, random_ids, random_model, seed

from t2t_repro.model import kernels
from t2t_repro.model.attention import mask_bias
from t2t_repro.model.random_masks import keep_mask
from t2t_repro.model.transformer import Transformer

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}

# A sentence of one token has one key; Keras warns that a softmax over one score is always 1.
ONE_KEY = pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1:UserWarning")


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def compare(found: list[Any], truth: list[Any], tolerance: float) -> None:
    """Compares value and gradients, relative to their largest element."""
    for ours, theirs in zip(found, truth, strict=True):
        ours, theirs = (tf.cast(each, tf.float64).numpy() for each in (ours, theirs))
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0) <= tolerance * max(1, np.abs(theirs).max(initial=0))


def rounded(dtype: str, *arrays: np.ndarray) -> list[Any]:
    """Returns float32 tensors of values that are exact in `dtype`."""
    return [tf.cast(tf.cast(each, dtype), tf.float32) for each in arrays]


def exact(*tensors: Any) -> list[Any]:
    return [tf.cast(each, tf.float64) for each in tensors]


# Linear layers.


@pytest.mark.parametrize("activation", [None, keras.ops.relu, tf.nn.gelu])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (6, 4), (3, 2, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("traced", [False, True])
def test_linear_equals_its_formula(traced, dtype, shape, biased, activation):
    """The sums of integers are exact in every dtype, so that no rounding decides on which side of 0 a ReLU is."""
    integers = (RNG.integers(-2, 3, size).astype(np.float32) for size in (shape, (4, 5), (5,)))
    x, *weights, upstream = rounded(dtype, *integers, normal(*shape[:-1], 5))
    weights = weights[: 1 + biased]

    def plain(x, weight, bias=0.0):
        y = tf.tensordot(x, weight, 1) + bias
        return activation(y) if activation else y

    def linear(x, weight, bias=None):
        return kernels.linear(x, weight, bias, activation)

    found = value_and_gradients(
        tf.function(linear) if traced else linear,
        [tf.cast(x, dtype), *weights],
        tf.cast(upstream, dtype),
    )
    assert [each.dtype for each in found] == [dtype, dtype, *["float32"] * len(weights)]
    truth = value_and_gradients(plain, exact(x, *weights), *exact(upstream))
    compare(found, truth, 1e-5 if dtype == "float32" else 0.03)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tied_logits_are_states_times_the_transposed_embedding(dtype):
    x, embedding, upstream = rounded(dtype, normal(3, 2, 4), normal(7, 4), normal(3, 2, 7))
    found = value_and_gradients(kernels.tied_logits, [tf.cast(x, dtype), embedding], upstream)
    assert [each.dtype for each in found] == ["float32", dtype, "float32"]
    plain = lambda x, embedding: tf.einsum("bld,vd->blv", x, embedding)  # noqa: E731
    compare(found, value_and_gradients(plain, exact(x, embedding), *exact(upstream)), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sum_of_rows(dtype):
    (x,) = rounded(dtype, normal(300, 5))
    compare([kernels.sum_of_rows(tf.cast(x, dtype))], [np.sum(x, axis=0, dtype=np.float64)], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_narrow_linear_is_x_w_plus_b(dtype):
    x, weight, bias = rounded(dtype, normal(6, 4), normal(4, 5), normal(5))
    for result in (None, "float32"):
        y = kernels.narrow_linear(weight, bias, result, dtype=dtype)(tf.cast(x, dtype))
        assert y.dtype == (result or dtype)
        compare([y], [x.numpy().astype(np.float64) @ weight + bias], TOLERANCE[dtype])


def test_joined_products_equal_each_product_and_are_computed_once():
    inputs, weights = [tf.constant(normal(2, 3, 4)) for _ in range(2)], tuple(normal(4, width) for width in (2, 2, 5))
    side_by_side, calls = kernels.narrow_linear(np.concatenate(weights, axis=1), dtype="float32"), []
    products = kernels.joined_products(weights, lambda x: calls.append(x) or side_by_side(x))
    with kernels.prepared_products(products):
        for x in (*inputs, inputs[0]):
            for weight in weights:
                np.testing.assert_allclose(kernels.linear(x, weight), x.numpy() @ weight, rtol=1e-5, atol=1e-6)
    assert len(calls) == 3


def test_prepared_products_replace_their_weights_in_the_context():
    x, prepared, other, bias = tf.constant(normal(2, 3, 4)), normal(4, 5), normal(4, 5), normal(5)
    twice = kernels.narrow_linear(2 * prepared, dtype="float32")
    with kernels.prepared_products({kernels.product_key(prepared): twice}):
        inside = [kernels.linear(x, weight) for weight in (prepared, other)]
        biased = kernels.linear(x, prepared, bias)
    np.testing.assert_allclose(biased, x.numpy() @ prepared + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inside[0], 2 * (x.numpy() @ prepared), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inside[1], x.numpy() @ other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kernels.linear(x, prepared), x.numpy() @ prepared, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_unset_weights_compute_no_initial_values(monkeypatch, positions):
    """Their shapes and dtypes are those of other weights. Weights created after the context have initial values."""
    truth = random_model(positions=positions)

    def computed(*args: Any, **options: Any) -> Any:
        raise AssertionError("an initial value is computed")

    with monkeypatch.context() as patched:
        for name in ("RandomNormal", "VarianceScaling", "Zeros", "Ones"):
            patched.setattr(getattr(keras.initializers, name), "__call__", computed)
        with kernels.unset_weights():
            found = Transformer(11, truth.hparams)
    described = [[(weight.path, weight.shape, weight.dtype) for weight in each.weights] for each in (truth, found)]
    assert [each[1:] for each in described[0]] == [each[1:] for each in described[1]]
    assert np.all(Transformer(11, truth.hparams).encoder_layers[0].feed_forward_norm.norm.gain == 1)


def test_a_prepared_product_computes_only_the_activation_that_it_is_fused_with():
    weight = tf.ones([2, 2])
    product = kernels.prepared(lambda x: -x, activated={tf.abs: lambda x: 10 * x})
    with kernels.prepared_products({kernels.product_key(weight): product}):
        found = [float(kernels.linear(tf.ones([1, 2]), weight, None, each)[0, 0]) for each in (None, tf.abs, tf.exp)]
    np.testing.assert_allclose(found, [-1, 10, np.exp(-1)], rtol=1e-6)


def test_prepared_products_belong_to_one_thread():
    x, weight = tf.constant(normal(3, 4)), normal(4, 5)
    found = []
    with kernels.prepared_products({kernels.product_key(weight): lambda x: x}):
        thread = threading.Thread(target=lambda: found.append(kernels.linear(x, weight)))
        thread.start()
        thread.join()
    np.testing.assert_allclose(found[0], x.numpy() @ weight, rtol=1e-5, atol=1e-6)


def test_kept_rows_work_across_loops_and_branches():
    """A tensor from outside is used in two loops and after them: no shape made in a loop is used elsewhere."""
    x, weight = normal(2, 3, 4), normal(4, 4)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4])], autograph=False)
    def looped(x):
        y = kernels.linear(x, weight)
        step = lambda n, z: (n + 1, z + kernels.linear(y, weight))  # noqa: E731
        for _ in range(2):
            _, y = tf.while_loop(lambda n, _: n < 2, step, (0, y), (tf.TensorShape([]), tf.TensorShape([None] * 3)))
            y = kernels.linear(tf.ensure_shape(y, [None, None, 4]), weight)
        return tf.cond(tf.size(y) > 0, lambda: kernels.linear(y, weight), lambda: y)

    expected = x @ weight
    for _ in range(2):
        expected = (expected + 2 * expected @ weight) @ weight
    np.testing.assert_allclose(looped(x), expected @ weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("eager", [False, True])
def test_rows_made_in_a_graph_are_not_used_outside_of_it(eager):
    x, weight = tf.constant(normal(2, 3, 4)), normal(4, 4)

    def twice(x):
        inside = tf.while_loop(lambda n, _: n < 1, lambda n, y: (n + 1, y + kernels.linear(x, weight)), (0, x))[1]
        return inside + kernels.linear(x, weight)

    if not eager:
        found = tf.function(twice, autograph=False)(x)
    else:
        found = tf.function(lambda: kernels.linear(x, weight), autograph=False)() + x + kernels.linear(x, weight)
    np.testing.assert_allclose(found, x + 2 * (x.numpy() @ weight), rtol=1e-4, atol=1e-5)


# Layer normalization.

EXTREMES = {
    "random": normal(6, 32),
    "far from zero": normal(6, 32) + 1e4,
    "nearly constant": np.float32(1) + 1e-6 * normal(6, 32),
    "constant": np.full((6, 32), 3, np.float32),
    "large": 1e12 * normal(6, 32),
    "small": 1e-12 * normal(6, 32),
    "one outlier": np.where(np.arange(32) == 5, 1e6, normal(6, 32)).astype(np.float32),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_layer_norm_is_as_accurate_as_the_plain_formula(name):
    """Value and gradients have at most a few times the error of the float32 formula, measured against float64."""
    arrays, upstream = [1 + 0.3 * normal(32), normal(32), EXTREMES[name]], tf.constant(normal(6, 32))
    ours, plain = (
        value_and_gradients(function, [tf.constant(each) for each in arrays], upstream)
        for function in (kernels.layer_norm, plain_formulas.layer_norm)
    )
    truth = value_and_gradients(plain_formulas.layer_norm, exact(*arrays), *exact(upstream))
    for found, formula, right in zip(ours, plain, (each.numpy() for each in truth), strict=True):
        assert np.abs(found - right).max() <= 4 * np.abs(formula - right).max() + 1e-6 * np.abs(right).max()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layer_norm_of_a_sum_gives_each_term_the_gradient(dtype):
    x, y, upstream = rounded(dtype, *(normal(2, 3, 32) for _ in range(3)))
    (total,) = rounded(dtype, x + y)
    gain, bias = tf.constant(1 + 0.3 * normal(32)), tf.constant(normal(32))
    found = value_and_gradients(
        kernels.layer_norm, [gain, bias, *(tf.cast(each, dtype) for each in (x, y))], tf.cast(upstream, dtype)
    )
    value, *d_weights, d_x = value_and_gradients(plain_formulas.layer_norm, exact(gain, bias, total), *exact(upstream))
    compare(found, [value, *d_weights, d_x, d_x], TOLERANCE[dtype])


# Dropout.


@pytest.mark.parametrize("shape", [(30, 30), (5, 6, 30)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dropout_is_its_mask_over_the_keep_probability(dtype, shape):
    x, upstream = rounded(dtype, normal(*shape), normal(*shape))
    factors = keep_mask(np.zeros(shape), 0.3, seed(1, 2)).numpy() / 0.7
    found = value_and_gradients(
        lambda x: kernels.dropout(x, 0.3, seed(1, 2)), [tf.cast(x, dtype)], tf.cast(upstream, dtype)
    )
    assert {each.dtype for each in found} == {tf.as_dtype(dtype)}
    compare(found, [factors * x, factors * upstream], TOLERANCE[dtype])


# Attention.


@ONE_KEY
@pytest.mark.parametrize(("d_k", "d_v", "length", "keys"), [(4, 4, 5, 5), (3, 9, 2, 7), (16, 1, 6, 1)])
def test_attention_is_equation_1(d_k, d_v, length, keys):
    q, k, v = normal(2, 3, length, d_k), normal(2, 3, keys, d_k), normal(2, 3, keys, d_v)
    visible = RNG.random((2, 3, length, keys)) < 0.7
    visible[..., 0] = True  # so that no row is fully masked
    for output in both_ways(q, k, v, mask_bias(visible)):
        np.testing.assert_allclose(output, equation_1(q, k, v, visible), rtol=1e-5, atol=1e-6)


def both_ways(*arguments: Any) -> list[Any]:
    """Returns attention as computed in training and as computed in decoding."""
    arguments = tuple(map(tf.constant, arguments))
    with kernels.prepared_products({}):
        decoded = kernels.scaled_dot_product_attention(*arguments)
    return [kernels.scaled_dot_product_attention(*arguments), decoded]


def test_large_scores():
    """With scores in the thousands a softmax overflows unless it subtracts the maximum."""
    q, k, v = 300 * normal(1, 1, 4, 8), 300 * normal(1, 1, 6, 8), normal(1, 1, 6, 3)
    for output in both_ways(q, k, v, 0.0):
        np.testing.assert_allclose(output, equation_1(q, k, v, np.ones((1, 1, 4, 6))), rtol=1e-4, atol=1e-5)


def test_masked_key_has_zero_weight():
    visible = np.array([True, False, True, False])
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 4, 4), normal(1, 2, 4, 5)
    before, weights = both_ways(q, k, v, mask_bias(visible)), kernels.attention_weights(q, k, mask_bias(visible))
    assert np.all(weights.numpy()[..., ~visible] == 0)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-6)
    k[..., ~visible, :], v[..., ~visible, :] = 1e4, -1e30
    np.testing.assert_array_equal(before, both_ways(q, k, v, mask_bias(visible)))


def test_fully_masked_row_gives_no_nan():
    visible = np.array([[True, True, True], [False, False, False]])
    q, k, v = (tf.constant(normal(1, 1, n, 4)) for n in (2, 3, 3))
    weights = kernels.attention_weights(q, k, mask_bias(visible))
    np.testing.assert_allclose(weights[0, 0, 1], 1 / 3, rtol=1e-6)
    attend = lambda *qkv: kernels.scaled_dot_product_attention(*qkv, mask_bias(visible))  # noqa: E731
    assert all(np.isfinite(each).all() for each in value_and_gradients(attend, [q, k, v], tf.ones([1, 1, 2, 4])))


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1), ("float32", 300), ("bfloat16", 1)])
def test_attention_and_its_gradient_equal_the_plain_formulas(dtype, rate, scale):
    """Compares in float64, with dropout of the weights and with a fully masked row."""
    arrays = scale * normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6), normal(2, 3, 5, 6)
    q, k, v, upstream = (tf.cast(each, dtype) for each in arrays)
    visible = RNG.random((2, 1, 5, 7)) < 0.7
    visible[0, 0, 2] = False
    factors = keep_mask(np.zeros((2, 3, 5, 7)), rate, seed(1, 2)).numpy() / (1 - rate) if rate else 1.0

    def plain(q, k, v):
        scores = tf.matmul(q, k, transpose_b=True) / 2 + tf.cast(mask_bias(visible), tf.float64)
        return (tf.nn.softmax(scores) * factors) @ v

    attend = lambda *qkv: kernels.scaled_dot_product_attention(*qkv, mask_bias(visible), rate, seed(1, 2))  # noqa: E731
    found = value_and_gradients(attend, [q, k, v], upstream)
    assert {each.dtype for each in found} == {q.dtype}
    compare(found, value_and_gradients(plain, exact(q, k, v), *exact(upstream)), TOLERANCE[dtype])


@pytest.mark.bfloat16
def test_weights_are_float32_in_a_narrow_dtype():
    q, k, v = (tf.cast(normal(1, 1, n, 8), tf.bfloat16) for n in (3, 300, 300))
    bias = mask_bias(np.arange(300) < 299)
    weights = kernels.attention_weights(q, k, bias)
    assert (kernels.scaled_dot_product_attention(q, k, v, bias).dtype, weights.dtype) == (tf.bfloat16, tf.float32)
    assert np.all(weights.numpy()[..., 299] == 0)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_swapped_as_integers(dtype):
    """Equals a transposition, also for NaN and infinities."""
    x = normal(2, 3, 4, 5)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    swapped, expected = kernels.swapped_as_integers(tf.cast(x, dtype)), tf.transpose(tf.cast(x, dtype), (0, 2, 1, 3))
    np.testing.assert_array_equal(tf.cast(swapped, tf.float32), tf.cast(expected, tf.float32))


def test_heads_are_adjacent_columns():
    x = normal(2, 5, 12)
    heads = kernels.split_heads(tf.constant(x), 3)
    assert heads.shape == (2, 3, 5, 4)
    np.testing.assert_array_equal(heads[:, 1], x[..., 4:8])
    np.testing.assert_array_equal(kernels.join_heads(heads), x)
    np.testing.assert_array_equal(kernels.join_heads(tf.identity(heads)), x)  # heads without sizes


def test_recorded_attention_keeps_weights_by_name():
    q, k, v = (tf.constant(normal(1, 2, n, 4)) for n in (3, 5, 5))
    with kernels.recorded_attention() as record:
        kernels.scaled_dot_product_attention(q, k, v, 0.0, name="first")
        kernels.scaled_dot_product_attention(q, k, v, mask_bias(np.arange(5) < 2), name="second")
    kernels.scaled_dot_product_attention(q, k, v, 0.0, name="third")
    assert list(record) == ["first", "second"]
    np.testing.assert_array_equal(record["first"], kernels.attention_weights(q, k, 0.0))
    assert not np.any(record["second"].numpy()[..., 2:])


# The layers.


def test_training_step_keeps_rows_between_kernels():
    """In the graph of a forward and backward pass each kernel reads the rows written by another one.

    The embeddings are flattened once, for dropout. No other activation [B, L, D] is flattened for a product, sum or
    mask.
    """
    model = random_model(dropout=0.1)
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids], autograph=False)
    def gradients(source_BM, target_BL):
        with tf.GradientTape() as tape:
            states_BLD = model.decode(target_BL, model.encode(source_BM, seed(1, 2)), source_BM, seed(1, 2))
            loss = tf.reduce_sum(model.logits(states_BLD))
        return tape.gradient(loss, [weight.value for weight in model.trainable_weights[1:]])

    operations = gradients.get_concrete_function().graph.get_operations()
    forward = [each for each in operations if not each.name.startswith("gradient_tape")]
    reshapes = [each for each in forward if each.type == "Reshape" and each.outputs[0].shape.rank == 2]
    flattened = [each.inputs[0] for each in reshapes if each.inputs[0].shape.rank == 3]
    assert [each.op.type for each in flattened if each.shape[-1] == SMALL.d_model] == ["AddV2"] * 2
    # each product with a matrix is a product of rows
    products = [each for each in operations if each.type.startswith("BatchMatMul")]
    assert products and all(each.inputs[0].shape.rank == 4 for each in products)
    source, target = (random_ids(RNG, 11, 2, n) for n in (3, 4))
    assert all(np.isfinite(tf.convert_to_tensor(each)).all() for each in gradients(source, target))
