"""Charts: marks where the values are, names beside curves, round numbers, and both color schemes."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from t2t_repro.charts.drawing import COLORS, PALETTE, SOFT, Curve, Panel, differences_svg, panels_svg, thinned

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [(100, 8.0), (200, 4.0), (300, 2.0)]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def heights(svg: str) -> dict[str, float]:
    """Returns the distance of each text from the top."""
    found = {}
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        place = element.get("y") or re.search(r"translate\(\S+ (\S+)\)", element.get("transform"))[1]
        found[(element.text or "").strip()] = float(place)
    return found


def path(svg: str, color: str) -> list[tuple[float, float]]:
    """Returns the points of the line of that color."""
    [drawn] = [
        element.get("d")
        for element in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"stroke: {color}; stroke-width: 1.6" in element.get("style", "") and "fill: none" in element.get("style")
    ]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", drawn)]


def test_curve_is_where_its_values_are():
    points = path(panels_svg([Panel("Loss", "nats", "steps", (Curve("training", STEPS),))]), COLORS[0])
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x2 - x1 == pytest.approx(x3 - x2) and y1 < y2 < y3  # down is up in SVG
    assert (y2 - y1) / (y3 - y2) == pytest.approx(2, rel=1e-4)


def test_logarithmic_axis():
    svg = panels_svg([Panel("Perplexity", "per token", "steps", (Curve("training", STEPS),), log="y")])
    (_, y1), (_, y2), (_, y3) = path(svg, COLORS[0])
    assert y2 - y1 == pytest.approx(y3 - y2, rel=1e-4)
    assert {"2", "5"} <= set(texts(svg))


@pytest.mark.parametrize("values", [(1e-9, 3e-5), (1.0, 1.01), (3.2, 9.1), (1.0, 1e30), (5.0, 5.0)])
def test_logarithmic_axis_has_few_numbers_in_any_range(values):
    svg = panels_svg([Panel("x", "y", "", (Curve("a", list(enumerate(values, start=1))),), log="y")])
    numbers = [text for text in texts(svg) if text not in ("x", "y", "")]
    assert 3 <= len(numbers) <= 8 + 6  # with those of the horizontal axis


def test_names_stand_apart_at_the_ends_of_their_curves():
    curves = tuple(Curve(f"curve {n}", [(1, 9 - n), (2, 5 + n / 1000)], COLORS[n]) for n in range(4))
    at = heights(panels_svg([Panel("x", "y", "", curves)]))
    names = [at[f"curve {n}"] for n in range(4)]
    assert names == sorted(names, reverse=True)
    assert min(high - low for low, high in zip(names[1:], names, strict=False)) >= 13


def test_names_stay_beside_the_panel():
    curves = tuple(Curve(f"curve {n}", [(1, 9), (2, n / 1000)], COLORS[n]) for n in range(6))
    at = heights(panels_svg([Panel("x", "y", "", curves)]))
    assert all(52 <= at[f"curve {n}"] <= 250 - 42 + 6 for n in range(6))


def test_long_names_leave_room_for_the_curve():
    curves = tuple(Curve(letter * 99, STEPS, color) for letter, color in zip("ab", COLORS, strict=False))
    svg = panels_svg([Panel("x", "y", "", curves)])
    (first, _), _, (last, _) = path(svg, COLORS[0])
    assert last - first > 80 and "a" * 10 + "…" + "a" * 11 in texts(svg)


def test_several_panels_have_their_titles_and_units():
    panels = [Panel(f"title {n}", f"unit {n}", "steps", (Curve("a", STEPS),)) for n in range(3)]
    svg = panels_svg(panels, columns=2, title="all")
    assert {"all", "title 0", "unit 2"} <= set(texts(svg))
    assert 'width="760" height="534"' in svg and 'aria-label="all"' in svg


def test_single_point_is_drawn():
    svg = panels_svg([Panel("Loss", "nats", "steps", (Curve("training", STEPS[:1]),))])
    assert any(COLORS[0] in each.get("style", "") for each in ElementTree.fromstring(svg).iter(f"{SVG}use"))


def test_every_color_has_a_dark_twin():
    svg = panels_svg([Panel("x", "y", "z", tuple(Curve(f"{n}", STEPS, color) for n, color in enumerate(COLORS)))])
    style, _, body = svg.partition("</style>")
    used = set(re.findall(r"(?:fill|stroke): (#\w+)", body))
    assert used <= set(PALETTE)
    assert all(f"{light}" in style and dark in style for light, dark in PALETTE.items() if light in used)


def test_text_is_escaped():
    svg = panels_svg([Panel("<b>", "&", "$x$", (Curve("<i>", STEPS), Curve("b", STEPS)))], title='"<')
    assert {"<b>", "&", '"<'} <= set(texts(svg))


def test_same_chart_has_same_bytes():
    panels = [Panel("Loss", "nats", "steps", (Curve("training", STEPS),))]
    assert panels_svg(panels) == panels_svg(panels)


def test_differences_are_a_row_each():
    rows = [("first", -1.0, 2.0), ("second", 0.5, -15.0)]
    svg = differences_svg(rows, "BLEU over base", "BLEU", ("printed", "measured"))
    assert {"BLEU over base", "printed", "measured", "first", "second"} <= set(texts(svg))
    dots: dict[str, list[tuple[float, float]]] = {SOFT: [], COLORS[0]: []}
    for each in ElementTree.fromstring(svg).iter(f"{SVG}use"):
        place = float(each.get("x")), float(each.get("y"))
        for color, places in dots.items():
            if f"stroke: {color}" in each.get("style", "") and 60 < place[1] < 62 + 2 * 22:  # below the names
                places.append(place)
    (printed1, top), (printed2, bottom) = dots[SOFT]
    (measured1, _), (measured2, _) = dots[COLORS[0]]
    assert top < bottom and measured2 < printed1 < printed2 < measured1
    assert (measured1 - printed1) / (printed2 - measured2) == pytest.approx(3 / 15.5, rel=1e-3)


def test_thinned_curve_keeps_means_and_the_last_step():
    points = [(step, float(step % 2)) for step in range(1, 3001)]
    found = thinned(points)
    assert len(found) <= 400 and found[-1][0] == 3000
    assert all(math.isclose(value, 0.5) for _, value in found)
    assert thinned(points[:400]) == points[:400]
