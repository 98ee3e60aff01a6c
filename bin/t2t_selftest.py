"""t2t-selftest: what to run first on a new machine, about a minute on two cores.

  t2t-selftest

Prints what the machine has, checks that it computes right (products against
float64, replicas, repeatability, a killed run, an export), times training, and
recommends options. Exit code 0 if everything is right, 1 if a check failed.
Start a bug report with its output.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_float(
    "seconds", 40.0, "for the speed of training, about; 0: checks alone", lower_bound=0, flag_values=FLAGS
)
flags.DEFINE_boolean("json", False, "prints JSON rather than a table", flag_values=FLAGS)


def stop(number: int, _: Any) -> None:
    raise launcher.Stopped("stopped by SIGTERM", number)


def test() -> None:
    from t2t_repro.cli.selftest_table import table
    from t2t_repro.selftest.selftest import selftest

    signal.signal(signal.SIGTERM, stop)
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
