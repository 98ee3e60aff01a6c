"""Which pairs share a batch: similar lengths together, under a budget of tokens a side (section 5.1).

A *part* is what one device computes at a time; an *update* is `parts` of them, the paper's batch. Both are fixed by the
data, the seed and the set, never by the number of devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PART_TOKENS = 3_200  # aimed at: 25,000 tokens are eight parts, one for each of the paper's eight GPUs
STRIPS = 2.0  # times sqrt(parts): measured best from 2,048 to 25,000 tokens a part


def num_parts(batch_tokens: int) -> int:
    """How many parts make an update of `batch_tokens`: a power of two, so that devices share them evenly."""
    parts = 1
    while batch_tokens / parts > 1.5 * PART_TOKENS:
        parts *= 2
    return parts


@dataclass(frozen=True)
class Plan:
    """`order` [N]: the pairs, each once. Part i is order[starts[i]:starts[i + 1]]."""

    order: np.ndarray
    starts: np.ndarray


def plan(lengths: np.ndarray, part_tokens: int, rng: np.random.Generator) -> Plan:
    """Cuts pairs of `lengths` [N, 2] (source, target) into parts of at most `part_tokens` positions a side, padding
    included; neighbouring parts have similar lengths. Pairs of equal lengths come in random order.

    Pairs are laid out in strips of similar source length, and by target length within a strip, up and down by turns.
    Against sorting by one length this raises real tokens over padded positions from 0.90 to 0.98 (100,000 pairs of
    lognormal lengths of mean 27, 2,048 tokens a part).

    Raises ValueError for a pair that fits in no part.
    """
    if len(lengths) and lengths.max() > part_tokens:
        raise ValueError(
            f"a pair of {lengths.max()} tokens does not fit in {part_tokens} tokens a part; "
            "raise batch_tokens, or lower max_length of the problem"
        )
    order = _layout(lengths, part_tokens, rng)
    return Plan(order, _cut(lengths[order], part_tokens))


def _layout(lengths: np.ndarray, part_tokens: int, rng: np.random.Generator) -> np.ndarray:
    shuffled = rng.permutation(len(lengths))
    source, target = lengths[shuffled, 0], lengths[shuffled, 1]
    strips = max(1, round(STRIPS * np.sqrt(lengths.sum() / 2 / part_tokens)))
    tokens_up_to = np.cumsum(np.bincount(source, weights=source))  # [length]: tokens in sources of at most that length
    strip = (tokens_up_to[source] * strips / max(tokens_up_to[-1], 1)).astype(np.int64)
    _, strip = np.unique(strip, return_inverse=True)
    return shuffled[np.lexsort((np.where(strip % 2, -target, target), strip))]


def _cut(lengths: np.ndarray, part_tokens: int) -> np.ndarray:
    """Where parts start, and the end of the last: each takes as many pairs as its longest leaves room for."""
    starts = [0]
    while starts[-1] < len(lengths):
        first = starts[-1]
        ahead = lengths[first : first + part_tokens // max(lengths[first].max(), 1)]
        longest = np.maximum.accumulate(ahead, axis=0).max(axis=1)
        fits = np.arange(1, len(ahead) + 1) * longest <= part_tokens
        starts.append(first + int(fits.sum()))
    return np.array(starts)


def updates(starts: np.ndarray, parts: int, rng: np.random.Generator) -> list[list[tuple[int, int]]]:
    """Groups neighbouring parts into updates of `parts`, the updates in random order; one may have fewer parts.

    Each part is (start, end) into the order.
    """
    spans = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    short = len(spans) % parts
    lead = short if rng.integers(2) else 0  # the update with fewer parts is the shortest or the longest sentences
    groups = [spans[:lead]] if lead else []
    groups += [spans[i : i + parts] for i in range(lead, len(spans), parts)]
    return [groups[i] for i in rng.permutation(len(groups))]


def pieces(parts: int, replicas: int, accumulate: int = 1) -> int:
    """Into how many pieces each part is cut, by its pairs: the fewest that the replicas can share evenly, each
    computing at least `accumulate` of them one after the other. The update stays the same."""
    fewest = replicas // math.gcd(parts, replicas)
    return fewest * math.ceil(accumulate * replicas / (parts * fewest))


def may_cut(batch_tokens: int, pieces: int, longest: int) -> bool:
    """Whether a part of pairs of `longest` tokens has more than one of them in each of so many pieces."""
    return batch_tokens // num_parts(batch_tokens) // longest > pieces


def parts_per_replica(parts: int, replicas: int, accumulate: int = 1) -> int:
    """A: how many parts, or pieces of parts, each replica computes for one update."""
    return parts * pieces(parts, replicas, accumulate) // replicas


def shares(spans: list[tuple[int, int]], parts: int, replicas: int, accumulate: int = 1) -> np.ndarray:
    """Deals the parts of one update, or the `pieces` of them, to the replicas: spans [replicas, A, 2], the empty ones
    last."""
    edges = pieces(parts, replicas, accumulate) + 1
    bounds = [np.linspace(start, end, edges).astype(np.int64) for start, end in spans]
    dealt = [span for bound in bounds for span in zip(bound[:-1], bound[1:], strict=True) if span[0] < span[1]]
    empty = replicas * parts_per_replica(parts, replicas, accumulate) - len(dealt)
    # part i goes to replica i mod replicas, so that a short update leaves none idle before another has two fewer
    table = np.concatenate([np.array(dealt, np.int64).reshape(-1, 2), np.zeros((empty, 2), np.int64)])
    return table.reshape(-1, replicas, 2).transpose(1, 0, 2)
