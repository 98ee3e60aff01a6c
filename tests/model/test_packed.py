"""Products with weights that oneDNN packs once."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from keras import ops

from t2t_repro.model import packed
from t2t_repro.model.kernels import narrow_linear, rows_of
from t2t_repro.system import processor

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(2)


@pytest.fixture
def packing() -> None:
    if processor.onednn_is_off():
        pytest.skip("oneDNN is off")
    assert packed.can_pack("float32")


def compare(dtype: str, has_bias: bool, are_few: bool = False) -> None:
    weight_IO, bias_O = RNG.normal(size=(48, 30)).astype("f"), RNG.normal(size=30).astype("f") if has_bias else None
    plain, ours = (make(weight_IO, bias_O, "float32", dtype=dtype) for make in (narrow_linear, packed.packed_linear))
    of_relu = ours.activated[ops.relu]
    signature = [tf.TensorSpec([None, 48], dtype)]
    ours, of_relu = (tf.function(each, autograph=False, input_signature=signature) for each in (ours, of_relu))
    with packed.few_rows(are_few):
        packs = [packed.OPERATION in operations(each) for each in (ours, of_relu)]
    assert packs == [are_few or dtype == "bfloat16"] * 2
    for rows in (4, 1, packed.FEW_ROWS, packed.FEW_ROWS + 1, 40, 300, 4):
        x_TI = tf.cast(RNG.normal(size=(rows, 48)), dtype)
        y_TO = ours(x_TI)
        assert y_TO.dtype == tf.float32 and y_TO.shape == (rows, 30)
        np.testing.assert_allclose(
            y_TO, plain(x_TI), rtol=2 * packed.ROUNDING[dtype], atol=1e-5 if dtype == "float32" else 0.05
        )
        np.testing.assert_array_equal(of_relu(x_TI), tf.nn.relu(y_TO))


def operations(function) -> set[str]:
    return {operation.type for operation in function.get_concrete_function().graph.get_operations()}


@pytest.mark.parametrize("are_few", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_in_float32(packing, has_bias, are_few):
    """Any number of rows is right in the graph for few, though more are slow."""
    compare("float32", has_bias, are_few)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_in_bfloat16(packing, has_bias):
    if not processor.onednn_uses_avx512():
        pytest.skip("oneDNN needs AVX-512 for bfloat16")
    assert packed.can_pack("bfloat16")
    compare("bfloat16", has_bias)


def test_the_embedding_in_bfloat16_gives_logits_and_rows(packing):
    if not packed.can_pack("bfloat16"):
        pytest.skip("oneDNN needs AVX-512 for bfloat16")
    embedding_VD = tf.cast(RNG.normal(size=(40, 48)), tf.bfloat16)
    embedding = packed.packed_embedding(tf.cast(embedding_VD, tf.float32), dtype="bfloat16")
    logits = tf.function(embedding, autograph=False, input_signature=[tf.TensorSpec([None, 48], tf.bfloat16)])
    for rows in (4, 1, 7, 40, 300, 4):
        x_TD = tf.cast(RNG.normal(size=(rows, 48)), tf.bfloat16)
        y_TV = logits(x_TD)
        assert y_TV.dtype == tf.float32 and y_TV.shape == (rows, 40)
        exact_TV = np.asarray(x_TD, "f") @ np.asarray(embedding_VD, "f").T
        np.testing.assert_allclose(y_TV, exact_TV, rtol=packed.ROUNDING["bfloat16"], atol=1e-3)
    ids = tf.constant([[3, 0], [39, 3]])
    np.testing.assert_array_equal(rows_of(embedding)(ids), tf.cast(tf.gather(embedding_VD, ids), tf.float32))


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [("float32", (512, 512), False), ("float32", (512, 513), True), ("bfloat16", (8, 8), True)],
)
def test_only_large_matrices_gain_in_float32(monkeypatch, dtype, shape, expected):
    monkeypatch.setattr(packed, "SMALL_MATRIX", 1 << 18)
    assert packed.gains(tf.zeros(shape), dtype) is expected


def test_a_matrix_is_packed_once(packing):
    """oneDNN reports each reordering of a matrix."""
    code = (
        "import tensorflow as tf\n"
        "from t2t_repro.model.packed import few_rows, packed_linear\n"
        "linear = tf.function(packed_linear(tf.ones([256, 512]), dtype='float32'), autograph=False)\n"
        "with few_rows():\n"
        "    print([float(linear(tf.ones([4, 256]))[0, 0]) for _ in range(5)])\n"
    )
    environment = os.environ | {"ONEDNN_VERBOSE": "1"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    executed = [line for line in done.stdout.splitlines() if ",exec," in line]
    assert "[256.0, 256.0, 256.0, 256.0, 256.0]" in done.stdout
    assert sum(",inner_product," in line for line in executed) == 5
    assert sum(",reorder," in line and "512x256" in line for line in executed) == 1


def test_a_matrix_in_bfloat16_is_packed_once_for_any_number_of_rows(packing):
    """So an encoder's matrices are packed too. ReLU is part of the product."""
    if not packed.can_pack("bfloat16"):
        pytest.skip("no packed products in bfloat16")
    code = (
        "import tensorflow as tf\n"
        "from keras import ops\n"
        "from t2t_repro.model.packed import packed_linear\n"
        "product = packed_linear(tf.ones([64, 128]), dtype='bfloat16').activated[ops.relu]\n"
        "spec = [tf.TensorSpec([None, 64], tf.bfloat16)]\n"
        "product = tf.function(product, autograph=False, input_signature=spec)\n"
        "for rows in (1, 6, 7, 100, 2000, 3):\n"
        "    product(tf.ones([rows, 64], tf.bfloat16))\n"
    )
    environment = os.environ | {"ONEDNN_VERBOSE": "1"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    executed = [line for line in done.stdout.splitlines() if ",exec," in line]
    assert sum(",inner_product," in line and "eltwise_relu" in line for line in executed) == len(executed) - 1 == 6
    assert sum(",reorder," in line and "128x64" in line for line in executed) == 1


def test_what_this_machine_cannot_pack_is_not_packed(monkeypatch):
    assert not packed.can_pack("float16") and not packed.can_pack("float64")
    with monkeypatch.context() as patch:
        patch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
        assert not packed.can_pack("float32")
    with monkeypatch.context() as patch:
        patch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
        assert not packed.can_pack("float32")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # oneDNN ends the process, so nothing is computed
    assert not packed.can_pack("bfloat16")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(processor, "features", lambda: ("avx2", "fma"))
    assert not packed.can_pack("bfloat16")


def missing(*_):
    raise tf.errors.NotFoundError(None, None, "no kernel")


def inexact(x_TI, weight, bias_O=0.0, relu=False, transposed=False):
    return tf.matmul(x_TI, weight, transpose_b=transposed) * 1.001 + bias_O


@pytest.mark.parametrize("product", [missing, inexact])
def test_missing_and_wrong_products_are_detected(packing, monkeypatch, product):
    packed._is_exact.cache_clear()
    monkeypatch.setattr(packed, "_packed_matmul", product)
    assert not packed.can_pack("float32")
    packed._is_exact.cache_clear()
