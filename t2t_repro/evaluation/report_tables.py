"""Tables of a report: runs next to the paper's Tables 2, 3 and 4, grouped by the data they were scored on.

Table 2 is the test set with averaged checkpoints, Table 3 the validation set with the last checkpoint (section 6). A
table contains only scores of that kind. Runs on different data or at different scales are never in one table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from t2t_repro.config import HParams, Record
from t2t_repro.evaluation.report_runs import PAPER_DATA, RunResult, weights_of
from t2t_repro.registry import HPARAMS, RECORDS, get_hparams
from t2t_repro.run import TrainingRecord


@dataclass(frozen=True)
class Column:
    """One column of a table: the key of its value, its heading and its format."""

    key: str
    heading: str
    form: str = "{}"
    wide: bool = False  # omitted on a terminal


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; `condition` is the data of the scores."""

    title: str
    condition: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    note: str = ""
    results: list[RunResult] = field(default_factory=list)  # the runs of the rows

    @property
    def caption(self) -> str:
        return f"On {self.condition}. {self.note}".strip() if self.condition else "No run."

    def cells(self, wide: bool) -> list[list[str]]:
        """Returns the heading and every row as text, "-" for values that were not measured or printed."""
        columns = [column for column in self.columns if wide or not column.wide]
        lines = [[column.heading for column in columns]]
        for row in self.rows:
            values = [row.get(column.key) for column in columns]
            lines.append(
                ["-" if value is None else c.form.format(value) for c, value in zip(columns, values, strict=True)]
            )
        return lines


def build_tables(results: Sequence[RunResult]) -> list[Table]:
    """Returns the paper's tables with these runs, one per condition, and then a table of runs of other hyperparameter
    sets."""
    built = []
    for name, build in (("table2", _table2), ("table3", _table3), ("table4", _table4)):
        records = [record for record in RECORDS.in_order() if name in _tables_of(record)]
        names = {record.name for record in records}
        groups = _by_condition([each for each in results if each.set_name in names])
        built += [build(records, group) for group in groups or [[]]]
    printed = {record.name for record in RECORDS.in_order() if record.place}
    others = _by_condition([each for each in results if each.set_name not in printed])
    return [_with_directories(table) for table in built + [_other_sets(group) for group in others]]


def _with_directories(table: Table) -> Table:
    """Returns the table with a column of the run directories if several rows have one hyperparameter set."""
    names = [row["set"] for row in table.rows if "directory" in row]
    first, *others = table.columns
    columns = (first, Column("directory", "run"), *others)
    return replace(table, columns=columns) if len(set(names)) < len(names) else table


def _by_condition(results: list[RunResult]) -> list[list[RunResult]]:
    conditions = dict.fromkeys(each.condition for each in results)
    return [[each for each in results if each.condition == condition] for condition in conditions]


_RUN_COLUMNS = (
    Column("status", "status"),
    Column("tokens", "target tokens", "{:,.0f}", wide=True),
    Column("flops", "FLOPs counted", "{:.2e}", wide=True),
    Column("seconds", "seconds", "{:,.0f}", wide=True),
    Column("seed", "seed", wide=True),
    Column("hardware", "hardware", wide=True),
    Column("overrides", "overrides", wide=True),
)


def _table3(records: list[Record], results: list[RunResult]) -> Table:
    """Returns perplexity and BLEU on the validation set, one checkpoint, and the difference of BLEU from base."""
    records = sorted(records, key=lambda record: (record.name != "base", record.name == "big"))  # as in print
    rows = [_row(record, result, "validation", 1) for record in records for result in _results_of(record, results)]
    bases = [row for row in rows if row["set"] == "base" and row["bleu"] is not None]
    for row in rows:
        row["printed_delta"] = row["printed_bleu"] - RECORDS["base"].bleu_dev
        base = None if row["bleu"] is None else _base_bleu(row, bases)
        row["delta"] = None if base is None else row["bleu"] - base
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
        *_RUN_COLUMNS,
    )
    return Table("Table 3: validation set, one checkpoint", _condition(results), columns, rows, _recipes(rows), results)


def _base_bleu(row: dict[str, Any], bases: list[dict[str, Any]]) -> float | None:
    """Returns the mean BLEU of the base runs with the steps and the seed of a run, and with its overrides if any has
    them."""
    comparable = [base for base in bases if (base["steps"], base["seed"]) == (row["steps"], row["seed"])]
    alike = [base for base in comparable if base["overrides"] == row["overrides"]] or comparable
    return statistics.mean(base["bleu"] for base in alike) if alike else None


def _table2(records: list[Record], results: list[RunResult]) -> Table:
    """Returns BLEU on the test set with averaged checkpoints, and the cost of training by two counts."""
    rows = []
    for record in records:
        measured = [_row(record, each, "test", None) for each in _results_of(record, results) if each]
        printed = [_row(each, None, "test", None) for each in _by_task(record)]
        tasks = {row["task"] for row in measured}
        rows += measured + [row for row in printed if row["task"] not in tasks]
    columns = (
        Column("set", "set"),
        Column("task", "task"),
        Column("steps", "steps", "{:,}"),
        Column("bleu", "BLEU", "{:.2f}"),
        Column("printed_bleu", "paper", "{:.1f}"),
        Column("difference", "differs", "{:+.2f}"),
        Column("paper_flops", "cost", "{:.1e}"),
        Column("printed_flops", "paper", "{:.1e}"),
        *_RUN_COLUMNS,
    )
    note = (
        f"{_recipes(rows)} Cost is training time x devices x the paper's sustained rate, for GPUs that have one there."
    )
    return Table("Table 2: test set, averaged checkpoints", _condition(results), columns, rows, note.strip(), results)


def _table4(records: list[Record], results: list[RunResult]) -> Table:
    """Returns bracket F1 on the test set."""
    rows = [_row(record, result, "test", None) for record in records for result in _results_of(record, results)]
    columns = (
        Column("set", "set"),
        Column("steps", "steps", "{:,}"),
        Column("f1", "F1", "{:.2f}"),
        Column("printed_f1", "paper", "{:.1f}"),
        Column("difference", "differs", "{:+.2f}"),
        *_RUN_COLUMNS,
    )
    return Table("Table 4: test set, bracket F1", _condition(results), columns, rows, results=results)


def _other_sets(results: list[RunResult]) -> Table:
    """Returns the runs of hyperparameter sets that the paper does not have, each with its newest scores."""
    rows = []
    for result in results:
        own = result.own_scores()
        newest = own[-1] if own else {}
        number, is_moving = weights_of(newest) if newest else (0, False)
        weights = "moving average" if is_moving else f"mean of {number}"
        weights += ", best by validation" if newest.get("average_best") else ""
        rows.append(
            _common(result, newest)
            | {"set": result.run.hparams.name, "scored": f"{newest['split']}, {weights}" if newest else None}
            | {name: newest.get(name) for name in ("bleu", "chrf", "f1", "perplexity")}
            | {"status": "" if newest else _unscored(result, "test", {})}
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
        *_RUN_COLUMNS,
    )
    note = "BLEU is sacreBLEU 13a." if any(row["bleu"] is not None for row in rows) else ""
    return Table("Other hyperparameter sets", _condition(results), columns, rows, note, results)


def _row(record: Record, result: RunResult | None, split: str, checkpoints: int | None) -> dict[str, Any]:
    """Returns the measured values of a run, the printed values of the paper, and the status of the comparison.

    `checkpoints` is the number that a score must average; None means that of the run's hyperparameter set.
    """
    language = result.run.problem.target_language if result else ""
    french = language == "fr" or (record.bleu_ende is None and language != "de")
    row: dict[str, Any] = {
        "set": record.name,
        "change": _changes(HPARAMS[record.name], HPARAMS["base"]),
        "millions": record.millions,
        "task": "en-fr" if french else "en-de",
        "printed_bleu": record.bleu_dev if split == "validation" else record.bleu_enfr if french else record.bleu_ende,
        "printed_perplexity": record.perplexity,
        "printed_f1": record.f1,
        "printed_flops": record.flops,
        "status": "not run",
    } | dict.fromkeys(("bleu", "f1", "perplexity", "steps", "seed"))
    if result is None:
        return row
    score = result.score(split, checkpoints or result.run.hparams.average_checkpoints)
    row |= _common(result, score) | {name: score.get(name) for name in ("f1", "perplexity", "bleu_interval")}
    row["bleu"] = score.get("paper_bleu", score.get("bleu"))
    row["recipe"] = "the paper's" if "paper_bleu" in score else "sacreBLEU 13a" if "bleu" in score else None
    metric = "f1" if record.f1 else "bleu"
    ours, theirs = row[metric], row[f"printed_{metric}"]
    row["difference"] = ours - theirs if _is_papers_data(record, result, split) and None not in (ours, theirs) else None
    row["status"] = _status(result, score, split, row["difference"])
    return row


def _is_papers_data(record: Record, result: RunResult, split: str) -> bool:
    """Returns whether a run has the data of the printed score; otherwise there is no difference."""
    problem = result.run.problem
    if problem.name not in PAPER_DATA or result.incomplete:
        return False
    if record.f1:
        return problem.name.endswith("semisupervised") == record.name.endswith("semisupervised")
    return split == "test" or problem.target_language == "de"  # Table 3 is English-German


def _common(result: RunResult, score: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns of every table. `score` has those of the row, if there are any.

    The steps are those that the score was measured at. Of the best checkpoints they are those of the run.
    """
    training = result.training
    steps = training.step if score.get("average_best") else score.get("step", training.step)
    device = f"{training.replicas} x {training.device}" if training.device else None
    spent = training if steps == training.step else TrainingRecord()  # the cost is known of all steps alone
    return {
        "directory": result.directory,
        "steps": steps,
        "parameters": result.parameters,
        "tokens": spent.target_tokens,
        "flops": spent.flops,
        "paper_flops": spent.paper_flops,
        "seconds": spent.seconds,
        "seed": result.run.seed,
        "hardware": f"{device}, {result.run.precision}" if device else None,
        "overrides": _overrides(result.run.hparams),
    }


def _changes(hparams: HParams, base: HParams) -> str | None:
    """Returns the hyperparameters that differ from `base` as text: `h 1, d_k 512`. None if there are none."""
    return ", ".join(f"{symbol} {value}" for symbol, value in hparams.changes(base).items()) or None


def _overrides(hparams: HParams) -> str | None:
    """Returns what differs from the registered set of that name; None if nothing does, or if there is no such set."""
    try:
        return _changes(hparams, get_hparams(hparams.name))
    except KeyError:
        return None


def _status(result: RunResult, score: dict[str, Any], split: str, difference: float | None) -> str:
    """Returns reproduced, within noise, below, smaller budget, other hyperparameters or data, or the missing step."""
    if not score or (score["step"] < result.run.last_step and not score.get("average_best")):
        return _unscored(result, split, score)
    limitation = result.limitation()
    if limitation or difference is None:
        return limitation or "no score to compare with"
    if round(difference, 1) >= 0:
        return "reproduced"
    return "within noise" if -difference <= score.get("bleu_interval", 0) else "below"


def _unscored(result: RunResult, split: str, score: dict[str, Any]) -> str:
    at = f" at step {result.run.last_step:,}" if score else ""
    step, wanted = result.training.step or 0, result.run.last_step
    return f"unfinished: {step:,} of {wanted:,}" if step < wanted else f"not scored on {split}{at}"


def _tables_of(record: Record) -> set[str]:
    found = {"table3"} if record.bleu_dev is not None else set()
    found |= {"table2"} if record.bleu_ende is not None or record.bleu_enfr is not None else set()
    return found | ({"table4"} if record.f1 is not None else set())


def _by_task(record: Record) -> list[Record]:
    """Returns a record for each language pair of Table 2 that has a printed score: base has two."""
    german, french = replace(record, bleu_enfr=None), replace(record, bleu_ende=None)
    return [german] * (record.bleu_ende is not None) + [french] * (record.bleu_enfr is not None)


def _results_of(record: Record, results: list[RunResult]) -> list[RunResult] | list[None]:
    """Returns the runs of a hyperparameter set; one None if there are none, for a row without a run."""
    return [each for each in results if each.set_name == record.name] or [None]


def _condition(results: list[RunResult]) -> str:
    return results[0].condition if results else ""


def _recipes(rows: list[dict[str, Any]]) -> str:
    """Returns a sentence with the recipes of BLEU."""
    recipes = sorted({row["recipe"] for row in rows if row.get("recipe")})
    return f"BLEU is {' or '.join(recipes)}." if recipes else ""
