"""A chart parser without pretraining, trained and scored on the same trees as ours.

    python -m benchmarks.environments supar
    python -m benchmarks.chart_parser --train=train.mrg.gz --dev=dev.mrg.gz --folder=chart
    python -m benchmarks.chart_parser --train=train.mrg.gz --dev=dev.mrg.gz --folder=eighth --fraction=1/8

The parser is supar 1.1.4's CRF parser with words and a character LSTM (Zhang, Zhou and Li, 2020), with the settings of
its paper. It reads no parts of speech, as ours does not. Training ends after `--patience` epochs without a better F1 on
the dev set. After a stop, the same command continues after the last complete epoch.

`--fraction` trains on that share of the trees, evenly spaced. `t2t-datagen --sample=N`, with the number that is
printed, takes the same trees, so that the learning curves of both parsers have the same points.

    FOLDER/gold.mrg, parsed.mrg   the dev set, for t2t-evalb and benchmarks.parse_errors; gold parts of speech in both
    FOLDER/gold.tok               its words, for t2t-decoder
    FOLDER/epochs.jsonl           loss and F1 of each epoch, processor seconds
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environments
from benchmarks.train import ROOT

if TYPE_CHECKING:
    from t2t_repro.parsing.trees import Tree

ENVIRONMENT = "supar"
WORKER = "benchmarks.workers.supar_parser"
MAY_CHANGE = ("folder", "epochs", "patience", "threads")  # when a job is continued
_SPACE = re.compile(r"\s")  # of Unicode: NLTK, which supar reads trees with, splits words there


@dataclass(frozen=True, kw_only=True)
class Job:
    """Training and parsing of one model. Its trees are in train.trees and dev.trees, one per line, with TOP around."""

    folder: str
    seed: int = 1
    epochs: int = 1_000
    patience: int = 100  # epochs without a better F1
    batch_words: int = 5_000
    micro_batches: int = 5  # of a batch, which takes that much less memory
    buckets: int = 32  # of sentences of similar length
    n_lstm_hidden: int = 400
    n_lstm_layers: int = 3
    threads: int = 2


def trees_of(path: str) -> list[Tree]:
    """Returns the trees that `parse_files` trains on."""
    from t2t_repro.parsing.treebank import read
    from t2t_repro.problem import Trees

    return list(read(Trees(path)))


def share(trees: Sequence[Tree], fraction: Fraction) -> list[Tree]:
    """Returns that share of the trees, at least one: the same ones as `t2t-datagen --sample`."""
    from t2t_repro.preparation.corpora import evenly

    return list(evenly(iter(trees), len(trees), max(round(len(trees) * fraction), 1)))


def as_supar_reads(tree: Tree) -> str:
    """Returns a tree on one line, with TOP around it and without any kind of space in its words and labels."""
    parts = {"(": " ({label}", ")": ")", "word": " ({label} {word})"}
    written = (
        parts[step].format(label=_SPACE.sub("_", part.label), word=_SPACE.sub("_", part.word or ""))
        for step, part in tree.walk()
    )
    return f"(TOP{''.join(written)})"


def with_leaves_of(gold: Tree, parsed: Tree) -> Tree:
    """Returns a parsed tree over the words and parts of speech of `gold`.

    Raises ValueError if the numbers of words differ.
    """
    from t2t_repro.parsing.trees import Tree

    leaves, around = gold.leaves(), list[list[Tree]]([[]])
    if len(parsed.words()) != len(leaves):
        raise ValueError(f"expected {len(leaves)} words for {str(gold):.60}. Received: {str(parsed):.60}")
    following = iter(leaves)
    for step, part in parsed.walk():
        if step == "(":
            around.append([])
        elif step == "word":
            around[-1].append(next(following))
        else:
            children = tuple(around.pop())
            around[-1].append(Tree(part.label, children))
    (root,) = around[0]
    return root


def without_top(tree: Tree) -> Tree:
    """Returns a tree without the TOP that `as_supar_reads` adds."""
    return tree.children[0] if len(tree.children) == 1 else tree


def write_lines(path: str, lines: Iterable[object]) -> None:
    """Writes lines atomically."""
    from t2t_repro.io import atomic_write

    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def start(job: Job, train: Sequence[Tree], dev: Sequence[Tree]) -> str:
    """Writes the files of a job and returns the path of its JSON, or continues the same job.

    Raises ValueError if the folder holds another one.
    """
    from t2t_repro.io import read_json, sha256, write_json

    job = dataclasses.replace(job, folder=os.path.abspath(job.folder))
    os.makedirs(job.folder, exist_ok=True)
    path, record = os.path.join(job.folder, "job.json"), dataclasses.asdict(job)
    for name, trees in (("train", train), ("dev", dev)):
        file = os.path.join(job.folder, f"{name}.trees.new")
        write_lines(file, map(as_supar_reads, trees))
        record[name] = sha256(file)
    before: dict[str, Any] = read_json(path) if os.path.exists(path) else record
    for name in record.keys() - {*MAY_CHANGE}:
        if before.get(name) != record[name]:
            raise ValueError(
                f"{job.folder!r} holds another job: its {name} is {before.get(name)!r}, not {record[name]!r}; "
                "give another --folder"
            )
    for name in ("train", "dev"):
        os.replace(os.path.join(job.folder, f"{name}.trees.new"), os.path.join(job.folder, f"{name}.trees"))
    write_lines(os.path.join(job.folder, "gold.mrg"), dev)
    write_lines(os.path.join(job.folder, "gold.tok"), (" ".join(tree.words()) for tree in dev))
    write_json(path, record)
    return path


def score(folder: str, golds: Sequence[Tree]) -> str:
    """Reads what the worker wrote, writes parsed.mrg, and returns its scores by t2t-evalb as text."""
    from t2t_repro.parsing.evalb import evalb_files
    from t2t_repro.parsing.trees import read_trees

    parsed = zip(golds, read_trees(os.path.join(folder, "parsed.trees")), strict=True)
    write_lines(os.path.join(folder, "parsed.mrg"), (without_top(with_leaves_of(*both)) for both in parsed))
    found = evalb_files(os.path.join(folder, "gold.mrg"), os.path.join(folder, "parsed.mrg")).all
    each = f"recall {found.recall:.2f}, precision {found.precision:.2f}, complete {found.complete_match:.2f}%"
    return f"F1 {found.f1:.2f} ({each}, {found.valid:,} sentences, {found.skipped:,} skipped, {found.errors:,} errors)"


def best(folder: str) -> str:
    """Returns the best epoch of a job, with its cost."""
    lines = [json.loads(line) for line in Path(folder, "epochs.jsonl").read_text("utf-8").strip().split("\n")]
    chosen, hours = max(lines, key=lambda line: line["dev_f1"]), lines[-1]["processor_seconds"] / 3600
    return f"epoch {chosen['epoch']} of {lines[-1]['epoch']}, {hours:.2f} core hours"


def run(job: Job, train: Sequence[Tree], dev: Sequence[Tree], python: Path) -> str:
    """Trains and parses, or continues. Returns the scores.

    Raises ValueError if the folder holds another job, and subprocess.CalledProcessError if the worker fails.
    """
    path = start(job, train, dev)
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    subprocess.run([python, "-m", WORKER, path], cwd=ROOT, check=True, env=environment)
    return f"{score(job.folder, dev)}\n{best(job.folder)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="training trees, in Penn Treebank bracketing (may be .gz)")
    parser.add_argument("--dev", required=True, help="trees that choose the epoch and are parsed at the end")
    parser.add_argument("--folder", required=True, help="for checkpoints and results")
    parser.add_argument("--fraction", type=Fraction, default=Fraction(1), help="of the training trees, such as 1/8")
    parser.add_argument("--cache", help="the folder of the environments")
    for each in dataclasses.fields(Job):
        if each.name != "folder":
            parser.add_argument(f"--{each.name}", type=int, default=each.default, help="default: %(default)s")
    arguments = parser.parse_args()
    if not 0 < arguments.fraction <= 1:
        parser.error(f"--fraction must be above 0 and at most 1, got {arguments.fraction}")
    python = environments.interpreter(environments.cache_folder(arguments.cache), ENVIRONMENT)
    if python is None:
        parser.error(f"no environment {ENVIRONMENT!r}; run python -m benchmarks.environments {ENVIRONMENT}")
    job = Job(**{each.name: getattr(arguments, each.name) for each in dataclasses.fields(Job)})
    try:
        train, dev = share(trees_of(arguments.train), arguments.fraction), trees_of(arguments.dev)
        print(f"{len(train):,} training trees (--sample={len(train)}), {len(dev):,} dev trees", flush=True)
        print(run(job, train, dev, python))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"the worker ended with exit code {error.returncode}; the same command continues")


if __name__ == "__main__":
    main()
