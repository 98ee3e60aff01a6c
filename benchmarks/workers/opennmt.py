"""OpenNMT-tf in float32: its `--mixed_precision` is unusable on a CPU.

Mode, words joined by "+", one of the first two and any of the others:

    adam      Adam
    lazyadam  LazyAdam, what its automatic configuration has
    lean      a `tf.function` around `model.train`, as its documentation shows, instead of what its runner uses: a
              `Trainer`, which adds gradients up in variables even if a step has one batch
    jit       its `--jit_compile`: XLA
    shipped   TransformerBaseSharedEmbeddings of its catalogue, whatever the shape says: pre-norm, biases in attention,
              and dropout on attention weights and inside the feed-forward network too

Without "shipped" it is given the paper's model, the same as everyone else's, which is less work.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from benchmarks.workers import protocol

shape, path, mode = protocol.arguments()
protocol.quiet_output()

import opennmt  # noqa: E402
import tensorflow as tf  # noqa: E402
from opennmt import training  # noqa: E402

from benchmarks import batches, shapes  # noqa: E402
from benchmarks.workers import opennmt_model  # noqa: E402

BEGIN = 1  # <s> of its vocabularies


def make_model(words: set[str]) -> Any:
    if "shipped" in words:
        model = opennmt.models.get_model_from_catalog("TransformerBaseSharedEmbeddings")
    else:
        model = opennmt_model.paper_model(shape)
    params = {
        "average_loss_in_time": True,
        "label_smoothing": shapes.LABEL_SMOOTHING,
        "optimizer": "LazyAdam" if "lazyadam" in words else "Adam",
        "optimizer_params": {"beta_1": shapes.BETAS[0], "beta_2": shapes.BETAS[1], "epsilon": shapes.EPSILON},
        "learning_rate": shapes.LEARNING_RATE,
    }
    opennmt_model.initialize(model, shape, params)
    model.set_jit_compile("jit" in words)
    return model


def features_and_labels(part: batches.Part) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    source, target = (tf.constant(ids) for ids in part)
    lengths = [tf.math.count_nonzero(ids, axis=1, dtype=tf.int32) for ids in (source, target)]
    shifted = tf.pad(target, [[0, 0], [1, 0]], constant_values=BEGIN)[:, :-1]
    shifted *= tf.sequence_mask(lengths[1], tf.shape(target)[1], dtype=tf.int32)
    return {"ids": source, "length": lengths[0]}, {"ids": shifted, "ids_out": target, "length": lengths[1]}


def specification() -> tuple[dict[str, tf.TensorSpec], dict[str, tf.TensorSpec]]:
    ids, length = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,), tf.int32)
    return {"ids": ids, "length": length}, {"ids": ids, "ids_out": ids, "length": length}


def with_trainer(model: Any, optimizer: Any, updates: list[list[Any]]) -> Callable[[int], float]:
    """Runs one iteration of the loop in `Trainer._steps` per step, without its statistics, which read words."""
    trainer = training.Trainer(model, optimizer)
    trainer._training_stats = types.SimpleNamespace(update_on_example=lambda *_: None)
    accumulate = tf.function(trainer._accumulate_gradients, input_signature=(specification(),))
    apply = tf.function(trainer._apply_gradients)

    def update(index: int) -> float:
        for part in updates[index]:
            accumulate(part)
        loss, size = (trainer._all_reduce_sum(x) for x in (trainer._total_loss, trainer._total_sample_size))
        apply(size)
        return float(loss) / float(size)

    return update


def lean(model: Any, optimizer: Any, updates: list[list[Any]]) -> Callable[[int], float]:
    @tf.function(input_signature=specification())
    def train(features: Any, labels: Any) -> tf.Tensor:
        return model.train(features, labels, optimizer)

    def update(index: int) -> float:
        (part,) = updates[index]
        return float(train(*part))

    return update


def main() -> None:
    words = set(mode.split("+"))
    updates = [[features_and_labels(part) for part in parts] for parts in batches.load(path)]
    model = make_model(words)
    optimizer = model.get_optimizer()
    model.create_variables(optimizer=optimizer)
    protocol.serve((lean if "lean" in words else with_trainer)(model, optimizer, updates), updates)


if __name__ == "__main__":
    main()
