"""The page of t2t-serve in a real browser: typing, results, escaping, errors, dark mode, and phones.

selenium drives Chromium; without them, these tests are skipped with a reason. The model is a stand-in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from helpers.browser import Page

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from aiohttp.test_utils import TestServer  # noqa: E402
from conftest import CHECKOUT  # noqa: E402
from helpers.capitals import AlignedCapitals, Capitals  # noqa: E402

from benchmarks.page_picture import photographed, with_few_colors  # noqa: E402
from t2t_repro.saved_model import (
    ALIGNED_SIGNATURE,  # noqa: E402
    WITH_TERMS,  # noqa: E402
)
from t2t_repro.serving.app import Server, Settings  # noqa: E402
from t2t_repro.serving.page import render  # noqa: E402
from t2t_repro.task import task_of  # noqa: E402

TestServer.__test__ = False
EXAMPLE = 'a "quoted" text & more'
HOSTILE = "<img src=x onerror=\"document.title='run'\"> & more"


@contextmanager
def serving(model: Capitals) -> Iterator[str]:
    """Yields the address of a server in its own thread."""
    loop = asyncio.new_event_loop()
    server = TestServer(Server(model, "m", Settings()).app)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start_server(), loop).result()
    yield str(server.make_url("/"))
    asyncio.run_coroutine_threadsafe(server.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def address():
    """Returns the address of a server."""
    model = Capitals()
    languages = {"source_language": "en", "target_language": "de"}
    problem = {"name": HOSTILE, "example": EXAMPLE} | languages
    model.card = {"problem": problem, "hparams": {"name": "base"}}
    with serving(model) as found:
        yield found


@pytest.fixture(scope="module")
def aligning():
    """Returns a model that aligns words and takes glossaries, and the address of its server."""
    model = AlignedCapitals()
    model.signatures = model.signatures | {WITH_TERMS: {}}
    with serving(model) as found:
        yield model, found


@pytest.fixture
def page(browser: Any, address: str) -> Page:  # noqa: F811
    shown = Page(browser)
    shown.media()
    browser.get(address)
    return shown


def type_and_send(page: Page, text: str, by_key: bool = False) -> None:
    from selenium.webdriver.common.keys import Keys

    (field,) = page.all("#text")
    field.clear()
    field.send_keys(text)
    if by_key:
        field.send_keys(Keys.CONTROL, Keys.ENTER)
    else:
        page.all("button")[0].click()
    settled(page)


def settled(page: Page) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page.browser, 10).until(lambda _: page("!document.querySelector('button').disabled"))


def lines(page: Page) -> list[str]:
    return page("[...document.querySelectorAll('#out li')].map((item) => item.firstChild?.textContent ?? '')")


def test_button_is_below_the_text_also_beside_a_long_output(page):
    between = "document.querySelector('button').getBoundingClientRect().top - text.getBoundingClientRect().bottom"
    before = page(between)
    type_and_send(page, "a\n" * 60)
    assert len(lines(page)) == 60 and page(between) == before < page("out.offsetHeight") / 10


def test_lines_are_translated_and_text_stays_text(page):
    type_and_send(page, f"one line\n\n  \n{HOSTILE}\n")
    assert lines(page) == ["ONE LINE", "", "", HOSTILE.upper()]
    assert page.texts("#out li > small") == ["score -0.800", f"score -{len(HOSTILE) / 10:.3f}"]
    title = "Translate English to German"
    assert page.texts("h1")[:1] == [title] and page.browser.title == title
    assert page.texts("footer p")[0] == f"Trained on problem {HOSTILE} with hyperparameter set base."
    assert page.texts("footer p")[1] == "Model m, version 3. Programs send text to v1/models/m:predict."
    assert page.texts("#said")[0].endswith(" seconds") and page.errors() == []
    assert page("performance.getEntriesByType('resource').map((e) => new URL(e.name).pathname)") == [
        "/v1/models/m:predict"
    ]


def test_alternatives_are_folded_below_the_best_output(page):
    """The stand-in's second output differs only in a space, so it is not shown."""
    type_and_send(page, "One\n\nTwo")
    assert page.texts("#out summary") == ["1 alternative"] * 2
    (first, second) = page.all("#out details p")
    assert not first.is_displayed()
    page.all("#out summary")[0].click()
    assert first.is_displayed() and not second.is_displayed()
    assert page.texts("#out details p") == ["onescore -3.500", "twoscore -3.500"]


def test_example_is_sent_by_one_click(page):
    page.all("#example")[0].click()
    settled(page)
    assert lines(page) == [EXAMPLE.upper()] and page("document.getElementById('text').value") == EXAMPLE
    assert page.errors() == []


@pytest.mark.parametrize(
    ("problem", "given", "title", "shown"),
    [
        ({"source_language": "en", "target_language": "de", "example": "x"}, "", "Translate English to German", "x"),
        ({"source_language": "en", "example": "x"}, "y", "Translate English", "y"),
        ({}, "", "Translate with NAME", ""),
        ({"source_language": "xx", "target_language": "<b>"}, "", "Translate xx to &lt;b&gt;", ""),
    ],
)
def test_title_and_example(problem, given, title, shown):
    model = Capitals()
    model.card = {"problem": problem}
    rendered = render(model, "NAME", given)
    assert f"<h1>{title}</h1>" in rendered and f'id="example" value="{shown}"' in rendered


def test_parser_has_no_alternatives():
    model = Capitals()
    model.card, model.task = {"problem": {"source_language": "en"}}, task_of("f1")
    rendered = render(model, "NAME")
    assert "<h1>Parse English</h1>" in rendered and 'data-alternatives="1"' in rendered


def test_narrow_beam_limits_the_alternatives():
    model = Capitals()
    for width, wanted in ((1, ("serving_default", 1)), (2, ("translate", 2)), (8, ("translate", 3))):
        takes = model.signatures["translate"]
        model.signatures = model.signatures | {
            "translate": takes | {"beam_size": replace(takes["beam_size"], default=width)}
        }
        assert 'data-signature="{}" data-alternatives="{}"'.format(*wanted) in render(model, "NAME")


def test_page_without_an_example_has_no_button(browser, tmp_path):
    (tmp_path / "page.html").write_text(render(Capitals(), "NAME"), "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    assert not Page(browser).all("#example")[0].is_displayed()


def test_keyboard_only(page):
    assert page("document.activeElement.id") == "text"
    type_and_send(page, "by key", by_key=True)
    assert lines(page) == ["BY KEY"]


def test_error_is_shown_and_the_last_result_stays(page):
    type_and_send(page, "fine")
    page("(document.getElementById('text').value = 'x'.repeat(10001), 0)")
    page.all("button")[0].click()
    settled(page)
    assert page.texts("#said.wrong") == ["'inputs' contains a string of 10,001 characters; at most 10,000"]
    assert lines(page) == ["FINE"]
    type_and_send(page, "defect")
    assert page.texts("#said.wrong") == ["internal error; see the server's log"]
    page.errors()  # the browser logs both responses


def test_empty_text_is_not_sent(page):
    type_and_send(page, "  \n \n")
    assert lines(page) == [] and page("performance.getEntriesByType('resource').length") == 0


def test_dark_mode_and_phone(page):
    light = page("getComputedStyle(document.body).backgroundColor")
    page.media("dark", width=360, height=740, phone=True)
    assert page("getComputedStyle(document.body).backgroundColor") != light
    type_and_send(page, "w" * 300)
    assert page("document.documentElement.scrollWidth") == 360
    boxes = page("[...document.querySelectorAll('form > div')].map((e) => e.getBoundingClientRect().toJSON())")
    assert all(box["right"] <= 360 for box in boxes) and boxes[0]["bottom"] <= boxes[1]["top"]


def aligned(page: Page) -> list[tuple[str, str]]:
    """Returns the marked words, and for each "source" or "target"."""
    side = "item.parentNode.className || 'target'"
    return [
        tuple(pair)
        for pair in page(f"[...document.querySelectorAll('.aligned')].map((item) => [item.textContent, {side}])")
    ]


def test_pointing_at_a_word_shows_what_it_is_aligned_with(page, aligning):
    page.browser.get(aligning[1])
    type_and_send(page, f"one six  two\n{HOSTILE}")
    assert lines(page) == ["ONE SIX  TWO", HOSTILE.upper()] and aligned(page) == []
    assert page.texts("#out .source") == ["one six  two", HOSTILE]
    page.point_at(page.all("#out .word")[1])
    assert aligned(page) == [("SIX", "target"), ("six", "source")]
    assert page.texts("#word") == ["“SIX” is aligned with “six”, probability 25%"]
    page.point_at(page.all("#out .source .word")[2])
    assert aligned(page) == [("TWO", "target"), ("two", "source")]
    assert page.texts("#word") == ["“two” is aligned with “TWO”"]
    page.point_at(page.all("h1")[0])
    assert aligned(page) == [] and page.texts("#word") == [""]
    assert page.errors() == [] and page.browser.title == "Translate English to German"


def test_picture_of_the_documentation_points_at_a_word(page, aligning):
    shown = (CHECKOUT / "docs/page.png").read_bytes()
    drawn = with_few_colors(photographed(page.browser, aligning[1], "one six two", 1))
    assert aligned(page) == [("SIX", "target"), ("six", "source")] and page.texts("#said") == [""]
    assert all(picture.startswith(b"\x89PNG") and len(picture) < 60_000 for picture in (shown, drawn))
    with pytest.raises(ValueError, match=r"Received: 3; words: ONE SIX TWO$"):
        photographed(page.browser, aligning[1], "one six two", 3)
    with pytest.raises(ValueError, match="internal error"):
        photographed(page.browser, aligning[1], "defect", 0)
    page.errors()  # the browser logs the response


def test_words_are_reached_by_keyboard(page, aligning):
    page.browser.get(aligning[1])
    type_and_send(page, "one six two")
    page("(document.querySelector('#out .word').focus(), 0)")
    assert aligned(page) == [("ONE", "target"), ("one", "source")]
    page.press("ARROW_LEFT")  # there is no word before the first
    page.press("ARROW_RIGHT")
    page.press("ARROW_RIGHT")
    assert page("document.activeElement.textContent") == "TWO" and page.texts("#word") == [
        "“TWO” is aligned with “two”, probability 90%"
    ]
    page.press("TAB")  # one stop for each side
    assert aligned(page) == [("ONE", "target"), ("one", "source")]
    page.press("TAB")
    assert page("document.activeElement.tagName") == "SUMMARY" and aligned(page) == []


def test_words_that_the_model_is_unsure_of_are_marked(page, aligning):
    page.browser.get(aligning[1])
    assert not page.all("#legend")[0].is_displayed()
    type_and_send(page, "one six")
    assert page.texts("#out .unsure") == ["SIX"] and page.all("#legend")[0].is_displayed()
    assert page.texts("#out li > small") == ["confidence 50%, score -0.700"]


def test_text_from_right_to_left(page, aligning):
    page.browser.get(aligning[1])
    for line, is_right in (("\u05e9\u05dc\u05d5\u05dd one", True), ("one \u05e9\u05dc\u05d5\u05dd", False)):
        type_and_send(page, line)
        assert page("getComputedStyle(document.querySelector('#text')).direction") == ("rtl" if is_right else "ltr")
        middle = page("(({left, right}) => (left + right) / 2)(document.querySelector('#out').getBoundingClientRect())")
        places = [word.location["x"] for word in page.all("#out .word")]
        assert len(places) == 4 and all((place > middle) == is_right for place in places)


def test_terms_are_sent_as_a_glossary(page, aligning):
    model, address = aligning
    page.browser.get(address)
    page.all("#terms summary")[0].click()
    page.all("#glossary")[0].send_keys("cat = Katze, Kater\n\n Acme \n__proto__ = x=y")
    type_and_send(page, "a cat of Acme")
    found = model.glossaries[-1].required("__proto__: a cat of Acme")
    assert [(each.term, each.forms) for each in found] == [
        ("__proto__", ("x=y",)),
        ("cat", ("Katze", "Kater")),
        ("Acme", ("Acme",)),
    ]
    page.all("#glossary")[0].send_keys("\n = x")
    type_and_send(page, "a cat of Acme")
    assert page.texts("#said.wrong")[0].startswith('"glossary": a term is empty')
    page.errors()  # the browser logs the response


def switched(page: Page, *options: str) -> list[str]:
    """Turns on these switches alone. Returns those that the page shows."""
    for option in page.all("input[type=checkbox]"):
        if option.is_displayed() and option.is_selected() != (option.get_attribute("id") in options):
            option.click()
    return [each.get_attribute("id") for each in page.all("input[type=checkbox]") if each.is_displayed()]


def test_markup_is_kept_if_it_is_switched_on(page, aligning):
    page.browser.get(aligning[1])
    text = "See <b>the\u00a0cat</b> of {0}\n\nx &amp; <i>y</i>"
    type_and_send(page, text)
    assert lines(page)[0] == "SEE <B>THE\u00a0CAT</B> OF {0}"
    assert switched(page, "markup") == ["markup", "documents"]
    type_and_send(page, text)
    assert lines(page) == ["SEE <b>THE\u00a0CAT</b> OF {0}", "", "X &amp; <i>Y</i>"]
    assert page.texts("#out summary") == ["1 alternative"] * 2
    assert page.texts("#out .source") == ["See the\u00a0cat of {0}", "x & y"]
    words = page.all("#out .word")
    assert page("[...document.querySelectorAll('#out .word')].slice(0, 4).map((each) => each.textContent)") == [
        *["SEE", "THE\u00a0CAT", "OF", "{0}"]
    ]
    page.point_at(words[1])
    assert aligned(page) == [("THE\u00a0CAT", "target"), ("the\u00a0cat", "source")]
    assert page.all("#legend")[0].is_displayed() and page.errors() == []


def test_paragraphs_are_translated_as_one_document_if_it_is_switched_on(page, aligning):
    model, address = aligning
    page.browser.get(address)
    assert page.texts("label[for=text]") == ["One sentence per line"]
    switched(page, "documents")
    assert page.texts("label[for=text]") == ["Any number of sentences and paragraphs"]
    text = "Mr. Red came.  He left!\n\n\tWhy?\n"
    page(f"(document.getElementById('text').value = {text!r}, 0)")
    page.all("button")[0].click()
    settled(page)
    assert lines(page) == [text.strip().upper()] and page.texts("#out summary") == ["1 alternative"]
    assert model.calls[-1] == (ALIGNED_SIGNATURE, 3)
    page.point_at(page.all("#out .word")[4])
    assert aligned(page) == [("LEFT!", "target"), ("left!", "source")]
    first, blank, third, *_ = page.all("#out li")[0].text.split("\n")  # as the browser draws it
    assert (first, blank, third.strip()) == ("MR. RED CAME.  HE LEFT!", "", "WHY?") and page.errors() == []


def test_document_with_markup(page, aligning):
    model, address = aligning
    page.browser.get(address)
    switched(page, "markup", "documents")
    text = "<p>Mr. Red came. <b>He left. Why</b>?</p>\n\n<p>See {0}!</p>"
    type_and_send(page, text)
    assert lines(page) == ["<p>MR. RED CAME. <b>HE LEFT. WHY</b>?</p>\n\n<p>SEE {0}!</p>"] and page.errors() == []
    assert model.calls[-1] == (ALIGNED_SIGNATURE, 4)
    page.point_at(page.all("#out .word")[6])
    assert aligned(page) == [("SEE", "target"), ("See", "source")]


def test_switches_appear_only_if_model_and_packages_support_them(browser, tmp_path):
    parser, unsplit, aligned = AlignedCapitals(), Capitals(), AlignedCapitals()
    parser.task, unsplit.has_splitter, aligned.has_splitter = task_of("f1"), False, False
    for model, wanted in ((parser, []), (unsplit, []), (aligned, ["markup"]), (Capitals(), ["documents"])):
        (tmp_path / "page.html").write_text(render(model, "NAME"), "utf-8")
        browser.get((tmp_path / "page.html").as_uri())
        assert switched(Page(browser)) == wanted


def test_aligned_words_on_a_phone(page, aligning):
    page.media("dark", width=360, height=740, phone=True)
    page.browser.get(aligning[1])
    type_and_send(page, "w" * 300 + " six")
    page.all("#terms summary")[0].click()
    assert page("document.documentElement.scrollWidth") == 360
    page.all("#out .word")[1].click()
    assert aligned(page) == [("SIX", "target"), ("six", "source")]
