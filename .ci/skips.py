"""Prints the tests that no pytest run executed, and why: `skips.py REPORTS [ABSENT ...]`.

REPORTS is a folder with the JUnit report of each run. A test that is skipped in one run and executed in another counts
as executed. ABSENT is what this machine lacks, in a word that the reasons of the skips contain. Exit code 1 if a test
is skipped for any other reason, because then this machine could have run it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Case(NamedTuple):
    """A test of one run, or a module that was skipped when it was imported."""

    name: str  # "tests.test_loss.test_counts", "tests.test_torch_parity"
    reason: str | None  # None: it was executed


def cases(report: str) -> Iterable[Case]:
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        if skipped is None or skipped.get("type") == "pytest.xfail":
            yield Case(name, None)
        elif skipped.get("message") == "collection skipped":  # of a module; its text is the repr of a tuple
            _, _, reason = ast.literal_eval((skipped.text or "").strip())
            yield Case(name, reason.removeprefix("Skipped: "))
        else:
            yield Case(name, skipped.get("message") or "")


def verdict(found: Iterable[Case], absent: Iterable[str]) -> tuple[int, list[str]]:
    """Returns the exit code and the lines to print."""
    found, absent = list(found), list(absent)
    executed = {case.name for case in found if case.reason is None}
    modules = {name.partition("[")[0].rpartition(".")[0] for name in executed}
    skipped = {case.name: case.reason for case in found if case.reason is not None}
    skipped = {name: reason for name, reason in skipped.items() if name not in executed | modules}
    code, lines = 0, []
    for name, reason in sorted(skipped.items()):
        if any(each in reason for each in absent):
            lines.append(f"skipped: {name}: {reason}")
        else:
            code = 1
            lines.append(f"SKIPPED, although nothing that it needs is known to be missing: {name}: {reason}")
    return code, [*lines, f"{len(executed)} tests were executed, {len(skipped)} were skipped"]


def main() -> int:
    folder, *absent = sys.argv[1:]
    reports = sorted(Path(folder).glob("*.xml"))
    if not reports:
        print(f"skips.py: {folder} must hold the JUnit report of a pytest run. Received an empty folder.")
        return 1
    code, lines = verdict((case for report in reports for case in cases(report.read_text("utf-8"))), absent)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
