"""EVALB: labelled bracket recall, precision and F1, as Sekine and Collins' program of that name counts them.

Two trees over the same words are compared by their constituents, each a label and a stretch of words, as multisets.
What a parameter file deletes is left out first: a deleted part of speech takes its word along (punctuation, traces), a
deleted constituent leaves its children. A sentence whose words differ is an error, one without words is skipped; both
are counted and score nothing.

    gold  (S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))     S 0-3, NP 0-2, VP 2-3
    test  (S (NP (DT The)) (VP (NN law) (VBD changed)) (. .))     S 0-3, NP 0-1, VP 1-3     1 of 3, and 1 crosses

Labels are compared without function tags, parts of speech as they are. An unlabelled bracket around a sentence counts
as a constituent, as it does in EVALB: both files should have it or neither.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from t2t_repro.parsing.evalb_parameters import COLLINS, Parameters
from t2t_repro.parsing.trees import Tree, lines_of_trees, parse_lines

SCORED, ERROR, SKIPPED = 0, 1, 2  # a sentence's status

Forest = Sequence[Tree]  # what stands on one line: one tree as a rule, but EVALB takes any number


@dataclass(frozen=True, slots=True)
class Row:
    """One sentence. `length` and `words` are gold's: without what DELETE_LABEL_FOR_LENGTH and DELETE_LABEL name."""

    number: int
    length: int
    words: int
    status: int = SCORED
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    tags: int = 0
    message: str = ""  # what is wrong with an error sentence


@dataclass(frozen=True)
class Summary:
    """Many sentences: counts of them, and scores in percent over those that were scored; 0 for nothing at all."""

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
    """What `evalb` found: a row for each sentence, a summary of all, and one of those not longer than the cut-off."""

    rows: tuple[Row, ...]
    cutoff: int
    all: Summary = field(init=False)
    short: Summary = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all", _summary(self.rows))
        object.__setattr__(self, "short", _summary([row for row in self.rows if row.length <= self.cutoff]))

    @property
    def f1(self) -> float:
        return self.all.f1

    def to_dict(self) -> dict[str, Any]:
        """Both summaries, as JSON can hold them."""
        return {"all": asdict(self.all), f"length<={self.cutoff}": asdict(self.short)}


def evalb(gold: Iterable[Tree], test: Iterable[Tree], parameters: Parameters = COLLINS) -> Scores:
    """The scores of the trees `test` against `gold`, the n-th against the n-th.

    Raises ValueError where they are not equally many, and where more sentences than MAX_ERROR allows differ in words.
    """
    return _evalb(_side_by_side(([tree] for tree in gold), ([tree] for tree in test), "gold", "test"), parameters)


def evalb_files(gold: str, test: str, parameters: Parameters = COLLINS) -> Scores:
    """The scores of the file `test` against the file `gold`, line by line; either may be .gz.

    A line of `test` that is no tree is an error sentence, an empty one is skipped. Raises FileNotFoundError or
    ValueError for what cannot be read, for a line of `gold` that is no tree, and otherwise as `evalb`.
    """
    return _evalb(_side_by_side(_gold_forests(gold), _test_forests(test), gold, test), parameters)


def unlike_outside(gold: str, test: str) -> bool:
    """Whether only one of two files has an unlabelled bracket around its first sentence, ( (S ...)): see above."""
    first, second = (next(lines_of_trees(path), "") for path in (gold, test))
    return bool(re.match(r"\s*\(\s*\(", first)) != bool(re.match(r"\s*\(\s*\(", second))


def _gold_forests(path: str) -> Iterator[Forest]:
    for number, line in enumerate(lines_of_trees(path), start=1):
        try:
            yield list(parse_lines([line], path, first=number))
        except ValueError as error:
            raise ValueError(f"{error} (EVALB wants a whole tree on each line)") from None


def _test_forests(path: str) -> Iterator[Forest | str]:
    """What each line holds, or why it holds no tree."""
    for number, line in enumerate(lines_of_trees(path), start=1):
        try:
            yield list(parse_lines([line], path, first=number))
        except ValueError as error:
            yield str(error)


def _side_by_side(
    gold: Iterable[Forest], test: Iterable[Forest | str], gold_name: str, test_name: str
) -> Iterator[tuple[Forest, Forest | str]]:
    golds, tests = iter(gold), iter(test)
    for number in itertools.count():
        one, two = next(golds, None), next(tests, None)
        if one is None and two is None:
            return
        if one is None or two is None:
            longer = number + 1 + sum(1 for _ in (golds if two is None else tests))
            counts = (longer, number) if two is None else (number, longer)
            raise ValueError(
                f"{gold_name} has {counts[0]:,} trees and {test_name} has {counts[1]:,}; "
                "the n-th of one must be the same sentence as the n-th of the other"
            )
        yield one, two


def _evalb(pairs: Iterable[tuple[Forest, Forest | str]], parameters: Parameters) -> Scores:
    rows, errors = [], 0
    for number, (gold, test) in enumerate(pairs, start=1):
        row = score(number, gold, test, parameters)
        rows.append(row)
        errors += row.status == ERROR
        if errors > parameters.max_error + 1:  # one more than the name says: so EVALB counts them
            raise ValueError(
                f"sentence {number}: {row.message}; that makes {errors} such errors, and MAX_ERROR is "
                f"{parameters.max_error}; both must hold the same words, or give parameters with a larger MAX_ERROR"
            )
    return Scores(tuple(rows), parameters.cutoff)


def score(number: int, gold: Forest, test: Forest | str, parameters: Parameters = COLLINS) -> Row:
    """One sentence's counts. `test` may be why there is no tree."""
    one, two = _Sentence(gold, parameters), _Sentence([] if isinstance(test, str) else test, parameters)
    if isinstance(test, str):
        return Row(number, one.length, len(one.leaves), ERROR, message=test)
    if not two.leaves:
        return Row(number, one.length, len(one.leaves), SKIPPED)
    if len(one.leaves) != len(two.leaves):
        _mend_quotes(one, two, parameters)
    message = _difference(one, two, parameters)
    if message:
        return Row(number, one.length, len(one.leaves), ERROR, message=message)
    golds, tests = one.constituents(parameters), two.constituents(parameters)
    return Row(
        number,
        one.length,
        len(one.leaves),
        SCORED,
        _matched(golds, tests, parameters),
        len(golds),
        len(tests),
        _crossing(golds, tests),
        sum(parameters.same_label(a.label, b.label) for a, b in zip(one.leaves, two.leaves, strict=True)),
    )


@dataclass(slots=True)
class _Bracket:
    label: str
    start: int  # the number of words before it, and before its end
    end: int


@dataclass(slots=True)
class _Quote:
    """A quotation mark that may be deleted in one tree and not in the other, and where it stands."""

    leaf: Tree
    place: int  # how many words are before it, how many brackets have begun, and which of them are open
    brackets: int
    around: list[int]


class _Sentence:
    """A forest as EVALB sees it: `length`, the leaves that are not deleted, all brackets in the order of opening."""

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

    def constituents(self, parameters: Parameters) -> list[tuple[int, int, str]]:
        """(start, end, label) of all that counts: not empty, not deleted, the label without function tags."""
        cut = [(each.start, each.end, _ANNOTATION.split(each.label, maxsplit=1)[0]) for each in self._brackets]
        return [each for each in cut if each[0] != each[1] and each[2] not in parameters.deleted_constituents]

    def put_back(self, number: int) -> None:
        """Undoes the deletion of one of `quotes`."""
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


def _mend_quotes(gold: _Sentence, test: _Sentence, parameters: Parameters) -> None:
    """Puts a deleted quotation mark back where the other tree tags it so that it is not deleted, as a possessive."""
    for number, mark in enumerate(test.quotes):
        place = mark.place
        for other, gold_mark in enumerate(gold.quotes):
            deleted = gold_mark.leaf.label in parameters.delete
            if gold_mark.place != place or deleted == (mark.leaf.label in parameters.delete):
                continue
            if deleted:
                gold.put_back(other)
            else:
                test.put_back(number)


def _difference(gold: _Sentence, test: _Sentence, parameters: Parameters) -> str:
    """Why two sentences cannot be compared, "" where they can."""
    if len(gold.leaves) != len(test.leaves):
        return f"{len(gold.leaves)} words in gold, {len(test.leaves)} in test"
    for number, (one, two) in enumerate(zip(gold.leaves, test.leaves, strict=True), start=1):
        if not parameters.same_word(str(one.word), str(two.word)):
            return f"word {number} is {one.word!r} in gold, {two.word!r} in test"
    return ""


def _matched(golds: list[tuple[int, int, str]], tests: list[tuple[int, int, str]], parameters: Parameters) -> int:
    """How many of gold's constituents have one of test's to themselves, each taking the first that is left."""
    left = defaultdict(list)
    for start, end, label in tests:
        left[start, end].append(label)
    matched = 0
    for start, end, label in golds:
        there = left.get((start, end), [])
        for place, other in enumerate(there):
            if not parameters.labeled or parameters.same_label(label, other):
                del there[place]
                matched += 1
                break
    return matched


def _crossing(golds: list[tuple[int, int, str]], tests: list[tuple[int, int, str]]) -> int:
    """How many of test's constituents overlap one of gold's, neither within the other. Labels do not matter."""
    spans = {each[:2] for each in golds}
    return sum(
        any(start < begin < end < stop or begin < start < stop < end for start, end in spans)
        for begin, stop, _ in tests
    )


def _summary(rows: Sequence[Row]) -> Summary:
    scored = [row for row in rows if row.status == SCORED]
    matched, gold, test = (sum(getattr(row, name) for row in scored) for name in ("matched", "gold", "test"))
    recall, precision = _percent(matched, gold), _percent(matched, test)
    return Summary(
        sentences=len(rows),
        errors=sum(row.status == ERROR for row in rows),
        skipped=sum(row.status == SKIPPED for row in rows),
        valid=len(scored),
        recall=recall,
        precision=precision,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete_match=_percent(sum(row.matched == row.gold == row.test for row in scored), len(scored)),
        average_crossing=sum(row.crossing for row in scored) / max(len(scored), 1),
        no_crossing=_percent(sum(row.crossing == 0 for row in scored), len(scored)),
        two_or_less_crossing=_percent(sum(row.crossing <= 2 for row in scored), len(scored)),
        tagging_accuracy=_percent(sum(row.tags for row in scored), sum(row.words for row in scored)),
    )


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
