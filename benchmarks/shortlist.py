"""Speed and BLEU of a trained run with shortlists of several sizes, over those without one.

    python -m benchmarks.shortlist --output_dir=run
    python -m benchmarks.shortlist --output_dir=run --lists=500x10,2000x50 --int8 --sentences=500

A list of `1000x20` has the 1,000 most frequent target subwords and 20 candidates of each source subword, learned from
the training data of the run (`t2t-shortlist`). The test text is translated with one model, without and with each list
alternately, after a round that is not timed. A ratio is the median over rounds, with the extremes after it. `covered`
is the share of the tokens of the references that is in the lists of their sentences, `subwords` the mean length of the
list of a batch.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.train import spread
from benchmarks.trained_run import argument_parser, load

LISTS = "500x10,1000x20,1000x50,2000x20"
WITHOUT = "without"


def lists(text: str) -> dict[str, tuple[int, int]]:
    """Returns the two numbers of each list by its name. Raises ArgumentTypeError for another form."""
    found = {}
    for name in text.split(","):
        numbers = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
        if not numbers:
            raise argparse.ArgumentTypeError(f"expected lists such as 1000x20, separated by commas; got {name!r}")
        found[name] = int(numbers[1]), int(numbers[2])
    return found


def measure(translators: dict[str, Any], sources: Sequence[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds and the processor's seconds of each round, by translator."""
    times: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cpu_seconds": []} for name in translators}
    for turn in range(rounds):
        for name, translator in translators.items():
            started = time.perf_counter(), time.process_time()
            translator.translate(sources)
            times[name]["seconds"].append(time.perf_counter() - started[0])
            times[name]["cpu_seconds"].append(time.process_time() - started[1])
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return times


def table(rows: dict[str, dict[str, Any]], times: dict[str, dict[str, list[float]]]) -> str:
    """Returns speed and processor's time over those without a list, and BLEU with its difference."""
    lines = ["| list | covered | subwords | speed | processor's time | BLEU | difference |", "|---" * 7 + "|"]
    for name, row in rows.items():
        speed = spread(times[WITHOUT]["seconds"], times[name]["seconds"])
        cost = spread(times[name]["cpu_seconds"], times[WITHOUT]["cpu_seconds"])
        bleu, difference = f"{row['bleu']:.2f}", f"{row['bleu'] - rows[WITHOUT]['bleu']:+.2f}"
        covered = f"{row['covered']:.2%}"
        lines.append(f"| {name} | {covered} | {row['subwords']:,.0f} | {speed} | {cost} | {bleu} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sentences", type=int, help="the first N of the split (default: all)")
    parser.add_argument("--lists", type=lists, default=LISTS, help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=100_000, help="to learn from (default: 100,000)")
    arguments = parser.parse_args()
    loaded = load(arguments)
    import itertools

    import sacrebleu

    from t2t_repro.data.shortlist import Shortlist
    from t2t_repro.inference.translator import Translator
    from t2t_repro.preparation.learning import shortlist

    plain = loaded.translator
    size = plain.vocabulary.size
    sample = shortlist.sample(loaded.ids("train"), size, arguments.pairs)
    pairs = list(itertools.islice(loaded.ids(arguments.split), arguments.sentences))
    sources, targets = (plain.vocabulary.decode(side) for side in zip(*pairs, strict=True))
    print(f"{len(sources):,} sentences; learned from {len(sample.pairs):,} pairs", flush=True)

    translators, rows = {WITHOUT: plain}, {WITHOUT: {"covered": 1.0, "subwords": size}}
    lengths: dict[str, list[int]] = {}
    for name, (first, best) in arguments.lists.items():
        learned = shortlist.learn(sample, first, best)
        lengths[name] = []
        noted = _noted(Shortlist, lengths[name])(size, learned.always.tolist(), learned.candidates)
        translators[name] = Translator(plain.ensemble, plain.vocabulary, plain.hparams, shortlist=noted)
        rows[name] = {"covered": shortlist.coverage(learned, pairs).covered}
    for name, translator in translators.items():
        bleu = sacrebleu.corpus_bleu(translator.translate(sources), [targets]).score
        rows[name] |= {"bleu": bleu} | (
            {"subwords": sum(lengths[name]) / len(lengths[name])} if name in lengths else {}
        )
    print(table(rows, measure(translators, sources, arguments.rounds)))


def _noted(kind: type, lengths: list[int]) -> type:
    """Returns a `Shortlist` that appends the number of ids of each batch to `lengths`."""

    class Noted(kind):
        def ids(self, *texts: Any) -> Any:
            found = super().ids(*texts)
            lengths.append(len(found))
            return found

    return Noted


if __name__ == "__main__":
    main()
