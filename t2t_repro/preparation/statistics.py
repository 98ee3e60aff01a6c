"""SplitCounts: what dataset.json says about the pairs of one split: how many, how long, what was dropped and why."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.lines import is_overlong

_PERCENTILES = (50, 90, 99)


def is_empty(source: str, target: str) -> bool:
    """Whether a side is empty or nothing but white space."""
    return not source or not target or source.isspace() or target.isspace()


def irregular(source: str, target: str, inputs: list[int], targets: list[int], max_length: int) -> str:
    """Why a pair cannot be trained on: "empty" or "too_long"; "" where it can."""
    if is_empty(source, target):
        return "empty"
    too_long = max(len(inputs), len(targets)) > max_length or is_overlong(source) or is_overlong(target)
    return "too_long" if too_long else ""


@dataclass
class SplitCounts:
    """What dataset.json says about one split. Lengths are in tokens, END included."""

    read: int = 0
    kept: int = 0
    dropped: collections.Counter[str] = field(default_factory=collections.Counter)  # "empty" or "too_long"
    irregular: collections.Counter[str] = field(default_factory=collections.Counter)  # the same, kept none the less
    lengths: dict[str, collections.Counter[int]] = field(
        default_factory=lambda: {"inputs": collections.Counter(), "targets": collections.Counter()}
    )

    def keep(self, inputs: list[int], targets: list[int]) -> None:
        self.kept += 1
        self.lengths["inputs"][len(inputs)] += 1
        self.lengths["targets"][len(targets)] += 1

    def add(self, other: SplitCounts) -> None:
        """Counts all that `other` has counted."""
        self.read += other.read
        self.kept += other.kept
        self.dropped.update(other.dropped)
        self.irregular.update(other.irregular)
        for side, lengths in self.lengths.items():
            lengths.update(other.lengths[side])

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it: `from_json` reads it back."""
        lengths = {side: sorted(counts.items()) for side, counts in self.lengths.items()}
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": self.dropped,
            "irregular": self.irregular,
            "lengths": lengths,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> SplitCounts:
        lengths = {side: collections.Counter(dict(counts)) for side, counts in saved["lengths"].items()}
        dropped, irregular = (collections.Counter(saved[name]) for name in ("dropped", "irregular"))
        return cls(saved["read"], saved["kept"], dropped, irregular, lengths)

    def record(self) -> dict[str, Any]:
        return {
            "pairs_read": self.read,
            "pairs": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "irregular_but_kept": dict(sorted(self.irregular.items())),
            "tokens": {side: sum(n * count for n, count in counts.items()) for side, counts in self.lengths.items()},
            "length": {side: _spread(counts) for side, counts in self.lengths.items()},
        }

    def summary(self, max_length: int) -> str:
        """`64,000 pairs, 1,043,221 source and 1,120,993 target tokens, 12 dropped (longer than 256 tokens)`."""
        words = {"empty": "a side empty", "too_long": f"longer than {max_length} tokens"}
        tokens = self.record()["tokens"]
        parts = [f"{self.kept:,} pairs", f"{tokens['inputs']:,} source and {tokens['targets']:,} target tokens"]
        parts += [f"{number:,} dropped ({words[why]})" for why, number in sorted(self.dropped.items())]
        parts += [f"{number:,} kept though irregular ({words[why]})" for why, number in sorted(self.irregular.items())]
        return ", ".join(parts)


def _spread(counts: collections.Counter[int]) -> dict[str, float]:
    """Mean, some percentiles and the maximum of lengths given as {length: how many}."""
    number, seen = counts.total(), 0
    found: dict[str, float] = {}
    if not number:
        return {}
    for length in sorted(counts):
        seen += counts[length]
        for percent in _PERCENTILES:
            if seen * 100 >= number * percent:
                found.setdefault(f"p{percent}", length)
    mean = sum(length * count for length, count in counts.items()) / number
    return {"mean": round(mean, 2)} | found | {"max": max(counts)}
