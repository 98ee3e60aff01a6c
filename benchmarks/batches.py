"""The batches that every contestant trains on, generated once from a seed.

    python -m benchmarks.batches --model=base --updates=4 FILE.npz

Lengths are lognormal with mean 27, those of source and target correlated (0.9 in the logarithm); ids are uniform. This
package's own planner pads and batches 100,000 such pairs, and a random few of these updates are kept. So nobody
trains on more padding than another, and a comparison is one of steps, not of bucketing.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.shapes import SHAPES, Shape

PAIRS = 100_000
MEAN_LENGTH, SIGMA, CORRELATION = 27, 0.6, 0.9
LONGEST = 256
FIRST_ID = 4  # smaller ids: padding, and begin, end and unknown of some contestants

Part = tuple[np.ndarray, np.ndarray]  # ids [B, M] of the source and [B, L] of the target, int32, 0 is padding


def random_lengths(pairs: int, rng: np.random.Generator) -> np.ndarray:
    """Draws the lengths [pairs, 2] of source and target."""
    source = rng.normal(size=pairs)
    target = CORRELATION * source + np.sqrt(1 - CORRELATION**2) * rng.normal(size=pairs)
    lengths = np.exp(np.log(MEAN_LENGTH) - SIGMA**2 / 2 + SIGMA * np.stack([source, target], axis=1))
    return np.clip(np.rint(lengths), 2, LONGEST).astype(np.int64)


def make(shape: Shape, updates: int, seed: int = 1) -> list[list[Part]]:
    """Returns `updates` steps for `shape`, each a list of parts. Raises ValueError if 100,000 pairs give fewer."""
    from t2t_repro.data import batching

    rng = np.random.default_rng(seed)
    lengths = random_lengths(PAIRS, rng)
    if shape.batch_tokens < LONGEST:
        lengths = np.minimum(lengths, shape.batch_tokens // 4)
    parts = batching.num_parts(shape.batch_tokens)
    plan = batching.plan(lengths, shape.batch_tokens // parts, rng)
    groups = [group for group in batching.group_into_steps(plan.starts, parts, rng) if len(group) == parts]
    if not 0 < updates <= len(groups):
        raise ValueError(f"updates must be between 1 and {len(groups):,} for {shape.name}, got {updates}")

    def padded(rows: np.ndarray) -> np.ndarray:
        ids = rng.integers(FIRST_ID, shape.vocab_size, (len(rows), rows.max()), dtype=np.int32)
        return np.where(np.arange(rows.max()) < rows[:, None], ids, np.int32(0))

    def part(start: int, end: int) -> Part:
        chosen = lengths[plan.order[start:end]]
        return padded(chosen[:, 0]), padded(chosen[:, 1])

    return [[part(*span) for span in group] for group in groups[:updates]]


def save(path: str, updates: list[list[Part]]) -> None:
    arrays: dict[str, Any] = {
        f"{side}-{u}-{p}": ids
        for u, parts in enumerate(updates)
        for p, part in enumerate(parts)
        for side, ids in zip(("source", "target"), part, strict=True)
    }
    np.savez(path, updates=len(updates), parts=len(updates[0]), **arrays)


def load(path: str) -> list[list[Part]]:
    """Returns the batches that `make` wrote."""
    with np.load(path) as file:
        parts = range(int(file["parts"]))
        return [
            [(file[f"source-{u}-{p}"], file[f"target-{u}-{p}"]) for p in parts] for u in range(int(file["updates"]))
        ]


def pair_lengths(update: list[Part]) -> np.ndarray:
    """Returns the real tokens [pairs, 2] of source and target."""
    return np.concatenate([np.stack([np.count_nonzero(ids, axis=1) for ids in part], axis=1) for part in update])


def fill(updates: list[list[Part]]) -> float:
    """Returns the padding efficiency: real tokens over positions, both sides."""
    sides = [ids for parts in updates for part in parts for ids in part]
    return sum(np.count_nonzero(ids) for ids in sides) / sum(ids.size for ids in sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.npz")
    parser.add_argument("--model", choices=SHAPES, default="base")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    updates = make(SHAPES[arguments.model], arguments.updates, arguments.seed)
    save(arguments.file, updates)
    pairs, tokens = (
        sum(reduce(pair_lengths(update)) for update in updates) for reduce in (len, lambda lengths: int(lengths.sum()))
    )
    print(f"{len(updates)} updates of {pairs:,} pairs, {tokens:,} real tokens, {fill(updates):.3f} of all positions")


if __name__ == "__main__":
    main()
