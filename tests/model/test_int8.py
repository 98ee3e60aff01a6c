"""Products of 8-bit integers against their formula, and decoding with them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import random_ids, random_model

import t2t_repro
from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.inference.search.beam_search import beam_search
from t2t_repro.inference.translator import Translator
from t2t_repro.model import int8, kernels, packed
from t2t_repro.model.incremental import DecodingStep

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(1)
NEAR = (
    2e-2  # scores: a number halfway between steps may be rounded to either, which moves a logit by 1/127 of its spread
)
TEXTS = ["3 red cats and 4 old dogs", "", "12 big cows", "12 big cows and 1 red dog"]


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def extremes(count: int, length: int) -> np.ndarray:
    """Returns [count, length] of -1 to 1, with a 1 or -1 in each row: all 1, all -1, alternating, random signs,
    random."""
    rows = np.sign(normal(count, length))
    rows[:3] = np.stack([np.ones(length), -np.ones(length), np.arange(length) % 2 * 2 - 1])[:count]
    rows[5:, 1:] *= RNG.uniform(0, 1, rows[5:, 1:].shape).astype(np.float32)
    return rows


@pytest.mark.parametrize("inputs", [1, 2, 3, 16, 65, 512, 4_096])
def test_product_is_the_sum_of_integers_at_the_limits(inputs):
    """Weights up to 64 and rows up to 127, also of one sign: the product is the sum of the integers. Weights are
    multiplied by 127, so that the scale of a product, which is that of its column over 127, is 1.

    float32 represents sums to 2^24 exactly. Beyond, and for the kernel's scales, at most eight roundings move a sum by
    2^-24 each.
    """
    for outputs in (1, 3, 33, 256):
        weight_IO = np.rint(64 * extremes(outputs, inputs).T)
        product = tf.function(int8.int8_linear(127 * weight_IO), autograph=False, reduce_retracing=True)
        for rows in (1, 2, 5, 37):
            x_NI = np.rint(127 * extremes(rows, inputs))
            expected = 127 * (x_NI.astype(np.int64) @ weight_IO.astype(np.int64))
            np.testing.assert_allclose(product(tf.constant(x_NI)).numpy(), expected, rtol=8 * 2**-24, atol=0)


@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_equals_the_reference(dtype, result):
    """Rows and columns are integers plus at most 0.3, times a power of two: no value is close to a half. Columns are
    also multiplied by 127, as in the test above.

    One graph serves all numbers of rows, since it keeps the packed matrix.
    """
    weight_IO, bias_O = 127 * np.rint(64 * extremes(96, 64).T) * 2.0 ** RNG.integers(-9, 9, 96), normal(96)
    smaller = np.abs(weight_IO) < np.abs(weight_IO).max(axis=0)
    given_IO = weight_IO + smaller * RNG.uniform(-0.3, 0.3, weight_IO.shape) * np.abs(weight_IO).max(axis=0) / 64
    product = tf.function(
        int8.int8_linear(given_IO.astype(np.float32), bias_O, result), autograph=False, reduce_retracing=True
    )
    for rows in (1, 4, 7, 256, 0, 5):
        steps_NI, scales_N1 = np.rint(127 * extremes(rows, 64)), 2.0 ** RNG.integers(-20, 20, (rows, 1))
        off_NI = RNG.choice([-0.25, 0, 0.25], (rows, 64)) * (np.abs(steps_NI) < 32)  # exact in bfloat16
        y_NO = product(tf.cast(tf.constant((steps_NI + off_NI) * scales_N1, tf.float32), dtype))
        assert y_NO.dtype == result and y_NO.shape == (rows, 96)
        expected = steps_NI @ weight_IO * scales_N1
        # ten roundings to float32: eight in the product, the bias, the sum; one to bfloat16
        tolerance = (np.abs(expected) + np.abs(bias_O)) * (10 * 2**-24 if result == "float32" else 2**-8)
        assert np.all(np.abs(tf.cast(y_NO, tf.float64) - expected - bias_O) <= tolerance)


def test_an_embedding_gives_the_product_with_its_transpose_and_its_rows(monkeypatch):
    """It is rounded in three parts. Its scales are powers of two, so that all is exact but the kernel's scales."""
    monkeypatch.setattr(int8, "ROWS", 40)
    values_VD, scales_V1 = np.rint(64 * extremes(96, 64)), 2.0 ** RNG.integers(-9, 9, (96, 1))
    given_VD = values_VD + (np.abs(values_VD) < 64) * RNG.uniform(-0.3, 0.3, values_VD.shape)
    embedding = int8.int8_embedding((given_VD * scales_V1).astype(np.float32))
    plain = int8.int8_linear((given_VD * scales_V1).astype(np.float32).T)
    x_ND = tf.constant(normal(7, 64))
    both = (tf.function(each, autograph=False)(x_ND).numpy() for each in (embedding, plain))
    np.testing.assert_array_equal(*both)
    ids = np.array([[0, 95, 40], [39, 3, 3]])
    np.testing.assert_array_equal(kernels.rows_of(embedding)(tf.constant(ids)), (values_VD * scales_V1)[ids])
    assert kernels.rows_of(plain) is None


def test_product_is_close_to_that_of_the_unrounded_numbers():
    """Rounding moves each number by at most half a step: a 127th or a 64th of the maximum of its row or column."""
    x_NI, weight_IO = normal(37, 200) * np.exp(3 * normal(37, 1)), normal(200, 96) * np.exp(normal(96))
    y_NO = tf.function(int8.int8_linear(weight_IO), autograph=False)(tf.constant(x_NI)).numpy()
    halves_N1 = np.abs(x_NI).max(axis=1, keepdims=True) / 127 / 2
    halves_1O = np.abs(weight_IO).max(axis=0, keepdims=True) / 64 / 2
    bound_NO = (np.abs(x_NI) + halves_N1).sum(axis=1, keepdims=True) * halves_1O
    bound_NO = bound_NO + halves_N1 * np.abs(weight_IO).sum(axis=0)
    error_NO = np.abs(y_NO - x_NI.astype(np.float64) @ weight_IO)
    assert np.all(error_NO <= bound_NO * 1.001) and error_NO.max() > 0


def test_extremes():
    product = tf.function(int8.int8_linear(normal(16, 8)), autograph=False)
    x_NI = np.concatenate([np.zeros((1, 16)), 1e30 * normal(1, 16), 1e-25 * normal(1, 16), normal(1, 16)]).astype("f")
    y_NO = product(tf.constant(x_NI)).numpy()
    assert not y_NO[0].any() and np.isfinite(y_NO).all()
    for row in range(1, 4):  # a row does not depend on the others
        np.testing.assert_array_equal(product(tf.constant(x_NI[row : row + 1])).numpy()[0], y_NO[row])
    nothing = tf.function(int8.int8_linear(np.zeros((16, 8), np.float32)), autograph=False)
    assert not nothing(tf.constant(x_NI)).numpy().any()


def found(ensemble: Ensemble, source_BM: np.ndarray) -> list[np.ndarray]:
    search = tf.function(lambda source_BM: beam_search(ensemble, source_BM, 3, 0.6, 10), autograph=False)
    return [each.numpy() for each in search(tf.constant(source_BM))[:2]]  # there are no traces


@pytest.mark.parametrize("small_matrix", [0, 1 << 18])
def test_fixed_weights_are_the_same_weights(monkeypatch, small_matrix):
    """Packed or too small for that."""
    monkeypatch.setattr(packed, "SMALL_MATRIX", small_matrix)
    model, source_BM = random_model(), random_ids(RNG, 11, 4, 6)
    for ours, theirs in zip(found(FixedEnsemble([model]), source_BM), found(Ensemble([model]), source_BM), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_small_matrices_are_multiplied_in_float32(monkeypatch):
    x_NI, weight_IO, bias_O = normal(5, 16), normal(16, 8), normal(8)
    plain, rounded = kernels.narrow_linear(weight_IO, bias_O, dtype="float32"), int8.int8_linear(weight_IO, bias_O)
    for small_matrix, expected in ((127, rounded), (128, plain)):
        monkeypatch.setattr(int8, "SMALL_MATRIX", small_matrix)
        found, expected = (
            tf.function(each, autograph=False)(tf.constant(x_NI))
            for each in (int8.int8_or_float32(weight_IO, bias_O), expected)
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_encoder_multiplies_8_bit_integers_here_and_in_exports(dtype):
    """Keys and values for the decoder have the model's dtype."""
    model, source_BM = random_model(dtype=dtype), tf.constant(random_ids(RNG, 11, 4, 6))
    ensemble = FixedEnsemble([model], int8=True)
    layer = model.encoder_layers[0].feed_forward
    for each in (ensemble, ensemble.portable()):
        product = each._encoders[0][kernels.product_key(layer.w_1, layer.b_1)]
        assert product.tensors[0].dtype == tf.int8
        for keys_values in tf.function(each.memories, autograph=False)(source_BM)[0]:
            assert {part.dtype for part in keys_values} == {tf.as_dtype(model.compute_dtype)}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_every_product_of_a_step_is_close(dtype):
    model = random_model(dtype=dtype, d_model=64, d_ff=96)
    plain = DecodingStep(model)
    rounded = DecodingStep(model, int8.int8_or_float32, make_embedding=int8.int8_embedding)
    inputs = {id(weight): weight.shape[0] for weight in model.weights} | {id(model.embedding): 64}
    pairs = [(plain.products[key], rounded.products[key], inputs[key[0]]) for key in plain.products]
    pairs += [(theirs, ours, 64) for (_, theirs), (_, ours) in zip(plain.joined, rounded.joined, strict=True)]
    assert len(pairs) == 1 + 6 * len(model.decoder_layers)
    for theirs, ours, width in pairs:
        x_NI = tf.cast(normal(6, width), model.compute_dtype)
        expected, given = theirs(x_NI), tf.function(ours, autograph=False)(x_NI)
        assert given.dtype in (expected.dtype, tf.float32)
        expected, given = (tf.cast(each, tf.float32) for each in (expected, given))
        furthest = np.abs(given - expected).max() / np.abs(expected).max()
        assert 0 < furthest < 0.05


@pytest.mark.parametrize("small_matrix", [0, 1 << 18])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_run_decodes_with_8_bit_integers(trained, monkeypatch, precision, small_matrix):
    """The log-probability of each translation is within 0.05 per token of that with the original weights.

    That is a few steps of 1/64 of this model's logits. If its matrices are small, only logits and embeddings are
    rounded.
    """
    monkeypatch.setattr(int8, "SMALL_MATRIX", small_matrix)
    plain = t2t_repro.load(trained.directory, precision="float32")
    rounded = t2t_repro.load(trained.directory, precision=precision, int8=True)
    assert isinstance(rounded, Translator) and rounded.ensemble.int8 and not plain.ensemble.int8
    source_BM = tf.ragged.constant(plain.vocabulary.encode([text for text in TEXTS if text]), tf.int32).to_tensor()
    ids_BWL, scores_BW = rounded.search(source_BM, 2, 0.0, 10)[:2]
    for beam in range(2):
        exact_BL = plain.token_log_probabilities(source_BM, ids_BWL[:, beam])
        tokens_B = tf.math.count_nonzero(exact_BL, axis=1, dtype=tf.float32)
        difference_B = tf.abs(scores_BW[:, beam] - tf.reduce_sum(exact_BL, axis=1))
        assert all(difference_B > 0) and all(difference_B < 0.05 * tokens_B)


def test_decoding_equals_that_of_the_formula(trained, monkeypatch):
    """The same integers multiplied in float32, which represents their sums exactly, give the same translations."""
    found = t2t_repro.load(trained.directory, int8=True).n_best(TEXTS, 2)

    def plain(x_NI: tf.Tensor, matrix: int8.Int8Matrix) -> tf.Tensor:
        values = tf.cast(matrix.values, tf.float32)
        sums_NO = tf.matmul(tf.cast(x_NI, tf.float32) - 128, values, transpose_b=matrix.is_transposed)
        return sums_NO * matrix.scales_O / 127

    monkeypatch.setattr(int8, "_quantized_matmul", plain)
    expected = t2t_repro.load(trained.directory, int8=True).n_best(TEXTS, 2)
    assert [[text for text, _ in each] for each in found] == [[text for text, _ in each] for each in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=NEAR)


def test_decoding_with_8_bit_integers_is_independent_of_the_batch(trained):
    rounded = t2t_repro.load(trained.directory, int8=True)
    for text, together in zip(TEXTS, rounded.n_best(TEXTS, 2), strict=True):
        [alone] = rounded.n_best([text], 2)
        assert [each for each, _ in alone] == [each for each, _ in together]
        assert [score for _, score in alone] == pytest.approx([score for _, score in together], abs=NEAR)


def saturating(x_NI: tf.Tensor, matrix: int8.Int8Matrix) -> tf.Tensor:
    """Returns the result of oneDNN without VNNI: pairs of products are added in 16 bits."""
    values = tf.cast(matrix.values, tf.int32)
    values_IO = tf.transpose(values) if matrix.is_transposed else values
    products_NIO = tf.cast(x_NI, tf.int32)[:, :, None] * values_IO
    pairs_NIO = tf.clip_by_value(products_NIO[:, ::2] + products_NIO[:, 1::2], -(2**15), 2**15 - 1)
    sums_NO = tf.reduce_sum(pairs_NIO, axis=1) - 128 * tf.reduce_sum(values_IO, axis=0)
    return tf.cast(sums_NO, tf.float32) * matrix.scales_O / 127


@pytest.mark.parametrize(("largest_weight", "fault"), [(64, None), (65, "expected 825500, received 806350"), (127, "")])
def test_saturating_products_are_detected(monkeypatch, largest_weight, fault):
    monkeypatch.setattr(int8, "_quantized_matmul", saturating)
    monkeypatch.setattr(int8, "LARGEST_WEIGHT", largest_weight)
    if fault is None:
        int8.must_have_int8()
        return
    with pytest.raises(ValueError, match=rf"wrong on this processor: {fault}.*; decode without int8$"):
        int8.must_have_int8()


@pytest.mark.parametrize("product", [float("nan"), 1.001, 0.0])
def test_wrong_products_are_detected(monkeypatch, product):
    """Multiplies each product by a number."""
    right = int8._quantized_matmul
    monkeypatch.setattr(int8, "_quantized_matmul", lambda x_NI, matrix: right(x_NI, matrix) * product)
    with pytest.raises(ValueError, match="products of 8-bit integers are wrong on this processor: expected"):
        int8.must_have_int8()


def test_missing_products_are_reported(trained, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
        with pytest.raises(ValueError, match="integers are for CPUs, and there is a GPU; decode without int8"):
            int8.must_have_int8()

    def no_kernel(*_):
        raise tf.errors.NotFoundError(None, None, "No OpKernel was registered\nand more")

    monkeypatch.setattr(int8, "_quantized_matmul", no_kernel)
    with pytest.raises(
        ValueError, match=r"no products of 8-bit integers here \(No OpKernel was registered\); decode without int8"
    ):
        t2t_repro.load(trained.directory, int8=True)
