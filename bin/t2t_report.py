"""t2t-report: sets trained runs beside the paper's Tables 2, 3 and 4.

  t2t-report DIRECTORY           every run in it or below, on the terminal
  t2t-report DIRECTORY --html=F  the same with every column, in a file

--markdown and --json write files too. A figure stands under the data that it
was measured on; what was not run or not scored says so.
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.io import atomic_write

FLAGS = flags.FlagValues()
FORMS = ("markdown", "json", "html")
for _name in FORMS:
    flags.DEFINE_string(_name, None, f"file to write as {_name}, with every column", flag_values=FLAGS)


def write(directory: str) -> None:
    from t2t_repro.evaluation import report, report_page

    forms = dict(zip(FORMS, (report_page.markdown, report_page.as_json, report_page.page), strict=True))
    paths = {flag: str(FLAGS[flag].value) for flag in FORMS if FLAGS[flag].value}
    for flag, path in paths.items():
        common_flags.must_be_writable(flag, path)
    outcomes, unreadable = report.collect(directory)
    tables = report.tables(outcomes)
    for flag, path in paths.items():
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(forms[flag](tables, unreadable))
        launcher.report(f"wrote {path}")
    print(report_page.text(tables, unreadable))
    if unreadable:
        raise ValueError(f"{len(unreadable)} of the runs in {directory!r} cannot be read: see the end of the report")


def main() -> int:
    return launcher.run("t2t-report", __doc__ or "", FLAGS, write, files=("DIRECTORY",))


if __name__ == "__main__":
    sys.exit(main())
