"""Your own text files, TSV and TMX, without any code: the corpora are arguments of the programs."""

from __future__ import annotations

from t2t_repro.problem import Problem
from t2t_repro.registry import PROBLEMS

TRANSLATE_FILES = PROBLEMS.register(
    Problem(
        name="translate_files",
        description="your own text files, one sentence per line (.gz read too): `train_source`, `train_target`, ...",
        vocab_size=10_000,
    )
)
