"""Summarizes pip-audit's findings for the installed packages: `audit.py REPORT.json`, a report of `--format=json`.

If the advisory service does not answer for a package, pip-audit marks it as "skipped" and reports no vulnerability. So
the packages that were not checked are printed here. Exit code 1 if a package is vulnerable.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def verdict(report: dict[str, Any] | None) -> tuple[int, list[str]]:
    """Returns the exit code and the lines to print. `report` is None if the service did not answer at all."""
    if report is None:
        return 0, ["NOT CHECKED for known vulnerabilities: the advisory service did not answer"]
    packages = report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {each['id']}, fixed in {' or '.join(each['fix_versions']) or 'none'}"
        for package in packages
        for each in package.get("vulns", ())
    ]
    code = 1 if lines else 0
    lines.append(f"{len(packages) - len(skipped)} of {len(packages)} packages checked for known vulnerabilities")
    if skipped:
        lines.append(f"NOT CHECKED, the advisory service had no answer: {', '.join(skipped)}")
    return code, lines


def main() -> int:
    report = None
    if os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1]):
        with open(sys.argv[1], encoding="utf-8") as file:
            report = json.load(file)
    code, lines = verdict(report)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
