"""A trained run of a parsing problem as a `Parser`, from sentence to tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from t2t_repro.data.vocabulary import as_pairs, as_texts, must_be_list
from t2t_repro.parsing.linearization import TOP_DOWN, pair, rebuild, tree_words
from t2t_repro.parsing.trees import Tree, parse

_NOTHING = [("", -math.inf)]  # instead of the trees of a sentence


class Parser:
    """A `Translator` or an `ExportedModel` whose outputs are linearized trees.

    Every output becomes a tree over exactly the words of its sentence.

    Repairs are counted: `sentences` parsed, the number of best trees that were `repaired`, and the total of `repairs`.
    With `well_formed`, hypotheses that need no repair rank before those that do, whatever their scores. `linearization`
    is that of the outputs. `n_best` leaves out trees with a confidence below `min_confidence`, and counts sentences
    without any other as `unsure`. The confidence is the geometric mean of the probabilities of a tree's tokens, from 0
    to 1. It needs a `Translator`.
    """

    def __init__(
        self,
        translator: Any,
        well_formed: bool = False,
        linearization: str = TOP_DOWN,
        min_confidence: float = 0.0,
    ):
        if not 0 <= min_confidence <= 1:
            raise ValueError(f"min_confidence must be from 0 to 1. Received: {min_confidence}")
        self.translator, self.well_formed, self.linearization = translator, well_formed, linearization
        self.min_confidence = min_confidence
        self.sentences = self.repaired = self.repairs = self.unsure = 0

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the best tree of each tokenized sentence, in brackets: `n_best` with n = 1."""
        return [best[0][0] for best in self.n_best(texts, 1)]

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the log-probability of each tree given its words; a pair is (words with spaces, tree in brackets).

        Raises ValueError for a text that is not a tree, or is a tree over other words.
        """
        pairs = as_pairs(pairs)
        symbols = []
        for number, (words, text) in enumerate(pairs, start=1):
            tree = parse(text)
            if tree.words() != tree_words(words):
                raise ValueError(f"pair {number}: expected a tree over {words!r:.80}. Received: {text!r:.80}")
            symbols.append(pair(tree, self.linearization))
        return self.translator.score(symbols)

    def parse(
        self,
        sentences: Sequence[Sequence[str]],
        beam_size: int | None = None,
        alpha: float | None = None,
        tags: Sequence[Sequence[str]] | None = None,
    ) -> list[Tree]:
        """Returns the best tree of each sentence. A sentence is a list of at least one word without brackets or white
        space.

        `tags` are the parts of speech of the words; the default is that of each punctuation sign, and XX for words.
        """
        must_be_list(sentences, "sentences")
        sentences = list(sentences)
        for number, words in enumerate(sentences, start=1):
            must_be_list(words, f"sentence {number}")
        found = self._hypotheses([" ".join(words) for words in sentences], 1, beam_size, alpha)
        all_tags = [None] * len(sentences) if tags is None else tags
        return [
            self._trees(hypotheses, words, 1, tags)[0][0]
            for hypotheses, words, tags in zip(found, sentences, all_tags, strict=True)
        ]

    def n_best(
        self,
        texts: Sequence[str],
        n: int,
        beam_size: int | None = None,
        alpha: float | None = None,
        **options: Any,
    ) -> list[list[tuple[str, float]]]:
        """Returns the n best trees of each tokenized sentence, in brackets, with their scores.

        A text without words gives an empty tree, and one without a confident tree an empty one with score -inf.
        `options` are `report` and `advance` of `Translator.n_best`.
        """
        sentences = [tree_words(text) for text in as_texts(texts)]
        found = self._hypotheses([" ".join(words) for words in sentences], n, beam_size, alpha, **options)
        if self.min_confidence:
            found = [self._confident(hypotheses, alpha) for hypotheses in found]
        return [
            [(str(tree), score) for tree, score in self._trees(hypotheses, words, n)]
            if words and hypotheses != _NOTHING
            else hypotheses
            for hypotheses, words in zip(found, sentences, strict=True)
        ]

    def summary(self) -> str:
        """Returns the counts: `repaired 12 of 1,700 trees (31 repairs)`."""
        unsure = f"; left out {self.unsure:,} below confidence {self.min_confidence:g}" if self.min_confidence else ""
        return f"repaired {self.repaired:,} of {self.sentences:,} trees ({self.repairs:,} repairs){unsure}"

    def _confident(self, hypotheses: list[tuple[str, float]], alpha: float | None) -> list[tuple[str, float]]:
        """Returns the hypotheses that are confident enough, `_NOTHING` without any."""
        from t2t_repro.inference.search.beam_search import length_penalty

        exponent = self.translator.hparams.alpha if alpha is None else alpha
        lengths = [len(ids) for ids in self.translator.vocabulary.encode([text for text, _ in hypotheses])]
        log_p = [
            score * float(length_penalty(length, exponent)) / length
            for (_, score), length in zip(hypotheses, lengths, strict=True)
        ]
        least = math.log(self.min_confidence)
        kept = [each for each, mean in zip(hypotheses, log_p, strict=True) if mean >= least]
        self.unsure += not kept
        return kept or _NOTHING

    def _hypotheses(
        self, texts: Sequence[str], n: int, beam_size: int | None, alpha: float | None, **options: Any
    ) -> list[list[tuple[str, float]]]:
        width = self.translator.hparams.beam_size if beam_size is None else beam_size
        wanted = max(n, width) if self.well_formed or n > 1 else n
        return self.translator.n_best(texts, wanted, beam_size, alpha, **options)

    def _trees(
        self, hypotheses: list[tuple[str, float]], words: Sequence[str], n: int, tags: Sequence[str] | None = None
    ) -> list[tuple[Tree, float]]:
        """Returns the n best trees of a sentence with their scores: all words under TOP if the search found nothing."""
        hypotheses = hypotheses or _NOTHING
        rebuilt = [(*rebuild(text, words, tags, self.linearization), score) for text, score in hypotheses]
        if self.well_formed:
            rebuilt.sort(key=lambda each: each[1] > 0)  # a stable sort keeps the order otherwise
        _, repairs, _ = rebuilt[0]
        self.sentences += 1
        self.repaired += repairs > 0
        self.repairs += repairs
        first: dict[str, tuple[Tree, float]] = {}
        for tree, _, score in rebuilt:  # different symbols may be repaired to the same tree
            first.setdefault(str(tree), (tree, score))
        return list(first.values())[:n]
