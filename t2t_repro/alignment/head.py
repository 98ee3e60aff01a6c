"""The attention head that aligns: which one, and how it was chosen. `RUN/alignment.json` has it.

Head h of decoder layer l attends from each position of the translation to the tokens of the source. Position i of the
decoder *writes* token i and *reads* token i - 1. The attention of the position that reads a token is often the better
alignment of that token (Chen et al., "Accurate Word Alignment Induction from Neural Machine Translation", 2020), so the
position is a part of the choice.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from t2t_repro.io import JsonRecord, read_json, write_json

READING, WRITING = "reading", "writing"


@dataclass(frozen=True)
class AlignmentHead(JsonRecord):
    """A head of the attention from decoder to encoder, and the position whose attention aligns a token.

    Raises ValueError for numbers that no model has.
    """

    layer: int  # of the decoder, from 1
    head: int  # from 1; 0 is the mean of all heads
    position: str  # `READING` or `WRITING` the token

    def __post_init__(self) -> None:
        if self.layer < 1 or self.head < 0 or self.position not in (READING, WRITING):
            raise ValueError(
                f"expected a layer from 1, a head from 0 and the position {READING} or {WRITING}. Received: {self!r}"
            )

    def __str__(self) -> str:
        """Returns `layer 2, head 3, reading`."""
        return f"layer {self.layer}, {f'head {self.head}' if self.head else 'mean of the heads'}, {self.position}"


@dataclass(frozen=True, kw_only=True)
class ChosenHead(JsonRecord):
    """The head of a run that agrees best with statistical alignment of validation text."""

    head: AlignmentHead
    writing_head: AlignmentHead  # the best at the position that writes a token: other engines return its attention
    criterion: str
    validation_pairs: int
    learned_from: int  # training pairs of the statistical aligner
    checkpoints: tuple[str, ...]  # of the weights whose attention was compared
    f1: dict[str, float]  # of every candidate, best first

    def save(self, path: str) -> None:
        """Writes the file atomically."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str, layers: int, heads: int) -> ChosenHead:
        """Reads the file of `save` for a model with these numbers of layers and heads.

        Raises FileNotFoundError without one, and ValueError if it is damaged or names a head that the model lacks.
        """
        if not os.path.exists(path):
            raise FileNotFoundError(f"no {path!r}; choose a head with t2t_repro.choose_alignment_head")
        saved = read_json(path)
        try:
            found = cls.from_json(saved, "the choice")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {'no ' if isinstance(error, KeyError) else ''}{error}") from None
        for each in (found.head, found.writing_head):
            if each.layer > layers or each.head > heads:
                raise ValueError(
                    f"{path} names {each}, and the model has {layers} layers of {heads} heads; remove the file to "
                    "choose again"
                )
        return found
