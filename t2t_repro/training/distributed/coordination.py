"""Training on several machines by TensorFlow's `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from t2t_repro.config import TrainingOptions
from t2t_repro.data.dataset import Dataset
from t2t_repro.problem import WEIGHTS, Problem
from t2t_repro.run import Run, versions
from t2t_repro.system.signals import SIGNALS, on_main_thread
from t2t_repro.training.distributed.rendezvous import Cluster, watchdog

JOIN_SECONDS = 120  # for TensorFlow to connect the machines after the rendezvous

_LOST = (  # raised by a collective when a machine disconnected or was restarted
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
)


def strategy(cluster: Cluster) -> tf.distribute.Strategy:
    """Returns all devices of all machines as one strategy. Call it before any other TensorFlow operation.

    If the machines do not connect within `JOIN_SECONDS`, the process prints a line and ends.
    """
    if cluster.size == 1:
        return tf.distribute.MirroredStrategy()
    late = f"TensorFlow did not connect the {cluster.size} machines within {JOIN_SECONDS} s; restart all machines"
    with watchdog(JOIN_SECONDS, late):
        joined = tf.distribute.MultiWorkerMirroredStrategy()
    if on_main_thread():
        for number in SIGNALS:  # TensorFlow has replaced the handler of SIGTERM
            signal.signal(number, signal.getsignal(number))
    return joined


def open_prepared(problem: Problem, data_dir: str) -> Dataset:
    """Opens the data that the chief has prepared. `run_config` is used to compare it with the chief's.

    Raises FileNotFoundError if there is none, and ValueError if it is damaged.
    """
    directory = os.path.join(data_dir, problem.name)
    if not Dataset.exists(directory):
        raise FileNotFoundError(
            f"no prepared data in {directory!r}, and only the chief prepares data; "
            "give a data_dir that all machines share, or run t2t-datagen on this one too"
        )
    return Dataset.open(directory)


def run_config(run: Run, dataset: Dataset, options: TrainingOptions) -> dict[str, Any]:
    """Returns the settings that must be the same on all machines, by their names in error messages."""
    found = {"problem": run.problem.name, "seed": run.seed, "precision": run.precision}
    agreed = ("microbatch_tokens", "jit_compile", "deterministic", "patience", "train_minutes", "train_epochs")
    found |= {name: getattr(options, name) for name in agreed}
    found |= {name: getattr(run.problem, name) for name in WEIGHTS}
    found |= run.hparams.to_dict()
    found |= {"SHA-256 of the vocabulary": run.vocabulary_sha256}
    found |= {"SHA-256 of the training text": dataset.text_sha256("train")}
    found |= {"number of devices": max(len(tf.config.list_physical_devices("GPU")), 1)}
    return found | {f"version of {package}": versions()[package] for package in ("t2t_repro", "tensorflow", "keras")}


def broadcast(cluster: Cluster, strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]) -> None:
    """Sets `variables` of every replica on every machine to the chief's values. All machines must call it."""
    if cluster.size == 1:
        return

    def chiefs() -> list[tf.Tensor]:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        values = [tf.convert_to_tensor(variable) for variable in variables]
        return [tf.where(tf.equal(replica, 0), value, tf.zeros_like(value)) for value in values]

    @tf.function(autograph=False)
    def assign() -> None:
        for variable, value in zip(variables, strategy.run(chiefs), strict=True):
            variable.assign(strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None))

    assign()


class CoordinatedStop:
    """Agrees on a stop if a signal was `caught` on any machine, or if time `is_over` there.

    All machines call it before each step, and get the same answer. The signals are summed over the machines during a
    step and read before the next one, so that no device waits: training stops one step later. A single machine stops
    immediately.
    """

    def __init__(
        self,
        cluster: Cluster,
        strategy: tf.distribute.Strategy,
        caught: Sequence[int],
        is_over: Callable[[], bool] = lambda: False,
    ):
        self._cluster, self._strategy, self._caught, self._is_over = cluster, strategy, caught, is_over
        self._sums: tf.Tensor | None = None  # numbers of devices whose machine caught SIGINT or SIGTERM, or has no time
        self._agreed = 0

    def __call__(self) -> bool:
        if self._cluster.size == 1:
            return bool(self._caught) or self._is_over()
        before, over = self._sums, False
        asked = [number in self._caught for number in SIGNALS]
        self._sums = self._sum(tf.constant([*map(float, asked), float(self._is_over())]))
        if before is not None:
            *counts, over = before.numpy()
            received = [number for number, count in zip(SIGNALS, counts, strict=True) if count]
            self._agreed = int(next(iter(received), 0))
        return bool(self._agreed or over)

    def agreed(self, ends: bool) -> bool:
        """Returns whether `ends` is true on any machine. All machines must call it at the same step. It waits."""
        return ends if self._cluster.size == 1 else bool(self._sum(tf.constant([float(ends)])).numpy()[0])

    @property
    def signal(self) -> int:
        """The agreed signal or, after the last step, a signal caught on this machine; 0 if there is none."""
        return self._agreed or next(iter(self._caught), 0)

    @tf.function(autograph=False)
    def _sum(self, asked: tf.Tensor) -> tf.Tensor:
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._strategy.run(tf.identity, (asked,)), axis=None)


@contextlib.contextmanager
def worker_failures_named(cluster: Cluster) -> Iterator[None]:
    """Turns TensorFlow's error about a disconnected machine into a ConnectionError that names the machine.

    TensorFlow detects it after about 10 seconds.
    """
    try:
        yield
    except _LOST as error:
        if cluster.size == 1:
            raise
        lost = _lost_machine(cluster, error)
        again = "restart all machines with the same command"
        raise ConnectionError(f"{lost} disconnected; the last checkpoint is intact: {again}") from None


def _lost_machine(cluster: Cluster, error: tf.errors.OpError) -> str:
    """Returns the machine that an error of TensorFlow names by its task."""
    for job, number in re.findall(r"/job:(\w+)/(?:replica:0/)?task:(\d+)", str(error)):
        task = (job, int(number))
        if task in cluster.tasks and cluster.tasks.index(task) != cluster.index:
            return cluster.name(cluster.tasks.index(task))
    return "another machine"
