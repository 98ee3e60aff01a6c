"""Validation split for a problem without one: training pairs chosen by their source and never trained on."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable

from t2t_repro.preparation.statistics import is_empty
from t2t_repro.problem import Pair

MAX_PAIRS = 2_000
MAX_SHARE = 0.05


def source_hash(source: str) -> int:
    """Returns a 64-bit hash of the text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, person=b"t2t_repro held").digest(), "little")


def choose_validation(pairs: Iterable[Pair]) -> list[int]:
    """Returns the hashes of the sources for validation: about 5% of the pairs and at most 2,000, whatever their order.

    All pairs with the same source are in the same split. A source with too many pairs is passed over; if all have too
    many, the one with the fewest is chosen. Raises ValueError if nothing would be left to train on.

    Only the smallest hashes are kept, with their numbers of pairs, so memory is bounded. (A hash that is among the
    smallest at the end has been among them since it was first seen, so its count is complete.)
    """
    number, counts = 0, dict[int, int]()
    largest_first: list[int] = []  # the same hashes, negated, as a heap
    for source, target in pairs:
        if is_empty(source, target):
            continue
        number += 1
        hashed = source_hash(source)
        if hashed in counts:
            counts[hashed] += 1
        elif len(counts) < MAX_PAIRS:
            counts[hashed] = 1
            heapq.heappush(largest_first, -hashed)
        elif hashed < -largest_first[0]:
            del counts[-heapq.heapreplace(largest_first, -hashed)]
            counts[hashed] = 1
    if len(counts) < 2:
        raise ValueError(
            f"the training text is too small for a validation split (pairs: {number:,}, different sources: "
            f"{len(counts)}); give validation text, or more text"
        )
    remaining = min(MAX_PAIRS, max(1, int(number * MAX_SHARE)))
    chosen = []
    for hashed, count in sorted(counts.items()):
        if count <= remaining:
            chosen.append(hashed)
            remaining -= count
    return chosen or [min(counts, key=lambda hashed: (counts[hashed], hashed))]
