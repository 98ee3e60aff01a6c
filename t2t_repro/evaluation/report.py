"""`report`: run directories set beside the paper's Tables 2, 3 and 4, each figure under the data it was measured on.

Table 2 is the test set with averaged checkpoints, Table 3 the validation set with the last one (section 6): a score is
only taken for a table where it was made that way. Runs on different data, or at different scales, never share a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from t2t_repro.config import Record
from t2t_repro.registry import HPARAMS, RECORDS
from t2t_repro.run import Run

# The paper's own data, by problem: about so many training pairs or trees (sections 5.1 and 6.3).
PAPER_DATA = {
    "translate_ende_wmt14": 4_500_000,
    "translate_enfr_wmt14": 36_000_000,
    "parse_wsj": 40_000,
    "parse_wsj_semisupervised": 17_000_000,
}
_DEPTH = 3  # folders below the one given in which runs are looked for


@dataclass(frozen=True)
class Outcome:
    """One run directory, read without TensorFlow."""

    run: Run
    vocab_size: int | None  # None where the training has not begun
    training: dict[str, Any]
    scores: list[dict[str, Any]]  # oldest first

    @property
    def row(self) -> str:
        """The set's name: `a_h1` of `a_h1@tiny`."""
        return self.run.hparams.name.partition("@")[0]

    @property
    def condition(self) -> str:
        """What its figures hold for: the data, and the scale where that is not the paper's."""
        scale = self.run.hparams.name.partition("@")[2]
        data = self.training.get("data")
        if not data:
            return f"{self.run.problem.name}, training not begun"
        names = [f"{split} {data[split]}" for split in ("train", "validation", "test") if split in data]
        text = f"{self.run.problem.name}: {data['pairs']:,} training pairs, vocabulary {data['vocab_size']:,}"
        text += f" ({'; '.join(names)})" + (f", every set at scale {scale}" if scale else "")
        return text + (f". Not the paper's data: {'; '.join(self.incomplete)}" if self.incomplete else "")

    @property
    def incomplete(self) -> list[str]:
        """Lists what is missing from the paper's data: `section 23: 8 of 2,416 trees`."""
        return self.training.get("data", {}).get("incomplete", [])

    @property
    def parameters(self) -> int | None:
        return self.run.hparams.num_parameters(self.vocab_size) if self.vocab_size else None

    def score(self, split: str, checkpoints: int) -> dict[str, Any]:
        """The newest scoring of that split with so many checkpoints averaged; empty where there is none."""
        made = [each for each in self.scores if each["split"] == split and len(each["checkpoints"]) == checkpoints]
        return made[-1] if made else {}

    def smaller(self) -> str:
        """Why its figures cannot be the paper's: "other data" or "smaller budget"; empty where nothing is amiss."""
        hparams, registered = self.run.hparams, HPARAMS.get(self.row)
        if registered is None or hparams.changes(registered) or self.training.get("step", 0) < registered.train_steps:
            return "smaller budget"
        pairs = PAPER_DATA.get(self.run.problem.name, float("inf"))
        return "" if self.training["data"]["pairs"] >= 0.9 * pairs and not self.incomplete else "other data"


@dataclass(frozen=True)
class Column:
    """One column of a table: which value it shows, under which heading, in which form."""

    key: str
    heading: str
    form: str = "{}"
    wide: bool = False  # only where there is room for it: not on a terminal


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; `condition` says which data the figures hold for."""

    title: str
    condition: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    note: str = ""
    curves: list[Outcome] = field(default_factory=list)  # whose validation perplexity belongs beside it

    @property
    def caption(self) -> str:
        return f"On {self.condition}. {self.note}".strip() if self.condition else "No run."

    def cells(self, wide: bool) -> list[list[str]]:
        """The heading and every row as text; "-" is what was not measured or not printed."""
        columns = [column for column in self.columns if wide or not column.wide]
        lines = [[column.heading for column in columns]]
        for row in self.rows:
            values = [row.get(column.key) for column in columns]
            lines.append(
                ["-" if value is None else c.form.format(value) for c, value in zip(columns, values, strict=True)]
            )
        return lines


def collect(directory: str) -> tuple[list[Outcome], list[str]]:
    """Every run in `directory` or below, and a line for each that cannot be read. FileNotFoundError for no folder."""
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"{directory!r} is no directory; give the one that t2t-trainer or t2t-ablate wrote to")
    outcomes, unreadable = [], []
    for path in _runs(directory, _DEPTH):
        try:
            outcomes.append(read(path))
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
    return outcomes, unreadable


def read(directory: str) -> Outcome:
    """The run in `directory`. Raises FileNotFoundError where there is none and ValueError where it is damaged."""
    run = Run.open(directory)
    training = run.training
    scores = list(objects(run.scores)) if os.path.exists(run.scores) else []
    for number, score in enumerate(scores, start=1):
        if not _is_scoring(score):
            raise ValueError(f"{run.scores} is damaged: line {number} is no scoring by t2t-eval or t2t-trainer")
    scores = [score for score in scores if not score.get("int8")]  # those are of a faster search than the paper's
    return Outcome(run, training.get("data", {}).get("vocab_size"), training, scores)


def _is_scoring(score: dict[str, Any]) -> bool:
    """Whether it has the form that `keep_scores` is given."""
    numbers = [score.get(name, 0) for name in ("bleu", "paper_bleu", "bleu_interval", "chrf", "f1", "perplexity")]
    return (
        isinstance(score.get("split"), str)
        and isinstance(score.get("checkpoints"), list)
        and all(isinstance(number, int | float) for number in (score.get("step"), *numbers))
    )


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """The paper's tables with these runs beside them, one of each for every condition; then the runs of no table."""
    made = []
    for build in (_table2, _table3, _table4):
        records = [record for record in RECORDS.in_order() if build.__name__[1:] in _tables_of(record)]
        mine = [each for each in outcomes if each.row in {record.name for record in records}]
        for condition in dict.fromkeys(each.condition for each in mine):
            made.append(build(records, [each for each in mine if each.condition == condition]))
        if not mine:
            made.append(build(records, []))
    others = [each for each in outcomes if each.row not in RECORDS]
    for condition in dict.fromkeys(each.condition for each in others):
        made.append(_others([each for each in others if each.condition == condition]))
    return made


_REST = (
    Column("status", "status"),
    Column("tokens", "target tokens", "{:,.0f}", wide=True),
    Column("flops", "FLOPs counted", "{:.2e}", wide=True),
    Column("seconds", "seconds", "{:,.0f}", wide=True),
    Column("seed", "seed", wide=True),
    Column("hardware", "hardware", wide=True),
)


def _table3(records: list[Record], outcomes: list[Outcome]) -> Table:
    """Perplexity and BLEU on the validation set, one checkpoint, and by how much BLEU differs from base."""
    records = sorted(records, key=lambda record: (record.name != "base", record.name == "big"))  # as in print
    rows = [_row(record, outcome, "validation", 1) for record in records for outcome in _of(record, outcomes)]
    bases = {(row["steps"], row["seed"]): row["bleu"] for row in rows if row["set"] == "base"}
    for row in rows:
        row["printed_delta"] = row["printed_bleu"] - RECORDS["base"].bleu_dev
        base = bases.get((row["steps"], row["seed"]))
        row["delta"] = None if row["bleu"] is None or base is None else row["bleu"] - base
    columns = (
        Column("set", "set"),
        Column("change", "change", wide=True),
        Column("steps", "steps", "{:,}"),
        Column("parameters", "parameters", "{:,}", wide=True),
        Column("millions", "printed x1e6", wide=True),
        Column("perplexity", "PPL", "{:.2f}"),
        Column("printed_perplexity", "paper", "{:.2f}"),
        Column("bleu", "BLEU", "{:.2f}"),
        Column("printed_bleu", "paper", "{:.1f}"),
        Column("difference", "differs", "{:+.2f}"),
        Column("delta", "to base", "{:+.2f}"),
        Column("printed_delta", "paper", "{:+.1f}"),
        *_REST,
    )
    return Table("Table 3: validation set, one checkpoint", _condition(outcomes), columns, rows, _note(rows), outcomes)


def _table2(records: list[Record], outcomes: list[Outcome]) -> Table:
    """BLEU on the test set with averaged checkpoints, and the cost of training: counted, and the paper's way."""
    rows = [_row(record, outcome, "test", None) for record in records for outcome in _of(record, outcomes)]
    columns = (
        Column("set", "set"),
        Column("task", "task"),
        Column("steps", "steps", "{:,}"),
        Column("bleu", "BLEU", "{:.2f}"),
        Column("printed_bleu", "paper", "{:.1f}"),
        Column("difference", "differs", "{:+.2f}"),
        Column("paper_flops", "cost", "{:.1e}"),
        Column("printed_flops", "paper", "{:.1e}"),
        *_REST,
    )
    note = f"{_note(rows)} Cost is training time x devices x the paper's sustained rate, for GPUs that have one there."
    return Table("Table 2: test set, averaged checkpoints", _condition(outcomes), columns, rows, note.strip())


def _table4(records: list[Record], outcomes: list[Outcome]) -> Table:
    """Bracket F1 on the test set."""
    rows = [_row(record, outcome, "test", None) for record in records for outcome in _of(record, outcomes)]
    columns = (
        Column("set", "set"),
        Column("steps", "steps", "{:,}"),
        Column("f1", "F1", "{:.2f}"),
        Column("printed_f1", "paper", "{:.1f}"),
        Column("difference", "differs", "{:+.2f}"),
        *_REST,
    )
    return Table("Table 4: test set, bracket F1", _condition(outcomes), columns, rows)


def _others(outcomes: list[Outcome]) -> Table:
    """Runs of sets that the paper does not have, each with its newest scoring."""
    rows = []
    for outcome in outcomes:
        newest = outcome.scores[-1] if outcome.scores else {}
        averaged = len(newest.get("checkpoints", ()))
        rows.append(
            _common(outcome)
            | {"set": outcome.run.hparams.name, "scored": f"{newest['split']}, mean of {averaged}" if newest else None}
            | {name: newest.get(name) for name in ("bleu", "chrf", "f1", "perplexity")}
            | {"status": "" if newest else _unscored(outcome, "test")}
        )
    columns = (
        Column("set", "set"),
        Column("steps", "steps", "{:,}"),
        Column("scored", "scored"),
        Column("bleu", "BLEU", "{:.2f}"),
        Column("chrf", "chrF", "{:.2f}"),
        Column("f1", "F1", "{:.2f}"),
        Column("perplexity", "PPL", "{:.2f}"),
        Column("parameters", "parameters", "{:,}", wide=True),
        *_REST,
    )
    return Table("Other sets", _condition(outcomes), columns, rows, "BLEU is sacreBLEU 13a.", outcomes)


def _row(record: Record, outcome: Outcome | None, split: str, checkpoints: int | None) -> dict[str, Any]:
    """What a run has measured of a record, what the paper prints of it, and what is to be said of the two.

    `checkpoints` says of how many a score must be the average; None for as many as the run's set asks for.
    """
    french = record.bleu_ende is None or (outcome is not None and outcome.run.problem.target_language == "fr")
    changes = ", ".join(f"{symbol} {value}" for symbol, value in HPARAMS[record.name].changes(HPARAMS["base"]).items())
    row: dict[str, Any] = {
        "set": record.name,
        "change": changes or None,
        "millions": record.millions,
        "task": "en-fr" if french else "en-de",
        "printed_bleu": record.bleu_dev if split == "validation" else record.bleu_enfr if french else record.bleu_ende,
        "printed_perplexity": record.perplexity,
        "printed_f1": record.f1,
        "printed_flops": record.flops,
        "status": "not run",
    } | dict.fromkeys(("bleu", "f1", "perplexity", "steps", "seed"))
    if outcome is None:
        return row
    score = outcome.score(split, checkpoints or outcome.run.hparams.average_checkpoints)
    row |= _common(outcome) | {name: score.get(name) for name in ("f1", "perplexity", "bleu_interval")}
    row["bleu"] = score.get("paper_bleu", score.get("bleu"))
    row["recipe"] = "the paper's" if "paper_bleu" in score else "sacreBLEU 13a" if "bleu" in score else None
    metric = "f1" if record.f1 else "bleu"
    ours, theirs = row[metric], row[f"printed_{metric}"]
    papers = outcome.run.problem.name in PAPER_DATA and not outcome.incomplete  # there is no difference on other text
    row["difference"] = ours - theirs if papers and None not in (ours, theirs) else None
    row["status"] = _status(outcome, score, split, row["difference"])
    return row


def _common(outcome: Outcome) -> dict[str, Any]:
    training = outcome.training
    device = f"{training['replicas']} x {training['device']}" if "device" in training else None
    return {
        "directory": os.path.basename(os.path.normpath(outcome.run.directory)),
        "steps": training.get("step"),
        "parameters": outcome.parameters,
        "tokens": training.get("target_tokens"),
        "flops": training.get("flops"),
        "paper_flops": training.get("paper_flops"),
        "seconds": training.get("seconds"),
        "seed": outcome.run.seed,
        "hardware": f"{device}, {outcome.run.precision}" if device else None,
    }


def _status(outcome: Outcome, score: dict[str, Any], split: str, difference: float | None) -> str:
    """reproduced, within noise, below, smaller budget, other data, or what is still missing."""
    if not score or score["step"] < outcome.run.hparams.train_steps:
        return _unscored(outcome, split)
    smaller = outcome.smaller()
    if smaller or difference is None:
        return smaller or "no figure to compare with"
    if round(difference, 1) >= 0:
        return "reproduced"
    return "within noise" if -difference <= score.get("bleu_interval", 0) else "below"


def _unscored(outcome: Outcome, split: str) -> str:
    step, wanted = outcome.training.get("step", 0), outcome.run.hparams.train_steps
    return f"unfinished: {step:,} of {wanted:,}" if step < wanted else f"not scored on {split}"


def _tables_of(record: Record) -> set[str]:
    found = {"table3"} if record.bleu_dev is not None else set()
    found |= {"table2"} if record.bleu_ende is not None or record.bleu_enfr is not None else set()
    return found | ({"table4"} if record.f1 is not None else set())


def _of(record: Record, outcomes: list[Outcome]) -> list[Outcome] | list[None]:
    """The runs of a set; one None where there is none, for a row that says so."""
    return [each for each in outcomes if each.row == record.name] or [None]


def _condition(outcomes: list[Outcome]) -> str:
    return outcomes[0].condition if outcomes else ""


def _note(rows: list[dict[str, Any]]) -> str:
    """How BLEU was computed."""
    recipes = sorted({row["recipe"] for row in rows if row.get("recipe")})
    return f"BLEU is {' or '.join(recipes)}." if recipes else ""


def _runs(directory: str, depth: int) -> Iterator[str]:
    """The run directories in `directory` or below, by name."""
    if Run.exists(directory):
        yield directory
    elif depth:
        with os.scandir(directory) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
        for folder in folders:
            yield from _runs(folder, depth - 1)


def objects(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. Raises ValueError, naming the line, for another.

    A last line that a kill or a full disk has cut off is left out, as if it had never begun.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield dict(json.loads(line))
            except (ValueError, TypeError, RecursionError):
                if line.endswith(b"\n"):
                    raise ValueError(f"{path} is damaged: line {number} is no JSON object") from None
