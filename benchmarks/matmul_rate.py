"""The rate of matrix products, the upper bound of training speed: only the products of one step, in TensorFlow.

    python -m benchmarks.matmul_rate --model=base

prints the rate of every shape as a share of the fastest one, alternating bfloat16 and float32. As a contestant of
`benchmarks.train` it runs all products of a step together, so that its rate is measured in the same run as theirs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks.shapes import SHAPES, Shape, weight_products

LARGEST = 2**23  # elements of a result; a larger one is fresh memory each time, and its pages would be measured too

Product = tuple[int, int, int, int]  # rows, inner, columns, how often


def update_products(shape: Shape) -> list[Product]:
    """Returns the products with weights in the forward pass of one step, or of one part if the step has several.

    The vocabulary's are cut into slices of columns.
    """
    from t2t_repro.data.batching import num_parts

    rows = shape.batch_tokens // num_parts(shape.batch_tokens)
    products = []
    for _, inner, columns, times in weight_products(shape):
        slices = max(1, round(columns * rows / LARGEST))
        products.append((rows, inner, columns // slices, times * slices))
    return products


def flops(product: Product) -> float:
    """Returns the operations of a product and its two gradients, times their number per step."""
    rows, inner, columns, times = product
    return 6.0 * rows * inner * columns * times


class Operands:
    """Random matrices for one product; calling it computes the product and both gradients, as often as asked."""

    def __init__(self, product: Product, dtype: str):
        import tensorflow as tf

        rows, inner, columns, self.times = product
        self.x_NI, self.w_IO, self.dy_NO = (
            tf.cast(tf.random.normal(size), dtype) for size in ((rows, inner), (inner, columns), (rows, columns))
        )
        self.matmul = tf.raw_ops.MatMul

    def __call__(self) -> Any:
        for _ in range(self.times):
            self.matmul(a=self.x_NI, b=self.w_IO)
            self.matmul(a=self.dy_NO, b=self.w_IO, transpose_b=True)
            last = self.matmul(a=self.x_NI, b=self.dy_NO, transpose_a=True)
        return last


def seconds(operands: Operands) -> float:
    start = time.perf_counter()
    operands()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="base")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    products = sorted(set(update_products(SHAPES[arguments.model])))
    dtypes = ("bfloat16", "float32")
    turns = {(p, dtype): Operands(p, dtype) for p in products for dtype in dtypes}
    taken: dict[tuple[Product, str], list[float]] = {key: [] for key in turns}
    for turn in range(arguments.rounds + 1):
        for key, operands in turns.items():
            if turn:  # the first is warming up
                taken[key].append(seconds(operands))
            else:
                operands()
    rate = {key: flops(key[0]) / statistics.median(times) for key, times in taken.items()}
    best = max(rate.values())
    print(f"{SHAPES[arguments.model]}; the fastest: {best / 1e9:,.0f} GFLOP/s, the rest as shares of it\n")
    print("| rows x inner x columns | bfloat16 | float32 |\n|---|---|---|")
    for product in products:
        shares = " | ".join(f"{rate[product, dtype] / best:.2f}" for dtype in dtypes)
        print(f"| {product[0]:,} x {product[1]:,} x {product[2]:,} | {shares} |")
    total = sum(flops(p) for p in products)
    mixed = [total / sum(flops(p) / rate[p, dtype] for p in products) / best for dtype in dtypes]
    print(f"| one complete step | {mixed[0]:.2f} | {mixed[1]:.2f} |")


if __name__ == "__main__":
    main()
