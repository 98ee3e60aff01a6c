"""A report as text for a terminal, as Markdown and as JSON. `report_page` has its HTML."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence

from t2t_repro.evaluation.report_tables import Table

WIDTH = 80


def as_text(tables: Sequence[Table], unreadable: Sequence[str]) -> str:
    """Returns text for a terminal: the columns that fit, one line per row."""
    parts = []
    for table in tables:
        columns = map(_aligned, zip(*table.cells(wide=False), strict=True))
        rows = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        parts.append("\n".join([table.title, *textwrap.wrap(table.caption, WIDTH), "", *rows]))
    return "\n\n".join(parts + [f"Not readable: {line}" for line in unreadable])


def as_markdown(tables: Sequence[Table], unreadable: Sequence[str]) -> str:
    """Returns Markdown with every column."""
    parts = []
    for table in tables:
        heading, *rows = table.cells(wide=True)
        lines = [f"## {table.title}", "", _markdown_escaped(table.caption), ""]
        lines += [_markdown_row(heading), _markdown_row(["---"] * len(heading)), *map(_markdown_row, rows)]
        parts.append("\n".join(lines))
    parts += [f"Not readable: {_markdown_escaped(line)}" for line in unreadable]
    return "\n\n".join(parts) + "\n"


def as_json(tables: Sequence[Table], unreadable: Sequence[str]) -> str:
    """Returns JSON with every value unrounded, null for values that were not measured or printed."""
    found = [
        {"title": table.title, "condition": table.condition, "note": table.note, "rows": table.rows} for table in tables
    ]
    return json.dumps({"tables": found, "unreadable": list(unreadable)}, indent=2, ensure_ascii=False) + "\n"


def _aligned(column: Sequence[str]) -> list[str]:
    """Returns the cells of a column at equal width, numbers and their heading aligned to the right."""
    width, numbers = max(map(len, column)), all(map(is_number, column[1:]))
    return [f"{cell:>{width}}" if numbers else f"{cell:<{width}}" for cell in column]


def is_number(cell: str) -> bool:
    """Returns true for a cell with a number, or with "-" for a missing one."""
    try:
        return math.isfinite(float(cell.replace(",", "")))
    except ValueError:
        return cell == "-"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown_escaped, cells))} |"


def _markdown_escaped(line: str) -> str:
    for character in "\\|<>`*[]":
        line = line.replace(character, f"\\{character}")
    return line
