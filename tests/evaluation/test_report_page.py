"""The page of t2t-report: order, folding, charts and, in a real browser, narrow screens, dark mode and print.

selenium drives Chromium; without them, the tests in the browser are skipped with a reason.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest
from helpers.browser import Page
from helpers.made_runs import make_run

from t2t_repro.evaluation.report_page import as_html, read_all_metrics
from t2t_repro.evaluation.report_runs import read_runs
from t2t_repro.evaluation.report_tables import build_tables
from t2t_repro.run import Run

DAY = datetime.date(2026, 11, 5)
CURVE = [(100, 900.0), (200, 300.0), (300, 90.0), (400, 30.0), (500, 20.0), (600, 15.0)]


def validated(run: Run, *points: tuple[int, float]) -> Run:
    """Writes validation perplexities to the metrics of a run."""
    with open(run.metrics, "w", encoding="utf-8") as file:
        for step, value in points:
            file.write(json.dumps({"step": step, "validation_perplexity": value}) + "\n")
    return run


@pytest.fixture
def ablation(tmp_path) -> str:
    """The page of three rows of Table 3 at a small scale."""
    for name, bleu in (("base@tiny", 20.0), ("c_n2@tiny", 18.5), ("a_h1@tiny", 19.0)):
        validated(make_run(tmp_path, name, scores=[("validation", 1, {"bleu": bleu, "perplexity": 15.0})]), *CURVE)
    return page_of(tmp_path)


def page_of(tmp_path) -> str:
    results, unreadable = read_runs(str(tmp_path / "runs"))
    metrics, faults = read_all_metrics(results)
    return as_html(build_tables(results), [*unreadable, *faults], metrics, DAY)


def headings(page: str) -> list[str]:
    return re.findall(r"<h\d>(.*?)</h\d>", page)


def labels(page: str) -> list[str]:
    """Returns the names of the charts."""
    return re.findall(r'<svg [^>]*aria-label="(.*?)"', page)


def test_title_date_and_scored_table_come_first(ablation):
    titles = ["3 training runs of translate_files", "Table 3: validation set, one checkpoint"]
    assert headings(ablation) == [*titles, "Table 2: test set, averaged checkpoints"]
    assert '<time datetime="2026-11-05">November 5, 2026</time>' in ablation
    assert f"<title>{titles[0]}</title>" in ablation


def test_charts_are_above_the_table(ablation):
    assert labels(ablation) == ["BLEU over base", "Validation perplexity: rows (A)", "Validation perplexity: rows (C)"]
    assert ablation.rindex("</svg>") < ablation.index("<table>")
    assert ">base<" in ablation[ablation.index("rows (A)") : ablation.index("rows (C)")]  # beside every group


def test_rows_without_a_run_are_folded(ablation):
    shown, _, folded = ablation.partition("<details>")
    assert re.findall(r"<tr><td[^>]*>(\w+)<", shown) == ["base", "a_h1", "c_n2"]
    assert "<summary>Rows without a run: 17</summary>" in folded and ">e_learned<" in folded
    assert "<summary>Table 4: test set, bracket F1: no run</summary>" in folded
    assert "not run" in folded and "not run" not in shown


def test_a_column_of_the_paper_follows_that_of_the_measured_values(ablation):
    """Also in rows without a run, whose measured values are empty: "paper" alone does not name them."""
    tables = [
        re.findall(r"<th.*?>(.*?)</th>", table) for table in re.findall("<table>.*?</table>", ablation, re.DOTALL)
    ]
    before = [heading for each in tables for heading, after in zip(each, each[1:], strict=False) if after == "paper"]
    assert len(tables) == 5 and set(before) == {"PPL", "BLEU", "to base", "cost", "F1"}


def test_one_run_shows_its_own_curves(tmp_path):
    run = make_run(tmp_path, "multi30k", scores=[("test", 10, {"bleu": 38.0})])
    with open(run.metrics, "w", encoding="utf-8") as file:
        file.write('{"step": 10, "loss": 5.0, "learning_rate": 0.001}\n{"step": 20, "validation_loss": 4.0}\n')
    page = page_of(tmp_path)
    assert headings(page)[0] == "translate_files with multi30k"
    assert labels(page) == ["Loss", "Learning rate"]


def test_runs_without_metrics_have_no_charts(tmp_path):
    make_run(tmp_path, "c_n2@tiny", scores=[("validation", 1, {"bleu": 18.5})])
    assert labels(page_of(tmp_path)) == []


def test_every_run_of_a_set_has_a_curve(tmp_path):
    """Those of one set and seed have the directory in their names."""
    for name, folder, seed, rise in (
        *(("base@tiny", "runs", 1, 0), ("base@tiny", "runs/more", 1, 1), ("base@tiny", "runs", 2, 2)),
        *(("a_h1@tiny", "runs", 1, 3), ("a_h1@tiny", "runs/more", 1, 4)),
    ):
        run = make_run(tmp_path, name, folder=folder, seed=seed, scores=[("validation", 1, {"bleu": 20.0 + rise})])
        validated(run, *((step, value + rise) for step, value in CURVE))
    differences, curves = re.findall(r"<svg .*?</svg>", page_of(tmp_path), re.DOTALL)
    assert re.findall(">(a_h1.*?)<", differences) == ["a_h1, a_h1@tiny-1", "a_h1, more/a_h1@tiny-1"]
    names = {"base, base@tiny-1", "base, more/base@tiny-1", "base, seed 2", "a_h1, a_h1@tiny-1"}
    assert set(re.findall(">((?:base|a_h1).*?)<", curves)) == {*names, "a_h1, more/a_h1@tiny-1"}


def test_no_run(tmp_path):
    (tmp_path / "runs").mkdir()
    page = page_of(tmp_path)
    assert headings(page) == ["No training runs"] and page.count("<details>") == 3
    assert "No run was found." in page


def test_damaged_metrics_are_listed_and_the_rest_is_shown(tmp_path):
    validated(make_run(tmp_path, "c_n2@tiny", scores=[("validation", 1, {"bleu": 18.5})]), *CURVE)
    damaged = make_run(tmp_path, "a_h1@tiny", scores=[("validation", 1, {"bleu": 19.0})])
    with open(damaged.metrics, "w", encoding="utf-8") as file:
        file.write("[]\n")
    page = page_of(tmp_path)
    assert f"Not readable: {damaged.metrics} is damaged: line 1" in page
    assert labels(page) == ["Validation perplexity"] and "19.00" in page


@pytest.fixture
def opened(browser: Any, tmp_path, ablation: str) -> Page:
    (tmp_path / "page.html").write_text(ablation, "utf-8")
    page = Page(browser)
    page.media()
    browser.get((tmp_path / "page.html").as_uri())
    return page


def test_phone(opened):
    opened.media(width=390, height=800, phone=True)
    assert opened("document.documentElement.scrollWidth") == 390
    frames = opened("[...document.querySelectorAll('.wide')].map((f) => [f.getBoundingClientRect().right, "
                    "f.scrollWidth > f.clientWidth])")  # fmt: skip
    assert all(right <= 390 for right, _ in frames) and frames[0][1]  # the wide table scrolls inside its frame
    opened("(document.querySelector('.wide').scrollLeft = 200, 0)")
    assert opened("document.querySelector('td').getBoundingClientRect().left") < 30  # the name of the row stays
    sizes = opened("[...document.querySelectorAll('.chart')].map((c) => c.clientWidth / c.viewBox.baseVal.width)")
    assert min(sizes) > 0.85  # letters of 11.5 pixels are not much smaller


def test_folded_rows_open_on_click(opened):
    (row,) = [each for each in opened.all("details td:first-child") if each.get_attribute("textContent") == "e_learned"]
    assert not row.is_displayed()
    opened.all("summary")[0].click()
    assert row.is_displayed() and opened.errors() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_color_scheme(opened, scheme):
    opened.media(scheme)
    colors = opened(
        "['body', 'h1', '.chart text', '.chart path'].map((s) => getComputedStyle(document.querySelector(s)))"
        ".map((s, n) => n == 0 ? s.backgroundColor : n == 1 ? s.color : s.fill)"
    )
    dark = [sum(map(int, re.findall(r"\d+", color)[:3])) < 384 for color in colors]
    assert dark == ([False, True, True, False] if scheme == "light" else [True, False, False, True])


def test_print_is_light_and_as_wide_as_the_paper(opened):
    opened.media(width=1030)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert opened("document.documentElement.scrollWidth") == 1030
    assert opened("getComputedStyle(document.body).color") == "rgb(28, 27, 25)"
    opened.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_nothing_is_loaded(opened):
    assert opened("performance.getEntriesByType('resource').length") == 0 and opened.errors() == []
