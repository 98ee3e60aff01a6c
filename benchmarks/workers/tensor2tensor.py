"""tensor2tensor 1.15.7, in float32, on the TensorFlow 2.13 that still runs its graphs.

Mode: the name of its hyperparameter set, or empty.

It was written for TensorFlow 1 and imports all of its problems together. What these want of reinforcement learning and
of Google's cloud is stubbed: nothing of it has a part in training a Transformer.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

from benchmarks.workers import protocol

STUBBED = ("gym", "dopamine", "googleapiclient", "mesh_tensorflow", "tensorflow_gan", "tensorflow_probability")


class _Everything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Anything(metaclass=_Everything):
    """A stub that can be inherited from, called with anything, and has every attribute."""

    def __init__(self, *_: Any, **__: Any):
        pass


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(_Anything, name)


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


shape, path, mode = protocol.arguments()
protocol.quiet_output()
sys.meta_path.append(_StubFinder())

import tensorflow.compat.v1 as tf  # noqa: E402

tf.disable_v2_behavior()

from tensor2tensor.data_generators import problem_hparams  # noqa: E402
from tensor2tensor.models import transformer  # noqa: E402

from benchmarks import batches, shapes  # noqa: E402


def make_hparams() -> Any:
    """Returns `transformer_base_v1`, the paper's model, in the sizes of the shape."""
    hparams = transformer.transformer_base_v1()
    hparams.num_hidden_layers, hparams.num_heads = shape.num_layers, shape.num_heads
    hparams.hidden_size, hparams.filter_size = shape.d_model, shape.d_ff
    hparams.layer_prepostprocess_dropout = shapes.DROPOUT
    hparams.label_smoothing = shapes.LABEL_SMOOTHING
    hparams.problem_hparams = problem_hparams.TestProblem(shape.vocab_size, shape.vocab_size).get_hparams(hparams)
    return hparams


def main() -> None:
    updates = batches.load(path)
    source, target = (tf.placeholder(tf.int32, (None, None)) for _ in range(2))
    model = transformer.Transformer(make_hparams(), tf.estimator.ModeKeys.TRAIN)
    features = {"inputs": source[:, :, None, None], "targets": target[:, :, None, None]}
    features["target_space_id"] = tf.constant(0)
    _, losses = model(features)
    loss = losses["training"]
    optimizer = tf.train.AdamOptimizer(shapes.LEARNING_RATE, *shapes.BETAS, shapes.EPSILON)
    train = optimizer.minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def update(index: int) -> float:
            (part,) = updates[index]
            return float(session.run((loss, train), dict(zip((source, target), part, strict=True)))[0])

        protocol.serve(update, updates)


if __name__ == "__main__":
    main()
