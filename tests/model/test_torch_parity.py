"""The model against an independent implementation, PyTorch's `nn.Transformer`, with the same weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import random_ids, random_model

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.numeric

VOCAB = 50
SIZES = {"d_model": 64, "num_heads": 4, "d_k": 16, "d_v": 16, "d_ff": 96, "num_layers": 2}


def copy_attention(theirs, ours) -> None:
    w = {weight.name: torch.tensor(weight.numpy()) for weight in ours.weights}
    theirs.in_proj_weight.copy_(torch.cat([w["w_q"].T, w["w_k"].T, w["w_v"].T]))
    theirs.in_proj_bias.zero_()
    theirs.out_proj.weight.copy_(w["w_o"].T)
    theirs.out_proj.bias.zero_()


def copy_feed_forward(theirs, ours) -> None:
    w = {weight.name: torch.tensor(weight.numpy()) for weight in ours.weights}
    for number, linear in ((1, theirs.linear1), (2, theirs.linear2)):
        linear.weight.copy_(w[f"w_{number}"].T)
        linear.bias.copy_(w[f"b_{number}"])


def copy_norm(theirs, ours) -> None:
    gain, bias = (torch.tensor(weight.numpy()) for weight in ours.weights)
    theirs.weight.copy_(gain)
    theirs.bias.copy_(bias)


@torch.no_grad()
def in_torch(model):
    """Returns a post-norm `nn.Transformer` with the weights of `model`. Its attention has biases, which are zero
    here."""
    h = model.hparams
    sizes = (h.d_model, h.num_heads, h.num_layers, h.num_layers, h.d_ff)
    theirs = torch.nn.Transformer(*sizes, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=False)
    theirs.encoder.norm = theirs.decoder.norm = None  # the paper has no final norm
    for layer, ours in zip(theirs.encoder.layers, model.encoder_layers, strict=True):
        copy_attention(layer.self_attn, ours.self_attention)
        copy_norm(layer.norm1, ours.self_attention_norm)
        copy_feed_forward(layer, ours.feed_forward)
        copy_norm(layer.norm2, ours.feed_forward_norm)
    for layer, ours in zip(theirs.decoder.layers, model.decoder_layers, strict=True):
        copy_attention(layer.self_attn, ours.self_attention)
        copy_norm(layer.norm1, ours.self_attention_norm)
        copy_attention(layer.multihead_attn, ours.memory_attention)
        copy_norm(layer.norm2, ours.memory_attention_norm)
        copy_feed_forward(layer, ours.feed_forward)
        copy_norm(layer.norm3, ours.feed_forward_norm)
    return theirs


def embedded(table, ids):
    """Returns embeddings times sqrt(d_model), plus the sinusoids of section 3.5."""
    d_model = table.shape[1]
    angles = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
    angles = angles / 10_000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    positions = torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(-1, d_model)
    return table[ids] * math.sqrt(d_model) + positions.to(torch.float32)


@torch.no_grad()
def torch_logits(theirs, table, source, target):
    source, target = torch.tensor(source).long(), torch.tensor(target).long()
    shifted = torch.nn.functional.pad(target, (1, 0))[:, :-1]
    future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    states = theirs(
        embedded(table, source),
        embedded(table, shifted),
        tgt_mask=future,
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
    )
    return (states @ table.T).numpy()


@pytest.fixture(scope="module")
def both():
    """Returns the model, and PyTorch's with the same weights."""
    model = random_model(VOCAB, **SIZES)
    for weight in model.weights:  # with the scale of the initializer: logits of order 1
        if weight.name not in ("gain", "bias"):
            weight.assign(weight.numpy() / 0.3 * weight.shape[-1] ** -0.5)
    return model, in_torch(model)


@pytest.mark.parametrize(
    ("batch", "source_length", "target_length", "lengths"),
    [
        (1, 7, 5, [7]),
        (3, 9, 12, [9, 4, 1]),
        (4, 1, 1, [1, 1, 1, 1]),
        (2, 40, 30, [40, 13]),
    ],
)
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1:UserWarning")  # a source of one token
def test_logits_equal_those_of_pytorch(both, batch, source_length, target_length, lengths):
    model, theirs = both
    rng = np.random.default_rng(source_length)
    source, target = random_ids(rng, VOCAB, batch, source_length), random_ids(rng, VOCAB, batch, target_length)
    source[np.arange(source_length) >= np.array(lengths)[:, None]] = 0
    ours = model({"inputs": tf.constant(source), "targets": tf.constant(target)}).numpy()
    expected = torch_logits(theirs, torch.tensor(model.embedding.numpy()), source, target)
    assert ours.std() > 0.3
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
