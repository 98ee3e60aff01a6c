"""t2t-evalb: labelled bracket recall, precision and F1, as EVALB counts them.

  t2t-evalb GOLD TEST                         with the parameters of COLLINS.prm
  t2t-evalb GOLD TEST --parameters=NEW.prm    with those of a file of EVALB's

One tree in Penn Treebank bracketing on each line, in the same order; .gz is
read too. Sentences of other words than gold's are errors: counted, not scored.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_string("parameters", None, "parameter file of EVALB: what not to count", flag_values=FLAGS)
flags.DEFINE_boolean("json", False, "prints the summaries as JSON rather than a table", flag_values=FLAGS)


def score(gold: str, test: str) -> None:
    from t2t_repro.parsing.evalb import evalb_files, outer_brackets_differ
    from t2t_repro.parsing.evalb_parameters import COLLINS, read_parameters
    from t2t_repro.parsing.evalb_table import table

    parameters = read_parameters(FLAGS.parameters) if FLAGS.parameters else COLLINS
    scores = evalb_files(gold, test, parameters)
    for row in scores.rows:
        if row.message:
            launcher.report(f"sentence {row.number}: {row.message}")
    if outer_brackets_differ(gold, test):
        launcher.report("one file has an unlabelled bracket around its sentences, ( (S ...)), and EVALB counts it")
    print(json.dumps(scores.to_dict(), indent=2) if FLAGS.json else table(scores))


def main() -> int:
    return launcher.run("t2t-evalb", __doc__ or "", FLAGS, score, files=("GOLD", "TEST"))


if __name__ == "__main__":
    sys.exit(main())
