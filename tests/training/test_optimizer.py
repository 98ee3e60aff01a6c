"""Adam against Kingma and Ba (2015), algorithm 1, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers.reference_adam import algorithm_1

from t2t_repro.config import HParams
from t2t_repro.training.optimizer import Adam

pytestmark = pytest.mark.numeric

HPARAMS = HParams(name="base", description="")  # beta1 0.9, beta2 0.98, epsilon 1e-9 (section 5.3)
SHAPES = [(3, 4), (5,)]
RNG = np.random.default_rng(1)


def ours(weights, steps, rates):
    """`weights` and each of `steps` are lists of one array a variable. Returns the weights at the end, and Adam."""
    variables = [tf.Variable(array, dtype=tf.float32) for array in weights]
    adam = Adam(variables, HPARAMS)
    for gradients, rate in zip(steps, rates, strict=True):
        gradients = [tf.constant(gradient, tf.float32) for gradient in gradients]
        adam.apply(gradients, variables, tf.constant(rate, tf.float32))
    return [variable.numpy() for variable in variables], adam


@pytest.mark.parametrize(("size", "early_epsilon"), [(1e-2, False), (1e3, False), (1e-8, True)])
def test_five_steps(size, early_epsilon):
    """Gradients of any size move a weight by about the learning rate. Only where they are as small as epsilon does it
    matter where that is added: TensorFlow's kernel, like the authors' own code, adds it early.
    """
    weights = [RNG.normal(size=shape) for shape in SHAPES]
    steps = [[size * RNG.normal(size=shape) for shape in SHAPES] for _ in range(5)]
    rates = [1e-3, 2e-3, 3e-3, 1e-3, 5e-4]
    found, _ = ours(weights, steps, rates)
    for number, (array, start) in enumerate(zip(found, weights, strict=True)):
        expected = algorithm_1(start, [step[number] for step in steps], rates, early_epsilon)
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7)
        assert np.abs(expected - start).max() > 1e-3


def test_the_first_step_is_the_learning_rate():
    """Both corrected moments equal the gradient's, so its size cancels: each weight moves by the learning rate."""
    (array,), _ = ours([np.zeros(4)], [[np.array([5, -5, 1e-3, -1e3])]], [0.01])
    np.testing.assert_allclose(array, [-0.01, 0.01, -0.01, 0.01], rtol=1e-4)


def test_a_weight_without_gradient_stays():
    (array,), _ = ours([np.full(3, 0.5)], [[np.zeros(3)]] * 3, [0.1] * 3)
    np.testing.assert_array_equal(array, np.full(3, 0.5, np.float32))


def test_its_state():
    """tf.train.Checkpoint finds two moments of each variable, of its shape, and the number of updates."""
    _, adam = ours([np.zeros(shape) for shape in SHAPES], [[np.ones(shape) for shape in SHAPES]] * 4, [0.1] * 4)
    assert int(adam.updates) == 4
    assert sorted(tuple(v.shape) for v in adam.variables) == sorted([(), *SHAPES, *SHAPES])
    np.testing.assert_allclose(adam.first[1], np.full(5, 1 - 0.9**4), rtol=1e-6)
    np.testing.assert_allclose(adam.second[1], np.full(5, 1 - 0.98**4), rtol=1e-5)
