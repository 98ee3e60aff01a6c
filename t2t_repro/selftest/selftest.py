"""Self-test: describes the machine, checks its results, times training, and recommends options.

TensorFlow runs only in child processes, so a kernel that crashes its process is one failed check.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t2t_repro.run import versions
from t2t_repro.selftest import timing
from t2t_repro.selftest.child import Child, Outcome
from t2t_repro.selftest.recommend import recommendations
from t2t_repro.system import processor

PRECISIONS = ("float32", "bfloat16", "float16")
Report = Callable[[str], None]
Check = dict[str, Any]  # "name", "right" and "detail" (the result in words)


def selftest(report: Report, seconds: float = timing.SECONDS) -> dict[str, Any]:
    """Runs the self-test, and returns its results as JSON values.

    The keys are "machine", "versions", "products", "checks", "speed", "recommendations", "failed" (names of checks) and
    "seconds". `seconds` limits the time for measuring training speed; 0 skips it. `report` is called with lines about
    progress.
    """
    started = time.monotonic()

    def say(line: str) -> None:
        report(f"[{time.monotonic() - started:3.0f} s] {line}")

    with Child() as child:
        say("the machine")
        machine = child.do("machine.describe")
        products = {}
        for precision in (*PRECISIONS, "int8"):
            say(f"products in {precision}")
            outcome = child.do("machine.product", precision=precision)
            products[precision] = outcome.value or {"fault": outcome.error}
    checks = [_check("machine", machine)]
    checks += [_product_check(*item) for item in products.items()]
    with tempfile.TemporaryDirectory(prefix="t2t-selftest-") as folder:
        checks += _training_checks(folder, say)
    speed = timing.measure(machine.value, products, seconds, say) if machine.value and seconds else []
    for each in speed:
        if "error" in each:
            name = f"train step of {each['set']} in {each['precision']}"
            checks.append({"name": name, "right": False, "detail": each["error"]})
    onednn = timing.other_onednn(machine.value, speed, say) if speed else None
    advice = recommendations(machine.value, products, speed, onednn) if machine.value else []
    return {
        "machine": machine.value,
        "versions": versions(),
        "products": products,
        "checks": checks,
        "speed": speed,
        "recommendations": [each._asdict() for each in advice],
        "failed": [check["name"] for check in checks if not check["right"]],
        "seconds": time.monotonic() - started,
    }


def _product_check(precision: str, found: dict[str, Any]) -> Check:
    detail = found.get("missing") or found["fault"] or "as in float64, within the rounding of the precision"
    return {"name": f"products in {precision}", "right": not found.get("fault"), "detail": detail}


def _training_checks(folder: str, say: Report) -> list[Check]:
    """Runs the checks that need a run: two processes at a time on two cores, because most work is single-threaded."""
    complete, killed = os.path.join(folder, "complete"), os.path.join(folder, "killed")
    with _pool() as do:
        say("training twice with one seed, and killing one of them")
        first = do("training.run", folder=complete)
        second = do("training.run", folder=killed, kill=True)
        trained, death = first(), second()
        say("continuing and exporting the killed run; comparing one and two replicas")
        third = do("training.replicas", folder=complete)
        with Child() as child:
            continued = child.do("training.run", folder=killed)
            seed, restored = (
                child.do("training.compare", one=complete, other=killed, at=at) for at in ("first", "last")
            )
            written = child.do("exports.write", folder=killed)
        replicas = third()
    say("loading the export")
    with Child() as child:
        exported = child.do("exports.compare", folder=killed, expected=written.value)
    return [
        _check("one and two replicas", replicas, right="the same step"),
        _check("same seed twice", trained, seed, right="the same bits"),
        _check("checkpoint after SIGKILL", _killed(death), continued, restored, right="continued to the same bits"),
        _check("export in another process", written, exported, right="same strings"),
    ]


def _killed(death: Outcome) -> Outcome:
    """Turns the expected death by SIGKILL into a success."""
    if death.ended_by == signal.SIGKILL:
        return Outcome()
    return Outcome(error=death.error or "training ended before a checkpoint was seen")


def _check(name: str, *outcomes: Outcome, right: str = "") -> Check:
    """Returns a check of consecutive tasks: right if none failed, and the value of the last one has no "fault"."""
    value: dict[str, str] = outcomes[-1].value or {}
    wrong = next((each.error for each in outcomes if each.error), "") or value.get("fault", "")
    note = f" ({value['note']})" if value.get("note") else ""
    return {"name": name, "right": not wrong, "detail": wrong or f"{right}{note}"}


@contextlib.contextmanager
def _pool() -> Iterator[Callable[..., Callable[[], Outcome]]]:
    """Yields `do(function, **arguments)`, which starts a task in a new child and returns a function to wait for it."""
    children: list[Child] = []

    def in_a_child(child: Child, function: str, arguments: dict[str, Any]) -> Outcome:
        with child:
            return child.do(function, **arguments)

    def do(function: str, **arguments: Any) -> Callable[[], Outcome]:
        children.append(Child())
        return pool.submit(in_a_child, children[-1], function, arguments).result

    with ThreadPoolExecutor(min(2, processor.usable_cores())) as pool:
        try:
            yield do
        except BaseException:  # Ctrl-C must not wait for the tasks
            for child in children:
                child.kill()
            raise
