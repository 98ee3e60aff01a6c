"""A data set of random ids for a dry run without prepared data."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import numpy as np

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import SIDES, DatasetRecord, SplitRecord, VocabularyRecord
from t2t_repro.data.shards import example, shard_names, write_shard
from t2t_repro.problem import Problem
from t2t_repro.text.token_ids import UNKNOWN

PAIRS = 50_000
MEAN_LENGTH = 27  # tokens per side, including EOS: about the mean of news text
SPREAD, RATIO_SPREAD = 0.6, 0.2  # standard deviation of log(source length), and of log(target length / source length)
_FIRST_ID = UNKNOWN + 1


@contextlib.contextmanager
def assumed(problem: Problem) -> Iterator[Dataset]:
    """Yields a data set of training pairs with lognormal lengths, at most `max_length`, in a temporary folder.

    The data set has no vocabulary, validation split or test split. The folder is removed at the end.
    """
    rng = np.random.default_rng(1)
    source = rng.lognormal(np.log(MEAN_LENGTH) - SPREAD**2 / 2, SPREAD, PAIRS)
    target = source * rng.lognormal(0.0, RATIO_SPREAD, PAIRS)
    lengths = np.clip(np.stack([source, target], axis=1).round(), 2, problem.max_length).astype(int)
    pairs = ([rng.integers(_FIRST_ID, problem.vocab_size, n).tolist() for n in both] for both in lengths)
    with tempfile.TemporaryDirectory() as folder:
        (name,) = shard_names("train", 1)
        shard = write_shard(os.path.join(folder, name), (example(*pair) for pair in pairs))
        longest = {side: {"max": float(problem.max_length)} for side in SIDES}
        train = SplitRecord(pairs=PAIRS, length=longest, shards=(shard,))
        vocabulary = VocabularyRecord(size=problem.vocab_size, sha256="")
        yield Dataset(folder, DatasetRecord(problem=problem, vocabulary=vocabulary, splits={"train": train}))
