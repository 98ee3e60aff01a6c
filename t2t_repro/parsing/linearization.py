"""Linearization: a tree as a sequence of symbols that a decoder can write, and a tree from any decoder output.

After Vinyals et al. 2015, "Grammar as a Foreign Language": depth first, an opening and a closing symbol per
constituent, both with its label. The words are between them.

    (S (NP (PRP We)) (VP (VBP agree)) (. .))        ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS        "top_down"
                                                    We ǀNP ǁNP ǀS agree ǀVP ǁVP . ǁS        "in_order"

In order, a constituent is opened after its first child, which is known by then (Liu and Zhang 2017, "In-Order
Transition-based Constituent Parsing"; as a sequence with labels on closing symbols: Fernández-González and
Gómez-Rodríguez 2020, "Enriched In-Order Linearization for Faster Sequence-to-Sequence Constituent Parsing").

Vinyals et al. replaced every word by XX and trained on eleven million trees; tensor2tensor uses parts of speech. With a
few thousand trees such a decoder does not learn its position in the sentence. With XX the encoder's outputs for the
words of a sentence became identical (23,657 trees, 1,400 steps). With parts of speech 89% of the trees had another
number of words than the sentence (3,401 trees, 4,282 steps). Words in the output mark the position. They cost no
search, because `constrained_decoding` restricts the output to these words, in order, and balanced brackets.

Parts of speech are omitted because bracket F1 ignores them. A closing symbol repeats its label: a decoder that attends
to a few symbols then knows which constituent it closes, and a mistake can be repaired here. The marks are letters
(dental and lateral click: Latin letters that occur in no treebank's words) and not brackets, because sentencepiece
never joins a bracket and a letter into one subword: `(NP` and `)NP` would be two subwords each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from t2t_repro.parsing.trees import ROOT, Tree
from t2t_repro.problem import LINEARIZATIONS, Pair

TOP_DOWN, IN_ORDER = LINEARIZATIONS
OPEN, CLOSE = "ǀ", "ǁ"  # U+01C0 and U+01C1
UNKNOWN_TAG = "XX"  # the part of speech of words that are not punctuation; also replaces words that start with a mark

PUNCTUATION = {  # signs with only one tag in the Penn Treebank; ' and - have several, and are XX
    **dict.fromkeys(".?!", "."),
    ",": ",",
    **dict.fromkeys((":", ";", "--", "...", "—", "…"), ":"),
    **dict.fromkeys(("``", "`", "“", "‘"), "``"),
    **dict.fromkeys(("''", "”", "’", '"'), "''"),
    "-LRB-": "-LRB-",
    "-RRB-": "-RRB-",
}

_BRACKET = re.compile(rf"([{OPEN}{CLOSE}])([^\s()]+)", re.ASCII)
_SPACE = re.compile(r"\s+", re.ASCII)


def pair(tree: Tree, linearization: str = TOP_DOWN) -> Pair:
    """Returns the training pair of a tree: its words, and the linearized tree."""
    return " ".join(tree.words()), linearize_tree(tree, linearization)


def linearize_tree(tree: Tree, linearization: str = TOP_DOWN) -> str:
    """Returns the symbols of a tree, separated by spaces. `linearization` is one of `problem.LINEARIZATIONS`.

    Raises ValueError for an unlabeled root, which `clean` removes.
    """
    if not tree.label:
        raise ValueError(f"a tree with an unlabeled root cannot be linearized; clean it first: {str(tree):.60}")
    return " ".join(_in_order(tree) if linearization == IN_ORDER else _top_down(tree))


def _top_down(tree: Tree) -> Iterator[str]:
    marks = {"(": OPEN, ")": CLOSE}
    for step, part in tree.walk():
        yield symbol_of(part.word or "") if step == "word" else marks[step] + part.label


def _in_order(tree: Tree) -> Iterator[str]:
    waiting = [""]  # the label of each constituent around this place whose first child is not complete, or ""
    for step, part in tree.walk():
        if step == "(":
            waiting.append(part.label)
            continue
        if step == ")":
            waiting.pop()
        yield symbol_of(part.word or "") if step == "word" else CLOSE + part.label
        if waiting[-1]:
            yield OPEN + waiting[-1]
            waiting[-1] = ""


def symbol_of(word: str) -> str:
    """Returns the symbol of a word: the word itself, unless it would be read as a bracket."""
    return UNKNOWN_TAG if word.startswith((OPEN, CLOSE)) else word


def tree_words(text: str) -> list[str]:
    """Returns the words of a tokenized sentence. Brackets, which a tree cannot contain, are -LRB- and -RRB-.

    "f ( x )" -> ["f", "-LRB-", "x", "-RRB-"]
    """
    text = text.replace("(", "-LRB-").replace(")", "-RRB-")
    return [word for word in _SPACE.split(text) if word]


def tag_of(word: str) -> str:
    """Returns the part of speech of a punctuation sign, such as "." for "?"; XX for all other words.

    EVALB deletes punctuation by its tag, so that a tree without tags could not be scored.
    """
    return PUNCTUATION.get(word, UNKNOWN_TAG)


def rebuild(
    symbols: str | Sequence[str],
    words: Sequence[str],
    tags: Sequence[str] | None = None,
    linearization: str = TOP_DOWN,
) -> tuple[Tree, int]:
    """Returns a well-formed tree over exactly `words`, for any symbols, and the number of repairs.

    There are no repairs if and only if the tree's symbols equal the given ones. Each of these is one repair:

    - A bracket without a label is dropped.
    - A word that differs from the sentence's word at its position is replaced by that.
    - Surplus words at the end are dropped. A missing word is added at the end of the symbols, to the innermost
      constituent that is still open there, or else to the root.
    - A missing closing bracket is added, before an outer one closes and at the end.
    - A closing bracket of a label that is not open closes the innermost constituent, but not the root.
    - A closing bracket of the root before the end is moved to the end. In order, it stays if the next symbol opens a
      constituent around it. A word before the root is moved into the root.
    - A constituent without words is dropped.
    - Words without any constituent are placed under TOP, which EVALB does not count.
    - In order, an opening bracket that follows no word and no closing bracket opens an empty constituent, or one around
      the first child of that before it.

    `tags` are the parts of speech, one per word; the default is `tag_of` each. `linearization` is that of the symbols.
    Raises ValueError for no words, for words that a tree cannot contain (see `tree_words`), and for another number of
    tags.
    """
    if not words:
        raise ValueError("a tree needs words, got none")
    if tags is not None and len(tags) != len(words):
        raise ValueError(f"expected a tag for each of the {len(words)} words, got {len(tags)}")
    tags = [tag_of(word) for word in words] if tags is None else tags
    leaves = [Tree(tag, (), word) for tag, word in zip(tags, words, strict=True)]
    symbols = _SPACE.split(symbols) if isinstance(symbols, str) else symbols
    builder = _Builder(leaves)
    understood = builder.understand([symbol for symbol in symbols if symbol])
    marks, in_order = [mark for mark, _ in understood], linearization == IN_ORDER
    last = max((place for place, mark in enumerate(marks) if mark != CLOSE), default=-1)
    for place, (mark, label) in enumerate(understood):
        if mark == CLOSE:
            has_parent = in_order and marks[place + 1 : place + 2] == [OPEN]
            builder.close(label, place > last, has_parent)
        elif mark == OPEN and in_order:
            builder.open_around(label, follows_opening=place > 0 and marks[place - 1] == OPEN)
        else:
            builder.open(label) if mark == OPEN else builder.word()
    return builder.finish(), builder.repairs


class _Builder:
    """A tree under construction: the open constituents, the root first, and the nodes outside of all."""

    def __init__(self, leaves: list[Tree]):
        self.repairs = 0
        self._leaves = leaves
        self._used = 0
        self._open: list[tuple[str, list[Tree]]] = []
        self._labels = Counter[str]()  # of the open constituents, so that the time is linear in the number of symbols
        self._outside: list[Tree] = []

    def understand(self, symbols: Sequence[str]) -> list[tuple[str, str]]:
        """Returns symbols as (mark, label), where the mark of a word is empty.

        Brackets without a label and words beyond the last one are dropped.
        """
        understood = []
        words = 0
        for symbol in symbols:
            if symbol.startswith((OPEN, CLOSE)):
                if match := _BRACKET.fullmatch(symbol):
                    understood.append((match[1], match[2]))
            else:
                if words < len(self._leaves):
                    understood.append(("", ""))
                    self.repairs += symbol != symbol_of(self._leaves[words].word or "")
                words += 1
        self.repairs += len(symbols) - len(understood)
        return understood

    def open(self, label: str, *children: Tree) -> None:
        self._open.append((label, [*children]))
        self._labels[label] += 1

    def open_around(self, label: str, follows_opening: bool) -> None:
        """Opens a constituent whose first child is the newest one. `follows_opening`: that is already a first child."""
        siblings = self._innermost()
        self.repairs += follows_opening or not siblings
        self.open(label, *([siblings.pop()] if siblings else []))

    def word(self) -> None:
        self._innermost().append(self._leaves[self._used])
        self._used += 1

    def close(self, label: str, ends: bool, has_parent: bool) -> None:
        """Closes the innermost constituent with that label and all inside it. `ends`: no word or opening bracket
        follows. `has_parent`: the next symbol opens a constituent around this one, so that it is not the root."""
        if not self._labels[label]:
            self.repairs += 1
            if len(self._open) <= (not has_parent):
                return
            label = self._open[-1][0]
        while self._open[-1][0] != label:
            self._close_innermost()
            self.repairs += 1
        if len(self._open) == 1 and self._open[0][1] and not (ends or has_parent):
            self.repairs += 1
        else:
            self._close_innermost()

    def finish(self) -> Tree:
        """Closes open constituents, adds the remaining words, and returns the tree."""
        missing = self._leaves[self._used :]
        self.repairs += len(missing) + len(self._open)
        if not self._open and self._outside and self._outside[-1].children:
            root = self._outside.pop()
            self._outside.append(Tree(root.label, (*root.children, *missing)))
        else:
            self._innermost().extend(missing)
        while self._open:
            self._close_innermost()
        *before, root = self._outside
        if not before:
            return root
        if root.children:
            self.repairs += len(before)
            return Tree(root.label, (*before, *root.children))
        self.repairs += 1
        return Tree(ROOT, tuple(self._outside))

    def _innermost(self) -> list[Tree]:
        return self._open[-1][1] if self._open else self._outside

    def _close_innermost(self) -> None:
        label, children = self._open.pop()
        self._labels[label] -= 1
        if children:
            self._innermost().append(Tree(label, tuple(children)))
        else:
            self.repairs += 1
