"""Charts of a report: validation perplexity of its runs over the steps, and BLEU of the rows of Table 3 over base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t2t_repro.charts.drawing import COLORS, SOFT, Curve, Panel, Point, differences_svg, thinned
from t2t_repro.registry import RECORDS

REFERENCE = "base"  # drawn beside every group of rows
OTHERS = "other rows"


def validation_panels(curves: Mapping[str, Sequence[Point]], first: float = 0.2) -> list[Panel]:
    """Returns panels of validation perplexity per token over the steps.

    `curves` are those of the runs by name, `a_h1` or `a_h1, seed 2`. Runs of Table 3 are in one panel per group of
    its rows, each with base. Curves start after the first fifth of their points, or the share `first`, which would hide
    what follows. A curve of one point is not drawn.
    """
    kept = {name: thinned(points[int(first * len(points)) :]) for name, points in curves.items() if len(points) > 1}
    references = {name: points for name, points in kept.items() if _set_name(name) == REFERENCE}
    groups: dict[str, dict[str, list[Point]]] = {}
    for name, points in kept.items():
        if name not in references:
            groups.setdefault(_group(name), {})[name] = points
    if not groups and references:
        groups = {OTHERS: {}}
    panels = []
    for group, found in sorted(groups.items(), key=lambda item: (item[0] == OTHERS, item[0])):
        title = "Validation perplexity" + (f": {group}" if len(groups) > 1 else "")
        drawn = [Curve(name, points, SOFT) for name, points in references.items()]
        drawn += [Curve(name, points, COLORS[n % len(COLORS)]) for n, (name, points) in enumerate(found.items())]
        panels.append(Panel(title, "per token, logarithmic", "steps", tuple(drawn), log="y"))
    return panels


def differences_chart(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns an SVG element of BLEU over base, measured and printed by the paper, of the rows of Table 3 that have
    both; "" if there are none."""
    shown = [row for row in rows if row.get("delta") is not None and row["set"] != REFERENCE]
    if not shown:
        return ""
    found = [(name, row["printed_delta"], row["delta"]) for name, row in zip(run_names(shown), shown, strict=True)]
    return differences_svg(found, "BLEU over base", "BLEU over base, validation split", ("the paper's", "measured"))


def run_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the name of each row's run: `tiny` or `tiny, seed 2`, and `tiny, run_a` if several would be equal."""
    names = [row["set"] + (f", seed {row['seed']}" if row.get("seed", 1) != 1 else "") for row in rows]
    return [
        f"{each}, {row['directory']}" if names.count(each) > 1 else each for each, row in zip(names, rows, strict=True)
    ]


def _set_name(name: str) -> str:
    return name.partition(",")[0]


def _group(name: str) -> str:
    """Returns the group of a row: `rows (A)` of Table 3."""
    record = RECORDS.get(_set_name(name))
    letter = record.place.partition("(")[2] if record else ""
    return f"rows ({letter}" if letter else OTHERS
