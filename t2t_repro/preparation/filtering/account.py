"""The account of filters and overlap: the records for `dataset.json`, and the lines that are reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from t2t_repro.data.dataset_record import OverlapRecord, PairExample, SplitRecord
from t2t_repro.filters import name_and_value
from t2t_repro.preparation.corpora import SplitText
from t2t_repro.preparation.filtering.overlap import Example, Overlap, OverlapCounts
from t2t_repro.preparation.statistics import SplitStatistics


def filter_records(
    train: SplitStatistics, filters: Sequence[str], text: SplitText
) -> dict[str, tuple[PairExample, ...]]:
    """Returns the first pairs that each filter dropped, by its name; () for a filter that dropped none."""
    names = [name for name, _ in map(name_and_value, filters)]
    return {name: tuple(_example(each, text) for each in train.filtered.get(name, ())) for name in names}


def overlap_records(
    train: SplitStatistics, text: SplitText, others: Mapping[str, SplitText], overlap: Overlap
) -> dict[str, OverlapRecord]:
    """Returns the overlap with each split, of which `others` has the text that its pairs are numbered in."""
    records = {}
    for split, other in others.items():
        counts = train.overlap.get(split, OverlapCounts())
        records[split] = OverlapRecord(
            pairs=counts.pairs,
            source=counts.sides["source"],
            target=counts.sides["target"],
            pair=counts.sides["pair"],
            split_pairs=overlap.num_pairs(split, counts.found),
            examples=tuple(_example(each, text, other) for each in counts.examples),
        )
    return records


def lines(record: SplitRecord, filters: Sequence[str]) -> Iterator[str]:
    """Yields the report on the training text: each filter and each overlap, with examples on lines of their own."""
    for each in filters:
        name = name_and_value(each)[0]
        yield f"filter {each}: {record.dropped.get(name, 0):,} of {record.pairs_read:,} pairs dropped"
        yield from map(_shown, (record.filtered or {}).get(name, ()))
    for split, overlap in (record.overlap or {}).items():
        line = f"overlap with {split}: {overlap.pairs:,} of {record.pairs:,} training pairs"
        if overlap.pairs:
            line += f" (same source {overlap.source:,}, same target {overlap.target:,}, same pair {overlap.pair:,})"
            line += f"; {split} pairs found: {overlap.split_pairs:,}"
        yield line
        yield from map(_shown, overlap.examples)


def _example(example: Example, text: SplitText, other: SplitText | None = None) -> PairExample:
    on_target = bool(other) and "source" not in example.sides.split()
    also = other.place(example.other, on_target) if other else None
    return PairExample(text.place(example.number, on_target), example.source, example.target, also)


def _shown(example: PairExample) -> str:
    place = f"{example.place} = {example.also}" if example.also else example.place
    return f"  {place}: {example.source!r} | {example.target!r}"
