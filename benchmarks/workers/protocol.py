"""The protocol between a contestant and `benchmarks.train` or `.decode`: lines on standard input and output.

worker:     {"ready": true,                          every step was run once, the model is warm
             "library": "/checkout/t2t_repro"}       the folder of this package, if the worker uses it
conductor:  go 3 4 5                                 indices of steps
worker:     {"seconds": 3.2, "loss": 10.4}           for all of them; the loss is the last one's, a token
conductor:  end
worker:     {"peak_bytes": 2893012992,               the most memory that the process has held at one time,
             "imported_bytes": 512000000}            and what it held at first, with its libraries
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.shapes import SHAPES, Shape


def arguments() -> tuple[Shape, str, str]:
    """Parses the worker's command line: shape of the model, file of the batches, and mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--batches", required=True)
    parser.add_argument("--mode", required=True)
    found = parser.parse_args()
    return SHAPES[found.model], found.batches, found.mode


def decoding_arguments() -> tuple[Shape, str, str]:
    """Parses the command line for `benchmarks.decode`: shape, folder of the weights, mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--mode", default="")
    found = parser.parse_args()
    return SHAPES[found.model], found.weights, found.mode


def quiet_output() -> None:
    """Sends what libraries print to the standard error; call it before importing them."""
    global _answers
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


_answers = sys.stdout


def serve(update: Callable[[int], float], updates: Sequence[object], imported_bytes: int | None = None) -> None:
    """Runs each step once, then the requested ones. `update` takes an index and returns the loss per target token.

    `imported_bytes`: what `resident_bytes` said before there was a model.
    """
    imported = resident_bytes() if imported_bytes is None else imported_bytes
    for number in range(len(updates)):
        _finite(update(number))
    _say(ready=True, library=_library())
    for line in sys.stdin:
        word, *indices = line.split()
        if word == "end":
            break
        start, loss = time.perf_counter(), 0.0
        for index in indices:
            loss = update(int(index))
        _say(seconds=time.perf_counter() - start, loss=_finite(loss))
    # not `ru_maxrss`, which may be the parent's
    _say(peak_bytes=_bytes("VmHWM"), imported_bytes=imported)


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return _bytes("VmRSS")


def _library() -> str | None:
    package = sys.modules.get("t2t_repro")
    return os.path.dirname(os.path.abspath(str(package.__file__))) if package else None


def _bytes(what: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}: this contestant does not train")
    return loss


def _say(**values: object) -> None:
    print(json.dumps(values), file=_answers, flush=True)
