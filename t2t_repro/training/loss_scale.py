"""Loss scaling, without which many gradients of a float16 model would be 0 (Micikevicius et al., 2018, section 3.2)."""

from __future__ import annotations

import tensorflow as tf

FIRST = 2.0**15
GROWTH = 2_000  # updates in a row whose gradients are finite, after which the factor is doubled


class LossScale(tf.Module):
    """The factor by which the loss is multiplied before its gradient is taken, and the gradient divided after.

    It is halved, down to 1, where a gradient is not finite, an update that is skipped; and doubled after `GROWTH`
    updates that are. Both variables are saved with the optimizer that holds it.
    """

    def __init__(self) -> None:
        super().__init__(name="loss_scale")
        self.factor = tf.Variable(FIRST, trainable=False, name="factor")
        self.finite_updates = tf.Variable(0, trainable=False, name="finite_updates")

    def adapt(self, finite: tf.Tensor) -> None:
        """To be called once an update; `finite` is a boolean scalar."""
        row = tf.where(finite, self.finite_updates + 1, 0)
        grown = tf.equal(row, GROWTH)
        halved = tf.maximum(self.factor / 2, 1.0)
        self.factor.assign(tf.where(finite, tf.where(grown, self.factor * 2, self.factor), halved))
        self.finite_updates.assign(tf.where(grown, 0, row))
