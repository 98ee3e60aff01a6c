"""Padding efficiency of the batches of prepared data: real tokens, padding and the budget (section 5.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from t2t_repro.data import batching

BOUNDS = (8, 16, 32, 64, 128, 256)  # maximum width per row of the table; the last row has none


@dataclass
class PaddingStatistics:
    """Counts over parts of batches. The longer side of each part counts, since the budget limits that one."""

    parts: int = 0
    pairs: int = 0
    positions: int = 0  # of the longer sides, padding included
    real: int = 0  # tokens on them

    def add(self, pairs: int, width: int, real: int) -> None:
        """Counts a part."""
        self.parts += 1
        self.pairs += pairs
        self.positions += pairs * width
        self.real += real

    def row(self, name: str, part_tokens: int) -> list[str]:
        """Returns the cells of a row of the table."""
        efficiency = f"{self.real / max(self.positions, 1):.1%}"
        size = f"{self.positions / max(self.parts, 1) / part_tokens:.1%}"
        return [name, f"{self.parts:,}", f"{self.pairs:,}", efficiency, size]


def statistics_by_width(shards: Sequence[str], batch_tokens: int) -> list[PaddingStatistics]:
    """Returns the statistics of the parts of one epoch, by the width of the longer side: one for each of BOUNDS, and
    one for wider parts."""
    from t2t_repro.data.input_pipeline import damage_named, windows

    statistics = empty_statistics()
    with damage_named(os.path.dirname(shards[0])):
        for window in windows(shards, batch_tokens, seed=1, epoch=0):
            add_parts(statistics, *window.parts())
    return statistics


def empty_statistics() -> list[PaddingStatistics]:
    """Returns one `PaddingStatistics` for each of BOUNDS, and one for wider parts."""
    return [PaddingStatistics() for _ in range(len(BOUNDS) + 1)]


def add_parts(statistics: list[PaddingStatistics], sizes: np.ndarray, tokens: np.ndarray) -> None:
    """Adds parts of (B, M, L) `sizes` [..., 3] with real `tokens` [..., 2] to the statistics of their width."""
    for (pairs, *widths), real in zip(sizes.reshape(-1, 3).tolist(), tokens.reshape(-1, 2).tolist(), strict=True):
        if pairs:
            longer = int(np.argmax(widths))
            statistics[int(np.searchsorted(BOUNDS, widths[longer]))].add(pairs, widths[longer], real[longer])


def table(shards: Sequence[str], batch_tokens: int) -> str:
    """Returns the padding efficiency of batches of `batch_tokens` per side as text: a row per range of widths."""
    return format_table(statistics_by_width(shards, batch_tokens), batch_tokens)


def format_table(statistics: Sequence[PaddingStatistics], batch_tokens: int, count: int | None = None) -> str:
    """Returns the table of `statistics`, one for each of BOUNDS and one for wider parts.

    A step has `count` micro-batches; without it, as many as parts.
    """
    part_tokens = batch_tokens // (count or batching.num_parts(batch_tokens))
    total = PaddingStatistics()
    for each in statistics:
        for name, value in vars(each).items():
            setattr(total, name, getattr(total, name) + value)
    names = [*(f"to {bound}" for bound in BOUNDS), f"from {BOUNDS[-1] + 1}"]
    rows = [["tokens", "parts", "pairs", "real tokens", "of the budget"]]
    rows += [each.row(name, part_tokens) for name, each in zip(names, statistics, strict=True) if each.parts]
    rows.append(total.row("all", part_tokens))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{batch_tokens:,} tokens per side, in parts of {part_tokens:,}; the longer side of each part:"]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)
