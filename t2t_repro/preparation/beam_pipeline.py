"""The encoding and the shuffle as an Apache Beam pipeline, for more machines than one: the same shards, byte for byte.

The folders of text and of data must be seen by all workers under the same names. What is not here, the reading that
finds what is wrong with the text and the learning of the vocabulary, is one machine's work, and little of it.

    chunk numbers -> read, encode, deal -> group by shard -> put in order, write
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from t2t_repro.data.shards import write_shard
from t2t_repro.io import read_json, write_json
from t2t_repro.preparation.corpora import Readable, evenly, place_evenly, read_pairs_from
from t2t_repro.preparation.shuffle import Card, Encoder, Piles
from t2t_repro.preparation.statistics import SplitCounts
from t2t_repro.problem import Pair

CHUNK_PAIRS = 500_000  # read by one worker, which passes over the lines before them, but not over trees
BATCH_PAIRS = 20_000  # of these, encoded at once

_RESULT = "beam.json"


@dataclass(frozen=True)
class Text:
    """Training text: its corpora, how many pairs each has, and how many of all, evenly spread, are taken."""

    corpora: tuple[Readable, ...]
    numbers: tuple[int, ...]
    taken: int

    def pairs(self, first: int) -> Iterator[Pair]:
        """The pairs that are taken, from number `first` on."""
        number = sum(self.numbers)
        start = place_evenly(first, number, self.taken)
        pairs = read_pairs_from(start, zip(self.corpora, self.numbers, strict=True))
        return evenly(pairs, number, self.taken, start)


def run(
    text: Text, piles: Piles, paths: Sequence[str], options: Sequence[str]
) -> tuple[SplitCounts, SplitCounts, list[dict[str, Any]]]:
    """Writes the shards `paths`, those of training and, where there is held-out text, its own last.

    `options` are flags of Beam, as `--runner=DirectRunner`. Gives the counts of the pairs to train on and of those held
    out, and what `write_shard` says of each shard.
    """
    os.makedirs(piles.folder, exist_ok=True)
    result = os.path.join(piles.folder, _RESULT)
    chunks = -(-text.taken // CHUNK_PAIRS)
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        encoded = (
            pipeline
            | beam.Create(range(chunks))
            | beam.Reshuffle()
            | beam.ParDo(_Encode(text, piles)).with_outputs("counts", main="cards")
        )
        none = pipeline | "every shard" >> beam.Create([(shard, []) for shard in range(len(paths))])
        cards = (encoded.cards, none) | "cards" >> beam.Flatten()
        shards = cards | beam.GroupByKey() | "write" >> beam.Map(_write, list(paths))
        parts = (encoded.counts, shards) | "account" >> beam.Flatten() | beam.combiners.ToList()
        _ = parts | "result" >> beam.Map(lambda found, path: write_json(path, {"parts": found}), result)
    train, held = SplitCounts(), SplitCounts()
    records = {}
    for part in read_json(result)["parts"]:
        if "name" in part:
            records[part["name"]] = part
        else:
            train.add(SplitCounts.from_json(part["train"]))
            held.add(SplitCounts.from_json(part["held_out"]))
    return train, held, [records[os.path.basename(path)] for path in paths]


class _Encode(beam.DoFn):
    """The number of a chunk to (shard, cards), and its counts beside."""

    def __init__(self, text: Text, piles: Piles):
        self._text, self._piles = text, piles

    def setup(self) -> None:
        self._encoder = Encoder(self._piles, num_threads=1)

    def process(self, number: int) -> Iterator[Any]:
        first = number * CHUNK_PAIRS
        taken = itertools.islice(self._text.pairs(first), CHUNK_PAIRS)
        for start in itertools.count(first, BATCH_PAIRS):
            batch = list(itertools.islice(taken, BATCH_PAIRS))
            if not batch:
                return
            heaps, train, held = self._encoder.encode((number, start, batch))
            yield from ((shard, heap) for shard, heap in enumerate(heaps) if heap)
            yield beam.pvalue.TaggedOutput("counts", {"train": train.to_json(), "held_out": held.to_json()})


def _write(shard: tuple[int, Iterable[list[Card]]], paths: list[str]) -> dict[str, Any]:
    index, heaps = shard
    cards = sorted(itertools.chain.from_iterable(heaps))
    return write_shard(paths[index], (serialised for _, serialised in cards))
