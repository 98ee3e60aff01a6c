"""The Transformer (section 3): encoder, decoder, and one matrix for both embeddings and the softmax.

Shapes: B batch, L target length, M source length, D d_model, H heads, V vocabulary.

    model = Transformer(vocab_size=37_000)                                   # the paper's base model
    logits_BLV = model({"inputs": source_BM, "targets": target_BL}, training=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from t2t_repro.config import HParams, must_be_integer
from t2t_repro.model import kernels, random_masks
from t2t_repro.model.attention import Cache, MultiHeadAttention, mask_bias
from t2t_repro.model.layers import AddNorm, Dropout, Embedding, FeedForward, Layer, sinusoids
from t2t_repro.text.token_ids import PAD

if keras.config.backend() != "tensorflow":
    found = keras.config.backend()
    raise ImportError(f"expected Keras with TensorFlow. Received: {found!r}; set KERAS_BACKEND=tensorflow before")

DTYPE_POLICIES = "float32", "mixed_bfloat16", "mixed_float16"  # of Keras: weights are float32 in all of them


class EncoderLayer(Layer):
    """Self-attention and a feed-forward network, each in `AddNorm` (section 3.1)."""

    def __init__(self, hparams: HParams, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.self_attention = _multi_head_attention(hparams, f"{site}/self_attention", dtype)
        self.self_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/self_attention", dtype=dtype)
        self.feed_forward = FeedForward(
            hparams.d_model, hparams.d_ff, hparams.initializer_gain, dtype=dtype, name="feed_forward"
        )
        self.feed_forward_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/feed_forward", dtype=dtype)

    def call(self, x_BMD: Any, source_bias: Any, seed: Any = None) -> Any:
        def self_attention(x_BMD: Any) -> Any:
            return self.self_attention(x_BMD, x_BMD, source_bias, seed=seed)

        x_BMD = self.self_attention_norm(x_BMD, sublayer=self_attention, seed=seed)
        return self.feed_forward_norm(x_BMD, sublayer=self.feed_forward, seed=seed)


class DecoderLayer(Layer):
    """Masked self-attention, attention to the encoder's output, a feed-forward network: each in `AddNorm` (3.1)."""

    def __init__(self, hparams: HParams, site: str, **kwargs: Any):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.self_attention = _multi_head_attention(hparams, f"{site}/self_attention", dtype)
        self.self_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/self_attention", dtype=dtype)
        self.memory_attention = _multi_head_attention(hparams, f"{site}/memory_attention", dtype)
        self.memory_attention_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/memory_attention", dtype=dtype)
        self.feed_forward = FeedForward(
            hparams.d_model, hparams.d_ff, hparams.initializer_gain, dtype=dtype, name="feed_forward"
        )
        self.feed_forward_norm = AddNorm(hparams.d_model, hparams.dropout, f"{site}/feed_forward", dtype=dtype)

    def call(
        self,
        x_BLD: Any,
        memory_BMD: Any,
        causal_bias: Any,
        source_bias: Any,
        seed: Any = None,
        caches: tuple[Cache | None, Cache | None] = (None, None),
    ) -> Any:
        """Applies the layer. `caches` of both attentions are for `model.incremental` only."""

        def self_attention(x_BLD: Any) -> Any:
            return self.self_attention(x_BLD, x_BLD, causal_bias, seed=seed, cache=caches[0])

        def memory_attention(x_BLD: Any) -> Any:
            return self.memory_attention(x_BLD, memory_BMD, source_bias, seed=seed, cache=caches[1])

        x_BLD = self.self_attention_norm(x_BLD, sublayer=self_attention, seed=seed)
        x_BLD = self.memory_attention_norm(x_BLD, sublayer=memory_attention, seed=seed)
        return self.feed_forward_norm(x_BLD, sublayer=self.feed_forward, seed=seed)


CallLayer = Callable[..., Any]  # of a layer and its arguments


class AttentionWeights(NamedTuple):
    """The attention weights of each layer, float32."""

    encoder: tuple[Any, ...]  # per encoder layer: [B, H, M, M]
    memory: tuple[Any, ...]  # per decoder layer: [B, H, L, M], over the encoder's output
    decoder: tuple[Any, ...]  # per decoder layer: [B, H, L, L], over the shifted target


@keras.saving.register_keras_serializable(package="t2t_repro")
class Transformer(keras.Model):
    """The model of "Attention Is All You Need". Token ids are int32, 0 is padding.

    `hparams` defines the sizes; the default is the base model. `dtype` is a Keras policy: "float32", or
    "mixed_bfloat16" or "mixed_float16" for products in that dtype with weights, softmax and normalization statistics in
    float32. Raises ValueError for any other policy, and for a `vocab_size` below 1.
    """

    def __init__(self, vocab_size: int, hparams: HParams | dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        must_be_integer("vocab_size", vocab_size, 1)
        if self.dtype_policy.name not in DTYPE_POLICIES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPE_POLICIES)}, got {self.dtype_policy.name!r}")
        if isinstance(hparams, dict):
            hparams = HParams(**hparams)
        self.hparams = h = hparams or HParams(name="base", description="")
        self.vocab_size = vocab_size
        self.embedding = self._table("embedding", vocab_size, h.d_model**-0.5)
        if h.positions == "learned":
            self.source_positions = self._table("source_positions", h.max_positions, 0.02)
            self.target_positions = self._table("target_positions", h.max_positions, 0.02)
        dtype = self.dtype_policy
        self.token_embedding = Embedding(self.embedding, name="token_embedding", dtype=dtype)
        self.source_dropout = Dropout(h.dropout, "encoder/embedding", dtype=dtype)
        self.target_dropout = Dropout(h.dropout, "decoder/embedding", dtype=dtype)
        # tuples: tf.train.Checkpoint silently omits layers in a list
        self.encoder_layers = tuple(EncoderLayer(h, f"encoder/{n}", dtype=dtype) for n in range(h.encoder_depth))
        self.decoder_layers = tuple(DecoderLayer(h, f"decoder/{n}", dtype=dtype) for n in range(h.decoder_depth))
        self.seed_generator = keras.random.SeedGenerator()
        self.built = True  # all sizes are known, so all weights are created

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"vocab_size": self.vocab_size, "hparams": self.hparams.to_dict()}

    def call(self, inputs: dict[str, Any], training: bool = False, seed: Any = None) -> Any:
        """Returns logits [B, L, V], float32, of each target token given the previous ones and the source.

        `inputs` contains "inputs" [B, M] and "targets" [B, L]; the targets are shifted right here. In training, dropout
        uses `seed` ([2] int32), or without one the model's own generator.
        """
        if training and seed is None:
            seed = random_masks.generated_seed(self.seed_generator)
        source_BM = inputs["inputs"]
        memory_BMD = self.encode(source_BM, seed if training else None)
        states_BLD = self.decode(inputs["targets"], memory_BMD, source_BM, seed if training else None)
        return self.logits(states_BLD)

    def encode(self, source_BM: Any, seed: Any = None, call: CallLayer = Layer.__call__) -> Any:
        """Returns the output of the encoder (section 3.1): [B, M, D]. `call` calls a layer, for `incremental`."""
        source_bias_B11M = self.source_bias(source_BM)
        x_BMD = self.embed(source_BM, ops.arange(ops.shape(source_BM)[1]), "source")
        x_BMD = self.source_dropout(x_BMD, seed=seed)
        for layer in self.encoder_layers:
            x_BMD = call(layer, x_BMD, source_bias_B11M, seed=seed)
        return x_BMD

    def decode(self, target_BL: Any, memory_BMD: Any, source_BM: Any, seed: Any = None) -> Any:
        """Returns the output of the decoder for complete targets, shifted right by one (section 3.1): [B, L, D]."""
        shifted_BL = ops.pad(target_BL, [[0, 0], [1, 0]], constant_values=PAD)[:, :-1]
        positions_L = ops.arange(ops.shape(target_BL)[1])
        causal_bias_LL = mask_bias(ops.expand_dims(positions_L, 1) >= ops.expand_dims(positions_L, 0))
        x_BLD = self.target_dropout(self.embed(shifted_BL, positions_L, "target"), seed=seed)
        return self.decoder(x_BLD, memory_BMD, causal_bias_LL, self.source_bias(source_BM), seed=seed)

    def decoder(
        self,
        x_BLD: Any,
        memory_BMD: Any,
        causal_bias: Any,
        source_bias: Any,
        seed: Any = None,
        call: CallLayer = Layer.__call__,
    ) -> Any:
        """Applies the decoder's layers in sequence: [B, L, D]. `call` calls a layer, for `incremental`."""
        for layer in self.decoder_layers:
            x_BLD = call(layer, x_BLD, memory_BMD, causal_bias, source_bias, seed=seed)
        return x_BLD

    def embed(self, tokens_BL: Any, positions_L: Any, side: str) -> Any:
        """Returns embeddings times sqrt(d_model), plus positions (3.4, 3.5): [B, L, D], in the compute dtype."""
        if self.hparams.positions == "learned":
            table = self.source_positions if side == "source" else self.target_positions
            positions_LD = ops.take(table, ops.minimum(positions_L, self.hparams.max_positions - 1), axis=0)
        else:
            positions_LD = sinusoids(positions_L, self.hparams.d_model)
        return kernels.in_dtype(self.token_embedding(tokens_BL) + positions_LD, self.compute_dtype)

    def logits(self, states_BLD: Any) -> Any:
        """Returns states times the transposed embedding matrix (section 3.4): [B, L, V], float32."""
        return kernels.tied_logits(states_BLD, self.embedding)

    def source_bias(self, source_BM: Any) -> Any:
        """Returns the mask of the source's padding: [B, 1, 1, M]."""
        return mask_bias(source_BM != PAD)[:, None, None, :]

    def attention(self, source_BM: Any, target_BL: Any) -> AttentionWeights:
        """Returns the attention weights of every layer and head while the model predicts the target. No gradient."""
        with kernels.recorded_attention() as weights, kernels.prepared_products({}):
            self({"inputs": source_BM, "targets": target_BL})

        def of(layers: Sequence[Layer], name: str) -> tuple[Any, ...]:
            return tuple(weights[getattr(layer, name).site] for layer in layers)

        return AttentionWeights(
            encoder=of(self.encoder_layers, "self_attention"),
            memory=of(self.decoder_layers, "memory_attention"),
            decoder=of(self.decoder_layers, "self_attention"),
        )

    def _table(self, name: str, rows: int, stddev: float) -> Any:
        initializer = kernels.initializer(keras.initializers.RandomNormal(stddev=stddev))
        return self.add_weight(shape=(rows, self.hparams.d_model), initializer=initializer, name=name, autocast=False)


def _multi_head_attention(hparams: HParams, site: str, dtype: Any) -> MultiHeadAttention:
    sizes = (hparams.d_model, hparams.num_heads, hparams.d_k, hparams.d_v)
    rates = hparams.attention_dropout, hparams.initializer_gain
    return MultiHeadAttention(*sizes, *rates, site=site, dtype=dtype, name=site.rpartition("/")[2])
