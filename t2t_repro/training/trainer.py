"""`train` trains a problem with a hyperparameter set into a run directory, or continues that run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import nullcontext

import tensorflow as tf

from t2t_repro.config import HParams, TrainingOptions
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.data.validation_sets import must_share_vocabulary, open_validation_sets
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.problem import Problem
from t2t_repro.run import Run, TrainingData
from t2t_repro.selection import must_end_at_last_step, must_have_metrics
from t2t_repro.system.log import report as log
from t2t_repro.system.signals import caught_signals
from t2t_repro.training import precision as precisions
from t2t_repro.training.checkpointing.checkpoints import exclusive_lock
from t2t_repro.training.checkpointing.damage import must_be_intact
from t2t_repro.training.checkpointing.parent import checkpoint_of, find_origin
from t2t_repro.training.distributed import coordination
from t2t_repro.training.distributed.rendezvous import Cluster, Rendezvous
from t2t_repro.training.parallel import set_training_threads
from t2t_repro.training.train_step import validate_settings
from t2t_repro.training.training_loop import TrainingLoop
from t2t_repro.training.validation import MakePreview

Prepare = Callable[..., Dataset]  # as `preparation.pipeline.prepare`


def train(
    problem: Problem,
    hparams: HParams,
    data_dir: str,
    output_dir: str,
    options: TrainingOptions = TrainingOptions(),  # noqa: B008 (frozen)
    *,
    init_from: str | None = None,
    prepare: Prepare | None = None,
    report: Callable[[str], None] = log,
    preview: MakePreview | None = None,
) -> Run:
    """Trains for `hparams.train_steps` steps in total, or continues the run in `output_dir`.

    With `init_from`, a new run starts at step 0 from the weights of another run, with a new optimizer and a new
    schedule, and with the vocabulary of that run (`training.checkpointing.parent.find_origin`).

    A checkpoint is written every `checkpoint_steps` steps, after `checkpoint_minutes` without one, and at the end.
    Training ends earlier by `patience`, `train_minutes` or `train_epochs` of `options`. The same call then only reports
    why, and with larger limits continues. With `hparams.decay_steps` it ends at `train_steps` only.

    If TF_CONFIG names several machines, each machine makes the same call. Only the chief prepares data and writes.

    If memory runs out in a step on a single device, training continues with micro-batches of half the size. On several
    devices the call raises `OutOfMemory`; the same call in another process continues with smaller micro-batches.

    Args:
      problem: the problem to train on.
      hparams: the hyperparameters.
      data_dir: the folder of prepared data.
      output_dir: the run directory.
      options: seed, precision, checkpoints, validation, an early end, micro-batches and XLA.
      init_from: the run, or its checkpoint `RUN/checkpoints/ckpt-STEP`, whose weights a new run starts from.
      prepare: called first, as `prepare(problem, data_dir, report)`, with `vocabulary_from` as well if a run gives the
        vocabulary. If None, the data must already be prepared.
      report: called with each line of progress.
      preview: makes a function of the model. Its result is reported with the validation loss.

    Raises:
      ValueError: if `output_dir` holds another run, if weights or vocabulary of `init_from` do not fit, if corpus
        weights or BPE-dropout do not fit the data, if a validation set has another vocabulary or there is none to
        decide by, if training with `decay_steps` may end early, or if memory runs out even with the smallest
        micro-batches.
      FileNotFoundError: if `init_from` is not a run with a checkpoint.
      TrainingDiverged: if the loss diverges.
      ConnectionError: if another machine does not connect, has another configuration, or disconnects.
      Interrupted: after SIGINT, SIGTERM or SIGHUP, once the current step is finished and saved.
    """
    validate_settings(problem, hparams)
    must_have_metrics(problem.task.metrics, options)
    must_end_at_last_step(hparams, options)
    precision = precisions.resolve_for_run(options.precision, output_dir)  # checked before hours of preparation
    steps = options.checkpoint_steps or hparams.checkpoint_steps
    hparams = dataclasses.replace(hparams, checkpoint_steps=steps)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    cluster = Cluster.from_environment()
    if cluster.size == 1 and not options.microbatch_tokens and not options.jit_compile:
        set_training_threads(hparams)
    origin = None
    if init_from is not None and cluster.is_chief:
        origin = find_origin(init_from, problem, hparams, output_dir)
        problem = origin.problem
        if not _has_checkpoint(output_dir):
            must_be_intact(checkpoint_of(origin.parent))  # before hours of preparation
    others = open_validation_sets(options.also_validate if cluster.is_chief else ())
    with Rendezvous(cluster, report) as rendezvous:
        given = {"vocabulary_from": origin.vocabulary_of.directory} if origin else {}
        dataset = prepare(problem, data_dir, report, **given) if prepare and cluster.is_chief else None
        rendezvous.wait_for_chief()
        dataset = dataset or coordination.open_prepared(problem, data_dir)
        vocabulary = Vocabulary(dataset.vocabulary)
        if origin:
            dataset.must_have_vocabulary_of(origin.vocabulary_of)
        must_share_vocabulary(others, vocabulary.sha256)
        if options.selects or options.also_validate:
            dataset.shards("validation")  # raises if there is none
        if init_from is not None and origin and not _has_checkpoint(output_dir):  # the parent may have trained on
            origin = find_origin(init_from, problem, hparams, output_dir)
            must_be_intact(checkpoint_of(origin.parent))
        parent = origin.parent if origin else None
        run = Run(output_dir, problem, hparams, data_dir, options.seed, precision, vocabulary.sha256, parent)
        text = TrainingText.of(run, dataset)  # raises if weights or vocabulary do not fit, before the run starts
        precisions.allow_tf32(run.precision == "tf32")
        if cluster.is_chief:
            run.can_start()
            os.makedirs(output_dir, exist_ok=True)
        with exclusive_lock(run) if cluster.is_chief else nullcontext():
            if cluster.is_chief:
                if Run.exists(output_dir):
                    dataset.must_have_text_of(Run.open(output_dir))  # before `start` writes run.json
                run.start(dataset.vocabulary)
                data = TrainingData.from_json(dataset.condition())
                run.note(dataclasses.replace(run.training, data=data))
            rendezvous.check_consistent(coordination.run_config(run, dataset, options))
            with caught_signals() as caught, coordination.worker_failures_named(cluster):
                TrainingLoop(run, cluster, dataset, text, vocabulary.size, options, report, preview, others).train(
                    caught
                )
    return run


def _has_checkpoint(output_dir: str) -> bool:
    return Run.exists(output_dir) and os.path.exists(Run.open(output_dir).checkpoint_list)
