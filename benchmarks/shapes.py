"""The sizes of the compared models, and the operations of one step. Standard library only: every contestant
imports this module, each in its own environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-4
BETAS, EPSILON = (0.9, 0.98), 1e-9  # Adam's


@dataclass(frozen=True)
class Shape:
    """A model as the paper writes it, and its batch. One matrix serves both embeddings and the softmax."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocab_size: int
    batch_tokens: int  # positions per side in one step, padding included

    @property
    def d_k(self) -> int:
        return self.d_model // self.num_heads

    def __str__(self) -> str:
        return (
            f"{self.name}: N {self.num_layers}, d_model {self.d_model}, h {self.num_heads}, d_ff {self.d_ff}, "
            f"V {self.vocab_size:,}, {self.batch_tokens:,} tokens per side"
        )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("base", 6, 512, 8, 2048, 32_000, 2_048),
        Shape("small", 4, 128, 4, 256, 10_000, 4_096),
        Shape("base_25000", 6, 512, 8, 2048, 32_000, 25_000),  # the paper's batch, in 8 parts
        Shape("smoke", 1, 16, 2, 32, 64, 128),  # seconds: does everything run
    )
}


def weight_products(shape: Shape) -> list[tuple[str, int, int, int]]:
    """Returns the matrix products with weights: side of the input tokens, rows, columns, and number of products."""
    n, d, f = shape.num_layers, shape.d_model, shape.d_ff
    return [
        ("source", d, d, 4 * n),  # Q, K and V of the encoder, and its output projection
        ("source", d, f, n),
        ("source", f, d, n),
        ("target", d, d, 6 * n),  # of the decoder's self-attention, and Q and the output of that to the encoder's
        ("source", d, d, 2 * n),  # K and V of the latter
        ("target", d, f, n),
        ("target", f, d, n),
        ("target", d, shape.vocab_size, 1),
    ]


def update_flops(shape: Shape, lengths: Iterable[tuple[int, int]]) -> float:
    """Returns the operations of one step over pairs of real lengths m (source) and l (target).

    A product with a weight of P elements costs 2 P a token forward, and as much again for each of its two gradients:
    6 P. The two products of attention cost 4 d_model a pair of positions forward and 12 d_model in all:

        sum over pairs of  6 (P_source m + P_target l) + 12 N d_model (m^2 + l^2 + l m)

    Padding, softmax, normalization and the like count nothing, and neither does the causal mask, which saves nobody
    here anything: so the share of the product rate is what reached the model.
    """
    elements = {"source": 0, "target": 0}
    for side, rows, columns, times in weight_products(shape):
        elements[side] += rows * columns * times
    total = 0.0
    for m, l in lengths:  # noqa: E741
        total += 6 * (elements["source"] * m + elements["target"] * l)
        total += 12 * shape.num_layers * shape.d_model * (m * m + l * l + l * m)
    return total
