"""`Flight`: a training taken to pieces and measured, without anything that stays of it.

Time is foretold from parts that stand for all: of those that the first window of the data is cut into, evenly chosen by
cost. A part's time goes with its FLOPs; what an update costs besides (the sum over devices, Adam) is measured alone.
Memory is that of the largest update there can be, and of the largest batch of the validation; and, on a CPU, what grows
with the number of different shapes of products, of which training will meet more than are run here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.flops import training_flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training import hardware
from t2t_repro.training import precision as precisions
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.shape_bucketing import sizes_on_grid
from t2t_repro.training.train_step import Updater, make_evaluator
from t2t_repro.training.trainer import MakeSampler, first_microbatch_tokens

TIMED_SECONDS = 3.0  # for the parts that are timed
MOST_TIMED = 31
LONG = 10.0  # seconds of an update: where one takes more, decoding the samples is less than another
# Products of B M rows, and of B L rows: outputs and two gradients, in each layer the same, and those of two biases.
LINEAR = (3 * 3 + 2, 3 * 5 + 2)
ATTENTION = 3 * 2  # of one B and two lengths


class Flight:
    """Model, optimizer, and the parts of the data. `at` says what is being done, for when it fails, and `trained`
    whether what training does was done."""

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        vocab_size: int,
        sampler: MakeSampler | None = None,
        options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
        report: Callable[[str], None] = lambda line: None,
        known: bool = True,
    ):
        """`report` is called before each measurement. Without `known`, the dataset stands for a text that is not."""
        self.run, self.dataset, self.vocab_size, self.sampler = run, dataset, vocab_size, sampler
        self.report, self.known = report, known
        self.options, self.jit_compile, self.at, self.trained = options, options.jit_compile, "at the start", False
        self.strategy = tf.distribute.MirroredStrategy()
        self.replicas = self.strategy.num_replicas_in_sync
        self.microbatch_tokens = first_microbatch_tokens(run, options, self.replicas)
        self.bytes_per_shape = hardware.bytes_per_shape(run.precision)  # before anything is freed that it could use
        shards, tokens = dataset.shards("train"), run.hparams.batch_tokens
        self.window = next(input_pipeline.windows(shards, tokens, run.seed, 0, self.replicas, self.microbatch_tokens))
        self.sizes, self.tokens = self.window.parts()  # [U R, A, 3] and [U R, A, 2]
        self.count = self.replicas * self.sizes.shape[1]  # micro-batches of a step
        self.costs = training_flops(
            run.hparams,
            vocab_size,
            batch=self.sizes[..., 0],
            source=self.sizes[..., 1],
            target=self.sizes[..., 2],
            tokens=self.tokens[..., 1],
        )
        self.run_sizes: list[tuple[int, int, int]] = []  # of the parts that were run
        self.share = known * len(self.window.rows) / dataset.record.splits["train"].pairs
        self.updates = len(self.sizes) // self.replicas

    def steps(self) -> int:
        """Still to do."""
        done = self.run.training.get("step", 0) if Run.exists(self.run.directory) else 0
        return max(self.run.hparams.train_steps - done, 0)

    def flops_per_update(self) -> float:
        return float(self.costs.sum()) / self.updates

    def seconds_per_update(self) -> float:
        return self.besides + self.flops_per_update() / self.rate

    # What is measured

    def measure(self) -> None:
        run = self.run
        with self.strategy.scope():
            keras.utils.set_random_seed(run.seed)
            self.model = Transformer(self.vocab_size, run.hparams, dtype=precisions.POLICIES[run.precision])
            optimizer = Adam(
                [weight.value for weight in self.model.trainable_variables],
                run.hparams,
                scaled=run.precision == "float16",
            )
            how = run.seed, self.microbatch_tokens, self.jit_compile
            self.updater = Updater(self.model, optimizer, run.hparams, *how)
        chosen = self._chosen()
        training_data = self._training_data()
        self.update = self.updater.compiled(training_data.element_spec)
        self._start("on a part of middling size", "builds the graph of a step")
        self.first = chosen[0][0]
        if self.sizes.shape[1] > 1:  # else a part is all of an update, and its time that of one
            self.first = np.zeros_like(self.first)  # of no part
        self.startup = self._seconds(self.first)  # makes the graph
        rates = [hardware.matrix_rate(run.precision, self.replicas)]
        elements = iter(training_data)
        next(elements)  # from now on it reads ahead, and holds what training holds of the data
        self._measure_worst()
        self.trained = True
        self._measure_updates(chosen)
        rates.append(hardware.matrix_rate(run.precision, self.replicas))  # the machine may have lacked a core before
        self.matrix_rate, self.slowed = max(rates), max(rates) / min(rates) - 1
        self._measure_evaluation()
        self.peak = hardware.peak_bytes() + self._growth()
        del elements

    def _start(self, at: str, what: str) -> None:
        self.at = at
        self.report(f"dry run: {what}")

    def _growth(self) -> int:
        """Bytes that training will hold of shapes that were not run here."""
        if self.jit_compile:
            return 0  # XLA's programs are not foretold
        coming = self.sizes[: self.replicas * self.steps()].reshape(-1, 3)
        here = np.array([*self.run_sizes, self.worst])
        more = _shapes_kept(np.concatenate([here, coming])) - _shapes_kept(here)
        return int(more * self.bytes_per_shape)

    def programs(self) -> int:
        """How many XLA will compile for the parts of the window that training comes to."""
        coming = self.sizes[: self.replicas * self.steps()].reshape(-1, 3)
        return len(np.unique(sizes_on_grid(tf.constant(coming[coming[:, 0] > 0], tf.int32)), axis=0))

    def _chosen(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each of some ranks of cost, from the middle outwards, the parts [R, A, 2] of one element of each device,
        one part alone in each, and their sizes [R, 3]."""
        sizes = self.sizes.reshape(-1, 3)
        spans = self.window.spans.reshape(-1, 2)
        by_cost = np.argsort(self.costs.reshape(-1), kind="stable")
        by_cost = by_cost[self.costs.reshape(-1)[by_cost] > 0]
        chosen = []
        for rank in _ranks(MOST_TIMED):
            first = min(int(rank * len(by_cost)), max(len(by_cost) - self.replicas, 0))
            element = np.zeros((self.replicas, self.sizes.shape[1], 2), np.int64)
            parts = by_cost[first : first + self.replicas]
            element[: len(parts), 0] = spans[parts]
            chosen.append((element, sizes[parts]))
        return chosen

    def _measure_updates(self, chosen: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """How many seconds a FLOP takes, and an update besides."""
        self.report("dry run: times micro-batches of other sizes")
        again = self._seconds(self.first)
        to_come = self.programs() - self.first.any()  # but for the first part's, where it was one
        self.startup += self.compiling * to_come - again
        self.besides = 0.0 if self.first.any() else again
        seconds = flops = 0.0
        started = time.perf_counter()
        for spans, sizes in chosen:
            if self.jit_compile:
                self._seconds(spans)  # compiles
            seconds += max(self._seconds(spans) - self.besides, 0.0)
            flops += self.done_flops
            self.run_sizes += map(tuple, sizes)
            if time.perf_counter() - started > TIMED_SECONDS:
                break
        self.rate = flops / max(seconds, 1e-9)

    def _measure_worst(self) -> None:
        """Runs the largest part there can be; where parts are added up, after one of a single pair, for the loop is as
        full in its second turn as in any."""
        self.worst = self._worst()
        batch, source, target = self.worst
        largest = f"{batch:,} x {source:,} x {target:,} (pairs, source, target)"
        self._start(f"on a part of {largest}", f"computes the largest micro-batch, {largest}")
        pairs = {
            side: tf.RaggedTensor.from_tensor(tf.ones((batch + 1, width), tf.int32), row_splits_dtype=tf.int64)
            for side, width in (("inputs", source), ("targets", target))
        }
        span = np.zeros((self.replicas, self.sizes.shape[1], 2), np.int64)
        turns = [(batch, batch + 1), (0, batch)][-self.sizes.shape[1] :]
        span[:, : len(turns)] = turns
        lengths = np.tile(np.array([[source, target]]), (batch + 1, 1))
        window = input_pipeline.Window(pairs, lengths, np.arange(batch + 1), span)
        self.worst_seconds = self._seconds(span, window)
        self.compiling = 0.0
        if self.jit_compile:
            again = self._seconds(span, window)
            self.compiling = max(self.worst_seconds - again, 0.0) / len(turns)  # each of another shape
            self.worst_seconds = again

    def _worst(self) -> tuple[int, int, int]:
        """(B, M, L) of the part whose numbers between the layers take the most memory. Where the window is not all of
        the data, or of the run: as many of the longest pairs as a part holds."""
        sizes = self.sizes.reshape(-1, 3)
        if self.share < 1 and self.steps() > self.updates:
            longest = self.dataset.record.splits["train"].max_lengths
            parts = batching.num_parts(self.run.hparams.batch_tokens)
            pairs = parts * (self.run.hparams.batch_tokens // parts // max(longest))
            sizes = np.concatenate([sizes, [[math.ceil(pairs / self.count), *longest]]])
        held = [_numbers_held(self.run.hparams, *size) for size in sizes]
        return tuple(sizes[int(np.argmax(held))].tolist())

    def _training_data(self) -> tf.data.Dataset:
        """The updates as training reads them."""
        shards, tokens = self.dataset.shards("train"), self.run.hparams.batch_tokens
        return input_pipeline.training_batches(
            shards,
            tokens,
            self.run.seed,
            0,
            replicas=self.replicas,
            microbatch_tokens=self.microbatch_tokens,
            epochs=None,
        )

    def _measure_evaluation(self) -> None:
        """Evaluates the batch of the validation with the most positions, and foretells the time of all of them; decodes
        the samples, where there is a sampler and that counts."""
        self.evaluation = self.sampling = 0.0
        if not self.dataset.has("validation"):
            return
        self._start("in the evaluation", "evaluates the validation text")
        batches = list(input_pipeline.evaluation_batches(self.dataset.shards("validation")))
        sizes = [int(tf.size(batch["targets"])) for batch in batches]
        largest = batches[int(np.argmax(sizes))]
        evaluate = make_evaluator(self.model, self.run.hparams.label_smoothing)
        evaluate(largest["inputs"], largest["targets"]).numpy()  # makes the graph
        start = time.perf_counter()
        evaluate(largest["inputs"], largest["targets"]).numpy()
        self.evaluation = (time.perf_counter() - start) * sum(sizes) / max(sizes)
        if self.sampler and self.seconds_per_update() < LONG:
            self._start("in the decoding of samples", "decodes samples")
            sample = self.sampler(self.model, self.run, self.dataset)
            start = time.perf_counter()
            sample()  # makes the graph
            middle = time.perf_counter()
            sample()
            each = time.perf_counter() - middle
            self.evaluation += each
            self.sampling = max(middle - start - each, 0.0)

    def _seconds(self, spans: np.ndarray, window: input_pipeline.Window | None = None) -> float:
        """Of an update on the parts `spans` [R, A, 2], one element for each device, at a learning rate of 0."""
        elements = self.updater.take(iter((window or self.window).elements(spans)))
        start = time.perf_counter()
        sums = self.update(elements, tf.constant(1), tf.constant(0.0)).numpy()
        seconds = time.perf_counter() - start
        self.done_flops = float(sums[4])
        return seconds


def _numbers_held(hparams: HParams, batch: int, source: int, target: int) -> float:
    """About how many numbers the backward pass wants of the forward one: what grows with positions, and with their
    pairs."""
    h = hparams
    positions = (source + target) * (8 * h.d_model + 2 * h.d_ff)
    scores = h.num_heads * (source * source + target * target + source * target)
    return h.num_layers * batch * float(positions + scores)


def _shapes_kept(sizes_N3: np.ndarray) -> int:
    """How many shapes of products TensorFlow keeps when it has run parts of these sizes."""

    def different(*lengths_N: np.ndarray) -> int:
        return len(np.unique(np.stack(lengths_N), axis=1).T)

    batch, source, target = sizes_N3[sizes_N3[:, 0] > 0].T
    linear = sum(each * different(batch * length) for each, length in zip(LINEAR, (source, target), strict=True))
    attention = sum(different(batch, *pair) for pair in ((source, source), (target, target), (source, target)))
    return min(linear, hardware.SHAPES_KEPT) + min(ATTENTION * attention, hardware.SHAPES_KEPT)


def _ranks(number: int) -> Iterator[float]:
    """1/2, 1/4, 3/4, 1/8, 5/8, ...: wherever it ends, spread over the range from 0 to 1 (van der Corput)."""
    for n in range(1, number + 1):
        yield int(f"{n:b}"[::-1], 2) / 2 ** n.bit_length()
