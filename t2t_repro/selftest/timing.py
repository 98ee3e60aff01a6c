"""Times train steps in order of usefulness, and skips those that would take too long."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from t2t_repro.selftest.child import Child, Outcome

SECONDS = 40.0  # for all cases, by estimates
SMALL = "tiny"
SETS, GPU_SETS = ("base", SMALL), ("base", "big", SMALL)
COMPILING = 2.5  # minimum ratio of the start with XLA to the start without, on a processor in float32
START_SECONDS = {"tiny": 4.0, "base": 8.0, "big": 8.0}  # to build the graph, until it is measured
REACHED = 0.5  # minimum FLOP/s of a step, relative to the rate of products
FIRST = 3  # cases that may each use all the seconds; base is one of them


class Case(NamedTuple):
    set: str
    precision: str
    xla: bool


def cases(machine: dict[str, Any]) -> list[Case]:
    """Returns the cases, the most useful first: the fast small set, then the others in the precision of "auto"."""
    auto, gpu = machine["auto_precision"], bool(machine["gpus"])
    sets = GPU_SETS if gpu else SETS
    others = [each for each in ("float32", "bfloat16", "float16") if each != auto]
    found = [Case(SMALL, auto, False), Case(SMALL, others[0], False)]
    found += [Case(each, auto, False) for each in sets[:-1]]
    found += [Case(SMALL, auto, True), Case(SMALL, others[0], True)]
    found += [Case(each, others[0], False) for each in sets[:-1]]
    found += [Case(each, precision, True) for precision in (auto, others[0]) for each in sets[:-1]]
    found += [Case(each, others[1], xla) for xla in (False, True) for each in sets]
    return found


def measure(
    machine: dict[str, Any], products: dict[str, Any], seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Returns a row per case: "set", "precision", "xla", and the result of `speed.step`, or "left_out" (a reason), or
    "error"."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        # one process per set: memory that a large model leaves allocated does not count for a small one
        children = {name: stack.enter_context(Child()) for name in {case.set for case in cases(machine)}}
        for case in cases(machine):
            row, child = case._asdict(), children[case.set]
            left = seconds if len(found) < FIRST else max(end - time.monotonic(), 0.0)
            if reason := _too_long(case, child, products, found, left):
                found.append(row | {"left_out": reason})
                continue
            say(f"training speed: {case.set} in {case.precision}{' with XLA' * case.xla}")
            outcome = child.do("speed.step", set_name=case.set, precision=case.precision, xla=case.xla)
            found.append(row | _result(outcome))
    order = {each: number for number, each in enumerate(("tiny", "base", "big", "float32", "bfloat16", "float16"))}
    return sorted(found, key=lambda row: (order[row["set"]], order[row["precision"]], row["xla"]))


def other_onednn(
    machine: dict[str, Any], speed: list[dict[str, Any]], say: Callable[[str], None]
) -> tuple[bool, float] | None:
    """Returns the other state of oneDNN, and the speed of a step of `SMALL` in that state over the speed in this one.

    None if `speed` has no such step, or if a GPU computes.
    """
    case = Case(SMALL, machine["auto_precision"], False)
    here = [row for row in speed if "seconds" in row and (row["set"], row["precision"], row["xla"]) == case]
    if machine["gpus"] or not here:
        return None
    other = not machine["tensorflow"]["onednn"]
    say(f"training speed: {case.set} in {case.precision} {'with' if other else 'without'} oneDNN")
    with Child(TF_ENABLE_ONEDNN_OPTS=str(int(other))) as child:
        outcome = child.do("speed.step", set_name=case.set, precision=case.precision)
    return None if outcome.error else (other, here[0]["seconds"] / outcome.value["seconds"])


def _result(outcome: Outcome) -> dict[str, Any]:
    if not outcome.error:
        return dict(outcome.value)
    if outcome.ended_by == signal.SIGKILL or outcome.error.startswith("ResourceExhaustedError"):
        return {"left_out": "not enough memory"}
    return {"error": outcome.error}


def _too_long(case: Case, child: Child, products: dict[str, Any], found: list[dict[str, Any]], left: float) -> str:
    """Returns why a case is skipped; "" if it fits into the remaining seconds."""
    rate = products[case.precision].get("rate")
    if not rate:
        return f"products in {case.precision} are wrong here"
    measured = (each for each in found if "seconds" in each)
    starts = {Case(each["set"], each["precision"], each["xla"]): each["startup_seconds"] for each in measured}
    plain = case._replace(xla=False)
    if case.xla and plain not in starts:
        return "as without XLA"
    of_set = (seconds for other, seconds in starts.items() if other.set == case.set)
    start = COMPILING * starts[plain] if case.xla else max(of_set, default=START_SECONDS[case.set])
    flops = child.do("speed.flops", set_name=case.set)
    estimate = start + 3 * (flops.value or 0) / (REACHED * rate)
    return "" if estimate < left else f"takes about {estimate:.0f} s, and {left:.0f} are left"
