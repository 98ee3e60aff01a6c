"""t2t-avg-checkpoints: averages the last checkpoints of a run into a new run.

  t2t-avg-checkpoints --output_dir=run --average_checkpoints=5 --average_dir=avg

The new run can be decoded, scored and exported like any run. It cannot
continue, but t2t-trainer --init_from=avg starts another run from it.
"""

from __future__ import annotations

import os
import sys

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "run directory of t2t-trainer", flag_values=FLAGS)
flags.DEFINE_string("average_dir", None, "directory of the new run", flag_values=FLAGS)
common_flags.average_flags(FLAGS, None)


def write() -> None:
    Run.open(FLAGS.output_dir)
    common_flags.must_be_directory("average_dir", FLAGS.average_dir)
    launcher.load_tensorflow()
    from t2t_repro.training.checkpointing.averaging import average

    weights = FLAGS.average_checkpoints, FLAGS.average_best, FLAGS.moving_average
    with launcher.stopped_by_signals():
        averaged = average(FLAGS.output_dir, FLAGS.average_dir, *weights)
    kind = "the moving averages in " * FLAGS.moving_average
    print(f"{FLAGS.average_dir}: the mean of {kind}{', '.join(map(os.path.basename, averaged))}")


def main() -> int:
    return launcher.run("t2t-avg-checkpoints", __doc__ or "", FLAGS, write, required=("output_dir", "average_dir"))


if __name__ == "__main__":
    sys.exit(main())
