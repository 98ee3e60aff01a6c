"""Shortlist: the likely target subwords of each source subword, to which decoding can be limited.

The file is CTranslate2's vocabulary map, UTF-8. Each line is a source subword, a tab, and its candidates separated by
spaces. The line of the empty source has the candidates of every text.

    \tder die und .
    ▁cat\t▁Katze ▁Kat ze

Subwords are spelled as in `Vocabulary.subwords`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import atomic_write, target_of
from t2t_repro.text.token_ids import EOS, PAD

OUTPUTS = 512  # the number of ids is a multiple of it: a product is compiled for its shapes
_SEPARATORS = frozenset(" \t\r\n")


class Shortlist:
    """The target ids that may follow from source ids, for a vocabulary of `vocab_size` subwords.

    `always` are the candidates of every text, and `candidates` those of each source id. Instances are thread-safe.
    """

    def __init__(self, vocab_size: int, always: Sequence[int], candidates: Mapping[int, Sequence[int]]):
        self.vocab_size = vocab_size
        self.always = np.asarray(always, np.int32)
        self.candidates = {source: np.asarray(ids, np.int32) for source, ids in candidates.items()}

    def found(self, sources: Iterable[Sequence[int]]) -> np.ndarray:
        """Returns the candidates of a batch of sources, PAD and EOS: [V] boolean."""
        is_found_V = np.zeros(self.vocab_size, bool)
        is_found_V[[PAD, EOS]] = True
        is_found_V[self.always] = True
        for source in set().union(*sources):
            if (ids := self.candidates.get(source)) is not None:
                is_found_V[ids] = True
        return is_found_V

    def ids(self, sources: Iterable[Sequence[int]], forced: Iterable[Sequence[int]] = ()) -> np.ndarray:
        """Returns the ids to which the decoding of `sources` is limited: [S] int32, ascending.

        They are the candidates of the batch and the ids of `forced`, such as prefixes. The lowest other ids, which are
        frequent subwords or bytes, fill S up to a multiple of `OUTPUTS`, or to the vocabulary.
        """
        is_found_V = self.found(sources)
        for each in forced:
            is_found_V[list(each)] = True
        missing = -np.count_nonzero(is_found_V) % OUTPUTS
        is_found_V[np.flatnonzero(~is_found_V)[:missing]] = True
        return np.flatnonzero(is_found_V).astype(np.int32)

    def save(self, path: str, vocabulary: Vocabulary) -> None:
        """Writes the file atomically, without subwords that contain a tab, a line end or an ASCII space."""
        subwords = vocabulary.subwords
        can_be_written = [not _SEPARATORS & set(subword) for subword in subwords]
        lines = {"": self.always}
        lines |= {subwords[source]: ids for source, ids in sorted(self.candidates.items()) if can_be_written[source]}
        with atomic_write(target_of(path)) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for source, ids in lines.items():
                file.write(f"{source}\t{' '.join(subwords[id] for id in ids if can_be_written[id])}\n")

    @classmethod
    def load(cls, path: str, vocabulary: Vocabulary) -> Shortlist:
        """Reads a file of `save`, or another vocabulary map of this vocabulary.

        Raises OSError if it cannot be opened. Raises ValueError, with the number of the line, for a line without a tab,
        a line for several source subwords, and a subword that is not in the vocabulary.
        """
        id_of = {subword: number for number, subword in enumerate(vocabulary.subwords)}
        found: dict[str, list[int]] = {"": []}
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                for number, line in enumerate(file, start=1):
                    source, tab, targets = line.rstrip("\r\n").partition("\t")
                    what = f"{path}, line {number}"
                    if not tab:
                        raise ValueError(f"{what} has no tab; give a vocabulary map, as t2t-shortlist writes it")
                    if " " in source:
                        raise ValueError(f"{what}: expected one source subword, got {source!r}; leave the line out")
                    words = targets.split(" ") if targets else []
                    unknown = next((word for word in (source, *words) if word and word not in id_of), None)
                    if unknown is not None:
                        raise ValueError(
                            f"{what}: the vocabulary has no subword {unknown!r}; give a shortlist that was learned "
                            "with the vocabulary of this run"
                        )
                    found[source] = [id_of[word] for word in words if word]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not valid UTF-8 ({error.reason}); give a vocabulary map") from None
        always = found.pop("")
        return cls(vocabulary.size, always, {id_of[source]: ids for source, ids in found.items()})
