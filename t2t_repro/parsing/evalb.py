"""EVALB: labeled bracket recall, precision and F1, counted as by Sekine and Collins' program of that name.

Two trees over the same words are compared as multisets of constituents, each a label and a span of words. Labels in the
parameter file's deletion list are removed first: a deleted part of speech removes its word (punctuation, traces), and a
deleted constituent keeps its children. A sentence whose words differ is an error, and one without words is skipped;
both are counted but not scored.

    gold  (S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))     S 0-3, NP 0-2, VP 2-3
    test  (S (NP (DT The)) (VP (NN law) (VBD changed)) (. .))     S 0-3, NP 0-1, VP 1-3     1 of 3, and 1 crosses

Labels are compared without function tags, parts of speech unchanged. An unlabeled bracket around a sentence counts as a
constituent, as in EVALB: both files should have it or neither.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from t2t_repro.parsing.evalb_parameters import COLLINS, Parameters
from t2t_repro.parsing.trees import Tree, lines_of_trees, parse_lines
from t2t_repro.text.lines import side_by_side

SCORED, ERROR, SKIPPED = 0, 1, 2  # a sentence's status
_OUTER = re.compile(r"\s*\(\s*\(")
_WORDLESS = re.compile(r"(\([^\s()]*+|\)|\s)*+", re.ASCII)  # "(())" and "(TOP)" too

Constituent = tuple[int, int, str]  # number of words before its start, and before its end; label

Forest = Sequence[Tree]  # the trees of one line: usually one, but EVALB accepts any number


class Brackets(NamedTuple):
    """The constituents of one sentence that count, and its words that are not deleted."""

    words: list[str]  # as gold spells them
    gold: list[Constituent]
    test: list[Constituent]
    matched: list[tuple[int, int]]  # pairs of places in `gold` and `test`; each place occurs at most once


@dataclass(frozen=True, slots=True)
class Row:
    """The counts of one sentence. `length` and `words` are those of gold without DELETE_LABEL_FOR_LENGTH and
    DELETE_LABEL."""

    number: int
    length: int
    words: int
    status: int = SCORED
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    tags: int = 0
    message: str = ""  # the reason of an error


@dataclass(frozen=True)
class Summary:
    """The counts of many sentences, and scores in percent over the valid ones; 0 if there are none."""

    sentences: int
    errors: int
    skipped: int
    valid: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging_accuracy: float


@dataclass(frozen=True)
class Scores:
    """The result of `evalb`: one row per sentence, a summary of all, and one of the sentences up to the cut-off
    length."""

    rows: tuple[Row, ...]
    cutoff: int

    @cached_property
    def all(self) -> Summary:
        return _summary(self.rows)

    @cached_property
    def short(self) -> Summary:
        return _summary([row for row in self.rows if row.length <= self.cutoff])

    @property
    def f1(self) -> float:
        return self.all.f1

    def to_dict(self) -> dict[str, Any]:
        """Returns both summaries as JSON values."""
        return {"all": asdict(self.all), f"length<={self.cutoff}": asdict(self.short)}


def evalb(gold: Iterable[Tree], test: Iterable[Tree], parameters: Parameters = COLLINS) -> Scores:
    """Returns the scores of the trees `test` against `gold`, compared in order.

    Raises ValueError if their numbers differ, or if more sentences than MAX_ERROR allows differ in words.
    """
    return _evalb(([tree] for tree in gold), ([tree] for tree in test), "gold", "test", parameters)


def evalb_files(gold: str, test: str, parameters: Parameters = COLLINS) -> Scores:
    """Returns the scores of the file `test` against the file `gold`, line by line; either may be .gz.

    A line of `test` that is not a tree is an error sentence, and one without words is skipped: an empty line, or
    `(())`. Raises FileNotFoundError or ValueError for files that cannot be read and for a line of `gold` that is not a
    tree, and otherwise as `evalb`.
    """
    return _evalb(_gold_forests(gold), _forests(test), gold, test, parameters)


def outer_bracket_note(gold: str, test: str) -> str:
    """Returns a warning if only one of two files has an unlabeled bracket around its first tree, ( (S ...))."""
    first, second = (next(itertools.filterfalse(_is_wordless, lines_of_trees(path)), "") for path in (gold, test))
    if not second or bool(_OUTER.match(first)) == bool(_OUTER.match(second)):
        return ""
    return "one file has an unlabeled bracket around its sentences, ( (S ...)), and EVALB counts it"


def _gold_forests(path: str) -> Iterator[Forest]:
    for number, line in enumerate(lines_of_trees(path), start=1):
        try:
            yield list(parse_lines([line], path, first=number))
        except ValueError as error:
            raise ValueError(f"{error} (EVALB expects one complete tree per line)") from None


def _forests(path: str) -> Iterator[Forest | str]:
    """Yields the trees of each line, or the reason why it has none."""
    for number, line in enumerate(lines_of_trees(path), start=1):
        try:
            yield [] if _is_wordless(line) else list(parse_lines([line], path, first=number))
        except ValueError as error:
            yield str(error)


def _is_wordless(line: str) -> bool:
    """Returns whether a line is empty, or has closed brackets without words: what a parser writes if it fails."""
    return bool(_WORDLESS.fullmatch(line)) and line.count("(") == line.count(")")


def _evalb(
    gold: Iterable[Forest], test: Iterable[Forest | str], gold_name: str, test_name: str, parameters: Parameters
) -> Scores:
    def unequal(golds: int, tests: int) -> str:
        numbers = f"{gold_name} has {golds:,} trees and {test_name} has {tests:,}"
        return f"{numbers}; the n-th of one must be the same sentence as the n-th of the other"

    rows, errors = [], 0
    for number, (one, two) in enumerate(side_by_side(gold, test, unequal), start=1):
        row = score(number, one, two, parameters)
        rows.append(row)
        errors += row.status == ERROR
        if errors > parameters.max_error + 1:  # EVALB allows one more than MAX_ERROR
            raise ValueError(
                f"sentence {number}: {row.message}; this is error {errors}, and MAX_ERROR is "
                f"{parameters.max_error}; both need the same words, or t2t-evalb --parameters with a larger MAX_ERROR"
            )
    return Scores(tuple(rows), parameters.cutoff)


def score(number: int, gold: Forest, test: Forest | str, parameters: Parameters = COLLINS) -> Row:
    """Returns the counts of one sentence. `test` is the trees, or the reason why there are none."""
    one, two = _Sentence(gold, parameters), _Sentence([] if isinstance(test, str) else test, parameters)
    if isinstance(test, str):
        return Row(number, one.length, len(one.leaves), ERROR, message=test)
    if not two.leaves:
        return Row(number, one.length, len(one.leaves), SKIPPED)
    message = _difference(one, two, parameters)
    if message:
        return Row(number, one.length, len(one.leaves), ERROR, message=message)
    golds, tests = one.constituents(parameters), two.constituents(parameters)
    return Row(
        number,
        one.length,
        len(one.leaves),
        SCORED,
        len(_matched(golds, tests, parameters)),
        len(golds),
        len(tests),
        _crossing(golds, tests),
        sum(parameters.same_label(a.label, b.label) for a, b in zip(one.leaves, two.leaves, strict=True)),
    )


def brackets(gold: Forest, test: Forest, parameters: Parameters = COLLINS) -> Brackets | None:
    """Returns the constituents that `score` counts; None for a sentence that it does not score."""
    one, two = _Sentence(gold, parameters), _Sentence(test, parameters)
    if not two.leaves or _difference(one, two, parameters):
        return None
    golds, tests = one.constituents(parameters), two.constituents(parameters)
    return Brackets([str(leaf.word) for leaf in one.leaves], golds, tests, _matched(golds, tests, parameters))


@dataclass(slots=True)
class _Bracket:
    label: str
    start: int  # number of words before its start, and before its end
    end: int


@dataclass(slots=True)
class _Quote:
    """A quotation mark that may be deleted in only one of the trees, and its position."""

    leaf: Tree
    place: int  # words before it; then the brackets opened before it, and those still open
    brackets: int
    around: list[int]


class _Sentence:
    """A forest as EVALB reads it: `length`, the leaves that are not deleted, and all brackets in the order of
    opening."""

    def __init__(self, forest: Forest, parameters: Parameters):
        self.length = 0
        self.leaves: list[Tree] = []
        self.quotes: list[_Quote] = []
        self._brackets: list[_Bracket] = []
        around: list[int] = []
        for step, part in itertools.chain.from_iterable(tree.walk() for tree in forest):
            if step == "(":
                around.append(len(self._brackets))
                self._brackets.append(_Bracket(part.label, len(self.leaves), 0))
            elif step == ")":
                self._brackets[around.pop()].end = len(self.leaves)
            else:
                self.length += part.label not in parameters.delete_for_length
                if part.label in parameters.quote and part.word in _QUOTATION_MARKS:
                    self.quotes.append(_Quote(part, len(self.leaves), len(self._brackets), around.copy()))
                if part.label not in parameters.delete:
                    self.leaves.append(part)

    def constituents(self, parameters: Parameters) -> list[Constituent]:
        """Returns (start, end, label) of the constituents that count: not empty, not deleted, labels without function
        tags."""
        cut = [(each.start, each.end, _ANNOTATION.split(each.label, maxsplit=1)[0]) for each in self._brackets]
        return [each for each in cut if each[0] != each[1] and each[2] not in parameters.deleted_constituents]

    def restore(self, number: int) -> None:
        """Reverts the deletion of one of `quotes`."""
        quote = self.quotes[number]
        self.leaves.insert(quote.place, quote.leaf)
        for bracket in self._brackets[quote.brackets :]:
            bracket.start += 1
            bracket.end += 1
        for index in quote.around:
            self._brackets[index].end += 1
        for later in self.quotes[number:]:
            later.place += 1


_QUOTATION_MARKS = frozenset({"'", '"', "/"})
_ANNOTATION = re.compile("[-=]")


def _restore_quotes(gold: _Sentence, test: _Sentence, parameters: Parameters) -> None:
    """Restores a deleted quotation mark that the other tree keeps, tagged for example as a possessive."""
    for number, mark in enumerate(test.quotes):
        place = mark.place
        for other, gold_mark in enumerate(gold.quotes):
            deleted = gold_mark.leaf.label in parameters.delete
            if gold_mark.place != place or deleted == (mark.leaf.label in parameters.delete):
                continue
            if deleted:
                gold.restore(other)
            else:
                test.restore(number)


def _difference(gold: _Sentence, test: _Sentence, parameters: Parameters) -> str:
    """Returns why two sentences cannot be compared, or "" if they can. Restores quotation marks, if that helps."""
    if len(gold.leaves) != len(test.leaves):
        _restore_quotes(gold, test, parameters)
    if len(gold.leaves) != len(test.leaves):
        return f"{len(gold.leaves)} words in gold, {len(test.leaves)} in test"
    for number, (one, two) in enumerate(zip(gold.leaves, test.leaves, strict=True), start=1):
        if not parameters.same_word(str(one.word), str(two.word)):
            return f"word {number} is {one.word!r} in gold, {two.word!r} in test"
    return ""


def _matched(golds: list[Constituent], tests: list[Constituent], parameters: Parameters) -> list[tuple[int, int]]:
    """Returns the places of gold's constituents that match one of test's, and of these; each is used up by a match."""
    left = defaultdict(list)
    for place, (start, end, label) in enumerate(tests):
        left[start, end].append((place, label))
    matched = []
    for gold_place, (start, end, label) in enumerate(golds):
        there = left.get((start, end), [])
        for number, (place, other) in enumerate(there):
            if not parameters.labeled or parameters.same_label(label, other):
                del there[number]
                matched.append((gold_place, place))
                break
    return matched


def _crossing(golds: list[Constituent], tests: list[Constituent]) -> int:
    """Returns the number of test's constituents that cross one of gold's."""
    return sum(crosses(test, golds) for test in tests)


def crosses(one: Constituent, others: Iterable[Constituent]) -> bool:
    """Returns true if a constituent overlaps one of the others without nesting. Labels do not matter."""
    begin, stop, _ = one
    return any(start < begin < end < stop or begin < start < stop < end for start, end, _ in others)


def _summary(rows: Sequence[Row]) -> Summary:
    scored = [row for row in rows if row.status == SCORED]
    matched, gold, test = (sum(getattr(row, name) for row in scored) for name in ("matched", "gold", "test"))
    recall, precision = percent(matched, gold), percent(matched, test)
    return Summary(
        sentences=len(rows),
        errors=sum(row.status == ERROR for row in rows),
        skipped=sum(row.status == SKIPPED for row in rows),
        valid=len(scored),
        recall=recall,
        precision=precision,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete_match=percent(sum(row.matched == row.gold == row.test for row in scored), len(scored)),
        average_crossing=sum(row.crossing for row in scored) / max(len(scored), 1),
        no_crossing=percent(sum(row.crossing == 0 for row in scored), len(scored)),
        two_or_less_crossing=percent(sum(row.crossing <= 2 for row in scored), len(scored)),
        tagging_accuracy=percent(sum(row.tags for row in scored), sum(row.words for row in scored)),
    )


def percent(part: int, whole: int) -> float:
    """Returns the share in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0
