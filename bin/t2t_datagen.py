"""t2t-datagen: learns a problem's vocabulary and writes its encoded pairs.

  t2t-datagen --problem=P --data_dir=DATA                prepares, or continues
  t2t-datagen --problem=P --data_dir=DATA --verify       checks what is there
  t2t-datagen --problem=P --data_dir=DATA --fill=25000   how full batches are

What a problem downloads goes to DATA/downloads, and may be removed afterwards.

t2t-trainer does this by itself where the data is missing.
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.cli import common_flags, launcher

FLAGS = flags.FlagValues()
common_flags.problem_flags(FLAGS)
flags.DEFINE_string("data_dir", None, "where the prepared data goes", flag_values=FLAGS)
flags.DEFINE_boolean("verify", False, "reads all that is prepared and compares its hashes", flag_values=FLAGS)
flags.DEFINE_string("beam", None, "flags of Apache Beam, whose pipeline then encodes and shuffles", flag_values=FLAGS)
flags.DEFINE_integer(
    "fill", None, "prints how full batches of so many tokens a side are", lower_bound=1, flag_values=FLAGS
)


def generate() -> None:
    common_flags.import_users_code(FLAGS)
    problem = common_flags.chosen_problem(FLAGS)
    common_flags.must_be_directory("data_dir", FLAGS.data_dir)
    launcher.load_tensorflow()
    from t2t_repro.preparation.pipeline import prepare

    beam = None if FLAGS.beam is None else FLAGS.beam.split()
    dataset = prepare(problem, FLAGS.data_dir, report=launcher.report, verify=FLAGS.verify, beam=beam)
    if FLAGS.fill:
        from t2t_repro.data.padding_statistics import table

        print(table(dataset.shards("train"), FLAGS.fill))


def main() -> int:
    return launcher.run("t2t-datagen", __doc__ or "", FLAGS, generate, required=("problem", "data_dir"))


if __name__ == "__main__":
    sys.exit(main())
