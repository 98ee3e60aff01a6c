"""Which checkpoints are best, when training ends, and how often text is decoded: functions of scores alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from t2t_repro.config import TrainingOptions
from t2t_repro.selection import TIME_SHARE, Mean, Selection, interval_within, must_have_metrics


def selection(by: str = "perplexity", **scores: list[float]) -> Selection:
    """Makes the scores of steps 10, 20 and so on."""
    found = Selection(by)
    for metric, values in scores.items():
        for number, value in enumerate(values, start=1):
            found = found.with_scores(10 * number, {metric: value})
    return found


def test_best_is_the_lowest_perplexity_and_the_highest_bleu():
    both = {"perplexity": [9.0, 7.0, 8.0, 7.5], "bleu": [1.0, 2.0, 4.0, 3.0]}
    assert selection(**both).best(2) == [20, 40]
    assert selection("bleu", **both).best(9) == [30, 40, 20, 10]
    assert selection(**both).best(2, among={10, 30}) == [30, 10]
    assert selection(**both).best(0) == [] == Selection().best(3)


def test_equal_scores_are_no_improvement():
    found = selection(perplexity=[9.0, 7.0, 7.0, 7.0])
    assert found.best(1) == [20] and found.without_improvement() == 2


@pytest.mark.parametrize(
    ("values", "patience", "ends"),
    [
        ([9.0, 8.0, 8.1], 1, True),
        ([9.0, 8.0, 8.1], 2, False),
        ([9.0, 8.0, 8.1, 8.0], 2, True),
        ([9.0, 8.0, 8.1, 7.9], 1, False),
        ([9.0, 9.5, 9.6, 9.7], 3, True),
        ([9.0, 9.5, 9.6, 9.7], 0, False),
        ([], 1, False),
    ],
)
def test_patience(values, patience, ends):
    assert bool(selection(perplexity=values).exhausted(patience)) is ends


def test_the_reason_names_the_best_score():
    reason = selection(perplexity=[9.0, 8.0, 8.1, 8.2]).exhausted(2)
    assert reason == "2 scores in a row are no better than the validation perplexity 8.00 of step 20 (patience=2)"


def test_patience_counts_only_steps_with_the_deciding_score():
    found = selection(perplexity=[9.0, 9.1, 9.2, 9.3]).with_scores(10, {"bleu": 5.0}).with_scores(40, {"bleu": 4.0})
    assert found.without_improvement() == 3 and replace(found, by="bleu").without_improvement() == 1


def test_a_perplexity_that_is_not_finite_is_the_worst_and_fits_json():
    found = selection(perplexity=[math.inf, math.nan, 1e9])
    assert found.best(1) == [30]
    assert all(math.isfinite(value) for value in found.scores["perplexity"].values())
    assert found.described(10) == "validation perplexity inf"


def test_a_run_that_returns_to_a_checkpoint_forgets_what_came_later():
    found = replace(selection(perplexity=[9.0, 8.0, 7.0]), stopped_step=30, reason="why", recommended_steps=(30,))
    assert found.at(30) == found
    assert found.at(20) == selection(perplexity=[9.0, 8.0])
    assert found.at(40).stopped_step is None and found.at(40).scores == found.scores
    assert found.at(0) == Selection()


@pytest.mark.parametrize(
    ("reason", "limits", "ends"),
    [
        ("2 scores in a row are no better than ... of step 4 (patience=2)", {"patience": 2}, True),
        ("2 scores in a row are no better than ... of step 4 (patience=2)", {"patience": 20}, False),
        ("20 scores in a row are no better than ... of step 4 (patience=20)", {"patience": 2}, False),
        ("train_minutes=2.5 are over", {"train_minutes": 2.5, "patience": 3}, True),
        ("train_minutes=2.5 are over", {"train_minutes": 2.0}, False),
        ("train_epochs=2 passes over the data are done", {"train_epochs": 2}, True),
        ("train_epochs=2 passes over the data are done", {}, False),
        (None, {"patience": 2}, False),
    ],
)
def test_a_run_is_ended_by_the_same_limit_only(reason, limits, ends):
    assert Selection(reason=reason).ended_by(TrainingOptions(**limits)) == ends


def test_selection_is_read_back_from_json():
    found = replace(selection("bleu", perplexity=[9.0], bleu=[1.5]), interval=4, recommended_steps=(10, 20))
    assert Selection.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Selection.from_json({"by": "bleu", "recommended": "ckpt-10"}) == Selection("bleu")  # of a first version


ALONE = "ckpt-20, validation perplexity 7.00, the lowest of 3"
REMOVED = "ckpt-30, validation perplexity 8.00, the lowest of 3 but that of step 20, which was removed"


@pytest.mark.parametrize(
    ("best", "means", "steps", "line"),
    [
        ([20], [], [20], ALONE),
        ([20, 30, 10], [7.0], [20], f"{ALONE}; the mean of the best 3 has 7.00"),
        (
            [20, 30, 10],
            [6.5],
            [10, 20, 30],
            f"the mean of ckpt-10, ckpt-20 and ckpt-30, the best 3, which has 6.50; the best one is {ALONE}",
        ),
        (
            [20, 30, 10],
            [6.5, 6.4],
            [20, 30],
            "the mean of ckpt-20 and ckpt-30, the last 2, which has 6.40; the mean of the best 3 has 6.50; "
            f"the best one is {ALONE}",
        ),
        ([30], [], [30], REMOVED),
    ],
)
def test_the_best_of_the_means_and_of_the_checkpoints_is_recommended(best, means, steps, line):
    scored = [Mean(*each) for each in zip(("best 3", "last 2"), ((10, 20, 30), (20, 30)), means, strict=False)]
    assert selection(perplexity=[9.0, 7.0, 8.0]).recommendation(best, scored) == (steps, line)


def test_a_higher_bleu_is_better():
    found = selection("bleu", bleu=[9.0, 7.0])
    for score, steps in ((9.5, [10, 20]), (8.5, [10])):
        assert found.recommendation([10, 20], [Mean("best 2", (10, 20), score)])[0] == steps


def test_a_new_score_removes_the_recommendation():
    assert Selection(recommended_steps=(10, 20)).with_scores(30, {"perplexity": 9.0}).recommended_steps is None


@pytest.mark.parametrize("seconds", [0.01, 4.9, 5.1, 30.0, 3_000.0])
def test_decoding_takes_at_most_its_share_of_the_time(seconds):
    interval = interval_within(seconds, 100.0)
    assert seconds <= TIME_SHARE * 100.0 * interval and interval & (interval - 1) == 0
    assert interval == 1 or seconds > TIME_SHARE * 100.0 * interval / 2  # no rarer than necessary


def test_metrics_must_be_those_of_the_task():
    must_have_metrics(("bleu", "chrf"), TrainingOptions(validate_metrics=("chrf",), validate_by="bleu"))
    with pytest.raises(ValueError, match="validate_metrics must be one of bleu, chrf for this problem, got 'f1'"):
        must_have_metrics(("bleu", "chrf"), TrainingOptions(validate_metrics=("f1",)))
    with pytest.raises(ValueError, match="validate_by must be one of perplexity, f1 for this problem, got 'bleu'"):
        must_have_metrics(("f1",), TrainingOptions(validate_by="bleu"))


def test_the_deciding_metric_is_also_computed():
    assert TrainingOptions(validate_by="bleu", validate_metrics=("chrf", "bleu")).metrics == ("chrf", "bleu")
    assert TrainingOptions(validate_by="bleu").metrics == ("bleu",) and TrainingOptions().metrics == ()


@pytest.mark.parametrize(
    ("options", "kept"), [({}, 0), ({"patience": 3}, 5), ({"keep_best": 4}, 4), ({"validate_by": "bleu"}, 5)]
)
def test_checkpoints_to_average_are_kept_if_there_is_a_choice(options, kept):
    assert TrainingOptions(**options).best_kept == kept


@pytest.mark.parametrize("name", ["patience", "validate_every", "keep_best", "train_minutes", "train_epochs"])
def test_limits_are_not_negative(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        TrainingOptions(**{name: -1})
