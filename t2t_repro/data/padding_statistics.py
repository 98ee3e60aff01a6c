"""How full the batches of prepared data are: real tokens and padding, against the budget (section 5.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from t2t_repro.data import batching

BOUNDS = (8, 16, 32, 64, 128, 256)  # widths that the rows of the table end at; a last one is without end


@dataclass
class Fill:
    """Parts of batches: the longer side of each counts, since it is what the budget stops at."""

    parts: int = 0
    pairs: int = 0
    positions: int = 0  # of the longer sides, padding included
    real: int = 0  # tokens on them

    def add(self, pairs: int, width: int, real: int) -> None:
        self.parts += 1
        self.pairs += pairs
        self.positions += pairs * width
        self.real += real

    def row(self, name: str, part_tokens: int) -> list[str]:
        filled = f"{self.real / max(self.positions, 1):.1%}"
        size = f"{self.positions / max(self.parts, 1) / part_tokens:.1%}"
        return [name, f"{self.parts:,}", f"{self.pairs:,}", filled, size]


def fill_by_width(shards: Sequence[str], batch_tokens: int) -> list[Fill]:
    """The parts of one epoch as training reads them: one `Fill` for each of BOUNDS, by the width of the longer side,
    and one for what is wider."""
    from t2t_repro.data.input_pipeline import damage_named, windows

    fills = [Fill() for _ in range(len(BOUNDS) + 1)]
    with damage_named(os.path.dirname(shards[0])):
        for window in windows(shards, batch_tokens, seed=1, epoch=0):
            add_parts(fills, *window.parts())
    return fills


def add_parts(fills: list[Fill], sizes: np.ndarray, tokens: np.ndarray) -> None:
    """Adds parts of (B, M, L) `sizes` [..., 3] with so many real `tokens` [..., 2] to those of their width."""
    for (pairs, *widths), real in zip(sizes.reshape(-1, 3).tolist(), tokens.reshape(-1, 2).tolist(), strict=True):
        if pairs:
            longer = int(np.argmax(widths))
            fills[int(np.searchsorted(BOUNDS, widths[longer]))].add(pairs, widths[longer], real[longer])


def table(shards: Sequence[str], batch_tokens: int) -> str:
    """How full the batches of `batch_tokens` a side are, as text: a row for each range of widths, one for all."""
    return show(fill_by_width(shards, batch_tokens), batch_tokens)


def show(fills: Sequence[Fill], batch_tokens: int, count: int | None = None) -> str:
    """Returns the table of `fills`, one for each of BOUNDS and one for what is wider.

    A step has `count` micro-batches; without it, as many as parts.
    """
    part_tokens = batch_tokens // (count or batching.num_parts(batch_tokens))
    total = Fill()
    for each in fills:
        for name, value in vars(each).items():
            setattr(total, name, getattr(total, name) + value)
    names = [*(f"to {bound}" for bound in BOUNDS), f"from {BOUNDS[-1] + 1}"]
    rows = [["tokens", "parts", "pairs", "real tokens", "of the budget"]]
    rows += [fill.row(name, part_tokens) for name, fill in zip(names, fills, strict=True) if fill.parts]
    rows.append(total.row("all", part_tokens))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{batch_tokens:,} tokens a side, in parts of {part_tokens:,}; the longer side of each part:"]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)
