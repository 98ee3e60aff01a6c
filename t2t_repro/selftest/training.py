"""Tasks that train: the same seed gives the same bits, also after SIGKILL, and replicas give the same step.

The problem is tiny; the code is that of the trainer. On GPUs only TensorFlow's deterministic operations give the same
bits, so they are enabled.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Generated, Pair, Problem
from t2t_repro.run import Run
from t2t_repro.training import hardware
from t2t_repro.training.checkpointing.checkpoint_list import paths
from t2t_repro.training.optimizer import learning_rate
from t2t_repro.training.precision import allow_tf32
from t2t_repro.training.train_step import TrainStep, make_model
from t2t_repro.training.trainer import train

STEPS, SAVED_EVERY = 60, 30
HPARAMS = HParams(
    name="selftest",
    description="for the self-test",
    num_layers=2,
    d_model=64,
    d_ff=128,
    num_heads=4,
    d_k=16,
    d_v=16,
    batch_tokens=1_500,
    train_steps=STEPS,
    warmup_steps=STEPS,
    learning_rate_scale=2.0,
)
NOT_COMPARED = "spent"  # contains seconds
# Adam's first moment after one step is (1 - beta1) times the gradient. Two replicas sum it in another order.
TOLERANCE = 1e-4  # relative to its norm, float32


def pairs(start: int, stop: int) -> Iterator[Pair]:
    words = list(itertools.product(("red rote", "old alte", "big grosse"), ("cats Katzen", "dogs Hunde", "cows Kuehe")))
    for number in range(start, stop):
        adjective, noun = (each.split() for each in words[number % 9])
        yield f"{number} {adjective[0]} {noun[0]}", f"{number} {adjective[1]} {noun[1]}"


def train_pairs() -> Iterator[Pair]:
    return pairs(0, 300)


def validation_pairs() -> Iterator[Pair]:
    return pairs(300, 310)


PROBLEM = Problem(
    name="selftest",
    description="numbers, adjectives and nouns",
    train=(Generated(train_pairs),),
    validation=(Generated(validation_pairs),),
    vocab_size=300,
    max_length=60,
)


def run(folder: str, kill: bool = False) -> None:
    """Prepares the data and trains in `folder`, or continues there.

    With `kill`, kills this process by SIGKILL as soon as the first checkpoint is complete.
    """

    def report(line: str) -> None:
        written = paths(Run.open(output_dir)) if Run.exists(output_dir) else []
        if kill and written:
            os.kill(os.getpid(), signal.SIGKILL)

    output_dir = os.path.join(folder, "run")
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    options = TrainingOptions(checkpoint_steps=SAVED_EVERY, deterministic=on_gpu)
    train(PROBLEM, HPARAMS, os.path.join(folder, "data"), output_dir, options, prepare=prepare, report=report)


def compare(one: str, other: str, at: str) -> dict[str, str]:
    """Compares the "first" or "last" checkpoints of two folders.

    "fault" names the difference; it is "" if all variables are bitwise equal. "note" is their number.
    """
    name = f"run/checkpoints/ckpt-{SAVED_EVERY if at == 'first' else STEPS}"
    here, there = (tf.train.load_checkpoint(os.path.join(folder, name)) for folder in (one, other))
    names = [name for name in here.get_variable_to_shape_map() if not name.startswith((NOT_COMPARED, "_CHECKPOINT"))]
    differing = [
        name
        for name in sorted(names)
        if not there.has_tensor(name) or here.get_tensor(name).tobytes() != there.get_tensor(name).tobytes()
    ]
    fault = f"{len(differing)} of {len(names)} variables differ, such as {differing[0]}" if differing else ""
    return {"fault": fault.replace("/.ATTRIBUTES/VARIABLE_VALUE", ""), "note": f"{len(names)} variables"}


def replicas(folder: str) -> dict[str, str]:
    """Compares the first step's gradient on several replicas with that on one.

    "fault" is the difference; it is "" within rounding. "note" names the replicas: all GPUs if there are several, else
    two logical devices of the processor.
    """
    devices = hardware.gpu_names()
    if len(devices) < 2:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        devices = ["CPU:0", "CPU:1"]
    allow_tf32(False)
    dataset = prepare(PROBLEM, os.path.join(folder, "data"), lambda line: None)
    one, tokens = _first_moment(dataset, devices[:1])
    several, same_tokens = _first_moment(dataset, devices)
    difference = float(np.linalg.norm(several - one) / np.linalg.norm(one))
    fault = ""
    if tokens != same_tokens:
        fault = f"{len(devices)} replicas count {same_tokens:.0f} target tokens, one {tokens:.0f}"
    elif not difference <= TOLERANCE:
        fault = f"gradients differ by {difference:.2g} of their norm (tolerance {TOLERANCE})"
    return {"fault": fault, "note": f"{', '.join(devices)}: {difference:.0e} apart"}


def _first_moment(dataset: Dataset, devices: list[str]) -> tuple[np.ndarray, float]:
    """Returns Adam's first moment after one step, and the number of real target tokens.

    Dropout is off, because its masks differ between replicas. Raises ValueError if the replicas' copies of a weight
    are not bitwise equal afterwards.
    """
    hparams = HPARAMS.override(["dropout=0"])
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        model, optimizer = make_model(Vocabulary(dataset.vocabulary).size, hparams, seed=1, precision="float32")
        train_step = TrainStep(model, optimizer, hparams, seed=1)
    data = train_step.data(TrainingText(dataset.shards("train"), hparams.batch_tokens, seed=1))
    take_step, inputs = train_step.build(data.element_spec), train_step.next_inputs(iter(data))
    metrics = take_step(inputs, tf.constant(1), tf.constant(learning_rate(1, hparams), tf.float32)).numpy()
    for weight in train_step.variables:
        copies = [copy.numpy().tobytes() for copy in strategy.experimental_local_results(weight)]
        if len(set(copies)) > 1:
            raise ValueError("the replicas' copies of a weight differ after a step")
    moments = [strategy.experimental_local_results(each)[0].numpy().ravel() for each in optimizer.first]
    return np.concatenate(moments).astype(np.float64), metrics.tokens
