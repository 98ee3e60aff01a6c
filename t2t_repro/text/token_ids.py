"""Token ids that are the same in every vocabulary, and the number of such ids."""

from __future__ import annotations

PAD = 0  # padding; also the first input of the decoder
EOS = 1  # end of sentence: the last token of every sequence
UNKNOWN = 2  # required by sentencepiece; never occurs, because 256 byte subwords spell any text
NUM_BYTES = 256  # the byte subwords, which spell any character in UTF-8, follow
NUM_FIXED = 3 + NUM_BYTES
