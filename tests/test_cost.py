"""Compares counted operations with every product in the model's graph, and the paper's estimate with its table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from helpers.tiny_model import SMALL, random_model

from t2t_repro.flops import paper_flops, training_flops
from t2t_repro.model.transformer import Transformer

VOCAB = 11


def products(graph: Any) -> Iterator[int]:
    """Returns the operations of each matrix product in a graph with known shapes."""
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"):
            assert operation.type != "Einsum", "a product that this test cannot count"
            transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            inner = operation.inputs[0].shape[-2 if transposed else -1]
            result = operation.outputs[0].shape
            if 1 not in result[-2:]:  # a sum or a mean, written as the product with a vector
                yield 2 * result.num_elements() * inner


@pytest.mark.parametrize(
    "changes", [{}, {"num_layers": 1, "num_heads": 3, "d_k": 4}, {"num_encoder_layers": 3, "num_decoder_layers": 1}]
)
def test_flops_count_every_product_in_the_graph(changes):
    model = random_model(VOCAB, **changes)
    batch, source_length, target_length = 3, 7, 5

    def forward(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return model({"inputs": source, "targets": target})

    shapes = ((batch, source_length), (batch, target_length))
    graph = tf.function(forward).get_concrete_function(*(tf.TensorSpec(shape, tf.int32) for shape in shapes)).graph
    tokens = batch * target_length
    counted = training_flops(model.hparams, VOCAB, batch, source_length, target_length, tokens)
    assert counted == 3 * sum(products(graph))


def test_gradient_counts_as_two_more_products():
    model = Transformer(VOCAB, SMALL)
    source, target = tf.ones((2, 6), tf.int32), tf.ones((2, 4), tf.int32)

    @tf.function
    def backward() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model({"inputs": source, "targets": target}))
        return tape.gradient(loss, [weight.value for weight in model.trainable_weights])

    counted = training_flops(SMALL, VOCAB, 2, 6, 4, 8)
    assert counted == sum(products(backward.get_concrete_function().graph))


def test_paper_flops_gives_the_papers_estimates():
    """Table 2: twelve hours and three and a half days on eight P100."""
    assert f"{paper_flops(12 * 3600, 8, 'Tesla P100-SXM2-16GB'):.1e}" == "3.3e+18"
    assert f"{paper_flops(3.5 * 24 * 3600, 8, 'Tesla P100-SXM2-16GB'):.1e}" == "2.3e+19"


def test_paper_flops_is_none_without_a_rate():
    for device in ("2 cores of a CPU", "Quadro P1000", "Quadro M4000", "Quadro K4000"):
        assert paper_flops(1.0, 1, device) is None
