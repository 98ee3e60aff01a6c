r"""t2t-trainer: prepares the data if needed, trains a model and scores it.

  t2t-trainer --problem=translate_ende_cldr --hparams=tiny --data_dir=data \
      --output_dir=run

Run the same command again to continue after a stop. RUN/curves.svg shows loss,
perplexity and BLEU or F1 over the steps.

--init_from=RUN starts a new run from the weights of another one, with a new
optimizer, on other data: missing data is prepared with the vocabulary of RUN.
Its sizes (layers, d_model, ...) must be those of --hparams. The validation
split is scored before the first step. When the new run has its first
checkpoint, at step 0, RUN is no longer needed.

--dry_run estimates time, memory and cost of training in about a minute, with or
without prepared data. It neither trains nor writes. Its exit code is 0 if
training fits this machine, 1 if not.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from absl import flags

from t2t_repro.cli import child_process, common_flags, launcher, problem_flags
from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.problem import SPLITS, Problem
from t2t_repro.run import Run
from t2t_repro.selection import must_end_at_last_step, must_have_metrics
from t2t_repro.system.signals import Interrupted

FLAGS = flags.FlagValues()
problem_flags.define(FLAGS)
common_flags.hparams_flags(FLAGS)
common_flags.training_flags(FLAGS)
flags.DEFINE_string(
    "init_from",
    None,
    "RUN: start from the weights and vocabulary of a run, or of RUN/checkpoints/ckpt-STEP",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "split",
    "test",
    SPLITS[1:],
    "split of the final score: test (averaged checkpoints) or validation (last checkpoint)",
    flag_values=FLAGS,
)
flags.DEFINE_boolean(
    "average_best", False, "score the recommended checkpoints at the end, instead of the last ones", flag_values=FLAGS
)
flags.DEFINE_boolean(
    "moving_average", False, "score the moving average of the weights (ema_decay) at the end", flag_values=FLAGS
)
flags.DEFINE_boolean(
    "dry_run", False, "estimate size, speed, time, memory, disk and cost; do not train", flag_values=FLAGS
)


def chosen() -> tuple[Problem, HParams]:
    """Returns the problem and hyperparameters of the command line. Errors in it raise here, before TensorFlow loads."""
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.training.checkpointing.parent import find_origin
    from t2t_repro.training.distributed.rendezvous import Cluster

    problem_flags.import_users_code(FLAGS)
    hparams = common_flags.chosen_hparams(FLAGS)
    problem = problem_flags.chosen_problem(FLAGS, needs_text=not FLAGS.dry_run)
    common_flags.must_be_directory("data_dir", FLAGS.data_dir)
    common_flags.must_be_directory("output_dir", FLAGS.output_dir)
    parent = None
    is_chief = Cluster.from_environment().is_chief
    directory = os.path.join(FLAGS.data_dir, problem.name)
    prepared = Dataset.open(directory) if Dataset.exists(directory) else None
    if FLAGS.init_from is not None and is_chief:
        origin = find_origin(FLAGS.init_from, problem, hparams, FLAGS.output_dir)
        problem, parent = problem_flags.with_vocabulary_of(origin.vocabulary_of, problem, FLAGS), origin.parent
        if prepared:
            prepared.must_have_vocabulary_of(origin.vocabulary_of)
    if problem.is_weighted and prepared:
        from t2t_repro.data.corpus_weights import corpus_weights

        corpus_weights(problem, prepared)
    if is_chief and Run.exists(FLAGS.output_dir):  # the others neither find the parent nor write the run
        run = Run.open(FLAGS.output_dir)
        run.must_equal(dataclasses.replace(run, problem=problem, hparams=hparams, seed=FLAGS.seed, parent=parent))
    return problem, hparams


def check_validation(problem: Problem, hparams: HParams, options: TrainingOptions) -> None:
    """Raises an error for an unknown metric, and for validation sets that are missing or have another vocabulary.

    Raises one too if training may end before the learning rate has decayed, or if the final score is that of a moving
    average that training does not keep.

    If the data is not prepared yet, the vocabularies are compared after it is.
    """
    must_have_metrics(problem.task.metrics, options)
    must_end_at_last_step(hparams, options)
    if FLAGS.moving_average and not hparams.ema_decay:
        raise launcher.UsageError("--moving_average needs one: give --override=ema_decay=0.999, or leave it out")
    if not options.also_validate:
        return
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.data.validation_sets import must_share_vocabulary, open_validation_sets

    sets, directory = open_validation_sets(options.also_validate), os.path.join(FLAGS.data_dir, problem.name)
    if Dataset.exists(directory):
        must_share_vocabulary(sets, Dataset.open(directory).record.vocabulary.sha256)


def estimate(problem: Problem, hparams: HParams, options: TrainingOptions) -> None:
    from t2t_repro.system.heap import one_heap
    from t2t_repro.system.out_of_memory import OutOfMemory

    # TensorFlow's communication between devices does not survive an out-of-memory error: one process per attempt
    microbatch_tokens, again = child_process.continue_in_child(options.microbatch_tokens)
    options = dataclasses.replace(options, microbatch_tokens=microbatch_tokens)
    one_heap()
    launcher.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.evaluation.validation_preview import ValidationPreview
    from t2t_repro.preparation.provenance import check_same_data
    from t2t_repro.training.dry_run.estimate import dry_run

    directory = os.path.join(FLAGS.data_dir, problem.name)
    if Dataset.exists(directory):
        check_same_data(Dataset.open(directory), problem)
    how: dict[str, Any] = {"init_from": FLAGS.init_from, "preview": ValidationPreview}
    try:
        dry_run(problem, hparams, FLAGS.data_dir, FLAGS.output_dir, options, **how)
    except OutOfMemory as error:
        again(error.microbatch_tokens)


def train_and_score() -> None:
    from t2t_repro.system.heap import one_heap
    from t2t_repro.system.out_of_memory import OutOfMemory
    from t2t_repro.training.distributed.rendezvous import Cluster

    if not FLAGS.dry_run:
        launcher.use_huge_pages()  # before anything is reported: it starts this process again
    problem, hparams = chosen()
    options = common_flags.training_options(FLAGS)
    check_validation(problem, hparams, options)
    if FLAGS.dry_run:
        estimate(problem, hparams, options)
        return
    cluster = Cluster.from_environment()
    one_heap()
    launcher.load_tensorflow()
    from t2t_repro.data.dataset import Dataset
    from t2t_repro.evaluation.evaluator import evaluate, table
    from t2t_repro.evaluation.validation_preview import ValidationPreview
    from t2t_repro.preparation.pipeline import prepare
    from t2t_repro.training.trainer import train

    how: dict[str, Any] = {"init_from": FLAGS.init_from, "prepare": prepare, "preview": ValidationPreview}
    try:
        train(problem, hparams, FLAGS.data_dir, FLAGS.output_dir, options, **how)
    except OutOfMemory as error:
        launcher.report(f"t2t-trainer: {error}")
        launcher.restart()
    except Interrupted as stopped:
        raise launcher.Stopped(str(stopped), stopped.signal) from None
    if not cluster.is_chief:
        launcher.report("done; the chief holds the run and scores it")
        return
    dataset = Dataset.open(os.path.join(FLAGS.data_dir, problem.name))
    # as in the paper: test set with averaged checkpoints (Table 2), validation set with the last one (Table 3)
    split = FLAGS.split if dataset.has("test") else "validation"
    single = split == "validation" or FLAGS.moving_average
    weights: dict[str, Any] = {"average_checkpoints": 1 if single else hparams.average_checkpoints}
    if FLAGS.average_best:
        weights = {"average_best": True}
    if FLAGS.moving_average:
        weights["moving_average"] = True
    scores = evaluate(FLAGS.output_dir, split=split, **weights)
    launcher.keep_scores(FLAGS.output_dir, scores)
    print(table(scores))


def main() -> int:
    required = ("problem", "hparams", "data_dir", "output_dir")
    return launcher.run("t2t-trainer", __doc__ or "", FLAGS, train_and_score, required)


if __name__ == "__main__":
    sys.exit(main())
