"""The run of `tests/fixtures` with a head that aligns its words."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import CHECKOUT

from t2t_repro.alignment.head import READING, WRITING, AlignmentHead, ChosenHead
from t2t_repro.run import Run

CHOSEN = ChosenHead(
    head=AlignmentHead(1, 2, READING),
    writing_head=AlignmentHead(1, 1, WRITING),
    criterion="",
    validation_pairs=1,
    learned_from=1,
    checkpoints=(),
    f1={},
)


def aligned_run(directory: Path) -> Run:
    """Copies the run, which translates, to the new folder `directory`. Its head is `CHOSEN`; its data is missing."""
    run = Run.open(shutil.copytree(CHECKOUT / "tests/fixtures/run", str(directory)))
    CHOSEN.save(run.alignment)
    return run
