"""The pictures of the documentation, drawn from the tables of the pages that show them.

    python -m benchmarks.pictures

docs/scaling.md has the tables of `benchmarks.scaling`, docs/ablation.md those of `t2t-report`, and docs/fine_tuning.md
those of the curves of two runs each. After a new measurement, put its tables into the page and draw again: a picture
and its table cannot differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from t2t_repro.charts.drawing import COLORS, Curve, Panel, panels_svg
from t2t_repro.evaluation.report_charts import differences_chart, validation_panels
from t2t_repro.io import atomic_write

DOCS = Path(__file__).resolve().parent.parent / "docs"
TITLES = {
    "length": ("Sentence length", "tokens"),
    "d_model": ("Width", "d_model"),
    "num_layers": ("Layers", "N, of the encoder and of the decoder"),
    "vocab_size": ("Vocabulary", "subwords"),
    "replicas": ("Replicas", "on one core"),
}
LAYERS = {  # the rows of Table 1 by their names in the picture
    "self-attention": "self-attention",
    "self-attention with its products": "with products",
    "recurrent (LSTM)": "recurrent",
    "convolutional": "convolutional",
}
Table = list[dict[str, str]]


def tables(page: str) -> list[Table]:
    """Returns the tables of a page, a dictionary per row. Columns with the same heading are `paper`, `paper 2` and so
    on."""
    found: list[Table] = []
    heading: list[str] = []
    for line in [*(DOCS / page).read_text("utf-8").splitlines(), ""]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heading = []
        elif not heading:
            seen = [(name, cells[: place + 1].count(name)) for place, name in enumerate(cells)]
            heading = [name if count == 1 else f"{name} {count}" for name, count in seen]
            found.append([])
        elif not set(line) <= set("|- "):
            found[-1].append(dict(zip(heading, cells, strict=True)))
    return found


def table_with(page: str, *columns: str) -> list[Table]:
    """Returns the tables of a page that have these columns. Raises ValueError if there is none."""
    found = [table for table in tables(page) if table and set(columns) <= set(table[0])]
    if not found:
        raise ValueError(f"{DOCS / page} has no table with the columns {', '.join(columns)}; restore it")
    return found


def number(cell: str) -> float:
    """Returns the number at the start of a cell: 0.95 of "0.95 (0.91 to 0.97)"."""
    return float(cell.split(" ")[0].replace(",", ""))


def scaling() -> str:
    """Returns tokens per second and memory of a step against each of its sizes."""
    (table,) = table_with("scaling.md", "changed", "tokens/s", "memory")
    panels = []
    for axis, (title, label) in TITLES.items():
        rows = [row for row in table if row["changed"].startswith(f"{axis} ")]
        sizes = [number(row["changed"].partition(" ")[2]) for row in rows]
        curves = tuple(
            Curve(name, list(zip(sizes, (number(row[name]) for row in rows), strict=True)), color)
            for name, color in zip(("tokens/s", "memory"), COLORS, strict=False)
        )
        panels.append(Panel(title, "over the reference, logarithmic", label, curves, log="xy"))
    return panels_svg(panels, 2, "A training step as one size grows")


def table1() -> str:
    """Returns the time of each layer of Table 1 per position, against length and width."""
    panels = []
    for table, title, label in zip(
        table_with("scaling.md", "layer", "slope"),
        ("Longer sentences", "Wider layers"),
        ("n, tokens, at d = 256", "d, at n = 64"),
        strict=True,
    ):
        sizes = {name: number(name.partition(" = ")[2]) for name in table[0] if " = " in name}
        curves = tuple(
            Curve(LAYERS[row["layer"]], [(size, number(row[name])) for name, size in sizes.items()], color)
            for row, color in zip(table, COLORS, strict=False)
        )
        panels.append(Panel(title, "time of a position, relative, logarithmic", label, curves, log="xy"))
    return panels_svg(panels, 2, "The layers of Table 1, measured")


def ablation_curves() -> str:
    """Returns the validation perplexity of every row of Table 3."""
    (table,) = table_with("ablation.md", "set", "step 400")
    steps = {name: number(name.removeprefix("step ")) for name in table[0] if name.startswith("step ")}
    curves = {row["set"]: [(step, number(row[name])) for name, step in steps.items()] for row in table}
    return panels_svg(validation_panels(curves, first=0), 2, "Table 3 at a small scale: 1,200 steps")


def ablation_differences() -> str:
    """Returns BLEU over base of every row of Table 3 with 5,000 steps."""
    (table,) = table_with("ablation.md", "set", "over base")
    return differences_chart(
        {"set": row["set"], "delta": number(row["over base"]), "printed_delta": number(row["paper 3"])} for row in table
    )


def fine_tuning() -> str:
    """Returns the curves of a run that starts from a parent and of one that does not, and those of two parsers."""
    panels = []
    for title, *names in (
        ("Fine-tuning on captions", "from `parent`", "from random weights"),
        ("Fine-tuning a parser of CRAFT", "after 24,000 steps", "after 6,070 steps"),
    ):
        (table,) = table_with("fine_tuning.md", "step", *names)
        curves = tuple(
            Curve(
                name.replace("`", ""),
                [(number(row["step"]), number(row[name])) for row in table if row[name] != "-"],
                color,
            )
            for name, color in zip(names, COLORS, strict=False)
        )
        panels.append(Panel(title, "validation perplexity", "steps", curves, log="y"))
    return panels_svg(panels)


PICTURES: dict[str, Callable[[], str]] = {
    "scaling.svg": scaling,
    "table1.svg": table1,
    "ablation_curves.svg": ablation_curves,
    "ablation_differences.svg": ablation_differences,
    "fine_tuning.svg": fine_tuning,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for name, draw in PICTURES.items():
        path = str(DOCS / name)
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(draw())
        print(path)


if __name__ == "__main__":
    main()
