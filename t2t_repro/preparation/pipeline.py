"""prepare(): from a problem's text to its vocabulary, its shards of ids, and `dataset.json`, which says what they are.

    DATA/translate_ende_cldr/vocabulary.model
    DATA/translate_ende_cldr/train-00000-of-00004.tfrecord ...
    DATA/translate_ende_cldr/dataset.json                       written last: where it is, all is

A problem of trees keeps those that it is scored against as well, `clean`, one a line: validation.trees and test.trees.

Trees are linearized first, and kept as text until the data is complete (`linearized`).

Killed at any moment, the same call goes on after the last part that was whole (`progress.json` and the piles keep the
account) and ends with the same bytes. Nothing depends on the number of processes or on the clock. Text is read as a
stream and never held: 40 million pairs need the memory of the vocabulary's sample, then that of one shard.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from t2t_repro.data.dataset import DATASET, FORMAT, VOCABULARY, Dataset
from t2t_repro.data.lock import locked
from t2t_repro.data.shards import example, shard_names, write_shard
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.io import sha256, write_json
from t2t_repro.lines import is_overlong
from t2t_repro.parsing.linearization import rebuild
from t2t_repro.parsing.linearized_trees import Block, Linearized
from t2t_repro.parsing.treebank import linearize, write_trees
from t2t_repro.parsing.trees import Tree
from t2t_repro.preparation import disk_space
from t2t_repro.preparation.corpora import evenly, read_pairs
from t2t_repro.preparation.downloads import Original, Originals
from t2t_repro.preparation.progress import PROGRESS, Account
from t2t_repro.preparation.provenance import made_of, must_be_of
from t2t_repro.preparation.shuffle import Chunk, Piles
from t2t_repro.preparation.statistics import SplitCounts, irregular, is_empty
from t2t_repro.preparation.validation_split import HeldOut, source_hash
from t2t_repro.preparation.vocabulary_learning import learn_vocabulary
from t2t_repro.problem import SPLITS, Pair, Problem, Trees, Wmt
from t2t_repro.processor import usable_cores
from t2t_repro.run import versions
from t2t_repro.token_ids import NUM_BYTES

PAIRS_PER_SHARD = 200_000  # one shard of training pairs is sorted in memory: about 100 MB
ENCODE_PAIRS = 20_000  # a chunk: encoded by one process, and all that is lost when it is stopped
PROCESSES_FROM = 20  # chunks: fewer are encoded sooner than processes are started
REPORT_SECONDS = 60
LEARN_PAIRS = 2_000_000  # the vocabulary is learnt from so many at most, spread evenly over the text: about 2.5 GB

_PILES = "piles"
_TREES = "trees"
_DOWNLOADS = "downloads"  # of all problems of a data directory


def prepare(
    problem: Problem,
    data_dir: str,
    report: Callable[[str], None],
    verify: bool = False,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
) -> Dataset:
    """The data of `problem` in `data_dir`: what is there if it is whole and of the same text, else made now.

    `report` is given one line for each phase. `verify` also compares every hash and record count. One process prepares
    at a time; a second one waits and says so. `processes` encode (None: one for each core where the text is long).
    With `beam`, flags of Apache Beam, a pipeline of that encodes and shuffles the training text, to the same bytes.

    Raises ValueError, FileNotFoundError or OSError: text that cannot be read or downloaded, a vocabulary that the text
    cannot give, a directory that holds other data, damaged data.
    """
    directory = os.path.join(data_dir, problem.name)
    for path in (data_dir, directory):
        if os.path.exists(path) and not os.path.isdir(path):
            raise ValueError(f"--data_dir: {path!r} is a file; give a directory")
    if not Dataset.exists(directory):
        problem.must_have_text()
        parts = made_of(problem, hashed=True)
        with locked(directory, report):
            if not Dataset.exists(directory):
                downloads = os.path.join(data_dir, _DOWNLOADS)
                _make(_Preparation(problem, parts, directory, downloads, report, processes, beam))
    dataset = Dataset.open(directory, verify=verify)
    must_be_of(dataset, problem, verify=verify)
    shutil.rmtree(os.path.join(directory, _TREES), ignore_errors=True)
    with contextlib.suppress(OSError):  # not there, as a rule, or the folder is read-only
        os.remove(os.path.join(directory, PROGRESS))
    return dataset


def _make(preparation: _Preparation) -> None:
    """Runs it. A full disk is an error that says where, which Python's own does not."""
    try:
        preparation.run()
    except OSError as error:
        if error.errno and not error.filename:
            raise OSError(error.errno, os.strerror(error.errno), preparation.directory) from None
        raise


class _Preparation:
    """One preparation, from whatever an earlier one left behind: `progress` says what."""

    def __init__(
        self,
        problem: Problem,
        parts: dict[str, Any],
        directory: str,
        downloads: str,
        report: Callable[[str], None],
        processes: int | None,
        beam: Sequence[str] | None,
    ):
        self.problem = problem
        self.parts = parts
        self.directory = directory
        self.downloads = downloads
        self.report = report
        self.processes = processes
        self.beam = beam
        self.texts: dict[str, list[Original]] = {}
        self.vocabulary = self._path(VOCABULARY)
        self.progress = Account(directory, parts)

    def run(self) -> None:
        self.progress.clean()
        if "train" not in self.progress.splits:
            disk_space.check(
                disk_space.needs(self.problem, self.directory, self._path(_PILES), self.downloads), self.report
            )
        downloaded = Originals(self.downloads, self.report)
        self.texts = {split: self._texts(split, downloaded) for split in SPLITS}
        if "pairs" not in self.progress:
            self._read_all()
        if not self.progress.has_vocabulary():
            self._learn()
        vocabulary = Vocabulary(self.vocabulary)
        done = self.progress.splits
        if "train" not in done or (self.progress["held_out"] and "validation" not in done):
            self._write_train()
        shutil.rmtree(self._path(_PILES), ignore_errors=True)  # here, for a stop before it may have left them
        for split in ("validation", "test"):
            if self.problem.corpora(split) and split not in self.progress.splits:
                self._write_split(split, vocabulary)
        record = {"format": FORMAT} | self.parts | {"problem": self.problem.to_dict()}
        record["corpora"] = self.progress["corpora"]
        record["vocabulary"] = {
            "kind": vocabulary.kind,
            "size": vocabulary.size,
            "bytes": NUM_BYTES,
            "characters": vocabulary.characters,
        } | self.progress["vocabulary"]
        done = self.progress.splits
        record["splits"] = {split: done[split] for split in SPLITS if split in done}
        write_json(self._path(DATASET), record | {"versions": versions()})

    # The phases

    def _texts(self, split: str, downloaded: Originals) -> list[Original]:
        """The text of a split, with what is downloaded in its files. What is not downloaded yet is, now."""
        texts = []
        for number, corpus in enumerate(self.problem.corpora(split)):
            if isinstance(corpus, Wmt):
                texts += downloaded.of(corpus)
            elif isinstance(corpus, Trees):
                path = os.path.join(self._path(_TREES), f"{split}-{number}.tsv")
                texts.append(self._linearized(corpus, path, self.parts["sources"][split][number]))
            else:
                texts.append(Original("", corpus))
        return texts

    def _linearized(self, corpus: Trees, path: str, source: dict[str, Any]) -> Original:
        """Trees as text, which an earlier preparation left or which is written now."""
        files = Linearized.open(path, source)
        if files is None:
            files = Linearized.write(path, source, self._reported(linearize(corpus, self.processes)))
        return Original(corpus.name, files, corpus.number)

    def _reported(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks, with a report each minute."""
        started = said = time.monotonic()
        done = 0
        for block in blocks:
            yield block
            done += block.trees
            if time.monotonic() - said > REPORT_SECONDS:
                said = time.monotonic()
                self.report(f"linearized {done:,} trees, {done / (said - started):,.0f} per second")

    def _read_all(self) -> None:
        """Reads all text once: counts pairs, meets what is wrong before hours are spent, chooses what to hold out."""
        pairs: dict[str, int] = {}
        corpora: dict[str, list[dict[str, Any]]] = {}
        for split in SPLITS:
            for text in self.texts[split]:
                lines = sum(1 for _ in read_pairs(text.files))
                pairs[split] = pairs.get(split, 0) + lines
                corpora.setdefault(split, []).append(self._compared(text, lines))
        self.progress["pairs"] = pairs
        self.progress.save(corpora=corpora, held_out=[] if self.problem.validation else self._choose_held_out())
        self.report("text: " + ", ".join(f"{number:,} {split} pairs" for split, number in pairs.items()))

    def _compared(self, text: Original, lines: int) -> dict[str, Any]:
        """What dataset.json says of a corpus. Reports if it has not the pairs that it is known to have, which is no
        error: an archive has the right hash, and of a treebank some have a part alone. Reports what was dropped, too.
        """
        trees = text.files if isinstance(text.files, Linearized) else None
        record: dict[str, Any] = {"name": text.name} if text.name else {}
        record |= {"trees_known" if trees else "lines_known": text.lines} if text.lines else {}
        record["lines"] = lines
        if text.lines and lines != text.lines and trees:
            self.report(
                f"{text.name}: received {lines:,} trees, expected {text.lines:,}. This is not the paper's "
                "data; complete the treebank's files and prepare again in another data directory"
            )
        elif text.lines and lines != text.lines:
            self.report(f"{text.name} has {lines:,} lines, and was known to have {text.lines:,}: see dataset.json")
        if trees and trees.dropped:
            record["not_trees"] = trees.dropped
            self.report(f"dropped {trees.dropped:,} that are not trees; the first: {trees.fault}")
        return record

    def _choose_held_out(self) -> list[int]:
        choice = HeldOut()
        for source, target in self._pairs("train"):
            if not is_empty(source, target):
                choice.add(source)
        return choice.choose()

    def _learn(self) -> None:
        """Learns the vocabulary, from training text alone. What was encoded with another one goes."""
        kind, size = self.problem.vocab_kind, self.problem.vocab_size
        least = self.problem.min_character_count
        sentences = learn_vocabulary(
            _Anew(self._training_sentences), self.vocabulary, kind, size, min_character_count=least
        )
        self.progress.splits.clear()
        shutil.rmtree(self._path(_PILES), ignore_errors=True)
        self.progress.save(vocabulary={"sha256": sha256(self.vocabulary), "sentences": sentences}, shuffled=[])
        parts = f"{NUM_BYTES} bytes, {Vocabulary(self.vocabulary).characters:,} single characters"
        self.report(f"vocabulary: {size:,} subwords ({kind}) learned from {sentences:,} sentences: {parts} among them")

    def _write_train(self) -> None:
        """Encodes the training text, drops what cannot be trained on, and shuffles the rest over all its shards."""
        held_out = frozenset(self.progress["held_out"])
        piles = Piles(
            folder=self._path(_PILES),
            vocabulary=self.vocabulary,
            num_shards=self._num_shards("train"),
            max_length=self.problem.max_length,
            held_out=held_out,
            chunk_pairs=ENCODE_PAIRS,
        )
        names = [*shard_names("train", piles.num_shards), *(shard_names("validation", 1) if held_out else [])]
        counts, held, shards = self._on_beam(piles, names) if self.beam is not None else self._here(piles, names)
        records = {"train": counts.record() | {"held_out": held.kept, "shards": shards[: piles.num_shards]}}
        if self.problem.sample:
            records["train"]["sample_of"] = self.progress["pairs"]["train"]
        if held_out:
            records["validation"] = held.record() | {"held_out_of": "train", "shards": shards[piles.num_shards :]}
            records["validation"] |= self._write_trees("validation", "train", held_out)
        self.progress.save(splits=self.progress.splits | records, shuffled=[])
        self.report(f"train: {counts.summary(self.problem.max_length)}")
        if held_out:
            self.report(f"validation: {held.summary(self.problem.max_length)}, held out of the training text")

    def _here(self, piles: Piles, names: list[str]) -> tuple[SplitCounts, SplitCounts, list[dict[str, Any]]]:
        """Encodes and shuffles on this machine: counts of training and held-out pairs, and the shards."""
        self._encode_train(piles)
        counts, held = piles.counts()
        _must_be_enough(counts, held, piles)
        return counts, held, self._shuffle(piles, names)

    def _on_beam(self, piles: Piles, names: list[str]) -> tuple[SplitCounts, SplitCounts, list[dict[str, Any]]]:
        """The same by a pipeline of Apache Beam."""
        try:
            from t2t_repro.preparation import beam_pipeline
        except ImportError as error:
            raise ValueError(f"Apache Beam cannot be imported ({error}); pip install 't2t_repro[beam]'") from None

        corpora = tuple(text.files for text in self.texts["train"])
        numbers = tuple(corpus["lines"] for corpus in self.progress["corpora"]["train"])
        text = beam_pipeline.Text(corpora, numbers, self._number("train"))
        counts, held, shards = beam_pipeline.run(text, piles, [self._path(name) for name in names], self.beam or ())
        self._must_be_as_read("train", counts.read)
        _must_be_enough(counts, held, piles)
        return counts, held, shards

    def _encode_train(self, piles: Piles) -> None:
        """Writes the piles that are not there yet."""
        there, total = piles.start(), self._number("train")
        chunks = math.ceil(total / ENCODE_PAIRS)
        processes = self.processes or (usable_cores() if chunks - len(there) >= PROCESSES_FROM else 1)
        started = said = time.monotonic()
        for done, _ in enumerate(piles.encode(self._chunks(there), processes), start=1):
            if time.monotonic() - said > REPORT_SECONDS:
                said = time.monotonic()
                rate = done * ENCODE_PAIRS / (said - started)
                ready = (done + len(there)) * ENCODE_PAIRS
                self.report(f"encoded {ready:,} of {total:,} pairs, {rate:,.0f} a second")

    def _chunks(self, there: set[int]) -> Iterator[Chunk]:
        """The training pairs in chunks, without those whose piles are there."""
        pairs, read = self._pairs("train"), 0
        for number in itertools.count():
            chunk = list(itertools.islice(pairs, ENCODE_PAIRS))
            read += len(chunk)
            if chunk and number not in there:
                yield number, number * ENCODE_PAIRS, chunk
            if len(chunk) < ENCODE_PAIRS:
                break
        self._must_be_as_read("train", read)

    def _shuffle(self, piles: Piles, names: list[str]) -> list[dict[str, Any]]:
        """Writes the shards that are not there yet, one in memory at a time."""
        shuffled = {shard["name"]: shard for shard in self.progress["shuffled"]}
        for index, name in enumerate(names):
            if name not in shuffled:
                shuffled[name] = write_shard(self._path(name), piles.shard(index))
                self.progress.save(shuffled=list(shuffled.values()))
        return [shuffled[name] for name in names]

    def _write_split(self, split: str, vocabulary: Vocabulary) -> None:
        """Encodes validation or test text, in its order. Nothing is dropped: irregular pairs are scored too."""
        counts = SplitCounts()

        def examples() -> Iterator[bytes]:
            for (source, target), inputs, targets in self._encoded(split, vocabulary):
                counts.read += 1
                if reason := irregular(source, target, inputs, targets, self.problem.max_length):
                    counts.irregular[reason] += 1
                counts.keep(inputs, targets)
                yield example(inputs, targets)

        remaining = examples()
        names = shard_names(split, self._num_shards(split))
        shards = [write_shard(self._path(name), itertools.islice(remaining, PAIRS_PER_SHARD)) for name in names]
        self._must_be_as_read(split, counts.read + sum(1 for _ in remaining))
        trees = self._write_trees(split, split)
        self.progress.save(splits=self.progress.splits | {split: counts.record() | {"shards": shards} | trees})
        self.report(f"{split}: {counts.summary(self.problem.max_length)}")

    def _write_trees(self, split: str, source: str, held_out: frozenset[int] | None = None) -> dict[str, Any]:
        """Writes the trees that a split is scored against, and gives what dataset.json says of them; of text, nothing.

        They come from the split `source`; with `held_out`, those that are in it.
        """
        files = [text.files for text in self.texts[source] if isinstance(text.files, Linearized)]
        trees = self._trees(source, files, held_out)
        return {"trees": write_trees(self._path(f"{split}.trees"), trees)} if files else {}

    def _trees(self, split: str, files: list[Linearized], held_out: frozenset[int] | None) -> Iterator[Tree]:
        """The trees of a split, in their order; with `held_out` those that are in it and not too long."""
        vocabulary = Vocabulary(self.vocabulary)
        lines = itertools.chain.from_iterable(each.lines() for each in files)
        for words, symbols, tags in evenly(lines, self.progress["pairs"][split], self._number(split)):
            if held_out is not None:
                inputs, targets = vocabulary.encode([words, symbols]) if source_hash(words) in held_out else ([], [])
                if not inputs or irregular(words, symbols, inputs, targets, self.problem.max_length):
                    continue
            yield rebuild(symbols, words.split(" "), tags.split(" "))[0]

    # Their parts

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _pairs(self, split: str) -> Iterator[Pair]:
        """The pairs of a split; of train, where the problem takes a sample, that."""
        pairs = itertools.chain.from_iterable(read_pairs(text.files) for text in self.texts[split])
        return evenly(pairs, self.progress["pairs"][split], self._number(split))

    def _number(self, split: str) -> int:
        """How many pairs `_pairs` gives."""
        pairs: int = self.progress["pairs"][split]
        return min(pairs, self.problem.sample) if split == "train" and self.problem.sample else pairs

    def _num_shards(self, split: str) -> int:
        return math.ceil(self._number(split) / PAIRS_PER_SHARD)

    def _training_sentences(self) -> Iterator[str]:
        """Both sides of all training pairs, or of LEARN_PAIRS evenly spread ones.

        What is held out is left out, and so is a line that was cut because it is too long.
        """
        number, held_out = self._number("train"), set(self.progress["held_out"])
        for sides in evenly(self._pairs("train"), number, min(number, LEARN_PAIRS)):
            if not (held_out and source_hash(sides[0]) in held_out):
                yield from itertools.filterfalse(is_overlong, sides)

    def _encoded(self, split: str, vocabulary: Vocabulary) -> Iterator[tuple[Pair, list[int], list[int]]]:
        """(pair, ids of its source, ids of its target), END included."""
        pairs = self._pairs(split)
        while batch := list(itertools.islice(pairs, ENCODE_PAIRS)):
            inputs = vocabulary.encode([source for source, _ in batch])
            targets = vocabulary.encode([target for _, target in batch])
            yield from zip(batch, inputs, targets, strict=True)

    def _must_be_as_read(self, split: str, number: int) -> None:
        before = self._number(split)
        if number != before:
            shutil.rmtree(self._path(_PILES), ignore_errors=True)
            raise ValueError(
                f"the {split} text changed while it was prepared: {before:,} pairs at first, then {number:,}; "
                "let it be, and prepare again"
            )


class _Anew:
    """An iterable that can be gone through again: each time it calls `start`."""

    def __init__(self, start: Callable[[], Iterator[str]]):
        self._start = start

    def __iter__(self) -> Iterator[str]:
        return self._start()


def _must_be_enough(counts: SplitCounts, held: SplitCounts, piles: Piles) -> None:
    if not counts.kept or (piles.held_out and not held.kept):
        raise ValueError(
            f"too little training text is left of {counts.read:,} pairs: {counts.kept:,} to train on and "
            f"{held.kept:,} held out for validation, {dict(counts.dropped)} dropped; give more text"
        )
