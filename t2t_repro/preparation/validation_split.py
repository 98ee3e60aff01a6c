"""Validation text for a problem that brings none: some of its training pairs, by their source, never trained on."""

from __future__ import annotations

import hashlib
import heapq

HELD_OUT_PAIRS = 2_000
HELD_OUT_SHARE = 0.05


def source_hash(source: str) -> int:
    """64 bits that are the same for equal texts, everywhere and always."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, person=b"t2t_repro held").digest(), "little")


class HeldOut:
    """Chooses sources to hold out: about 5% of the pairs and at most 2,000, whatever the order of the text.

    All pairs of one source go together, so that none is on both sides. Of all hashes only the smallest are kept, with
    the number of their pairs, so the memory is bounded. (A hash that is among the smallest at the end has been so since
    it was first seen: its count is whole.)
    """

    def __init__(self) -> None:
        self._pairs = 0
        self._counts: dict[int, int] = {}
        self._largest_first: list[int] = []  # the same hashes, negated, as a heap

    def add(self, source: str) -> None:
        """One more pair, with that source."""
        self._pairs += 1
        hashed = source_hash(source)
        if hashed in self._counts:
            self._counts[hashed] += 1
        elif len(self._counts) < HELD_OUT_PAIRS:
            self._counts[hashed] = 1
            heapq.heappush(self._largest_first, -hashed)
        elif hashed < -self._largest_first[0]:
            del self._counts[-heapq.heapreplace(self._largest_first, -hashed)]
            self._counts[hashed] = 1

    def choose(self) -> list[int]:
        """The hashes of the sources to hold out, at least one. Raises ValueError where that leaves nothing to train on.

        A source with too many pairs to fit is passed over; where none fits, the one with the fewest pairs is taken.
        """
        if len(self._counts) < 2:
            raise ValueError(
                f"nothing to hold out for validation: the training text has {self._pairs:,} pairs with "
                f"{len(self._counts)} different source; give validation text, or more text"
            )
        room = min(HELD_OUT_PAIRS, max(1, int(self._pairs * HELD_OUT_SHARE)))
        chosen = []
        for hashed, pairs in sorted(self._counts.items()):
            if pairs <= room:
                chosen.append(hashed)
                room -= pairs
        return chosen or [min(self._counts, key=lambda hashed: (self._counts[hashed], hashed))]
