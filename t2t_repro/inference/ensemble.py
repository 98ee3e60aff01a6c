"""Several models that decode as one: the mean of their probabilities. One model is an ensemble of one.

Shapes: B sentences, M source length, L target length, W beam width, T steps done, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2t_repro.model.incremental import DecodingStep, KeysValues, empty_past, source_keys_values
from t2t_repro.model.int8 import must_have_int8
from t2t_repro.model.transformer import Transformer


class Ensemble:
    """Models of one vocabulary; their sizes and dtypes are their own."""

    int8 = False  # whether a step's products are in 8-bit integers

    def __init__(self, models: Sequence[Transformer]):
        self.models = tuple(models)

    @classmethod
    def of(cls, models: Transformer | Sequence[Transformer] | Ensemble) -> Ensemble:
        if isinstance(models, Ensemble):
            return models
        return cls([models] if isinstance(models, Transformer) else models)

    def memories(self, source_BM: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        """Of each model the keys and values that its decoder looks at in the source."""
        return tuple(source_keys_values(model, model.encode(source_BM)) for model in self.models)

    def empty_caches(self, batch: tf.Tensor) -> tuple[tuple[KeysValues, ...], ...]:
        """Of each model, for each layer, keys and values before the first step."""
        return tuple(empty_past(model, batch) for model in self.models)

    def steps(self) -> tuple[DecodingStep, ...]:
        """The decoding step of each model: to be made outside of loops."""
        return tuple(DecodingStep(model) for model in self.models)

    def stepper(
        self, steps: tuple[DecodingStep, ...], memories: tuple[Any, ...], source_BM: tf.Tensor
    ) -> Callable[..., tuple[tf.Tensor, tuple[Any, ...]]]:
        """One step of all models, for use in a loop: logits [B, W, V], float32, and the grown caches."""

        def step(
            tokens_BW: tf.Tensor, position: tf.Tensor, caches: tuple[Any, ...], beam_bias: tf.Tensor
        ) -> tuple[tf.Tensor, tuple[Any, ...]]:
            # made in each step: TensorFlow 2.21 fuses a mask that comes from outside the loop wrongly (it takes the
            # value for the loop's end), and with one layer the result was empty
            source_bias = self.models[0].source_bias(source_BM)
            all_logits, grown = [], []
            for model_step, past, memory in zip(steps, caches, memories, strict=True):
                logits_BWV, cache = model_step(tokens_BW, position, past, memory, beam_bias, source_bias)
                all_logits.append(logits_BWV)
                grown.append(cache)
            return log_mean_probabilities(all_logits), tuple(grown)

        return step

    def logits(self, source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
        """[B, L, V], float32, of each target token given those before it and the source."""
        return log_mean_probabilities([model({"inputs": source_BM, "targets": target_BL}) for model in self.models])


class FixedEnsemble(Ensemble):
    """Models whose weights change no more: what a step multiplies by is made once and not in each call. With `int8` its
    products are in 8-bit integers; raises ValueError if this machine has none (`must_have_int8`)."""

    def __init__(self, models: Sequence[Transformer], int8: bool = False):
        super().__init__(models)
        self.int8 = int8
        if int8:
            must_have_int8()
        self._steps = tuple(DecodingStep(model, int8) for model in self.models)

    def steps(self) -> tuple[DecodingStep, ...]:
        return self._steps


def log_mean_probabilities(logits: Sequence[tf.Tensor]) -> tf.Tensor:
    """Logits whose softmax is the mean of the softmaxes of `logits`, all [..., V]; those of one model as they are."""
    if len(logits) == 1:
        return logits[0]
    log_p = tf.stack([tf.nn.log_softmax(each) for each in logits])
    return tf.reduce_logsumexp(log_p, axis=0) - math.log(len(logits))
