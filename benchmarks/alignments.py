"""Word alignments of a trained run beside those of a statistical aligner, eflomal, and what they cost.

    python -m benchmarks.environments eflomal
    python -m benchmarks.alignments --output_dir=run --data_dir=data
    python -m benchmarks.alignments --output_dir=run --rounds=0 --sentences=500

The first sentences of the test text are translated and aligned. eflomal (Östling and Tiedemann, 2016) aligns the same
sentences and translations, which it gets together with the training text of the run. Its sure links are those that
both of its directions have, and its possible ones those that one has. Precision is the share of the run's links that
are possible, recall the share of the sure links that the run has, and AER the alignment error rate (Och and Ney, 2003)
as if eflomal's links were right. `diagonal` links each word to the one at the same relative place.

The speed is that of translation with alignments over translation without them, measured alternately, after a round that
is not timed. A ratio is the median over rounds, with the extremes after it. `--rounds=0` measures no speed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.environments import cache_folder, interpreter
from benchmarks.train import spread
from benchmarks.trained_run import argument_parser, load

WORKER = Path(__file__).parent / "workers" / "align_eflomal.py"
MISSING = "eflomal is not installed; python -m benchmarks.environments eflomal"

Links = set[tuple[int, int]]  # (number of the source word, number of the target word)


class Reference(NamedTuple):
    """The links of a statistical aligner in both directions."""

    forward: Links
    reverse: Links

    @property
    def sure(self) -> Links:
        return self.forward & self.reverse

    @property
    def possible(self) -> Links:
        return self.forward | self.reverse


def links(text: str) -> Links:
    """Reads Pharaoh format: `0-0 1-2`."""
    return {(int(source), int(target)) for source, target in (pair.split("-") for pair in text.split())}


def diagonal(source_words: int, words: int) -> Links:
    """Links each target word to the source word at the same relative place."""
    return {((2 * word + 1) * source_words // (2 * words), word) for word in range(words)} if source_words else set()


def agreement(proposed: Sequence[Links], references: Sequence[Reference]) -> tuple[float, float, float]:
    """Returns precision, recall and AER."""
    both = list(zip(proposed, references, strict=True))
    sure, possible = (sum(len(ours & getattr(theirs, kind)) for ours, theirs in both) for kind in ("sure", "possible"))
    all_links, all_sure = sum(map(len, proposed)), sum(len(theirs.sure) for theirs in references)
    error = 1 - (sure + possible) / max(all_links + all_sure, 1)
    return possible / max(all_links, 1), sure / max(all_sure, 1), error


def table(rows: dict[str, tuple[float, float, float]]) -> str:
    lines = ["| alignment | precision | recall | AER |", "|---" * 4 + "|"]
    lines += [f"| {name} | {row[0]:.1%} | {row[1]:.1%} | {row[2]:.3f} |" for name, row in rows.items()]
    return "\n".join(lines)


def aligned_by_eflomal(python: Path, pairs: Sequence[tuple[str, str]], last: int) -> list[Reference]:
    """Aligns all pairs together, and returns the links of the last ones. Case is ignored."""
    lines = [" ||| ".join(" ".join(side.lower().split()) or "-" for side in pair) for pair in pairs]
    text = "".join(f"{line}\n" for line in lines)
    found = subprocess.run([str(python), str(WORKER)], input=text, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"eflomal failed with exit code {found.returncode}: {found.stderr.strip().splitlines()[-1:]}")
    both = [line.split("\t") for line in found.stdout.splitlines()[-last:]]
    return [Reference(links(forward), links(reverse)) for forward, reverse in both]


def measure(translators: dict[str, Any], sources: Sequence[str], beam_size: int, rounds: int) -> dict[str, str]:
    """Returns the speed and the processor's time of alignments over those without, as text."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in translators}
    for turn in range(-1, rounds):
        for name, translator in translators.items():
            started = time.perf_counter(), time.process_time()
            translator.n_best(sources, 1, beam_size)
            ended = time.perf_counter(), time.process_time()
            if turn >= 0:
                for each, start, end in zip(times[name], started, ended, strict=True):
                    each.append(end - start)
    seconds, cpu_seconds = ((times["without"][kind], times["with"][kind]) for kind in (0, 1))
    return {"speed": spread(*seconds), "processor's time": spread(cpu_seconds[1], cpu_seconds[0])}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=200, help="the first N of the split (default: %(default)s)")
    parser.add_argument("--cache", help="the folder of benchmarks.environments")
    arguments = parser.parse_args()
    python = interpreter(cache_folder(arguments.cache), "eflomal")
    if python is None:
        sys.exit(MISSING)
    loaded = load(arguments)
    run, plain = loaded.run, loaded.translator
    chosen = run.problem.task.alignment_head(plain, run, arguments.data_dir, print)
    aligning = plain.with_alignments(chosen.head)
    sources = [source for source, _ in loaded.pairs(arguments.split, arguments.sentences)]
    found: list[Any] = [each for (each,) in aligning.n_best(sources, 1)]
    pairs = [(source, each.text) for source, each in zip(sources, found, strict=True)]
    references = aligned_by_eflomal(python, [*loaded.pairs("train"), *pairs], len(pairs))
    rows = {
        f"run, {chosen.head}": agreement([set(each.links) for each in found], references),
        "diagonal": agreement([diagonal(len(each.source_words), len(each.words)) for each in found], references),
    }
    print(f"{len(pairs):,} sentences\n{table(rows)}")
    for beam_size in (run.hparams.beam_size, 1) if arguments.rounds else ():
        ratios = measure({"without": plain, "with": aligning}, sources, beam_size, arguments.rounds)
        print(f"beam {beam_size}, with alignments over without: {', '.join(map(' '.join, ratios.items()))}", flush=True)


if __name__ == "__main__":
    main()
