"""BPE-dropout: the cost of segmenting the training text in each epoch, beside that of training on it.

    python -m benchmarks.bpe_dropout --data_dir=data/translate_files --hparams=multi30k

Reads the first window of prepared data (at most 200,000 pairs), and prints for several p: the tokens after segmentation
over those as prepared; the share of sentences with other subwords; the share that keeps its subwords because it would
be longer than `max_length`; and the pairs that one core segments per second of its own time.

Then trains for `--steps` steps, which should be more than the window gives, without and with BPE-dropout. It prints the
steps that the window gives, the share of time spent waiting for data, the processor time of a step, which includes
segmentation if it happens in these steps, and the processor time of segmenting a window over that of its steps. With
`--steps=0` it does not train.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

RATES = (0.05, 0.1, 0.2)
WARM_UP = 5  # steps


def segmentation(window: dict[str, Any], dropout: Any, max_length: int) -> tuple[str, float]:
    """Returns the row of the table for a window of ids, and the processor seconds of segmenting it."""
    start = time.process_time()
    made = dropout.segment(window, (1, 0, 0))
    seconds = time.process_time() - start
    dropout.max_length = 10**6
    free = dropout.segment(window, (1, 0, 0))
    before, after, longest = (
        np.concatenate([np.diff(each[side][1]) for side in dropout.sides]) for each in (window, made, free)
    )
    changed = sum(different(window[side], made[side]) for side in dropout.sides) / len(before)
    pairs = len(window["inputs"][1]) - 1
    kept = (longest > max_length).mean()
    growth = after.sum() / before.sum()
    return f"| {dropout.rate} | {growth:.3f} | {changed:.1%} | {kept:.2%} | {pairs / seconds:,.0f} |", seconds


def different(one: Any, two: Any) -> int:
    """Returns the number of sentences whose ids differ."""
    firsts, seconds = (np.split(ids, bounds[1:-1]) for ids, bounds in (one, two))
    return sum(not np.array_equal(first, second) for first, second in zip(firsts, seconds, strict=True))


def while_training(text: Any, vocab_size: int, hparams: Any, precision: str, steps: int) -> tuple[float, float]:
    """Returns the share of time spent waiting for data, and processor seconds per step, over `steps` warm steps."""
    import tensorflow as tf

    from t2t_repro.training.train_step import TrainStep, make_model

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model, optimizer = make_model(vocab_size, hparams, 1, precision)
        train_step = TrainStep(model, optimizer, hparams, seed=1)
    data = train_step.data(text)
    take_step, elements = train_step.build(data.element_spec), iter(data)

    def step(number: int) -> float:
        asked = time.perf_counter()
        inputs = train_step.next_inputs(elements)
        waited = time.perf_counter() - asked
        take_step(inputs, tf.constant(number), tf.constant(1e-4)).numpy()
        return waited

    for number in range(1, WARM_UP + 1):
        step(number)
    start, used = time.perf_counter(), time.process_time()
    waited = sum(step(number) for number in range(WARM_UP + 1, WARM_UP + 1 + steps))
    return waited / (time.perf_counter() - start), (time.process_time() - used) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="folder with dataset.json")
    parser.add_argument("--hparams", default="multi30k", help="default: %(default)s")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rate", type=float, default=0.1, help="p in training; default: %(default)s")
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from t2t_repro import get_hparams
    from t2t_repro.data.bpe_dropout import bpe_dropout
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.dataset_record import SIDES
    from t2t_repro.data.input_pipeline import TrainingText

    dataset, hparams = Dataset.open(arguments.data_dir), get_hparams(arguments.hparams)
    problem, vocab_size = dataset.record.problem, dataset.record.vocabulary.size
    usual = TrainingText(dataset.shards("train"), hparams.batch_tokens, seed=1)
    pairs = next(usual.windows(epoch=0)).pairs
    window = {side: (pairs[side].flat_values.numpy(), pairs[side].row_splits.numpy()) for side in SIDES}
    print("| p | tokens | sentences changed | kept for their length | pairs/s per core |\n" + "|---" * 5 + "|")
    seconds = {}
    for rate in sorted({*RATES, arguments.rate}):
        dropout = bpe_dropout(replace(hparams, bpe_dropout=rate), problem, dataset)
        row, seconds[rate] = segmentation(window, dropout, problem.max_length)
        print(row, flush=True)
    if not arguments.steps:
        return
    print("\n| p | steps per window | waiting | processor time per step | of it segmentation |\n|---|---|---|---|---|")
    for rate in (0.0, arguments.rate):
        chosen = replace(hparams, bpe_dropout=rate)
        text = replace(usual, dropout=bpe_dropout(chosen, problem, dataset))
        steps = len(next(text.windows(epoch=0)).spans)
        waiting, used = while_training(text, vocab_size, chosen, arguments.precision, arguments.steps)
        share = seconds[rate] / (steps * used) if rate else 0.0
        print(f"| {rate} | {steps} | {waiting:.2%} | {1000 * used:,.0f} ms | {share:.2%} |", flush=True)


if __name__ == "__main__":
    main()
