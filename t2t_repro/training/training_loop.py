"""The training loop: steps, their reports, checkpoints and validation."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import tensorflow as tf

from t2t_repro.charts.training_curves import write_curves
from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText, damage_named
from t2t_repro.flops import paper_flops
from t2t_repro.run import Parent, Run
from t2t_repro.system.out_of_memory import REMEDY, OutOfMemory, is_out_of_memory
from t2t_repro.system.signals import Interrupted
from t2t_repro.training import hardware
from t2t_repro.training.checkpointing.checkpoint_list import Averaging, is_regular
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.checkpointing.parent import checkpoint_of
from t2t_repro.training.checkpointing.weights import MOVING_AVERAGE, load_checkpoint, load_weights, variables_of
from t2t_repro.training.distributed import coordination
from t2t_repro.training.distributed.rendezvous import Cluster
from t2t_repro.training.divergence import LossMonitor
from t2t_repro.training.metrics import UNKNOWN, Cost, MetricsLogger, Step
from t2t_repro.training.optimizer import MovingAverage, learning_rate
from t2t_repro.training.train_step import TrainStep, first_microbatch_tokens, make_model
from t2t_repro.training.validation import MakePreview, Stopping, Validation


def checkpoints_kept(hparams: HParams) -> int:
    """Returns the number of regular checkpoints that a run keeps: enough to average, and at least five."""
    return max(hparams.average_checkpoints, 5)


_TEXTS = {"text": "train", "validation": "validation", "test": "test"}  # of which run.json has SHA-256


class TrainingLoop:
    """A training run in progress: model, optimizer, position in the data, and their checkpoints."""

    def __init__(
        self,
        run: Run,
        cluster: Cluster,
        dataset: Dataset,
        text: TrainingText,
        vocab_size: int,
        options: TrainingOptions,
        report: Callable[[str], None],
        preview: MakePreview | None,
        others: Mapping[str, Dataset],
    ):
        """Creates the model on all devices.

        Args:
          run: a started run (see `Run.start`).
          cluster: the machines.
          dataset: the prepared data of the run's problem.
          text: its training text.
          vocab_size: the size of its vocabulary.
          options: micro-batches, checkpoints, validation and XLA; the run defines seed and precision.
          report: called with each line of progress.
          preview: see `train`.
          others: prepared data by name, whose validation splits are scored too.
        """
        self.run, self.cluster, self.dataset, self.text = run, cluster, dataset, text
        self.options, self.report = options, report
        hparams = run.hparams
        self.strategy = coordination.strategy(cluster)
        with self.strategy.scope():
            self.model, self.optimizer = make_model(vocab_size, hparams, run.seed, run.precision)
            self.moving_average = MovingAverage.of(self.model, hparams)
        self.replicas = self.strategy.num_replicas_in_sync
        self.microbatch_tokens = first_microbatch_tokens(run, options, self.replicas, cluster.size)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)  # steps taken or skipped so far
        self.loaded = tf.Variable(0, dtype=tf.int64, trainable=False)  # 1: the chief has read weights from a file
        # in the data: epoch, window, steps within it; of any length, because version 0.1 saved epoch and steps only
        self.position = tf.Variable([0, 0, 0], shape=[None], dtype=tf.int64, trainable=False)
        # a `Cost`; of any length, because version 0.1 saved three numbers
        self.spent = tf.Variable(Cost(), shape=[None], dtype=tf.float64, trainable=False)
        state = {"model": self.model, "optimizer": self.optimizer}
        state |= {"step": self.step, "position": self.position, "spent": self.spent}
        validated = self.model
        if self.moving_average:
            state[MOVING_AVERAGE] = validated = self.moving_average.model
        self.variables = [variable for member in state.values() for variable in variables_of(member)]
        self.checkpoints = Checkpoints(run, state, checkpoints_kept(hparams), report) if cluster.is_chief else None
        validates = cluster.is_chief and dataset.has("validation")
        self.validation = Validation(validated, run, dataset, preview, options, others) if validates else None
        self.stopping = Stopping(run, options, report)
        self.logger: MetricsLogger | None = None  # the chief's
        self.epochs_done = False
        self.timed = (time.monotonic(), 0)  # when training went on after the newest checkpoint, and after which step

    def train(self, caught: list[int]) -> None:
        """Trains from the newest checkpoint to the last step, or until a signal is in `caught`."""
        if self.checkpoints and self.checkpoints.restore_newest():
            self.report(f"continuing {self.run.directory} at step {int(self.step):,}")
            self._upgrade_state()
            self.record_progress()  # a kill may have come before it
            self.loaded.assign(1)
        elif self.checkpoints:
            if (taken := self.run.training.step) is not None:
                self.report(f"{self.run.directory} has no checkpoint of its {taken:,} steps: starting over")
                self.run.note(dataclasses.replace(self.run.training, step=None, selection=None))
            if self.run.parent:
                self._start_from(self.checkpoints, self.run.parent)
                self.loaded.assign(1)
        coordination.broadcast(self.cluster, self.strategy, [self.step, self.loaded])
        if self.loaded > 0:  # initial values are the chief's already
            coordination.broadcast(self.cluster, self.strategy, self.variables)
        self._make_step()
        truncation = self.validation.truncation() if self.validation else ""
        for line in filter(None, (hardware.unused_gpu(), self._headline(), truncation)):
            self.report(line)
        stop = coordination.CoordinatedStop(self.cluster, self.strategy, caught, self._time_is_over)
        if self.checkpoints:
            self.checkpoints.must_have_room()
            self.stopping.forget_after(int(self.step))
            with closing(self._logger()) as self.logger:
                self._train_loop(self.checkpoints, self.logger, stop)
            write_curves(self.run, self.report)
        else:
            for _ in self._steps(stop):
                pass
        if stop.signal:
            raise Interrupted(stop.signal)

    def _start_from(self, checkpoints: Checkpoints, parent: Parent) -> None:
        """Loads the weights of the parent and saves them as step 0. From then on the parent is not needed."""
        load_checkpoint(checkpoint_of(parent), self.model)
        if self.moving_average:
            self.moving_average.restart()
        checkpoints.save(0)
        self.record_progress()
        self.report(f"starting from the weights of {parent.directory}: {parent}")

    def _upgrade_state(self) -> None:
        """Adds the fields of position and cost that version 0.1 did not save."""
        epoch, *window, skip = self.position.numpy().tolist()
        self.position.assign([epoch, window[0] if window else 0, skip])
        tokens, flops, seconds, *paper = self.spent.numpy().tolist()
        before = self.run.training.paper_flops
        self.spent.assign(Cost(tokens, flops, seconds, *(paper or [UNKNOWN if before is None else before])))

    def _logger(self) -> MetricsLogger:
        monitor = LossMonitor(self.run, self.text, self.report)
        paper_rate = paper_flops(1.0, self.replicas, hardware.name()) or UNKNOWN
        cost = Cost(*self.spent.numpy().tolist())
        return MetricsLogger(self.run, self.report, cost, paper_rate=paper_rate, on_report=monitor)

    def _make_step(self) -> None:
        run, options = self.run, self.options
        with self.strategy.scope():
            sizes = self.microbatch_tokens, options.jit_compile
            self.train_step = TrainStep(
                self.model, self.optimizer, run.hparams, run.seed, *sizes, moving_average=self.moving_average
            )

    def _steps(self, stop: coordination.CoordinatedStop) -> Iterator[Step]:
        """Runs the remaining steps, with smaller micro-batches if memory runs out."""
        number, position = int(self.step), self.position.value()
        while not self._ends(stop):
            try:
                for step in self._steps_after(number, position, stop):
                    number, position = step.number, step.position
                    yield step
                return
            except tf.errors.OpError as error:
                if not is_out_of_memory(error):
                    raise
                self._halve_microbatches(number + 1, error)

    def _halve_microbatches(self, step: int, error: tf.errors.OpError) -> None:
        """Halves the micro-batches: in this process, or, with several devices, in the next one (see `train`)."""
        h, count = self.run.hparams, self.replicas * self.train_step.microbatches
        fails = f"out of memory in step {step:,}"
        if not batching.may_halve(h.batch_tokens, count, self.run.problem.max_length):
            equation = _equation(self.train_step)
            raise ValueError(f"{fails}, {equation}; {REMEDY} ({error.message:.100})") from None
        self.microbatch_tokens = math.ceil(h.batch_tokens / (2 * count))
        if self.cluster.size > 1:
            raise ValueError(f"{fails}; set microbatch_tokens to {self.microbatch_tokens:,} on all machines") from None
        self._note(held_tokens=self.microbatch_tokens)
        if self.replicas > 1:
            smaller = f"start again with micro-batches of {self.microbatch_tokens:,} tokens"
            raise OutOfMemory(f"{fails}; {smaller}", self.microbatch_tokens) from None
        self._make_step()
        self.report(f"{fails}; continuing with {_equation(self.train_step)}")

    def _steps_after(self, number: int, position: tf.Tensor, stop: coordination.CoordinatedStop) -> Iterator[Step]:
        data = self.train_step.data(self.text, position.numpy().tolist())
        take_step, elements = self.train_step.build(data.element_spec), iter(data)
        while number < self.run.hparams.train_steps and not stop():
            with damage_named(self.dataset.directory):
                inputs = self.train_step.next_inputs(elements)
            if 0 < self.options.train_epochs <= int(inputs[0]["position"][0]):
                self.epochs_done = True
                return
            number += 1
            rate = learning_rate(number, self.run.hparams)
            metrics = take_step(inputs, tf.constant(number, tf.int32), tf.constant(rate, tf.float32))
            yield Step(number, rate, inputs[0]["position"], metrics)
            if number % self.run.hparams.checkpoint_steps == 0 and self._ends(stop):
                return

    def _time_is_over(self) -> bool:
        return self.logger is not None and self.stopping.is_over(self.logger.seconds)

    def _ends(self, stop: coordination.CoordinatedStop) -> bool:
        """Returns whether scores or time end training. All machines must call it at the same step."""
        if not (self.options.patience or self.options.train_minutes):
            return False
        return stop.agreed(self.logger is not None and bool(self.stopping.reason(self.logger.seconds)))

    def _train_loop(self, checkpoints: Checkpoints, logger: MetricsLogger, stop: coordination.CoordinatedStop) -> None:
        """Runs the steps, reports them, and saves checkpoints."""
        hparams, minutes = self.run.hparams, self.options.checkpoint_minutes
        start = saved_step = int(self.step)
        saved_at = time.monotonic()
        self.timed = saved_at, start
        if self.run.parent and saved_step == 0:
            self._validate(0, checkpoints, logger)
        if saved_step and (reason := self.stopping.reason(logger.seconds)):
            self.stopping.note_end(saved_step, reason)  # so it is a regular checkpoint
        if self.stopping.is_unscored(saved_step):  # also if training stopped between saving and scoring it
            self._validate(saved_step, checkpoints, logger)
        step: Step | None = None
        for step in self._steps(stop):
            if step.number == start + 1:
                self.timed = time.monotonic(), step.number  # the first step of a process takes longer
            logger.add(step)
            late = 0 < 60 * minutes <= time.monotonic() - saved_at
            due = late or step.number % hparams.checkpoint_steps == 0
            if due and step.number < hparams.train_steps:
                self._save(checkpoints, step, logger)
                logger.resume()
                saved_at, saved_step = self.timed = time.monotonic(), step.number
        number = step.number if step else saved_step
        if number < hparams.train_steps and not stop.signal:
            done = f"train_epochs={self.options.train_epochs} passes over the data are done" * self.epochs_done
            self.stopping.note_end(number, self.stopping.reason(logger.seconds) or done)
        if step and step.number > saved_step:
            self._save(checkpoints, step, logger, validate=not stop.signal)
        elif not stop.signal and self.stopping.is_unscored(number):  # the passes over the data ended at it
            self._validate(number, checkpoints, logger)
        if not stop.signal:
            checkpoints.set_aside_damaged()
            self.stopping.conclude(number, checkpoints, self._score_mean)

    def _score_mean(self, number: int, best: bool) -> float | None:
        """Returns the validation score of the mean of the `number` best or last checkpoints, by the deciding metric.

        The model keeps these weights. Returns None if memory runs out.
        """
        if not self.validation:
            return None
        average = self.moving_average
        try:
            load_weights(self.run, average.model if average else self.model, Averaging(number, best, bool(average)))
            return self.validation.score(self.options.validate_by)
        except tf.errors.OpError as error:
            if not is_out_of_memory(error):
                raise
            which = "best" if best else "last"
            self.report(f"the mean of the {which} {number} is not scored: out of memory ({error.message:.100})")
            return None

    def _save(self, checkpoints: Checkpoints, step: Step, logger: MetricsLogger, validate: bool = True) -> None:
        """Reports and saves the steps up to this one, and validates the model if memory suffices."""
        logger.flush()
        self.step.assign(step.number)
        self.position.assign(step.position)
        self.spent.assign(logger.cost)
        self.stopping.forget_after(step.number)
        checkpoints.save(step.number, self.stopping.kept())
        self.record_progress()
        if validate:
            self._validate(step.number, checkpoints, logger)

    def _validate(self, number: int, checkpoints: Checkpoints, logger: MetricsLogger) -> None:
        """Scores the checkpoint of step `number`, and notes the scores if it is a regular one."""
        if not self.validation:
            return
        started, (since, first) = time.monotonic(), self.timed
        per_step = (started - since) / (number - first) if number > first else logger.cost.seconds / max(number, 1)
        interval = per_step * self.run.hparams.checkpoint_steps
        try:
            values = self.validation(number, logger, self.stopping.decodes(number))
        except tf.errors.OpError as error:
            if not is_out_of_memory(error):
                raise
            saved = f"checkpoint at step {number:,}: saved, not validated"
            self.report(f"{saved}: out of memory ({error.message:.100})")
            return
        if is_regular(self.run, number):
            self.stopping.note_scores(number, values, time.monotonic() - started, interval)
            checkpoints.remove_except(self.stopping.kept())

    def record_progress(self) -> None:
        """Writes the step, the text that it was taken and scored on, and the cost of training to run.json."""
        cost = Cost(*self.spent.numpy().tolist())
        paper_flops = None if cost.paper_flops == UNKNOWN else cost.paper_flops
        text = {f"{name}_sha256": self.dataset.text_sha256(split) for name, split in _TEXTS.items()}
        self._note(**(cost._asdict() | {"paper_flops": paper_flops}), **text, step=int(self.step))

    def _note(self, **changes: Any) -> None:
        """Writes `changes` and the devices to the training record in run.json."""
        before, device = self.run.training, hardware.name()
        if before.device != device:
            before = dataclasses.replace(before, held_tokens=None)
        self.run.note(dataclasses.replace(before, device=device, replicas=self.replicas, **changes))

    def _headline(self) -> str:
        run = self.run
        parameters = run.hparams.num_parameters(self.model.vocab_size)
        computed = f"{run.precision}{', XLA' if self.options.jit_compile else ''} on {hardware.name()}"
        return (
            f"{run.problem.name} with {run.hparams.name}: {parameters:,} parameters, {computed}; "
            f"{_equation(self.train_step)}"
        )


def _equation(step: TrainStep) -> str:
    replicas, count = step.strategy.num_replicas_in_sync, step.microbatches
    return (
        f"{step.hparams.batch_tokens:,} tokens per side and step = {replicas} replica{'s' * (replicas > 1)} "
        f"x {count} micro-batch{'es' * (count > 1)}"
    )
