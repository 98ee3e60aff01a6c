"""Linearising: a tree as a line of symbols that a decoder can write, and a tree from whatever a decoder wrote.

After Vinyals et al. 2015, "Grammar as a Foreign Language": depth first, an opening and a closing symbol for each
constituent, both with its label. Between them stand the words.

    (S (NP (PRP We)) (VP (VBP agree)) (. .))    ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS

Vinyals et al. put XX for every word and trained on eleven million trees; tensor2tensor puts its part of speech. With a
few thousand trees a decoder then does not learn which word it has come to: with XX the encoder's outputs for the words
of a sentence became one vector (23,657 trees, 1,400 updates), with parts of speech 89% of the trees had another number
of words than the sentence (3,401 trees, 4,282 updates). A word that is written says itself where one is. It costs no
search, for the words are given: `constrained_decoding` lets a search write these, in their order, and brackets that
match.

Parts of speech are left out since bracket F1 does not see them. A closing symbol repeats its label, so that a decoder
which attends to a few symbols knows what it closes, and a slip can be mended here. The marks are letters (dental and
lateral click, which are Latin ones and in no treebank's words) and not brackets, for the sake of the vocabulary:
sentencepiece never joins a bracket and a letter in one piece, so that `(NP` and `)NP` would be two pieces each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from t2t_repro.parsing.trees import ROOT, Tree
from t2t_repro.problem import Pair

OPEN, CLOSE = "ǀ", "ǁ"  # U+01C0 and U+01C1
UNTOLD = "XX"  # the part of speech of a word that does not tell its own, and a word that begins with a mark

PUNCTUATION = {  # what the Penn Treebank tags by the sign alone; ' and - are other things too, and stay XX
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


def pair(tree: Tree) -> Pair:
    """What a parser is trained on: the words, and the linearised tree."""
    return " ".join(tree.words()), linearise(tree)


def linearise(tree: Tree) -> str:
    """The symbols of a tree, a space between them. Raises ValueError for an unlabelled root, which `clean` removes."""
    if not tree.label:
        raise ValueError(f"a tree with an unlabelled root cannot be linearised; clean it first: {str(tree):.60}")
    marks = {"(": OPEN, ")": CLOSE}
    return " ".join(
        symbol_of(part.word or "") if step == "word" else marks[step] + part.label for step, part in tree.walk()
    )


def symbol_of(word: str) -> str:
    """What stands for a word: itself, unless it would be read as a bracket."""
    return UNTOLD if word.startswith((OPEN, CLOSE)) else word


def split_words(text: str) -> list[str]:
    """The words of a tokenised sentence as a treebank writes them: brackets, which a tree cannot hold, are -LRB- -RRB-.

    "f ( x )" -> ["f", "-LRB-", "x", "-RRB-"]
    """
    text = text.replace("(", "-LRB-").replace(")", "-RRB-")
    return [word for word in _SPACE.split(text) if word]


def tag_of(word: str) -> str:
    """The part of speech that the sign itself tells, "." for "?"; XX for all else.

    EVALB leaves punctuation out by its tag, so a tree without tags could not be scored.
    """
    return PUNCTUATION.get(word, UNTOLD)


def rebuild(symbols: str | Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None) -> tuple[Tree, int]:
    """A well-formed tree over exactly `words`, whatever the symbols are, and the number of repairs that it took.

    No repairs means that the tree's own symbols are these ones. What counts as one repair, and how each is mended:

    - a bracket without a label: dropped
    - another word than the one whose place it has: taken for that
    - a word too many: dropped, the last ones; a word too few: put where the symbols end, into the innermost
      constituent that is still open there, else into the root
    - a closing that is missing: supplied, where one further out is closed, and at the end
    - a closing of what is not open: taken for the innermost constituent's; the root is not closed by it
    - a closing of the root before the end: put off until the end; a word before the root: taken into the root
    - a constituent without words: dropped
    - words without any constituent: under TOP, which claims nothing

    `tags`: the parts of speech, one for each word; without, `tag_of` each. Raises ValueError for no words, for words
    that no tree can hold (see `split_words`) and for another number of tags.
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
    last = max((place for place, (mark, _) in enumerate(understood) if mark != CLOSE), default=-1)
    for place, (mark, label) in enumerate(understood):
        if mark == CLOSE:
            builder.close(label, ends=place > last)
        else:
            builder.open(label) if mark == OPEN else builder.word()
    return builder.finish(), builder.repairs


class _Builder:
    """The tree so far: constituents that are open, the root first, and what stands outside of all."""

    def __init__(self, leaves: list[Tree]):
        self.repairs = 0
        self._leaves = leaves
        self._used = 0
        self._open: list[tuple[str, list[Tree]]] = []
        self._labels = Counter[str]()  # of those that are open, so that a long line of symbols takes linear time
        self._outside: list[Tree] = []

    def understand(self, symbols: Sequence[str]) -> list[tuple[str, str]]:
        """Symbols as (mark, label), a word's mark being empty, without brackets that have no label and without words
        beyond the last one."""
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

    def open(self, label: str) -> None:
        self._open.append((label, []))
        self._labels[label] += 1

    def word(self) -> None:
        self._innermost().append(self._leaves[self._used])
        self._used += 1

    def close(self, label: str, ends: bool) -> None:
        """Closes the innermost constituent of that label and all within it. `ends`: no word or opening follows."""
        if not self._labels[label]:
            self.repairs += 1
            if len(self._open) <= 1:
                return
            label = self._open[-1][0]
        while self._open[-1][0] != label:
            self._close_innermost()
            self.repairs += 1
        if len(self._open) == 1 and self._open[0][1] and not ends:
            self.repairs += 1
        else:
            self._close_innermost()

    def finish(self) -> Tree:
        """Closes what is open, puts in the words that are left, and gives the tree."""
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
