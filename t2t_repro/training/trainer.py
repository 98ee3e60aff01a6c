"""`train`: a problem and a set of hyperparameters become a run directory. The same call continues where it stopped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from filelock import FileLock, Timeout

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.flops import paper_flops
from t2t_repro.log import report as log
from t2t_repro.model.transformer import Transformer
from t2t_repro.problem import Problem
from t2t_repro.run import Run
from t2t_repro.training import hardware, memory
from t2t_repro.training import precision as precisions
from t2t_repro.training.checkpoints import Checkpoints, variables_of
from t2t_repro.training.distributed import coordination
from t2t_repro.training.distributed.rendezvous import Cluster, Meeting
from t2t_repro.training.divergence import Guard
from t2t_repro.training.metrics import UNKNOWN, Progress, safe_exp
from t2t_repro.training.optimizer import Adam, learning_rate
from t2t_repro.training.train_step import Updater, make_evaluator


class Sample(NamedTuple):
    """What a model in training makes of a few sentences."""

    scores: dict[str, float]  # by name, as "sample_BLEU"
    translations: list[tuple[str, str, str]]  # source, reference, ours


Prepare = Callable[[Problem, str, Callable[[str], None]], Dataset]
MakeSampler = Callable[[Transformer, Run, Dataset], Callable[[], Sample]]


class Interrupted(Exception):  # noqa: N818 (not an error: the run was asked to stop, and has saved)
    """A signal ended the training after a checkpoint. `signal` is its number."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}; the same command continues")
        self.signal = number


def train(
    problem: Problem,
    hparams: HParams,
    data_dir: str,
    output_dir: str,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
    *,
    prepare: Prepare | None = None,
    report: Callable[[str], None] = log,
    sampler: MakeSampler | None = None,
) -> Run:
    """Trains to `hparams.train_steps` steps, continuing what is there.

    `prepare(problem, data_dir, report)` prepares the data first; without one, the data must be there.

    A checkpoint is written every `checkpoint_steps` steps, after `checkpoint_minutes` without one, and at the end. What
    a `sampler`, made for the model, then gives of its translations is shown beside the validation loss: scores by name,
    and (source, reference, ours) of some sentences.

    On each of several machines that TF_CONFIG names, the same call is that machine's part. The chief alone prepares
    and writes.

    If TensorFlow runs out of memory in a step, one device continues with micro-batches of half the size. With several
    devices the call raises `OutOfMemory`, and continues so when it is repeated in another process.

    Raises ValueError if `output_dir` holds another run, or memory does not suffice for two pairs, `Diverged` if the
    loss diverges, ConnectionError if another machine does not come, differs, or is gone, and `Interrupted` after
    SIGINT or SIGTERM, when the step in progress is finished and saved.
    """
    must_fit(problem, hparams)
    precision = chosen_precision(options.precision, output_dir)  # refused before hours of preparation
    hparams = replace(hparams, checkpoint_steps=options.checkpoint_steps or hparams.checkpoint_steps)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    cluster = Cluster.from_environment()
    with Meeting(cluster, report) as meeting:
        dataset = prepare(problem, data_dir, report) if prepare and cluster.is_chief else None
        meeting.after_chief()
        dataset = dataset or coordination.prepared(problem, data_dir)
        vocabulary = Vocabulary(dataset.vocabulary)
        run = Run(
            directory=output_dir,
            problem=problem,
            hparams=hparams,
            data_dir=data_dir,
            seed=options.seed,
            precision=precision,
            vocabulary_sha256=vocabulary.sha256,
        )
        precisions.allow_tf32(run.precision == "tf32")
        if cluster.is_chief:
            run.start(dataset.vocabulary)
            run.note({"data": dataset.condition()})
        with only_trainer(run) if cluster.is_chief else nullcontext():
            meeting.agree(coordination.facts(run, dataset, options))
            with _signals() as caught, coordination.noticed(cluster):
                training = _Training(run, cluster, dataset, vocabulary.size, options, report, sampler)
                training.run(caught)
    return run


def must_fit(problem: Problem, hparams: HParams) -> None:
    """Raises ValueError if the longest sentence does not fit in a part of a batch, or has more tokens than positions.

    Learned positions have no row beyond `max_positions`, and decoding and evaluation cut what is longer.
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


def chosen_precision(precision: str, output_dir: str) -> str:
    """Returns what `precisions.resolve` does for the run in `output_dir`, whatever machine continues it, if there is
    one."""
    return precisions.resolve(precision, Run.open(output_dir).precision if Run.exists(output_dir) else None)


def default_microbatch_tokens(hparams: HParams, replicas: int) -> int:
    """Returns a micro-batch's tokens per side: on a GPU, where each operation costs its start, all of a device's share
    of a step; on a CPU those of a part, which its caches hold."""
    if tf.config.list_physical_devices("GPU"):
        return math.ceil(hparams.batch_tokens / replicas)
    return batching.part_tokens(hparams.batch_tokens)


def first_microbatch_tokens(run: Run, options: TrainingOptions, replicas: int, machines: int = 1) -> int:
    """Returns the size of micro-batch to begin with: on one machine at most what its devices were found to hold."""
    wanted = options.microbatch_tokens or default_microbatch_tokens(run.hparams, replicas)
    known = run.training if machines == 1 and Run.exists(run.directory) else {}
    held = known.get("held_tokens", wanted) if known.get("device") == hardware.name() else wanted
    return min(wanted, int(held))


def checkpoints_kept(hparams: HParams) -> int:
    """Returns how many regular checkpoints a run keeps: enough to average, and at least five."""
    return max(hparams.average_checkpoints, 5)


class _Training:
    """A run in progress: model, optimizer, position in the data, and everything that is kept of them."""

    def __init__(
        self,
        run: Run,
        cluster: Cluster,
        dataset: Dataset,
        vocab_size: int,
        options: TrainingOptions,
        report: Callable[[str], None],
        sampler: MakeSampler | None,
    ):
        self.settings, self.cluster, self.dataset, self.report = run, cluster, dataset, report
        self.options = options
        hparams = run.hparams
        self.strategy = coordination.strategy(cluster)
        with self.strategy.scope():
            keras.utils.set_random_seed(run.seed)
            self.model = Transformer(vocab_size, hparams, dtype=precisions.POLICIES[run.precision])
            weights = [weight.value for weight in self.model.trainable_variables]
            self.optimizer = Adam(weights, hparams, scaled=run.precision == "float16")
        replicas = self.strategy.num_replicas_in_sync
        self.microbatch_tokens = first_microbatch_tokens(run, options, replicas, cluster.size)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)  # updates tried so far
        # in the data: epoch, window, steps within it; of any length, for version 0.1 saved epoch and steps alone
        self.position = tf.Variable([0, 0, 0], shape=[None], dtype=tf.int64, trainable=False)
        # what `Progress` counts; of any length, for version 0.1 saved three numbers
        self.spent = tf.Variable([0, 0, 0, 0], shape=[None], dtype=tf.float64, trainable=False)
        state = {"model": self.model, "optimizer": self.optimizer}
        state |= {"step": self.step, "position": self.position, "spent": self.spent}
        self.variables = [variable for part in state.values() for variable in variables_of(part)]
        self.checkpoints = Checkpoints(run, state, checkpoints_kept(hparams), report) if cluster.is_chief else None
        self.evaluate = make_evaluator(self.model, hparams.label_smoothing)
        self.sample = sampler(self.model, run, dataset) if sampler and dataset.has("validation") else None

    def run(self, caught: list[int]) -> None:
        if self.checkpoints and self.checkpoints.restore_newest():
            self.report(f"continuing {self.settings.directory} at step {int(self.step):,}")
            epoch, *window, skip = self.position.numpy().tolist()
            self.position.assign([epoch, window[0] if window else 0, skip])
            tokens, flops, seconds, *paper = self.spent.numpy().tolist()
            before = self.settings.training.get("paper_flops")
            self.spent.assign([tokens, flops, seconds, *(paper or [UNKNOWN if before is None else before])])
        coordination.share(self.cluster, self.strategy, [self.step])
        if self.step > 0:  # else they are the chief's already, as TensorFlow made them
            coordination.share(self.cluster, self.strategy, self.variables)
        self._make_updater()
        for line in filter(None, (hardware.unused_gpu(), self._headline(), self._long_validation())):
            self.report(line)
        stop = coordination.StopTogether(self.cluster, self.strategy, caught)
        if self.checkpoints:
            self.checkpoints.must_have_room()
            progress = self._progress()
            try:
                self._keep(progress, stop)
            finally:
                progress.close()
        else:
            for _ in self._updates(stop):
                pass
        if stop.signal:
            raise Interrupted(stop.signal)

    def _progress(self) -> Progress:
        guard = Guard(self.settings, self.dataset, self.report)
        paper_rate = paper_flops(1.0, self.strategy.num_replicas_in_sync, hardware.name()) or UNKNOWN
        spent = self.spent.numpy()
        return Progress(self.settings, self.report, spent, paper_rate=paper_rate, watch=guard)

    def _make_updater(self) -> None:
        run = self.settings
        with self.strategy.scope():
            how = run.seed, self.microbatch_tokens, self.options.jit_compile
            self.updater = Updater(self.model, self.optimizer, run.hparams, *how)

    def _updates(self, stop: coordination.StopTogether) -> Iterator[tuple[int, float, tf.Tensor, tf.Tensor]]:
        """Makes the steps that are left, in smaller micro-batches if memory runs out: of each its number, learning
        rate, where in the data the next one begins, and sums."""
        step, position = int(self.step), self.position.value()
        while True:
            try:
                for made in self._updates_after(step, position, stop):
                    step, _, position, _ = made
                    yield made
                return
            except tf.errors.OpError as error:
                if not memory.ran_out(error):
                    raise
                self._halve_microbatches(step + 1, error)

    def _halve_microbatches(self, step: int, error: tf.errors.OpError) -> None:
        """Halves the micro-batches, here or, with several devices, in the next process: see `train`."""
        h, replicas = self.settings.hparams, self.strategy.num_replicas_in_sync
        count, fails = replicas * self.updater.microbatches, f"out of memory in step {step:,}"
        if not batching.may_halve(h.batch_tokens, count, self.settings.problem.max_length):
            raise ValueError(f"{fails}, {_equation(self.updater)}; {memory.SMALLER} ({error.message:.100})") from None
        self.microbatch_tokens = math.ceil(h.batch_tokens / (2 * count))
        if self.cluster.size > 1:
            raise ValueError(f"{fails}; set microbatch_tokens to {self.microbatch_tokens:,} on all machines") from None
        self.settings.note({"device": hardware.name(), "replicas": replicas, "held_tokens": self.microbatch_tokens})
        if replicas > 1:
            smaller = f"start again for micro-batches of {self.microbatch_tokens:,} tokens"
            raise memory.OutOfMemory(f"{fails}; {smaller}", self.microbatch_tokens) from None
        self._make_updater()
        self.report(f"{fails}; from here on {_equation(self.updater)}")

    def _updates_after(
        self, step: int, position: tf.Tensor, stop: coordination.StopTogether
    ) -> Iterator[tuple[int, float, tf.Tensor, tf.Tensor]]:
        data = self._data(position)
        update, elements = self.updater.compiled(data.element_spec), iter(data)
        while step < self.settings.hparams.train_steps and not stop():
            with input_pipeline.damage_named(self.dataset.directory):
                taken = self.updater.take(elements)
            step += 1
            rate = learning_rate(step, self.settings.hparams)
            sums = update(taken, tf.constant(step, tf.int32), tf.constant(rate, tf.float32))
            yield step, rate, taken[0]["position"], sums

    def _keep(self, progress: Progress, stop: coordination.StopTogether) -> None:
        """Makes the updates, reports them, and saves what they come to."""
        total, saved_at, step = self.settings.hparams.train_steps, time.monotonic(), int(self.step)
        saved_step = step
        for step, rate, position, sums in self._updates(stop):
            progress.update(step, sums, rate, position)
            late = 0 < 60 * self.options.checkpoint_minutes <= time.monotonic() - saved_at
            due = late or step % self.settings.hparams.checkpoint_steps == 0
            if due and step < total:
                progress.flush(step, rate)
                self._save(step, position, progress)
                progress.resume()
                saved_at, saved_step = time.monotonic(), step
        if step > saved_step:
            progress.flush(step, rate)
            self._save(step, position, progress, evaluate=not stop.signal)

    def _data(self, position: tf.Tensor) -> tf.data.Dataset:
        """This machine's elements from there on, without end."""
        epoch, window, skip = position.numpy().tolist()
        return input_pipeline.training_batches(
            self.dataset.shards("train"),
            self.settings.hparams.batch_tokens,
            self.settings.seed,
            epoch,
            replicas=self.strategy.num_replicas_in_sync,
            local=self.updater.local,
            microbatch_tokens=self.microbatch_tokens,
            window=window,
            skip=skip,
            epochs=None,
        )

    def _save(self, step: int, position: tf.Tensor, progress: Progress, evaluate: bool = True) -> None:
        self.step.assign(step)
        self.position.assign(position)
        self.spent.assign(progress.spent)
        if self.checkpoints:  # the chief alone saves
            self.checkpoints.save(step)
        self._note(step)
        if evaluate and self.dataset.has("validation"):
            self._validate(step, progress)

    def _validate(self, step: int, progress: Progress) -> None:
        """Reports the scores on the validation text, as far as memory allows: without them training continues."""
        try:
            smoothed, plain, correct, tokens = self._validation_sums()
            sample = self.sample() if self.sample else Sample({}, [])
        except tf.errors.OpError as error:
            if not memory.ran_out(error):
                raise
            self.report(f"checkpoint at step {step:,}: saved, not validated: out of memory ({error.message:.100})")
            return
        values = {"validation_loss": smoothed / tokens, "validation_perplexity": safe_exp(plain / tokens)}
        values |= {"validation_accuracy": correct / tokens}
        scores = "".join(f", {name.replace('_', ' ')} {score:.1f}" for name, score in sample.scores.items())
        progress.write(
            step,
            values | sample.scores,
            f"checkpoint at step {step:,}: validation ppl {values['validation_perplexity']:.2f}, "
            f"acc {values['validation_accuracy']:.1%}{scores}",
        )
        progress.show(step, sample.translations)

    def _note(self, step: int) -> None:
        """Keeps in run.json what the training has come to and cost, by count and, where it can be said, by time."""
        tokens, flops, seconds, paper = self.spent.numpy().tolist()
        device, replicas = hardware.name(), self.strategy.num_replicas_in_sync
        values: dict[str, Any] = {"step": step, "target_tokens": tokens, "flops": flops, "seconds": seconds}
        values |= {"device": device, "replicas": replicas, "paper_flops": None if paper < 0 else paper}
        self.settings.note(values)

    def _validation_sums(self) -> list[float]:
        """The four sums of `Loss`, in batches of half the size each time that memory runs out, down to single pairs."""
        shards, batch_tokens = self.dataset.shards("validation"), input_pipeline.EVALUATION_TOKENS
        while True:
            try:
                batches = input_pipeline.evaluation_batches(shards, batch_tokens, self.settings.hparams.max_positions)
                return (
                    tf.add_n([self.evaluate(batch["inputs"], batch["targets"]) for batch in batches]).numpy().tolist()
                )
            except tf.errors.OpError as error:
                if not memory.ran_out(error) or batch_tokens == 1:
                    raise
                batch_tokens //= 2

    def _long_validation(self) -> str:
        """Returns a line about validation pairs that are validated in part, if any."""
        limit = self.settings.hparams.max_positions
        has = self.checkpoints and self.dataset.has("validation")
        longer = input_pipeline.longer_pairs(self.dataset.shards("validation"), limit) if has else 0
        return f"{longer:,} validation pairs have more than {limit:,} tokens per side and are cut" if longer else ""

    def _headline(self) -> str:
        run = self.settings
        parameters = run.hparams.num_parameters(self.model.vocab_size)
        return (
            f"{run.problem.name} with {run.hparams.name}: {parameters:,} parameters, "
            f"{run.precision}{', XLA' * self.options.jit_compile} on {hardware.name()}; {_equation(self.updater)}"
        )


def _equation(updater: Updater) -> str:
    replicas, count = updater.strategy.num_replicas_in_sync, updater.microbatches
    return (
        f"{updater.hparams.batch_tokens:,} tokens per side and step = {replicas} replica{'s' * (replicas > 1)} "
        f"x {count} micro-batch{'es' * (count > 1)}"
    )


@contextmanager
def only_trainer(run: Run) -> Iterator[None]:
    """Two trainers in one directory would delete each other's checkpoints."""
    lock = FileLock(f"{run.directory}/.lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another t2t-trainer is at work in {run.directory!r}; wait for it, or stop it") from None


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Catches the first SIGINT or SIGTERM into the list it gives; the second one acts as usual."""
    caught: list[int] = []
    on_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if on_main_thread else ()
    before = {number: signal.getsignal(number) for number in signals}

    def catch(number: int, _: Any) -> None:
        caught.append(number)
        for each in signals:
            signal.signal(each, before[each])

    for number in signals:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number in signals:
            signal.signal(number, before[number])
