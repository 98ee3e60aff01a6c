"""Your own text files, TSV and TMX, without any code: `--problem=translate_files --train_source=... ...`."""

from __future__ import annotations

from t2t_repro.problem import Problem
from t2t_repro.registry import PROBLEMS

TRANSLATE_FILES = PROBLEMS.register(
    Problem(
        name="translate_files",
        description="Your own text files, one sentence per line (.gz read too): --train_source, --train_target, ...",
        vocab_size=10_000,
    )
)
