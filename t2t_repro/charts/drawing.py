"""Charts as SVG: panels of curves, and differences from a reference, drawn by Matplotlib.

Each curve has its name at its right end, so no legend covers a curve. Axes have round numbers; titles give units. The
colors are those of `PALETTE`: light ones in the file, and dark ones by a media query for a reader in dark mode. Sizes
are CSS pixels.
"""

from __future__ import annotations

import html
import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]

PALETTE = {  # light: dark; each has a contrast above 4.5 with its background, except for the grid
    "#ffffff": "#1a1b20",  # background
    "#1c1b19": "#eceae5",  # titles
    "#67645d": "#a09d96",  # numbers and reference curves
    "#e2dfd8": "#33343b",  # grid
    "#2c5fd4": "#8fb0ff",
    "#b8500a": "#ff9d5c",
    "#157a39": "#5fd08a",
    "#8b3fb8": "#d09bf0",
    "#c0262d": "#ff8f8f",
    "#0b747e": "#4fc8d3",
    "#806400": "#dcc14d",
}
BACKGROUND, INK, SOFT, GRID, *COLORS = PALETTE
WIDTH, HEIGHT = 380, 250  # of a panel: as wide as a phone
_TOP, _BOTTOM, _LEFT, _RIGHT = 52, 42, 60, 28
_TITLE, _TEXT = 14, 11.5  # font sizes
_LETTER = 0.62 * _TEXT  # upper limit of a letter's mean width
_ROUND = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))  # numbers of a decade on a log axis
_MOST_POINTS = 400  # of a curve: about one per pixel
_LONGEST = 22  # letters of the name of a curve


@dataclass(frozen=True)
class Curve:
    """A named curve. `color` is one of `COLORS`, or `SOFT` for a reference."""

    name: str
    points: Sequence[Point]
    color: str = COLORS[0]


@dataclass(frozen=True)
class Panel:
    """Curves on common axes. `unit` is of the vertical axis, `x` the label of the horizontal one.

    `log` lists the logarithmic axes, "x", "y" or "xy". A logarithmic horizontal axis has its numbers at the points.
    `zero` includes 0 in the vertical axis.
    """

    title: str
    unit: str
    x: str
    curves: tuple[Curve, ...]
    log: str = ""
    zero: bool = False


def panels_svg(panels: Sequence[Panel], columns: int = 1, title: str = "") -> str:
    """Returns the panels in rows of `columns` as an SVG element."""
    return _svg(panels_figure(panels, columns, title), title or ", ".join(panel.title for panel in panels))


def panels_figure(panels: Sequence[Panel], columns: int, title: str) -> Figure:
    """Returns the panels in rows of `columns`, under a title if it is not empty."""
    rows, head = math.ceil(len(panels) / columns), 34 if title else 0
    figure = _figure(columns * WIDTH, rows * HEIGHT + head)
    if title:
        _write(figure, 16, 24, title, color=INK, fontsize=_TITLE + 2, fontweight="bold")
    named = [_short(curve.name) for panel in panels if len(panel.curves) > 1 for curve in panel.curves]
    width = WIDTH - _LEFT - _RIGHT - (_LETTER * max(map(len, named)) - 12 if named else 0)  # equal, so that steps align
    for number, panel in enumerate(panels):
        _draw_panel(figure, panel, number % columns * WIDTH, number // columns * HEIGHT + head, width)
    return figure


def differences_svg(rows: Sequence[tuple[str, float, float]], title: str, unit: str, names: tuple[str, str]) -> str:
    """Returns an SVG element with a line per row from its first value, a ring, to its second, a dot.

    `rows` are (label, first, second), and `names` are the names of the two values.
    """
    labels = [_short(label) for label, _, _ in rows]
    left = 22 + _LETTER * max(map(len, labels))
    width, top, step = WIDTH, _TOP + 10, 22
    figure = _figure(width, top + step * len(rows) + _BOTTOM)
    axes = _axes(figure, left, top, width - left - _RIGHT, step * len(rows))
    _write(figure, 16, 22, title, color=INK, fontsize=_TITLE, fontweight="bold")
    start = 16.0
    for name, color, filled in zip(names, (SOFT, COLORS[0]), (False, True), strict=True):
        figure.add_artist(_dot(figure, start + 5, 42, color, filled))
        _write(figure, start + 16, 46, name, color=color)
        start += 30 + 0.9 * _LETTER * len(name)
    axes.axvline(0, color=SOFT, linewidth=1)
    for place, (_, first, second) in enumerate(rows):
        axes.plot([first, second], [place, place], color=COLORS[0], linewidth=1.5, alpha=0.45)
        axes.plot(first, place, "o", color=SOFT, markersize=6, markerfacecolor=BACKGROUND, markeredgewidth=1.5)
        axes.plot(second, place, "o", color=COLORS[0], markersize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), labels)
    axes.grid(axis="x", color=GRID, linewidth=1)
    axes.set_xlabel(unit, color=SOFT, fontsize=_TEXT)
    _set_linear_ticks(axes.xaxis, 5)
    return _svg(figure, title)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Returns at most `_MOST_POINTS` points: means of equally many neighbors, each at the last of their places."""
    size = math.ceil(len(points) / _MOST_POINTS)
    if size < 2:
        return list(points)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [(group[-1][0], math.fsum(value for _, value in group) / len(group)) for group in groups]


def _figure(width: float, height: float) -> Figure:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports that it builds its font cache
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), facecolor=BACKGROUND)


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Returns axes whose frame is at these pixels from the left and the top."""
    full_width, full_height = (72 * inches for inches in figure.get_size_inches())
    bottom = full_height - top - height
    axes = figure.add_axes(
        (left / full_width, bottom / full_height, width / full_width, height / full_height), facecolor=BACKGROUND
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelsize=_TEXT, length=0, pad=6, which="both")
    axes.set_axisbelow(True)
    return axes


def _write(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """Writes at pixels from the left and the top."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    figure.text(x / width, 1 - y / height, text, **{"fontsize": _TEXT, "parse_math": False, **style})


def _dot(figure: Figure, x: float, y: float, color: str, filled: bool) -> Any:
    from matplotlib.lines import Line2D

    width, height = (72 * inches for inches in figure.get_size_inches())
    style: dict[str, Any] = {"color": color, "markersize": 6, "markeredgewidth": 1.5}
    fill = color if filled else BACKGROUND
    return Line2D([x / width], [1 - y / height], marker="o", linestyle="", markerfacecolor=fill, **style)


def _draw_panel(figure: Figure, panel: Panel, left: float, top: float, width: float) -> None:
    height = HEIGHT - _TOP - _BOTTOM
    axes = _axes(figure, left + _LEFT, top + _TOP, width, height)
    _write(figure, left + 16, top + 22, panel.title, color=INK, fontsize=_TITLE, fontweight="bold")
    _write(figure, left + 16, top + 38, panel.unit, color=SOFT)
    for curve in panel.curves:
        xs, ys = zip(*curve.points, strict=True)
        few: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(xs) <= 30 else {}
        axes.plot(xs, ys, color=curve.color, linewidth=1.6, solid_joinstyle="round", **few)
    axes.set_xlabel(panel.x, color=SOFT, fontsize=_TEXT)
    axes.grid(axis="y", color=GRID, linewidth=1)
    _scale(axes, panel)
    if len(panel.curves) > 1:
        _name_curves(axes, panel.curves, height)


def _scale(axes: Axes, panel: Panel) -> None:
    """Sets the limits of the axes, and round numbers."""
    xs = sorted({x for curve in panel.curves for x, _ in curve.points})
    if "x" in panel.log:
        axes.set_xscale("log")
        axes.set_xticks(xs, [_number(x) for x in xs])
        axes.xaxis.minorticks_off()
    else:
        axes.set_xlim(0, 1.02 * xs[-1] or 1)
        _set_linear_ticks(axes.xaxis, 5)
    if "y" in panel.log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = _log_ticks(low, high)
        axes.set_yticks(ticks, [_number(tick) for tick in ticks])
        axes.yaxis.minorticks_off()
        axes.set_ylim(low, high)
    else:
        if panel.zero:
            axes.set_ylim(0, 1.06 * max(y for curve in panel.curves for _, y in curve.points) or 1)
        _set_linear_ticks(axes.yaxis, 5)


def _set_linear_ticks(axis: Any, most: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _log_ticks(low: float, high: float) -> list[float]:
    """Returns three to eight round numbers from `low` to `high`."""
    from matplotlib.ticker import MaxNLocator

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in _ROUND:
        found = [digit * 10.0**decade for decade in decades for digit in digits]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 8)]
    return [float(tick) for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]


def _number(value: float) -> str:
    """Returns a number with at most four digits after leading zeros, with separators and a typographic minus."""
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}") if value else "0"


def _name_curves(axes: Axes, curves: Sequence[Curve], height: float) -> None:
    """Writes the name of each curve at the right, at the height of its last point, or the nearest free one."""
    axes.figure.canvas.draw()  # fixes the limits of the axes
    (_, low), (_, high) = axes.transAxes.transform([(0, 0), (1, 1)])
    ends = [axes.transData.transform(curve.points[-1])[1] for curve in curves]
    places = _apart([height * (end - low) / (high - low) for end in ends], _TEXT + 2, height)
    for curve, place in zip(curves, places, strict=True):
        style: dict[str, Any] = {"color": curve.color, "fontsize": _TEXT, "va": "center", "parse_math": False}
        beside: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (6, 0), "textcoords": "offset points"}
        axes.annotate(_short(curve.name), (1, place / height), **beside, **style)


def _short(name: str) -> str:
    """Returns the name, without its middle if it is too long: names of runs often differ at the end."""
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[: half - 1]}…{name[-half:]}"


def _apart(places: Sequence[float], gap: float, height: float) -> list[float]:
    """Returns the places moved to be at least `gap` apart, from 0 to `height` if there is room."""
    order = sorted(range(len(places)), key=lambda each: places[each])
    moved: list[float] = []
    for each in order:
        moved.append(max(places[each], moved[-1] + gap if moved else 0.0))
    limit = height
    for place in reversed(range(len(moved))):
        moved[place] = limit = min(moved[place], limit)
        limit -= gap
    return [place for _, place in sorted(zip(order, moved, strict=True))]


def _svg(figure: Figure, label: str) -> str:
    """Returns a figure as an SVG element with text as text, in the reader's colors and font."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "t2t_repro", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    body = file.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'(<g) id="[^"]*"', r"\1", body)  # several pictures may be in one page
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    head = f'<svg class="chart" role="img" aria-label="{html.escape(label)}" width="{width}" height="{height}" '
    body = re.sub(
        r'<svg(.*?) width="[^"]*" height="[^"]*" ', lambda found: head + found[1].strip() + " ", body, count=1
    )
    return body.replace("<defs>", f"<style>{_STYLE}</style>\n <defs>", 1)


def _dark() -> Iterator[str]:
    for light, dark in PALETTE.items():
        for which in ("fill", "stroke"):
            # without ".chart": Matplotlib's markers are clones, whose rules see no ancestor
            yield f'[style*="{which}: {light}"]{{{which}:{dark}!important}}'


_STYLE = (
    "svg:root{color-scheme:light dark}"
    ".chart text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif!important}"
    f"@media screen and (prefers-color-scheme:dark){{{''.join(_dark())}}}"
)
