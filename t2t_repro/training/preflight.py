"""`dry_run`: what a training will be and take, before it is begun. It computes and writes nothing that stays.

Time is foretold from parts that stand for all: of those that the first window of the data is cut into, evenly chosen by
cost. A part's time goes with its FLOPs; what an update costs besides (the sum over devices, Adam) is measured alone.
Memory is that of the largest update there can be, and of the largest batch of the validation.
"""

from __future__ import annotations

import math
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.cost import training_flops
from t2t_repro.data import batching, fill, pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.model.transformer import Transformer
from t2t_repro.problem import Problem
from t2t_repro.registry import HPARAMS, RECORDS
from t2t_repro.run import Run
from t2t_repro.training import devices, machine
from t2t_repro.training import precision as precisions
from t2t_repro.training.optimizer import Adam
from t2t_repro.training.progress import clock
from t2t_repro.training.trainer import EVALUATION_TOKENS, checkpoints_kept, must_go_together, only_trainer
from t2t_repro.training.update import Updater, make_evaluator

TIMED_SECONDS = 8.0  # for the parts that are timed
MOST_TIMED, LEAST_TIMED = 31, 3
WORST_SECONDS = 20.0  # for the largest update; a loop that adds up parts is as full after two of them as after all
GIB = 2**30


@dataclass(frozen=True)
class Forecast:
    """What `dry_run` has found."""

    steps: int  # still to do
    steps_per_epoch: float
    tokens_per_second: float  # real target tokens
    seconds_per_update: float
    startup_seconds: float  # of the graph
    evaluation_seconds: float  # of one
    seconds: float  # all of these, to the end
    peak_bytes: int  # of the fullest GPU, or of the process
    disk_bytes: int  # of the checkpoints that are kept, and one more while it is written
    flops: float  # of all steps, from the first


def say(line: str) -> None:
    """Prints a line at once: what follows it may take long, or the process with it."""
    print(line, flush=True)


def dry_run(
    problem: Problem,
    hparams: HParams,
    data_dir: str,
    output_dir: str,
    *,
    seed: int = 1,
    precision: str = "auto",
    checkpoint_minutes: float = 10.0,
    checkpoint_steps: int = 0,
    show: Callable[[str], None] = say,
) -> Forecast:
    """Foretells what `train` with the same arguments would do, and shows it in lines of at most 80 columns.

    Raises FileNotFoundError where the data is not prepared, which may take hours and is not done here, and ValueError
    where `train` would, or where memory or disk do not hold it.
    """
    dataset = Dataset.open(os.path.join(data_dir, problem.name))
    dataset.must_be_of(problem)
    must_go_together(problem, hparams, seed)
    vocabulary = Vocabulary(dataset.vocabulary)
    run = Run(output_dir, problem, hparams, data_dir, seed, precisions.resolve(precision), vocabulary.sha256)
    run.can_start()
    _must_be_free(run)
    flight = _Flight(run, dataset, vocabulary.size)
    for line in flight.plan():
        show(line)
    try:
        flight.measure()
    except tf.errors.ResourceExhaustedError as error:
        raise ValueError(f"does not fit: out of memory {flight.at}; {SMALLER} ({error.message:.100})") from None
    forecast = flight.forecast(checkpoint_minutes, checkpoint_steps)
    for line in flight.outcome(forecast):
        show(line)
    free = shutil.disk_usage(_nearest(output_dir)).free
    if forecast.disk_bytes > free:
        raise ValueError(
            f"does not fit: checkpoints take {_size(forecast.disk_bytes)} and {_size(free)} are free in "
            f"{_nearest(output_dir)!r}; give another --output_dir, or keep fewer (--override=average_checkpoints=5)"
        )
    return forecast


SMALLER = "take a smaller set, --precision=bfloat16, or --override=batch_tokens=2048"


class _Flight:
    """A training that is taken to pieces: model, optimizer, and the parts of its data."""

    def __init__(self, run: Run, dataset: Dataset, vocab_size: int):
        self.run, self.dataset, self.vocab_size = run, dataset, vocab_size
        self.at = "at the start"
        self.strategy = tf.distribute.MirroredStrategy()
        self.replicas = self.strategy.num_replicas_in_sync
        epoch = pipeline.windows(
            dataset.shards("train"), run.hparams.batch_tokens, run.seed, epoch=0, replicas=self.replicas
        )
        self.window = next(epoch)
        self.sizes, self.tokens = self.window.parts()  # [U R, A, 3] and [U R, A, 2]
        self.costs = training_flops(run.hparams, vocab_size, *np.moveaxis(self.sizes, -1, 0), self.tokens[..., 1])
        self.share = len(self.window.rows) / dataset.record["splits"]["train"]["pairs"]
        self.updates = len(self.sizes) // self.replicas

    # What is planned

    def plan(self) -> Iterator[str]:
        """The lines that need no measuring."""
        run, h = self.run, self.run.hparams
        yield f"problem     {run.problem.name}, {self.dataset.record['splits']['train']['pairs']:,} training pairs"
        yield from _wrapped("set         ", f"{h.name}: {h.description}")
        parameters = h.num_parameters(self.vocab_size)
        yield f"parameters  {parameters:,} with {self.vocab_size:,} pieces{_papers(h, 'millions')}"
        parts = batching.num_parts(h.batch_tokens)
        yield (
            f"devices     {self.replicas} x {devices.name()}, {run.precision}; an update of {parts} part"
            f"{'s' * (parts > 1)}, {self.sizes.shape[1]} a device"
        )
        fills = [fill.Fill() for _ in range(len(fill.BOUNDS) + 1)]
        fill.add_parts(fills, self.sizes, self.tokens)
        yield ""
        if self.share < 1:
            yield f"of {len(self.window.rows):,} pairs, a random sample:"
        yield from fill.show(fills, h.batch_tokens).splitlines()
        yield ""

    # What is measured

    def measure(self) -> None:
        run = self.run
        with self.strategy.scope():
            keras.utils.set_random_seed(run.seed)
            self.model = Transformer(self.vocab_size, run.hparams, dtype=precisions.POLICIES[run.precision])
            optimizer = Adam([weight.value for weight in self.model.trainable_variables], run.hparams)
            updater = Updater(self.model, optimizer, run.hparams, run.seed)
        chosen = self._chosen()
        spec = self._distributed(chosen[:1]).element_spec
        self.update = updater.compiled(spec)
        self.at = "on a part of middling size"
        self.startup = self._seconds(chosen[0])  # makes the graph
        self.matrix_rate = machine.matrix_rate(run.precision, self.replicas)
        self._measure_updates(chosen)
        self._measure_worst()
        self._measure_evaluation()
        self.peak = machine.peak_bytes()

    def _chosen(self) -> list[np.ndarray]:
        """For each of some ranks of cost, from the middle outwards, the parts [R, A, 2] of one element of each device:
        one part alone in each."""
        spans = self.window.spans.reshape(-1, 2)
        by_cost = np.argsort(self.costs.reshape(-1), kind="stable")
        by_cost = by_cost[self.costs.reshape(-1)[by_cost] > 0]
        chosen = []
        for rank in _ranks(MOST_TIMED):
            first = min(int(rank * len(by_cost)), max(len(by_cost) - self.replicas, 0))
            element = np.zeros((self.replicas, self.sizes.shape[1], 2), np.int64)
            for device, part in enumerate(by_cost[first : first + self.replicas]):
                element[device, 0] = spans[part]
            chosen.append(element)
        return chosen

    def _measure_updates(self, chosen: list[np.ndarray]) -> None:
        """How many seconds a FLOP takes, and an update besides."""
        self.besides = 0.0
        if self.sizes.shape[1] > 1:  # else a part is all of an update, and its time that of one
            nothing = np.zeros_like(chosen[0])
            self._seconds(nothing)
            self.besides = self._seconds(nothing)
        seconds = flops = 0.0
        started = time.perf_counter()
        self.startup -= self._seconds(chosen[0])
        for number, spans in enumerate(chosen):
            if number >= LEAST_TIMED and time.perf_counter() - started > TIMED_SECONDS:
                break
            seconds += max(self._seconds(spans) - self.besides, 0.0)
            flops += self.done_flops
        self.rate = flops / max(seconds, 1e-9)

    def _measure_worst(self) -> None:
        """Runs the largest update, all parts of it or, where that takes long, as many as fill the memory."""
        parts = self.sizes.shape[1]
        self.worst = self._worst()
        flops = parts * self.replicas * self._cost(*self.worst)
        self.worst_parts = parts if flops / self.rate < WORST_SECONDS else min(parts, 2)
        self.at = f"on {self.worst_parts} parts of {' x '.join(f'{n:,}' for n in self.worst)} (pairs, source, target)"
        batch, source, target = self.worst
        pairs = {
            side: tf.RaggedTensor.from_tensor(tf.ones((batch, width), tf.int32), row_splits_dtype=tf.int64)
            for side, width in (("inputs", source), ("targets", target))
        }
        span = np.zeros((self.replicas, parts, 2), np.int64)
        span[:, : self.worst_parts] = (0, batch)
        lengths = np.tile(np.array([[source, target]]), (batch, 1))
        window = pipeline.Window(pairs, lengths, np.arange(batch), span)
        self.worst_seconds = self._seconds(span, window)

    def _worst(self) -> tuple[int, int, int]:
        """(B, M, L) of the part whose numbers between the layers take the most memory. Where the window is not all of
        the data, or of the run: as many of the longest pairs as a part holds."""
        sizes = self.sizes.reshape(-1, 3)
        if self.share < 1 and self._steps() > self.updates:
            longest = [self.dataset.record["splits"]["train"]["length"][side]["max"] for side in ("inputs", "targets")]
            h = self.run.hparams
            batch = h.batch_tokens // batching.num_parts(h.batch_tokens) // max(longest)
            sizes = np.concatenate([sizes, [[max(batch, 1), *longest]]])
        held = [_numbers_held(self.run.hparams, *size) for size in sizes]
        return tuple(sizes[int(np.argmax(held))].tolist())

    def _measure_evaluation(self) -> None:
        """Evaluates the batch of the validation with the most positions, and foretells the time of all of them."""
        self.evaluation = 0.0
        if not self.dataset.has("validation"):
            return
        self.at = "in the evaluation"
        batches = list(pipeline.evaluation_batches(self.dataset.shards("validation"), EVALUATION_TOKENS))
        sizes = [int(tf.size(batch["targets"])) for batch in batches]
        largest = batches[int(np.argmax(sizes))]
        evaluate = make_evaluator(self.model, self.run.hparams.label_smoothing)
        evaluate(largest["inputs"], largest["targets"]).numpy()  # makes the graph
        start = time.perf_counter()
        evaluate(largest["inputs"], largest["targets"]).numpy()
        self.evaluation = (time.perf_counter() - start) * sum(sizes) / max(sizes)

    def _seconds(self, spans: np.ndarray, window: pipeline.Window | None = None) -> float:
        """Of an update on the parts `spans` [R, A, 2], one element for each device, at a learning rate of 0."""
        (element,) = self._distributed([spans], window)
        start = time.perf_counter()
        sums = self.update(element, tf.constant(1), tf.constant(0.0)).numpy()
        seconds = time.perf_counter() - start
        self.done_flops = float(sums[4])
        return seconds

    def _distributed(self, chosen: list[np.ndarray], window: pipeline.Window | None = None) -> Any:
        data = (window or self.window).elements(np.concatenate(chosen))
        return self.strategy.distribute_datasets_from_function(lambda _: data)

    def _cost(self, batch: int, source: int, target: int) -> float:
        return float(training_flops(self.run.hparams, self.vocab_size, batch, source, target, batch * target))

    # What follows

    def _steps(self) -> int:
        done = self.run.training.get("step", 0) if Run.exists(self.run.directory) else 0
        return max(self.run.hparams.train_steps - done, 0)

    def forecast(self, checkpoint_minutes: float, checkpoint_steps: int) -> Forecast:
        h, steps = self.run.hparams, self._steps()
        flops = float(self.costs.sum()) / self.updates
        per_update = self.besides + flops / self.rate
        updating = self.startup + steps * per_update
        if checkpoint_steps:
            evaluations = math.ceil(steps / checkpoint_steps)
        else:
            evaluations = 1 + int(updating / 60 / max(checkpoint_minutes, 1e-9)) if checkpoint_minutes else steps
        # weights and the two moments of Adam, float32
        checkpoint = 3 * 4 * h.num_parameters(self.vocab_size)
        return Forecast(
            steps=steps,
            steps_per_epoch=self.updates / self.share,
            tokens_per_second=float(self.tokens[..., 1].sum()) / self.updates / per_update,
            seconds_per_update=per_update,
            startup_seconds=self.startup,
            evaluation_seconds=self.evaluation,
            seconds=(updating + evaluations * self.evaluation) if steps else 0.0,
            peak_bytes=self.peak,
            disk_bytes=max((checkpoints_kept(h) + 1) * checkpoint - _bytes_in(self.run.checkpoints), 0),
            flops=flops * h.train_steps,
        )

    def outcome(self, forecast: Forecast) -> Iterator[str]:
        h, total = self.run.hparams, machine.total_bytes()
        reached = self.rate / self.matrix_rate
        some = "" if self.share >= 1 else " (from a sample)"
        parts = f"{self.worst_parts} part{'s' * (self.worst_parts > 1)}"
        yield f"epoch       {forecast.steps_per_epoch:,.0f} updates{some}; {forecast.steps:,} to do"
        yield (
            f"speed       {forecast.tokens_per_second:,.0f} target tokens/s, "
            f"{forecast.seconds_per_update:.3g} s an update, {reached:.0%} of products' rate"
        )
        yield (
            f"time        {clock(forecast.seconds)} to the end, evaluation with "
            f"{forecast.evaluation_seconds:.2g} s each time"
        )
        shape = " x ".join(f"{n:,}" for n in self.worst)
        yield f"worst       {parts} of {shape} (pairs, source, target): {self.worst_seconds:.2g} s, and it fits"
        yield f"memory      {_size(forecast.peak_bytes)} at most{f' of {_size(total)}' if total else ''}"
        data = sum(file["bytes"] for split in self.dataset.record["splits"].values() for file in split["shards"])
        yield (
            f"disk        {_size(forecast.disk_bytes)} more for {checkpoints_kept(h)} checkpoints and the next, "
            f"{_size(data)} of data are there"
        )
        yield f"cost        {forecast.flops:.2g} FLOPs in {h.train_steps:,} updates{_papers(h, 'flops')}"


def _numbers_held(hparams: HParams, batch: int, source: int, target: int) -> float:
    """About how many numbers the backward pass wants of the forward one: what grows with positions, and with their
    pairs."""
    h = hparams
    positions = (source + target) * (8 * h.d_model + 2 * h.d_ff)
    scores = h.num_heads * (source * source + target * target + source * target)
    return h.num_layers * batch * float(positions + scores)


def _ranks(number: int) -> Iterator[float]:
    """1/2, 1/4, 3/4, 1/8, 5/8, ...: wherever it ends, spread over the range from 0 to 1 (van der Corput)."""
    for n in range(1, number + 1):
        yield int(f"{n:b}"[::-1], 2) / 2 ** n.bit_length()


def _must_be_free(run: Run) -> None:
    """Raises ValueError where a trainer is at work in the run's directory; its lock is held for that moment alone."""
    if os.path.exists(os.path.join(run.directory, ".lock")):
        with only_trainer(run):
            pass


def _papers(hparams: HParams, figure: str) -> str:
    """What the paper prints for the set, where it is one of the paper's and altered in nothing but its length."""
    registered, record = HPARAMS.get(hparams.name), RECORDS.get(hparams.name)
    if registered is None or record is None or hparams.changes(registered).keys() - {"train_steps"}:
        return ""
    if figure == "millions":
        return f"; the paper prints {record.millions} million" if record.millions else ""
    return f"; Table 2: {record.flops:.1e} in {registered.train_steps:,}" if record.flops else ""


def _wrapped(name: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 80, initial_indent=name, subsequent_indent=" " * len(name))


def _nearest(path: str) -> str:
    """`path`, or the nearest folder above it that is there."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _bytes_in(directory: str) -> int:
    if not os.path.isdir(directory):
        return 0
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())


def _size(number: float) -> str:
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / 2**20:.1f} MiB"
