"""Small models, and a small problem, for the tests of everything that has weights."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data import batching
from t2t_repro.model.transformer import Transformer
from t2t_repro.problem import Generated, Pair, Problem
from t2t_repro.run import Run
from t2t_repro.training import validation
from t2t_repro.training.checkpointing.checkpoint_list import paths
from t2t_repro.training.train_step import TrainStep

SMALL = HParams(
    name="small",
    description="",
    num_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=2,
    d_k=5,
    d_v=7,
    dropout=0.0,
    batch_tokens=200,
    train_steps=6,
    warmup_steps=4,
    beam_size=2,
    extra_length=4,
)

TINY = replace(  # three steps per epoch of `PROBLEM`
    SMALL,
    name="tiny",
    num_layers=1,
    dropout=0.1,
    label_smoothing=0.1,
    batch_tokens=2_000,
    train_steps=8,
    warmup_steps=4,
)

PART_TOKENS = 1_000  # so that each of those is two parts


FLOAT32 = TrainingOptions(precision="float32")
MIRRORED = tf.distribute.MirroredStrategy  # whatever stands in for it during a test


def silent(line: str) -> None:
    """A report function that discards its lines."""


def random_model(vocab_size: int = 11, seed: int = 1, dtype: str = "float32", **changes: Any) -> Transformer:
    """A model of the size of `SMALL` whose every weight is random, gains and biases too."""
    model = Transformer(vocab_size, replace(SMALL, **changes), dtype=dtype)
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        centre = 1.0 if weight.name == "gain" else 0.0
        weight.assign(rng.normal(centre, 0.3, weight.shape))
    return model


@functools.cache
def shared_model(vocab_size: int = 11, **changes: Any) -> Transformer:
    """`random_model`, made once for all tests: its first call takes ten times as long as the next. Do not change it."""
    return random_model(vocab_size, **changes)


def random_ids(rng: np.random.Generator, vocab_size: int, *shape: int) -> np.ndarray:
    """Ids without padding: from 1 on."""
    return rng.integers(1, vocab_size, shape).astype(np.int32)


def seed(*parts: int) -> Any:
    """Returns a seed for dropout: [2] int32."""
    return keras.ops.convert_to_tensor(parts, "int32")


def values(run: Run, step: int) -> dict[str, np.ndarray]:
    """Returns all that the checkpoint of `step` holds, by name."""
    (path,) = (path for path in paths(run) if path.endswith(f"-{step}"))
    reader = tf.train.load_checkpoint(path)
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names if "save_counter" not in name}


@contextlib.contextmanager
def on_cpus(number: int) -> Iterator[pytest.MonkeyPatch]:
    """Trains on the first `number` logical CPUs, in micro-batches of `PART_TOKENS`. Yields the patch."""
    strategy = functools.partial(MIRRORED, [f"CPU:{each}" for each in range(number)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.distribute, "MirroredStrategy", strategy)
        patch.setattr(batching, "PART_TOKENS", PART_TOKENS)
        yield patch


def refuse_parts(monkeypatch: Any, more_than: int) -> None:
    """Lets TensorFlow run out of memory in every step with a micro-batch of more pairs than that."""
    build = TrainStep.build

    def limited(self: TrainStep, element_spec: Any) -> Any:
        take_step = build(self, element_spec)

        def within(elements: Any, *scalars: Any) -> Any:
            if max(element["sizes"].numpy()[:, 0].max() for element in elements) > more_than:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return take_step(elements, *scalars)

        return within

    monkeypatch.setattr(TrainStep, "build", limited)


def refuse_evaluation(monkeypatch: Any, more_than: int) -> None:
    """Lets TensorFlow run out of memory in every evaluation of a batch of more pairs than that."""
    make = validation.make_evaluator

    def limited(*arguments: Any) -> Any:
        evaluate = make(*arguments)

        def within(source_BM: tf.Tensor, target_BL: tf.Tensor) -> tf.Tensor:
            if len(source_BM) > more_than:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return evaluate(source_BM, target_BL)

        return within

    monkeypatch.setattr(validation, "make_evaluator", limited)


def _pairs(start: int, stop: int) -> Iterator[Pair]:
    """`3 red cats and 4 old dogs` and its German, every pair of words in its turn."""
    words = list(itertools.product(("red rote", "old alte", "big große"), ("cats Katzen", "dogs Hunde", "cows Kühe")))
    for number in range(start, stop):
        (colour, animal), (other, second) = words[number % 9], words[number // 9 % 9]
        sides = []
        for side, conjunction in enumerate(("and", "und")):
            one, two = (f"{a.split()[side]} {b.split()[side]}" for a, b in ((colour, animal), (other, second)))
            sides.append(f"{number} {one} {conjunction} {number % 7} {two}")
        yield sides[0], sides[1]


def train_pairs() -> Iterator[Pair]:
    return _pairs(0, 300)


def validation_pairs() -> Iterator[Pair]:
    return _pairs(300, 310)


def test_pairs() -> Iterator[Pair]:
    return _pairs(310, 318)


PROBLEM = Problem(
    name="animals",
    description="300 pairs, for the tests",
    train=(Generated(train_pairs),),
    validation=(Generated(validation_pairs),),
    test=(Generated(test_pairs),),
    vocab_size=330,
    max_length=60,
)
