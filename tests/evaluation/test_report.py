"""Reports: tables of run directories of every kind, which never share a table."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import CHECKOUT
from helpers import made_runs
from helpers.made_runs import FILES, WMT

from t2t_repro.evaluation.report_formats import as_markdown, as_text
from t2t_repro.evaluation.report_page import as_html
from t2t_repro.evaluation.report_runs import read_runs
from t2t_repro.evaluation.report_tables import Table, build_tables
from t2t_repro.problem import Problem
from t2t_repro.run import TrainingData
from t2t_repro.selection import Selection

ROWS = 20  # of Table 3


@pytest.fixture
def make_run(tmp_path):
    """Returns `make_run("a_h1@tiny")`: a run directory with artificial weights and vocabulary."""
    return functools.partial(made_runs.make_run, tmp_path)


def read(tmp_path, folder="runs"):
    results, unreadable = read_runs(str(tmp_path / folder))
    return build_tables(results), unreadable


def table(tables, number):
    [found] = [each for each in tables if each.title.startswith(f"Table {number}")]
    return found


def row(found, name):
    [found] = [each for each in found.rows if each["set"] == name]
    return found


def test_empty_folder_lists_every_row_as_not_run(tmp_path):
    (tmp_path / "runs").mkdir()
    tables, _ = read(tmp_path)
    assert [len(each.rows) for each in tables] == [4, ROWS, 2]
    assert {each["status"] for some in tables for each in some.rows} == {"not run"}
    assert {each["bleu"] for some in tables for each in some.rows} == {None}
    text = as_text(tables, [])
    assert "No run." in text and max(map(len, text.splitlines())) <= 80


def test_table_3_is_as_in_print(tmp_path):
    (tmp_path / "runs").mkdir()
    names = [each["set"] for each in table(read(tmp_path)[0], 3).rows]
    assert names[:4] == ["base", "a_h1", "a_h4", "a_h16"] and names[-2:] == ["e_learned", "big"]


def test_table_2_has_every_score_of_the_paper(tmp_path, make_run):
    """Base and big, English-German and English-French, whether there is a run or not."""
    printed = [("base", "en-de", 27.3), ("base", "en-fr", 38.1), ("big", "en-de", 28.4), ("big_enfr", "en-fr", 41.8)]
    make_run("base", replace(WMT, name="translate_enfr_wmt14", target_language="fr"), folder="french")
    (tmp_path / "runs").mkdir()
    for folder, runs in (("runs", 0), ("french", 1)):
        found = table(read(tmp_path, folder)[0], 2)
        assert sorted((each["set"], each["task"], each["printed_bleu"]) for each in found.rows) == printed
        assert [each["status"] for each in found.rows].count("not run") == 4 - runs
        assert "directory" not in [column.key for column in found.columns]


def test_table_3_takes_one_checkpoint_on_validation_and_table_2_averaged_ones_on_test(tmp_path, make_run):
    kinds = [("validation", 1, 25.8), ("test", 5, 27.3), ("test", 1, 26.0), ("validation", 5, 26.5)]
    scores = [(split, n, {"paper_bleu": bleu, "bleu": bleu - 1, "perplexity": 4.92}) for split, n, bleu in kinds]
    scores += [(split, n, values | {"paper_bleu": 20.0, "int8": True}) for split, n, values in scores]
    make_run("base", WMT, pairs=4_508_785, scores=scores)
    tables, _ = read(tmp_path)
    third, (second, french) = row(table(tables, 3), "base"), table(tables, 2).rows[:2]
    assert (third["bleu"], third["perplexity"], third["status"]) == (25.8, 4.92, "reproduced")
    assert (second["bleu"], second["status"]) == (27.3, "reproduced")
    assert (french["task"], french["status"]) == ("en-fr", "not run")
    assert row(table(tables, 2), "big")["status"] == "not run"
    assert "BLEU is the paper's" in table(tables, 2).note


@pytest.mark.parametrize(
    ("bleu", "status"),
    [(25.76, "reproduced"), (26.4, "reproduced"), (25.4, "within noise"), (25.2, "below")],
)
def test_status_of_a_full_run(tmp_path, make_run, bleu, status):
    make_run("base", WMT, pairs=4_508_785, scores=[("validation", 1, {"paper_bleu": bleu})])
    assert row(table(read(tmp_path)[0], 3), "base")["status"] == status


def test_scores_are_compared_with_those_of_their_language(tmp_path, make_run):
    """Table 3 is English-German; a row of Table 2 has the figure of its own pair of languages, if that is printed."""
    french = Problem(name="translate_enfr_wmt14", description="", target_language="fr")
    for folder, name, problem in (("fr", "base", french), ("fr", "big_enfr", french), ("de", "big_enfr", WMT)):
        scores = [("validation", 1, {"paper_bleu": 33.0}), ("test", 5 if name == "base" else 20, {"paper_bleu": 42.0})]
        make_run(name, problem, pairs=36_000_000, scores=scores, folder=folder)

    def compared(folder, number, name):
        [found] = [
            each for each in read(tmp_path, folder)[0] if each.title.startswith(f"Table {number}") and each.results
        ]
        [measured] = [each for each in found.rows if each["set"] == name and "directory" in each]
        return tuple(measured.get(key) for key in ("task", "printed_bleu", "status"))

    assert compared("fr", 2, "base") == ("en-fr", 38.1, "reproduced")
    assert compared("fr", 2, "big_enfr") == ("en-fr", 41.8, "reproduced")
    assert compared("de", 2, "big_enfr") == ("en-de", None, "no score to compare with")
    assert compared("fr", 3, "base")[2] == "no score to compare with"


@pytest.mark.parametrize(
    ("problem", "name", "f1", "status"),
    [
        ("parse_wsj", "parsing", 91.4, "reproduced"),
        ("parse_wsj", "parsing_semisupervised", 91.4, "no score to compare with"),
        ("parse_wsj_semisupervised", "parsing", 91.4, "no score to compare with"),
        ("parse_wsj_semisupervised", "parsing_semisupervised", 91.4, "below"),
    ],
)
def test_parsers_are_compared_with_those_of_the_same_trees(tmp_path, make_run, problem, name, f1, status):
    parse = Problem(name=problem, description="", metric="f1")
    make_run(name, parse, pairs=17_000_000, scores=[("test", 5, {"f1": f1})])
    assert row(table(read(tmp_path)[0], 4), name)["status"] == status


def test_scores_of_another_beam_or_alpha_are_left_out(tmp_path, make_run):
    ours = {"paper_bleu": 25.76, "beam_size": 4, "alpha": 0.6}
    others = [ours | {"paper_bleu": 24.9, "beam_size": 1}, ours | {"paper_bleu": 24.8, "alpha": 0.0}]
    make_run("base", WMT, pairs=4_508_785, scores=[("validation", 1, each) for each in (ours, *others)])
    assert row(table(read(tmp_path)[0], 3), "base")["status"] == "reproduced"


def test_smaller_budgets_and_other_data_are_labeled(tmp_path, make_run):
    scores = [("validation", 1, {"bleu": 30.0, "perplexity": 4.0})]
    make_run("a_h1", WMT, pairs=10_000, scores=scores, folder="data")
    make_run("a_h1@tiny", WMT, pairs=4_508_785, scores=scores, folder="scale")
    make_run("a_h1", FILES, scores=scores, folder="files")
    make_run("a_h1", WMT, pairs=2_700_000, scores=scores, folder="most")  # 60% of the paper's
    complete = {"problem": WMT, "pairs": 4_508_785, "scores": scores}
    make_run("a_h1", **complete, overrides=["checkpoint_steps=3000", "train_steps=200000"], folder="longer")
    make_run("a_h1", **complete, overrides=["dropout=0.2"], folder="other")
    make_run("a_h1", **complete, overrides=["batch_tokens=2048"], folder="batch")
    expected = {"data": "other data", "scale": "smaller budget", "files": "other data", "most": "other data"}
    expected |= {"longer": "reproduced", "other": "other hyperparameters", "batch": "smaller budget"}
    assert {name: row(table(read(tmp_path, name)[0], 3), "a_h1")["status"] for name in expected} == expected


def test_a_run_that_holds_a_mean_is_an_average(tmp_path, make_run):
    """t2t-avg-checkpoints wrote it, and it has one checkpoint. Its score is none of a single one."""
    mean = {"bleu": 26.0, "average_of": [f"ckpt-{n}" for n in range(5)], "average_checkpoints": 1}
    moving = {"bleu": 27.0, "average_of": ["ckpt-9 (moving average)"], "average_checkpoints": 1}
    few = {"bleu": 25.0, "average_checkpoints": 5}  # of a run that has two
    scores = [("test", 2, few), ("validation", 1, {"bleu": 20.0}), ("validation", 1, mean), ("validation", 1, moving)]
    make_run("base@tiny", scores=scores)
    tables = read(tmp_path)[0]
    assert row(table(tables, 3), "base")["bleu"] == 20
    assert 25 in {each["bleu"] for each in table(tables, 2).rows}
    make_run("tiny", scores=[("test", 1, mean)])
    assert read(tmp_path)[0][-1].rows[0]["scored"] == "test, mean of 5"


def test_a_run_that_ended_early_is_finished(tmp_path, make_run):
    """Its last step is the one at which validation ended it; without that record it is unfinished."""
    for folder, stopped in (("ended", 900), ("running", None)):
        scores = [("validation", 1, {"bleu": 30.0})]
        make_run("base", FILES, step=900, scores=scores, folder=folder, selection=Selection(stopped_step=stopped))
    found = {name: row(table(read(tmp_path, name)[0], 3), "base")["status"] for name in ("ended", "running")}
    assert found == {"ended": "smaller budget", "running": "unfinished: 900 of 100,000"}


def test_results_on_an_incomplete_treebank_are_not_compared(tmp_path, make_run):
    """A section of the test set is missing: the row is not "reproduced" and has no difference but a reason."""
    problem = Problem(name="parse_wsj", description="", metric="f1")
    missing = "section 23: 8 of 2,416 trees"
    for folder, more in (("whole", {}), ("part", {"incomplete": (missing,)})):
        run = make_run("parsing", problem, scores=[("test", 5, {"f1": 99.0})], folder=folder)
        data = TrainingData(pairs=39_832, vocab_size=16_000, train="wsj", **more)
        run.note(replace(run.training, data=data))
        [found] = [each for each in read(tmp_path, folder)[0] if each.title.startswith("Table 4")]
        status, difference = row(found, "parsing")["status"], row(found, "parsing")["difference"]
        if more:
            assert (status, difference) == ("other data", None)
            assert f"Not the paper's data: {missing}" in found.caption
            assert missing in " ".join(as_text([found], []).split())
        else:
            assert status == "reproduced" and difference > 0 and "Not the paper's" not in found.caption


def test_status_of_unfinished_and_unscored_runs(tmp_path, make_run):
    make_run("base@tiny", step=300, scores=[("validation", 1, {"bleu": 9.0})])
    make_run("c_n2@tiny")
    make_run("c_n4@tiny", step=0)
    rows = table(read(tmp_path)[0], 3)
    assert row(rows, "base")["status"] == "unfinished: 300 of 1,200"
    assert row(rows, "c_n2")["status"] == "not scored on validation"
    assert row(rows, "c_n4")["status"] == "unfinished: 0 of 1,200"


def test_two_conditions_are_two_tables(tmp_path, make_run):
    make_run("base@tiny", scores=[("validation", 1, {"bleu": 20.0})])
    make_run("a_h1@tiny", pairs=5_000, scores=[("validation", 1, {"bleu": 10.0})])
    make_run("b_dk16", scores=[("validation", 1, {"bleu": 30.0})])
    tables = [each for each in read(tmp_path)[0] if each.title.startswith("Table 3")]
    assert len(tables) == 3
    for each in tables:
        assert [one["status"] == "not run" for one in each.rows].count(False) == 1
    assert [re.search(r"([\d,]+) training pairs", each.caption)[1] for each in tables] == ["5,000", "29,000", "29,000"]
    assert [("at scale tiny" in each.caption) for each in tables] == [True, False, True]
    assert row(tables[0], "a_h1")["delta"] is None  # base is in another table


def test_measured_and_printed_differences_from_base(tmp_path, make_run):
    make_run("base@tiny", scores=[("validation", 1, {"bleu": 20.0})])
    make_run("c_n2@tiny", scores=[("validation", 1, {"bleu": 18.5})])
    make_run("c_n4@tiny", scores=[("validation", 1, {"bleu": 19.0})], seed=2)
    rows = table(read(tmp_path)[0], 3)
    assert (row(rows, "c_n2")["delta"], row(rows, "c_n2")["printed_delta"]) == (-1.5, pytest.approx(-2.1))
    assert row(rows, "c_n4")["delta"] is None  # there is no base with that seed


def test_only_scores_of_the_runs_own_text_and_search_are_shown(tmp_path, make_run):
    scores = [
        ("test", 5, {"bleu": 30.0, "beam_size": 4, "alpha": 0.6, "text_sha256": "own"}),
        ("test", 5, {"bleu": 50.0, "beam_size": 4, "alpha": 0.6, "text_sha256": "other"}),
        ("test", 1, {"bleu": 10.0, "beam_size": 1, "alpha": 0.6, "text_sha256": "own"}),
    ]
    make_run("tiny", scores=scores, test_sha256="own")
    make_run("base@tiny", scores=scores, test_sha256="own")
    tables = read(tmp_path)[0]
    (shown,) = tables[-1].rows
    assert (shown["set"], shown["bleu"], shown["scored"]) == ("tiny", 30, "test, mean of 5")
    assert {each["bleu"] for each in table(tables, 2).rows} == {None, 30}


def test_a_score_of_an_earlier_step_stands_beside_that_step(tmp_path, make_run):
    """The run was continued and not scored again; the difference is that to a base of the same steps."""
    for name, bleu in (("base@tiny", 20.0), ("c_n2@tiny", 15.0)):
        run = make_run(name, scores=[("validation", 1, {"bleu": bleu, "step": 300})])
    make_run("base@tiny", scores=[("validation", 1, {"bleu": 25.0})], folder="runs/whole")
    found = row(table(read(tmp_path)[0], 3), "c_n2")
    steps = run.hparams.train_steps
    assert (found["steps"], found["delta"]) == (300, -5)
    assert found["status"] == f"not scored on validation at step {steps:,}"


def test_base_runs_of_one_seed_are_compared_by_their_mean(tmp_path, make_run):
    for number, (bleu, overrides) in enumerate(((20.0, ()), (21.0, ()), (29.0, ["dropout=0.2"]))):
        how = {"folder": f"runs/{number}", "overrides": overrides}
        make_run("base@tiny", scores=[("validation", 1, {"bleu": bleu})], **how)
    make_run("c_n2@tiny", scores=[("validation", 1, {"bleu": 18.5})])
    rows = table(read(tmp_path)[0], 3)
    assert row(rows, "c_n2")["delta"] == -2
    assert [each["delta"] for each in rows.rows if each["set"] == "base"] == [-0.5, 0.5, 0]


def test_every_seed_is_a_row(tmp_path, make_run):
    for seed, bleu in ((1, 20.0), (2, 21.0)):
        make_run("base@tiny", scores=[("validation", 1, {"bleu": bleu})], seed=seed)
    found = [each["bleu"] for each in table(read(tmp_path)[0], 3).rows if each["set"] == "base"]
    assert found == [20.0, 21.0]


def test_runs_of_one_set_are_told_apart(tmp_path, make_run):
    """Their directories are a column of every form, and what they override one of the wide forms."""
    scores = [("validation", 1, {"bleu": 20.0})]
    make_run("base@tiny", scores=scores)
    assert "base@tiny-1" not in as_text(*read(tmp_path)) and "| overrides |" in as_markdown(*read(tmp_path))
    make_run("base@tiny", scores=scores, folder="runs/more", overrides=["dropout=0.2", "alpha=1.0"])
    tables, _ = read(tmp_path)
    found = [each for each in table(tables, 3).rows if each["set"] == "base"]
    assert [each["directory"] for each in found] == ["base@tiny-1", "more/base@tiny-1"]
    assert [each["overrides"] for each in found] == [None, "P_drop 0.2, alpha 1.0"]
    assert re.search(r"base +more/base@tiny-1 ", as_text(tables, []))
    assert "P_drop 0.2, alpha 1.0" in as_markdown(tables, []) and "P_drop" not in as_text(tables, [])


def test_a_set_that_is_not_registered_has_no_overrides(tmp_path, make_run):
    run = make_run("tiny")
    os.makedirs(tmp_path / "own")
    replace(run, directory=str(tmp_path / "own" / "run"), hparams=replace(run.hparams, name="own@tiny")).start(
        str(tmp_path / "vocabulary")
    )
    assert row(read(tmp_path, "own")[0][-1], "own@tiny")["overrides"] is None


def test_runs_are_found_three_folders_deep(tmp_path, make_run):
    for folder in ("runs/1/2", "runs/1/3/4"):
        make_run("base@tiny", folder=folder)
    assert [result.directory for result in read_runs(str(tmp_path / "runs"))[0]] == ["1/2/base@tiny-1"]


def test_exact_and_printed_parameters(tmp_path, make_run):
    make_run("base", FILES, scores=[("validation", 1, {"bleu": 20.0})])
    base = row(table(read(tmp_path)[0], 3), "base")
    assert (base["parameters"], base["millions"]) == (63_045_632, 65)


def test_other_hyperparameter_sets_have_their_own_table(tmp_path, make_run):
    make_run("multi30k", scores=[("test", 10, {"bleu": 38.0, "chrf": 61.0, "perplexity": 5.0})])
    others = read(tmp_path)[0][-1]
    assert others.title == "Other hyperparameter sets"
    assert (others.rows[0]["bleu"], others.rows[0]["scored"]) == (38.0, "test, mean of 10")
    assert "29,000 training pairs" in others.caption and "sacreBLEU 13a" in others.caption
    make_run("multi30k", scores=[("test", 10, {"f1": 80.0})])
    assert "sacreBLEU" not in read(tmp_path)[0][-1].caption


def test_damaged_run_is_named_and_others_are_reported(tmp_path, make_run):
    make_run("base@tiny", scores=[("validation", 1, {"bleu": 20.0})])
    damaged = make_run("a_h1@tiny")
    with open(damaged.scores, "w") as file:
        file.write("{}\n[1]\n")
    tables, unreadable = read(tmp_path)
    assert row(table(tables, 3), "base")["bleu"] == 20.0
    assert unreadable == [f"{damaged.scores} is damaged: line 2 is not a JSON object"]
    assert "Not readable" in as_text(tables, unreadable)


def test_files(tmp_path, make_run, program):
    """The files contain every value. The page is complete and self-contained."""
    run = make_run("c_n2@tiny", scores=[("validation", 1, {"bleu": 18.5})])
    make_run("base@tiny", scores=[("validation", 1, {"bleu": 20.0})])
    with open(run.metrics, "w") as file:
        for step in (100, 200, 300):
            file.write(json.dumps({"step": step, "validation_perplexity": 1000 / step}) + "\n")
    paths = {form: str(tmp_path / f"report.{form}") for form in ("markdown", "json", "html")}
    result = program("t2t-report", str(tmp_path / "runs"), *(f"--{form}={path}" for form, path in paths.items()))
    assert result.code == 0 and "c_n2" in result.out
    texts = {form: Path(path).read_text("utf-8") for form, path in paths.items()}
    [third] = [each for each in json.loads(texts["json"])["tables"] if each["title"].startswith("Table 3")]
    assert row(Table("", "", (), third["rows"]), "c_n2")["bleu"] == 18.5
    assert texts["html"].count("<svg") == 2  # the differences and the curve
    assert not re.search(r"(src|href)=\"(?!#)|@import|url\((?!#)", texts["html"])
    parser = HTMLParser()
    parser.feed(texts["html"])
    parser.close()


def test_user_text_is_escaped(tmp_path, make_run):
    problem = Problem(name="translate_files", description="", vocab_size=6_000)
    make_run("base@tiny", problem, train="<script>alert(1)</script>")
    results, _ = read_runs(str(tmp_path / "runs"))
    assert "<script>alert" not in as_html(build_tables(results), ["<b>"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is not a directory; give the one that t2t-trainer or t2t-ablate wrote to"),
        ([".", "--html=."], "--html: '.' is a directory; give a file"),
        ([".", "--json=none/x"], "--json: no directory 'none'; create it first"),
    ],
)
def test_bad_arguments(program, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert program("t2t-report", *arguments) == (1, "", f"t2t-report: {message}\n")


def test_report_of_one_run_draws_its_curves(tmp_path, make_run, program):
    run = make_run("multi30k", scores=[("test", 10, {"bleu": 38.0})])
    Path(run.metrics).write_text('{"step": 10, "loss": 5.0}\n{"step": 20, "loss": 4.0}\n', "utf-8")
    result = program("t2t-report", run.directory)
    drawn = [str(Path(run.directory, name)) for name in ("curves.svg", "curves.png")]
    assert result.code == 0 and result.err.splitlines() == [f"wrote {path}" for path in drawn]
    assert "Loss" in Path(drawn[0]).read_text("utf-8")

    for path in drawn:
        os.remove(path)
    program("t2t-report", str(tmp_path / "runs"))
    assert not os.path.exists(drawn[0])  # a report on many runs draws in none of them


def test_report_of_an_old_run_without_metrics(tmp_path, program):
    old = shutil.copytree(CHECKOUT / "tests" / "fixtures" / "run", tmp_path / "old")
    assert program("t2t-report", str(old))[::2] == (0, "")
