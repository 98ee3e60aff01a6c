"""Adam (Kingma and Ba, 2015; section 5.3) with its state, one fused operation a variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from t2t_repro.config import HParams
from t2t_repro.training.loss_scale import LossScale


class Adam(tf.Module):
    """First and second moments of each variable, and the number of updates so far.

    Applied outside the replicas, to a gradient already summed over them. Against `keras.optimizers.Adam`, whose every
    update is a dozen passes over the weights, TensorFlow's fused kernel makes one.
    """

    loss_scale: LossScale | None  # for a model in float16: by what its gradients come multiplied

    def __init__(self, variables: Sequence[tf.Variable], hparams: HParams, scaled: bool = False):
        super().__init__(name="adam")
        self.loss_scale = LossScale() if scaled else None
        self._strategy = tf.distribute.get_strategy()  # the one it is made in: `apply` is traced outside its scope
        self.beta1, self.beta2, self.epsilon = hparams.adam_beta1, hparams.adam_beta2, hparams.adam_epsilon
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        # tuples: tf.train.Checkpoint silently leaves out what is kept in a list of a Keras model
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
