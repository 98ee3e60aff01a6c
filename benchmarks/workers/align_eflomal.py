"""Runs in eflomal's environment: aligns `source ||| target` lines in both directions.

    python benchmarks/workers/align_eflomal.py < pairs > links

Each line of the result has the links of source to target, a tab, and those of target to source, in Pharaoh format.
"""

from __future__ import annotations

import os
import sys
import tempfile

from eflomal import Aligner  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    sides = list(zip(*(line.rstrip("\n").split(" ||| ") for line in sys.stdin), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        links = [os.path.join(folder, name) for name in ("forward", "reverse")]
        Aligner().align(*sides, links_filename_fwd=links[0], links_filename_rev=links[1])
        both = []
        for path in links:
            with open(path, encoding="utf-8") as file:
                both.append(file.read().splitlines())
    for forward, reverse in zip(*both, strict=True):
        print(f"{forward}\t{reverse}")


if __name__ == "__main__":
    main()
