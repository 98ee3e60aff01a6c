"""Screens techniques for small data: each row trains with a third of the steps and is scored on the validation text.

    python -m benchmarks.small_data --text=multi30k/raw --folder=small_data
    python -m benchmarks.small_data --text=multi30k/raw --folder=small_data --rows=base,r_drop=1+dropout=0.2

`--text` is a folder with `train` and `val` in two languages (`.en.gz`, `.de.gz`); test text is not read. A row is
`base`, the hyperparameter set as it is, or what the row changes: `r_drop=1`, or several changes joined by `+`. Every
hyperparameter may be one, and so may `vocab_size`. Rows train one after the other, on all cores.

A row is scored twice: by its last checkpoint, and by the mean of its last checkpoints (`--average`) or, if it has
`ema_decay`, by its moving average. The gain is that of the latter over base. Core hours are processor time, of training
with its validation and of both scorings; preparation is part of the first row of a vocabulary. After a kill, the same
command continues; completed rows are not trained again. With more `--steps`, it continues every row. `--report` only
prints the table of the rows that are complete.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t_repro.config import HParams

ROWS = (
    "base",
    *("r_drop=0", "r_drop=1", "ema_decay=0.99", "ema_decay=0.999", "decay_steps=1200"),
    *("label_smoothing=0.2", "dropout=0.2", "dropout=0.4", "attention_dropout=0.1", "initializer_gain=1"),
    *("num_layers=2", "num_layers=4", "vocab_size=3000", "vocab_size=10000"),
)
NOTED_EVERY = 10.0  # seconds: processor time that a kill of this program may lose


def changes_of(row: str, base: Sequence[str] = ()) -> dict[str, str]:
    """Returns the changes of a row by name, those of every row included."""
    each = [*base, *([] if row == "base" else row.split("+"))]
    return {name: value for name, _, value in (change.partition("=") for change in each)}


def chosen(row: str, arguments: argparse.Namespace) -> tuple[HParams, str, list[str]]:
    """Returns the hyperparameters of a row, the size of its vocabulary, and its changes as texts NAME=VALUE.

    Raises KeyError for an unknown field, and ValueError for an impossible value.
    """
    from t2t_repro.registry import get_hparams

    hparams, changes = get_hparams(arguments.hparams), changes_of(row, arguments.override)
    vocab_size = changes.pop("vocab_size", str(arguments.vocab_size))
    overrides = [f"{name}={value}" for name, value in changes.items()]
    steps = arguments.steps or hparams.train_steps // 3
    return hparams.override([f"train_steps={steps}", *overrides]), vocab_size, overrides


def processor_seconds() -> float:
    """Returns the processor time of all child processes, those that run and those that ended (Linux)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, own = 0, str(os.getpid())
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # from the third field on: proc_pid_stat(5)
            if fields[1] == own:
                ticks += sum(map(int, fields[11:15]))  # user and system time, its own and that of its children
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def noted_time(path: str) -> Iterator[None]:
    """Adds the processor time of child processes to the seconds in the JSON file `path`, also if it is killed."""
    from t2t_repro.io import write_json

    before, start = read_seconds(path), processor_seconds()
    over = threading.Event()

    def note() -> None:
        write_json(path, {"seconds": before + processor_seconds() - start})

    def keep_noting() -> None:
        while not over.wait(NOTED_EVERY):
            note()

    thread = threading.Thread(target=keep_noting, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        note()


def read_seconds(path: str) -> float:
    from t2t_repro.io import read_json

    return float(read_json(path)["seconds"]) if os.path.exists(path) else 0.0


def scores_of(directory: str, steps: int, average: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the scores after `steps` of the checkpoint and of the weights that are compared; empty if there are none
    yet."""
    from t2t_repro.io import read_json_lines
    from t2t_repro.run import Run

    if not Run.exists(directory) or not os.path.exists((run := Run.open(directory)).scores):
        return {}, {}
    of_split = [score for score in read_json_lines(run.scores) if score["split"] == "validation"]
    found = [score for score in of_split if score["step"] == steps]
    single = [score for score in found if len(score["checkpoints"]) == 1 and not score.get("moving_average")]
    if run.hparams.ema_decay:
        compared = [score for score in found if score.get("moving_average")]
    else:
        compared = [score for score in found if len(score["checkpoints"]) == average]
    return (single or [{}])[-1], (compared or [{}])[-1]


def train(row: str, arguments: argparse.Namespace) -> None:
    """Trains and scores a row, or continues it."""
    from t2t_repro.cli import jobs

    folder, directory = arguments.folder, os.path.join(arguments.folder, "runs", row)
    hparams, vocab_size, overrides = chosen(row, arguments)
    command = ["t2t_trainer", "--problem=translate_files", f"--hparams={arguments.hparams}", "--split=validation"]
    command += [f"--train_steps={hparams.train_steps}", f"--checkpoint_steps={arguments.checkpoint_steps}"]
    command += [f"--seed={arguments.seed}", f"--vocab_size={vocab_size}", f"--output_dir={directory}"]
    command += [f"--data_dir={folder}/data/{vocab_size}", *(f"--override={each}" for each in overrides)]
    for split, name in {"train": "train", "validation": "val"}.items():
        for side, language in zip(("source", "target"), arguments.languages.split(","), strict=True):
            command.append(f"--{split}_{side}={arguments.text}/{name}.{language}.gz")
    score = ["t2t_eval", f"--output_dir={directory}", "--split=validation"]
    score.append("--moving_average" if hparams.ema_decay else f"--average_checkpoints={arguments.average}")
    for number, each in enumerate((command, score)):
        if not scores_of(directory, hparams.train_steps, arguments.average)[number]:
            with noted_time(os.path.join(folder, f"{row}.time.json")):
                failed = jobs.run({row: each}, 1, folder)
            if failed:
                raise ValueError(f"{row} failed: see {os.path.join(folder, row)}.log; the same command continues")


def table(results: dict[str, tuple[dict[str, Any], dict[str, Any], float]]) -> str:
    """Returns a Markdown table of rows: the scores of the last checkpoint, those compared, and core hours."""
    titles = "row | weights compared | perplexity | BLEU | gain | BLEU of the last checkpoint | steps | core hours"
    lines = [f"| {titles} |", "|---" * (titles.count("|") + 1) + "|"]
    base = results["base"][1]["bleu"] if "base" in results else None
    for row, (last, compared, hours) in results.items():
        number = len(compared["checkpoints"])
        weights = "moving average" if compared.get("moving_average") else f"mean of {number}"
        gain = "" if base is None else f"{compared['bleu'] - base:+.2f}"
        cells = [row, weights, f"{compared['perplexity']:.3f}", f"{compared['bleu']:.2f}", gain]
        cells += [f"{last['bleu']:.2f}", f"{last['step']:,}", f"{hours:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="folder with train.en.gz, train.de.gz, val.en.gz, val.de.gz")
    parser.add_argument("--languages", default="en,de", help="source and target (default: %(default)s)")
    parser.add_argument("--folder", required=True, help="for data, runs and logs")
    parser.add_argument("--rows", default=",".join(ROWS), help="default: %(default)s")
    parser.add_argument("--hparams", default="multi30k", help="default: %(default)s")
    parser.add_argument("--override", action="append", default=[], help="NAME=VALUE: of every row; may be repeated")
    parser.add_argument("--steps", type=int, help="default: a third of those of --hparams")
    parser.add_argument("--checkpoint_steps", type=int, default=0, help="default: those of --hparams")
    parser.add_argument("--average", type=int, default=5, help="checkpoints in the mean (default: %(default)s)")
    parser.add_argument("--vocab_size", type=int, default=6_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    from t2t_repro.cli import launcher

    rows = list(dict.fromkeys(row for row in arguments.rows.split(",") if row))
    try:
        steps = {row: chosen(row, arguments)[0].train_steps for row in rows}
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    try:
        for row in [] if arguments.report else rows:
            train(row, arguments)
    except launcher.Stopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.code)
    except ValueError as error:
        sys.exit(str(error))
    results = {}
    for row in rows:
        last, compared = scores_of(os.path.join(arguments.folder, "runs", row), steps[row], arguments.average)
        if last and compared:
            hours = read_seconds(os.path.join(arguments.folder, f"{row}.time.json")) / 3600
            results[row] = last, compared, hours
    set_name = f"{arguments.hparams}, {max(steps.values(), default=0):,} steps, seed {arguments.seed}"
    print(f"{set_name}, {len(results)} of {len(rows)} rows, validation text\n\n{table(results)}")


if __name__ == "__main__":
    main()
