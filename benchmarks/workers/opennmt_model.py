"""The paper's model in OpenNMT-tf, the same as everyone else's: no biases in attention, post-norm, one matrix for both
embeddings and the softmax. To be imported in OpenNMT-tf's environment."""

from __future__ import annotations

import tempfile
from typing import Any

import opennmt
from opennmt.models import EmbeddingsSharingLevel

from benchmarks import shapes


def paper_model(shape: shapes.Shape) -> Any:
    return opennmt.models.Transformer(
        num_layers=shape.num_layers,
        num_units=shape.d_model,
        num_heads=shape.num_heads,
        ffn_inner_dim=shape.d_ff,
        dropout=shapes.DROPOUT,
        attention_dropout=0.0,
        ffn_dropout=0.0,
        mha_bias=False,
        share_embeddings=EmbeddingsSharingLevel.ALL,
        pre_norm=False,
        output_layer_bias=False,
    )


def initialize(model: Any, shape: shapes.Shape, params: dict[str, Any]) -> None:
    """Sets a vocabulary of the shape's size, whose ids 0 to 2 are padding, begin and end."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as vocabulary:
        # one word fewer: it adds one for what is unknown
        vocabulary.write("\n".join(["<blank>", "<s>", "</s>", *(f"w{i}" for i in range(shape.vocab_size - 4))]))
        vocabulary.flush()
        model.initialize({"source_vocabulary": vocabulary.name, "target_vocabulary": vocabulary.name}, params=params)
