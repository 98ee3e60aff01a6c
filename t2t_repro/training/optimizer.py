"""The optimizer of section 5.3: Adam (Kingma and Ba, 2015), the learning rate of eq. 3, loss scaling, and on request
a moving average of the weights.

A float16 model needs loss scaling: without it many gradients would be 0 (Micikevicius et al., 2018, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.model.kernels import unset_weights
from t2t_repro.model.transformer import Transformer

FIRST_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH = 2_000  # steps in a row with finite gradients, after which the loss scale is doubled


def learning_rate(step: int, hparams: HParams) -> float:
    """Returns `learning_rate_scale` d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5), for step = 1, 2, ...

    In the paper `learning_rate_scale` is 1. The last `decay_steps` = n steps have 1, (n - 1) / n, ..., 1 / n of this
    rate: after `train_steps` it would be 0.

    Raises ValueError for a step below 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    rate: float = hparams.d_model**-0.5 * min(step**-0.5, step * hparams.warmup_steps**-1.5)
    if hparams.decay_steps:
        rate *= min(1.0, max(0, hparams.train_steps + 1 - step) / hparams.decay_steps)
    return hparams.learning_rate_scale * rate


class LossScale(tf.Module):
    """A dynamic loss scale: it multiplies the loss before the backward pass, and divides the gradient afterwards.

    If a gradient is not finite, the step is skipped and the scale is halved, down to 1. The scale is doubled after
    `LOSS_SCALE_GROWTH` consecutive steps with finite gradients. Both variables are saved with the optimizer.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scale")
        self.factor = tf.Variable(FIRST_LOSS_SCALE, trainable=False, name="factor")
        self.finite_updates = tf.Variable(0, trainable=False, name="finite_updates")

    def adapt(self, finite: tf.Tensor) -> None:
        """Updates the scale. Call it once per step; `finite` is a boolean scalar."""
        row = tf.where(finite, self.finite_updates + 1, 0)
        grown = tf.equal(row, LOSS_SCALE_GROWTH)
        halved = tf.maximum(self.factor / 2, 1.0)
        self.factor.assign(tf.where(finite, tf.where(grown, self.factor * 2, self.factor), halved))
        self.finite_updates.assign(tf.where(grown, 0, row))


class Adam(tf.Module):
    """First and second moments of each variable, and the number of updates so far.

    Applied outside the replicas, to a gradient already summed over them. `keras.optimizers.Adam` makes a
    dozen passes over the weights; TensorFlow's fused kernel, which is used here, makes one.
    """

    loss_scale: LossScale | None  # for a model in float16: its gradients are multiplied by it

    def __init__(self, variables: Sequence[tf.Variable], hparams: HParams, scaled: bool = False):
        super().__init__(name="adam")
        self.loss_scale = LossScale() if scaled else None
        self._strategy = tf.distribute.get_strategy()  # the current one: `apply` is traced outside its scope
        self.beta1, self.beta2, self.epsilon = hparams.adam_beta1, hparams.adam_beta2, hparams.adam_epsilon
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        # tuples: tf.train.Checkpoint silently omits variables in a list of a Keras model
        self.first = tuple(tf.Variable(tf.zeros_like(v), trainable=False, name="first") for v in variables)
        self.second = tuple(tf.Variable(tf.zeros_like(v), trainable=False, name="second") for v in variables)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable], rate: tf.Tensor) -> None:
        """Moves `variables`, in the constructor's order, against `gradients` at learning rate `rate`."""
        self.updates.assign_add(1)
        count = tf.cast(self.updates, tf.float32)
        numbers = {"lr": rate, "beta1_power": self.beta1**count, "beta2_power": self.beta2**count}
        numbers |= {name: tf.constant(getattr(self, name)) for name in ("beta1", "beta2", "epsilon")}
        for variable, gradient, first, second in zip(variables, gradients, self.first, self.second, strict=True):
            self._strategy.extended.update(
                variable, self._update_one, args=(gradient, first, second), kwargs=numbers, group=True
            )

    def _update_one(
        self, variable: tf.Variable, gradient: tf.Tensor, first: tf.Variable, second: tf.Variable, **numbers: tf.Tensor
    ) -> None:
        if self.loss_scale is not None:
            gradient = gradient / self.loss_scale.factor
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=first.handle, v=second.handle, grad=gradient, use_locking=True, **numbers
        )


class MovingAverage:
    """The exponential moving average of a model's weights (Kingma and Ba, 2015, section 7.2), as a second model.

    After step t it is the mean of the weights w_1, ..., w_t after each step, weighted by decay^(t - i):

        sum of decay^(t - i) w_i / sum of decay^(t - i), over i = 1 ... t

    The divisor is their bias correction: initial weights are not part of the mean. Training does not read it.
    `keras.optimizers` have an average without that correction (`use_ema`). It needs their optimizers, and puts the
    average in the place of the weights.
    """

    def __init__(self, model: Transformer, decay: float):
        """Starts from the weights of `model`. Call it inside the scope of a `tf.distribute` strategy."""
        self._decay, self._strategy = decay, tf.distribute.get_strategy()
        with unset_weights():
            self.model = Transformer(model.vocab_size, model.hparams, dtype=model.dtype_policy)
        models = (self.model.trainable_variables, model.trainable_variables)
        self._pairs = [(average.value, weight.value) for average, weight in zip(*models, strict=True)]
        self.restart()

    @classmethod
    def of(cls, model: Transformer, hparams: HParams) -> MovingAverage | None:
        """Returns the moving average that `hparams` ask for, or None."""
        return cls(model, hparams.ema_decay) if hparams.ema_decay else None

    def restart(self) -> None:
        """Copies the weights of the model."""
        for average, weight in self._pairs:
            average.assign(weight)

    def update(self, updates: tf.Tensor) -> None:
        """Adds the weights after the model was updated `updates` times (int64), by `Adam.apply`.

        With e_0 = 0 the recursion is e_t = e_(t-1) + share (w_t - e_(t-1)), share = (1 - decay) / (1 - decay^t).
        """
        power = tf.cast(updates, tf.float64) * math.log(self._decay)
        share = tf.cast((self._decay - 1) / tf.math.expm1(power), tf.float32)  # 1 - decay^t would lose digits
        for average, weight in self._pairs:
            self._strategy.extended.update(average, _move, args=(weight, share), group=True)


def _move(average: tf.Variable, weight: tf.Variable, share: tf.Tensor) -> None:
    average.assign_add(share * (weight - average))
