"""t2t-bleu: BLEU in every common variant, and what each may be compared with.

  t2t-bleu translated.de newstest2014.de

The first file has the translations, the second the reference; line n of one is
compared with line n of the other. Both are plain UTF-8 text, neither tokenized
nor split into subwords. Both may be .gz files.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from t2t_repro.cli import launcher

FLAGS = flags.FlagValues()
flags.DEFINE_enum("language", "de", ["de", "en", "fr"], "language of the text, for Moses' tokenizer", flag_values=FLAGS)
flags.DEFINE_boolean("json", False, "print JSON instead of text", flag_values=FLAGS)


def score(hypothesis: str, reference: str) -> None:
    from t2t_repro.evaluation.bleu import score_files, table

    scores = score_files(hypothesis, reference, FLAGS.language)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if FLAGS.json else table(scores))


def main() -> int:
    return launcher.run("t2t-bleu", __doc__ or "", FLAGS, score, files=("HYPOTHESIS", "REFERENCE"))


if __name__ == "__main__":
    sys.exit(main())
