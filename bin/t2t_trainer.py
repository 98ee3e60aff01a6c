"""t2t-trainer: prepares the data where it is missing, trains, scores the result.

  t2t-trainer --problem=P --hparams=H --data_dir=DATA --output_dir=RUN

The same command again continues where the last one stopped.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from absl import flags

from t2t_repro.config import HParams
from t2t_repro.problem import Problem
from t2t_repro.run import Run

from . import _program

FLAGS = flags.FlagValues()
_program.problem_flags(FLAGS)
_program.hparams_flags(FLAGS)
flags.DEFINE_string("data_dir", None, "where the prepared data is, or goes", flag_values=FLAGS)
flags.DEFINE_string("output_dir", None, "the run: checkpoints, vocabulary, metrics", flag_values=FLAGS)
flags.DEFINE_enum("precision", "auto", ["auto", "float32", "bfloat16"], "of matrix products", flag_values=FLAGS)
flags.DEFINE_float("checkpoint_minutes", 10.0, "between two checkpoints", lower_bound=0, flag_values=FLAGS)
for _name, _default, _lowest, _meaning in (
    ("checkpoint_steps", 0, 0, "updates between two checkpoints, in place of minutes"),
    ("train_steps", None, 1, "updates in all, in place of the set's"),
    ("seed", 1, 0, "of weights, order and dropout"),
):
    flags.DEFINE_integer(_name, _default, _meaning, lower_bound=_lowest, flag_values=FLAGS)
OPTIONS = ("seed", "precision", "checkpoint_minutes", "checkpoint_steps")  # of train()


def chosen() -> tuple[Problem, HParams]:
    """What the command line asks for. Whatever is wrong with it is said here, before TensorFlow is loaded."""
    _program.import_users_code(FLAGS)
    problem, hparams = _program.chosen_problem(FLAGS), _program.chosen_hparams(FLAGS)
    if FLAGS.train_steps:
        hparams = dataclasses.replace(hparams, train_steps=FLAGS.train_steps)
    _program.must_be_directory("data_dir", FLAGS.data_dir)
    _program.must_be_directory("output_dir", FLAGS.output_dir)
    if Run.exists(FLAGS.output_dir):
        run = Run.open(FLAGS.output_dir)
        run.must_equal(dataclasses.replace(run, problem=problem, hparams=hparams, seed=FLAGS.seed))
    return problem, hparams


def train_and_score() -> None:
    problem, hparams = chosen()
    _program.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.evaluation.evaluate import evaluate, table
    from t2t_repro.training.trainer import Interrupted, train

    options = {name: FLAGS[name].value for name in OPTIONS}
    try:
        train(problem, hparams, FLAGS.data_dir, FLAGS.output_dir, **options)
    except Interrupted as stopped:
        raise _program.Stopped(str(stopped), stopped.signal) from None
    splits = Dataset.open(os.path.join(FLAGS.data_dir, problem.name)).record["splits"]
    # Table 2 is the test set with averaged checkpoints
    split = "test" if "test" in splits else "validation"
    print(table(evaluate(FLAGS.output_dir, split=split, average_checkpoints=hparams.average_checkpoints)))


def main() -> int:
    required = ("problem", "hparams", "data_dir", "output_dir")
    return _program.run("t2t-trainer", __doc__ or "", FLAGS, train_and_score, required)


if __name__ == "__main__":
    sys.exit(main())
