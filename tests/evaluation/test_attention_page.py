"""The attention page in a real browser: selection, pointing, keyboard, dark mode, phones, and escaping.

selenium drives Chromium; without them, these tests are skipped with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.attention_weights import made_up
from helpers.browser import Page

from t2t_repro.evaluation.attention_view import END_WORD, Focus, write_page

SENTENCE = "The Law will never be perfect <script>document.title='run'</script> ."


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Page]:
    """Returns `opened(focus)`: the page of artificial weights, in three layers of four heads, opened at `focus`."""

    def write_and_open(focus: Focus = Focus()) -> Page:  # noqa: B008 (it is frozen)
        write_page(made_up(SENTENCE), focus, str(tmp_path / "page.html"), "made up")
        page = Page(browser)
        page.media()
        browser.get((tmp_path / "page.html").as_uri())
        return page

    return write_and_open


def chosen(page: Page, group: str) -> list[str]:
    return page.texts(f"#{group} input:checked + span")


def test_initial_page(opened):
    page = opened()
    assert page.texts("#sentence, #translation, #about") == [SENTENCE, SENTENCE.upper(), "made up"]
    assert page.texts("#left button") == [*SENTENCE.split(" "), END_WORD]
    assert (chosen(page, "views"), chosen(page, "layers")) == (["Encoder–decoder"], ["2"])
    assert chosen(page, "heads") == ["1", "2", "3", "4"]
    assert len(page.all("#thumbs button")) == 12 and len(page.all("#thumbs .shown")) == 4
    assert page.ink()[..., 3].any() and page.ink("#thumbs canvas")[..., 3].any()
    assert page.browser.title == f"Attention: {SENTENCE}"  # so the text was not executed
    assert page("document.scripts.length") == 2 and page.errors() == []


def test_selection_by_mouse(opened):
    page = opened()
    for label, group in (("#views label:nth-child(3)", "views"), ("#layers label:nth-child(1)", "layers")):
        page.all(label)[0].click()
        assert chosen(page, group) == page.texts(label)
    assert page.texts("#right button")[0] == "<start>"
    assert "layer 1, all heads" in page.texts("#readout")[0]
    for label in page.all("#heads label")[1:]:
        label.click()
    assert chosen(page, "heads") == ["1"] and len(page.all("#thumbs .shown")) == 1
    page.all("#thumbs button")[4 * 2 + 3].click()
    assert (chosen(page, "layers"), chosen(page, "heads")) == (["3"], ["4"])
    page.all("#thumbs button")[4 * 2 + 3].click()
    assert chosen(page, "heads") == ["1", "2", "3", "4"]
    page.all("#all")[0].click()
    assert chosen(page, "heads") == [] and not page.ink()[..., 3].any()
    assert page.errors() == []


def test_pointing_shows_only_one_word(opened):
    page = opened(Focus(heads=(2,)))
    everything = (page.ink()[..., 3] > 0).sum()
    word = page.all("#left button")[1]
    page.point_at(word)
    assert page.texts("#left .chosen") == ["Law"]
    weights = made_up(SENTENCE).views["memory"].weights[1, 1, 1]
    first = f"Law attends to {SENTENCE.split(' ')[weights.argmax()]} {weights.max():.2f}, "
    assert page.texts("#readout")[0].startswith(first) and page.texts("#readout")[0].endswith("(layer 2, head 2)")
    ink = page.ink()
    assert 0 < (ink[..., 3] > 0).sum() < everything / 3
    rows = np.flatnonzero(ink[:, 3, 3])  # at the left edge all lines start at the same word
    middle = page("(() => { const b = document.querySelectorAll('#left button')[1]; return b.offsetTop"
                  " - b.parentNode.offsetTop + b.offsetHeight / 2; })()")  # fmt: skip
    assert abs(rows.mean() - middle) < 2 and np.ptp(rows) < 8
    # the color of attended words is their weight
    bands = page("[...document.querySelectorAll('#right button')].map((b) => b.style.background)")
    alphas = [float(band.split("rgba(")[1].split(")")[0].split(",")[3]) if "rgba(" in band else 1 for band in bands]
    assert np.argmax(alphas) == weights.argmax() and page.all("#left .faint")

    page.point_at(page.all("#sentence")[0])
    assert not page.all(".chosen") and (page.ink()[..., 3] > 0).sum() == everything
    page.point_at(page.all("#right button")[3])
    assert page.texts("#right .chosen") == ["never"] and " is attended to by " in page.texts("#readout")[0]


def test_selected_word_stays(opened):
    page = opened(Focus(word="never"))
    assert page.texts("#left .chosen") == ["never"]
    page.all("#left button")[1].click()
    page.point_at(page.all("#sentence")[0])
    assert page.texts("#left .chosen") == ["Law"]
    page.all("#layers label")[2].click()
    assert page.texts("#left .chosen") == ["Law"] and "layer 3" in page.texts("#readout")[0]
    page.all("#left button")[1].click()
    assert not page.all("[aria-pressed=true].chosen")
    page.all("#views label")[0].click()
    assert not page.all(".chosen")


def test_keyboard_only(opened):
    page = opened()
    page.press("TAB")
    page.press("ARROW_LEFT")
    assert chosen(page, "views") == ["Encoder"]
    page.press("TAB")
    page.press("ARROW_RIGHT")
    assert chosen(page, "layers") == ["3"]
    page.press("TAB")
    page.press("SPACE")
    assert chosen(page, "heads") == ["2", "3", "4"]
    for _ in range(5):  # three more heads, All, and the words
        page.press("TAB")
    assert page.texts("#left .chosen") == ["The"]
    page.press("ARROW_DOWN")
    page.press("ENTER")
    assert page.texts("#left .chosen[aria-pressed=true]") == ["Law"]
    page.press("ARROW_RIGHT")
    assert page.texts("#right .chosen") == ["Law"]
    page.press("END")
    assert page.texts("#right .chosen") == [END_WORD]
    page.press("ESCAPE")
    assert not page.all(".chosen")
    page.press("TAB")
    page.press("ARROW_DOWN")
    page.press("ARROW_RIGHT")
    page.press("ENTER")
    assert (chosen(page, "layers"), chosen(page, "heads")) == (["2"], ["2"])
    assert page.errors() == []


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in color.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_readable_in_both_color_schemes(opened, scheme):
    """Text and the numbers on the heads' colors have at least WCAG 2's contrast of 4.5."""
    page = opened(Focus(word="Law"))
    page.media(scheme)
    pairs = [("h1", "body"), (".about", "body"), (".readout", ".card"), (".hint", ".card"), (".chosen", ".chosen")]
    pairs += [(f"#heads label:nth-of-type({n}) span",) * 2 for n in range(1, 5)]
    for text, background in pairs:
        colors = [
            page(f"getComputedStyle(document.querySelector({selector!r})).{which}")
            for selector, which in ((text, "color"), (background, "backgroundColor"))
        ]
        dim, bright = sorted(map(luminance, colors))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, *colors)
    assert (luminance(page("getComputedStyle(document.body).backgroundColor")) < 0.1) == (scheme == "dark")


def test_dark_mode_redraws(opened):
    page = opened(Focus(heads=(1,), word="Law"))
    light = page.ink()
    page.media("dark")
    dark = page.ink()
    assert light.shape == dark.shape

    def strongest(ink):
        return ink[ink[..., 3] == ink[..., 3].max()].astype(int)[:, :3].mean()

    assert strongest(dark) > strongest(light) + 20


def test_phone(opened):
    page = opened()
    page.media(width=360, height=740, phone=True)
    assert page("document.documentElement.scrollWidth") == 360
    cards = page("[...document.querySelectorAll('.card')].map((c) => c.getBoundingClientRect().toJSON())")
    assert cards[0]["bottom"] < cards[1]["top"] and all(card["right"] <= 360 for card in cards)
    wide = page("[...document.querySelectorAll('.segments')].map((s) => [s.offsetHeight, s.offsetWidth])")
    assert all(height < 45 and width < 340 for height, width in wide)  # no label wraps to a second line
    canvas, box = page.ink(), page("document.querySelector('.lines').getBoundingClientRect().toJSON()")
    assert canvas.shape[:2] == (round(box["height"]), round(box["width"])) and canvas[..., 3].any()
    page.all("#left button")[2].click()
    assert page.texts("#left .chosen") == ["will"]
