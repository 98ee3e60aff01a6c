"""Runs `serve` in a separate process, with `Capitals` as the model: python serve_capitals.py E SETTINGS MODE

SETTINGS are JSON, such as '{"drain_seconds": 1}'. MODE "deaf": the model never answers and cannot be cancelled; "slow":
it takes 10 ms; "wasteful": before it serves, it allocates and frees 80 MB below a block that stays in use; "loading":
each version but the first takes minutes to load.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.capitals import Capitals

from t2t_repro.cli import launcher
from t2t_repro.serving import server
from t2t_repro.serving.app import Settings

model, (_, export_dir, settings, mode) = Capitals(), sys.argv
run = model.run


def slow(*arguments):
    time.sleep(0.01)
    return run(*arguments)


model.run = slow
if mode == "deaf":
    model.is_deaf = True
    model.gate.clear()
if mode == "wasteful":
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(4_096) for _ in range(20_001)]
    for block in blocks[:-1]:
        ctypes.memset(block, 1, 4_096)
    for block in blocks[:-1]:
        libc.free(ctypes.c_void_p(block))


def load(export_dir, attention):
    if mode == "loading" and (Path(export_dir) / "2").exists():
        time.sleep(300)
    return model


server._load = load
server._CLOSING_SECONDS = 1.0
server._MEMORY_SECONDS = 1.0
options = {"poll_seconds": 0.1 if mode == "loading" else 0.0}
number, answered = server.serve(
    export_dir, "127.0.0.1", 0, "m", Settings(**json.loads(settings)), launcher.report, **options
)
print(answered, flush=True)
sys.exit(128 + number)
