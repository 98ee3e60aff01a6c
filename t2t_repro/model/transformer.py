"""The Transformer (section 3): encoder, decoder, and one matrix for both embeddings and the softmax.

Shapes: B batch, L target length, M source length, N positions of all sentences (B L, B M, or B W), D d_model, H heads,
V vocabulary, W beam width, T steps decoded.

    model = Transformer(vocab_size=37_000)                                   # the paper's base model
    logits_BLV = model({"inputs": source_BM, "targets": target_BL}, training=True)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from t2t_repro.config import HParams
from t2t_repro.model.attention import MultiHeadAttention, attention, mask_bias, moved_as_integers
from t2t_repro.model.layers import AddNorm, Dropout, FeedForward, Layer, linear, narrow_map, sinusoids

PAD = 0


class EncoderLayer(Layer):
    """Self-attention, then a feed-forward network, each inside `AddNorm` (section 3.1)."""

    def __init__(self, hparams: HParams, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.self_attention = _multi_head_attention(hparams, f"{site}/self_attention", dtype)
        self.self_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/self_attention", dtype=dtype)
        self.feed_forward = FeedForward(hparams.d_model, hparams.d_ff, dtype=dtype)
        self.feed_forward_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/feed_forward", dtype=dtype)

    def call(self, x_ND: Any, bias_BHMM: Any, *, length: Any, seed: Any = None) -> Any:
        attended_ND = self.self_attention(x_ND, bias_BHLM=bias_BHMM, length=length, seed=seed)
        x_ND = self.self_attention_norm(x_ND, attended_ND, seed=seed)
        return self.feed_forward_norm(x_ND, self.feed_forward(x_ND), seed=seed)


class DecoderLayer(Layer):
    """Masked self-attention, attention to the encoder's output, a feed-forward network, each inside `AddNorm`."""

    def __init__(self, hparams: HParams, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.self_attention = _multi_head_attention(hparams, f"{site}/self_attention", dtype)
        self.self_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/self_attention", dtype=dtype)
        self.memory_attention = _multi_head_attention(hparams, f"{site}/memory_attention", dtype)
        self.memory_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/memory_attention", dtype=dtype)
        self.feed_forward = FeedForward(hparams.d_model, hparams.d_ff, dtype=dtype)
        self.feed_forward_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/feed_forward", dtype=dtype)

    def call(
        self,
        x_ND: Any,
        memory_ND: Any,
        causal_bias: Any,
        memory_bias: Any,
        *,
        length: Any,
        memory_length: Any,
        seed: Any = None,
    ) -> Any:
        attended_ND = self.self_attention(x_ND, bias_BHLM=causal_bias, length=length, seed=seed)
        x_ND = self.self_attention_norm(x_ND, attended_ND, seed=seed)
        attended_ND = self.memory_attention(
            x_ND, memory_ND, memory_bias, length=length, memory_length=memory_length, seed=seed
        )
        x_ND = self.memory_attention_norm(x_ND, attended_ND, seed=seed)
        return self.feed_forward_norm(x_ND, self.feed_forward(x_ND), seed=seed)

    def step_maps(self, linear_map: MakeMap) -> StepMaps:
        own, other, feed_forward = self.self_attention, self.memory_attention, self.feed_forward
        return StepMaps(
            own_qkv=linear_map(own.w_qkv(), result=self.compute_dtype),
            own_o=linear_map(own.w_o),
            memory_q=linear_map(other.w_q, result=self.compute_dtype),
            memory_o=linear_map(other.w_o),
            inner=linear_map(feed_forward.w_1, feed_forward.b_1),
            outer=linear_map(feed_forward.w_2, feed_forward.b_2),
        )

    def step(
        self,
        x_ND: Any,
        width: Any,
        maps: StepMaps,
        cache: Cache,
        memory: KeysValues,
        beam_bias: Any,
        memory_bias: Any,
    ) -> tuple[Any, Cache]:
        """`call` for the newest position of W beams, N = B W; `cache` holds the keys and values of all positions
        before."""
        swap = moved_as_integers
        queries_BHWK, new_keys, new_values = self.self_attention.split_all_three(maps.own_qkv(x_ND), width, swap)
        keys = ops.concatenate([cache[0], new_keys], axis=2)
        values = ops.concatenate([cache[1], new_values], axis=2)
        heads_BHWE, _ = attention(queries_BHWK, keys, values, beam_bias)
        attended_ND = maps.own_o(self.self_attention.join_heads(heads_BHWE, swap))
        x_ND = ops.cast(x_ND, attended_ND.dtype)  # from the first layer on it is what the maps give
        x_ND = self.self_attention_norm(x_ND, attended_ND)
        queries_BHWK = self.memory_attention.split_heads(maps.memory_q(x_ND), width, swap)
        heads_BHWE, _ = attention(queries_BHWK, *memory, memory_bias)
        attended_ND = maps.memory_o(self.memory_attention.join_heads(heads_BHWE, swap))
        x_ND = self.memory_attention_norm(x_ND, attended_ND)
        return self.feed_forward_norm(x_ND, maps.outer(ops.relu(maps.inner(x_ND)))), (keys, values)


Map = Callable[[Any], Any]  # x [N, I] to x W + b [N, O]
MakeMap = Callable[..., Map]  # from W [I, O] and b [O], if any, float32; `result` is a dtype, if not its own


class StepMaps(NamedTuple):
    """The linear maps of a `DecoderLayer`, those in one that have the same input."""

    own_qkv: Map
    own_o: Map
    memory_q: Map
    memory_o: Map
    inner: Map  # of the feed-forward network
    outer: Map


KeysValues = tuple[Any, Any]  # [B, H, M, K] and [B, H, M, E]
Cache = tuple[Any, Any]  # [B, H, T W, K] and [B, H, T W, E]: what each step of each beam has computed


class Transformer(keras.Model):
    """The model of "Attention Is All You Need". Token ids are int32, 0 is padding.

    `hparams` gives the sizes; without them it is the base model. `dtype` is a Keras policy: "float32", or
    "mixed_bfloat16" or "mixed_float16" for products in that with weights, softmax and normalisation statistics in
    float32.
    """

    def __init__(self, vocab_size: int, hparams: HParams | dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        if isinstance(hparams, dict):
            hparams = HParams(**hparams)
        self.hparams = h = hparams or HParams(name="base", description="")
        self.vocab_size = vocab_size
        self.embedding = self.add_weight(
            shape=(vocab_size, h.d_model),
            initializer=keras.initializers.RandomNormal(stddev=h.d_model**-0.5),
            name="embedding",
            autocast=False,
        )
        if h.positions == "learned":
            self.source_positions = self._position_table("source_positions")
            self.target_positions = self._position_table("target_positions")
        dtype = self.dtype_policy
        self.source_dropout = Dropout(h.dropout, "encoder/embedding", dtype=dtype)
        self.target_dropout = Dropout(h.dropout, "decoder/embedding", dtype=dtype)
        # tuples: tf.train.Checkpoint silently leaves out layers that are kept in a list
        self.encoder_layers = tuple(EncoderLayer(h, f"encoder/{n}", dtype=dtype) for n in range(h.num_layers))
        self.decoder_layers = tuple(DecoderLayer(h, f"decoder/{n}", dtype=dtype) for n in range(h.num_layers))
        self.seed_generator = keras.random.SeedGenerator()
        self.built = True  # all sizes are known, so all weights are made

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"vocab_size": self.vocab_size, "hparams": self.hparams.to_dict()}

    def call(self, inputs: dict[str, Any], training: bool = False, seed: Any = None) -> Any:
        """Logits [B, L, V], float32, of each target token given those before it and the source.

        `inputs` holds "inputs" [B, M] and "targets" [B, L]; the targets are shifted right here. In training, dropout is
        drawn from `seed` ([2] int32), or from the model's own generator without one.
        """
        if training and seed is None:
            seed = ops.cast(ops.bitwise_and(self.seed_generator.next(), 0x7FFFFFFF), "int32")
        source_BM = inputs["inputs"]
        memory_BMD = self.encode(source_BM, seed if training else None)
        states_BLD = self.decode(inputs["targets"], memory_BMD, source_BM, seed if training else None)
        return self.logits(states_BLD)

    def encode(self, source_BM: Any, seed: Any = None) -> Any:
        """The encoder (section 3.1): [B, M, D]."""
        length, bias_BHMM = ops.shape(source_BM)[1], self.source_bias(source_BM)
        x_ND = self.source_dropout(self._rows(self._embed(source_BM, 0, "source")), seed=seed)
        for layer in self.encoder_layers:
            x_ND = layer(x_ND, bias_BHMM, length=length, seed=seed)
        return ops.reshape(x_ND, (-1, length, self.hparams.d_model))

    def decode(self, target_BL: Any, memory_BMD: Any, source_BM: Any, seed: Any = None) -> Any:
        """The decoder over whole targets, shifted right by one (section 3.1): its last layer's output [B, L, D]."""
        shifted_BL = ops.pad(target_BL, [[0, 0], [1, 0]], constant_values=PAD)[:, :-1]
        lengths = {"length": ops.shape(target_BL)[1], "memory_length": ops.shape(source_BM)[1]}
        x_ND = self.target_dropout(self._rows(self._embed(shifted_BL, 0, "target")), seed=seed)
        memory_ND = self._rows(memory_BMD)
        positions = ops.arange(lengths["length"])
        causal_bias = mask_bias(ops.expand_dims(positions, 1) >= ops.expand_dims(positions, 0))
        memory_bias = self.source_bias(source_BM)
        for layer in self.decoder_layers:
            x_ND = layer(x_ND, memory_ND, causal_bias, memory_bias, **lengths, seed=seed)
        return ops.reshape(x_ND, (-1, lengths["length"], self.hparams.d_model))

    def step_maps(self, linear_map: MakeMap | None = None) -> tuple[Map, tuple[StepMaps, ...]]:
        """What `step` multiplies by, to be made once for many steps: the transposed embedding (a product with what is
        transposed on the way takes up to three times as long on a CPU, in float32), and each decoder layer's matrices.

        Without `linear_map` products are in the compute dtype.
        """
        make = linear_map or functools.partial(narrow_map, dtype=self.compute_dtype)
        project = make(ops.transpose(self.embedding), result="float32")
        return project, tuple(layer.step_maps(make) for layer in self.decoder_layers)

    def step(
        self,
        token_BW: Any,
        position: Any,
        maps: tuple[Map, tuple[StepMaps, ...]],
        caches: tuple[Cache, ...],
        memories: tuple[KeysValues, ...],
        beam_bias: Any,
        memory_bias: Any,
    ) -> tuple[Any, tuple[Cache, ...]]:
        """`call` for one more position of W beams a sentence: logits [B, W, V], float32, and the grown caches.

        The beams of a sentence share one set of keys and values: W new ones a step, [B, H, T W, K] after T steps, never
        re-ordered. `beam_bias` [B, 1, W, (T + 1) W] says which of them lie on each beam's own path.
        """
        project, layer_maps = maps
        width = ops.shape(token_BW)[1]
        x_ND = self._rows(self._embed(token_BW, position, "target", beams=True))
        grown = []
        for layer, of_layer, cache, memory in zip(self.decoder_layers, layer_maps, caches, memories, strict=True):
            x_ND, cache = layer.step(x_ND, width, of_layer, cache, memory, beam_bias, memory_bias)
            grown.append(cache)
        return ops.reshape(project(x_ND), (-1, width, self.vocab_size)), tuple(grown)

    def memory_keys_values(self, memory_BMD: Any) -> tuple[KeysValues, ...]:
        """Keys and values of the encoder's output for every decoder layer: computed once a sentence."""
        memory_ND, length = self._rows(memory_BMD), ops.shape(memory_BMD)[1]
        return tuple(layer.memory_attention.keys_values(memory_ND, length) for layer in self.decoder_layers)

    def source_bias(self, source_BM: Any) -> Any:
        """Masks the padding of the source: [B, 1, 1, M]."""
        return mask_bias(source_BM != PAD)[:, None, None, :]

    def logits(self, states: Any) -> Any:
        """States [..., D] times the transposed embedding matrix (section 3.4): [..., V], float32."""
        logits_NV = ops.cast(linear(self._rows(states), ops.transpose(self.embedding)), "float32")
        return ops.reshape(logits_NV, (*ops.shape(states)[:-1], self.vocab_size))

    def _rows(self, x: Any) -> Any:
        """[..., D] as [N, D]."""
        return ops.reshape(x, (-1, self.hparams.d_model))

    def _embed(self, tokens: Any, start: Any, side: str, beams: bool = False) -> Any:
        """Embeddings times sqrt(d_model), plus positions from `start` on (sections 3.4 and 3.5), in the compute dtype.

        With `beams` the second axis of `tokens` is beams, all at position `start`.
        """
        d_model = self.hparams.d_model
        length = 1 if beams else ops.shape(tokens)[1]
        if self.hparams.positions == "learned":
            table = self.source_positions if side == "source" else self.target_positions
            positions_LD = ops.take(table, ops.minimum(start + ops.arange(length), self.hparams.max_positions - 1), 0)
        else:
            positions_LD = sinusoids(start, length, d_model)
        embedded = ops.take(self.embedding, tokens, axis=0) * math.sqrt(d_model)
        return ops.cast(embedded + positions_LD, self.compute_dtype)

    def _position_table(self, name: str) -> Any:
        shape = (self.hparams.max_positions, self.hparams.d_model)
        return self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02), name=name, autocast=False
        )


def _multi_head_attention(hparams: HParams, site: str, dtype: Any) -> MultiHeadAttention:
    sizes = (hparams.d_model, hparams.num_heads, hparams.d_k, hparams.d_v)
    return MultiHeadAttention(*sizes, attention_dropout=hparams.attention_dropout, site=site, dtype=dtype)
