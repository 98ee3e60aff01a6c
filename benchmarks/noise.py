"""Damages half of a training text and measures the loss of BLEU, without and with filters.

    python -m benchmarks.noise --text=multi30k/raw --folder=noise

`--text` is a folder with `train`, `val` and `test_2016_flickr` in two languages (`.en.gz`, `.de.gz`). Of the damaged
pairs, a third has the source as its target, a third the target of another pair (those targets are shifted by one), and
a third is a copy of an intact pair. They take the place of half of the text; with `--add` they are added to the whole
text, as many as it has, so that a perfect filter gives back every clean pair (Khayrallah and Koehn, 2018).

First it prints which damage the filters find; with `--rows=` that is all. Then `t2t-trainer` trains one model for each
row: `clean` (the text as it is), `damaged`, `filtered` (damaged, with `--filter`) and, on request, `intact`: the
damaged text without every damaged pair, which is what a perfect filter leaves. Set, seed and number of steps are the
same, so is the vocabulary's size. `t2t-trainer` scores the test text with the mean of the last checkpoints. All
checkpoints are kept, for `benchmarks.stopping`. After a kill, the same command continues; completed rows are not
trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Pair = tuple[str, str]

ROWS = ("clean", "filtered", "damaged", "intact")
DAMAGES = ("copied", "misaligned", "duplicated")
FILTERS = ("identical", "length_ratio=1.75", "duplicate", "misaligned")
OVERRIDES = ("warmup_steps=400", "learning_rate_scale=0.8", "average_checkpoints=5", "r_drop=0", "batch_tokens=4096")
ALL = 1_000_000  # checkpoints


def damage(pairs: Sequence[Pair], seed: int, add: bool = False) -> list[tuple[str, Pair]]:
    """Returns the pairs, half of them damaged, each after the name of its damage ("": intact).

    With `add`, every pair is there intact, and once more damaged.
    """
    rng = random.Random(seed)
    order = rng.sample(range(len(pairs)), len(pairs))
    chosen = order if add else order[: len(pairs) // 2]
    spared = range(len(pairs)) if add else order[len(chosen) :]
    third = len(chosen) // len(DAMAGES)
    copied, misaligned, duplicated = chosen[:third], chosen[third : 2 * third], chosen[2 * third :]
    shifted = zip(misaligned, misaligned[1:] + misaligned[:1], strict=True)
    made = {place: ("copied", (pairs[place][0], pairs[place][0])) for place in copied}
    made |= {place: ("misaligned", (pairs[place][0], pairs[other][1])) for place, other in shifted}
    made |= {place: ("duplicated", pairs[rng.choice(spared)]) for place in duplicated}
    intact = [("", pair) for pair in pairs]
    if not add:
        return [made.get(place, each) for place, each in enumerate(intact)]
    both = intact + [made[place] for place in sorted(made)]
    rng.shuffle(both)
    return both


def dropped(marked: Sequence[tuple[str, Pair]], filters: Sequence[str]) -> Counter[str]:
    """Returns the number of pairs that the filters drop, by damage. Which of two equal pairs is the copy is unknown:
    equal pairs are counted as duplicated."""
    from t2t_repro.filters import resolve
    from t2t_repro.preparation.filtering.decisions import Judge, decide, filter_name

    pairs = [pair for _, pair in marked]
    judge = Judge(resolve(filters, ("", "")), has_trees=False, overlap="", splits=())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "decisions")
        decide(path, judge, lambda: [(0, 0, pairs)], len(pairs), processes=1)
        with open(path, "rb") as file:
            names = list(map(filter_name, file.read()))
    found, seen = Counter[str](), set[Pair]()
    for (kind, pair), name in zip(marked, names, strict=True):
        if name:
            found[kind if kind in ("copied", "misaligned") else "duplicated" if pair in seen else ""] += 1
        seen.add(pair)
    return found


def write_text(folder: str, name: str, pairs: Iterable[Pair]) -> list[str]:
    """Writes the two files of a text, unless they exist. Returns their paths."""
    from t2t_repro.io import atomic_write

    paths = [os.path.join(folder, f"{name}.{side}") for side in ("source", "target")]
    os.makedirs(folder, exist_ok=True)
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        if not os.path.exists(path):
            with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
    return paths


def test_score(directory: str) -> dict[str, Any] | None:
    """Returns the last score of a run on the test text, at its last step; None if there is none yet."""
    from t2t_repro.run import Run

    if not Run.exists(directory) or not os.path.exists((run := Run.open(directory)).scores):
        return None
    with open(run.scores, encoding="utf-8") as file:
        scores = [score for score in map(json.loads, file) if score["split"] == "test"]
    return next((score for score in reversed(scores) if score["step"] == run.last_step), None)


def train(row: str, files: dict[str, list[str]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and scores a row, or continues it. Returns its score."""
    from t2t_repro.cli import jobs, launcher

    directory = os.path.join(arguments.folder, "runs", row)
    options = [f"--problem=translate_files --hparams={arguments.hparams} --vocab_size={arguments.vocab_size}"]
    options += [f"--train_steps={arguments.steps} --checkpoint_steps={arguments.checkpoint_steps}"]
    options += [f"--seed={arguments.seed} --keep_best={ALL} --validate_metrics=bleu --validate_every=1"]
    command = " ".join(options).split() + [f"--override={each}" for each in arguments.override or OVERRIDES]
    command += [f"--data_dir={arguments.folder}/data/{row}", f"--output_dir={directory}"]
    for split, (source, target) in files.items():
        command += [f"--{split}_source={source}", f"--{split}_target={target}"]
    if row == "filtered":
        command += [f"--filter={each}" for each in arguments.filter or FILTERS]
    if not test_score(directory):
        try:
            jobs.program("t2t_trainer", command)
        except launcher.Stopped as stopped:
            sys.exit(str(stopped))
    score = test_score(directory)
    if score is None:
        raise ValueError(f"{directory} has no score on test text at its last step")
    return score


def pairs_of(folder: str) -> int:
    """Returns the number of training pairs in prepared data."""
    from t2t_repro.data.dataset import Dataset

    return Dataset.open(folder).record.splits["train"].pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="folder with train.en.gz, train.de.gz and so on")
    parser.add_argument("--languages", default="en,de", help="source and target (default: %(default)s)")
    parser.add_argument("--folder", required=True, help="for text, data and runs")
    parser.add_argument("--rows", default=",".join(ROWS[:3]), help=f"of {', '.join(ROWS)} (default: %(default)s)")
    parser.add_argument("--add", action="store_true", help="add the damaged pairs to the text instead of replacing it")
    parser.add_argument("--filter", action="append", help=f"of the row filtered (default: {', '.join(FILTERS)})")
    parser.add_argument("--hparams", default="multi30k")
    parser.add_argument("--override", action="append", help=f"of --hparams (default: {', '.join(OVERRIDES)})")
    parser.add_argument("--steps", type=int, default=1_200)
    parser.add_argument("--checkpoint_steps", type=int, default=100)
    parser.add_argument("--vocab_size", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=1, help="of the damage and of training")
    arguments = parser.parse_args()
    rows, languages = [row for row in arguments.rows.split(",") if row], arguments.languages.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"unknown row {', '.join(sorted(unknown))}; known: {', '.join(ROWS)}")
    from t2t_repro.preparation.corpora import read_pairs
    from t2t_repro.problem import TextFiles

    names = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    files = {split: [f"{arguments.text}/{name}.{each}.gz" for each in languages] for split, name in names.items()}
    source, target = files["train"]
    clean = list(read_pairs(TextFiles(source, target)))
    marked = damage(clean, arguments.seed, arguments.add)
    numbers, filters = Counter(kind for kind, _ in marked), arguments.filter or FILTERS
    found = dropped(marked, filters)
    print(f"| damage | pairs | dropped by {', '.join(filters)} |\n|---|---|---|")
    for kind in ("", *DAMAGES):
        print(f"| {kind or 'none'} | {numbers[kind]:,} | {found[kind]:,} ({found[kind] / numbers[kind]:.1%}) |")
    print(f"{len(marked):,} pairs, {len(marked) - found.total():,} after the filters\n", flush=True)
    texts = {"clean": clean, "intact": [pair for kind, pair in marked if not kind]}
    scores: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row if row in texts else "damaged"
        own = write_text(os.path.join(arguments.folder, "text"), name, texts.get(name, [pair for _, pair in marked]))
        scores[row] = train(row, files | {"train": own}, arguments)
    if not rows:
        return
    print(f"{arguments.steps:,} steps of {arguments.hparams} ({', '.join(arguments.override or OVERRIDES)})\n")
    print("| row | training pairs | perplexity | chrF | BLEU | minus clean |\n|---|---|---|---|---|---|")
    for row, score in scores.items():
        pairs = pairs_of(os.path.join(arguments.folder, "data", row, score["problem"]))
        minus = f"{score['bleu'] - scores['clean']['bleu']:+.2f}" if "clean" in scores else ""
        print(
            f"| {row} | {pairs:,} | {score['perplexity']:.2f} | {score['chrf']:.2f} | {score['bleu']:.2f} | {minus} |"
        )


if __name__ == "__main__":
    main()
