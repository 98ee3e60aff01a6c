"""Statistics of the pairs of a split for `dataset.json`: how many, how long, and which were dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.data.dataset_record import SIDES, CorpusShare, SplitRecord
from t2t_repro.io import JsonRecord
from t2t_repro.preparation.filtering.overlap import EXAMPLES, Example, Match, OverlapCounts, first_examples
from t2t_repro.problem import Pair
from t2t_repro.text.lines import is_overlong

_PERCENTILES = (50, 90, 99)


def is_empty(source: str, target: str) -> bool:
    """Returns whether a side is empty or nothing but white space."""
    return not source or not target or source.isspace() or target.isspace()


def irregular(source: str, target: str, inputs: list[int], targets: list[int], max_length: int) -> str:
    """Returns why a pair cannot be trained on: "empty" or "too_long"; "" if it can."""
    if is_empty(source, target):
        return "empty"
    too_long = max(len(inputs), len(targets)) > max_length or is_overlong(source) or is_overlong(target)
    return "too_long" if too_long else ""


@dataclass
class SplitStatistics(JsonRecord):
    """Counts of pairs and of their lengths in tokens, EOS included."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # "empty", "too_long" or the name of a filter
    irregular: Counter[str] = field(default_factory=Counter)  # the first two, for pairs that were kept
    lengths: dict[str, Counter[int]] = field(default_factory=lambda: {"inputs": Counter(), "targets": Counter()})
    filtered: dict[str, list[Example]] = field(default_factory=dict)  # the first pairs that each filter dropped
    overlap: dict[str, OverlapCounts] = field(default_factory=dict)  # of the kept pairs, by the other split
    corpora: dict[str, Counter[int]] = field(default_factory=dict)  # kept "pairs", "inputs", "targets" by its number

    def keep(self, inputs: list[int], targets: list[int], corpus: int | None = None) -> None:
        """Counts a pair that is kept, of a labeled corpus by its number."""
        self.kept += 1
        self.lengths["inputs"][len(inputs)] += 1
        self.lengths["targets"][len(targets)] += 1
        if corpus is not None:
            for what, number in (("pairs", 1), ("inputs", len(inputs)), ("targets", len(targets))):
                self.corpora.setdefault(what, Counter())[corpus] += number

    def drop_by_filter(self, name: str, number: int, pair: Pair) -> None:
        """Counts pair `number`, which a filter drops."""
        self.dropped[name] += 1
        examples = self.filtered.setdefault(name, [])
        if len(examples) < EXAMPLES:
            examples.append(Example.of(number, pair))

    def count_overlap(self, number: int, pair: Pair, matches: Iterable[Match]) -> None:
        """Counts the overlap of pair `number`, which is kept, with other splits."""
        for match in matches:
            self.overlap.setdefault(match.split, OverlapCounts()).count(number, pair, match)

    def add(self, other: SplitStatistics) -> None:
        """Adds the counts of `other`."""
        self.read += other.read
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.irregular.update(other.irregular)
        for side, lengths in self.lengths.items():
            lengths.update(other.lengths[side])
        for name, examples in other.filtered.items():
            self.filtered[name] = first_examples([*self.filtered.get(name, []), *examples])
        for split, counts in other.overlap.items():
            self.overlap.setdefault(split, OverlapCounts()).add(counts)
        for what, numbers in other.corpora.items():
            self.corpora.setdefault(what, Counter()).update(numbers)

    def tokens(self) -> dict[str, int]:
        """Returns the number of tokens of each side."""
        return {side: sum(length * n for length, n in counts.items()) for side, counts in self.lengths.items()}

    def _shares(self, labels: Sequence[str]) -> tuple[CorpusShare, ...] | None:
        """Returns the record of each labeled corpus; None without labels."""
        found = {what: self.corpora.get(what, Counter()) for what in ("pairs", "inputs", "targets")}
        shares = []
        for number, name in enumerate(labels):
            tokens = {side: found[side][number] for side in SIDES}
            shares.append(CorpusShare(name=name, pairs=found["pairs"][number], tokens=tokens))
        return tuple(shares) or None

    def record(self, labels: Sequence[str] = (), **fields: Any) -> SplitRecord:
        """Returns the record of the split, with the `fields` that these statistics do not have.

        `labels` are those of `Problem.labels`.
        """
        return SplitRecord(
            pairs_read=self.read,
            pairs=self.kept,
            dropped=dict(sorted(self.dropped.items())),
            irregular_but_kept=dict(sorted(self.irregular.items())),
            tokens=self.tokens(),
            length={side: _distribution(counts) for side, counts in self.lengths.items()},
            corpora=self._shares(labels),
            **fields,
        )

    def summary(self, max_length: int) -> str:
        """Returns `64,000 pairs, 1,043,221 source and 1,120,993 target tokens, 12 dropped (longer than 256 tokens)`."""
        tokens, reasons = self.tokens(), _reasons(max_length)
        parts = [f"{self.kept:,} pairs", f"{tokens['inputs']:,} source and {tokens['targets']:,} target tokens"]
        parts += self.losses(max_length)
        parts += [
            f"{number:,} kept though irregular ({reasons[why]})" for why, number in sorted(self.irregular.items())
        ]
        return ", ".join(parts)

    def losses(self, max_length: int) -> list[str]:
        """Returns how many pairs were dropped: `12 dropped (longer than 256 tokens)`."""
        reasons = _reasons(max_length)
        parts = [f"{self.dropped[why]:,} dropped ({reasons[why]})" for why in sorted(reasons) if self.dropped[why]]
        filtered = sum(number for why, number in self.dropped.items() if why not in reasons)
        return parts + ([f"{filtered:,} dropped by filters"] if filtered else [])


def _reasons(max_length: int) -> dict[str, str]:
    return {"empty": "a side empty", "too_long": f"longer than {max_length} tokens"}


def _distribution(counts: Counter[int]) -> dict[str, float]:
    """Returns mean, percentiles and maximum of lengths, given as {length: number}."""
    number, seen = counts.total(), 0
    percentiles: dict[str, float] = {}
    if not number:
        return {}
    for length in sorted(counts):
        seen += counts[length]
        for percent in _PERCENTILES:
            if seen * 100 >= number * percent:
                percentiles.setdefault(f"p{percent}", length)
    mean = sum(length * count for length, count in counts.items()) / number
    return {"mean": round(mean, 2)} | percentiles | {"max": max(counts)}
