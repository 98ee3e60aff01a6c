"""t2t-report: compares runs with the paper's Tables 2, 3 and 4.

  t2t-report runs                      print a table of all runs in runs/
  t2t-report runs --html=report.html   write a page with charts and every column
  t2t-report run                       also draw the run's curves.svg and .png

Runs are searched up to three folders deep. --markdown and --json write files
too. Scores are grouped by the data they were measured on, and those of other
text than the run's are left out. A row of the paper without a run or a score is
marked "not run" or "not scored". t2t-trainer draws the same curves at its end.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.io import atomic_write, target_of
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
FORMS = {
    "markdown": "FILE: Markdown file to write, with every column",
    "json": "FILE: JSON file to write, with every value unrounded",
    "html": "FILE: HTML page to write, with every column and charts",
}
for _name, _meaning in FORMS.items():
    flags.DEFINE_string(_name, None, _meaning, flag_values=FLAGS)


def write(directory: str) -> None:
    from t2t_repro.charts.training_curves import write_curves
    from t2t_repro.evaluation import report_formats, report_page, report_runs, report_tables

    paths = {flag: str(FLAGS[flag].value) for flag in FORMS if FLAGS[flag].value}
    common_flags.must_differ(paths)
    for flag, path in paths.items():
        common_flags.must_be_writable(flag, path)
    results, unreadable = report_runs.read_runs(directory)
    tables = report_tables.build_tables(results)
    metrics, faults = report_page.read_all_metrics(results) if FLAGS.html else ({}, [])
    unreadable += faults
    forms: dict[str, Callable[..., str]] = {
        "markdown": report_formats.as_markdown,
        "json": report_formats.as_json,
        "html": functools.partial(report_page.as_html, metrics=metrics),
    }
    if Run.exists(directory):
        for path in (path for result in results for path in write_curves(result.run, launcher.report)):
            launcher.report(f"wrote {path}")
    for flag, path in paths.items():
        with atomic_write(target_of(path)) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(forms[flag](tables, unreadable))
        launcher.report(f"wrote {path}")
    print(report_formats.as_text(tables, unreadable))
    if unreadable:
        raise ValueError(f"{len(unreadable)} of the runs in {directory!r} cannot be read: see the end of the report")


def main() -> int:
    return launcher.run("t2t-report", __doc__ or "", FLAGS, write, files=("DIRECTORY",))


if __name__ == "__main__":
    sys.exit(main())
