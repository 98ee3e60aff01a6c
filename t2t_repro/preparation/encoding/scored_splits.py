"""Encodes the text of validation and test. Nothing is dropped: irregular pairs are scored too."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from t2t_repro.data.dataset_record import SplitRecord
from t2t_repro.data.shards import FileRecord, example, shard_names, write_shard
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.parsing.linearization import rebuild
from t2t_repro.parsing.treebank import write_trees
from t2t_repro.parsing.trees import Tree
from t2t_repro.preparation.corpora import SplitText, corpus_of
from t2t_repro.preparation.filtering.decisions import kept
from t2t_repro.preparation.statistics import SplitStatistics, irregular
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.problem import Pair, Problem

_BATCH_PAIRS = 20_000  # encoded at a time


@dataclass(frozen=True)
class ScoredSplits:
    """Writes shards of validation and test text, and the trees that a parser is scored against, to `directory`."""

    problem: Problem
    directory: str
    vocabulary: str  # its file

    def write(self, split: str, text: SplitText, pairs_per_shard: int) -> tuple[SplitRecord, str]:
        """Writes a split in the order of its text. Returns its record and a summary.

        Raises ValueError if the text has changed since it was counted.
        """
        statistics, max_length = SplitStatistics(), self.problem.max_length
        examples = self._examples(text, statistics)
        names = shard_names(split, text.num_shards(pairs_per_shard))
        shards = tuple(
            write_shard(os.path.join(self.directory, name), itertools.islice(examples, pairs_per_shard))
            for name in names
        )
        text.must_have(statistics.read + sum(1 for _ in examples), split)
        trees = self.write_trees(split, text)
        record = statistics.record(self.problem.labels(split), shards=shards, trees=trees)
        return record, statistics.summary(max_length)

    def write_trees(
        self, split: str, text: SplitText, chosen: frozenset[int] | None = None, decisions: bytes = b""
    ) -> FileRecord | None:
        """Writes the trees that `split` is scored against; returns None if `text` is not trees.

        Args:
          split: "validation" or "test".
          text: that the trees are in.
          chosen: hashes of the sources of a validation split that was taken from training text. Trees that are too
            long are then left out, as their pairs are. None stands for the whole text.
          decisions: of the filters of training text.
        """
        if not text.has_trees:
            return None
        trees = self._trees(text) if chosen is None else self._chosen_trees(text, chosen, decisions)
        return write_trees(os.path.join(self.directory, f"{split}.trees"), trees)

    def _examples(self, text: SplitText, statistics: SplitStatistics) -> Iterator[bytes]:
        """Yields the records of the shards, and counts them in `statistics`."""
        for number, ((source, target), inputs, targets) in enumerate(self._encoded(text)):
            corpus = corpus_of(number, text.ends)
            statistics.read += 1
            if reason := irregular(source, target, inputs, targets, self.problem.max_length):
                statistics.irregular[reason] += 1
            statistics.keep(inputs, targets, corpus)
            yield example(inputs, targets, corpus)

    def _encoded(self, text: SplitText) -> Iterator[tuple[Pair, list[int], list[int]]]:
        """Yields (pair, ids of its source, ids of its target), EOS included."""
        pairs, vocabulary = text.pairs(), Vocabulary(self.vocabulary)
        while batch := list(itertools.islice(pairs, _BATCH_PAIRS)):
            inputs = vocabulary.encode([source for source, _ in batch])
            targets = vocabulary.encode([target for _, target in batch])
            yield from zip(batch, inputs, targets, strict=True)

    def _trees(self, text: SplitText) -> Iterator[Tree]:
        for words, symbols, tags in text.trees():
            yield self._tree(words, symbols, tags)

    def _chosen_trees(self, text: SplitText, chosen: frozenset[int], decisions: bytes) -> Iterator[Tree]:
        vocabulary = Vocabulary(self.vocabulary)
        for words, symbols, tags in kept(text.trees(), decisions):
            if source_hash(words) in chosen:
                inputs, targets = vocabulary.encode([words, symbols])
                if not irregular(words, symbols, inputs, targets, self.problem.max_length):
                    yield self._tree(words, symbols, tags)

    def _tree(self, words: str, symbols: str, tags: str) -> Tree:
        return rebuild(symbols, words.split(" "), tags.split(" "), self.problem.linearization)[0]
