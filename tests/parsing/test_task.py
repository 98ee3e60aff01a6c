"""t2t_repro.parsing.task: how a server turns an export's symbols into trees."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import CHECKOUT

from t2t_repro.parsing.trees import parse
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


def test_decoded_trees_are_compared_with_the_gold_ones():
    """The words of the sources are gold's, and the trees have gold's tags, by which punctuation is deleted."""
    golds = [parse("(S (NP (PRP We)) (VP (VBP see)) (. ?))"), parse("(S (VP (VB Go)))")]
    written = {"We see ?": "ǀS ǀNP We ǁNP ǀVP see ǁVP ? ǁS", "Go": "ǀS ǀNP Go ǁNP ǁS"}
    translator = SimpleNamespace(
        hparams=SimpleNamespace(beam_size=4), n_best=lambda texts, *_: [[(written[text], -1.0)] for text in texts]
    )
    decoded = TASK.decode(translator, golds, beam_size=1, alpha=None)
    assert decoded[0] == golds[0] and str(decoded[1]) == "(S (NP (VB Go)))"
    found = TASK.compared(golds, decoded, golds)
    assert list(found.sources) == list(written) and list(found.references) == list(map(str, golds))
    counts = [[(row.matched, row.gold, row.test) for row in rows] for rows in found.measured]
    assert counts == [[(3, 3, 3), (1, 2, 2)], [(3, 3, 3), (2, 2, 2)]]
    assert list(found.outputs[0]) == list(map(str, decoded)) and list(found.metrics) == ["F1"]


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
