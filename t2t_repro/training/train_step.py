"""One update: the loss summed over all parts and replicas, divided by the real target tokens, its gradient, Adam.

The update depends on its pairs alone. How they are split over replicas, and over the parts that a replica computes one
after the other, changes the result only by rounding: there is one divisor, the real target tokens of the whole update.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.data import batching
from t2t_repro.flops import training_flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.token_ids import PAD
from t2t_repro.training.fused_loss import projected_loss, vocabulary_blocks
from t2t_repro.training.loss import Loss, smoothed_cross_entropy
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.shape_bucketing import on_grid

Element = dict[str, tf.Tensor]  # what `training_batches` gives a replica


class Updater:
    """Made and called inside the scope of a `tf.distribute` strategy."""

    def __init__(
        self,
        model: Transformer,
        optimizer: Adam,
        hparams: HParams,
        seed: int,
        microbatch_tokens: int = 0,
        jit_compile: bool = False,
    ):
        """`microbatch_tokens` is of `batching.microbatches`. With `jit_compile`, XLA compiles the gradient of a
        micro-batch once for each shape: micro-batches are padded to few shapes (`grid`)."""
        self.model, self.optimizer, self.hparams, self.seed = model, optimizer, hparams, seed
        self.jit_compile, self.gradients = jit_compile, self._gradients
        if jit_compile:
            ids, scalars = tf.TensorSpec([None, None], tf.int32), (tf.TensorSpec([2], tf.int32), tf.TensorSpec([]))
            self.gradients = tf.function(
                self._gradients, input_signature=(ids, ids, *scalars), autograph=False, jit_compile=True
            )
        self.strategy = tf.distribute.get_strategy()
        self.variables = [weight.value for weight in model.trainable_variables]
        replicas = self.strategy.num_replicas_in_sync
        self.microbatches = batching.microbatches(hparams.batch_tokens, replicas, microbatch_tokens)  # of each replica
        numbers = self.strategy.experimental_distribute_values_from_function(lambda at: at.replica_id_in_sync_group)
        first, *others = self.strategy.experimental_local_results(numbers)
        self.local = range(first, first + 1 + len(others))  # which of all the replicas are on this machine

    def compiled(self, element_spec: Any) -> Any:
        """`__call__` as one graph for all shapes of elements of that specification: it is traced once."""
        scalars = (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32))
        return tf.function(
            self.__call__, input_signature=([element_spec for _ in self.local], *scalars), autograph=False
        )

    def take(self, elements: Iterator[Element]) -> list[Element]:
        """The next update's, in the order that `training_batches` has them."""
        return list(islice(elements, len(self.local)))

    def __call__(self, elements: list[Element], step: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Applies one update, and returns its sums [7], float32: smoothed loss, plain loss, correct predictions, real
        target tokens and FLOPs, then the gradient's norm, and 1 where that is not finite and the update was skipped.

        `elements` are of `training_batches`, one for each local replica; `step` int32 and `rate` float32 are scalars.
        They are tensors of the host. (A distributed dataset would be ahead on the devices by some 200 KB an update; but
        TensorFlow lets go of one only after up to a minute, in which a program that was told to stop does not.)
        """
        element = self.strategy.experimental_distribute_values_from_function(
            lambda at: elements[self.local.index(at.replica_id_in_sync_group)]
        )
        total, scaling = tf.distribute.ReduceOp.SUM, self.optimizer.loss_scale
        scale = 1.0 if scaling is None else tf.identity(scaling.factor)
        tokens = self.strategy.reduce(total, self.strategy.run(_target_tokens, args=(element,)), axis=None)
        gradients, sums = self.strategy.run(self._replica_gradients, args=(element, step, tokens / scale))
        sums = self.strategy.reduce(total, sums, axis=None)
        gradients = self.strategy.extended.batch_reduce_to(total, list(zip(gradients, self.variables, strict=True)))
        local = [self.strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        norm = tf.linalg.global_norm(local) / scale
        finite = tf.math.is_finite(norm)

        def apply() -> tf.Tensor:
            self.optimizer.apply(gradients, self.variables, rate)
            return tf.constant(0.0)

        skipped = tf.cond(finite, apply, lambda: tf.constant(1.0))
        if scaling is not None:
            scaling.adapt(finite)
        return tf.concat([sums, [norm, skipped]], axis=0)

    def _replica_gradients(
        self, element: Element, step: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This replica's part of the gradient, and the sums over its parts of the four numbers of `Loss` and of FLOPs.

        `divisor`, float32, of the summed loss: how many real target tokens the whole update has, over the loss scale.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        replicas = self.strategy.num_replicas_in_sync

        def part(number: tf.Tensor | int) -> tuple[list[tf.Tensor], tf.Tensor]:
            # the seed of a dropout mask: (update, run and part); `Dropout` mixes in the place in the model
            seed = tf.stack([step, self.seed * 4096 + number * replicas + replica])
            return self._part_gradients(element, number, seed, divisor)

        if self.microbatches == 1:  # even if it is empty: without the loop there is no second set of gradients
            return part(0)
        zeros = [tf.zeros(variable.shape) for variable in self.variables], tf.zeros(5)

        def add_part(number: tf.Tensor, gradients: list[tf.Tensor], sums: tf.Tensor) -> tuple[Any, ...]:
            more, numbers = part(number)
            return number + 1, [a + b for a, b in zip(gradients, more, strict=True)], sums + numbers

        filled = tf.reduce_sum(tf.minimum(element["sizes"][:, 0], 1))  # `count_nonzero` would count on a GPU
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < filled, add_part, (tf.constant(0), *zeros), parallel_iterations=1
        )
        return gradients, sums

    def _part_gradients(
        self, element: Element, number: tf.Tensor | int, seed: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        batch, source_length, target_length = tf.unstack(element["sizes"][number])
        source_BM = element["inputs"][number, :batch, :source_length]
        target_BL = element["targets"][number, :batch, :target_length]
        if self.jit_compile:
            source_BM, target_BL = on_grid(source_BM, target_BL)
        gradients, loss = self.gradients(source_BM, target_BL, seed, divisor)
        batch, source_length, target_length = (
            tf.cast(size, tf.float32) for size in (batch, source_length, target_length)
        )
        flops = training_flops(self.hparams, self.model.vocab_size, batch, source_length, target_length, loss.tokens)
        return gradients, tf.stack([*loss, flops])

    def _gradients(
        self, source_BM: tf.Tensor, target_BL: tf.Tensor, seed: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], Loss]:
        embedding = self.model.embedding.value
        blocks_KD = vocabulary_blocks(tf.convert_to_tensor(embedding))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((blocks_KD, self.variables))
            memory_BMD = self.model.encode(source_BM, seed)
            states_BLD = self.model.decode(target_BL, memory_BMD, source_BM, seed)
            target_N = tf.reshape(target_BL, [-1])
            states_ND = tf.reshape(states_BLD, [-1, states_BLD.shape[-1]])
            if not self.jit_compile:  # XLA knows no shape that the values decide
                real_N = tf.where(target_N != PAD)[:, 0]
                states_ND, target_N = tf.gather(states_ND, real_N), tf.gather(target_N, real_N)
            rows_ND = tf.gather(embedding, target_N)
            eps = self.hparams.label_smoothing
            mean_loss, loss = projected_loss(states_ND, blocks_KD, rows_ND, target_N, eps, 1 / divisor)
        d_blocks_KD, gradients = tape.gradient(mean_loss, (blocks_KD, self.variables))
        # joined at once, where the loss has left room, and not at the end, where it lies in pieces: 60 MB less for base
        d_matrix_VD = tf.concat(d_blocks_KD, axis=0)
        looked_up = next(at for at, variable in enumerate(self.variables) if variable is embedding)
        rows = gradients[looked_up]
        gradients[looked_up] = tf.tensor_scatter_nd_add(d_matrix_VD, rows.indices[:, None], rows.values)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss


def _target_tokens(element: Element) -> tf.Tensor:
    return tf.math.count_nonzero(element["targets"] != PAD, dtype=tf.float32)


def make_evaluator(model: Transformer, label_smoothing: float) -> Any:
    """A function of source [B, M] and target [B, L] that gives the four sums of `Loss` [4], without dropout."""

    @tf.function(autograph=False, reduce_retracing=True)
    def evaluate(source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
        states_BLD = model.decode(target_BL, model.encode(source_BM), source_BM)
        real_N2 = tf.where(target_BL != PAD)
        logits_NV = model.logits(tf.gather_nd(states_BLD, real_N2))
        loss: Loss = smoothed_cross_entropy(logits_NV, tf.gather_nd(target_BL, real_N2), label_smoothing)
        return tf.stack(loss)

    return evaluate
