"""Our weights as a Marian model, post-norm.

Marian's Transformer differs from the paper's in three points. Its sinusoids are tensor2tensor's (halves, other rates),
its attention has biases, which are zero here, and the decoder's first input is zero. So its translations are its own;
the work is the same.

The softmax has a copy of the embeddings, because Marian's converter leaves embeddings in float32: with one matrix for
both, decoding 32 sentences took 1.3 times the processor time in int8, and 1.08 times in float32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.decode_workload import EOS
from t2t_repro.model.transformer import Transformer

MODEL, VOCABULARY = "model.npz", "vocabulary.txt"
NEVER = -99.0  # in logits, of which none here is beyond 20: translations end at their maximum length


def write(model: Transformer, words: Sequence[str], folder: str) -> None:
    """Writes the model and the word of each id to `folder`."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, VOCABULARY), "w", encoding="utf-8") as file:
        file.writelines(f"{word}\n" for word in words)
    arrays = {name: np.atleast_2d(np.ascontiguousarray(value, np.float32)) for name, value in _weights(model)}
    arrays["special:model.yml"] = np.frombuffer(json.dumps(_options(model)).encode() + b"\0", np.int8)
    np.savez(os.path.join(folder, MODEL), **arrays)  # type: ignore[arg-type]  # arrays by name


def _options(model: Transformer) -> dict[str, Any]:
    h = model.hparams
    return {
        "type": "transformer",
        "dim-vocabs": [model.vocab_size] * 2,
        "dim-emb": h.d_model,
        "enc-depth": h.encoder_depth,
        "dec-depth": h.decoder_depth,
        "tied-embeddings-src": True,
        "transformer-heads": h.num_heads,
        "transformer-dim-ffn": h.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",  # dropout, add, normalize
        "transformer-postprocess-emb": "d",
    }


def _weights(model: Transformer) -> Iterator[tuple[str, Any]]:
    yield "Wemb", model.embedding
    yield "decoder_ff_logit_out_W", np.transpose(model.embedding)
    yield "decoder_ff_logit_out_b", np.where(np.arange(model.vocab_size) == EOS, NEVER, 0.0)
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for number, layer in enumerate(layers, 1):
            start = f"{side}_l{number}"
            yield from _attention(f"{start}_self", layer.self_attention, layer.self_attention_norm)
            if side == "decoder":
                yield from _attention(f"{start}_context", layer.memory_attention, layer.memory_attention_norm)
            ours = layer.feed_forward
            for name, weight in zip(("W1", "b1", "W2", "b2"), (ours.w_1, ours.b_1, ours.w_2, ours.b_2), strict=True):
                yield f"{start}_ffn_{name}", weight
            yield from _norm(f"{start}_ffn_ffn", layer.feed_forward_norm)


def _attention(start: str, ours: Any, norm: Any) -> Iterator[tuple[str, Any]]:
    for letter, weight in zip("qkvo", (ours.w_q, ours.w_k, ours.w_v, ours.w_o), strict=True):
        yield f"{start}_W{letter}", weight
        yield f"{start}_b{letter}", np.zeros(weight.shape[1])
    yield from _norm(f"{start}_Wo", norm)


def _norm(start: str, ours: Any) -> Iterator[tuple[str, Any]]:
    yield f"{start}_ln_scale", ours.norm.gain
    yield f"{start}_ln_bias", ours.norm.bias
