"""t2t-report: compares runs with the paper's Tables 2, 3 and 4.

  t2t-report runs                      print a table of all runs in runs/
  t2t-report runs --html=report.html   write a page with every column too

The directory is searched recursively. --markdown and --json write files with
every column too. Scores are grouped by the data they were measured on. A row of
the paper without a run or a score is marked "not run" or "not scored".
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.io import atomic_write

FLAGS = flags.FlagValues()
_FORMATS = {"markdown": "Markdown", "json": "JSON", "html": "HTML"}
FORMS = tuple(_FORMATS)
for _name in FORMS:
    flags.DEFINE_string(_name, None, f"FILE: {_FORMATS[_name]} file to write, with every column", flag_values=FLAGS)


def write(directory: str) -> None:
    from t2t_repro.evaluation import report_formats, report_runs, report_tables

    forms = dict(zip(FORMS, (report_formats.as_markdown, report_formats.as_json, report_formats.as_html), strict=True))
    paths = {flag: str(FLAGS[flag].value) for flag in FORMS if FLAGS[flag].value}
    for flag, path in paths.items():
        common_flags.must_be_writable(flag, path)
    results, unreadable = report_runs.read_runs(directory)
    tables = report_tables.build_tables(results)
    for flag, path in paths.items():
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(forms[flag](tables, unreadable))
        launcher.report(f"wrote {path}")
    print(report_formats.as_text(tables, unreadable))
    if unreadable:
        raise ValueError(f"{len(unreadable)} of the runs in {directory!r} cannot be read: see the end of the report")


def main() -> int:
    return launcher.run("t2t-report", __doc__ or "", FLAGS, write, files=("DIRECTORY",))


if __name__ == "__main__":
    sys.exit(main())
