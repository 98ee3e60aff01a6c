"""`python -m t2t_repro.selftest` on a machine with the fault that FAULT names: what the self-test must find."""

from __future__ import annotations

import os
import signal
import sys

from t2t_repro.selftest.child import serve


def double() -> None:
    """Products are twice the right value."""
    import tensorflow as tf

    matmul = tf.matmul
    tf.matmul = lambda *args, **kwargs: 2 * matmul(*args, **kwargs)


def crash() -> None:
    """Products in bfloat16 end the process, as a kernel for another processor does."""
    import tensorflow as tf

    from t2t_repro.training import hardware

    product_fault = hardware.product_fault

    def crashing(precision: str) -> str:
        if precision == "bfloat16":
            print("illegal hardware instruction", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGILL)
        return product_fault(precision)

    hardware.product_fault = crashing
    assert tf


def seed() -> None:
    """The seed does not reach the weights: each process draws others."""
    import keras

    keras.utils.set_random_seed = lambda number: None


def checkpoint() -> None:
    """One bit of what is restored is another."""
    import numpy as np

    from t2t_repro.training.checkpointing.checkpoints import Checkpoints

    restore_newest = Checkpoints.restore_newest

    def restored(self: Checkpoints) -> bool:
        found = restore_newest(self)
        if found:
            weight = max(self._members, key=lambda member: int(np.prod(member.shape)))
            value = weight.numpy()
            value.view(np.int32).flat[0] ^= 1
            weight.assign(value)
        return found

    Checkpoints.restore_newest = restored


def replica() -> None:
    """The second replica's gradient is lost."""
    from t2t_repro.training.train_step import TrainStep

    replica_gradients = TrainStep._replica_gradients

    def lost(self, element, step, divisor):
        import tensorflow as tf

        gradients, sums = replica_gradients(self, element, step, divisor)
        kept = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group == 0, tf.float32)
        return [gradient * kept for gradient in gradients], sums

    TrainStep._replica_gradients = lost


def export() -> None:
    """The exported model reads each sentence backwards."""
    from t2t_repro.exporting.exported_model import ExportedModel

    n_best = ExportedModel.n_best
    ExportedModel.n_best = lambda self, texts, n: n_best(self, [text[::-1] for text in texts], n)


if __name__ == "__main__":
    if name := os.environ.get("FAULT"):
        globals()[name]()
    serve(sys.argv[1:])
