"""Shared by the exports to other engines: checks that the model is the paper's, and its position encodings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from t2t_repro.model.transformer import Transformer

ELSEWHERE = "export it as a SavedModel"


def activation(model: Transformer, engine: str) -> str:
    """Returns the name of the activation: relu, gelu, silu or tanh. Raises ValueError for another one.

    `engine` is the name of the format or its engine in the message.
    """
    from keras import ops

    names = {ops.relu: "relu", ops.gelu: "gelu", ops.silu: "silu", ops.tanh: "tanh"}
    activations = {layer.feed_forward.activation for layer in (*model.encoder_layers, *model.decoder_layers)}
    if len(activations) > 1 or not activations <= names.keys():
        received = ", ".join(sorted(getattr(each, "__name__", repr(each)) for each in activations))
        raise ValueError(f"{engine} has one of keras.ops' relu, gelu, silu and tanh. Received: {received}; {ELSEWHERE}")
    return names[activations.pop()]


def must_be_the_papers(model: Transformer, engine: str) -> None:
    """Raises ValueError if the code of the model was changed to one with other weights, or without post-norm."""
    weights = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    expected = model.hparams.num_parameters(model.vocab_size)
    if weights != expected:
        raise ValueError(
            f"{engine} has the {expected:,} weights of the paper's model. Received: {weights:,}; {ELSEWHERE}"
        )
    x_BLD, y_BLD = np.random.default_rng(1).normal(size=(2, 1, 3, model.hparams.d_model)).astype(np.float32)
    for layer in (*model.encoder_layers, *model.decoder_layers):
        add_norm = layer.feed_forward_norm
        found, expected_BLD = add_norm(x_BLD, sublayer=lambda _: y_BLD), add_norm.norm(x_BLD, y_BLD)
        if not np.allclose(found, expected_BLD, atol=1e-4):
            raise ValueError(
                f"{engine} normalizes the sum of each residual connection. Received: another AddNorm; {ELSEWHERE}"
            )


def num_positions(model: Transformer) -> int:
    """Returns the number of positions: a source of `max_positions`, and `extra_length` more for its translation."""
    return model.hparams.max_positions + model.hparams.extra_length


def positions(model: Transformer, side: str) -> np.ndarray:
    """Returns position encodings [positions, D], float32, of the side "source" or "target".

    Those beyond a learned table repeat its last row.
    """
    from t2t_repro.model.layers import sinusoids

    length = num_positions(model)
    if model.hparams.positions == "sinusoid":
        return np.asarray(sinusoids(np.arange(length), model.hparams.d_model).numpy(), np.float32)
    table: Any = model.source_positions if side == "source" else model.target_positions
    return np.asarray(table.value.numpy(), np.float32)[np.minimum(np.arange(length), model.hparams.max_positions - 1)]
