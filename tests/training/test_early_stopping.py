"""Ends of training by validation scores, passes and minutes; the checkpoints that are kept; kills in between."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
from helpers.tiny_model import FLOAT32, PROBLEM, TINY, on_cpus, silent, train_pairs, values

from t2t_repro.config import TrainingOptions
from t2t_repro.evaluation.evaluator import evaluate
from t2t_repro.evaluation.validation_preview import ValidationPreview
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Generated
from t2t_repro.run import Run
from t2t_repro.system.signals import Interrupted
from t2t_repro.training import metrics, training_loop
from t2t_repro.training.checkpointing.checkpoint_list import paths, to_average
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.trainer import train
from t2t_repro.training.validation import Stopping, Validation

HPARAMS = replace(TINY, train_steps=20, average_checkpoints=2)
OPTIONS = replace(FLOAT32, checkpoint_steps=1, patience=6, keep_best=2)
PERPLEXITIES = {1: 3.0, 2: 2.0, 3: 9.0, 4: 4.0, 5: 5.0, 6: 6.0, 7: 7.0, 8: 8.0, 9: 1.5, 10: 1.8}
MEAN = 1.9  # perplexity of the mean of the best
KEPT = [1, 2, 4, 5, 6, 7, 8]  # the two best, and the last five


@pytest.fixture(autouse=True)
def one_cpu(on_replicas):
    on_replicas(1)


def script(patch: pytest.MonkeyPatch) -> list[int]:
    """Replaces validation by `PERPLEXITIES`. Returns the list of steps that were scored."""
    scored: list[int] = []

    def score(self, step, logger, decodes=False):
        scored.append(step)
        return {"perplexity": PERPLEXITIES.get(step, 9.0)}

    patch.setattr(Validation, "__call__", score)
    patch.setattr(Validation, "score", lambda self, metric: MEAN)
    return scored


@pytest.fixture
def scripted(monkeypatch) -> list[int]:
    return script(monkeypatch)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> tuple[Run, list[str], list[int]]:
    """A run that nothing disturbed, its lines, and the steps that were scored. Do not change it."""
    said: list[str] = []
    with on_cpus(1) as patch:
        scored = script(patch)
        directory = str(tmp_path_factory.mktemp("whole") / "RUN")
        return train(PROBLEM, HPARAMS, data, directory, OPTIONS, report=said.append), said, scored


@pytest.fixture
def copied(whole, tmp_path) -> Run:
    """A copy of that run."""
    return replace(whole[0], directory=shutil.copytree(whole[0].directory, str(tmp_path / "RUN")))


def steps_of(checkpoints) -> list[int]:
    return [int(path.rpartition("-")[2]) for path in checkpoints]


def state(run: Run) -> dict[str, object]:
    """Returns what a run decided, and the variables of its newest checkpoint except the seconds."""
    newest = steps_of(paths(run))[-1]
    found = {name: array.tobytes() for name, array in values(run, newest).items() if "spent" not in name}
    return found | {"selection": run.training.selection, "kept": steps_of(paths(run)), "step": run.training.step}


def test_patience_ends_training_and_the_best_are_kept(data, whole, copied, scripted):
    run, said, scored = whole
    why = "6 scores in a row are no better than the validation perplexity 2.00 of step 2 (patience=6)"
    assert said[-2] == f"ended at step 8 of 20: {why}"
    why = "the mean of the last 2 has 1.90; the best one is ckpt-2, validation perplexity 2.00, the lowest of 8"
    best = "the mean of ckpt-1 and ckpt-2, the best 2, which has 1.90"
    assert said[-1] == f"recommended: {best}; {why}; `average_best` loads it"
    assert steps_of(paths(run)) == KEPT and run.last_step == run.training.step == 8
    assert steps_of(to_average(run, 1, best=True)) == [1, 2] == steps_of(to_average(run, 2, best=True))
    assert steps_of(to_average(run, 2)) == [7, 8]
    selection = run.training.selection
    assert (selection.stopped_step, selection.recommended_steps) == (8, (1, 2))

    again: list[str] = []
    train(PROBLEM, HPARAMS, data, copied.directory, OPTIONS, report=again.append)
    assert state(copied) == state(run) and again[-2:] == said[-2:]
    assert scored == list(range(1, 9)) and scripted == []


def test_more_patience_continues(data, copied, scripted):
    hparams, options = replace(HPARAMS, train_steps=10), replace(OPTIONS, patience=7)
    run = train(PROBLEM, hparams, data, copied.directory, options, report=silent)
    selection = run.training.selection
    assert run.training.step == run.last_step == 10 and selection.stopped_step is None and selection.reason is None
    assert selection.recommended_steps == (9,) and steps_of(paths(run)) == [6, 7, 8, 9, 10]
    assert scripted == [9, 10]


KILLS = [  # the call of each start that ends the process
    (Checkpoints, "save", 4),
    (training_loop.TrainingLoop, "_validate", 1),  # step 4 is saved, but not scored
    (Stopping, "note_scores", 1),
    (Checkpoints, "remove_except", 1),  # scored, but the others are not removed
    (training_loop.TrainingLoop, "record_progress", 5),  # step 8, the last one, is saved, but run.json lacks it
    (training_loop.TrainingLoop, "_validate", 1),  # it is still not scored
    (Stopping, "conclude", 1),  # ended, but not reported
]


@pytest.mark.slow
def test_kills_change_neither_the_end_nor_the_choice(data, tmp_path, whole, scripted, monkeypatch):
    """The process ends at one call after another. The same call of `train` then has the result of an undisturbed
    run."""
    reached = []
    for owner, name, call in KILLS:
        original, calls = getattr(owner, name), itertools.count(1)

        def killed(*arguments, original=original, calls=calls, call=call, **named):
            if next(calls) == call:
                raise SystemExit
            return original(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(SystemExit):
                train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), OPTIONS, report=silent)
        reached.append(steps_of(paths(Run.open(str(tmp_path / "RUN"))))[-1])
    assert reached == [3, 4, 4, 4, 8, 8, 8]
    run = train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), OPTIONS, report=silent)
    assert state(run) == state(whole[0])


def test_another_deciding_metric_keeps_the_best_of_before(data, copied, scripted, monkeypatch):
    """The newest checkpoint gets a score by that metric. Those that are best by perplexity stay."""
    options, bleu = replace(OPTIONS, validate_by="bleu", patience=0), {"perplexity": 9.0, "bleu": 12.0}
    monkeypatch.setattr(Validation, "__call__", lambda self, step, logger, decodes=False: bleu)
    said: list[str] = []
    hparams = replace(HPARAMS, train_steps=8)
    run = train(PROBLEM, hparams, data, copied.directory, options, report=said.append, preview=ValidationPreview)
    assert steps_of(paths(run))[0] == 2 and run.training.selection.scores["bleu"] == {"8": 12.0}
    assert said[-1].startswith("recommended: ckpt-8, validation BLEU 12.00, the highest of 1")
    assert steps_of(to_average(run, 2, best=True)) == [8]


def test_more_checkpoints_to_keep_are_the_best_that_exist(data, copied, scripted):
    options = replace(OPTIONS, patience=0, keep_best=4)
    run = train(PROBLEM, replace(HPARAMS, train_steps=15), data, copied.directory, options, report=silent)
    assert steps_of(paths(run)) == [1, 2, 9, 10, 11, 12, 13, 14, 15]


def test_a_damaged_checkpoint_of_the_mean_is_set_aside(data, copied, scripted):
    (path,) = Path(copied.checkpoints).glob("ckpt-2.data*")
    path.write_bytes(path.read_bytes()[:100])
    said: list[str] = []
    run = train(PROBLEM, HPARAMS, data, copied.directory, OPTIONS, report=said.append)
    assert sum("ckpt-2 is damaged" in line and "renamed to damaged-ckpt-2" in line for line in said) == 1
    assert steps_of(paths(run)) == [1, 4, 5, 6, 7, 8] and run.training.selection.recommended_steps == (1, 4)


def test_other_validation_text_is_refused(data, copied, tmp_path):
    """Its scores cannot be compared with those so far."""

    def pairs():
        return list(itertools.islice(train_pairs(), 40))

    other = replace(PROBLEM, validation=(Generated(pairs),))
    prepare(other, str(tmp_path / "other"), silent)
    with pytest.raises(ValueError, match="RUN' was validated on other validation text than that in .*other/animals'"):
        train(PROBLEM, HPARAMS, str(tmp_path / "other"), copied.directory, OPTIONS, report=silent)


def test_checkpoints_of_the_clock_do_not_count(data, tmp_path, scripted):
    """Every step is saved and scored, but only every second one counts."""
    options = replace(OPTIONS, checkpoint_steps=2, checkpoint_minutes=1e-9, patience=3)
    run = train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options, report=silent)
    assert scripted == list(range(1, 9)) and run.training.selection.steps() == [2, 4, 6, 8]
    assert run.last_step == 8


def test_a_run_that_asks_for_nothing_keeps_the_last_checkpoints(data, tmp_path, scripted):
    said: list[str] = []
    options = replace(FLOAT32, checkpoint_steps=1)
    run = train(PROBLEM, replace(HPARAMS, train_steps=8), data, str(tmp_path / "RUN"), options, report=said.append)
    assert steps_of(paths(run)) == [4, 5, 6, 7, 8] and not [line for line in said if "recommended" in line]
    assert steps_of(to_average(run, 1, best=True)) == [4]  # of those that exist


def test_epochs_end_training(data, tmp_path):
    """An epoch has three steps. The last step is a regular one, and the next call takes no further step."""
    said: list[str] = []
    options = replace(FLOAT32, checkpoint_steps=4, train_epochs=2)
    run = train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options, report=said.append)
    assert said[-1] == "ended at step 6 of 20: train_epochs=2 passes over the data are done"
    assert steps_of(paths(run)) == [4, 6] == steps_of(to_average(run, 2)) and run.last_step == 6
    assert run.training.selection.steps() == [4, 6]
    before, lines = state(run), Path(run.metrics).read_text()
    train(PROBLEM, HPARAMS, data, run.directory, options, report=silent)
    assert state(run) == before and Path(run.metrics).read_text() == lines

    train(PROBLEM, HPARAMS, data, run.directory, replace(options, train_epochs=3), report=silent)
    assert run.last_step == 9


def test_minutes_end_training(data, tmp_path, scripted, monkeypatch):
    """They count over all starts: the next call takes no step, and one with more minutes continues."""
    ticks = itertools.count(step=0.25)  # each look at the clock takes a quarter of a second
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    said: list[str] = []
    hparams, options = replace(HPARAMS, train_steps=10**6), replace(FLOAT32, train_minutes=0.05)
    run = train(PROBLEM, hparams, data, str(tmp_path / "RUN"), options, report=said.append)
    step = run.training.step
    assert said[-1] == f"ended at step {step:,} of 1,000,000: train_minutes=0.05 are over"
    assert 0 < step < 10**6 and run.training.seconds >= 3 and run.last_step == step
    assert scripted == [step] == run.training.selection.steps()
    train(PROBLEM, hparams, data, run.directory, options, report=silent)
    assert run.training.step == step
    more = replace(options, train_minutes=run.training.seconds / 60 + 0.05)
    train(PROBLEM, hparams, data, run.directory, more, report=silent)
    assert run.training.step == run.last_step > step


def test_minutes_that_pass_during_validation_end_training_once(data, tmp_path, monkeypatch):
    """The checkpoint is older than its scores, so its time is below the limit: the next call takes no step either."""
    hour = itertools.count()
    ticks = SimpleNamespace(monotonic=lambda: 3_600 * next(hour) if passing else 0.0)
    passing: list[bool] = []
    monkeypatch.setattr(metrics, "time", ticks)

    def score(self, step, logger, decodes=False):
        passing.append(True)
        return {"perplexity": 2.0}

    monkeypatch.setattr(Validation, "__call__", score)
    options = replace(FLOAT32, checkpoint_steps=2, train_minutes=1)
    run = train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options, report=silent)
    assert run.training.step == 2 == run.last_step and run.training.seconds == 0
    passing.clear()
    said: list[str] = []
    train(PROBLEM, HPARAMS, data, run.directory, options, report=said.append)
    assert run.training.step == 2 and said[-1] == "ended at step 2 of 20: train_minutes=1 are over"
    train(PROBLEM, HPARAMS, data, run.directory, replace(options, train_minutes=2), report=silent)
    assert run.training.step == 4


def test_no_patience_without_validation_text(tmp_path, data, monkeypatch):
    from t2t_repro.data.dataset import Dataset

    dataset = Dataset.open(os.path.join(data, PROBLEM.name))
    splits = {name: split for name, split in dataset.record.splits.items() if name != "validation"}
    bare = replace(dataset, record=replace(dataset.record, splits=splits))
    with pytest.raises(ValueError, match="problem 'animals' has no validation text"):
        train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), OPTIONS, prepare=lambda *_: bare, report=silent)
    assert not (tmp_path / "RUN").exists()


# Scores of decoded text.


@pytest.fixture(scope="module")
def decoded(data, tmp_path_factory):
    """Returns a run of 4 steps that scores BLEU and chrF at every second one and at the end, and its lines."""
    said: list[str] = []
    options = TrainingOptions(
        precision="float32", checkpoint_steps=1, validate_metrics=("chrf",), validate_by="bleu", validate_every=2
    )
    with on_cpus(1):
        directory = str(tmp_path_factory.mktemp("decoded") / "RUN")
        hparams = replace(HPARAMS, train_steps=5)
        run = train(PROBLEM, hparams, data, directory, options, report=said.append, preview=ValidationPreview)
    return run, said


def test_text_is_decoded_at_every_second_checkpoint_and_at_the_last(decoded):
    run, said = decoded
    selection = run.training.selection
    assert selection.by == "bleu" and selection.interval is None
    assert list(selection.scores["bleu"]) == list(selection.scores["chrf"]) == ["2", "4", "5"]
    assert list(selection.scores["perplexity"]) == ["1", "2", "3", "4", "5"]
    lines = [line for line in said if line.startswith("checkpoint at step")]
    assert [", chrF " in line and ", BLEU " in line for line in lines] == [False, True, False, True, True]


def test_an_interval_is_chosen_once_validate_every_is_left_out(decoded, tmp_path):
    run = replace(decoded[0], directory=shutil.copytree(decoded[0].directory, str(tmp_path / "RUN")))
    stopping = Stopping(run, TrainingOptions(validate_metrics=("chrf",), validate_by="bleu"), silent)
    assert stopping.decodes(6)
    stopping.note_scores(6, {"perplexity": 2.0, "bleu": 3.0, "chrf": 4.0}, 60.0, 60.0)
    assert run.training.selection.interval == 32 and not stopping.decodes(7)


def test_scores_equal_those_of_evaluate(decoded):
    run, _ = decoded
    expected = evaluate(run.directory, split="validation", beam_size=1)
    selection = run.training.selection
    for metric in ("bleu", "chrf", "perplexity"):
        assert selection.scores[metric]["5"] == pytest.approx(expected[metric], rel=1e-5)
    logged = [json.loads(line) for line in Path(run.metrics).read_text().splitlines()]
    found = next(line for line in reversed(logged) if "validation_chrf" in line)
    assert found["validation_chrf"] == selection.scores["chrf"]["5"] and found["step"] == 5


def test_the_better_of_the_best_and_of_their_mean_is_recommended(decoded):
    """The trainer's score of the mean is that of evaluate, which takes the recommended checkpoints."""
    run, said = decoded
    selection = run.training.selection
    alone, scores = selection.value(selection.best(1)[0]), {"split": "validation", "beam_size": 1}
    last = evaluate(run.directory, average_checkpoints=2, **scores)
    mean, found = (evaluate(run.directory, average_checkpoints=n, average_best=True, **scores) for n in (5, 1))
    assert len(mean["checkpoints"]) == 3 and f" has {mean['bleu']:.2f};" in said[-1]
    expected = max(alone, mean["bleu"], last["bleu"])
    assert found["bleu"] == pytest.approx(expected, rel=1e-5) and found["average_best"] is True
    assert [f"ckpt-{step}" for step in selection.recommended_steps] == found["checkpoints"]


def test_a_mean_that_does_not_fit_memory_is_not_recommended(data, copied, scripted, monkeypatch):
    def full(self, metric):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(Validation, "score", full)
    said: list[str] = []
    train(PROBLEM, HPARAMS, data, copied.directory, OPTIONS, report=said.append)
    assert copied.training.selection.recommended_steps == (2,)
    for line, which in zip(said[-3:-1], ("best", "last"), strict=True):
        assert line == f"the mean of the {which} 2 is not scored: out of memory (no memory)"


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_mean_is_scored_on_every_number_of_devices(data, copied, on_replicas, monkeypatch, replicas):
    """The validation really runs; `PERPLEXITIES` are so low that the best checkpoint stays recommended."""
    on_replicas(replicas)
    said: list[str] = []
    train(PROBLEM, HPARAMS, data, copied.directory, OPTIONS, report=said.append)
    mean = evaluate(copied.directory, "validation", average_checkpoints=2, beam_size=1, average_best=True)
    assert f"; the mean of the best 2 has {mean['perplexity']:.2f}; the mean of the last 2 has " in said[-1]


def test_the_interval_is_chosen_by_the_second_decoding_and_noted(data, tmp_path, monkeypatch):
    """Decoding seems to take 1.5 times a checkpoint's training at first, and then a third: 5% of the time allow every
    8th."""
    asked: list[tuple[int, bool]] = []

    def score(self, step, logger, decodes=False):
        asked.append((step, decodes))
        return {"perplexity": 9.0} | ({"bleu": 1.0} if decodes else {})

    note = Stopping.note_scores
    monkeypatch.setattr(Validation, "__call__", score)
    took = {1: 1.5, 4: 0.34}
    monkeypatch.setattr(
        Stopping, "note_scores", lambda self, step, found, *_: note(self, step, found, took.get(step, 9.0), 1.0)
    )
    said: list[str] = []
    options = replace(FLOAT32, checkpoint_steps=1, validate_metrics=("bleu",))
    arguments = PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options
    run = train(*arguments, report=said.append, preview=ValidationPreview)
    assert [step for step, decodes in asked if decodes] == [1, 4, 8, 16, 20]
    assert run.training.selection.interval == 8
    first, second = [line for line in said if line.startswith("scoring BLEU took ")]
    assert first.startswith("scoring BLEU took 1.5 s")
    assert first.endswith("scored at every 4 regular checkpoints at first (validate_every)")
    assert second.endswith("scored at every 8 regular checkpoints (validate_every)")


def test_neither_validation_nor_the_first_step_counts_as_training(data, tmp_path, monkeypatch):
    """The first decoding is much longer, and must not make the next one look cheap."""
    seconds: dict[int, float] = {}

    def score(self, step, logger, decodes=False):
        time.sleep(4 if step == 4 else 0)
        return {"perplexity": 9.0, "bleu": 1.0}

    monkeypatch.setattr(Validation, "__call__", score)
    monkeypatch.setattr(
        Stopping, "note_scores", lambda self, step, values, _, training: seconds.update({step: training})
    )
    options = replace(FLOAT32, checkpoint_steps=4, validate_metrics=("bleu",))
    run = train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options, report=silent, preview=ValidationPreview)
    assert sorted(seconds) == [4, 8, 12, 16, 20]
    assert max(seconds.values()) < 4 < run.training.seconds


@pytest.mark.parametrize(("stopped", "scored", "end"), [(7, [2, 4, 6, 7], 7), (9, [2, 4, 6, 8, 9, 10, 12], 12)])
def test_checkpoint_of_a_signal_is_scored_before_a_new_limit_ends_training(
    data, tmp_path, scripted, monkeypatch, stopped, scored, end
):
    """It would be the last one. If it is better than those before it, training continues."""
    directory, options = str(tmp_path / "RUN"), replace(FLOAT32, checkpoint_steps=2)

    def rate(step, hparams):
        if step == stopped:
            signal.raise_signal(signal.SIGINT)
        return learning_rate(step, hparams)

    learning_rate = training_loop.learning_rate
    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "learning_rate", rate)
        with pytest.raises(Interrupted):
            train(PROBLEM, HPARAMS, data, directory, options, report=silent)
    for _ in range(2):
        run = train(PROBLEM, HPARAMS, data, directory, replace(options, patience=2), report=silent)
        assert run.training.selection.steps() == scripted == scored
        assert run.training.step == run.last_step == end


def test_a_second_call_that_is_interrupted_keeps_the_recommendation(data, copied, scripted, monkeypatch):
    before = copied.training.selection
    monkeypatch.setattr(Stopping, "conclude", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted):
        train(PROBLEM, HPARAMS, data, copied.directory, OPTIONS, report=silent)
    assert before.recommended_steps and Run.open(copied.directory).training.selection == before


# Other validation sets.


@pytest.fixture
def others(data, tmp_path) -> dict[str, str]:
    """Returns folders of prepared data: one with the same vocabulary, one with another."""
    shutil.copytree(data, tmp_path / "general")
    prepare(replace(PROBLEM, vocab_size=300), str(tmp_path / "foreign"), silent)
    return {name: str(tmp_path / name) for name in ("general", "foreign")}


@pytest.mark.curves
def test_another_validation_set_is_scored_at_each_checkpoint(data, tmp_path, others):
    """Here it is a copy of the run's own, so the perplexities are equal."""
    said: list[str] = []
    options = replace(FLOAT32, checkpoint_steps=1, also_validate=(others["general"],))
    run = train(PROBLEM, replace(HPARAMS, train_steps=2), data, str(tmp_path / "RUN"), options, report=said.append)
    logged = [json.loads(line) for line in Path(run.metrics).read_text().splitlines()]
    found = [line for line in logged if "validation_perplexity" in line]
    assert [line["step"] for line in found] == [1, 2]
    for line in found:
        assert line["validation_perplexity_general"] == line["validation_perplexity"]
        assert f", general ppl {line['validation_perplexity']:.2f}" in " ".join(said)
    assert "general" in Path(run.directory, "curves.svg").read_text("utf-8")


def test_a_validation_set_with_another_vocabulary_is_rejected(data, tmp_path, others):
    options = replace(FLOAT32, also_validate=(others["general"], others["foreign"]))
    with pytest.raises(ValueError, match="foreign/animals' was prepared with another vocabulary .SHA-256 .*; prepare"):
        train(PROBLEM, HPARAMS, data, str(tmp_path / "RUN"), options, report=silent)
    assert not (tmp_path / "RUN").exists()
