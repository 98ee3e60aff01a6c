"""t2t_repro.training.hardware: products are compared with float64, and "auto" is the native precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2t_repro.model import int8
from t2t_repro.system import processor
from t2t_repro.training import hardware, precision

pytestmark = pytest.mark.numeric

matmul = tf.matmul
PRECISIONS = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_products_are_right_here(dtype):
    assert hardware.product_fault(dtype) == ""


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("factor", [2.0, 0.0, -1.0, float("nan")])
def test_a_wrong_product_is_found(monkeypatch, dtype, factor):
    monkeypatch.setattr(tf, "matmul", lambda *args, **kwargs: tf.cast(factor, dtype) * matmul(*args, **kwargs))
    fault = hardware.product_fault(dtype)
    assert " instead of " in fault and "in 64 x 256 by 256 x 96" in fault


@pytest.mark.parametrize("bits", [10, 7], ids=["TensorFloat-32", "bfloat16"])
def test_a_float32_product_of_fewer_bits_is_found(monkeypatch, bits):
    """Like TensorFloat-32 on GPUs: rounded factors, sums in float32."""

    def rounded(x: tf.Tensor) -> tf.Tensor:
        scale = 2.0 ** (tf.floor(tf.math.log(tf.maximum(tf.abs(x), 1e-30)) / np.log(2)) - bits)
        return tf.round(x / scale) * scale

    monkeypatch.setattr(tf, "matmul", lambda a, b, **kwargs: matmul(rounded(a), rounded(b), **kwargs))
    assert " instead of " in hardware.product_fault("float32")


def test_a_wrong_transposed_product_is_found(monkeypatch):
    """Only in attention."""

    def wrong(a: tf.Tensor, b: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
        return matmul(a, b, transpose_b=transpose_b) * (2 if transpose_b else 1)

    monkeypatch.setattr(tf, "matmul", wrong)
    assert hardware.product_fault("float32").endswith("in 2 x 3 x 17 x 32 by 2 x 3 x 19 x 32")


def stand_in(product):
    """Replaces `int8_linear`."""
    return lambda weight_IO, *_: lambda x_NI: tf.numpy_function(product, [x_NI, weight_IO], tf.float32)


def quantized(x_NI, weight_IO, steps=127):
    """Returns integers for both factors, and the scales of rows and columns."""
    row, column = np.abs(x_NI).max(1, keepdims=True), np.abs(weight_IO).max(0, keepdims=True)
    return np.round(x_NI / row * 127), np.round(weight_IO / column * steps), row * column / 127 / steps


@pytest.mark.parametrize("steps", [63, 64, 127])
def test_an_exact_int8_product_is_right(monkeypatch, steps):
    def product(x_NI, weight_IO):
        x, weight, scale = quantized(x_NI, weight_IO, steps)
        return (x @ weight * scale).astype(np.float32)

    monkeypatch.setattr(int8, "int8_linear", stand_in(product))
    assert hardware.int8_fault() == ""


def test_an_int8_product_that_saturates_is_found(monkeypatch):
    """Pairs of unsigned and signed 8-bit products are added in 16 bits, as without VNNI."""

    def product(x_NI, weight_IO):
        x, weight, scale = quantized(x_NI, weight_IO)
        pairs = (x + 128)[:, :, None] * weight
        sums = np.clip(pairs[:, ::2] + pairs[:, 1::2], -32_768, 32_767).sum(1) - 128 * weight.sum(0)
        return (sums * scale).astype(np.float32)

    monkeypatch.setattr(int8, "int8_linear", stand_in(product))
    assert " instead of 256" in hardware.int8_fault()


def test_an_int8_product_that_is_doubled_is_found(monkeypatch):
    monkeypatch.setattr(int8, "int8_linear", stand_in(lambda x_NI, weight_IO: 2 * (x_NI @ weight_IO)))
    assert " instead of " in hardware.int8_fault()


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([(6, 0)], "float32"),
        ([(7, 0)], "float16"),
        ([(7, 5)], "float16"),
        ([(8, 0)], "bfloat16"),
        ([(12, 0)], "bfloat16"),
        ([(9, 0), (7, 0)], "float16"),
        ([(0, 0)], "float32"),
    ],
)
def test_auto_follows_the_oldest_gpu(monkeypatch, capabilities, expected):
    gpus = [{"name": "GPU", "compute_capability": each} for each in capabilities]
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    assert precision.resolve("auto") == hardware.native_precision()[0] == expected


@pytest.mark.parametrize(
    ("native", "slow", "onednn", "expected"),
    [
        (True, "", True, "bfloat16"),
        (True, "products are slow", True, "float32"),
        (True, "", False, "float32"),
        (False, "", True, "float32"),
        (False, "", False, "float32"),
    ],
)
def test_auto_on_a_processor(monkeypatch, native, slow, onednn, expected):
    monkeypatch.setattr(hardware, "gpus", lambda: [])
    monkeypatch.setattr(processor, "has_bfloat16", lambda: native)
    monkeypatch.setattr(processor, "slow_bfloat16", lambda: slow)
    monkeypatch.setattr(hardware, "tensorflow_build", lambda: {"onednn": onednn})
    assert precision.resolve("auto") == expected


def test_build_and_memory_of_this_machine():
    build = hardware.tensorflow_build()
    assert build["version"] == tf.__version__ and isinstance(build["onednn"], bool)
    assert hardware.machine_bytes() > 2**28
    assert hardware.name().endswith(processor.name()) or hardware.gpus()
