"""A report as one self-contained HTML page: the runs with their charts first, and the rest of the paper's rows folded.

The page loads nothing from the network and has no script.
"""

from __future__ import annotations

import dataclasses
import datetime
import html
import importlib.resources
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from t2t_repro.charts.drawing import panels_svg
from t2t_repro.charts.training_curves import Metrics, read_metrics, training_panels
from t2t_repro.evaluation.report_charts import differences_chart, run_names, validation_panels
from t2t_repro.evaluation.report_formats import is_number
from t2t_repro.evaluation.report_runs import RunResult
from t2t_repro.evaluation.report_tables import Column, Table

LONG = 36  # characters of a cell that is broken into lines


def as_html(
    tables: Sequence[Table],
    unreadable: Sequence[str],
    metrics: Mapping[str, Metrics] = MappingProxyType({}),
    date: datetime.date | None = None,
) -> str:
    """Returns the page. `metrics` are those of `read_all_metrics`, for the charts. The date is today's, or `date`."""
    results = list({result.run.directory: result for table in tables for result in table.results}.values())
    parts = [f'<p class="wrong">Not readable: {html.escape(line)}</p>' for line in unreadable]
    scored: list[str] = []
    unscored: list[str] = []
    if len(results) == 1:  # its own curves instead of a comparison
        panels = training_panels(metrics.get(results[0].run.directory, {}))
        parts += charts_html([panels_svg([panel]) for panel in panels])
        metrics = {}
    for number, table in enumerate(tables):
        later = {result.run.directory for other in tables[number + 1 :] for result in other.results}
        if table.results:  # the curves of a run are drawn once, in Table 3 rather than in Table 2
            curves = {path: found for path, found in metrics.items() if path not in later}
            (scored if _is_scored(table) else unscored).extend(_section(table, curves))
    parts += [*scored, *unscored, *_without_runs([table for table in tables if not table.results])]
    return filled(_title(results), _about(results, date), parts)


def filled(title: str, about: str, parts: Iterable[str]) -> str:
    """Returns a page with this title, a line of HTML about it, and parts of HTML."""
    values = {"TITLE": html.escape(title), "ABOUT": about, "MAIN": "\n".join(parts)}
    template = importlib.resources.files(__package__).joinpath("report_page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _is_scored(table: Table) -> bool:
    return any(row.get(metric) is not None for row in table.rows for metric in ("bleu", "f1"))


def read_all_metrics(results: Iterable[RunResult]) -> tuple[dict[str, Metrics], list[str]]:
    """Returns the metrics by run directory, and an error line for each damaged file."""
    metrics, faults = {}, []
    for result in results:
        try:
            metrics[result.run.directory] = read_metrics(result.run.metrics)
        except (ValueError, OSError) as error:
            faults.append(str(error))
    return metrics, faults


def _title(results: Sequence[RunResult]) -> str:
    """Returns `translate_ende_wmt14 with base` for one run, and `20 training runs of translate_files` for several."""
    if not results:
        return "No training runs"
    problems = list(dict.fromkeys(result.run.problem.name for result in results))
    if len(results) == 1:
        return f"{problems[0]} with {results[0].run.hparams.name}"
    return f"{len(results)} training runs of {problems[0] if len(problems) == 1 else f'{len(problems)} problems'}"


def _about(results: Sequence[RunResult], date: datetime.date | None) -> str:
    day = date or datetime.date.today()
    paper = "beside the published results of “Attention Is All You Need” (Vaswani et al., 2017)"
    shown = f"{day:%B} {day.day}, {day.year}"
    return (
        f'<time datetime="{day.isoformat()}">{shown}</time>. Measured results {paper}.'
        if results
        else f"{shown}. No run was found."
    )


def _section(table: Table, metrics: Mapping[str, Metrics]) -> list[str]:
    """Returns a table with its charts above it, and its rows without a run folded below it."""
    runs = [{"set": each.set_name, "seed": each.run.seed, "directory": each.directory} for each in table.results]
    curves = {
        name: metrics.get(result.run.directory, {}).get("validation_perplexity", [])
        for name, result in zip(run_names(runs), table.results, strict=True)
    }
    charts = [panels_svg([panel]) for panel in validation_panels(curves)]
    parts = [f"<section>\n<h2>{html.escape(table.title)}</h2>", f"<p>{html.escape(table.caption)}</p>"]
    parts += charts_html(charts, differences_chart(table.rows))
    rows = [row for row in table.rows if "directory" in row]
    parts += _table(table, rows)
    rest = [row for row in table.rows if "directory" not in row]
    if rest:
        parts += [f"<details><summary>Rows without a run: {len(rest)}</summary>"]
        parts += [*_table(table, rest), "</details>"]
    return [*parts, "</section>"]


def _without_runs(tables: Sequence[Table]) -> list[str]:
    parts: list[str] = []
    for table in tables:
        parts += [f"<details><summary>{html.escape(table.title)}: no run</summary>"]
        parts += [*_table(table, table.rows), "</details>"]
    return parts


def charts_html(charts: Sequence[str], tall: str = "") -> list[str]:
    """Returns SVG elements side by side, the `tall` one at twice the height."""
    found = [f'<div class="tall">{tall}</div>'] if tall else []
    found += [f"<div>{chart}</div>" for chart in charts]
    return ['<div class="charts">', *found, "</div>"] if found else []


def _table(table: Table, rows: Sequence[dict[str, object]]) -> list[str]:
    """Returns some rows of a table, without the columns that are empty there.

    An empty column stays if that of the paper's values follows, which is called "paper" alone.
    """

    def filled(column: Column) -> bool:
        return any(row.get(column.key) not in (None, "") for row in rows)

    following = (*table.columns[1:], table.columns[-1])
    columns = tuple(
        column
        for column, after in zip(table.columns, following, strict=True)
        if filled(column) or (after.heading == "paper" and filled(after))
    )
    heading, *lines = dataclasses.replace(table, columns=columns, rows=list(rows)).cells(wide=True)
    return table_html(heading, lines)


def table_html(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table of texts. Columns of numbers are aligned to the right."""
    is_text = [not all(is_number(line[place]) for line in lines) for place in range(len(heading))]
    parts = ['<div class="wide" tabindex="0"><table>']
    for kind, line in [("th", heading), *(("td", line) for line in lines)]:
        cells = (_cell(kind, cell, text) for cell, text in zip(line, is_text, strict=True))
        parts.append(f"<tr>{''.join(cells)}</tr>")
    return [*parts, "</table></div>"]


def _cell(kind: str, cell: str, is_text: bool) -> str:
    classes = ("text long" if len(cell) > LONG else "text") if is_text else ""
    return f"<{kind}{f' class={chr(34)}{classes}{chr(34)}' if classes else ''}>{html.escape(cell)}</{kind}>"
