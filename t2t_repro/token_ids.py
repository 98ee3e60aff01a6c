"""The ids that mean the same in every vocabulary, and the number of ids that no text can change."""

from __future__ import annotations

PAD = 0  # fills a batch, and starts the decoder's input
END = 1  # the last token of every sequence
UNKNOWN = 2  # sentencepiece requires it; with 256 byte subwords no text contains it
NUM_BYTES = 256  # the subwords that spell any character in UTF-8 follow
NUM_FIXED = 3 + NUM_BYTES
