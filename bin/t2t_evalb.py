"""t2t-evalb: labeled bracket recall, precision and F1, computed as in EVALB.

  t2t-evalb gold.mrg parsed.mrg                        as with COLLINS.prm
  t2t-evalb gold.mrg parsed.mrg --parameters=new.prm   as with new.prm

The first file has the gold trees, the second the trees to score. Each line is a
tree in Penn Treebank brackets, and line n of one file is compared with line n
of the other. Both may be .gz files. A sentence whose words differ from the gold
sentence is counted as an error and not scored.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "parameters",
    None,
    "FILE: EVALB parameter file, which lists the labels and words to ignore (default: built-in COLLINS.prm)",
    flag_values=FLAGS,
)
flags.DEFINE_boolean("json", False, "print the summaries as JSON instead of a table", flag_values=FLAGS)


def score(gold: str, test: str) -> None:
    from t2t_repro.parsing.evalb import evalb_files, outer_bracket_note
    from t2t_repro.parsing.evalb_parameters import COLLINS, read_parameters
    from t2t_repro.parsing.evalb_table import table

    parameters = read_parameters(FLAGS.parameters) if FLAGS.parameters else COLLINS
    scores = evalb_files(gold, test, parameters)
    for row in scores.rows:
        if row.message:
            launcher.report(f"sentence {row.number}: {row.message}")
    if note := outer_bracket_note(gold, test):
        launcher.report(note)
    print(json.dumps(scores.to_dict(), indent=2) if FLAGS.json else table(scores))


def main() -> int:
    return launcher.run("t2t-evalb", __doc__ or "", FLAGS, score, files=("GOLD", "TEST"))


if __name__ == "__main__":
    sys.exit(main())
