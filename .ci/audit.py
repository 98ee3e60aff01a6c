"""What pip-audit has found out about the installed packages: `audit.py REPORT.json`, the report of `--format=json`.

A package that the advisory service could not be asked about is "skipped" there, and pip-audit then says that no
vulnerability is known. So what was not checked is said here, in so many words. Exit code 1 where one is vulnerable.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def verdict(report: dict[str, Any] | None) -> tuple[int, list[str]]:
    """The exit code and what to say. `report` is None where there is none: the service did not answer at all."""
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
