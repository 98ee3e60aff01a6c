"""Decoding one position at a time, with cached keys and values.

`DecodingStep` calls `Transformer.decoder`, so that its layers are those of training. It provides the attentions with
keys and values of previous positions, and the products with weights that are prepared once for many steps. A change of
the activation or of the order of normalization in `layers.py` or `transformer.py` also changes decoding.

Shapes: B batch, M source length, W beam width, N entries of a cache, D d_model, H heads, K d_k, E d_v, V vocabulary,
S shortlist.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from t2t_repro.model import kernels
from t2t_repro.model.attention import Cache, MultiHeadAttention
from t2t_repro.model.copies import Copies
from t2t_repro.model.int8 import int8_or_float32
from t2t_repro.model.layers import Layer
from t2t_repro.model.transformer import DecoderLayer, EncoderLayer, Transformer

MakeLinear = Callable[..., kernels.Linear]  # of `narrow_linear`'s arguments, without the dtype
Products = Mapping[tuple[int, int], kernels.Linear]  # for `kernels.prepared_products`
KeysValues = tuple[Any, Any]  # [B, H, M, K] and [B, H, M, E]
# Loads the weights of a layer, or with the name "" those of the model alone. Returns the function that frees weights.
Load = Callable[[str, Layer], Callable[..., None]]
BLOCK = 8  # N is a multiple of it and W: products have few shapes, and oneDNN compiles a product for each shape


def already_loaded(name: str, layer: Layer) -> Callable[..., None]:
    """The `Load` of a model that has its weights and keeps them."""
    return lambda *weights: None


class DecodingStep:
    """The decoder for one further position of W beams per sentence.

    Create it once for many steps, outside of their loop. `make` prepares a product; the default casts the weights. Here
    W_Q, W_K and W_V of self-attention are concatenated, and the embedding is transposed: on a CPU a float32 product
    that transposes its matrix takes up to three times as long. The weights of a layer are loaded by `load`, and then
    freed if a product replaces them. `make_memory` prepares the products of `source_keys_values` with these layers, and
    `make_embedding` that of the logits, which then has the rows of the embedding too.
    """

    def __init__(
        self,
        model: Transformer,
        make: MakeLinear | None = None,
        load: Load = already_loaded,
        make_memory: MakeLinear | None = None,
        make_embedding: MakeLinear | None = None,
    ):
        self.model = model
        make = make or functools.partial(kernels.narrow_linear, dtype=model.compute_dtype)
        # of activations between products
        self.dtype = "float32" if make is int8_or_float32 else model.compute_dtype
        key = kernels.product_key
        narrow = functools.partial(ops.cast, dtype=self.dtype)  # first, so that half of the bytes move
        free = load("", model)
        if make_embedding:
            logits = make_embedding(model.embedding)
            free(model.embedding)
        else:
            logits = make(ops.transpose(narrow(model.embedding)), result="float32")
        self.products = {key(model.embedding): logits}
        self.memory_products: dict[tuple[int, int], kernels.Linear] = {}
        self.joined: list[tuple[tuple[Any, ...], kernels.Linear]] = []  # weights, and the product with all of them
        for number, layer in enumerate(model.decoder_layers):
            free = load(f"decoder_layers/{number}", layer)
            own, memory, feed_forward = layer.self_attention, layer.memory_attention, layer.feed_forward
            weights = own.w_q, own.w_k, own.w_v
            joined = ops.concatenate(tuple(map(narrow, weights)), axis=1)
            self.joined.append((weights, make(joined, result=model.compute_dtype)))
            self.products[key(memory.w_q)] = make(memory.w_q, result=model.compute_dtype)
            for each in (
                (own.w_o,),
                (memory.w_o,),
                (feed_forward.w_1, feed_forward.b_1),
                (feed_forward.w_2, feed_forward.b_2),
            ):
                self.products[key(*each)] = make(*each)
            free(*weights, memory.w_q, own.w_o, memory.w_o, feed_forward.w_1, feed_forward.w_2)
            if make_memory:
                self.memory_products |= {key(each): make_memory(each) for each in (memory.w_k, memory.w_v)}
                free(memory.w_k, memory.w_v)

    def among(self, ids_S: Any) -> DecodingStep:
        """Returns the same step with logits of the tokens `ids_S` alone: [B, W, S]. Call it outside of loops.

        They are computed in the model's dtype: packing or quantizing a matrix that differs in each batch takes longer
        than it saves.
        """
        key, dtype = kernels.product_key(self.model.embedding), self.model.compute_dtype
        with kernels.prepared_products(self.products):
            table_DS = ops.transpose(kernels.table_rows(self.model.embedding, ids_S))
        product = kernels.narrow_linear(table_DS, result="float32", dtype=dtype)

        def among_them(x_TD: Any) -> Any:
            return product(ops.cast(x_TD, dtype))

        found = copy.copy(self)
        rows = kernels.rows_of(self.products[key])
        found.products = self.products | {key: kernels.prepared(among_them, table_DS, rows=rows)}
        return found

    def __call__(
        self,
        token_BW: Any,
        position: Any,
        past: tuple[KeysValues, ...],
        place: Any,
        memories: tuple[KeysValues, ...],
        beam_bias: Any,
        source_bias: Any,
        attended: list[Any] | None = None,
    ) -> tuple[Any, tuple[KeysValues, ...]]:
        """Returns logits [B, W, V], float32, of the tokens after `token_BW` at `position`, and `past` with this step.

        Args:
            past: per layer, the keys and values of previous positions: [B, H, N, K] and [B, H, N, E]. The beams of a
                sentence share one cache, in any order. It is overwritten, so nothing else may read it.
            place: the step's W entries are written from entry `place` times W on. N is a multiple of W.
            memories: per layer, `source_keys_values`.
            beam_bias: [B, 1, W, N], the mask of the entries that belong to each beam's own tokens.
            source_bias: `Transformer.source_bias`.
            attended: if given, each layer's attention weights over the source, [B, H, W, M], are appended to it.
        """
        model = self.model
        recording = contextlib.nullcontext if attended is None else kernels.recorded_attention
        products = dict(self.products)
        for joined in self.joined:
            products |= kernels.joined_products(*joined)
        copies, grown = Copies(), []
        write = kernels.cache_writer(*past[0], ops.shape(token_BW)[1], place)
        states = iter(zip(past, memories, self.joined, strict=True))

        def call(layer: DecoderLayer, x_BWD: Any, *args: Any, seed: Any) -> Any:
            its_past, memory, (_, joined) = next(states)
            tensors = its_past, memory, kernels.tensors_read_by(joined), tensors_of(layer, self.products)

            def with_caches(x_BWD: Any) -> tuple[Any, tuple[KeysValues, Any]]:
                written: list[KeysValues] = []
                with recording() as weights:
                    x_BWD = layer(x_BWD, *args, seed=seed, caches=(_own(its_past, write, written), _read(memory)))
                return x_BWD, (written[0], weights[layer.memory_attention.site] if weights else ())

            x_BWD, (its_past, weights_BHWM) = copies.layer(with_caches, x_BWD, tensors, layer)
            grown.append(its_past)
            if attended is not None:
                attended.append(weights_BHWM)
            return x_BWD

        with kernels.prepared_products(products):
            x_BWD = ops.cast(model.embed(token_BW, ops.expand_dims(position, 0), "target"), self.dtype)
            states_BWD = model.decoder(x_BWD, None, beam_bias, source_bias, call=call)
            return model.logits(states_BWD), tuple(grown)


def encoder_products(model: Transformer, make: MakeLinear | None, load: Load = already_loaded) -> Products:
    """Returns the products with weights of `model.encode`, for `kernels.prepared_products`.

    Without `make` it only loads the weights.
    """
    products: dict[tuple[int, int], kernels.Linear] = {}
    for number, layer in enumerate(model.encoder_layers):
        free = load(f"encoder_layers/{number}", layer)
        own, feed_forward = layer.self_attention, layer.feed_forward
        matrices = (own.w_q,), (own.w_k,), (own.w_v,), (own.w_o,)
        both = (feed_forward.w_1, feed_forward.b_1), (feed_forward.w_2, feed_forward.b_2)
        if make:
            weights = *matrices, *both
            products |= {kernels.product_key(*each): make(*each) for each in weights}
            free(*(weight for weight, *_ in weights))
    return products


def source_keys_values(model: Transformer, source_BM: Any, products: Products) -> tuple[KeysValues, ...]:
    """Returns keys and values of the encoder's output for every decoder layer, computed once per sentence.

    There is no gradient. `products` are those of `encoder_products` and `memory_products`.
    """
    layers, attentions = Copies(), Copies()

    def call(layer: EncoderLayer, x_BMD: Any, *args: Any, seed: Any) -> Any:
        tensors = tensors_of(layer, products)
        return layers.layer(lambda x_BMD: (layer(x_BMD, *args, seed=seed), ()), x_BMD, tensors, layer)[0]

    with kernels.prepared_products(products):
        memory_BMD = model.encode(source_BM, call=call)
        return tuple(
            attentions(functools.partial(attention.keys_values, memory_BMD), tensors_of(attention, products))
            for attention in (layer.memory_attention for layer in model.decoder_layers)
        )


def tensors_of(layer: Layer, products: Products) -> tuple[list[Any], list[Any]]:
    """Returns the tensors that `layer` reads: its weights, and what its products of `products` are prepared from."""
    own = {id(weight) for weight in layer.weights}
    prepared = [kernels.tensors_read_by(product) for (weight, _), product in products.items() if weight in own]
    return [weight.value.handle for weight in layer.weights], prepared


def empty_past(model: Transformer, batch: Any) -> tuple[KeysValues, ...]:
    """Returns the `past` of each layer before the first step, with N = 0."""
    h = model.hparams
    keys, values = (ops.zeros((batch, h.num_heads, 0, size), model.compute_dtype) for size in (h.d_k, h.d_v))
    return ((keys, values),) * h.decoder_depth


def capacity(filled: Any) -> Any:
    """Returns N over W of a cache whose first `filled` W entries are kept, with room for `BLOCK` steps or more."""
    return (-(-filled // BLOCK) + 1) * BLOCK


def with_room(past: tuple[KeysValues, ...], kept_BN: Any, entries: Any) -> tuple[KeysValues, ...]:
    """Returns `past` with only the entries `kept_BN`, and zeros after them. Each layer then has its own memory."""
    return tuple(tuple(kernels.cache_with_room(each, kept_BN, entries) for each in both) for both in past)


def _own(past: KeysValues, write: Callable[..., Any], written: list[KeysValues]) -> Cache:
    """Returns the cache of self-attention. It writes keys and values of x into `past`, and appends it to `written`."""

    def project(attention: MultiHeadAttention, x_BWD: Any) -> tuple[Any, Any, Any]:
        queries, new = attention.queries(x_BWD), attention.keys_values(x_BWD)
        keys, values = map(write, past, new)
        written.append((keys, values))
        return queries, keys, values

    return project


def _read(memory: KeysValues) -> Cache:
    """Returns the cache of attention to the source, with the keys and values of `memory`."""
    return lambda attention, x_BWD: (attention.queries(x_BWD), *memory)
