"""Fixed examples of each target of `fuzz.py`, 20 to 200; `python -m tests.helpers.fuzz` draws others for hours."""

from __future__ import annotations

import pytest
from helpers.fuzz import TARGETS, fuzz

EXAMPLES = {"runs": 60, "checkpoints": 100, "lists": 100}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "batch")) for name in TARGETS])
def test_invariants_hold_for_drawn_examples(name):
    fuzz(name, EXAMPLES.get(name, 200) if name != "batch" else 20)
