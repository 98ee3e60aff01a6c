"""Export to Hugging Face: the same model as a `MarianMTModel` of transformers, with its tokenizer and a model card.

Shapes: D d_model, H heads, G heads of Marian, K d_k or d_v, P Marian's width of a head, F d_ff, V vocabulary.

Marian is the paper's model with another spelling. All differences are expressed by weights, exactly:

- Its position encodings are all sines and then all cosines, so the D coordinates between the sub-layers (the *stream*)
  are reordered: even ones first.
- Its layer normalization adds 1e-5 to the variance, this one 1e-6, which makes logits differ by up to 1e-4. A stream
  that is sqrt(10) times as large has the same normalization with 1e-5. What writes to the stream is multiplied by that
  factor, and what reads from it is divided by it. Not scaled are the decoder's output and the sum of embedding and
  position, because Marian shares the embedding with the softmax and computes the positions.
- Its heads have the width D / G, so narrower ones are padded with zeros, and missing heads are zero. Queries contain
  the ratio of the two factors of scores, sqrt(P / d_k).
- Its attention has biases, which are zero.
"""

from __future__ import annotations

import math
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from t2t_repro.exporting import engines, huggingface_card, huggingface_tokenizer
from t2t_repro.io import write_json
from t2t_repro.text.token_ids import EOS, PAD

if TYPE_CHECKING:
    from t2t_repro.config import HParams
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.model.attention import MultiHeadAttention
    from t2t_repro.model.layers import AddNorm, FeedForward
    from t2t_repro.model.transformer import DecoderLayer, EncoderLayer, Transformer

EPSILON = 1e-5  # of Marian's layer normalization: PyTorch's default, which its configuration cannot change
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh"}  # whose name in transformers is another one

Tensors = dict[str, np.ndarray]


def must_fit(model: Transformer) -> None:
    """Raises ValueError, with the reason, if Marian cannot express the model: its hyperparameters or its code."""
    h = model.hparams
    if h.positions != "sinusoid":
        raise ValueError(f"Marian's positions are sinusoids. Received: positions={h.positions!r}; {engines.ELSEWHERE}")
    heads = marian_heads(h)
    if max(h.d_k, h.d_v) > h.d_model // heads:
        raise ValueError(
            f"a head of Marian is at most d_model / heads = {h.d_model} / {heads} = {h.d_model // heads} wide. "
            f"Received: d_k={h.d_k}, d_v={h.d_v}; {engines.ELSEWHERE}"
        )
    engines.activation(model, "Marian")
    engines.must_be_the_papers(model, "Marian")


def marian_heads(hparams: HParams) -> int:
    """Returns the number of heads in Marian, which must divide d_model: at least that of the model.

    Returns d_model if no smaller number divides it. If the model has more heads than that, no head fits.
    """
    divisors = (heads for heads in range(hparams.num_heads, hparams.d_model) if hparams.d_model % heads == 0)
    return next(divisors, max(hparams.d_model, hparams.num_heads))


def write(
    model: Transformer, vocabulary: Vocabulary, directory: str, card: dict[str, Any] | None = None, note: str = ""
) -> None:
    """Writes `model` to the new folder `directory`: weights, configurations, tokenizer and README.md, a model card.

    `card` is the content of `model_card.json`, which README.md summarizes; `note` is a section for its end. Raises
    ValueError if Marian cannot express the model, or safetensors is not installed.
    """
    engines.FORMATS["huggingface"].must_be_installed()
    must_fit(model)
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "model.safetensors")
    try:
        # the metadata is what transformers 4 requires of a file of PyTorch's layout
        save_file(tensors(model), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from None
    config = os.path.join(directory, "config.json")
    write_json(config, _config(model))
    shutil.copymode(config, path)  # safetensors lets nobody else read its files
    write_json(os.path.join(directory, "generation_config.json"), _generation(model.hparams))
    huggingface_tokenizer.write(vocabulary, directory, model.hparams.max_positions)
    huggingface_card.write(model.hparams, directory, card or {}, note)


def tensors(model: Transformer) -> Tensors:
    """Returns Marian's weights by their names: float32, a matrix as [outputs, inputs]."""
    mapping = _Mapping(model)
    embedding_VD = _numpy(model.embedding)[:, mapping.order]
    found = _under("model.shared", {"weight": embedding_VD})
    found["final_logits_bias"] = np.zeros((1, len(embedding_VD)), np.float32)
    for number, encoder_layer in enumerate(model.encoder_layers):
        found |= _under(f"model.encoder.layers.{number}", mapping.encoder_layer(encoder_layer, number == 0))
    last = len(model.decoder_layers) - 1
    for number, layer in enumerate(model.decoder_layers):
        found |= _under(f"model.decoder.layers.{number}", mapping.decoder_layer(layer, number == 0, number == last))
    return found


class _Mapping:
    """The conversion of layers. Products are float64 before they become float32, so that they are rounded once."""

    def __init__(self, model: Transformer):
        from t2t_repro.model.kernels import EPSILON as OURS

        self.heads = marian_heads(model.hparams)
        self.width = model.hparams.d_model // self.heads
        self.scale = math.sqrt(EPSILON / OURS)
        self.order = np.r_[0 : model.hparams.d_model : 2, 1 : model.hparams.d_model : 2]

    def encoder_layer(self, layer: EncoderLayer, is_first: bool) -> Tensors:
        own = 1.0 if is_first else self.scale
        return {
            **_under("self_attn", self._attention(layer.self_attention, own, own)),
            **_under("self_attn_layer_norm", self._norm(layer.self_attention_norm)),
            **self._feed_forward(layer.feed_forward),
            **_under("final_layer_norm", self._norm(layer.feed_forward_norm)),
        }

    def decoder_layer(self, layer: DecoderLayer, is_first: bool, is_last: bool) -> Tensors:
        own = 1.0 if is_first else self.scale
        return {
            **_under("self_attn", self._attention(layer.self_attention, own, own)),
            **_under("self_attn_layer_norm", self._norm(layer.self_attention_norm)),
            **_under("encoder_attn", self._attention(layer.memory_attention, self.scale, self.scale)),
            **_under("encoder_attn_layer_norm", self._norm(layer.memory_attention_norm)),
            **self._feed_forward(layer.feed_forward),
            **_under("final_layer_norm", self._norm(layer.feed_forward_norm, 1.0 if is_last else self.scale)),
        }

    def _attention(self, ours: MultiHeadAttention, stream: float, memory: float) -> Tensors:
        """Returns an attention that reads and writes a stream that is `stream` times as large, and such a memory."""
        found = {
            "q_proj": self._heads(ours, _numpy(ours.w_q)).T * (math.sqrt(self.width / ours.d_k) / stream),
            "k_proj": self._heads(ours, _numpy(ours.w_k)).T / memory,
            "v_proj": self._heads(ours, _numpy(ours.w_v)).T / memory,
            "out_proj": self._heads(ours, _numpy(ours.w_o).T) * stream,
        }
        both = [_under(name, {"weight": weight, "bias": np.zeros(len(weight))}) for name, weight in found.items()]
        return {name: value for each in both for name, value in each.items()}

    def _heads(self, attention: MultiHeadAttention, weight: np.ndarray) -> np.ndarray:
        """Returns a matrix [D, H K] as [D, G P], padded with zeros."""
        weight_DHK = weight[self.order].reshape(len(weight), attention.num_heads, -1)
        missing_heads, missing_width = self.heads - attention.num_heads, self.width - weight_DHK.shape[2]
        return np.pad(weight_DHK, ((0, 0), (0, missing_heads), (0, missing_width))).reshape(len(weight), -1)

    def _feed_forward(self, ours: FeedForward) -> Tensors:
        return {
            "fc1.weight": _numpy(ours.w_1).T[:, self.order] / self.scale,
            "fc1.bias": _numpy(ours.b_1),
            "fc2.weight": _numpy(ours.w_2).T[self.order] * self.scale,
            "fc2.bias": _numpy(ours.b_2)[self.order] * self.scale,
        }

    def _norm(self, ours: AddNorm, scale: float | None = None) -> Tensors:
        both = {"weight": ours.norm.gain, "bias": ours.norm.bias}
        return {name: _numpy(value)[self.order] * (scale or self.scale) for name, value in both.items()}


def _under(prefix: str, found: Tensors) -> Tensors:
    """Returns the tensors with `prefix` before their names, as safetensors writes them: float32, contiguous."""
    return {f"{prefix}.{name}": np.ascontiguousarray(value, np.float32) for name, value in found.items()}


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(variable.value.numpy(), np.float64)


def _config(model: Transformer) -> dict[str, Any]:
    """Returns config.json. What equals MarianConfig's default is written if it is a size or a token."""
    h = model.hparams
    activation = engines.activation(model, "Marian")
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", h.encoder_depth), ("decoder", h.decoder_depth))
        for name, value in (("layers", layers), ("attention_heads", marian_heads(h)), ("ffn_dim", h.d_ff))
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "d_model": h.d_model,
        **sides,
        "activation_function": _ACTIVATIONS.get(activation, activation),
        "max_position_embeddings": h.max_positions + h.extra_length,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "dropout": h.dropout,
        "attention_dropout": h.attention_dropout,
        "activation_dropout": 0.0,
        "init_std": h.d_model**-0.5,
        **_tokens(),
    }


def _tokens() -> dict[str, int]:
    """Returns the tokens of both configurations. The decoder starts with padding and ends at the maximum length."""
    return {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": EOS}


def _generation(h: HParams) -> dict[str, Any]:
    """Returns generation_config.json: beam search that never writes padding, as that of this project."""
    config = {**_tokens(), "bad_words_ids": [[PAD]], "max_length": h.max_positions + h.extra_length}
    if h.beam_size > 1:  # transformers rejects a length penalty without beams
        config |= {"num_beams": h.beam_size, "length_penalty": h.alpha, "early_stopping": "never"}
    return config
