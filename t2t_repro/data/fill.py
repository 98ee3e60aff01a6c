"""How full the batches of prepared data are: real tokens and padding, against the budget (section 5.1)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    from t2t_repro.data.pipeline import damage_named, training_batches

    with damage_named(os.path.dirname(shards[0])):
        return _fills(training_batches(shards, batch_tokens, seed=1, epoch=0))


def _fills(elements: Iterable[dict[str, Any]]) -> list[Fill]:
    fills = [Fill() for _ in range(len(BOUNDS) + 1)]
    for element in elements:
        sides = [element[side].numpy() for side in ("inputs", "targets")]
        for index, (pairs, *widths) in enumerate(element["sizes"].numpy().tolist()):
            if pairs:
                longer = int(np.argmax(widths))
                real = int(np.count_nonzero(sides[longer][index]))
                fills[int(np.searchsorted(BOUNDS, widths[longer]))].add(pairs, widths[longer], real)
    return fills


def table(shards: Sequence[str], batch_tokens: int) -> str:
    """How full the batches of `batch_tokens` a side are, as text: a row for each range of widths, one for all."""
    part_tokens = batch_tokens // batching.num_parts(batch_tokens)
    fills, total = fill_by_width(shards, batch_tokens), Fill()
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
