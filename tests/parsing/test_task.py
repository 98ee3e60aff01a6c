"""t2t_repro.parsing.task: how a server turns an export's symbols into trees."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import CHECKOUT

from t2t_repro.registry import PROBLEMS

TASK = PROBLEMS["parse_files"].task
RIGHT = "ǀS ǀNP We ǁNP ǀVP see -LRB- it -RRB- ǁVP ? ǁS"
INPUTS = {"inputs": np.array([b"We see ( it ) ?", b"", b"We see", b"\xff"], object)}
WRITTEN = {
    "outputs": np.array([RIGHT.encode(), b"", "ǀS We".encode(), b"\xff"], object),
    "scores": np.array([-1, 0, -2, -3], np.float32),
}


def test_trees_are_built_from_an_exports_symbols():
    found = TASK.served("parse", INPUTS, WRITTEN)
    trees = [text.decode() for text in found["outputs"]]
    assert trees[0] == "(S (NP (XX We)) (VP (XX see) (-LRB- -LRB-) (XX it) (-RRB- -RRB-)) (. ?))"
    assert trees[1:] == ["", "(S (XX We) (XX see))", "(XX \ufffd)"]
    assert found["repairs"].dtype == np.int32 and found["repairs"].tolist()[:3] == [0, 0, 2]
    assert found["symbols"] is WRITTEN["outputs"] and found["scores"] is WRITTEN["scores"]


@pytest.mark.parametrize(
    ("signature", "outputs"), [("translate", WRITTEN), ("parse", WRITTEN | {"symbols": WRITTEN["outputs"]})]
)
def test_other_signatures_and_older_exports_are_served_unchanged(signature, outputs):
    """Older exports build the trees in their graph, and return the symbols too."""
    assert TASK.served(signature, INPUTS, outputs) is outputs


@pytest.mark.parametrize("name", ["parse_wsj", "translate_files"])
def test_tasks_need_no_tensorflow(name):
    source = f"""
import sys, t2t_repro
task = t2t_repro.get_problem({name!r}).task
print(task.name, task.own_files, *("tensorflow" in sys.modules, "numpy" in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", source], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    name = "parsing parse_files" if name == "parse_wsj" else "translation translate_files"
    assert done.stdout == f"{name} False False\n"
