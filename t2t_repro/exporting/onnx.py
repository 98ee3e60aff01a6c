"""Export to ONNX: an encoder, one step of the decoder with caches, and a program that translates with both.

Shapes: B batch, M source length, W beam width, P cached entries, N = P + W, T rows: all positions of a batch, D
d_model, H heads, K d_k, E d_v, V vocabulary, C the most likely tokens.

`encoder.onnx` computes the keys and values [B, H, M, K] and [B, H, M, E] that each decoder layer attends to from
`source` [B, M]: ids, padded with 0.

`decoder.onnx` computes one position of W beams per sentence. The beams of a sentence share a cache of keys and values,
to which each step appends W. Reordering the beams therefore copies nothing: `visible` [B, W, N] decides which entries
belong to the history of each beam. The inputs and outputs are in `_decoder`.

1 / sqrt(d_k) is a factor of W_Q. W_Q, W_K and W_V are joined. The embedding is stored once, for both graphs and the
softmax.
"""

from __future__ import annotations

import math
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from t2t_repro.exporting import engines
from t2t_repro.exporting.onnx_graph import Graph, WeightsFile, activate
from t2t_repro.text.token_ids import PAD

if TYPE_CHECKING:
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.model.attention import MultiHeadAttention
    from t2t_repro.model.layers import AddNorm, FeedForward
    from t2t_repro.model.transformer import Transformer

VOCABULARY = "vocabulary.model"
ENCODER, DECODER, WEIGHTS, PROGRAM = "encoder.onnx", "decoder.onnx", "weights.bin", "translate.py"

_README = """This folder contains a model in ONNX, its tokenizer {vocabulary} (a sentencepiece model), and
{program}, which translates with them. It needs neither TensorFlow nor t2t_repro:

    pip install onnxruntime sentencepiece numpy
    python FOLDER/{program} < text > translations
    python FOLDER/{program} --help

In Python, in this folder:

    from translate import Translator

    print(Translator(".").translate(["a text", "another"]))

The beam search is that of the run. Unless you choose others, the beam size is {beam_size} and alpha is {alpha}, as in
the run. A beam size of 1 is greedy search. A source has at most {max_positions:,} tokens, and a translation
{extra_length:,} more than its source.

To write another program, start from {program}: {encoder} computes what {decoder} reads of the source, and
{decoder} computes one step of the search. Keep the files together, because both graphs read {weights}.
"""


def must_fit(model: Transformer) -> None:
    """Raises ValueError, with the reason, if the code of the model was changed to one that is not exported."""
    engines.activation(model, "the ONNX export")
    engines.must_be_the_papers(model, "the ONNX export")


def write(
    model: Transformer, vocabulary: Vocabulary, directory: str, quantization: str = "none", note: str = ""
) -> None:
    """Writes `model` to the new folder `directory`: graphs, weights, tokenizer, program, and a README on their use.

    `quantization` is "none" (float32) or "int8": matrices and embeddings have 8 bits and a scale per column or token,
    and their products multiply integers. `note` is appended to the README. Raises ValueError if onnx is not installed,
    or the model cannot be expressed.
    """
    engines.FORMATS["onnx"].must_be_installed()
    must_fit(model)
    from t2t_repro.exporting import onnx_translate

    os.makedirs(directory, exist_ok=True)
    h = model.hparams
    settings = {name: getattr(h, name) for name in ("beam_size", "alpha", "extra_length", "max_positions")}
    metadata = {name: str(value) for name, value in settings.items()}
    with WeightsFile(os.path.join(directory, WEIGHTS), WEIGHTS) as weights:
        for name, build in ((ENCODER, _encoder), (DECODER, _decoder)):
            graph = Graph(name.partition(".")[0], weights, int8=quantization == "int8")
            build(graph, model)
            with open(os.path.join(directory, name), "wb") as file:
                file.write(graph.model(metadata).SerializeToString())
    shutil.copyfile(vocabulary.path, os.path.join(directory, VOCABULARY))
    shutil.copyfile(onnx_translate.__file__, os.path.join(directory, PROGRAM))
    files = {"vocabulary": VOCABULARY, "program": PROGRAM, "weights": WEIGHTS, "encoder": ENCODER, "decoder": DECODER}
    with open(os.path.join(directory, "README.txt"), "w", encoding="utf-8") as file:
        file.write(_README.format(**files, **settings) + note)


def _encoder(graph: Graph, model: Transformer) -> None:
    h = model.hparams
    source = graph.input("source", np.int64, ["batch", "source_length"])
    side = _Side(graph, model, source)
    visible_B11M = _not_padding(graph, source)
    length = graph.op("Gather", side.shape_BL, graph.constant([1]))
    table = graph.weight(_table_name(model, "source"), engines.positions(model, "source"))
    positions_MD = graph.op("Slice", table, graph.constant([0]), length)
    x_TD = side.embed(source, positions_MD)
    for number, layer in enumerate(model.encoder_layers):
        name = f"encoder.{number}"
        attention = layer.self_attention
        q, k, v = side.queries_keys_values(x_TD, f"{name}.self_attention", attention)
        y_TD = side.attend(q, k, v, visible_B11M, f"{name}.self_attention", attention)
        x_TD = side.add_norm(x_TD, y_TD, f"{name}.self_attention_norm", layer.self_attention_norm)
        x_TD = side.feed_forward(x_TD, name, layer.feed_forward, layer.feed_forward_norm)
    for number, decoder_layer in enumerate(model.decoder_layers):
        attention = decoder_layer.memory_attention
        name = f"decoder.{number}.memory_attention.keys_values"
        joined = np.concatenate([_numpy(attention.w_k), _numpy(attention.w_v)], axis=1)
        both = side.parts(graph.linear(x_TD, name, joined), [h.num_heads * h.d_k, h.num_heads * h.d_v])
        for each, x_TO, size in zip(("keys", "values"), both, (h.d_k, h.d_v), strict=True):
            result = side.split_heads(x_TO, size, f"memory_{each}_{number}")
            graph.output(result, np.float32, ["batch", h.num_heads, "source_length", size])


def _decoder(graph: Graph, model: Transformer) -> None:
    """Adds the inputs, the outputs and the operations of one decoding step.

    Inputs: `source` [B, M] and what the encoder returns for it; `tokens` [B, W], the latest of each beam (0 in the
    first step); `position`, a scalar, the number of steps so far; `visible` [B, W, N] boolean; `count`, [1], C; and
    per layer `keys_n` [B, H, P, K] and `values_n` [B, H, P, E].

    Outputs: `log_probabilities` [B, W, V]; the C highest of them, `likeliest_log_p`, and their ids, `likeliest`,
    [B, W, C], highest first; and per layer `new_keys_n` [B, H, N, K] and `new_values_n` [B, H, N, E].
    """
    h = model.hparams
    beams: list[str | int] = ["batch", "beam"]
    source = graph.input("source", np.int64, ["batch", "source_length"])
    tokens = graph.input("tokens", np.int64, beams)
    position = graph.input("position", np.int64, [])
    visible = graph.input("visible", np.bool_, [*beams, "visible"])
    count = graph.input("count", np.int64, [1])
    side = _Side(graph, model, tokens)
    visible_B1WN = graph.op("Unsqueeze", visible, graph.constant([1]))
    visible_B11M = _not_padding(graph, source)
    table = graph.weight(_table_name(model, "target"), engines.positions(model, "target"))
    x_TD = side.embed(tokens, graph.op("Gather", table, position))
    for number, layer in enumerate(model.decoder_layers):
        name = f"decoder.{number}"
        attention, memory = layer.self_attention, layer.memory_attention
        q, k, v = side.queries_keys_values(x_TD, f"{name}.self_attention", attention)
        cached_k = graph.input(f"keys_{number}", np.float32, ["batch", h.num_heads, "cached", h.d_k])
        cached_v = graph.input(f"values_{number}", np.float32, ["batch", h.num_heads, "cached", h.d_v])
        k = graph.op("Concat", cached_k, k, axis=2, result=f"new_keys_{number}")
        v = graph.op("Concat", cached_v, v, axis=2, result=f"new_values_{number}")
        y_TD = side.attend(q, k, v, visible_B1WN, f"{name}.self_attention", attention)
        x_TD = side.add_norm(x_TD, y_TD, f"{name}.self_attention_norm", layer.self_attention_norm)

        q = side.split_heads(graph.linear(x_TD, f"{name}.memory_attention.queries", _scaled_w_q(memory)), h.d_k)
        k = graph.input(f"memory_keys_{number}", np.float32, ["batch", h.num_heads, "source_length", h.d_k])
        v = graph.input(f"memory_values_{number}", np.float32, ["batch", h.num_heads, "source_length", h.d_v])
        y_TD = side.attend(q, k, v, visible_B11M, f"{name}.memory_attention", memory)
        x_TD = side.add_norm(x_TD, y_TD, f"{name}.memory_attention_norm", layer.memory_attention_norm)
        x_TD = side.feed_forward(x_TD, name, layer.feed_forward, layer.feed_forward_norm)
    logits_TV = graph.linear(x_TD, "embedding", _numpy(model.embedding).T)
    shape_BWV = graph.op("Concat", side.shape_BL, graph.constant([model.vocab_size]), axis=0)
    log_p_TV = graph.op("LogSoftmax", logits_TV, axis=1)
    log_p_BWV = graph.op("Reshape", log_p_TV, shape_BWV, result="log_probabilities")
    likeliest = ["likeliest_log_p", "likeliest"]
    graph.ops("TopK", log_p_BWV, count, results=likeliest, axis=2)
    graph.output(log_p_BWV, np.float32, [*beams, model.vocab_size])
    for each, dtype in zip(likeliest, (np.float32, np.int64), strict=True):
        graph.output(each, dtype, [*beams, "count"])
    for number in range(h.decoder_depth):
        for each, size in (("keys", h.d_k), ("values", h.d_v)):
            graph.output(f"new_{each}_{number}", np.float32, ["batch", h.num_heads, "visible", size])


class _Side:
    """The layers over the positions of `tokens_BL`, in rows: [T, D]."""

    def __init__(self, graph: Graph, model: Transformer, tokens_BL: str):
        self.graph, self.model = graph, model
        self.shape_BL = graph.op("Shape", tokens_BL)
        self._activation = engines.activation(model, "the ONNX export")
        heads = model.hparams.num_heads
        self._shapes = {
            size: graph.op("Concat", self.shape_BL, graph.constant([heads, size]), axis=0)
            for size in dict.fromkeys((model.hparams.d_k, model.hparams.d_v))
        }

    def embed(self, tokens_BL: str, positions: str) -> str:
        """Returns embeddings times sqrt(d_model), plus `positions`, [D] or [L, D]: [T, D]."""
        graph, d_model = self.graph, self.model.hparams.d_model
        tokens_T = graph.op("Reshape", tokens_BL, graph.constant([-1]))
        rows_TD = graph.columns(tokens_T, "embedding", _numpy(self.model.embedding).T)
        rows_TD = graph.op("Mul", rows_TD, graph.constant(math.sqrt(d_model), np.float32))
        shape_BLD = graph.op("Concat", self.shape_BL, graph.constant([d_model]), axis=0)
        x_BLD = graph.op("Add", graph.op("Reshape", rows_TD, shape_BLD), positions)
        return graph.op("Reshape", x_BLD, graph.constant([-1, d_model]))

    def queries_keys_values(self, x_TD: str, name: str, attention: MultiHeadAttention) -> list[str]:
        """Returns the three of self-attention, split into heads: [B, H, L, K], twice, and [B, H, L, E]."""
        h = self.model.hparams
        joined = [_scaled_w_q(attention), _numpy(attention.w_k), _numpy(attention.w_v)]
        x_TO = self.graph.linear(x_TD, f"{name}.queries_keys_values", np.concatenate(joined, axis=1))
        sizes = [h.d_k, h.d_k, h.d_v]
        parts = self.parts(x_TO, [h.num_heads * size for size in sizes])
        return [self.split_heads(part, size) for part, size in zip(parts, sizes, strict=True)]

    def parts(self, x_TO: str, sizes: list[int]) -> list[str]:
        return self.graph.ops("Split", x_TO, self.graph.constant(sizes), results=len(sizes), axis=1)

    def split_heads(self, x_TO: str, size: int, result: str = "") -> str:
        """Returns [T, H size] as [B, H, L, size]."""
        x_BLHO = self.graph.op("Reshape", x_TO, self._shapes[size])
        return self.graph.op("Transpose", x_BLHO, perm=[0, 2, 1, 3], result=result)

    def attend(
        self, q_BHLK: str, k_BHMK: str, v_BHME: str, visible: str, name: str, attention: MultiHeadAttention
    ) -> str:
        """Returns the attention of scaled queries, times W_O: [T, D]. `visible` broadcasts to [B, H, L, M]."""
        from t2t_repro.model.attention import MASKED

        graph = self.graph
        scores_BHLM = graph.op("MatMul", q_BHLK, graph.op("Transpose", k_BHMK, perm=[0, 1, 3, 2]))
        masked_BHLM = graph.op("Where", visible, scores_BHLM, graph.constant(MASKED, np.float32))
        heads_BHLE = graph.op("MatMul", graph.op("Softmax", masked_BHLM, axis=-1), v_BHME)
        heads_BLHE = graph.op("Transpose", heads_BHLE, perm=[0, 2, 1, 3])
        rows_TO = graph.op("Reshape", heads_BLHE, graph.constant([-1, attention.num_heads * attention.d_v]))
        return graph.linear(rows_TO, f"{name}.output", _numpy(attention.w_o))

    def feed_forward(self, x_TD: str, name: str, ours: FeedForward, norm: AddNorm) -> str:
        """Returns the feed-forward network in its residual connection and normalization."""
        hidden_TF = self.graph.linear(x_TD, f"{name}.feed_forward.1", _numpy(ours.w_1), _numpy(ours.b_1))
        active_TF = activate(self.graph, hidden_TF, self._activation)
        y_TD = self.graph.linear(active_TF, f"{name}.feed_forward.2", _numpy(ours.w_2), _numpy(ours.b_2))
        return self.add_norm(x_TD, y_TD, f"{name}.feed_forward_norm", norm)

    def add_norm(self, x_TD: str, y_TD: str, name: str, ours: AddNorm) -> str:
        from t2t_repro.model.kernels import EPSILON

        both = {"gain": ours.norm.gain, "bias": ours.norm.bias}
        weights = [
            self.graph.weight(f"{name}.{each}", _numpy(value).astype(np.float32)) for each, value in both.items()
        ]
        return self.graph.op("LayerNormalization", self.graph.op("Add", x_TD, y_TD), *weights, axis=-1, epsilon=EPSILON)


def _not_padding(graph: Graph, source: str) -> str:
    """Returns [B, 1, 1, M] booleans: true for tokens of the source."""
    visible_BM = graph.op("Not", graph.op("Equal", source, graph.constant(PAD)))
    return graph.op("Unsqueeze", visible_BM, graph.constant([1, 2]))


def _table_name(model: Transformer, side: str) -> str:
    """Returns the name of the position encodings. Sinusoids are those of both sides."""
    return "positions" if model.hparams.positions == "sinusoid" else f"{side}_positions"


def _scaled_w_q(attention: MultiHeadAttention) -> np.ndarray:
    return _numpy(attention.w_q) / math.sqrt(attention.d_k)


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(variable.value.numpy(), np.float64)
