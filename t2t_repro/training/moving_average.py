"""The exponential moving average of a model's weights (Kingma and Ba, 2015, section 7.2).

After step t it is the mean of the weights w_1, ..., w_t after each step, weighted by decay^(t - i):

    sum of decay^(t - i) w_i / sum of decay^(t - i), over i = 1 ... t

The divisor is their bias correction: random initial weights are not part of the mean. `keras.optimizers` have one
without it (`use_ema`), which needs their optimizer in place of `training.optimizer.Adam`, and replaces the weights
that training continues with.
"""

from __future__ import annotations

import math

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.model.kernels import unset_weights
from t2t_repro.model.transformer import Transformer


class MovingAverage:
    """A second model, whose weights are the moving average of those of the first. Training does not read it."""

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
        """Adds the weights after an update of the model. `updates` (int64) counts the updates, including this one.

        With e_0 = 0 the recursion is e_t = e_(t-1) + share (w_t - e_(t-1)), share = (1 - decay) / (1 - decay^t).
        """
        power = tf.cast(updates, tf.float64) * math.log(self._decay)
        share = tf.cast((self._decay - 1) / tf.math.expm1(power), tf.float32)  # 1 - decay^t would lose digits
        for average, weight in self._pairs:
            self._strategy.extended.update(average, _move, args=(weight, share), group=True)


def _move(average: tf.Variable, weight: tf.Variable, share: tf.Tensor) -> None:
    average.assign_add(share * (weight - average))
