"""This package, as `t2t-trainer` runs it: its model, training step and graph. Mode: float32 or bfloat16, and +xla, or
+eigen: without oneDNN."""

from __future__ import annotations

import os

from benchmarks.workers import protocol
from t2t_repro.cli import launcher
from t2t_repro.system.heap import one_heap

getattr(launcher, "use_huge_pages", lambda: None)()  # which older versions lack; `benchmarks.compare` runs them too
shape, path, mode = protocol.arguments()
protocol.quiet_output()
mode, eigen, _ = mode.partition("+eigen")
if eigen:
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

one_heap()
launcher.load_tensorflow()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import batches  # noqa: E402
from benchmarks.updater import compiled_update, hparams_of  # noqa: E402
from t2t_repro.training import parallel  # noqa: E402

SPEC = {side: tf.TensorSpec((None, None, None), tf.int32) for side in ("inputs", "targets")}
SPEC["sizes"] = tf.TensorSpec((None, 3), tf.int32)


def in_parallel(parts: list[batches.Part]) -> list[batches.Part]:
    """Splits each part into the micro-batches that are computed in parallel."""
    # older versions have one function for both
    shares = getattr(parallel, "num_parallel_microbatches", parallel.num_parallel_batches)()
    split = [tuple(np.array_split(side, shares) for side in part) for part in parts]
    return [(sources[n], targets[n]) for sources, targets in split for n in range(shares)]


def element(parts: list[batches.Part]) -> dict[str, tf.Tensor]:
    """Returns one step as `TrainingText.batches` gives it to a replica."""
    sizes = np.array([(*source.shape, target.shape[1]) for source, target in parts], np.int32)
    most, longest_source, longest_target = sizes.max(axis=0)

    def stacked(ids: list[np.ndarray], longest: int) -> tf.Tensor:
        return tf.constant(np.stack([np.pad(x, ((0, most - len(x)), (0, longest - x.shape[1]))) for x in ids]))

    sources, targets = ([part[side] for part in parts] for side in (0, 1))
    return {
        "inputs": stacked(sources, longest_source),
        "targets": stacked(targets, longest_target),
        "sizes": tf.constant(sizes),
    }


def main() -> None:
    if "+" not in mode:
        parallel.set_training_threads(hparams_of(shape))
    elements = [element(in_parallel(parts)) for parts in batches.load(path)]
    update = compiled_update(shape, mode, SPEC)
    protocol.serve(lambda index: update(elements[index]), elements)


if __name__ == "__main__":
    main()
