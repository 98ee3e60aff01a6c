"""The text of a problem, ready to read: archives downloaded, trees linearized, pairs counted."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from t2t_repro.data.dataset_record import CorpusRecord, Source
from t2t_repro.parsing.linearized_trees import Block, Linearized
from t2t_repro.parsing.treebank import linearize
from t2t_repro.preparation.corpora import CorpusFiles, SplitText, read_pairs
from t2t_repro.preparation.downloads import WmtDownloader
from t2t_repro.preparation.pace import Pace, Report
from t2t_repro.problem import SPLITS, Problem, TmxFile, Trees, Wmt


class ProblemText:
    """The corpora of all splits of a problem.

    Args:
      problem: with its corpora.
      sources: the descriptions of the corpora by split, as `corpora.describe` makes them.
      trees_folder: for linearized trees, which an earlier preparation may have left there.
      downloads: for archives and what is unpacked from them.
      report: called with each line of progress.
      processes: that linearize trees; None stands for one per core.
    """

    def __init__(
        self,
        problem: Problem,
        sources: dict[str, list[Source]],
        trees_folder: str,
        downloads: str,
        report: Report,
        processes: int | None,
    ):
        self._problem, self._sources, self._trees_folder = problem, sources, trees_folder
        self._report, self._processes = report, processes
        self._downloader = WmtDownloader(downloads, report)
        self._files = {split: self._corpus_files(split) for split in SPLITS}

    def count(self) -> dict[str, list[CorpusRecord]]:
        """Reads all text once and so finds all errors in it. Returns the records of the corpora of each split."""
        return {split: [self._counted(corpus) for corpus in files] for split, files in self._files.items() if files}

    def split(self, split: str, records: list[CorpusRecord]) -> SplitText:
        """Returns the text of a split, counted as in `records`: of train a sample, if the problem asks for one."""
        numbers = tuple(record.lines for record in records)
        total, sample = sum(numbers), self._problem.sample if split == "train" else 0
        taken = min(total, sample) if sample else total
        files = self._files[split]
        ends: tuple[int, ...] = ()
        if labels := self._problem.labels(split):
            read = Counter[int]()
            for corpus, number in zip(files, numbers, strict=True):
                read[corpus.corpus] += number
            # pairs are taken evenly: of the first n, n * taken // total
            sums = itertools.accumulate(read[number] for number in range(len(labels)))
            ends = tuple(end * taken // total for end in sums)
        return SplitText(
            tuple(each.files for each in files), numbers, taken, tuple(each.titles for each in files), ends
        )

    def _corpus_files(self, split: str) -> list[CorpusFiles]:
        """Downloads and linearizes the corpora of a split, unless that was done before."""
        found = []
        for number, corpus in enumerate(self._problem.corpora(split)):
            if isinstance(corpus, Wmt):
                found += [dataclasses.replace(files, corpus=number) for files in self._downloader.fetch(corpus)]
            elif isinstance(corpus, Trees):
                path = os.path.join(self._trees_folder, f"{split}-{number}.tsv")
                files = self._linearized(corpus, path, self._sources[split][number])
                found.append(CorpusFiles(corpus.name, files, corpus.number, str(corpus), number))
            else:
                found.append(CorpusFiles("", corpus, corpus=number))
        return found

    def _linearized(self, corpus: Trees, path: str, source: Source) -> Linearized:
        linearization = self._problem.linearization
        made_of = source | {"linearization": linearization}
        return Linearized.open(path, made_of) or Linearized.write(
            path, made_of, self._reported(linearize(corpus, self._processes, linearization))
        )

    def _reported(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yields the same blocks, with a report each minute."""
        pace, done = Pace(self._report, "linearized {done} trees, {rate} per second"), 0
        for block in blocks:
            yield block
            done += block.trees
            pace.at(done)

    def _counted(self, corpus: CorpusFiles) -> CorpusRecord:
        """Counts the pairs of a corpus, and reports if it is known to have another number: no error, since an archive
        has the right hash, and of a treebank some have only a part."""
        dropped = Counter[str]()
        lines, known = sum(1 for _ in read_pairs(corpus.files, dropped=dropped)), corpus.known_pairs or None
        record: dict[str, Any] = {"name": corpus.name or None, "lines": lines, **dropped}
        if isinstance(corpus.files, TmxFile) and dropped:
            units = f"{dropped['without_language']:,} of {lines + dropped['without_language']:,} units"
            languages = f"{corpus.files.source_language!r} and {corpus.files.target_language!r}"
            self._report(f"{corpus.files.path}: dropped {units}, which do not have both {languages}")
        if not isinstance(corpus.files, Linearized):
            if known and lines != known:
                self._report(f"{corpus.name} has {lines:,} lines, and was known to have {known:,}: see dataset.json")
            return CorpusRecord(lines_known=known, **record)
        if known and lines != known:
            self._report(
                f"{corpus.name}: received {lines:,} trees, expected {known:,}. This is not the paper's "
                "data; complete the treebank's files and prepare again in another data directory"
            )
        if corpus.files.dropped:
            self._report(f"dropped {corpus.files.dropped:,} that are not trees; the first: {corpus.files.fault}")
        return CorpusRecord(trees_known=known, not_trees=corpus.files.dropped or None, **record)
