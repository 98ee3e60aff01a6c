"""Training with BPE-dropout: resumed runs are bitwise equal, and only the training text is segmented at random."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import tensorflow as tf
from helpers.continued_runs import must_continue_bitwise
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, silent

from t2t_repro.config import TrainingOptions
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.parsing.task import TASK as PARSING
from t2t_repro.training import train_step
from t2t_repro.training.divergence import LossMonitor
from t2t_repro.training.dry_run.profiler import Profiler
from t2t_repro.training.trainer import train
from t2t_repro.translation.task import TASK as TRANSLATION

DROPOUT = replace(TINY, bpe_dropout=0.3)
STEPS = 6


@pytest.mark.parametrize(
    ("replicas", "stops"),
    [(1, (2,)), (2, range(1, STEPS))],
    ids=["one device", "two devices"],
)
@pytest.mark.slow  # test_weighted_corpora.py continues a run with BPE-dropout by default
def test_continued_run_equals_uninterrupted(data, tmp_path, on_replicas, replicas, stops):
    """The last step is in the second epoch, which has another segmentation."""
    on_replicas(replicas)
    hparams = replace(DROPOUT, train_steps=STEPS, average_checkpoints=STEPS)
    options = TrainingOptions(precision="float32", checkpoint_steps=1)
    must_continue_bitwise(
        lambda directory, report: train(PROBLEM, hparams, data, directory, options, report=report),
        tmp_path / "whole",
        STEPS,
        stops,
    )


def test_the_trainer_segments_each_epoch_differently(data, tmp_path, on_replicas, monkeypatch):
    on_replicas(1)
    taken, next_inputs = [], train_step.TrainStep.next_inputs
    monkeypatch.setattr(
        train_step.TrainStep, "next_inputs", lambda *given: taken.append(next_inputs(*given)) or taken[-1]
    )

    hparams, options = replace(DROPOUT, train_steps=40), replace(FLOAT32, train_epochs=2)
    run = train(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, report=silent)
    tokens = Counter[int]()  # of sources in each epoch; the first step of the third one is read, but not taken
    for (element,) in taken:
        tokens[int(element["position"][0])] += int(tf.math.count_nonzero(element["inputs"]))
    usual = Dataset.open(f"{data}/animals").record.splits["train"].tokens["inputs"]
    assert tokens.keys() == {0, 1, 2} and tokens[0] != tokens[1]
    assert all(1.2 * usual < tokens[epoch] < 3 * usual for epoch in (0, 1))
    with pytest.raises(ValueError, match=r"holds another run: its bpe_dropout is 0\.3, not 0\.0"):
        train(PROBLEM, replace(hparams, bpe_dropout=0), data, run.directory, options, report=silent)


def test_estimates_and_warnings_count_the_tokens_of_the_segmented_text(data, trained, on_replicas, tmp_path):
    on_replicas(1)
    dataset = Dataset.open(f"{data}/animals")
    runs = [replace(trained, hparams=hparams, directory=str(tmp_path)) for hparams in (TINY, DROPOUT)]
    usual, dropped = (Profiler(run, dataset, 330) for run in runs)
    assert dropped.window_steps > usual.window_steps and dropped.tokens.sum() > 1.2 * usual.tokens.sum()
    assert dropped._worst()[1:] == (PROBLEM.max_length,) * 2 != usual._worst()[1:]
    usual_run, dropped_run = (replace(trained, hparams=hparams) for hparams in (TINY, DROPOUT))
    one, other = (LossMonitor(run, TrainingText.of(run, dataset), silent).entropy for run in (usual_run, dropped_run))
    assert one != other


def test_targets_of_a_parser_keep_their_symbols():
    assert (TRANSLATION.segmented_sides, PARSING.segmented_sides) == (("inputs", "targets"), ("inputs",))
