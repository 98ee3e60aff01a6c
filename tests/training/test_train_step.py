"""A step gives the same result on one device, on two, and with a plain gradient tape on the complete batch."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_adam import algorithm_1
from helpers.tiny_model import SMALL

from t2t_repro.data import batching
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.data.shards import example, write_shard
from t2t_repro.flops import training_flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.training import optimizer, train_step
from t2t_repro.training.loss import smoothed_cross_entropy
from t2t_repro.training.optimizer import FIRST_LOSS_SCALE, Adam, MovingAverage, learning_rate
from t2t_repro.training.train_step import StepMetrics, TrainStep, make_evaluator, pad_to_bucket

VOCAB = 20
UPDATES = 5
HPARAMS = replace(SMALL, num_layers=1, batch_tokens=128)  # with PART_TOKENS 16: eight micro-batches per step


class Outcome(NamedTuple):
    """The result of several steps."""

    before: list[np.ndarray]
    weights: list[np.ndarray]
    metrics: list[StepMetrics]
    traces: int


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(batching, "PART_TOKENS", 16)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> list[str]:
    rng = np.random.default_rng(1)
    pairs = [[[*rng.integers(2, VOCAB, n), 1] for n in rng.integers(1, 9, 2)] for _ in range(160)]
    path = str(tmp_path_factory.mktemp("shards") / "train-00000-of-00001.tfrecord")
    write_shard(path, (example(*pair) for pair in pairs))
    return [path]


class Trainer:
    """A model, its optimizer and the graph of a step, on `replicas` devices."""

    def __init__(
        self,
        shards: list[str],
        replicas: int,
        dtype: str = "float32",
        microbatch_tokens: int = 0,
        jit_compile: bool = False,
        **changes: Any,
    ):
        hparams = replace(HPARAMS, **changes)
        # without TensorFlow's collectives: in one process two strategies of several devices get into each other's
        self.strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(replicas)], tf.distribute.ReductionToOneDevice()
        )
        with self.strategy.scope():
            tf.keras.utils.set_random_seed(1)
            self.model = Transformer(VOCAB, hparams, dtype=dtype)
            self.variables = [weight.value for weight in self.model.trainable_weights]
            self.optimizer = Adam(self.variables, hparams, scaled=dtype == "mixed_float16")
            self.average = MovingAverage.of(self.model, hparams)
            sizes = microbatch_tokens, jit_compile
            self.train_step = TrainStep(self.model, self.optimizer, hparams, 1, *sizes, moving_average=self.average)
        layout = Layout(replicas, microbatch_tokens=microbatch_tokens)
        self.data = TrainingText(shards, hparams.batch_tokens, seed=1).batches(0, layout)
        self.take_step = self.train_step.build(self.data.element_spec)

    def run(self) -> Outcome:
        before, metrics, data = self.weights(), [], iter(self.data)
        for step in range(1, UPDATES + 1):
            inputs = self.train_step.next_inputs(data)
            rate = tf.constant(learning_rate(step, HPARAMS), tf.float32)
            metrics.append(self.take_step(inputs, tf.constant(step, tf.int32), rate).numpy())
        return Outcome(before, self.weights(), metrics, self.take_step.experimental_get_tracing_count())

    def weights(self, model: Transformer | None = None) -> list[np.ndarray]:
        """Returns the weights of the trained or another model, which are bitwise equal on all devices."""
        variables = [weight.value for weight in (model or self.model).trainable_weights]
        found = [[copy.numpy() for copy in self.strategy.experimental_local_results(v)] for v in variables]
        for copies in found:
            for copy in copies:
                np.testing.assert_array_equal(copy, copies[0])
        return [copies[0] for copies in found]


@pytest.fixture(scope="module")
def trained(shards):
    """Returns `trained(replicas, dropout)`: a trainer and the result of its first steps, each made once."""

    @functools.cache
    def made(replicas: int, dropout: float) -> tuple[Trainer, Outcome]:
        trainer = Trainer(shards, replicas, dropout=dropout, attention_dropout=dropout)
        return trainer, trainer.run()

    return made


def plainly(shards: list[str], before: list[np.ndarray]) -> Outcome:
    """Takes the same steps, each with one padded batch, one gradient tape, one mean, and Adam in float64."""
    model = Transformer(VOCAB, HPARAMS)
    steps, metrics = [], []
    data = TrainingText(shards, HPARAMS.batch_tokens, seed=1).batches(0)
    weights = before
    for element in data.take(UPDATES).as_numpy_iterator():
        for weight, value in zip(model.trainable_weights, weights, strict=True):
            weight.assign(value)
        widest = {side: element[side].shape[2] for side in ("inputs", "targets")}
        source, target = (element[side].reshape(-1, width) for side, width in widest.items())
        with tf.GradientTape() as tape:
            logits_BLV = model({"inputs": tf.constant(source), "targets": tf.constant(target)})
            real = target > 0
            loss = smoothed_cross_entropy(logits_BLV[real], tf.constant(target[real]), HPARAMS.label_smoothing)
            mean = loss.smoothed / loss.tokens
        gradients = tape.gradient(mean, [weight.value for weight in model.trainable_weights])
        steps.append([tf.convert_to_tensor(gradient).numpy() for gradient in gradients])
        norm = np.sqrt(sum((gradient**2).sum() for gradient in steps[-1]))
        metrics.append(StepMetrics(*loss, flops_of(element), norm, False))
        rates = [learning_rate(step, HPARAMS) for step in range(1, len(steps) + 1)]
        weights = [algorithm_1(w, [s[i] for s in steps], rates, early_epsilon=True) for i, w in enumerate(before)]
    return Outcome(before, weights, metrics, 0)


def flops_of(element: dict[str, np.ndarray]) -> float:
    """Returns the FLOPs of a step's micro-batches, from their unpadded sizes."""
    flops = 0.0
    for target, (batch, source_length, target_length) in zip(
        element["targets"], element["sizes"].tolist(), strict=True
    ):
        flops += training_flops(HPARAMS, VOCAB, batch, source_length, target_length, np.count_nonzero(target))
    return flops


def must_be_equal(one: Outcome, other: Outcome) -> None:
    """Asserts equality within rounding.

    Sums in another order differ by 1e-7 of a gradient. Adam divides by the gradient's size, so a weight whose gradient
    is a millionth of the others may differ by more, but by less than a thousandth of its total change.
    """
    np.testing.assert_allclose(one.metrics, other.metrics, rtol=2e-5, atol=1e-4)
    for start, a, b in zip(one.before, one.weights, other.weights, strict=True):
        assert np.linalg.norm(b - start) > 0.01 * np.sqrt(start.size)
        assert np.linalg.norm(a - b) < 1e-3 * np.linalg.norm(b - start)


@pytest.mark.numeric
def test_one_replica_equals_one_plain_batch(trained, shards):
    """Eight micro-batches with summed gradients equal one large batch."""
    _, ours = trained(1, 0.0)
    must_be_equal(ours, plainly(shards, ours.before))


@pytest.mark.parametrize(("count", "replicas"), [(16, 1), (4, 2), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_any_number_of_micro_batches_makes_the_same_step(trained, shards, replicas, count):
    """Instead of eight: smaller ones have less padding and fewer FLOPs, larger ones more."""
    _, whole = trained(1, 0.0)
    other = Trainer(shards, replicas, microbatch_tokens=128 // count, dropout=0.0, attention_dropout=0.0)
    assert other.train_step.microbatches == count // replicas
    found = other.run()
    for ours, theirs in zip(found.metrics, whole.metrics, strict=True):
        assert ours.flops <= theirs.flops if count > 8 else ours.flops >= theirs.flops
    same = [ours._replace(flops=theirs.flops) for ours, theirs in zip(found.metrics, whole.metrics, strict=True)]
    must_be_equal(found._replace(metrics=same), whole)


def test_micro_batches_in_parallel_make_the_same_step(trained, shards, monkeypatch):
    """Bit for bit, with dropout: gradients are added in the order of the micro-batches."""
    monkeypatch.setattr(train_step, "num_parallel_microbatches", lambda: 3)
    other = Trainer(shards, 1, dropout=0.3, attention_dropout=0.3)
    assert other.train_step.parallel == 3
    _, one = trained(1, 0.3)
    found = other.run()
    assert found.metrics == one.metrics
    for ours, theirs in zip(found.weights, one.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (loop,) = (
        node.attr["parallel_iterations"].i
        for node in other.take_step.get_concrete_function().graph.as_graph_def().node
        if node.op in ("While", "StatelessWhile")
    )
    assert loop == 3


def test_default_micro_batches_share_a_part(monkeypatch):
    """On a CPU: parts of 16 tokens here, of which two devices compute one each."""
    monkeypatch.setattr(train_step, "microbatch_shares", lambda hparams: 2)
    assert [train_step.default_microbatch_tokens(HPARAMS, replicas) for replicas in (1, 2)] == [8, 16]
    assert train_step.default_microbatch_tokens(HPARAMS, 1, jit_compile=True) == 16


def test_two_replicas_equal_one(trained):
    """With dropout too: the masks of a micro-batch do not depend on the device."""
    (_, one), (_, two) = trained(1, 0.3), trained(2, 0.3)
    must_be_equal(two, one)
    assert np.abs(one.weights[0] - trained(1, 0.0)[1].weights[0]).max() > 1e-3


@pytest.mark.numeric
def test_two_replicas_equal_one_with_r_drop_and_a_moving_average(trained, shards):
    """Eight micro-batches of two passes each on one device, four on each of two. Both count all FLOPs."""
    outcomes = []
    for replicas in (1, 2):
        trainer = Trainer(shards, replicas, dropout=0.3, attention_dropout=0.3, r_drop=5.0, ema_decay=0.7)
        outcomes.append(trainer.run())
        outcomes[-1] = outcomes[-1]._replace(weights=trainer.weights(trainer.average.model))
    must_be_equal(outcomes[1], outcomes[0])
    assert outcomes[0].metrics[0].flops == 2 * trained(1, 0.0)[1].metrics[0].flops


def test_a_replica_without_pairs_adds_nothing(shards):
    """One micro-batch for each of two replicas, the second empty, as at the end of an epoch: the step of the first
    alone, computed without a second set of gradients to add to."""
    one = Trainer(shards, 1, batch_tokens=16, dropout=0.3, attention_dropout=0.3)
    two = Trainer(shards, 2, batch_tokens=32, dropout=0.3, attention_dropout=0.3)
    assert one.train_step.microbatches == two.train_step.microbatches == 1
    (element,) = one.train_step.next_inputs(iter(one.data))
    for step, size in ((1, 0), (2, 3)):
        empty = {side: tf.zeros([1, size, size], tf.int32) for side in ("inputs", "targets")}
        empty |= {"sizes": tf.zeros([1, 3], tf.int32), "position": element["position"]}
        scalars = tf.constant(step), tf.constant(1e-3)
        ours, theirs = two.take_step([element, empty], *scalars), one.take_step([element], *scalars)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)
    for ours, theirs in zip(two.weights(), one.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    loops = [each for each in two.take_step.get_concrete_function().graph.get_operations() if "While" in each.type]
    assert loops and all(len(loop.inputs) < len(two.variables) for loop in loops)  # rounding of the losses


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_xla_takes_the_same_step(trained, shards, replicas):
    """From micro-batches with more padding."""
    compiled = Trainer(shards, replicas, jit_compile=True, dropout=0.0, attention_dropout=0.0)
    must_be_equal(compiled.run(), trained(1, 0.0)[1])
    assert compiled.train_step.gradients.experimental_get_tracing_count() == replicas


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_xla_computes_the_same_gradient(shards, dtype):
    """With dropout too: without additional padding all masks are the same.

    In bfloat16 the gradient of all weights together is compared. Over 30 masks it differed by at most 0.08 of its norm
    (that of a single matrix by 0.2). With other masks it differed by at least 1.04.
    """
    rng = np.random.default_rng(1)
    case = [tf.constant(rng.integers(2, VOCAB, (4, 6)) * (np.arange(6) < [[6], [5], [2], [6]]), tf.int32)] * 2
    assert [ids.shape for ids in pad_to_bucket(*case)] == [(4, 6)] * 2
    case += [tf.constant([3, 7]), tf.constant(19.0)]
    (ours, sums), (theirs, their_sums) = (
        tf.function(Trainer(shards, 1, dtype, jit_compile=jit, dropout=0.3).train_step.gradients)(*case)
        for jit in (True, False)
    )
    precise = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(sums[:2], their_sums[:2], rtol=precise)
    assert abs(sums.correct - their_sums.correct) <= (dtype != "float32") and sums.tokens == their_sums.tokens
    # over all variables: of a single bias, bfloat16 moves the gradient of these 19 tokens by up to a quarter
    precise = 1e-5 if dtype == "float32" else 0.2
    ours, theirs = (np.concatenate([np.ravel(each) for each in side]) for side in (ours, theirs))
    assert np.linalg.norm(ours - theirs) <= precise * np.linalg.norm(theirs)


@pytest.mark.numeric
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_float16_with_a_scaled_loss(trained, shards, replicas):
    """The same steps as in float32, to half precision: the loss, and the gradient's norm without the loss scale."""
    _, exact = trained(1, 0.0)
    half = Trainer(shards, replicas, dtype="mixed_float16")
    found = half.run()
    assert half.optimizer.loss_scale.factor.numpy() == FIRST_LOSS_SCALE
    assert half.optimizer.loss_scale.finite_updates.numpy() == UPDATES
    for ours, theirs in zip(found.metrics, exact.metrics, strict=True):
        assert abs(ours.correct - theirs.correct) <= 2 and not ours.skipped
        np.testing.assert_allclose(ours._replace(correct=theirs.correct), theirs, rtol=0.02)
    a, b = (np.concatenate([(x - y).ravel() for x, y in zip(o.weights, o.before, strict=True)]) for o in (found, exact))
    assert np.vdot(a, b) > 0.95 * np.linalg.norm(a) * np.linalg.norm(b)


@pytest.mark.float16
def test_an_overflow_halves_the_scale(shards):
    """If float16 overflows, steps are skipped and no weight moves until the scale fits; then training continues."""
    half = Trainer(shards, 1, dtype="mixed_float16")
    half.optimizer.loss_scale.factor.assign(2.0**30)
    before, inputs = half.weights(), half.train_step.next_inputs(iter(half.data))
    scalars = tf.constant(1, tf.int32), tf.constant(1e-3, tf.float32)
    skipped = [half.take_step(inputs, *scalars).numpy().skipped for _ in range(20)]
    assert skipped[0] and not skipped[-1] and skipped == sorted(skipped, reverse=True)
    assert half.optimizer.loss_scale.factor.numpy() == 2.0 ** (30 - sum(skipped))
    assert half.optimizer.updates.numpy() == 20 - sum(skipped)
    assert np.abs(half.weights()[0] - before[0]).max() > 1e-5


def test_the_scale_grows_again(monkeypatch):
    monkeypatch.setattr(optimizer, "LOSS_SCALE_GROWTH", 3)
    scale, factors = optimizer.LossScale(), []
    for finite in (True, True, False, True, True, True, True, True, True):
        scale.adapt(tf.constant(finite))
        factors.append(scale.factor.numpy() / FIRST_LOSS_SCALE)
    assert factors == [1, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2]
    for _ in range(40):
        scale.adapt(tf.constant(False))
    assert scale.factor.numpy() == 1


def test_one_graph_for_all_shapes(trained):
    assert trained(1, 0.0)[1].traces == trained(2, 0.3)[1].traces == 1


def operations(trainer: Trainer) -> int:
    """Returns the operations of a step's graph and of its functions: loops, branches and gradients."""
    definition = trainer.take_step.get_concrete_function().graph.as_graph_def()
    return len(definition.node) + sum(len(function.node_def) for function in definition.library.function)


@pytest.mark.parametrize(("dtype", "batch_tokens", "most"), [("float32", 128, 1_922), ("mixed_float16", 16, 2_044)])
def test_graph_of_a_step_has_no_more_operations(shards, dtype, batch_tokens, most):
    """Each operation costs launch time, and startup time before the first step: a change that adds some must be
    worth it. With gradient accumulation, and with a loss scale."""
    trainer = Trainer(shards, 1, dtype, batch_tokens=batch_tokens, dropout=0.1, attention_dropout=0.1)
    assert operations(trainer) <= most


def test_masks_differ_by_step_and_seed(shards):
    trainer = Trainer(shards, 1, dropout=0.3)
    inputs = trainer.train_step.next_inputs(iter(trainer.data))

    def losses(train_step: TrainStep) -> list[float]:
        take = train_step.build(trainer.data.element_spec)
        return [float(take(inputs, tf.constant(step), tf.constant(0.0)).numpy().smoothed) for step in (1, 1, 2)]

    with trainer.strategy.scope():
        other = TrainStep(trainer.model, trainer.optimizer, trainer.train_step.hparams, 2)
    (first, again, second), (of_other_seed, *_) = losses(trainer.train_step), losses(other)
    assert first == pytest.approx(again, rel=1e-6)
    assert abs(first - second) > 1e-3 and abs(first - of_other_seed) > 1e-3


def test_a_skipped_step_leaves_the_moving_average(shards):
    trainer = Trainer(shards, 1, ema_decay=0.7)
    data = iter(trainer.data)
    for step in (1, 2):
        trainer.take_step(trainer.train_step.next_inputs(data), tf.constant(step), tf.constant(1e-2))
    before, broken = trainer.weights(trainer.average.model), trainer.variables[0].numpy()
    broken[0, 0] = np.nan
    trainer.variables[0].assign(broken)
    inputs = trainer.train_step.next_inputs(data)
    assert trainer.take_step(inputs, tf.constant(3), tf.constant(1e-3)).numpy().skipped
    for one, other in zip(before, trainer.weights(trainer.average.model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("poison", [np.nan, 1e38])
def test_a_gradient_that_is_not_finite_is_skipped(trained, poison):
    """One weight is NaN, or so large that a product overflows: no weight moves, and the metrics report it."""
    trainer, _ = trained(2, 0.3)
    inputs = trainer.train_step.next_inputs(iter(trainer.data))
    healthy = trainer.variables[0].numpy()
    broken = healthy.copy()
    broken[0, 0] = poison  # the embedding of padding, which every decoder starts with
    trainer.variables[0].assign(broken)
    before, state = trainer.weights(), [v.numpy() for v in trainer.optimizer.variables]
    scalars = tf.constant(1, tf.int32), tf.constant(1e-3, tf.float32)
    assert trainer.take_step(inputs, *scalars).numpy().skipped
    for one, other in zip(before, trainer.weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, variable in zip(state, trainer.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, variable.numpy())
    trainer.variables[0].assign(healthy)
    assert not trainer.take_step(inputs, *scalars).numpy().skipped
    assert np.abs(trainer.weights()[0] - healthy).max() > 1e-5


def test_no_dropout_in_evaluation(shards):
    model = Transformer(VOCAB, replace(HPARAMS, dropout=0.5, attention_dropout=0.5))
    source = tf.constant([[3, 4, 1], [5, 1, 0]])
    target = tf.constant([[7, 1, 0, 0], [8, 9, 10, 1]])
    evaluate = make_evaluator(model, 0.1)
    first = evaluate(source, target)
    np.testing.assert_array_equal(first, evaluate(source, target))
    real = target.numpy() > 0
    logits = model({"inputs": source, "targets": target})[real]
    np.testing.assert_allclose(first, smoothed_cross_entropy(logits, target[real], 0.1), rtol=1e-5)
    assert first.tokens == 6
