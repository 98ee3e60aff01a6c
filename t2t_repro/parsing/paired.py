"""Bracket F1 as a metric for `evaluation.comparison`, whose tests resample the counts of the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Score, Signature

from t2t_repro.evaluation.comparison import Compared
from t2t_repro.parsing.evalb import ERROR, SCORED, SKIPPED, Row, percent

Rows = Sequence[Row]


class BracketF1:
    """F1 of labeled brackets in percent. The hypotheses are the rows of `evalb`, one per sentence.

    It has those methods of sacreBLEU's `Metric` that the tests call. A sentence that EVALB does not score adds nothing.
    """

    def _extract_corpus_statistics(self, hypotheses: Rows, references: Any) -> list[list[int]]:
        """Returns the numbers of matched, gold and test brackets, [sentences, 3]."""
        return [[row.matched, row.gold, row.test] if row.status == SCORED else [0, 0, 0] for row in hypotheses]

    def _compute_score_from_stats(self, stats: Any) -> Score:
        matched, gold, test = map(int, stats)
        return Score("F1", percent(2 * matched, gold + test))  # 2PR / (P + R) of EVALB

    def get_signature(self) -> Signature:
        signature = Signature({"num_refs": 1})
        signature.update("evalb", "COLLINS")
        return signature


def compared(
    sources: Sequence[str], references: Sequence[str], outputs: tuple[Sequence[str], Sequence[str]], a: Rows, b: Rows
) -> Compared:
    """Returns trees as text, with their rows, in the form for `evaluation.comparison.compare`."""
    notes = []
    for name, rows in (("A", a), ("B", b)):
        notes += [f"{name}, sentence {row.number}: {row.message}; not scored" for row in rows if row.status == ERROR]
        if empty := sum(row.status == SKIPPED and row.words > 0 for row in rows):
            notes.append(f"{name} has no tree for {empty:,} sentences, so its F1 is that of the others")
    return Compared(sources, references, outputs, (a, b), {"F1": BracketF1()}, tuple(notes))
