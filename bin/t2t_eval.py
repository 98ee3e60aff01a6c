"""t2t-eval: scores a run: BLEU with its signature, chrF, loss and perplexity.

  t2t-eval --output_dir=run --split=test --average_checkpoints=5

A parsing run is scored by bracket F1 instead of BLEU and chrF. The prepared
data that the run was trained on must still exist.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from absl import flags

from t2t_repro.cli import common_flags, launcher
from t2t_repro.problem import SPLITS
from t2t_repro.run import Run

FLAGS = flags.FlagValues()
flags.DEFINE_string("output_dir", None, "run directory of t2t-trainer", flag_values=FLAGS)
flags.DEFINE_enum("split", "test", SPLITS, "split to score on", flag_values=FLAGS)
common_flags.moved_data_flag(FLAGS)
common_flags.decoding_flags(FLAGS)
common_flags.shortlist_flag(FLAGS)
flags.DEFINE_boolean("json", False, "print JSON instead of a table", flag_values=FLAGS)
OPTIONS = (  # of evaluate()
    *("split", "average_checkpoints", "average_best", "moving_average"),
    *("beam_size", "alpha", "int8", "precision", "data_dir", "shortlist"),
)


def score() -> None:
    if FLAGS["output_dir"].present > 1:  # t2t-decoder takes several, as an ensemble
        raise launcher.UsageError("--output_dir is given twice: a run is scored alone")
    run = Run.open(FLAGS.output_dir)
    common_flags.check_decoding(run.hparams, FLAGS)
    common_flags.check_shortlist(FLAGS)
    common_flags.check_moved_data(FLAGS)
    launcher.report_average([run], FLAGS.average_checkpoints, FLAGS.average_best)
    from t2t_repro.data.dataset import Dataset

    Dataset.of_run(run, FLAGS.data_dir).shards(FLAGS.split)  # an error in it needs no TensorFlow
    launcher.load_tensorflow()
    from t2t_repro.evaluation.evaluator import evaluate, table
    from t2t_repro.training.parallel import set_threads

    set_threads(FLAGS.threads_per_batch)
    options: dict[str, Any] = {name: FLAGS[name].value for name in OPTIONS}
    scores = evaluate(FLAGS.output_dir, **options)
    launcher.keep_scores(FLAGS.output_dir, scores)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if FLAGS.json else table(scores))


def main() -> int:
    return launcher.run("t2t-eval", __doc__ or "", FLAGS, score, required=("output_dir",))


if __name__ == "__main__":
    sys.exit(main())
