r"""t2t-ablate: trains the rows of Table 3, one run directory each, and reports.

  t2t-ablate --problem=translate_ende_wmt14 --data_dir=data --output_dir=runs
  t2t-ablate --problem=translate_ende_cldr --data_dir=data --output_dir=runs \
      --rows=A,E,big --scale=tiny --train_steps=1000 --jobs=2

The first command trains all rows. --rows takes letters of the table and names
of its hyperparameter sets. --scale=tiny divides all widths by one number and
all depths by another, the same in every row, and trains fewer and smaller
steps. t2t-trainer trains each row and scores it on the validation split. Run
the same command again to continue: finished rows are skipped.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, jobs, launcher, problem_flags
from t2t_repro.config import HParams, nearest
from t2t_repro.flops import training_flops
from t2t_repro.problem import Problem
from t2t_repro.registry import RECORDS, get_hparams
from t2t_repro.scale import SCALES
from t2t_repro.selection import must_end_at_last_step, must_have_metrics
from t2t_repro.system.processor import usable_cores

FLAGS = flags.FlagValues()
problem_flags.define(FLAGS)
common_flags.override_flag(FLAGS)
common_flags.training_flags(FLAGS, "folder for a run directory per row, and their logs")
OWN = ("rows", "scale", "jobs", "output_dir", "help")  # all others are passed to t2t-trainer
flags.DEFINE_list(
    "rows", ["all"], "ROW,...: letters of Table 3, or names of its hyperparameter sets", flag_values=FLAGS
)
flags.DEFINE_enum(
    "scale",
    "full",
    ["full", *SCALES],
    "model size of all rows; tiny: widths divided by 4, depths by 2",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "jobs", 1, "rows to train in parallel, each on its share of the cores", lower_bound=1, flag_values=FLAGS
)


def rows(asked: list[str]) -> list[str]:
    """Returns the hyperparameter sets that `asked` selects, in the order of Table 3. Raises KeyError if unknown."""
    places = {record.name: record.place for record in RECORDS.in_order() if record.bleu_dev is not None}
    letters = {place.removeprefix("Table 3 (")[0] for place in places.values() if place.startswith("Table 3 (")}
    chosen = set()
    for row in asked:
        if row not in {"all", *letters, *places}:
            raise KeyError(f"unknown row {row!r} in --rows{nearest(row, ['all', *letters, *places])}")
        chosen |= {name for name, place in places.items() if row in ("all", name) or f"({row})" in place}
    return [name for name in places if name in chosen]


def ablate() -> None:
    problem_flags.import_users_code(FLAGS)
    if not FLAGS.rows:
        raise launcher.UsageError("--rows names no row; give letters or names, such as --rows=A,big, or leave it out")
    suffix = "" if FLAGS.scale == "full" else f"@{FLAGS.scale}"
    sets = [get_hparams(row + suffix).override(common_flags.changes(FLAGS)) for row in rows(FLAGS.rows)]
    problem = problem_flags.chosen_problem(FLAGS)
    options = common_flags.training_options(FLAGS)
    must_have_metrics(problem.task.metrics, options)
    for hparams in sets:
        must_end_at_last_step(hparams, options)
    cores = usable_cores()
    if FLAGS.jobs > cores:
        raise launcher.UsageError(f"--jobs={FLAGS.jobs} is more than the {cores} available cores; give at most {cores}")
    common_flags.must_be_directory("data_dir", FLAGS.data_dir)
    common_flags.must_be_directory("output_dir", FLAGS.output_dir)
    passed_on = [FLAGS[flag].serialize() for flag in FLAGS if FLAGS[flag].present and flag not in OWN]
    passed_on = [argument for text in passed_on for argument in text.split("\n")]
    of_data = [argument for argument in passed_on if argument[2:].partition("=")[0] in problem_flags.DATA_FLAGS]

    # prepare the data once, before several trainers start
    jobs.program("t2t_datagen", of_data)
    # longest jobs first, so that no single one runs alone at the end
    sets.sort(key=lambda hparams: -training_flops(hparams, problem.vocab_size, 1, 25, 25, 25))
    commands = {hparams.name: _command(hparams, passed_on) for hparams in sets if not _done(problem, hparams)}
    launcher.report(f"{len(sets)} rows, {len(sets) - len(commands)} of them already done")
    failed = jobs.run(commands, FLAGS.jobs, FLAGS.output_dir)
    _report()
    if failed:
        raise ValueError(f"{len(failed)} of {len(sets)} rows failed: {', '.join(failed)}; see their logs")


def _command(hparams: HParams, passed_on: list[str]) -> list[str]:
    directory = os.path.join(FLAGS.output_dir, hparams.name)
    return ["t2t_trainer", *passed_on, f"--hparams={hparams.name}", f"--output_dir={directory}", "--split=validation"]


def _done(problem: Problem, hparams: HParams) -> bool:
    """Returns whether the row is fully trained and scored. Raises ValueError if its directory holds another run."""
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.evaluation.report_runs import read_run
    from t2t_repro.run import Run

    directory = os.path.join(FLAGS.output_dir, hparams.name)
    if not Run.exists(directory):
        return False
    result = read_run(directory)
    run, selection = result.run, result.training.selection
    dataset = Dataset.open(os.path.join(FLAGS.data_dir, problem.name))
    given: dict[str, Any] = {} if FLAGS.precision == "auto" else {"precision": FLAGS.precision}
    given["vocabulary_sha256"] = dataset.record.vocabulary.sha256
    run.must_equal(dataclasses.replace(run, problem=problem, hparams=hparams, seed=FLAGS.seed, **given))
    dataset.must_have_text_of(run)
    if any(getattr(run.hparams, name) != getattr(hparams, name) for name in ("beam_size", "alpha", "extra_length")):
        return False  # the trainer scores it again
    steps = hparams.train_steps
    if selection and selection.stopped_step and selection.ended_by(common_flags.training_options(FLAGS)):
        steps = selection.stopped_step
    return result.score("validation", 1).get("step", 0) >= steps


def _report() -> None:
    from t2t_repro.evaluation import report_formats, report_runs, report_tables

    results, unreadable = report_runs.read_runs(FLAGS.output_dir)
    print(report_formats.as_text(report_tables.build_tables(results), unreadable))


def main() -> int:
    return launcher.run("t2t-ablate", __doc__ or "", FLAGS, ablate, ("problem", "data_dir", "output_dir"))


if __name__ == "__main__":
    sys.exit(main())
