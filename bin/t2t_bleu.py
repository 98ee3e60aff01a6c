"""t2t-bleu: BLEU of two files in every form in use, and what each compares with.

  t2t-bleu HYPOTHESIS REFERENCE

Line n of one file is the translation that line n of the other should be: plain
text in UTF-8, neither tokenized nor split into subwords; .gz is read too.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_enum("language", "de", ["de", "en", "fr"], "of the text, for the paper's recipe", flag_values=FLAGS)
flags.DEFINE_boolean("json", False, "prints JSON rather than text", flag_values=FLAGS)


def score(hypothesis: str, reference: str) -> None:
    from t2t_repro.evaluation.bleu import score_files, table

    scores = score_files(hypothesis, reference, FLAGS.language)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if FLAGS.json else table(scores))


def main() -> int:
    return launcher.run("t2t-bleu", __doc__ or "", FLAGS, score, files=("HYPOTHESIS", "REFERENCE"))


if __name__ == "__main__":
    sys.exit(main())
