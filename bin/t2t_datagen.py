r"""t2t-datagen: learns the vocabulary of a problem and encodes its text.

  t2t-datagen --problem=translate_ende_cldr --data_dir=data
  t2t-datagen --problem=translate_files --data_dir=data --vocab_size=6000 \
      --train_source=train.en --train_target=train.de
  t2t-datagen --problem=translate_files --data_dir=data --verify

--vocabulary_from=RUN encodes the text with the vocabulary of a run, so that
t2t-trainer --init_from=RUN can train on it. Every Unicode text can be encoded.

Run the same command again to continue after a stop. Downloaded archives go to
downloads/ in --data_dir; you may remove them when the data is prepared.
t2t-trainer prepares missing data itself.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher, problem_flags
from t2t_repro.config import LARGEST_INT
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
problem_flags.define(FLAGS)
flags.DEFINE_string("data_dir", None, "directory of the prepared data", flag_values=FLAGS)
flags.DEFINE_string(
    "vocabulary_from", None, "RUN: encode with the vocabulary of this run, instead of learning one", flag_values=FLAGS
)
flags.DEFINE_boolean("verify", False, "read all prepared files and compare their SHA-256", flag_values=FLAGS)
flags.DEFINE_string(
    "beam", None, "FLAGS: encode and shuffle with Apache Beam, run with these flags of Beam", flag_values=FLAGS
)
flags.DEFINE_integer(
    "fill",
    None,
    "print the padding efficiency of batches of N tokens per side",
    lower_bound=1,
    upper_bound=LARGEST_INT,
    flag_values=FLAGS,
)


def generate() -> None:
    problem_flags.import_users_code(FLAGS)
    problem = problem_flags.chosen_problem(FLAGS)
    common_flags.must_be_directory("data_dir", FLAGS.data_dir)
    if FLAGS.vocabulary_from is not None:
        problem = problem_flags.with_vocabulary_of(Run.open(FLAGS.vocabulary_from, "vocabulary_from"), problem, FLAGS)
    from t2t_repro.system.heap import one_heap

    one_heap()
    launcher.load_tensorflow()
    from t2t_repro.preparation.pipeline import prepare

    beam = None if FLAGS.beam is None else FLAGS.beam.split()
    how: dict[str, Any] = {"verify": FLAGS.verify, "beam": beam, "vocabulary_from": FLAGS.vocabulary_from}
    dataset = prepare(problem, FLAGS.data_dir, report=launcher.report, **how)
    if FLAGS.fill:
        from t2t_repro.data.corpus_weights import corpus_weights
        from t2t_repro.data.padding_statistics import table

        try:
            print(table(dataset.shards("train"), FLAGS.fill, corpus_weights(problem, dataset)))
        except ValueError as error:
            raise ValueError(str(error).replace("batch_tokens", "--fill")) from None


def main() -> int:
    return launcher.run("t2t-datagen", __doc__ or "", FLAGS, generate, required=("problem", "data_dir"))


if __name__ == "__main__":
    sys.exit(main())
