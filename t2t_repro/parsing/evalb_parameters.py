"""The parameters of EVALB, which delete labels and treat others as equal, and their files."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from t2t_repro.config import nearest
from t2t_repro.text.lines import read_lines

Pairs = frozenset[frozenset[str]]


@dataclass(frozen=True)
class Parameters:
    """The rules of comparing two trees. The defaults are those of COLLINS.prm, with which published figures are
    computed.

    A part of speech in `delete` removes its word; a constituent in it keeps its children.
    """

    delete: frozenset[str] = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
    delete_for_length: frozenset[str] = frozenset({"-NONE-"})
    quote: frozenset[str] = frozenset()  # tags of words that may be mistaken for a quotation mark: see new.prm
    equal_labels: Pairs = frozenset({frozenset({"ADVP", "PRT"})})
    equal_words: Pairs = frozenset()
    labeled: bool = True
    cutoff: int = 40  # maximum number of words of sentences in the second summary
    max_error: int = 10

    def same_label(self, one: str, two: str) -> bool:
        return one == two or frozenset({one, two}) in self.equal_labels

    def same_word(self, one: str, two: str) -> bool:
        return one == two or frozenset({one, two}) in self.equal_words

    @cached_property
    def deleted_constituents(self) -> frozenset[str]:
        """The labels in `delete` and the labels equal to one of them. For parts of speech only `delete` itself
        applies."""
        return self.delete.union(*(pair for pair in self.equal_labels if pair & self.delete))


COLLINS = Parameters()

_NUMBERS = {"LABELED": "labeled", "CUTOFF_LEN": "cutoff", "MAX_ERROR": "max_error", "DEBUG": ""}
_SETS = {"DELETE_LABEL": "delete", "DELETE_LABEL_FOR_LENGTH": "delete_for_length", "QUOTE_LABEL": "quote"}
_PAIRS = {"EQ_LABEL": "equal_labels", "EQ_WORD": "equal_words"}


def read_parameters(path: str) -> Parameters:
    """Reads a parameter file such as COLLINS.prm. Labels that it does not name are neither deleted nor equal.

    A line is a keyword and a value; # starts a comment line. DEBUG is accepted and has no effect. Raises
    FileNotFoundError, and ValueError with the file and line for content that EVALB would not accept either.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file {path!r}; give a parameter file of EVALB, such as COLLINS.prm")
    collected: dict[str, set[Any]] = {name: set() for name in (*_SETS.values(), *_PAIRS.values())}
    numbers: dict[str, int] = {}
    for number, line in enumerate(read_lines(path, expected="lines such as DELETE_LABEL TOP"), start=1):
        if line.startswith("#") or not line.strip():
            continue
        keyword, *values = re.split(r"\s+", line.strip(), flags=re.ASCII)
        try:
            _take(keyword, values, collected, numbers)
        except ValueError as error:
            raise ValueError(f"{path}, line {number:,}: {error}") from None
    numbers.pop("", None)
    sets = {name: frozenset(values) for name, values in collected.items()}
    return dataclasses.replace(COLLINS, **sets, **_typed(numbers))  # type: ignore[arg-type]


def _take(keyword: str, values: list[str], collected: dict[str, set[Any]], numbers: dict[str, int]) -> None:
    wanted = 2 if keyword in _PAIRS else 1
    if keyword not in {*_NUMBERS, *_SETS, *_PAIRS}:
        raise ValueError(f"unknown keyword {keyword!r}{nearest(keyword, [*_NUMBERS, *_SETS, *_PAIRS])}")
    if len(values) != wanted:
        raise ValueError(f"{keyword} takes {('one value', 'two values')[wanted - 1]}, got {len(values)}")
    if keyword in _SETS:
        collected[_SETS[keyword]].add(values[0])
    elif keyword in _PAIRS:
        collected[_PAIRS[keyword]].add(frozenset(values))
    elif values[0].isascii() and values[0].isdigit():
        numbers[_NUMBERS[keyword]] = int(values[0])
    else:
        raise ValueError(f"{keyword} must be an integer, got {values[0]!r}")


def _typed(numbers: dict[str, int]) -> dict[str, int | bool]:
    return {name: bool(value) if name == "labeled" else value for name, value in numbers.items()}
