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
    """Returns the hashes of the sources for validation. Raises ValueError if there are too few pairs."""
    split = ValidationSplit()
    for source, target in pairs:
        if not is_empty(source, target):
            split.add(source)
    return split.hashes()


class ValidationSplit:
    """Chooses the sources for validation: about 5% of the pairs and at most 2,000, whatever their order.

    All pairs with the same source are in the same split. Only the smallest hashes are kept, with their numbers of
    pairs, so memory is bounded. (A hash that is among the smallest at the end has been among them since it was first
    seen, so its count is complete.)
    """

    def __init__(self) -> None:
        self._pairs = 0
        self._counts: dict[int, int] = {}
        self._largest_first: list[int] = []  # the same hashes, negated, as a heap

    def add(self, source: str) -> None:
        """Counts one pair with that source."""
        self._pairs += 1
        hashed = source_hash(source)
        if hashed in self._counts:
            self._counts[hashed] += 1
        elif len(self._counts) < MAX_PAIRS:
            self._counts[hashed] = 1
            heapq.heappush(self._largest_first, -hashed)
        elif hashed < -self._largest_first[0]:
            del self._counts[-heapq.heapreplace(self._largest_first, -hashed)]
            self._counts[hashed] = 1

    def hashes(self) -> list[int]:
        """Returns the hashes of the chosen sources, at least one.

        A source with too many pairs is passed over; if all have too many, the one with the fewest is chosen. Raises
        ValueError if nothing would be left to train on.
        """
        if len(self._counts) < 2:
            raise ValueError(
                f"the training text is too small for a validation split (pairs: {self._pairs:,}, different sources: "
                f"{len(self._counts)}); give validation text, or more text"
            )
        remaining = min(MAX_PAIRS, max(1, int(self._pairs * MAX_SHARE)))
        chosen = []
        for hashed, pairs in sorted(self._counts.items()):
            if pairs <= remaining:
                chosen.append(hashed)
                remaining -= pairs
        return chosen or [min(self._counts, key=lambda hashed: (self._counts[hashed], hashed))]
