"""Several models that decode as one, by the mean of their probabilities. A single model is an ensemble of one.

Shapes: B sentences, M source length, L target length, W beam width, T steps done, V vocabulary.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from t2t_repro.alignment.head import AlignmentHead
from t2t_repro.model.incremental import (
    DecodingStep,
    KeysValues,
    Load,
    MakeLinear,
    Products,
    already_loaded,
    empty_past,
    encoder_products,
    source_keys_values,
)
from t2t_repro.model.int8 import int8_embedding, int8_or_float32, must_have_int8
from t2t_repro.model.kernels import Linear, narrow_linear, prepared_products, product_key, rows_of, tensors_read_by
from t2t_repro.model.packed import can_pack, gains, packed_embedding, packed_linear
from t2t_repro.model.transformer import Transformer


class Ensemble:
    """Models that share a vocabulary. Their sizes and dtypes may differ."""

    int8 = False  # true if linear layers multiply 8-bit integers
    search_only = False  # true if some weights of the models are freed
    head: AlignmentHead | None = None  # of the first model, whose attention a decoding step returns

    def __init__(self, models: Sequence[Transformer]):
        self.models = tuple(models)

    @classmethod
    def of(cls, models: Transformer | Sequence[Transformer] | Ensemble) -> Ensemble:
        if isinstance(models, Ensemble):
            return models
        return cls([models] if isinstance(models, Transformer) else models)

    def memories(self, source_BM: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        """Returns, per model, the keys and values of the source that the decoder attends to."""
        return tuple(source_keys_values(model, source_BM, {}) for model in self.models)

    def empty_caches(self, batch: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        """Returns, per model and layer, the keys and values before the first step."""
        return tuple(empty_past(model, batch) for model in self.models)

    def steps(self) -> tuple[DecodingStep, ...]:
        """Returns the decoding step of each model. Call it outside of loops."""
        return tuple(DecodingStep(model) for model in self.models)

    def stepper(
        self, steps: tuple[DecodingStep, ...], memories: tuple[Any, ...], source_BM: tf.Tensor
    ) -> Callable[..., tuple[tf.Tensor, tuple[Any, ...]]]:
        """Returns one step of all models for use in a loop: to logits [B, W, V], float32, and the extended caches.

        With `head`, the third result of the step is the place [B, W] of the source token that the head attends to most.
        """

        def step(
            tokens_BW: tf.Tensor, position: tf.Tensor, caches: tuple[Any, ...], place: tf.Tensor, beam_bias: tf.Tensor
        ) -> tuple[Any, ...]:
            # computed in each step: TensorFlow 2.21 wrongly fuses a mask that comes from outside the loop (it takes the
            # value at the end of the loop), and with one layer the result was empty
            source_bias = self.models[0].source_bias(source_BM)
            all_logits, grown = [], []
            attended: list[Any] | None = [] if self.head else None
            for model_step, past, memory in zip(steps, caches, memories, strict=True):
                logits_BWV, cache = model_step(
                    tokens_BW, position, past, place, memory, beam_bias, source_bias, attended
                )
                all_logits.append(logits_BWV)
                grown.append(cache)
            found = log_mean_probabilities(all_logits), tuple(grown)
            return (*found, attended_most(attended, self.head)) if attended and self.head else found

        return step

    def aligned(self, head: AlignmentHead) -> Ensemble:
        """Returns the same models with decoding steps that also return the attention of `head` of the first model."""
        found = copy.copy(self)
        found.head = head
        return found

    def portable(self) -> Ensemble:
        """Returns the same models without products that are prepared for this machine: 8-bit integers remain."""
        return self

    def tensors(self) -> list[Any]:
        """Returns all tensors that graphs of decoding read from outside, in the same order for models of the same
        sizes; none if they are not known."""
        return []

    def must_have_weights(self) -> None:
        """Raises ValueError if some weights are freed."""
        if self.search_only:
            raise ValueError(
                "the model was loaded with search_only, without the weights that scores, attention and exports need; "
                "load it without"
            )

    def logits(self, source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
        """Returns [B, L, V], float32: the logits of each target token, given the previous tokens and the source.

        They have no gradient.
        """
        inputs = {"inputs": source_BM, "targets": target_BL}
        with prepared_products({}):
            return log_mean_probabilities([model(inputs) for model in self.models])


class FixedEnsemble(Ensemble):
    """Models whose weights no longer change, so that their matrices are prepared once and not in each call.

    With `int8`, linear layers multiply 8-bit integers. Raises ValueError if this machine cannot (`must_have_int8`).
    `loads` load and free the weights of each model, layer by layer; without them, all are loaded already, and stay.
    """

    def __init__(self, models: Sequence[Transformer], int8: bool = False, loads: Sequence[Load] | None = None):
        super().__init__(models)
        self.int8, self.search_only = int8, loads is not None
        if int8:
            must_have_int8()
        loads = loads or [already_loaded] * len(self.models)
        prepared = [self._prepared(*each) for each in zip(self.models, loads, strict=True)]
        self._steps = tuple(step for step, _ in prepared)
        self._encoders = tuple(products for _, products in prepared)

    def _prepared(self, model: Transformer, load: Load) -> tuple[DecodingStep, Products]:
        """Returns the decoding step of a model, and its products for `memories`. Each is prepared on a core."""
        make: MakeLinear = _fastest_linear(model.compute_dtype)
        of_encoder: MakeLinear | None = make
        of_embedding: MakeLinear | None = None
        if self.int8:
            of_encoder = functools.partial(int8_or_float32, result=model.compute_dtype)
            of_embedding = int8_embedding
        elif model.compute_dtype == "float32":  # weights need no cast, and packing gains nothing for many rows
            of_encoder = None
        elif can_pack(model.compute_dtype):
            of_embedding = functools.partial(packed_embedding, dtype=model.compute_dtype)
        with ThreadPoolExecutor(1) as other_core:
            encoder = other_core.submit(encoder_products, model, of_encoder, load)
            step = DecodingStep(model, int8_or_float32 if self.int8 else make, load, of_encoder, of_embedding)
            products = {**encoder.result(), **step.memory_products}
        key = product_key(model.embedding)
        if rows_of(step.products[key]):  # its embeddings: then the matrix in float32 is not needed
            products[key] = step.products[key]
        return step, products

    def memories(self, source_BM: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        both = zip(self.models, self._encoders, strict=True)
        return tuple(source_keys_values(model, source_BM, products) for model, products in both)

    def steps(self) -> tuple[DecodingStep, ...]:
        return self._steps

    def tensors(self) -> list[Any]:
        if self.head:  # its graphs have other outputs
            return []
        found = []
        for model, step, of_encoder in zip(self.models, self._steps, self._encoders, strict=True):
            joined = (product for _, product in step.joined)
            found += [weight.value.handle for weight in model.weights]
            for product in (*step.products.values(), *joined, *of_encoder.values()):
                found += tensors_read_by(product)
        return found

    def portable(self) -> Ensemble:
        self.must_have_weights()
        if self.int8:
            return self
        return Ensemble(self.models).aligned(self.head) if self.head else Ensemble(self.models)


def _fastest_linear(dtype: str) -> MakeLinear:
    """Returns `packed_linear` for matrices that gain by it, if it computes `dtype` here; `narrow_linear` for others."""
    may_pack = can_pack(dtype)

    def make(weight_IO: Any, *others: Any, **options: Any) -> Linear:
        chosen = packed_linear if may_pack and gains(weight_IO, dtype) else narrow_linear
        return chosen(weight_IO, *others, dtype=dtype, **options)

    return make


def attended_most(weights: Sequence[tf.Tensor], head: AlignmentHead) -> tf.Tensor:
    """Returns the place in the source with the highest weight of `head`: [B, L] int32.

    `weights` are those of each decoder layer, [B, H, L, M].
    """
    weights_BHLM = weights[head.layer - 1]
    weights_BLM = weights_BHLM[:, head.head - 1] if head.head else tf.reduce_mean(weights_BHLM, axis=1)
    return tf.argmax(weights_BLM, axis=-1, output_type=tf.int32)


def log_mean_probabilities(logits: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns logits [..., V] whose softmax is the mean of those of `logits`; one model's are unchanged."""
    if len(logits) == 1:
        return logits[0]
    log_p = tf.stack([tf.nn.log_softmax(each) for each in logits])
    return tf.reduce_logsumexp(log_p, axis=0) - math.log(len(logits))
