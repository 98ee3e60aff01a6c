"""A training step: gradients summed over micro-batches and replicas, divided by the real target tokens, then Adam.

The pairs of a step and its divisor, the number of real target tokens of all of them, depend neither on replicas nor on
micro-batches. Without dropout, both change the result only by rounding. With it, each micro-batch of each replica has
its own masks, so another number of micro-batches in all is a step with other masks.

Shapes: A micro-batches of a replica, B pairs of a micro-batch, M source length, L target length, T real target tokens,
D d_model, V vocabulary, J subwords of one block of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.flops import training_flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.problem import Problem
from t2t_repro.run import Run, TrainingRecord
from t2t_repro.text.token_ids import PAD
from t2t_repro.training import hardware
from t2t_repro.training.fused_loss import projected_loss, vocabulary_blocks
from t2t_repro.training.loss import Loss, smoothed_cross_entropy
from t2t_repro.training.optimizer import Adam, MovingAverage
from t2t_repro.training.parallel import microbatch_shares, num_parallel_microbatches
from t2t_repro.training.precision import POLICIES

ReplicaInputs = dict[str, tf.Tensor]  # an element of `TrainingText.batches`: the micro-batches of one replica

# With XLA: 1 to 8, then eight sizes per octave, so that rounding up adds less than an eighth to a size.
BUCKET_SIZES = np.array(
    [*range(1, 8), *(eighths << octave for octave in range(20) for eighths in range(8, 16))], np.int32
)


class StepMetrics(NamedTuple):
    """The metrics of a step as scalars: sums over micro-batches and replicas, then two properties of the gradient."""

    smoothed: tf.Tensor  # the first four are those of `Loss`
    plain: tf.Tensor
    correct: tf.Tensor
    tokens: tf.Tensor  # real target tokens
    flops: tf.Tensor
    gradient_norm: tf.Tensor
    skipped: tf.Tensor  # bool: true if the norm is not finite, so that the weights did not change

    def numpy(self) -> StepMetrics:
        """Waits for the device, and returns the metrics as Python numbers."""
        return StepMetrics(*(value.numpy().item() for value in self))


def make_model(vocab_size: int, hparams: HParams, seed: int, precision: str) -> tuple[Transformer, Adam]:
    """Returns a new model and its optimizer. `precision` is a key of `precision.POLICIES`.

    Call it inside the scope of a `tf.distribute` strategy.
    """
    keras.utils.set_random_seed(seed)
    model = Transformer(vocab_size, hparams, dtype=POLICIES[precision])
    weights = [weight.value for weight in model.trainable_variables]
    return model, Adam(weights, hparams, scaled=precision == "float16")


class TrainStep:
    """A step of a model and its optimizer. Create and call it inside the scope of a `tf.distribute` strategy."""

    def __init__(
        self,
        model: Transformer,
        optimizer: Adam,
        hparams: HParams,
        seed: int,
        microbatch_tokens: int = 0,
        jit_compile: bool = False,
        moving_average: MovingAverage | None = None,
    ):
        """Prepares the step; `build` makes its graph.

        Args:
          model: a built model, created in the scope.
          optimizer: the optimizer of the model's trainable weights, in their order.
          hparams: the hyperparameters.
          seed: the seed of dropout, below 2^18.
          microbatch_tokens: see `batching.microbatches`.
          jit_compile: whether XLA compiles the gradient of a micro-batch, one program per shape. Micro-batches are then
            padded to `BUCKET_SIZES`.
          moving_average: that of the model's weights, if it has one.
        """
        self.model, self.optimizer, self.hparams, self.seed = model, optimizer, hparams, seed
        self.microbatch_tokens, self.moving_average = microbatch_tokens, moving_average
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
        self.parallel = 1 if replicas > 1 else num_parallel_microbatches()  # micro-batches
        self.local = range(first, first + 1 + len(others))  # the replicas on this machine

    def data(self, text: TrainingText, position: Sequence[int] = (0, 0, 0)) -> tf.data.Dataset:
        """Returns this machine's elements of a text's batches, without end, from a position (epoch, window, step)."""
        layout = Layout(self.strategy.num_replicas_in_sync, self.local, self.microbatch_tokens)
        epoch, window, skip = position
        return text.batches(epoch, layout, window, skip, epochs=None)

    def build(self, element_spec: Any) -> Any:
        """Returns `__call__` as one graph for inputs of `element_spec`. It is traced once, for inputs of any size."""
        scalars = (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32))
        return tf.function(
            self.__call__, input_signature=([element_spec for _ in self.local], *scalars), autograph=False
        )

    def next_inputs(self, elements: Iterator[ReplicaInputs]) -> list[ReplicaInputs]:
        """Takes the inputs of the next step: one element of `TrainingText.batches` for each local replica."""
        return list(islice(elements, len(self.local)))

    def __call__(self, inputs: list[ReplicaInputs], step: tf.Tensor, rate: tf.Tensor) -> StepMetrics:
        """Takes one step, number `step` (int32), at the learning rate `rate` (float32).

        All arguments are tensors on the host. (A distributed dataset would prefetch about 200 KB per step. But
        TensorFlow takes up to a minute to release one, which delays the end of a program that was asked to stop.)
        """
        element = self.strategy.experimental_distribute_values_from_function(
            lambda at: inputs[self.local.index(at.replica_id_in_sync_group)]
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
        tf.cond(finite, lambda: self._update(gradients, rate), lambda: None)
        if scaling is not None:
            scaling.adapt(finite)
        smoothed, plain, correct, tokens, flops = tf.unstack(sums)
        return StepMetrics(smoothed, plain, correct, tokens, flops, norm, skipped=tf.logical_not(finite))

    def _update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor) -> None:
        self.optimizer.apply(gradients, self.variables, rate)
        if self.moving_average is not None:
            self.moving_average.update(self.optimizer.updates)

    def _replica_gradients(
        self, element: ReplicaInputs, step: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns this replica's share of the gradient, and the first five numbers of `StepMetrics` in one tensor.

        `divisor` (float32) divides the summed loss: the real target tokens of the step over the loss scale.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        replicas = self.strategy.num_replicas_in_sync

        def microbatch(number: tf.Tensor | int) -> tuple[list[tf.Tensor], tf.Tensor]:
            # the seed of a dropout mask: step, run and micro-batch; `Dropout` adds the position in the model
            seed = tf.stack([step, self.seed * 4096 + number * replicas + replica])
            return self._microbatch_gradients(element, number, seed, divisor)

        if self.microbatches == 1:  # even if it is empty: the loop would hold a second set of gradients
            return microbatch(0)
        zeros = [tf.zeros(variable.shape) for variable in self.variables], tf.zeros(5)

        def accumulate(number: tf.Tensor, gradients: list[tf.Tensor], sums: tf.Tensor) -> tuple[Any, ...]:
            more, numbers = microbatch(number)
            return number + 1, [a + b for a, b in zip(gradients, more, strict=True)], sums + numbers

        filled = tf.reduce_sum(tf.minimum(element["sizes"][:, 0], 1))  # `count_nonzero` would run on a GPU
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < filled, accumulate, (tf.constant(0), *zeros), parallel_iterations=self.parallel
        )
        return gradients, sums

    def _microbatch_gradients(
        self, element: ReplicaInputs, number: tf.Tensor | int, seed: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        batch, source_length, target_length = tf.unstack(element["sizes"][number])
        source_BM = element["inputs"][number, :batch, :source_length]
        target_BL = element["targets"][number, :batch, :target_length]
        if self.jit_compile:
            source_BM, target_BL = pad_to_bucket(source_BM, target_BL)
        gradients, loss = self.gradients(source_BM, target_BL, seed, divisor)
        batch, source_length, target_length = (
            tf.cast(size, tf.float32) for size in (batch, source_length, target_length)
        )
        flops = training_flops(self.hparams, self.model.vocab_size, batch, source_length, target_length, loss.tokens)
        return gradients, tf.stack([*loss, flops])

    def _gradients(
        self, source_BM: tf.Tensor, target_BL: tf.Tensor, seed: tf.Tensor, divisor: tf.Tensor
    ) -> tuple[list[tf.Tensor], Loss]:
        h, embedding = self.hparams, self.model.embedding.value
        if h.r_drop:  # two passes, whose masks differ, as one batch
            source_BM, target_BL = (tf.concat([ids, ids], axis=0) for ids in (source_BM, target_BL))
        blocks_JD = vocabulary_blocks(tf.convert_to_tensor(embedding))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((blocks_JD, self.variables))
            memory_BMD = self.model.encode(source_BM, seed)
            states_BLD = self.model.decode(target_BL, memory_BMD, source_BM, seed)
            target_T = tf.reshape(target_BL, [-1])
            states_TD = tf.reshape(states_BLD, [-1, states_BLD.shape[-1]])
            if not self.jit_compile:  # XLA does not support shapes that depend on values
                real_T = tf.where(target_T != PAD)[:, 0]
                states_TD, target_T = tf.gather(states_TD, real_T), tf.gather(target_T, real_T)
            rows_TD = tf.gather(embedding, target_T)
            numbers = h.label_smoothing, 1 / divisor, h.r_drop
            mean_loss, loss = projected_loss(states_TD, blocks_JD, rows_TD, target_T, *numbers)
        d_blocks_JD, gradients = tape.gradient(mean_loss, (blocks_JD, self.variables))
        # concatenated here, while memory is free: at the end it is fragmented, and base needs 60 MB more
        d_matrix_VD = tf.concat(d_blocks_JD, axis=0)
        looked_up = next(at for at, variable in enumerate(self.variables) if variable is embedding)
        rows = gradients[looked_up]
        gradients[looked_up] = tf.tensor_scatter_nd_add(d_matrix_VD, rows.indices[:, None], rows.values)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss


def _target_tokens(element: ReplicaInputs) -> tf.Tensor:
    return tf.math.count_nonzero(element["targets"] != PAD, dtype=tf.float32)


def pad_to_bucket(source_BM: tf.Tensor, target_BL: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Pads a micro-batch to its `bucket_sizes`, so that XLA compiles few programs."""
    (batch, source_length), target_length = tf.unstack(tf.shape(source_BM)), tf.shape(target_BL)[1]
    size_BL = bucket_sizes(tf.stack([batch, source_length, target_length]))

    def padded(ids: tf.Tensor) -> tf.Tensor:
        return tf.pad(ids, tf.stack([tf.zeros_like(size_BL), size_BL - tf.shape(ids)], axis=1))

    return padded(source_BM), padded(target_BL)


def bucket_sizes(sizes: tf.Tensor) -> tf.Tensor:
    """Returns the padded sizes (B, length) [..., 2] for micro-batches of (B, M, L) [..., 3], int32.

    Both sides are padded to the same length. Each size is rounded up to one of `BUCKET_SIZES`. Separate lengths would
    give ten times as many shapes (`python -m benchmarks.pipeline` counts them).
    """
    numbers = tf.stack([sizes[..., 0], tf.reduce_max(sizes[..., 1:], axis=-1)], axis=-1)
    above = tf.searchsorted(BUCKET_SIZES, tf.reshape(numbers, [-1]))
    return tf.reshape(tf.gather(BUCKET_SIZES, above), tf.shape(numbers))


def validate_settings(problem: Problem, hparams: HParams) -> None:
    """Raises ValueError if the longest sentence does not fit in a micro-batch, or has more tokens than positions.

    Learned positions have no row beyond `max_positions`. Decoding and evaluation cut longer sentences.
    """
    if problem.max_length > hparams.max_positions:
        raise ValueError(
            f"max_length must be at most max_positions = {hparams.max_positions:,}. Received: max_length="
            f"{problem.max_length:,}; raise max_positions, or prepare the data with a lower max_length"
        )
    parts = batching.num_parts(hparams.batch_tokens)
    longest = hparams.batch_tokens // parts
    if problem.max_length > longest:
        raise ValueError(
            f"max_length must be at most batch_tokens / {parts} = {longest:,}. Received: max_length="
            f"{problem.max_length:,}; raise batch_tokens, or prepare the data with a lower max_length"
        )


def default_microbatch_tokens(hparams: HParams, replicas: int, jit_compile: bool = False) -> int:
    """Returns the default tokens per side of a micro-batch.

    On a GPU, where launching each operation has a cost, it is the device's complete share of a step. On a CPU it is
    what the caches hold, shared by the micro-batches that are computed in parallel; XLA computes one at a time.
    """
    if tf.config.list_physical_devices("GPU"):
        return math.ceil(hparams.batch_tokens / replicas)
    shares = microbatch_shares(hparams) if replicas == 1 and not jit_compile else 1
    return math.ceil(batching.part_tokens(hparams.batch_tokens) / shares)


def first_microbatch_tokens(run: Run, options: TrainingOptions, replicas: int, machines: int = 1) -> int:
    """Returns the initial micro-batch size. On one machine it is at most the size known to fit its devices."""
    wanted = options.microbatch_tokens or default_microbatch_tokens(run.hparams, replicas, options.jit_compile)
    known = run.training if machines == 1 and Run.exists(run.directory) else TrainingRecord()
    held = known.held_tokens if known.device == hardware.name() else None
    return min(wanted, held or wanted)


def make_evaluator(model: Transformer, label_smoothing: float) -> Any:
    """Returns a function from source [B, M] and target [B, L] to their `Loss`, without dropout."""

    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(autograph=False, input_signature=[ids, ids])
    def evaluate(source_BM: tf.Tensor, target_BL: tf.Tensor) -> Loss:
        states_BLD = model.decode(target_BL, model.encode(source_BM), source_BM)
        real_T2 = tf.where(target_BL != PAD)
        logits_TV = model.logits(tf.gather_nd(states_BLD, real_T2))
        return smoothed_cross_entropy(logits_TV, tf.gather_nd(target_BL, real_T2), label_smoothing)

    return evaluate
