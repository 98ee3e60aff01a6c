"""Trees in Penn Treebank bracketing: strict reading, cleaning for training, writing on one line.

    ( (S (NP-SBJ-1 (DT The) (NN law)) (VP (VBD changed) (NP-1 (-NONE- *))) (. .)) )      in the treebank
    (S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))                                  clean

Tokens are separated by ASCII white space; a no-break space belongs to its word. Several words in one leaf are one token
to the annotators and are joined by "_": CRAFT has five such leaves, as (NN Xpd TTD). Nothing here is recursive, so that
the depth of a tree is not limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from t2t_repro.text.lines import read_lines

TRACE = "-NONE-"  # the tag of a trace, an empty element
ROOT = "TOP"  # a root without meaning, which EVALB does not count
_OUTERMOST = frozenset({"", ROOT, "ROOT", "S1"})  # labels of the bracket around a sentence

BRACKETING = "trees in Penn Treebank bracketing"
MAX_BRACKETS = 1 << 18  # of one tree: a sentence has a few hundred; after a missing ) the rest of the file is one

_ATOM = re.compile(r"[^\s()]+", re.ASCII)
_ANNOTATION = re.compile("[-=]")  # start of function tags and indices: NP-SBJ-1, NP=2
_SYMBOL = re.compile(r"\([^\s()]*|\)|[^\s()]+", re.ASCII)  # "(NP", "(", ")", "word"

Step = Literal["(", "word", ")"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A label with children, or a label with a word: a leaf, whose label is the part of speech.

    Raises ValueError for trees that bracketing cannot express: both or neither of these, white space or a bracket in a
    label or word, and a missing label anywhere but at the root.
    """

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def __post_init__(self) -> None:
        if (self.word is None) != bool(self.children):
            raise ValueError(f"a tree has children or one word, got {len(self.children)} children and {self.word!r}")
        if self.word is not None and not _ATOM.fullmatch(self.word):
            raise ValueError(f"a word has no white space and no brackets, and is not empty; got {self.word!r}")
        if not _ATOM.fullmatch(self.label) and (self.label or self.word is not None):
            raise ValueError(f"a label has no white space and no brackets, and is not empty; got {self.label!r}")
        for child in self.children:
            if not child.label:
                raise ValueError("only the root of a tree may be without a label")

    def walk(self) -> Iterator[tuple[Step, Tree]]:
        """Yields the parts in written order: ("(", tree) and (")", tree) around children, and ("word", leaf)."""
        todo: list[tuple[Step, Tree]] = [("(", self)]
        while todo:
            step, tree = todo.pop()
            if tree.word is not None:
                yield "word", tree
                continue
            yield step, tree
            if step == "(":
                todo.append((")", tree))
                todo.extend([("(", child) for child in reversed(tree.children)])

    def leaves(self) -> list[Tree]:
        return [tree for step, tree in self.walk() if step == "word"]

    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    def tags(self) -> list[str]:
        return [leaf.label for leaf in self.leaves()]

    def __str__(self) -> str:
        """Returns the tree on one line: `(S (NP (PRP We)) (VP (VBP agree)) (. .))`."""
        parts = []
        for step, tree in self.walk():
            parts.append(
                f" ({tree.label} {tree.word})" if step == "word" else f" ({tree.label}" if step == "(" else ")"
            )
        return "".join(parts)[1:]

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        todo = [(self, other)]
        while todo:
            one, two = todo.pop()
            if (one.label, one.word, len(one.children)) != (two.label, two.word, len(two.children)):
                return False
            todo.extend(zip(one.children, two.children, strict=True))
        return True


def read_trees(path: str) -> Iterator[Tree]:
    """Yields the trees of a file, through gzip if its name ends in `.gz`.

    A tree may span many lines, and a line may contain many trees. Raises FileNotFoundError, and ValueError with the
    file and line for content that is not a tree and for a file without trees.
    """
    number = 0
    for number, tree in enumerate(parse_lines(lines_of_trees(path), path), start=1):  # noqa: B007
        yield tree
    if not number:
        raise ValueError(f"{path} has no tree; expected Penn Treebank bracketing, (S (NP (PRP We)) ...)")


def lines_of_trees(path: str) -> Iterator[str]:
    """Returns the lines of a file of trees."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file {path!r}; give a file of {BRACKETING}")
    return iter(read_lines(path, expected=BRACKETING))


def parse(text: str) -> Tree:
    """Returns the tree in `text`. Raises ValueError unless there is exactly one."""
    found = list(parse_lines([text], "the text"))
    if len(found) != 1:
        raise ValueError(f"expected one tree, got {len(found)} in {text!r:.80}")
    return found[0]


def parse_lines(lines: Iterable[str], name: str, first: int = 1) -> Iterator[Tree]:
    """Yields each tree in `lines` as soon as it is closed. Errors contain `name`, and count lines from `first`."""
    reader = _Reader(name)
    for reader.line, text in enumerate(lines, start=first):
        for symbol in _SYMBOL.findall(text):
            if symbol == ")":
                if tree := reader.close():
                    yield tree
            elif symbol.startswith("("):
                reader.open(symbol[1:])
            else:
                reader.word(symbol)
    reader.end()


@dataclass(slots=True)
class _Bracket:
    label: str
    children: list[Tree] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # of a leaf

    @property
    def word(self) -> str | None:
        return "_".join(self.words) if self.words else None


class _Reader:
    """Builds trees from symbols, one by one: "(NP" to `open`, "word" to `word`, and ")" to `close`."""

    def __init__(self, name: str):
        self.line = 0
        self._name = name
        self._open: list[_Bracket] = []
        self._first_line = 0  # first line of the current tree, and the number of its brackets
        self._brackets = 0

    def open(self, label: str) -> None:
        if not self._open:
            self._first_line, self._brackets = self.line, 0
        elif not label:
            raise self._error("a bracket without a label inside a tree; expected (LABEL, only the outermost has none")
        elif self._open[-1].words:
            raise self._mixed(self._open[-1])
        self._brackets += 1
        if self._brackets > MAX_BRACKETS:
            raise self._error(
                f"the tree that starts at line {self._first_line:,} is not closed after {MAX_BRACKETS:,} brackets; "
                "look for a missing ) there"
            )
        self._open.append(_Bracket(label))

    def word(self, word: str) -> None:
        if not self._open:
            raise self._error(f"{word!r} is outside of all brackets; expected a tree such as (S (NP (PRP We)) ...)")
        bracket = self._open[-1]
        if not bracket.label:
            raise self._error(f"{word!r} in a bracket without a label; expected (TAG {word}), no space after the (")
        bracket.words.append(word)
        if bracket.children:
            raise self._mixed(bracket)

    def close(self) -> Tree | None:
        """Returns the tree that a ")" closes, or None within a tree."""
        if not self._open:
            raise self._error("unmatched ); expected a tree such as (S (NP (PRP We)) ...)")
        bracket = self._open.pop()
        if not bracket.children and not bracket.words:
            raise self._error(f"({bracket.label}) is empty; expected a word or brackets in it")
        tree = Tree(bracket.label, tuple(bracket.children), bracket.word)
        if not self._open:
            return tree
        self._open[-1].children.append(tree)
        return None

    def end(self) -> None:
        """Raises ValueError if the text ends inside a tree."""
        if self._open:
            brackets = "a bracket is" if len(self._open) == 1 else f"{len(self._open):,} brackets are"
            raise ValueError(
                f"{self._name} ends inside a tree that starts at line {self._first_line:,}: {brackets} not closed, "
                f"the last one ({self._open[-1].label}; expected its )"
            )

    def _mixed(self, bracket: _Bracket) -> ValueError:
        return self._error(f"({bracket.label} has the word {bracket.word!r} and a bracket; expected one or the other")

    def _error(self, message: str) -> ValueError:
        return ValueError(f"{self._name}, line {self.line:,}: {message}")


def clean(tree: Tree) -> Tree | None:
    """Returns the tree for training and scoring, or None if its only words are traces.

    Traces are removed, and constituents that contain nothing else. Function tags and indices are removed (`bare`). An
    outermost bracket that only wraps a sentence (unlabeled, TOP, ROOT, S1) is removed; if it wraps several nodes, it
    becomes TOP. A constituent whose only child has the same label, (NP (NP ...)), is kept: EVALB counts both, and
    parsers drop them only to keep their charts small.
    """
    around: list[list[Tree]] = [[]]
    for step, part in tree.walk():
        if step == "(":
            around.append([])
        elif step == "word":
            if part.label != TRACE:
                around[-1].append(Tree(bare(part.label), (), part.word))
        else:
            children = tuple(around.pop())
            if children:
                around[-1].append(Tree(bare(part.label), children))
    if not around[0]:
        return None
    root = around[0][0]
    while root.label in _OUTERMOST and len(root.children) == 1:
        root = root.children[0]
    return Tree(ROOT, root.children) if root.label in _OUTERMOST and root.children else root


def bare(label: str) -> str:
    """Returns a label without function tags and indices, NP for NP-SBJ-1 and NP=2. A label that starts with -, -LRB-,
    is kept."""
    return label if label[:1] in "-=" else _ANNOTATION.split(label, maxsplit=1)[0]
