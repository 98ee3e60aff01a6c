"""t2t-compare: tests whether one of two systems is better than the other.

  t2t-compare a.de b.de --reference=test.de --source=test.en
  t2t-compare a.mrg b.mrg --gold=test.mrg
  t2t-compare run_a run_b --average_checkpoints=10

A and B are files of translations, files of trees, or run directories. Line n of
each file belongs to the same sentence; files may be .gz. Two runs decode the
test split of the first run's prepared data. BLEU and chrF, or bracket F1, are
compared by paired bootstrap resampling and by approximate randomization, and
the sentences that differ most are listed. --html=FILE writes a page too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.io import atomic_write, target_of
from t2t_repro.problem import SPLITS
from t2t_repro.run import Run
from t2t_repro.task import task_of

FLAGS = flags.FlagValues()
flags.DEFINE_string("reference", None, "FILE: reference translations of A and B", flag_values=FLAGS)
flags.DEFINE_string("source", None, "FILE: source text, to show beside the translations", flag_values=FLAGS)
flags.DEFINE_string("gold", None, "FILE: gold trees of A and B, if they are trees", flag_values=FLAGS)
flags.DEFINE_integer("sentences", 5, "sentences to show in favor of each system", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_integer("seed", 12345, "random seed of both tests; the default is sacreBLEU's", 1, flag_values=FLAGS)
flags.DEFINE_string("html", None, "FILE: HTML page to write", flag_values=FLAGS)
flags.DEFINE_boolean("json", False, "print JSON instead of text", flag_values=FLAGS)
flags.DEFINE_enum("split", "test", SPLITS, "runs: split to compare on", flag_values=FLAGS)
common_flags.moved_data_flag(FLAGS, " of run A")
common_flags.decoding_flags(FLAGS)
OPTIONS = (  # of compared_runs()
    *("split", "average_checkpoints", "average_best", "moving_average"),
    *("beam_size", "alpha", "int8", "precision", "data_dir"),
)


def show(a: str, b: str) -> None:
    if FLAGS.html:
        common_flags.must_be_writable("html", FLAGS.html)
        read = {f"the file of --{flag}": FLAGS[flag].value for flag in ("reference", "source", "gold")}
        common_flags.must_replace_nothing("html", FLAGS.html, {"A": a, "B": b, **read})
    compared = _files(a, b) if FLAGS.reference or FLAGS.gold else _runs(a, b)
    from t2t_repro.evaluation import comparison, comparison_page

    for note in compared.notes:
        launcher.report(note)
    result = comparison.compare((a, b), compared, FLAGS.seed, FLAGS.sentences)
    if FLAGS.html:
        with (
            atomic_write(target_of(FLAGS.html)) as temporary,
            open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(comparison_page.as_html(result))
        launcher.report(f"wrote {FLAGS.html}")
    print(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if FLAGS.json else comparison.table(result))


def _must_not_have(flags_of_others: Iterable[str], where: str, remedy: str) -> None:
    given = [flag for flag in flags_of_others if FLAGS[flag].present]
    if given:
        raise launcher.UsageError(f"--{given[0]} is only for {where}; {remedy}")


def _files(a: str, b: str) -> Any:
    _must_not_have((*OPTIONS, "threads_per_batch"), "two runs", "leave it out to compare files")
    if FLAGS.reference and FLAGS.gold:
        raise launcher.UsageError("give --reference for translations or --gold for trees, not both")
    if FLAGS.source and FLAGS.gold:
        raise launcher.UsageError("--source is for translations: the words of trees are in them")
    return task_of("f1" if FLAGS.gold else "bleu").compared_files(a, b, FLAGS.reference or FLAGS.gold, FLAGS.source)


def _runs(a: str, b: str) -> Any:
    for path in (a, b):
        if os.path.isfile(path):
            raise launcher.UsageError(f"{path!r} is a file: give --reference=FILE, or --gold=FILE for trees")
    _must_not_have(["source"], "files of translations", "leave it out to compare runs")
    runs = [Run.open(path, name) for path, name in ((a, "A"), (b, "B"))]
    for run in runs:
        common_flags.check_decoding(run.hparams, FLAGS)
    common_flags.check_moved_data(FLAGS)
    launcher.load_tensorflow()
    from t2t_repro.evaluation.comparison import compared_runs
    from t2t_repro.training.parallel import set_threads

    set_threads(FLAGS.threads_per_batch)
    launcher.report_average(runs, FLAGS.average_checkpoints, FLAGS.average_best)
    options: dict[str, Any] = {name: FLAGS[name].value for name in OPTIONS}
    return compared_runs((a, b), **options)


def main() -> int:
    return launcher.run("t2t-compare", __doc__ or "", FLAGS, show, files=("A", "B"))


if __name__ == "__main__":
    sys.exit(main())
