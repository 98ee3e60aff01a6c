"""A comparison of two systems as one self-contained HTML page: scores with their tests, a chart, and sentences."""

from __future__ import annotations

import difflib
import html
from collections.abc import Sequence

from t2t_repro.charts.drawing import Curve, Panel, panels_svg, thinned
from t2t_repro.evaluation.comparison import SIGNIFICANT, Comparison, Sentence, interval, size, texts, verdicts
from t2t_repro.evaluation.report_page import charts_html, filled, table_html

_HEADING = ("metric", "A", "B", "B − A", "95% interval", "p, bootstrap", "p, randomization")


def as_html(result: Comparison) -> str:
    """Returns the page. Words that only one of two outputs has are marked."""
    rows = [
        [each.metric, f"{each.a:.2f}", f"{each.b:.2f}", f"{each.difference:+.2f}", interval(each)]
        + [f"{each.bootstrap_p:.4f}", f"{each.randomization_p:.4f}"]
        for each in result.differences
    ]
    parts = table_html(_HEADING, rows)
    signatures = "<br>".join(f"{each.metric}: {each.signature}" for each in result.differences)
    meaning = (
        "The 95% interval of the difference is from paired bootstrap resampling. p is the probability of so large a "
        f"difference between systems of equal quality; a system is better if both tests have p &lt; {SIGNIFICANT}."
    )
    parts += [f"<p>{meaning}</p>", f"<p>{signatures}</p>", *charts_html([_chart(result)])]
    for name, sentences in (("B", result.better_b), ("A", result.better_a)):
        if sentences:
            parts += ["<section>", f"<h2>Sentences in which {name} is better, by {result.ranked_by}</h2>"]
            parts += [*(line for each in sentences for line in _sentence(each)), "</section>"]
    about = f"A: {html.escape(result.name_a)}<br>B: {html.escape(result.name_b)}<br>"
    about += f"{size(result)}.<br>{verdicts(result)}."
    return filled("Comparison of two systems", about, parts)


def _chart(result: Comparison) -> str:
    """Returns the differences of all sentences in ascending order: how many are better, and by how much."""
    points = thinned([(number, gain) for number, gain in enumerate(sorted(result.gains), start=1)])
    title = f"{result.ranked_by} of single sentences"
    panel = Panel(title, "B − A, in ascending order", "sentences", (Curve("B − A", points),))
    return panels_svg([panel])


def _sentence(each: Sentence) -> list[str]:
    marked = dict(zip("AB", _marked(each.output_a, each.output_b), strict=True))
    lines = [f"<h3>Sentence {each.number:,}: {each.a:.1f} by A, {each.b:.1f} by B</h3>", '<dl class="texts">']
    for name, text in texts(each):
        lines.append(f'<dt>{name}</dt><dd dir="auto">{marked.get(name, html.escape(text))}</dd>')
    return [*lines, "</dl>"]


def _marked(a: str, b: str) -> tuple[str, str]:
    """Returns two texts as HTML, with the words marked that the other one does not have in this order."""
    words = a.split(), b.split()
    blocks = difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes()
    return (
        " ".join(_words(words[0][i:j], kind != "equal") for kind, i, j, _, _ in blocks if i < j),
        " ".join(_words(words[1][i:j], kind != "equal") for kind, _, _, i, j in blocks if i < j),
    )


def _words(words: Sequence[str], is_marked: bool) -> str:
    text = html.escape(" ".join(words))
    return f"<mark>{text}</mark>" if is_marked else text
