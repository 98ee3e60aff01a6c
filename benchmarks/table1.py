"""The layers that the paper's Table 1 compares, forward and backward, against sequence length and width.

    python -m benchmarks.table1

Each sees 4,096 positions of random vectors, in float32, alternating with the others. Compared is the time of a
position. Table 1 gives the operations of a layer of n positions of width d; of one position that is n d for
self-attention, d^2 for a recurrent and k d^2 for a convolutional layer (k = 3 here). Self-attention is measured without
its four products with weights, as Table 1 counts it, and with them, as the model has it (n d + d^2). The slope is that
of the logarithms, from the last size but one to the last.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

POSITIONS = 4_096
SIZES = {"length n": (16, 64, 256, 1_024), "width d": (64, 128, 256, 512)}
FIXED = {"length n": 256, "width d": 64}  # the width, while the length grows; the length, while the width does
KERNEL = 3
SLOPES = {  # of a position's operations, against n and d
    "self-attention": (1, 1),
    "self-attention with its products": ("-", "-"),
    "recurrent (LSTM)": (0, 2),
    "convolutional": (0, 2),
}

Times = dict[str, dict[str, dict[int, float]]]  # axis, layer, size: seconds per position


def layers(length: int, width: int) -> dict[str, Callable[[], Any]]:
    """Returns the compiled forward and backward pass of each layer over random vectors."""
    import keras
    import tensorflow as tf

    from t2t_repro.model.attention import MultiHeadAttention
    from t2t_repro.model.kernels import scaled_dot_product_attention, split_heads

    heads = max(1, width // 64)
    x_BLD = tf.random.normal([POSITIONS // length, length, width])
    multi_head = MultiHeadAttention(width, heads, width // heads, width // heads)

    def with_products(x_BLD: tf.Tensor) -> tf.Tensor:
        return multi_head(x_BLD, x_BLD, tf.zeros([1, 1]))

    def alone(x_BLD: tf.Tensor) -> tf.Tensor:
        x_BHLK = split_heads(x_BLD, heads)
        return scaled_dot_product_attention(x_BHLK, x_BHLK, x_BHLK, 0.0)

    functions = {
        "self-attention": alone,
        "self-attention with its products": with_products,
        "recurrent (LSTM)": keras.layers.LSTM(width, return_sequences=True),
        "convolutional": keras.layers.Conv1D(width, KERNEL, padding="causal"),
    }

    def both_passes(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[], Any]:
        function(x_BLD)  # creates its weights

        @tf.function(autograph=False)
        def run() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(x_BLD)
                total = tf.reduce_sum(function(x_BLD))
            return tape.gradient(total, [x_BLD, *tape.watched_variables()])

        return run

    return {name: both_passes(function) for name, function in functions.items()}


def measure(rounds: int) -> Times:
    """Returns the median times; all layers at all sizes alternate."""
    points = [(axis, size) for axis, sizes in SIZES.items() for size in sizes]
    runs = {
        (axis, name, size): run
        for axis, size in points
        for name, run in layers(*((size, FIXED[axis]) if axis == "length n" else (FIXED[axis], size))).items()
    }
    taken: dict[tuple[str, str, int], list[float]] = {key: [] for key in runs}
    for turn in range(rounds + 1):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:  # the first is warming up
                taken[key].append(time.perf_counter() - start)
    times: Times = {axis: {name: {} for name in SLOPES} for axis in SIZES}
    for (axis, name, size), seconds in taken.items():
        times[axis][name][size] = statistics.median(seconds) / POSITIONS
    return times


def table(times: Times) -> str:
    lines = []
    for (axis, of_layers), place in zip(times.items(), (0, 1), strict=True):
        sizes = SIZES[axis]
        first = next(iter(of_layers.values()))[sizes[0]]
        other = "width" if place == 0 else "length"
        lines += [
            f"### Time of a position, {other} {FIXED[axis]}, over that of self-attention at {axis[-1]} = {sizes[0]}\n",
            f"| layer | {' | '.join(f'{axis[-1]} = {size:,}' for size in sizes)} | slope | Table 1's |",
            "|---" * (len(sizes) + 3) + "|",
        ]
        for name, taken in of_layers.items():
            slope = math.log(taken[sizes[-1]] / taken[sizes[-2]]) / math.log(sizes[-1] / sizes[-2])
            cells = [f"{taken[size] / first:.2f}" for size in sizes] + [f"{slope:.2f}", str(SLOPES[name][place])]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    print(table(measure(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
