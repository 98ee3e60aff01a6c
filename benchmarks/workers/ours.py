"""This package, as `t2t-trainer` runs it: its model, its update, its graph. Mode: float32 or bfloat16."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.workers import protocol

shape, path, mode = protocol.arguments()
protocol.quiet_output()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import t2t_repro  # noqa: E402
from benchmarks import batches, shapes  # noqa: E402
from t2t_repro.model.transformer import Transformer  # noqa: E402
from t2t_repro.training.optimizer import Adam  # noqa: E402
from t2t_repro.training.precision import POLICIES  # noqa: E402
from t2t_repro.training.update import Updater  # noqa: E402

SPEC = {side: tf.TensorSpec((None, None, None), tf.int32) for side in ("inputs", "targets")}
SPEC["sizes"] = tf.TensorSpec((None, 3), tf.int32)


def element(parts: list[batches.Part]) -> dict[str, tf.Tensor]:
    """One update as `training_batches` gives it to a replica."""
    sizes = np.array([(*source.shape, target.shape[1]) for source, target in parts], np.int32)
    most, longest_source, longest_target = sizes.max(axis=0)

    def stacked(ids: list[np.ndarray], longest: int) -> tf.Tensor:
        return tf.constant(np.stack([np.pad(x, ((0, most - len(x)), (0, longest - x.shape[1]))) for x in ids]))

    sources, targets = ([part[side] for part in parts] for side in (0, 1))
    return {
        "inputs": stacked(sources, longest_source),
        "targets": stacked(targets, longest_target),
        "sizes": tf.constant(sizes),
    }


def main() -> None:
    hparams = replace(
        t2t_repro.hparams("base"),
        name=shape.name,
        num_layers=shape.num_layers,
        d_model=shape.d_model,
        num_heads=shape.num_heads,
        d_k=shape.d_k,
        d_v=shape.d_k,
        d_ff=shape.d_ff,
        batch_tokens=shape.batch_tokens,
        dropout=shapes.DROPOUT,
        label_smoothing=shapes.LABEL_SMOOTHING,
    )
    elements = [element(parts) for parts in batches.load(path)]
    with tf.distribute.MirroredStrategy().scope():
        model = Transformer(shape.vocab_size, hparams, dtype=POLICIES[mode])
        updater = Updater(model, Adam([weight.value for weight in model.trainable_variables], hparams), hparams, seed=1)
    compiled, steps = updater.compiled(SPEC), iter(range(1, 2**31))

    def update(index: int) -> float:
        step, rate = tf.constant(next(steps)), tf.constant(shapes.LEARNING_RATE)
        smoothed, _, _, tokens, _, skipped = compiled(elements[index], step, rate).numpy()
        return float("nan") if skipped else float(smoothed / tokens)

    protocol.serve(update, elements)


if __name__ == "__main__":
    main()
