"""Padding efficiency of the batches of prepared data: real tokens, padding and the budget (section 5.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from t2t_repro.data import batching

BOUNDS = (8, 16, 32, 64, 128, 256)  # maximum width per row of the table; the last row has none


def table(shards: Sequence[str], batch_tokens: int, weights: Sequence[float] = ()) -> str:
    """Returns the padding efficiency of one epoch in batches of `batch_tokens` per side: a row per range of widths.

    `weights` are those of `corpus_weights`.
    """
    from t2t_repro.data.input_pipeline import TrainingText, damage_named

    with damage_named(os.path.dirname(shards[0])):
        planned = TrainingText(shards, batch_tokens, seed=1, weights=weights).windows(epoch=0)
        counts = np.sum([counts_by_width(*window.parts()) for window in planned], axis=0)
    return format_table(counts, batch_tokens)


def counts_by_width(sizes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Counts parts of (B, M, L) `sizes` [..., 3] with real `tokens` [..., 2] by the width of their longer side.

    Only the longer side of a part counts, because the budget limits that one. Returns [len(BOUNDS) + 1, 4]: parts,
    pairs, positions with padding, and real tokens. The last row is of parts wider than all BOUNDS.
    """
    pairs, widths = sizes.reshape(-1, 3)[:, 0], sizes.reshape(-1, 3)[:, 1:]
    longer = widths.argmax(axis=1, keepdims=True)
    width, real = (np.take_along_axis(side, longer, axis=1)[:, 0] for side in (widths, tokens.reshape(-1, 2)))
    counts = np.zeros((len(BOUNDS) + 1, 4), np.int64)
    np.add.at(counts, np.searchsorted(BOUNDS, width), np.stack([pairs > 0, pairs, pairs * width, real], axis=1))
    return counts


def format_table(counts: np.ndarray, batch_tokens: int, microbatches: int | None = None) -> str:
    """Returns the table of `counts_by_width`. A step has `microbatches`; None: one for each part."""
    part_tokens = batch_tokens // (microbatches or batching.num_parts(batch_tokens))
    names = [*(f"to {bound}" for bound in BOUNDS), f"from {BOUNDS[-1] + 1}", "all"]
    rows = [["tokens", "batches", "pairs", "real tokens", "of the budget"]]
    for name, (parts, pairs, positions, real) in zip(names, [*counts, counts.sum(axis=0)], strict=True):
        if parts or name == "all":
            efficiency, size = real / max(positions, 1), positions / max(parts, 1) / part_tokens
            rows.append([name, f"{parts:,}", f"{pairs:,}", f"{efficiency:.1%}", f"{size:.1%}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{batch_tokens:,} tokens per side, in micro-batches of {part_tokens:,}; the longer side of each:"]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)
