"""Batches of texts for decoding and scoring: texts of similar length together, several batches in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from t2t_repro.data import batching
from t2t_repro.documents.document import Advance
from t2t_repro.text.token_ids import PAD
from t2t_repro.training import parallel

SLACK = 1.1  # allowance for padding when the cores share few sentences

Result = TypeVar("Result")


def batches_by_length(lengths: Mapping[int, Sequence[int]], tokens: int) -> list[list[int]]:
    """Returns the keys of `lengths` (source, target) in batches of similar lengths.

    A batch has at most `tokens` positions per side, padding included, and fewer if some cores would have none.
    """
    if not lengths:
        return []
    numbers, lengths_N2 = np.array(list(lengths)), np.array(list(lengths.values()))
    tokens = min(tokens, math.ceil(SLACK * lengths_N2.sum(axis=0).max() / parallel.num_parallel_batches()))
    cut = batching.plan(lengths_N2, max(tokens, int(lengths_N2.max())), np.random.default_rng(0))
    return [each.tolist() for each in np.split(numbers[cut.order], cut.starts[1:-1])]


def run_batches(
    function: Callable[[list[int]], Sequence[Result]],
    batches: Sequence[list[int]],
    results: list[Result],
    advance: Advance | None,
    most: int | None = None,
) -> None:
    """Replaces the `results` of the numbers in each batch by those of `function`, and calls `advance` after it.

    At most `most` batches run in parallel.
    """
    for numbers, found in zip(batches, parallel.parallel_map(function, batches, most), strict=True):
        for number, result in zip(numbers, found, strict=True):
            results[number] = result
        if advance:
            advance(len(numbers))


def padded(sequences: Sequence[Sequence[int]]) -> tf.Tensor:
    """Returns sequences of ids as one int32 tensor [B, longest]."""
    return tf.constant(keras.utils.pad_sequences(sequences, padding="post", value=PAD))
