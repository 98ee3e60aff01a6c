"""Reads a prepared data directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.corpora import Pair
from t2t_repro.text.token_ids import EOS


def records(dataset: Dataset, split: str) -> list[Pair]:
    """Returns the pairs of the shards as text, in order."""
    import tensorflow as tf

    vocabulary = Vocabulary(dataset.vocabulary)
    read = []
    for serialised in tf.data.TFRecordDataset(dataset.shards(split)).as_numpy_iterator():
        feature = tf.train.Example.FromString(serialised).features.feature
        corpora = dataset.record.splits[split].corpora
        assert feature.keys() == {"inputs", "targets"} | ({"corpus"} if corpora else set())
        ids = [list(feature[side].int64_list.value) for side in ("inputs", "targets")]
        assert all(sequence[-1] == EOS for sequence in ids)
        read.append(tuple(vocabulary.decode(ids)))
    return read


def bytes_of(directory: str) -> dict[str, str]:
    """Returns the SHA-256 of every file that is not hidden."""
    return {
        name: hashlib.sha256(Path(directory, name).read_bytes()).hexdigest()
        for name in os.listdir(directory)
        if not name.startswith(".")
    }
