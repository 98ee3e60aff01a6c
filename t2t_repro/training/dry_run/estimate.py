"""Estimates size, time, memory and disk space of a training run without training or writing anything."""

from __future__ import annotations

import bisect
import math
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching, padding_statistics
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import bytes_in, nearest_folder
from t2t_repro.problem import Problem
from t2t_repro.registry import HPARAMS, RECORDS
from t2t_repro.run import Run
from t2t_repro.selection import must_end_at_last_step
from t2t_repro.system.log import report as log
from t2t_repro.system.out_of_memory import REMEDY, OutOfMemory, is_out_of_memory
from t2t_repro.training import hardware
from t2t_repro.training import precision as precisions
from t2t_repro.training.checkpointing.checkpoints import exclusive_lock
from t2t_repro.training.checkpointing.parent import find_origin
from t2t_repro.training.dry_run.assumed_data import MEAN_LENGTH, assumed
from t2t_repro.training.dry_run.profiler import Profiler
from t2t_repro.training.metrics import clock
from t2t_repro.training.parallel import set_training_threads
from t2t_repro.training.train_step import validate_settings
from t2t_repro.training.training_loop import checkpoints_kept
from t2t_repro.training.validation import MakePreview

GIB = 2**30
BUSY = 0.2  # minimum relative change of the rate of products that counts as other work on the machine

say = partial(print, flush=True)  # the next line may take long


@dataclass(frozen=True)
class Estimate:
    """The result of `dry_run`."""

    steps: int  # remaining
    steps_per_epoch: float  # NaN if the data is not prepared
    tokens_per_second: float  # real target tokens
    seconds_per_step: float
    startup_seconds: float  # building the graph of a step
    sampling_seconds: float  # building the graph that decodes samples
    evaluation_seconds: float  # of one evaluation, including its samples
    seconds: float  # in total, to the end of training
    peak_bytes: int  # of the fullest GPU, or of the process, during the dry run
    disk_bytes: int  # of the regular checkpoints, the newest one, and one that is being written
    flops: float  # of all steps, from the first


def dry_run(
    problem: Problem,
    hparams: HParams,
    data_dir: str,
    output_dir: str,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
    *,
    init_from: str | None = None,
    show: Callable[[str], None] = say,
    report: Callable[[str], None] = log,
    preview: MakePreview | None = None,
) -> Estimate:
    """Estimates what `train` with the same arguments would do, and shows it in lines of at most 80 columns.

    If `data_dir` has no data of `problem`, the data is not prepared, which may take hours. Pairs of `assumed` lengths
    replace it, and the evaluation is not estimated. Existing data must match the problem (`preparation.provenance`
    compares it).

    `show` is called with each line of the estimate, and `report` with a line before each measurement.

    Raises:
      ValueError: if `train` would raise it, or if memory or disk space does not suffice.
      OutOfMemory: if memory ran out, but smaller micro-batches may fit in another process.
      FileNotFoundError: if there is a run to continue but not its data.
    """
    validate_settings(problem, hparams)
    must_end_at_last_step(hparams, options)
    origin = find_origin(init_from, problem, hparams, output_dir) if init_from is not None else None
    problem, parent = (origin.problem, origin.parent) if origin else (problem, None)
    precision = precisions.resolve_for_run(options.precision, output_dir)
    if not options.microbatch_tokens and not options.jit_compile:
        set_training_threads(hparams)
    precisions.allow_tf32(precision == "tf32")
    directory = os.path.join(data_dir, problem.name)
    if not Dataset.exists(directory) and not Run.exists(output_dir):
        run = Run(output_dir, problem, hparams, data_dir, options.seed, precision, "", parent)
        run.can_start()
        report("dry run: the data is not prepared; pairs of random tokens take its place")
        with assumed(problem) as dataset:
            return _estimate(Profiler(run, dataset, problem.vocab_size, None, options, report, prepared=False), show)
    dataset = Dataset.open(directory)
    vocabulary = Vocabulary(dataset.vocabulary)
    if origin:
        dataset.must_have_vocabulary_of(origin.vocabulary_of)
    run = Run(output_dir, problem, hparams, data_dir, options.seed, precision, vocabulary.sha256, parent)
    run.can_start()
    _must_be_free(run)
    return _estimate(Profiler(run, dataset, vocabulary.size, preview, options, report), show)


def _estimate(profiler: Profiler, show: Callable[[str], None]) -> Estimate:
    output_dir = profiler.run.directory
    for line in _plan(profiler):
        show(line)
    profiler = _measured(profiler, show)
    found = _total(profiler)
    for line in _outcome(profiler, found):
        show(line)
    free = shutil.disk_usage(nearest_folder(output_dir)).free
    if found.disk_bytes > free:
        raise ValueError(
            f"does not fit: checkpoints take {_size(found.disk_bytes)} and {_size(free)} are free in "
            f"{nearest_folder(output_dir)!r}; give another output_dir, "
            "or keep fewer (average_checkpoints=5)"
        )
    return found


def _measured(profiler: Profiler, show: Callable[[str], None]) -> Profiler:
    """Runs the measurements. If memory runs out, repeats them with smaller micro-batches, as `train` would."""
    while True:
        try:
            profiler.measure()
            return profiler
        except tf.errors.OpError as error:
            if not is_out_of_memory(error):
                raise
            fails, run = f"out of memory {profiler.stage}", profiler.run
            smaller_fits = batching.may_halve(run.hparams.batch_tokens, profiler.count, run.problem.max_length)
            if profiler.trained or not smaller_fits:
                raise ValueError(f"does not fit: {fails}; {REMEDY} ({error.message:.100})") from None
        smaller = math.ceil(run.hparams.batch_tokens / (2 * profiler.count))
        for line in _wrapped("", f"{fails}; retrying with micro-batches of {smaller:,} tokens"):
            show(line)
        if profiler.replicas > 1:
            raise OutOfMemory(f"does not fit: {fails}; set microbatch_tokens to {smaller:,}", smaller)
        profiler = profiler.with_microbatches(smaller)


def _plan(profiler: Profiler) -> Iterator[str]:
    """Yields the lines that do not depend on measurements."""
    run, h = profiler.run, profiler.run.hparams
    pairs = f"{profiler.dataset.record.splits['train'].pairs:,} training pairs"
    if not profiler.prepared:
        lengths = f"{MEAN_LENGTH} tokens per side on average, at most {run.problem.max_length:,}"
        pairs = f"not prepared: lengths are assumed ({lengths})"
    yield from _wrapped("problem     ", f"{run.problem.name}, {pairs}")
    yield from _wrapped("set         ", f"{h.name}: {h.description}")
    if run.parent:
        yield from _wrapped("starts from ", str(run.parent))
    parameters = h.num_parameters(profiler.vocab_size)
    yield f"parameters  {parameters:,} with {profiler.vocab_size:,} subwords{_papers(h, 'millions')}"
    each = profiler.sizes.shape[1]
    step = f"{each} micro-batch{'es' * (each > 1)} per device and step"
    yield from _wrapped(
        "devices     ",
        f"{profiler.replicas} x {hardware.name()}, {run.precision}{', XLA' if profiler.jit_compile else ''}; {step}",
    )
    counts = padding_statistics.counts_by_width(profiler.sizes, profiler.tokens)
    yield ""
    if profiler.prepared and profiler.share < 1:
        yield f"of {len(profiler.window.rows):,} pairs, a random sample:"
    yield from padding_statistics.format_table(counts, h.batch_tokens, profiler.count).splitlines()
    yield ""


def _total(profiler: Profiler) -> Estimate:
    h, options, per_step = profiler.run.hparams, profiler.options, profiler.seconds_per_step()
    steps_per_epoch = profiler.window_steps / profiler.share if profiler.prepared else math.nan
    steps, done = profiler.steps(), profiler.done()
    if options.train_epochs and profiler.prepared:
        steps = max(min(steps, math.ceil(options.train_epochs * steps_per_epoch) - done), 0)
    if options.train_minutes:
        trained = profiler.run.training.seconds or 0.0 if done else 0.0
        left = 60 * options.train_minutes - trained
        steps = bisect.bisect(range(steps + 1), left, key=lambda number: _seconds(profiler, number, done)) - 1
        steps = max(steps, 0)
    kept = checkpoints_kept(h) + options.best_kept
    # weights, the two moments of Adam, and the moving average of the weights, float32
    checkpoint = (3 + bool(h.ema_decay)) * 4 * h.num_parameters(profiler.vocab_size)
    return Estimate(
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        tokens_per_second=float(profiler.tokens[..., 1].sum()) / profiler.window_steps / per_step,
        seconds_per_step=per_step,
        startup_seconds=profiler.startup,
        sampling_seconds=profiler.sampling,
        evaluation_seconds=profiler.evaluation,
        seconds=_seconds(profiler, steps, done),
        peak_bytes=profiler.peak,
        disk_bytes=max((kept + 2) * checkpoint - bytes_in(profiler.run.checkpoints), 0),
        flops=profiler.flops_per_step() * (done + steps),
    )


def _seconds(profiler: Profiler, steps: int, done: int) -> float:
    """Returns the time of `steps` more steps after the first `done`, and of their evaluations."""
    h, options = profiler.run.hparams, profiler.options
    if not steps:
        return 0.0
    updating = profiler.startup + steps * profiler.seconds_per_step()
    evaluations = math.ceil(steps / (options.checkpoint_steps or h.checkpoint_steps))
    if options.checkpoint_minutes:
        evaluations = max(evaluations, 1 + int(updating / 60 / options.checkpoint_minutes))
    evaluations += bool(profiler.run.parent) and not done  # at step 0
    return updating + profiler.sampling + evaluations * profiler.evaluation


def _outcome(profiler: Profiler, found: Estimate) -> Iterator[str]:
    h, total = profiler.run.hparams, hardware.total_bytes()
    some = "" if profiler.share >= 1 else " (from a sample)"
    shape = " x ".join(f"{n:,}" for n in profiler.worst)
    kept = checkpoints_kept(h) + profiler.options.best_kept
    files = [file for split in profiler.dataset.record.splits.values() for file in split.shards]
    epoch, data = f"{found.steps_per_epoch:,.0f} steps{some}", _size(sum(file.bytes for file in files))
    evaluation = f"evaluation with {found.evaluation_seconds:.2g} s each time"
    if not profiler.prepared:
        epoch, data, evaluation = "unknown", "unknown size", "without evaluation"
    last_step = profiler.done() + found.steps
    busy = f"; that rate changed by {profiler.slowed:.0%} meanwhile: other work slows it" * (profiler.slowed > BUSY)
    lines = {
        "epoch": f"{epoch}; {found.steps:,} to do",
        "speed": f"{found.tokens_per_second:,.0f} target tokens/s, {found.seconds_per_step:.3g} s per step, "
        f"{profiler.rate / profiler.matrix_rate:.0%} of the rate of products{busy}",
        "time": f"{clock(found.seconds)} to the end, {evaluation}",
        "worst": f"a micro-batch of {shape} (pairs, source, target): {profiler.worst_seconds:.2g} s, and it fits",
        "memory": f"at least {_size(found.peak_bytes)}{f' of {_size(total)}' if total else ''}",
        "disk": f"{_size(found.disk_bytes)} more for {kept} checkpoints, the newest and the next; data: {data}",
        "cost": f"{found.flops:.2g} FLOPs in {last_step:,} steps{_papers(h, 'flops')}",
    }
    if profiler.jit_compile:
        each = f"{profiler.compiling:.2g} s each to compile; their memory is not included above"
        lines["XLA"] = f"{profiler.programs()} programs for as many shapes, {each}"
    for name, text in lines.items():
        yield from _wrapped(f"{name:<12}", text)


def _must_be_free(run: Run) -> None:
    """Raises ValueError if a trainer is running in the run's directory. Holds the run's lock only for a moment."""
    if os.path.exists(os.path.join(run.directory, ".lock")):
        with exclusive_lock(run):
            pass


def _papers(hparams: HParams, figure: str) -> str:
    """Returns the paper's figure for a hyperparameter set of the paper. Only `train_steps` may differ."""
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
