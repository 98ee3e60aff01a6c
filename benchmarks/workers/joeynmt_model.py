"""The paper's model in JoeyNMT: post-norm, one matrix for both embeddings and the softmax. Attention has biases, as
JoeyNMT has no other. To be imported in JoeyNMT's environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary

from benchmarks import shapes

UNKNOWN, PAD, BEGIN, END = range(4)  # the order of its special words


def paper_model(shape: shapes.Shape) -> Any:
    """Returns the model with its loss. Dropout is only where the paper has it: on sub-layers and embeddings."""

    class Words(Vocabulary):
        """Special words alone, and the length of all: JoeyNMT compares each word with all others."""

        def __len__(self) -> int:
            return shape.vocab_size

    words = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
    ids = {"unk_id": UNKNOWN, "pad_id": PAD, "bos_id": BEGIN, "eos_id": END}
    vocabulary = Words([], SimpleNamespace(**words, **ids, lang_tags=[]))
    side = {
        "type": "transformer",
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "hidden_size": shape.d_model,
        "ff_size": shape.d_ff,
        "dropout": shapes.DROPOUT,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": shape.d_model, "scale": True, "dropout": shapes.DROPOUT},
    }
    model = build_model(
        {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}, vocabulary, vocabulary
    )
    model.loss_function = ("crossentropy", shapes.LABEL_SMOOTHING)
    for layer in model.encoder.layers:
        layer.src_src_att.dropout.p = layer.feed_forward.pwff_layer[2].p = 0.0
    for layer in model.decoder.layers:
        layer.trg_trg_att.dropout.p = layer.src_trg_att.dropout.p = layer.feed_forward.pwff_layer[2].p = 0.0
    return model
