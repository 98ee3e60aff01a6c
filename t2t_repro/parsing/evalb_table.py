"""EVALB's scores in EVALB's layout, for programs that read its output."""

from __future__ import annotations

from t2t_repro.parsing.evalb import SCORED, Row, Scores, Summary, percent

_RULE = "=" * 76
_HEAD = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag",
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy",
    _RULE,
)
_LINES = (  # EVALB's sample output is older than its FMeasure line and has all other lines
    ("Number of sentence", "sentences"),
    ("Number of Error sentence", "errors"),
    ("Number of Skip  sentence", "skipped"),
    ("Number of Valid sentence", "valid"),
    ("Bracketing Recall", "recall"),
    ("Bracketing Precision", "precision"),
    ("Bracketing FMeasure", "f1"),
    ("Complete match", "complete_match"),
    ("Average crossing", "average_crossing"),
    ("No crossing", "no_crossing"),
    ("2 or less crossing", "two_or_less_crossing"),
    ("Tagging accuracy", "tagging_accuracy"),
)


def table(scores: Scores) -> str:
    """Returns one line per sentence, the totals, and two summaries."""
    lines = [*_HEAD, *map(_row, scores.rows), _RULE, _totals(scores), "=== Summary ==="]
    lines += ["", "-- All --", *_summary(scores.all), "", f"-- len<={scores.cutoff} --", *_summary(scores.short)]
    return "\n".join(lines)


def _row(row: Row) -> str:
    return (
        f"{row.number:4d}  {row.length:3d}    {row.status}  "
        f"{_percent(row.matched, row.gold)} {_percent(row.matched, row.test)}   "
        f"{row.matched:3d}    {row.gold:3d}  {row.test:3d}    {row.crossing:3d}   "
        f"{row.words:4d}  {row.tags:4d}   {_percent(row.tags, row.words)}"
    )


def _totals(scores: Scores) -> str:
    """Returns the line below the rows. Its column Cross has the number of sentences without crossing, as in EVALB's
    sample."""
    scored = [row for row in scores.rows if row.status == SCORED]
    matched, gold, test, words, tags = (
        sum(getattr(row, name) for row in scored) for name in ("matched", "gold", "test", "words", "tags")
    )
    uncrossed = sum(row.crossing == 0 for row in scored)
    return (
        f"{'':16}{_percent(matched, gold)} {_percent(matched, test)}    "
        f"{matched:3d}    {gold:3d}  {test:3d}    {uncrossed:3d}   {words:4d}  {tags:4d}   {_percent(tags, words)}"
    )


def _summary(summary: Summary) -> list[str]:
    values = ((name, getattr(summary, field)) for name, field in _LINES)
    return [
        f"{name:<26}= {value:6d}" if isinstance(value, int) else f"{name:<26}= {value:6.2f}" for name, value in values
    ]


def _percent(part: int, whole: int) -> str:
    return f"{percent(part, whole):6.2f}"
