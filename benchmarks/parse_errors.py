"""Prints what the F1 of a parser is made of, and where two parsers differ.

    python -m benchmarks.parse_errors gold.mrg ours.mrg theirs.mrg --train=train.mrg.gz

The files have one tree per line, for the same sentences, as for t2t-evalb; brackets count as in EVALB. `t2t-compare
--gold` says whether the difference is more than chance. One file of trees is described alone. Prints tables of labeled
brackets:

- all, and all without their labels; by label, by words in the span, and by words in the sentence;
- spans of at most `--short` words by their least frequent word, if there is `--train`: it is unknown if it is not in
  these trees, rare if it is there less than `--rare` times;
- gold brackets that were missed: a bracket of the same span has another label, a parsed bracket crosses it, or neither;
- gold labels and what they were taken for, the most frequent ones.

A bracket is counted by its own properties. So recall is a share of gold brackets with a property, precision a share of
parsed ones. Only sentences that every file has a valid tree for are counted. EVALB deletes punctuation by its tag:
t2t-decoder's trees, which have no other tags, need `--gold_tags`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t_repro.parsing.evalb import Brackets, Constituent

    # Takes a sentence and one of its brackets. Returns the row to count it in, "" for none.
    Property = Callable[[Brackets, Constituent], str]

SPANS = (1, 2, 4, 8, 16, 32)  # the longest of each row
SENTENCES = (10, 20, 30, 40, 60)
FEW = 10  # gold brackets: labels with fewer share a row


@dataclass
class Counts:
    """Numbers of brackets with one property."""

    matched: int = 0
    gold: int = 0
    test: int = 0

    @property
    def f1(self) -> float:
        """F1 in percent; 0 of nothing."""
        return 200 * self.matched / (self.gold + self.test) if self.matched else 0.0


@dataclass
class Errors:
    """The brackets of one parser, counted."""

    tables: dict[str, dict[str, Counts]] = field(default_factory=dict)  # by title and row
    missed: Counter[str] = field(default_factory=Counter)
    confused: Counter[str] = field(default_factory=Counter)

    def add(self, title: str, row: str, **numbers: int) -> None:
        if row:
            counts = self.tables.setdefault(title, {}).setdefault(row, Counts())
            for name, number in numbers.items():
                setattr(counts, name, getattr(counts, name) + number)


def binned(number: int, bounds: Sequence[int]) -> str:
    """Returns the row of a number: `3-4`, or `33+` above all bounds."""
    below = 0
    for bound in bounds:
        if number <= bound:
            return f"{bound}" if bound == below + 1 else f"{below + 1}-{bound}"
        below = bound
    return f"{below + 1}+"


def properties(seen: Counter[str] | None, rare: int, short: int) -> dict[str, Property]:
    """Returns the properties that brackets are counted by, by the title of their table. `seen`: training words."""

    def frequency(sentence: Brackets, bracket: Constituent) -> str:
        start, end, _ = bracket
        if seen is None or end - start > short:
            return ""
        least = min(seen[word] for word in sentence.words[start:end])
        return "0 times (unknown)" if not least else f"1-{rare - 1} times (rare)" if least < rare else f"{rare}+ times"

    return {
        "all": lambda sentence, bracket: "labeled",
        "label": lambda sentence, bracket: bracket[2],
        "words in the span": lambda sentence, bracket: binned(bracket[1] - bracket[0], SPANS),
        "words in the sentence": lambda sentence, bracket: binned(len(sentence.words), SENTENCES),
        f"least frequent of at most {short} words, in training": frequency,
    }


def count(errors: Errors, sentence: Brackets, unlabeled: int, by: dict[str, Property]) -> None:
    """Adds a sentence. `unlabeled`: brackets that match without their labels."""
    from t2t_repro.parsing.evalb import crosses

    golds, tests = sentence.gold, sentence.test
    for title, row in by.items():
        for bracket in golds:
            errors.add(title, row(sentence, bracket), gold=1)
        for bracket in tests:
            errors.add(title, row(sentence, bracket), test=1)
        for place, _ in sentence.matched:
            errors.add(title, row(sentence, golds[place]), matched=1)
    errors.add("all", "without labels", matched=unlabeled, gold=len(golds), test=len(tests))
    used_golds, used_tests = ({pair[side] for pair in sentence.matched} for side in (0, 1))
    left = [bracket for place, bracket in enumerate(tests) if place not in used_tests]
    for place, gold in enumerate(golds):
        if place in used_golds:
            continue
        same = next((bracket for bracket in left if bracket[:2] == gold[:2]), None)
        if same:
            left.remove(same)
            errors.confused[f"{gold[2]} as {same[2]}"] += 1
        errors.missed["another label" if same else "crossed" if crosses(gold, tests) else "no such span"] += 1


def analyze(
    gold: str,
    parsed: Sequence[str],
    seen: Counter[str] | None = None,
    rare: int = 5,
    short: int = 4,
    gold_tags: bool = False,
) -> tuple[list[Errors], int, int]:
    """Returns the errors of each file of trees, the number of sentences that are counted, and that of all.

    `gold_tags`: the trees get gold's parts of speech. Raises FileNotFoundError or ValueError for files that cannot be
    read, and for unequal numbers of sentences.
    """
    from benchmarks.chart_parser import with_leaves_of
    from t2t_repro.parsing.evalb import brackets
    from t2t_repro.parsing.evalb_parameters import COLLINS
    from t2t_repro.parsing.trees import lines_of_trees, parse_lines

    files = [[*lines_of_trees(path)] for path in (gold, *parsed)]
    for path, lines in zip(parsed, files[1:], strict=True):
        if len(lines) != len(files[0]):
            raise ValueError(
                f"{gold} has {len(files[0]):,} lines and {path} has {len(lines):,}; give the same sentences"
            )
    found, counted, by = [Errors() for _ in parsed], 0, properties(seen, rare, short)
    without_labels = dataclasses.replace(COLLINS, labeled=False)
    for number, (gold_line, *parsed_lines) in enumerate(zip(*files, strict=True), start=1):
        golds = [*parse_lines([gold_line], gold, number)]
        forests = []
        for path, line in zip(parsed, parsed_lines, strict=True):
            try:
                forest = [*parse_lines([line], path, number)]
                if gold_tags and forest and golds:
                    forest = [with_leaves_of(golds[0], forest[0])]
                forests.append(forest)
            except ValueError:
                forests.append([])
        sentences = [(brackets(golds, forest), brackets(golds, forest, without_labels)) for forest in forests]
        if all(labeled and unlabeled for labeled, unlabeled in sentences):
            counted += 1
            for errors, (labeled, unlabeled) in zip(found, sentences, strict=True):
                assert labeled and unlabeled
                count(errors, labeled, len(unlabeled.matched), by)
    return found, counted, len(files[0])


def training_words(paths: Iterable[str]) -> Counter[str]:
    """Returns how often each word is in files of trees."""
    from t2t_repro.parsing.treebank import read
    from t2t_repro.problem import Trees

    return Counter(word for path in paths for tree in read(Trees(path)) for word in tree.words())


def rows_of(title: str, table: Sequence[dict[str, Counts]]) -> dict[str, list[Counts]]:
    """Returns the rows of a table, with the counts of each parser: labels by frequency, other rows by number."""
    names = list(dict.fromkeys(name for each in table for name in each))
    rows = {name: [each.get(name, Counts()) for each in table] for name in names}
    if title == "label":
        rows = dict(sorted(rows.items(), key=lambda row: -row[1][0].gold))
        few = [name for name, counts in rows.items() if counts[0].gold < FEW]
        if len(few) > 1:
            together = [[rows[name][number] for name in few] for number in range(len(table))]
            sums = [
                Counts(*(sum(getattr(c, n) for c in each) for n in ("matched", "gold", "test"))) for each in together
            ]
            rows = {name: counts for name, counts in rows.items() if name not in few}
            rows[f"{len(few)} others"] = sums
    elif all(name[:1].isdigit() for name in rows):
        rows = dict(sorted(rows.items(), key=lambda row: int(re.split("[-+ ]", row[0])[0])))
    return rows


def report(found: Sequence[Errors], names: Sequence[str], shown: int = 15) -> str:
    """Returns the tables as Markdown."""
    both, lines = len(found) == 2, list[str]()
    titles = [f"F1 {name}" for name in names] + ["difference", "matched, difference"] * both
    for title in found[0].tables:
        lines += [f"| {title} | gold | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
        for name, counts in rows_of(title, [errors.tables.get(title, {}) for errors in found]).items():
            cells = [f"{each.f1:.2f}" for each in counts]
            if both:
                one, two = counts
                cells += [f"{two.f1 - one.f1:+.2f}", f"{two.matched - one.matched:+,}"]
            lines.append(f"| {name} | {counts[0].gold:,} | {' | '.join(cells)} |")
        lines.append("")
    for title, counters in (
        ("missed gold brackets", [errors.missed for errors in found]),
        ("gold label as parsed label", [errors.confused for errors in found]),
    ):
        total = sum(counters, Counter[str]())
        lines += [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        lines += [
            f"| {name} | {' | '.join(f'{each[name]:,}' for each in counters)} |" for name, _ in total.most_common(shown)
        ]
        lines.append("")
    return "\n".join(lines[:-1])


def as_json(found: Sequence[Errors], names: Sequence[str]) -> dict[str, Any]:
    """Returns the numbers of `report`, all labels included."""
    return {
        name: {
            title: {row: vars(counts) | {"f1": counts.f1} for row, counts in table.items()}
            for title, table in errors.tables.items()
        }
        | {"missed": errors.missed, "confused": errors.confused}
        for name, errors in zip(names, found, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gold", help="gold trees")
    parser.add_argument("parsed", nargs="+", help="trees of a parser, or of two")
    parser.add_argument("--train", action="append", default=[], help="training trees, for known words; may be repeated")
    parser.add_argument("--rare", type=int, default=5, help="a word seen less often is rare (default: %(default)s)")
    parser.add_argument("--short", type=int, default=4, help="words of a short span (default: %(default)s)")
    parser.add_argument("--gold_tags", action="store_true", help="give all trees gold's parts of speech")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    arguments = parser.parse_args()
    if len(arguments.parsed) > 2:
        parser.error(f"expected one or two files of parsed trees, got {len(arguments.parsed)}")
    try:
        seen = training_words(arguments.train) if arguments.train else None
        how = arguments.rare, arguments.short, arguments.gold_tags
        found, counted, sentences = analyze(arguments.gold, arguments.parsed, seen, *how)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    names = ["A", "B"][: len(found)]
    if arguments.json:
        files = dict(zip(names, arguments.parsed, strict=True))
        print(json.dumps({"sentences": counted, "files": files} | as_json(found, names), indent=2, ensure_ascii=False))
        return
    for name, path in zip(names, arguments.parsed, strict=True):
        print(f"{name}  {path}")
    print(f"{counted:,} of {sentences:,} sentences are counted\n\n{report(found, names)}")


if __name__ == "__main__":
    main()
