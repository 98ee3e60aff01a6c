"""Encoding and shuffling as an Apache Beam pipeline, on one or more machines. The shards are the same, byte for byte.

All workers must see the folders of text and data under the same names. One machine checks the text for errors and
learns the vocabulary, which takes little of the time.

    chunk numbers -> read, encode, partition -> group by shard -> sort, write
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from t2t_repro.data.shards import FileRecord, write_shard
from t2t_repro.io import read_json, write_json
from t2t_repro.preparation.corpora import SplitText
from t2t_repro.preparation.encoding.shuffle import Encoder, KeyedExample, ShuffleFiles
from t2t_repro.preparation.statistics import SplitStatistics

CHUNK_PAIRS = 500_000  # read by one worker, which skips the lines before its chunk
BATCH_PAIRS = 20_000  # of these, encoded together

_RESULT = "beam.json"


def run(
    text: SplitText, files: ShuffleFiles, paths: Sequence[str], options: Sequence[str]
) -> tuple[SplitStatistics, SplitStatistics, list[FileRecord]]:
    """Writes the shards `paths`: those of training and, if there is validation text, its own last.

    `options` are Beam's, such as `--runner=DirectRunner`. Returns the statistics of the pairs for training and of those
    for validation, and the records of the shards.
    """
    os.makedirs(files.folder, exist_ok=True)
    result = os.path.join(files.folder, _RESULT)
    chunks = -(-text.taken // CHUNK_PAIRS)
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        encoded = (
            pipeline
            | beam.Create(range(chunks))
            | beam.Reshuffle()
            | beam.ParDo(_Encode(text, files)).with_outputs("statistics", main="examples")
        )
        none = pipeline | "every shard" >> beam.Create([(shard, []) for shard in range(len(paths))])
        examples = (encoded.examples, none) | "examples" >> beam.Flatten()
        shards = examples | beam.GroupByKey() | "write" >> beam.Map(_write, list(paths))
        parts = (encoded.statistics, shards) | "results" >> beam.Flatten() | beam.combiners.ToList()
        _ = parts | "write results" >> beam.Map(lambda found, path: write_json(path, {"parts": found}), result)
    train, validation = SplitStatistics(), SplitStatistics()
    records = {}
    for part in read_json(result)["parts"]:
        if "name" in part:
            records[part["name"]] = FileRecord.from_json(part)
        else:
            train.add(SplitStatistics.from_json(part["train"]))
            validation.add(SplitStatistics.from_json(part["validation"]))
    return train, validation, [records[os.path.basename(path)] for path in paths]


class _Encode(beam.DoFn):
    """Maps the number of a chunk to (shard, keyed examples), and to its statistics."""

    def __init__(self, text: SplitText, files: ShuffleFiles):
        self._text, self._files = text, files

    def setup(self) -> None:
        self._encoder = Encoder(self._files, num_threads=1)

    def process(self, number: int) -> Iterator[Any]:
        first = number * CHUNK_PAIRS
        pairs = itertools.islice(self._text.pairs(first), CHUNK_PAIRS)
        for start in itertools.count(first, BATCH_PAIRS):
            batch = list(itertools.islice(pairs, BATCH_PAIRS))
            if not batch:
                return
            partitions, train, validation = self._encoder.encode((number, start, batch))
            yield from ((shard, partition) for shard, partition in enumerate(partitions) if partition)
            statistics = {"train": train.to_json(), "validation": validation.to_json()}
            yield beam.pvalue.TaggedOutput("statistics", statistics)


def _write(shard: tuple[int, Iterable[list[KeyedExample]]], paths: list[str]) -> dict[str, Any]:
    index, partitions = shard
    examples = sorted(itertools.chain.from_iterable(partitions))
    return write_shard(paths[index], (serialized for _, serialized in examples)).to_json()
