"""The options of graph optimization: what a program sets, and that results do not depend on them.

The other tests run with graphs optimized once (`conftest.py`); here, training and decoding also run with TensorFlow's
defaults.
"""

from __future__ import annotations

import json

import pytest
from conftest import CHECKOUT
from helpers.subprocesses import in_a_process

SOURCE = """
import json, sys, tempfile, threading
from t2t_repro.cli.launcher import load_tensorflow
load_tensorflow()
import tensorflow as tf
from tensorflow.python.eager import context
import t2t_repro
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, silent, values
from t2t_repro.inference.graph_options import optimize_once
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.training.trainer import train
found, seen = [], []
if sys.argv[2] == "once":
    optimize_once()
with tempfile.TemporaryDirectory() as folder:
    run = train(PROBLEM, TINY, folder, folder + "/RUN", FLOAT32, prepare=prepare, report=silent)
    weights = {name: array.tobytes().hex() for name, array in values(run, 8).items() if "spent" not in name}
for precision in ("float32", "bfloat16"):
    if sys.argv[2] == "once":
        optimize_once(fuse=precision != "bfloat16")
    found += t2t_repro.load(sys.argv[1], precision=precision).n_best(["in 3 days", "12.5%", "March 2026"], 3)
def options():
    config = tf.compat.v1.ConfigProto.FromString(context.context().function_call_options.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    seen.append([rewrites.meta_optimizer_iterations, rewrites.disable_tfg_optimizer])
thread = threading.Thread(target=options)
thread.start()
thread.join()
print(json.dumps([seen[0], [(text, score.hex()) for each in found for text, score in each], weights]))
"""


@pytest.mark.slow
def test_graphs_optimized_once_give_the_same_bits():
    """0 stands for TensorFlow's default, two rounds. The option applies in every thread."""
    rounds, found, weights = {}, {}, {}
    tests = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}"}
    for mode in ("once", "default"):
        done = in_a_process("-c", SOURCE, str(CHECKOUT / "tests/fixtures/run"), mode, env=tests)
        assert done.returncode == 0, done.stderr
        rounds[mode], found[mode], weights[mode] = json.loads(done.stdout)
    assert rounds == {"once": [1, True], "default": [0, False]}
    assert found["once"] == found["default"] and len(found["once"]) == 2 * 9
    assert weights["once"] == weights["default"] and len(weights["once"]) > 50
