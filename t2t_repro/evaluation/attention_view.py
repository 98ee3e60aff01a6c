"""Visualization of attention (Figures 3 to 5): the attention weights of one sentence, as a page and as a figure.

Shapes: N layers, H heads, L target length, M source length.

    shown = attend(t2t_repro.load("RUN"), "The Law will never be perfect .")
    write_page(shown, Focus(), "attention.html")
"""

from __future__ import annotations

import base64
import colorsys
import html
import importlib.resources
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2t_repro.inference.translator import Translator
from t2t_repro.io import atomic_write, target_of
from t2t_repro.text.token_ids import EOS

MOST_TOKENS = 128  # per side: a page of the base model then has 6 MB
START_WORD, END_WORD = "<start>", "<end>"
VIEWS = ("encoder", "memory", "decoder")


@dataclass(frozen=True)
class View:
    """One kind of attention: `weights` [N, H, left, right], float32, of each word on the left over those on the right.

    A word is a subword of the vocabulary, with the space before it if there is one.
    """

    name: str
    left: list[str]
    right: list[str]
    weights: np.ndarray


@dataclass(frozen=True)
class Attention:
    """The attention weights of a model that reads `source` and writes `target`, in the three views of `VIEWS`."""

    source: str
    target: str
    views: dict[str, View]

    @property
    def heads(self) -> int:
        """The number of heads of each layer."""
        return self.views["encoder"].weights.shape[1]


@dataclass(frozen=True)
class Focus:
    """The initial selection. Layers and heads count from 1; the default is the second to last layer, as in Figure 3.

    The default view is encoder-decoder attention, which connects the two languages. `word` selects a word on the left;
    "" selects all.
    """

    view: str = "memory"
    layer: int | None = None
    heads: tuple[int, ...] = ()
    word: str = ""


@dataclass(frozen=True)
class _Shown:
    """A `Focus` resolved for an `Attention`. Layers, heads and words count from 0."""

    view: View
    layer: int
    heads: list[int]
    words: list[int]  # positions on the left, [] for all


def attend(translator: Translator, source: str, target: str | None = None) -> Attention:
    """Returns the weights of a model that reads `source` and writes `target`; by default its own translation.

    Raises ValueError for an empty source and for more than `MOST_TOKENS` tokens on either side.
    """
    if not source.strip():
        raise ValueError("the sentence is empty; give some text")
    if translator.constraint is not None:
        (source,), _ = translator.constraint.required_words([source])  # as a parser reads it
    source_ids = _encode(translator, source, "sentence")
    if target is None:
        (target,) = translator.translate([source])
    target_ids = _encode(translator, target, "translation")
    weights = translator.model.attention(source_ids, target_ids)
    read, written = _words(translator, source_ids), _words(translator, target_ids)
    sides = {"encoder": (read, read), "memory": (written, read), "decoder": (written, [START_WORD, *written[:-1]])}
    views = {name: View(name, *sides[name], np.concatenate(getattr(weights, name))) for name in VIEWS}
    return Attention(source, target, views)


def _encode(translator: Translator, text: str, what: str) -> np.ndarray:
    (ids,) = translator.vocabulary.encode([text])
    if len(ids) > MOST_TOKENS:
        raise ValueError(f"the {what} has {len(ids)} tokens; at most {MOST_TOKENS} can be shown: give a shorter one")
    return np.array([ids], np.int32)


def _words(translator: Translator, ids: np.ndarray) -> list[str]:
    """Returns each token as text. A token that is part of a character is U+FFFD."""
    tokens = ids[0].tolist()
    texts = translator.vocabulary.decode([[token] for token in tokens])
    return [END_WORD if token == EOS else text for token, text in zip(tokens, texts, strict=True)]


# The initial selection.


def _resolve(attention: Attention, focus: Focus) -> _Shown:
    """Returns the resolved focus. Raises ValueError if the view, layer, head or word does not exist."""
    if focus.view not in VIEWS:
        raise ValueError(f"the view must be one of {', '.join(VIEWS)}, got {focus.view!r}")
    view, heads = attention.views[focus.view], attention.heads
    layers = len(view.weights)  # of the encoder or of the decoder
    layer = max(layers - 1, 1) if focus.layer is None else focus.layer
    if not 1 <= layer <= layers:
        raise ValueError(f"there is no layer {layer}: this view has layers 1 to {layers}")
    for head in focus.heads:
        if not 1 <= head <= heads:
            raise ValueError(f"there is no head {head}: this model has heads 1 to {heads}")
    chosen = sorted({head - 1 for head in focus.heads} or range(heads))
    return _Shown(view, layer - 1, chosen, _places(view.left, focus.word) if focus.word else [])


def _places(subwords: list[str], word: str) -> list[int]:
    """Returns the positions of the subwords that spell the first occurrence of `word`."""
    words: list[tuple[str, list[int]]] = []
    for place, subword in enumerate(subwords):
        if not words or subword.startswith(" ") or subword == END_WORD:
            words.append(("", []))
        text, places = words[-1]
        words[-1] = (text + subword, [*places, place])
    for bare in (str.strip, lambda text: text.strip(" .,;:!?\"'()")):
        for text, places in words:
            if bare(text) == word:
                return places
    raise ValueError(
        f"no word {word!r} on the left of this view; the words are: {' '.join(text.strip() for text, _ in words)}"
    )


_ON_WHITE, _ON_BLACK = 0.155, 0.38  # luminance of colors: white text on the first has a contrast above 4.5


def _colors(heads: int, luminance: float) -> list[str]:
    """Returns a color per head, "#rrggbb": evenly spaced hues of equal luminance, so that no head looks weaker."""
    colors = []
    for head in range(heads):
        hue = (0.6 + head / heads) % 1
        low, high = 0.0, 1.0
        for _ in range(20):
            lightness = (low + high) / 2
            rgb = colorsys.hls_to_rgb(hue, lightness, 0.75)
            low, high = (low, lightness) if _luminance(rgb) > luminance else (lightness, high)
        colors.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return colors


def _luminance(rgb: tuple[float, float, float]) -> float:
    """Returns the relative luminance of an sRGB color, as defined in WCAG 2."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# The page.

_TITLES = {
    "encoder": ("Encoder", "a word of the sentence", "words it attends to", "The encoder reads the sentence."),
    "memory": (
        "Encoder–decoder",
        "the word being written",
        "words of the sentence",
        "The decoder attends to the sentence while it writes each word.",
    ),
    "decoder": (
        "Decoder",
        "the word being written",
        "words written before",
        "The decoder attends to the words it has written.",
    ),
}


def write_page(attention: Attention, focus: Focus, path: str, about: str = "") -> None:
    """Writes one self-contained HTML file with all views, layers and heads, with `focus` selected.

    `about` describes the origin of the weights. Raises ValueError if `focus` does not exist in `attention`.
    """
    page = _page(attention, _resolve(attention, focus), about)
    with atomic_write(target_of(path)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(page)


def _page(attention: Attention, shown: _Shown, about: str) -> str:
    heads = attention.heads
    data = {
        "sentence": attention.source,
        "target": attention.target,
        "about": about,
        "heads": heads,
        "specials": [START_WORD, END_WORD],
        "colors": {"light": _colors(heads, _ON_WHITE), "dark": _colors(heads, _ON_BLACK)},
        "views": [_packed(view) for view in attention.views.values()],
        "start": {
            "view": VIEWS.index(shown.view.name),
            "layer": shown.layer,
            "heads": shown.heads,
            "words": shown.words,
        },
    }
    filled = {
        # a "<" in a sentence could end the surrounding script
        "DATA": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        "TITLE": html.escape(f"Attention: {attention.source}"),
    }
    template = importlib.resources.files(__package__).joinpath("attention_view.html").read_text("utf-8")
    return re.sub(r"\{\{(DATA|TITLE)\}\}", lambda found: filled[found[1]], template)


def _packed(view: View) -> dict[str, Any]:
    """Returns a view as JSON values; weights are multiples of 1/65535, as little-endian 16-bit integers in base64."""
    title, left_is, right_is, note = _TITLES[view.name]
    whole = np.rint(view.weights * 65535).astype("<u2")
    return {
        "name": view.name,
        "title": title,
        "left_is": left_is,
        "right_is": right_is,
        "note": note,
        "left": view.left,
        "right": view.right,
        "layers": len(view.weights),
        "weights": base64.b64encode(whole.tobytes()).decode("ascii"),
    }


# The figure.


def write_figure(attention: Attention, focus: Focus, path: str) -> None:
    """Writes a PNG like Figures 3 to 5: the words twice, and lines whose opacity is the weight, in the color of the
    head.

    Raises ValueError if `focus` does not exist in `attention`.
    """
    shown = _resolve(attention, focus)
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    left, right = shown.view.left, shown.view.right
    figure = Figure(figsize=(0.3 * max(len(left), len(right)), 2.0), dpi=200)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, max(len(left), len(right)) - 0.5), ylim=(0, 1))
    axes.axis("off")
    for words, y, side in ((left, 1.04, "bottom"), (right, -0.04, "top")):
        for x, word in enumerate(words):
            faint = side == "bottom" and shown.words and x not in shown.words
            style: dict[str, Any] = {"alpha": 0.35 if faint else 1, "fontsize": 9, "parse_math": False}
            axes.text(x, y, word.strip() or "␣", rotation=90, ha="center", va=side, **style)
    head_colors = _colors(attention.heads, _ON_WHITE)
    for place, head in enumerate(shown.heads):
        weights = shown.view.weights[shown.layer, head]
        pairs = [(i, j) for i in (shown.words or range(len(left))) for j in range(len(right)) if weights[i, j] > 0.005]
        aside = (place - (len(shown.heads) - 1) / 2) * min(0.08, 0.5 / len(shown.heads))  # the heads side by side
        segments = [[(i + aside, 1.0), (j + aside, 0.0)] for i, j in pairs]
        style = {"colors": head_colors[head], "linewidths": 1.6, "capstyle": "round", "clip_on": False}
        opacity = [float(weights[pair]) for pair in pairs] or None  # an empty list is an error
        axes.add_collection(LineCollection(segments, alpha=opacity, **style))
    with atomic_write(target_of(path)) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight", pad_inches=0.1)
