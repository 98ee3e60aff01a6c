"""t2t-shortlist: learns likely target subwords of each source subword.

  t2t-shortlist --output_dir=run
  t2t-decoder --output_dir=run --shortlist=run/shortlist.txt < source > target
  t2t-eval --output_dir=run --shortlist=run/shortlist.txt

With a shortlist, t2t-decoder computes the probabilities of a few thousand
subwords instead of the whole vocabulary, which is faster on a CPU. t2t-eval
shows what that costs in BLEU. A shortlist has the --first most frequent target
subwords, and --best candidates for each subword of the source, by IBM Model 1.
It is learned from the prepared data that the run was trained on.

The file is CTranslate2's vocabulary map. t2t-exporter --format=ctranslate2
takes it as --shortlist too.
"""

from __future__ import annotations

import sys

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "run directory of t2t-trainer", flag_values=FLAGS)
meaning = "FILE: file to write (default: shortlist.txt in --output_dir)"
flags.DEFINE_string("shortlist", None, meaning, flag_values=FLAGS)
common_flags.moved_data_flag(FLAGS)
for name, default, meaning in (
    ("first", 1_000, "the N most frequent target subwords are candidates of every text"),
    ("best", 20, "candidates of each source subword"),
    ("pairs", 100_000, "maximum number of training pairs to learn from"),
):
    flags.DEFINE_integer(name, default, meaning, lower_bound=1, flag_values=FLAGS)


def learn() -> None:
    run = Run.open(FLAGS.output_dir)
    path = FLAGS.shortlist or run.shortlist
    common_flags.must_be_writable("shortlist", path)
    common_flags.check_moved_data(FLAGS)
    launcher.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.preparation.learning.shortlist import learn_for

    dataset = Dataset.of_run(run, FLAGS.data_dir)
    print(learn_for(run, dataset, path, FLAGS.first, FLAGS.best, FLAGS.pairs, launcher.report))


def main() -> int:
    return launcher.run("t2t-shortlist", __doc__ or "", FLAGS, learn, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
