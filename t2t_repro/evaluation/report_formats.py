"""A report as text for a terminal, as Markdown, as JSON, and as one self-contained HTML page."""

from __future__ import annotations

import html
import io
import json
import math
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from t2t_repro.evaluation.report_runs import RunResult, read_json_lines
from t2t_repro.evaluation.report_tables import Table

WIDTH = 80

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 .2rem; } p { margin: .2rem 0 .8rem; color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { border-bottom-width: 2px; } th:first-child, td:first-child, .text { text-align: left; }
svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; margin: 1rem 0; }
"""


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


def as_html(tables: Sequence[Table], unreadable: Sequence[str]) -> str:
    """Returns one HTML page with every column and the plots."""
    parts = ["<!doctype html>", '<html lang="en"><meta charset="utf-8">', "<title>t2t-report</title>"]
    parts += ['<meta name="viewport" content="width=device-width, initial-scale=1">', f"<style>{_STYLE}</style>"]
    for table in tables:
        parts += [f"<h2>{html.escape(table.title)}</h2>"]
        parts += [f"<p>{html.escape(table.caption)}</p>", '<div class="wide"><table>']
        for number, row in enumerate(table.cells(wide=True)):
            kind = "td" if number else "th"
            parts.append("<tr>" + "".join(_html_cell(kind, cell) for cell in row) + "</tr>")
        parts += ["</table></div>", *plots(table)]
    parts += [f"<p>Not readable: {html.escape(line)}</p>" for line in unreadable]
    return "\n".join(parts) + "\n</html>\n"


def plots(table: Table) -> list[str]:
    """Returns the plots of a table as SVG elements."""
    curves = {_name(result): _curve(result) for result in table.curves}
    curves = {name: points for name, points in curves.items() if len(points) > 1}
    pictures = []
    if curves:
        pictures.append(_svg(lambda axes: _draw_curves(axes, curves)))
    differences = [
        (row["set"], row["printed_delta"], row["delta"])
        for row in table.rows
        if row.get("delta") is not None and row["set"] != "base"
    ]
    if differences:
        pictures.append(_svg(lambda axes: _draw_differences(axes, differences)))
    return pictures


def _name(result: RunResult) -> str:
    """Returns the name of the hyperparameter set, and the seed if it is not 1."""
    return result.run.hparams.name + (f", seed {result.run.seed}" if result.run.seed != 1 else "")


def _curve(result: RunResult) -> list[tuple[int, float]]:
    """Returns (step, validation perplexity) from metrics.jsonl."""
    if not os.path.exists(result.run.metrics):
        return []
    values = [value for value in read_json_lines(result.run.metrics) if "validation_perplexity" in value]
    return [(int(value.get("step", 0)), float(value["validation_perplexity"])) for value in values]


def _svg(draw: Callable[[Any], None]) -> str:
    """Returns the plot drawn by `draw` as an SVG element. Letters are paths, so that no font is needed."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "t2t_repro", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def _draw_curves(axes: Any, curves: dict[str, list[tuple[int, float]]]) -> None:
    import matplotlib

    colors = matplotlib.colormaps["tab20"]
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), label=name, color=colors(number % 20), linewidth=1.4)
    axes.set(xlabel="steps", ylabel="validation perplexity", yscale="log")
    lowest = min(value for points in curves.values() for _, value in points)
    ticks = [tick for tick in (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000) if tick >= 0.8 * lowest]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(top=max(max(points[len(points) // 5 :], key=lambda p: p[1])[1] for points in curves.values()))
    axes.minorticks_off()
    axes.legend(ncols=2, fontsize=8, frameon=False, loc="upper right")


def _draw_differences(axes: Any, differences: list[tuple[str, float, float]]) -> None:
    """Plots the BLEU of each row minus that of base: measured against printed in the paper."""
    axes.axline((0, 0), slope=1, color="#bbb", linewidth=1, zorder=0)  # measured equals printed
    axes.axhline(0, color="#ddd", linewidth=1, zorder=0)
    axes.axvline(0, color="#ddd", linewidth=1, zorder=0)
    for name, printed, measured in differences:
        axes.plot(printed, measured, "o", color="#2b6cb0", markersize=4)
        axes.annotate(name, (printed, measured), xytext=(4, 3), textcoords="offset points", fontsize=8)
    lowest, highest = min(y for _, _, y in differences), max(y for _, _, y in differences)
    axes.set(xlabel="BLEU over base, printed by the paper", ylabel="BLEU over base, measured")
    axes.set_ylim(lowest - 0.6, highest + 0.6)


def _aligned(column: Sequence[str]) -> list[str]:
    """Returns the cells of a column at equal width, numbers and their heading aligned to the right."""
    width, numbers = max(map(len, column)), all(map(_is_number, column[1:]))
    return [f"{cell:>{width}}" if numbers else f"{cell:<{width}}" for cell in column]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell.replace(",", "")))
    except ValueError:
        return cell == "-"


def _html_cell(kind: str, cell: str) -> str:
    return f"<{kind}{'' if _is_number(cell) else ' class=text'}>{html.escape(cell)}</{kind}>"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_markdown_escaped, cells))} |"


def _markdown_escaped(line: str) -> str:
    for character in "\\|<>`*[]":
        line = line.replace(character, f"\\{character}")
    return line
