"""Profiles a training run without leaving anything on disk.

Time is estimated from a stratified sample, by cost, of the micro-batches in the first window of the data. The time of a
micro-batch is assumed proportional to its FLOPs. The rest of a step (the sum over devices, Adam) is measured
separately. Memory is measured in the largest possible step, and in the largest validation batch. docs/reproducing.md
lists the limits of these estimates.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.corpus_weights import pairs_per_epoch
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.data.validation_sets import open_validation_sets
from t2t_repro.flops import training_flops
from t2t_repro.run import Run, TrainingRecord
from t2t_repro.selection import Selection
from t2t_repro.training import hardware
from t2t_repro.training.loss import total
from t2t_repro.training.optimizer import MovingAverage
from t2t_repro.training.parallel import num_parallel_batches, parallel_map
from t2t_repro.training.train_step import TrainStep, bucket_sizes, first_microbatch_tokens, make_evaluator, make_model
from t2t_repro.training.validation import MakePreview

TIMED_SECONDS = 3.0  # for timing all micro-batches of the sample
MOST_TIMED = 31
LONG = 10.0  # seconds per step: above it, decoding the samples takes less than one step


class Profiler:
    """Measures the time and memory of a run's steps and evaluations.

    `stage` names the current measurement for error messages. `trained` is true after the largest step was computed.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        vocab_size: int,
        preview: MakePreview | None = None,
        options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
        report: Callable[[str], None] = lambda line: None,
        prepared: bool = True,
    ):
        """Reads the first window; `measure` does the rest.

        Args:
          run: the run to profile.
          dataset: its data, or data of assumed lengths.
          vocab_size: the size of the vocabulary.
          preview: see `train`.
          options: see `train`.
          report: called with a line before each measurement.
          prepared: whether `dataset` is the run's own.
        """
        self.run, self.dataset, self.vocab_size, self.preview = run, dataset, vocab_size, preview
        self.report, self.prepared = report, prepared
        self.options, self.jit_compile = options, options.jit_compile
        self.stage, self.trained = "at the start", False
        self.strategy = tf.distribute.MirroredStrategy()
        self.replicas = self.strategy.num_replicas_in_sync
        self.microbatch_tokens = first_microbatch_tokens(run, options, self.replicas)
        plain = TrainingText(dataset.shards("train"), run.hparams.batch_tokens, run.seed)
        self.text = TrainingText.of(run, dataset) if prepared else plain
        layout = Layout(self.replicas, microbatch_tokens=self.microbatch_tokens)
        self.window = next(self.text.windows(epoch=0, layout=layout))
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
        self.share = prepared * len(self.window.rows) / pairs_per_epoch(dataset, self.text.weights)
        self.window_steps = len(self.sizes) // self.replicas

    def with_microbatches(self, microbatch_tokens: int) -> Profiler:
        """Returns a new profiler with another micro-batch size."""
        options = replace(self.options, microbatch_tokens=microbatch_tokens)
        return Profiler(
            self.run, self.dataset, self.vocab_size, self.preview, options, self.report, prepared=self.prepared
        )

    def steps(self) -> int:
        """Returns the number of remaining steps."""
        known = self._known()
        scores, options = replace(known.selection or Selection(), by=self.options.validate_by), self.options
        if scores.exhausted(options.patience) or scores.out_of_time(options.train_minutes, known.seconds or 0.0):
            return 0
        return max(self.run.hparams.train_steps - (known.step or 0), 0)

    def done(self) -> int:
        """Returns the number of steps that the run has taken."""
        return self._known().step or 0

    def _known(self) -> TrainingRecord:
        return self.run.training if Run.exists(self.run.directory) else TrainingRecord()

    def flops_per_step(self) -> float:
        return float(self.costs.sum()) / self.window_steps

    def seconds_per_step(self) -> float:
        return self.fixed_seconds + self.flops_per_step() / self.rate

    def measure(self) -> None:
        """Runs all measurements. Raises `tf.errors.OpError` if memory runs out."""
        run = self.run
        with self.strategy.scope():
            self.model, optimizer = make_model(self.vocab_size, run.hparams, run.seed, run.precision)
            average, sizes = MovingAverage.of(self.model, run.hparams), (self.microbatch_tokens, self.jit_compile)
            self.train_step = TrainStep(self.model, optimizer, run.hparams, run.seed, *sizes, moving_average=average)
        chosen = self._chosen()
        training_data = self.train_step.data(self.text)
        self.take_step = self.train_step.build(training_data.element_spec)
        self._start("on a micro-batch of medium size", "builds the graph of a step")
        self.first = chosen[0]
        if self.sizes.shape[1] > 1:  # else a micro-batch is a complete step
            self.first = np.zeros_like(self.first)  # a step without micro-batches
        self.startup = self._seconds(self.first)  # builds the graph
        parallel = self.replicas * self.train_step.parallel  # products that fill the machine
        rates = [hardware.matrix_rate(run.precision, parallel)]
        elements = iter(training_data)
        next(elements)  # from now on it prefetches, and its buffers use as much memory as in training
        self._measure_worst()
        self.trained = True
        self._measure_steps(chosen)
        rates.append(hardware.matrix_rate(run.precision, parallel))  # the machine may have been busy before
        self.matrix_rate, self.slowed = max(rates), max(rates) / min(rates) - 1
        self._measure_evaluation()
        self.peak = hardware.peak_bytes()
        del elements

    def _start(self, stage: str, what: str) -> None:
        self.stage = stage
        self.report(f"dry run: {what}")

    def programs(self) -> int:
        """Returns the number of programs that XLA compiles for micro-batches that training takes from the window."""
        remaining = self.sizes[: self.replicas * self.steps()].reshape(-1, 3)
        return len(np.unique(bucket_sizes(tf.constant(remaining[remaining[:, 0] > 0], tf.int32)), axis=0))

    def _chosen(self) -> list[np.ndarray]:
        """Returns the spans [R, A, 2] of steps, for ranks of cost from the median.

        A step has the micro-batches that each device computes in parallel, of similar cost.
        """
        parallel = min(self.train_step.parallel, self.sizes.shape[1])
        count = self.replicas * parallel
        spans = self.window.spans.reshape(-1, 2)
        by_cost = np.argsort(self.costs.reshape(-1), kind="stable")
        by_cost = by_cost[self.costs.reshape(-1)[by_cost] > 0]
        chosen = []
        for rank in _ranks(MOST_TIMED):
            first = min(int(rank * len(by_cost)), max(len(by_cost) - count, 0))
            microbatches, filled = by_cost[first : first + count], np.zeros((count, 2), np.int64)
            filled[: len(microbatches)] = spans[microbatches]
            element = np.zeros((self.replicas, self.sizes.shape[1], 2), np.int64)
            element[:, :parallel] = filled.reshape(parallel, self.replicas, 2).swapaxes(0, 1)
            chosen.append(element)
        return chosen

    def _measure_steps(self, chosen: list[np.ndarray]) -> None:
        """Measures the FLOP/s of micro-batches, and the seconds of a step without micro-batches."""
        self.report("dry run: times micro-batches of other sizes")
        again = self._seconds(self.first)
        uncompiled = self.programs() - self.first.any()  # the first step is already compiled if it has a micro-batch
        self.startup += self.compiling * uncompiled - again
        self.fixed_seconds = 0.0 if self.first.any() else again
        seconds = flops = 0.0
        started = time.perf_counter()
        for spans in chosen:
            if self.jit_compile:
                self._seconds(spans)  # compiles
            seconds += max(self._seconds(spans) - self.fixed_seconds, 0.0)
            flops += self.done_flops
            if time.perf_counter() - started > TIMED_SECONDS:
                break
        self.rate = flops / max(seconds, 1e-9)

    def _measure_worst(self) -> None:
        """Computes the largest possible micro-batch, as often as a device computes micro-batches in parallel.

        With gradient accumulation a micro-batch of a single pair precedes it, because the loop reaches its peak memory
        in the second iteration.
        """
        self.worst = self._worst()
        batch, source, target = self.worst
        largest = f"{batch:,} x {source:,} x {target:,} (pairs, source, target)"
        self._start(f"on a micro-batch of {largest}", f"computes the largest micro-batch, {largest}")
        pairs = {
            side: tf.RaggedTensor.from_tensor(tf.ones((batch + 1, width), tf.int32), row_splits_dtype=tf.int64)
            for side, width in (("inputs", source), ("targets", target))
        }
        span = np.zeros((self.replicas, self.sizes.shape[1], 2), np.int64)
        microbatches = [(batch, batch + 1), *[(0, batch)] * self.train_step.parallel][-self.sizes.shape[1] :]
        span[:, : len(microbatches)] = microbatches
        lengths = np.tile(np.array([[source, target]]), (batch + 1, 1))
        window = input_pipeline.Window(pairs, lengths, np.arange(batch + 1), span)
        self.worst_seconds = self._seconds(span, window)
        self.compiling = 0.0
        if self.jit_compile:
            again = self._seconds(span, window)
            self.compiling = max(self.worst_seconds - again, 0.0) / len(microbatches)  # each has another shape
            self.worst_seconds = again

    def _worst(self) -> tuple[int, int, int]:
        """Returns (B, M, L) of the micro-batch whose activations take the most memory.

        If training reads data beyond the window, a micro-batch full of the longest pairs is considered too.
        """
        sizes = self.sizes.reshape(-1, 3)
        if (self.share < 1 or self.text.dropout) and self.steps() > self.window_steps:
            longest = self.dataset.record.splits["train"].max_lengths
            if self.text.dropout:
                longest = [self.run.problem.max_length] * 2
            parts = batching.num_parts(self.run.hparams.batch_tokens)
            pairs = parts * (self.run.hparams.batch_tokens // parts // max(longest))
            sizes = np.concatenate([sizes, [[math.ceil(pairs / self.count), *longest]]])
        held = [_activations(self.run.hparams, *size) for size in sizes]
        return tuple(sizes[int(np.argmax(held))].tolist())

    def _measure_evaluation(self) -> None:
        """Evaluates the validation batch with the most positions, and estimates the time of all batches, also of other
        validation sets.

        Also decodes the samples, if there is a preview and their time matters.
        """
        self.evaluation = self.sampling = 0.0
        if not self.dataset.has("validation"):
            return
        self._start("in the evaluation", "evaluates the validation text")
        parallel = num_parallel_batches()
        tokens, longest = input_pipeline.EVALUATION_TOKENS // parallel, self.run.hparams.max_positions
        texts = self.dataset, *open_validation_sets(self.options.also_validate).values()
        each = (input_pipeline.evaluation_batches(text.shards("validation"), tokens, longest) for text in texts)
        batches = list(itertools.chain.from_iterable(each))
        sizes = [int(tf.size(batch["targets"])) for batch in batches]
        largest = batches[int(np.argmax(sizes))]
        evaluate = make_evaluator(self.model, self.run.hparams.label_smoothing)
        at_once = [(largest["inputs"], largest["targets"])] * parallel
        _, again = _twice(lambda: total(parallel_map(lambda batch: evaluate(*batch), at_once)))
        self.evaluation = again / parallel * sum(sizes) / max(sizes)
        if self.preview and self.seconds_per_step() < LONG:
            self._start("in the decoding of samples", "decodes samples")
            first, again = _twice(self.preview(self.model, self.run, self.dataset))
            self.evaluation += again
            self.sampling = max(first - again, 0.0)

    def _seconds(self, spans: np.ndarray, window: input_pipeline.Window | None = None) -> float:
        """Returns the seconds of a step on the micro-batches `spans` [R, A, 2], with learning rate 0."""
        inputs = self.train_step.next_inputs(iter((window or self.window).elements(spans)))
        start = time.perf_counter()
        metrics = self.take_step(inputs, tf.constant(1), tf.constant(0.0)).numpy()
        seconds = time.perf_counter() - start
        self.done_flops = metrics.flops
        return seconds


def _twice(function: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds of two calls. The first one also builds the graph."""
    start = time.perf_counter()
    function()
    middle = time.perf_counter()
    function()
    return middle - start, time.perf_counter() - middle


def _activations(hparams: HParams, batch: int, source: int, target: int) -> float:
    """Returns the approximate number of activations that the forward pass keeps for the backward pass."""
    h, per_position = hparams, 8 * hparams.d_model + 2 * hparams.d_ff
    encoder_layer = source * per_position + h.num_heads * source * source
    decoder_layer = target * per_position + h.num_heads * (target * target + source * target)
    return batch * float(h.encoder_depth * encoder_layer + h.decoder_depth * decoder_layer)


def _ranks(number: int) -> Iterator[float]:
    """Yields 1/2, 1/4, 3/4, 1/8, 5/8, ...: any prefix is spread evenly over 0 to 1 (van der Corput)."""
    for n in range(1, number + 1):
        yield int(f"{n:b}"[::-1], 2) / 2 ** n.bit_length()
