"""The input pipeline: the share of a step spent waiting for data, and the padding of batches.

    python -m benchmarks.pipeline

Trains, on shards of random pairs (`benchmarks.batches`: lognormal lengths of mean 27), as `t2t-trainer` does, and takes
alternately the time of waiting for the next batch and of the step on it. The pipeline works in the background on the
same cores. Its cost to a step is not waiting time; it shows in the ratio of pairs/s, alone over while training.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.batches import FIRST_ID, PAIRS, random_lengths
from benchmarks.shapes import SHAPES, Shape

SHARDS = 4
WARM_UP = 5  # steps
FILL_TOKENS = (2_048, 25_000)


def write_shards(folder: str, pairs: int, vocab_size: int, seed: int = 1) -> list[str]:
    """Writes `pairs` random pairs in the format of `t2t-datagen`."""
    from t2t_repro.data.shards import example, write_shard

    rng = np.random.default_rng(seed)
    lengths = random_lengths(pairs, rng)

    def examples(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows:
            yield example(*(rng.integers(FIRST_ID, vocab_size, length).tolist() for length in row))

    paths = [os.path.join(folder, f"{index}.tfrecord") for index in range(SHARDS)]
    for index, path in enumerate(paths):
        write_shard(path, examples(lengths[index::SHARDS]))
    return paths


def alone(shards: Sequence[str], batch_tokens: int) -> tuple[float, int, np.ndarray]:
    """Returns, for one epoch without training: pairs per second; the real tokens of both sides, and (B, M, L) of all
    parts [N, 3]."""
    from t2t_repro.data.input_pipeline import TrainingText

    start, real, sizes = time.perf_counter(), 0, []
    for element in TrainingText(shards, batch_tokens, seed=1).batches(epoch=0):
        sizes.append(element["sizes"].numpy())
        real += sum(int(np.count_nonzero(element[side].numpy())) for side in ("inputs", "targets"))
    seconds, sizes_N3 = time.perf_counter() - start, np.concatenate(sizes)
    return sizes_N3[:, 0].sum() / seconds, real, sizes_N3[sizes_N3[:, 0] > 0]


def padding(real: int, sizes_N3: np.ndarray) -> str:
    """Returns padding efficiency and number of shapes of the micro-batches, without and with XLA's shape buckets."""
    from t2t_repro.training.train_step import bucket_sizes

    batch_N, length_N = bucket_sizes(sizes_N3).numpy().T
    padded_N3 = np.stack([batch_N, length_N, length_N], axis=1)
    cells = []
    for each_N3 in (sizes_N3, padded_N3):
        positions = (each_N3[:, 0].astype(np.int64) * each_N3[:, 1:].sum(axis=1)).sum()
        cells += [f"{real / positions:.3f}", f"{len(np.unique(each_N3, axis=0)):,}"]
    return " | ".join(cells)


def while_training(shards: Sequence[str], shape: Shape, precision: str, updates: int) -> tuple[float, float]:
    """Returns the share of time spent waiting for data, and pairs per second, over `updates` warm steps.

    Each model needs a new process: TensorFlow sets the threads of an operation once.
    """
    from benchmarks.updater import compiled_update, hparams_of
    from t2t_repro.data.input_pipeline import Layout, TrainingText
    from t2t_repro.training.parallel import set_training_threads
    from t2t_repro.training.train_step import default_microbatch_tokens

    hparams = hparams_of(shape)
    set_training_threads(hparams)
    layout = Layout(microbatch_tokens=default_microbatch_tokens(hparams, replicas=1))
    data = TrainingText(shards, shape.batch_tokens, seed=1).batches(epoch=0, layout=layout)
    update = compiled_update(shape, precision, data.element_spec)
    elements = iter(data)
    for element in itertools.islice(elements, WARM_UP):
        update(element)
    waiting, pairs, start = 0.0, 0, time.perf_counter()
    for _ in range(updates):
        asked = time.perf_counter()
        element = next(elements)
        waiting += time.perf_counter() - asked
        update(element)
        pairs += int(element["sizes"][:, 0].numpy().sum())
    seconds = time.perf_counter() - start
    return waiting / seconds, pairs / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="base,small", help=f"of {', '.join(SHAPES)}; default: %(default)s")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--updates", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="in the shards; default: %(default)s")
    arguments = parser.parse_args()
    shapes = [SHAPES[name] for name in arguments.models.split(",")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(folder, arguments.pairs, min(shape.vocab_size for shape in shapes))
        rates = {}
        print(
            "| positions per side | real tokens over positions | shapes | with `--jit_compile` | shapes |\n"
            + "|---" * 5
            + "|"
        )
        for tokens in sorted({*FILL_TOKENS, *(shape.batch_tokens for shape in shapes)}):
            rates[tokens], real, sizes_N3 = alone(shards, tokens)
            print(f"| {tokens:,} | {padding(real, sizes_N3)} |", flush=True)
        print("\n| model | share of a step spent waiting | pairs/s: alone over while training |\n|---|---|---|")
        for shape in shapes:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                taken = process.submit(while_training, shards, shape, arguments.precision, arguments.updates)
                waiting, rate = taken.result()
            ratio = rates[shape.batch_tokens] / rate
            print(f"| {shape}, {arguments.precision} | {waiting:.2%} | {ratio:.0f} |", flush=True)


if __name__ == "__main__":
    main()
