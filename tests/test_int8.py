"""Products in 8-bit integers against their formula, and decoding by them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small import random_ids, random_model

import t2t_repro
from t2t_repro.inference.beam import beam_search
from t2t_repro.inference.decode import Translator
from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble
from t2t_repro.model import int8

RNG = np.random.default_rng(1)
TEXTS = ["3 red cats and 4 old dogs", "", "12 big cows", "12 big cows and 1 red dog"]


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def plain_product(x_NI: np.ndarray, weight_IO: np.ndarray) -> np.ndarray:
    """Both rounded to 127 steps of their largest: of each row, of each column."""
    x_scale_N1 = np.abs(x_NI).max(axis=1, keepdims=True)
    w_scale_1O = np.abs(weight_IO).max(axis=0, keepdims=True)
    x_steps, w_steps = (np.rint(m * (np.float32(127) / s)) for m, s in ((x_NI, x_scale_N1), (weight_IO, w_scale_1O)))
    return x_steps.astype(np.float64) @ w_steps * x_scale_N1 * w_scale_1O / 127**2


@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_product_is_the_plain_one(dtype, result):
    """In one graph for all numbers of rows, since the packed matrix is kept."""
    weight_IO, bias_O = normal(64, 96) * np.exp(normal(96)), normal(96)
    product = tf.function(int8.int8_map(weight_IO, bias_O, result), autograph=False, reduce_retracing=True)
    for rows in (1, 4, 7, 256, 0, 5):
        x_NI = tf.cast(normal(rows, 64) * np.exp(3 * normal(rows, 1)), dtype)
        y_NO = product(x_NI)
        assert y_NO.dtype == result and y_NO.shape == (rows, 96)
        if rows:
            expected = plain_product(tf.cast(x_NI, tf.float32).numpy(), weight_IO)
            largest_N1 = np.abs(expected).max(axis=1, keepdims=True) + np.abs(bias_O).max()
            error_NO = np.abs(tf.cast(y_NO, tf.float32) - bias_O - expected) / largest_N1
            # what lies between two steps may go to the one or the other
            assert np.mean(error_NO < (2e-6 if result == "float32" else 1e-2)) > 0.98 and error_NO.max() < 2e-2


def test_extremes():
    product = tf.function(int8.int8_map(normal(16, 8)), autograph=False)
    x_NI = np.concatenate([np.zeros((1, 16)), 1e30 * normal(1, 16), 1e-25 * normal(1, 16), normal(1, 16)]).astype("f")
    y_NO = product(tf.constant(x_NI)).numpy()
    assert not y_NO[0].any() and np.isfinite(y_NO).all()
    for row in range(1, 4):  # each is itself whatever lies beside it
        np.testing.assert_array_equal(product(tf.constant(x_NI[row : row + 1])).numpy()[0], y_NO[row])
    nothing = tf.function(int8.int8_map(np.zeros((16, 8), np.float32)), autograph=False)
    assert not nothing(tf.constant(x_NI)).numpy().any()


def found(ensemble: Ensemble, source_BM: np.ndarray) -> list[np.ndarray]:
    search = tf.function(lambda source_BM: beam_search(ensemble, source_BM, 3, 0.6, 10), autograph=False)
    return [each.numpy() for each in search(tf.constant(source_BM))]


def test_weights_that_are_fixed_are_the_same_weights():
    model, source_BM = random_model(), random_ids(RNG, 11, 4, 6)
    for ours, theirs in zip(found(FixedEnsemble([model]), source_BM), found(Ensemble([model]), source_BM), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_every_map_of_a_step_is_near(dtype):
    model = random_model(dtype=dtype, d_model=64, d_ff=96)
    (plain, plain_layers), (rounded, rounded_layers) = model.step_maps(), model.step_maps(int8.int8_map)
    pairs = [(plain, rounded, 64)]
    for theirs, ours in zip(plain_layers, rounded_layers, strict=True):
        pairs += zip(theirs, ours, (64, 2 * 7, 64, 2 * 7, 64, 96), strict=True)
    for theirs, ours, inputs in pairs:
        x_NI = tf.cast(normal(6, inputs), model.compute_dtype)
        expected, given = theirs(x_NI), tf.function(ours, autograph=False)(x_NI)
        assert given.dtype in (expected.dtype, tf.float32)
        expected, given = (tf.cast(each, tf.float32) for each in (expected, given))
        furthest = np.abs(given - expected).max() / np.abs(expected).max()
        assert 0 < furthest < 0.05


def test_a_run_decodes_by_them(trained):
    """What is found by them has nearly the log-probability that the weights themselves give it."""
    plain, rounded = t2t_repro.load(trained.directory), t2t_repro.load(trained.directory, int8=True)
    assert isinstance(rounded, Translator) and rounded.ensemble.int8 and not plain.ensemble.int8
    source_BM = tf.ragged.constant(plain.vocabulary.encode([text for text in TEXTS if text]), tf.int32).to_tensor()
    ids_BWL, scores_BW = rounded.search(source_BM, 2, 0.0, 10)[:2]
    for beam in range(2):
        exact_B = tf.reduce_sum(plain.token_log_probabilities(source_BM, ids_BWL[:, beam]), axis=1)
        assert scores_BW[:, beam].numpy() == pytest.approx(exact_B.numpy(), abs=0.3)
        assert all(scores_BW[:, beam] != exact_B)


def test_a_text_is_decoded_by_them_as_if_it_were_alone(trained):
    rounded = t2t_repro.load(trained.directory, int8=True)
    for text, together in zip(TEXTS, rounded.n_best(TEXTS, 2), strict=True):
        [alone] = rounded.n_best([text], 2)
        assert [each for each, _ in alone] == [each for each, _ in together]
        assert [score for _, score in alone] == pytest.approx([score for _, score in together], abs=1e-3)


def test_where_there_are_none(trained, monkeypatch):
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
    monkeypatch.setattr(int8, "_quantized_matmul", lambda x, matrix, dtype: tf.zeros([1, 8]))
    with pytest.raises(ValueError, match=r"are wrong here \(0.0 for 8\); decode without int8"):
        t2t_repro.load(trained.directory, int8=True)
