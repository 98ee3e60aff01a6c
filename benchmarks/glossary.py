"""Speed and BLEU of a trained run with terms that its translations must contain, over those without.

    python -m benchmarks.glossary --output_dir=run
    python -m benchmarks.glossary --output_dir=run --terms=3 --int8 --source=test.en --target=test.de

The terms of a sentence are words of its reference: content words that IBM Model 1, learned from the training text of
the run, aligns with one word of the source, at most `--terms` of them. The test text is translated with one model,
without and with these terms alternately, after a round that is not timed. A ratio is the median over rounds, with the
extremes after it: speed is that of all sentences with terms over that without, and so is the processor's time. `found`
is the share of the terms that appear in the translations, and `again` the share of sentences that lack a term at first
and are searched again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.train import spread
from benchmarks.trained_run import argument_parser, load
from t2t_repro.text.glossary import Glossary, Required, lacking, missing

WITHOUT, WITH = "without", "with terms"
MIN_PROBABILITY = 0.3  # of the target word given the source word
MIN_LETTERS = 4  # of both words
FREQUENT = 60  # this many of the most frequent words of each side are function words

Found = list[list[Required]]


class OfSentences(Glossary):
    """A glossary with terms of its own for each source."""

    def __init__(self, required: dict[str, tuple[Required, ...]]):
        super().__init__({})
        self._required = required

    def required(self, text: str) -> tuple[Required, ...]:
        return self._required.get(text, ())


def function_words(texts: Iterable[str]) -> set[str]:
    """Returns the most frequent words."""
    from collections import Counter

    counts = Counter(word for text in texts for word in words(text))
    return {word for word, _ in counts.most_common(FREQUENT)}


def words(text: str) -> list[str]:
    """Returns the words without case and punctuation."""
    return [stripped for word in text.split() if (stripped := word.strip(".,;:!?\"'()[]-").casefold())]


def aligned(model: Any, source: str, target: str) -> list[tuple[float, str, str]]:
    """Returns (probability, source word, target word), as written in the target, of pairs of words that occur once.

    Each is the likeliest partner of the other in this sentence, by IBM Model 1.
    """
    import numpy as np

    as_written = {
        stripped.casefold(): stripped for word in target.split() if (stripped := word.strip(".,;:!?\"'()[]-"))
    }
    sides = words(source), words(target)
    once = [[word for word in side if side.count(word) == 1 and len(word) >= MIN_LETTERS] for side in sides]
    known = [[word for word in side if word in ids] for side, ids in zip(once, model.vocabularies, strict=True)]
    if not all(known):
        return []
    source_ids, target_ids = (
        np.array([ids[word] for word in side], np.int64) for side, ids in zip(known, model.vocabularies, strict=True)
    )
    keys = source_ids[:, None] * model.table.target_words + target_ids[None]
    places = np.minimum(np.searchsorted(model.table.keys, keys), len(model.table.keys) - 1)
    is_linked = model.table.keys[places] == keys
    probability = np.where(is_linked, model.directions[0].probability[places], 0)
    found = []
    for row, column in enumerate(probability.argmax(axis=1)):
        if probability[:, column].argmax() == row and probability[row, column] >= MIN_PROBABILITY:
            found.append((float(probability[row, column]), known[0][row], as_written[known[1][column]]))
    return sorted(found, reverse=True)


def required_of(
    model: Any, pairs: Sequence[tuple[str, str]], most: int, function: tuple[set[str], set[str]]
) -> dict[str, tuple[Required, ...]]:
    """Returns the terms of each source: the content words of its reference that are aligned with the least doubt."""
    found = {}
    for source, target in pairs:
        links = [each[1:] for each in aligned(model, source, target)]
        links = [each for each in links if each[0] not in function[0] and each[1].casefold() not in function[1]]
        terms = tuple(Required(term, (form,)) for term, form in links)
        found[source] = tuple(each for each in terms if not missing(target, [each]))[:most]
    return found


def measure(translator: Any, sources: Sequence[str], glossary: Glossary, rounds: int) -> dict[str, dict[str, Any]]:
    """Returns the translations, the seconds and the processor's seconds of each round, without and with terms."""
    options: dict[str, dict[str, Any]] = {WITHOUT: {}, WITH: {"glossary": glossary}}
    results: dict[str, dict[str, Any]] = {name: {"seconds": [], "cpu_seconds": []} for name in options}
    for turn in range(rounds + 1):
        for name, each in options.items():
            started = time.perf_counter(), time.process_time()
            results[name]["translations"] = translator.translate(sources, **each)
            if turn:
                results[name]["seconds"].append(time.perf_counter() - started[0])
                results[name]["cpu_seconds"].append(time.process_time() - started[1])
        print(f"round {turn} of {rounds}", file=sys.stderr)
    return results


def table(required: Sequence[Sequence[Required]], results: dict[str, dict[str, Any]]) -> str:
    """Returns the share of terms that appear, BLEU, and the ratios of speed and processor's time."""
    lines = ["| search | found | again | BLEU | speed | processor's time |", "|---" * 6 + "|"]
    number = sum(map(len, required))
    first = results[WITHOUT]
    again = len(lacking(required, [[text] for text in first["translations"]])) / len(required)
    for name, row in results.items():
        lost = sum(len(missing(text, each)) for text, each in zip(row["translations"], required, strict=True))
        share = f"{1 - lost / number:.2%}"
        speed = spread(first["seconds"], row["seconds"])
        cost = spread(row["cpu_seconds"], first["cpu_seconds"])
        share_again = f"{again:.2%}" if name == WITH else ""
        lines.append(f"| {name} | {share} | {share_again} | {row['bleu']:.2f} | {speed} | {cost} |")
    return "\n".join(lines)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--source", nargs="+", help="text files to translate instead of the split, with --target")
    parser.add_argument("--target", nargs="+", help="their references")
    parser.add_argument("--sentences", type=int, default=1_000, help="the first N with terms (default: %(default)s)")
    parser.add_argument("--terms", type=int, default=2, help="per sentence, at most (default: %(default)s)")
    parser.add_argument("--beam_size", type=int, help="default: the run's")
    arguments = parser.parse_args()
    if bool(arguments.source) != bool(arguments.target):
        parser.error("--source and --target are one text; give both")
    loaded = load(arguments)
    import dataclasses
    import itertools

    import sacrebleu

    from t2t_repro.preparation.filtering.alignment import SAMPLE_PAIRS, learn
    from t2t_repro.text.lines import read_lines

    translator = loaded.translator
    if arguments.beam_size:
        translator.hparams = dataclasses.replace(translator.hparams, beam_size=arguments.beam_size)

    training = loaded.pairs("train", SAMPLE_PAIRS)
    function = function_words(source for source, _ in training), function_words(target for _, target in training)
    if arguments.source:
        sides = (itertools.chain.from_iterable(map(read_lines, side)) for side in (arguments.source, arguments.target))
        tested: list[tuple[str, str]] = list(zip(*sides, strict=True))
    else:
        tested = loaded.pairs(arguments.split)
    required = required_of(learn(training), tested, arguments.terms, function)
    pairs = [pair for pair in tested if required[pair[0]]][: arguments.sentences]
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    chosen = [required[source] for source in sources]
    print(f"{len(sources):,} sentences with {sum(map(len, chosen)):,} terms; aligned by {len(training):,} pairs")

    results = measure(translator, sources, OfSentences(required), arguments.rounds)
    for row in results.values():
        row["bleu"] = sacrebleu.corpus_bleu(row["translations"], [targets]).score
    print(table(chosen, results))


if __name__ == "__main__":
    main()
