"""This package's training step for a shape, as `t2t-trainer` builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

import t2t_repro
from benchmarks import shapes
from t2t_repro.config import HParams
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.precision import POLICIES
from t2t_repro.training.train_step import TrainStep, default_microbatch_tokens


def hparams_of(shape: shapes.Shape) -> HParams:
    return replace(
        t2t_repro.get_hparams("base"),
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


def compiled_update(shape: shapes.Shape, mode: str, element_spec: Any, replicas: int = 1) -> Callable[..., float]:
    """Returns a function that trains on one element of training text per replica and returns the loss per token.

    The replicas are the last devices. `mode` is a precision; "+xla" after it compiles the step with XLA.
    """
    precision, _, compiler = mode.partition("+")
    hparams = hparams_of(shape)
    devices = [device.name for device in tf.config.list_logical_devices()[-replicas:]]  # GPUs, if there are any
    with tf.distribute.MirroredStrategy(devices).scope():
        model = Transformer(shape.vocab_size, hparams, dtype=POLICIES[precision])
        adam = Adam([weight.value for weight in model.trainable_variables], hparams)
        size = 0 if compiler else default_microbatch_tokens(hparams, replicas)
        train_step = TrainStep(model, adam, hparams, seed=1, microbatch_tokens=size, jit_compile=compiler == "xla")
        take_step = train_step.build(element_spec)
    steps = iter(range(1, 2**31))

    def update(*elements: dict[str, tf.Tensor]) -> float:
        metrics = take_step(list(elements), tf.constant(next(steps)), tf.constant(shapes.LEARNING_RATE)).numpy()
        return float("nan") if metrics.skipped else metrics.smoothed / metrics.tokens

    return update
