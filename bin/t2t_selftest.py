"""t2t-selftest: checks a new machine, in about a minute on two cores.

  t2t-selftest

Prints the hardware and software, checks the results of computations (matrix
products against float64, replicas, reproducibility, a killed run, an export),
measures training speed and recommends options. The exit code is 0 if all checks
pass, 1 otherwise. Please include the output in a bug report.
"""

from __future__ import annotations

import json
import math
import sys

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_float(
    "seconds",
    40.0,
    "approximate seconds in which training speed is measured; 0: checks only",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.register_validator("seconds", math.isfinite, "expected a finite number of seconds", flag_values=FLAGS)
flags.DEFINE_boolean("json", False, "print JSON instead of a table", flag_values=FLAGS)


def test() -> None:
    from t2t_repro.cli.selftest_table import table
    from t2t_repro.selftest.selftest import selftest

    with launcher.stopped_by_signals():
        found = selftest(launcher.report, FLAGS.seconds)
    print(json.dumps(found, indent=2) if FLAGS.json else table(found, launcher.WIDTH))
    if found["failed"]:
        raise ValueError(
            f"{len(found['failed'])} of {len(found['checks'])} checks failed: {', '.join(found['failed'])}"
        )


def main() -> int:
    return launcher.run("t2t-selftest", __doc__ or "", FLAGS, test)


if __name__ == "__main__":
    sys.exit(main())
