"""`dry_run`: what a training will be and take, before it is begun. It trains nothing and writes nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching, padding_statistics
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import bytes_in, nearest_folder
from t2t_repro.log import report as log
from t2t_repro.problem import Problem
from t2t_repro.registry import HPARAMS, RECORDS
from t2t_repro.run import Run
from t2t_repro.training import hardware, memory
from t2t_repro.training import precision as precisions
from t2t_repro.training.dry_run.assumed_data import MEAN_LENGTH, assumed
from t2t_repro.training.dry_run.profiler import Flight
from t2t_repro.training.metrics import clock
from t2t_repro.training.trainer import (
    MakeSampler,
    checkpoints_kept,
    chosen_precision,
    must_fit,
    only_trainer,
)

GIB = 2**30
BUSY = 0.2  # by how much the rate of products changes at the least if other work slows the machine


@dataclass(frozen=True)
class Forecast:
    """What `dry_run` has found."""

    steps: int  # still to do
    steps_per_epoch: float  # NaN if the data is not prepared
    tokens_per_second: float  # real target tokens
    seconds_per_update: float
    startup_seconds: float  # of the graph
    sampling_seconds: float  # of the graph that decodes samples
    evaluation_seconds: float  # of one, its samples included
    seconds: float  # all of these, to the end
    peak_bytes: int  # of the fullest GPU, or of the process
    disk_bytes: int  # of the checkpoints that are kept, the newest besides, and one more while it is written
    flops: float  # of all steps, from the first


def say(line: str) -> None:
    """Prints a line at once: what follows it may take long, or the process with it."""
    print(line, flush=True)


def dry_run(
    problem: Problem,
    hparams: HParams,
    data_dir: str,
    output_dir: str,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
    *,
    show: Callable[[str], None] = say,
    report: Callable[[str], None] = log,
    sampler: MakeSampler | None = None,
) -> Forecast:
    """Estimates what `train` with the same arguments would do, and shows it in lines of at most 80 columns.

    `data_dir` holds data of `problem` (`preparation.provenance` compares it), or none. Preparing it may take hours and
    is not done here: pairs of `assumed` lengths stand for it, and nothing is evaluated. `report` is called with a line
    before each measurement.

    Raises ValueError if `train` would, or if memory or disk do not suffice; `OutOfMemory` if another process may find
    that they do; FileNotFoundError if there is a run to continue without its data.
    """
    must_fit(problem, hparams)
    precision = chosen_precision(options.precision, output_dir)
    precisions.allow_tf32(precision == "tf32")
    directory = os.path.join(data_dir, problem.name)
    if not Dataset.exists(directory) and not Run.exists(output_dir):
        run = Run(output_dir, problem, hparams, data_dir, options.seed, precision, "")
        run.can_start()
        report("dry run: the data is not prepared; pairs of random tokens take its place")
        with assumed(problem) as dataset:
            return _estimate(Flight(run, dataset, problem.vocab_size, None, options, report, known=False), show)
    dataset = Dataset.open(directory)
    vocabulary = Vocabulary(dataset.vocabulary)
    run = Run(output_dir, problem, hparams, data_dir, options.seed, precision, vocabulary.sha256)
    run.can_start()
    _must_be_free(run)
    return _estimate(Flight(run, dataset, vocabulary.size, sampler, options, report), show)


def _estimate(flight: Flight, show: Callable[[str], None]) -> Forecast:
    output_dir, options = flight.run.directory, flight.options
    for line in _plan(flight):
        show(line)
    flight = _measured(flight, show)
    forecast = _forecast(flight, options)
    for line in _outcome(flight, forecast):
        show(line)
    free = shutil.disk_usage(nearest_folder(output_dir)).free
    if forecast.disk_bytes > free:
        raise ValueError(
            f"does not fit: checkpoints take {_size(forecast.disk_bytes)} and {_size(free)} are free in "
            f"{nearest_folder(output_dir)!r}; give another --output_dir, "
            "or keep fewer (--override=average_checkpoints=5)"
        )
    return forecast


def _measured(flight: Flight, show: Callable[[str], None]) -> Flight:
    """Returns `flight` when it is done, or one in smaller micro-batches, as `train` would continue."""
    while True:
        try:
            flight.measure()
            return flight
        except tf.errors.OpError as error:
            if not memory.ran_out(error):
                raise
            fails, h = f"out of memory {flight.at}", flight.run.hparams
            if flight.trained or not batching.may_halve(h.batch_tokens, flight.count, flight.run.problem.max_length):
                raise ValueError(f"does not fit: {fails}; {memory.SMALLER} ({error.message:.100})") from None
        smaller = math.ceil(h.batch_tokens / (2 * flight.count))
        for line in _wrapped("", f"{fails}; once more with micro-batches of {smaller:,} tokens"):
            show(line)
        if flight.replicas > 1:
            raise memory.OutOfMemory(f"does not fit: {fails}; set microbatch_tokens to {smaller:,}", smaller)
        options = dataclasses.replace(flight.options, microbatch_tokens=smaller)
        flight = Flight(
            flight.run, flight.dataset, flight.vocab_size, flight.sampler, options, flight.report, flight.known
        )


def _plan(flight: Flight) -> Iterator[str]:
    """The lines that need no measuring."""
    run, h = flight.run, flight.run.hparams
    pairs = f"{flight.dataset.record.splits['train'].pairs:,} training pairs"
    if not flight.known:
        longest = f"at most {run.problem.max_length:,}"
        pairs = f"not prepared: lengths are assumed ({MEAN_LENGTH} tokens per side on average, {longest})"
    yield from _wrapped("problem     ", f"{run.problem.name}, {pairs}")
    yield from _wrapped("set         ", f"{h.name}: {h.description}")
    parameters = h.num_parameters(flight.vocab_size)
    yield f"parameters  {parameters:,} with {flight.vocab_size:,} subwords{_papers(h, 'millions')}"
    each = flight.sizes.shape[1]
    step = f"{each} micro-batch{'es' * (each > 1)} per device and step"
    yield from _wrapped(
        "devices     ",
        f"{flight.replicas} x {hardware.name()}, {run.precision}{', XLA' * flight.jit_compile}; {step}",
    )
    statistics = padding_statistics.empty_statistics()
    padding_statistics.add_parts(statistics, flight.sizes, flight.tokens)
    yield ""
    if flight.known and flight.share < 1:
        yield f"of {len(flight.window.rows):,} pairs, a random sample:"
    yield from padding_statistics.format_table(statistics, h.batch_tokens, flight.count).splitlines()
    yield ""


def _forecast(flight: Flight, options: TrainingOptions) -> Forecast:
    h, steps = flight.run.hparams, flight.steps()
    per_update = flight.seconds_per_update()
    updating = flight.startup + steps * per_update
    evaluations = math.ceil(steps / (options.checkpoint_steps or h.checkpoint_steps))
    if options.checkpoint_minutes:
        evaluations = max(evaluations, 1 + int(updating / 60 / options.checkpoint_minutes))
    # weights and the two moments of Adam, float32
    checkpoint = 3 * 4 * h.num_parameters(flight.vocab_size)
    return Forecast(
        steps=steps,
        steps_per_epoch=flight.updates / flight.share if flight.known else math.nan,
        tokens_per_second=float(flight.tokens[..., 1].sum()) / flight.updates / per_update,
        seconds_per_update=per_update,
        startup_seconds=flight.startup,
        sampling_seconds=flight.sampling,
        evaluation_seconds=flight.evaluation,
        seconds=(updating + flight.sampling + evaluations * flight.evaluation) if steps else 0.0,
        peak_bytes=flight.peak,
        disk_bytes=max((checkpoints_kept(h) + 2) * checkpoint - bytes_in(flight.run.checkpoints), 0),
        flops=flight.flops_per_update() * h.train_steps,
    )


def _outcome(flight: Flight, forecast: Forecast) -> Iterator[str]:
    h, total = flight.run.hparams, hardware.total_bytes()
    some = "" if flight.share >= 1 else " (from a sample)"
    shape = " x ".join(f"{n:,}" for n in flight.worst)
    files = [file for split in flight.dataset.record.splits.values() for file in split.shards]
    epoch, data = f"{forecast.steps_per_epoch:,.0f} updates{some}", _size(sum(file.bytes for file in files))
    evaluation = f"evaluation with {forecast.evaluation_seconds:.2g} s each time"
    if not flight.known:
        epoch, data, evaluation = "unknown", "unknown size", "without evaluation"
    busy = f"; that rate changed by {flight.slowed:.0%} meanwhile: other work slows it" * (flight.slowed > BUSY)
    lines = {
        "epoch": f"{epoch}; {forecast.steps:,} to do",
        "speed": f"{forecast.tokens_per_second:,.0f} target tokens/s, {forecast.seconds_per_update:.3g} s an update, "
        f"{flight.rate / flight.matrix_rate:.0%} of products' rate{busy}",
        "time": f"{clock(forecast.seconds)} to the end, {evaluation}",
        "worst": f"a part of {shape} (pairs, source, target): {flight.worst_seconds:.2g} s, and it fits",
        "memory": f"{_size(forecast.peak_bytes)} at most{f' of {_size(total)}' if total else ''}",
        "disk": f"{_size(forecast.disk_bytes)} more for {checkpoints_kept(h)} checkpoints, the newest and the next; "
        f"data: {data}",
        "cost": f"{forecast.flops:.2g} FLOPs in {h.train_steps:,} updates{_papers(h, 'flops')}",
    }
    if flight.jit_compile:
        each = f"{flight.compiling:.2g} s each to compile; what they hold comes on top of the memory"
        lines["XLA"] = f"{flight.programs()} programs for as many shapes, {each}"
    for name, text in lines.items():
        yield from _wrapped(f"{name:<12}", text)


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


def _size(number: float) -> str:
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / 2**20:.1f} MiB"
