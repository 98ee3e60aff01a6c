"""`prepare`: turns the text of a problem into a vocabulary, shards of ids, and `dataset.json`, which records both.

    DATA/translate_ende_cldr/vocabulary.model
    DATA/translate_ende_cldr/train-00000-of-00004.tfrecord ...
    DATA/translate_ende_cldr/dataset.json                       written last: its presence means that all is complete

A parsing problem also has the trees that it is scored against, without functional tags, one per line: validation.trees
and test.trees. Its trees are linearized first, and kept as text until the data is complete.

If preparation is killed, the same call resumes after the last completed chunk (`progress.json` and the files of the
shuffle record what is complete) and writes the same bytes. Nothing depends on the number of processes or on the clock.
Text is read as a stream: 40 million pairs need the memory of the vocabulary's sample, then that of one shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from t2t_repro.data.dataset import DATASET, VOCABULARY, Dataset
from t2t_repro.data.dataset_record import DatasetRecord, Source, SplitRecord, VocabularyRecord
from t2t_repro.data.lock import locked
from t2t_repro.data.shards import FileRecord, shard_names, write_shard
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.filters import name_and_value
from t2t_repro.io import atomic_write, sha256, write_json
from t2t_repro.preparation import disk_space
from t2t_repro.preparation.corpora import SplitText, TrainingSentences
from t2t_repro.preparation.encoding.scored_splits import ScoredSplits
from t2t_repro.preparation.encoding.shuffle import ShuffleFiles
from t2t_repro.preparation.filtering import account, overlap
from t2t_repro.preparation.filtering.decisions import KEPT, Chunk, Judge, decide, filter_name, kept, overlap_to_drop
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.preparation.pace import Pace, Report
from t2t_repro.preparation.problem_text import ProblemText
from t2t_repro.preparation.progress import PROGRESS, Progress
from t2t_repro.preparation.provenance import changed_since, check_same_data, inputs_of, sources_of
from t2t_repro.preparation.statistics import SplitStatistics, is_empty
from t2t_repro.preparation.validation_split import choose_validation, source_hash
from t2t_repro.problem import SPLITS, Pair, Problem
from t2t_repro.run import Run, versions
from t2t_repro.system.processor import usable_cores
from t2t_repro.text.token_ids import NUM_BYTES

PAIRS_PER_SHARD = 200_000  # one shard of training pairs is sorted in memory: about 100 MB
CHUNK_PAIRS = 20_000  # encoded by one process; lost if it is interrupted
MIN_CHUNKS_FOR_PROCESSES = 20  # starting processes takes longer than encoding fewer pairs
LEARN_PAIRS = 2_000_000  # maximum pairs to learn the vocabulary from, evenly spaced: about 2.4 GB

_SHUFFLE = "shuffle"
_OVERLAP = "overlap.npy"  # hashes of validation and test text
_ALIGNMENT = "alignment.npz"  # what the filter "misaligned" learned
_FILTERED = "filtered.bin"  # the decisions of the filters
_TREES = "trees"
_DOWNLOADS = "downloads"  # shared by all problems of a data directory

Shuffled = tuple[SplitStatistics, SplitStatistics, list[FileRecord]]  # of training, of validation; all shards


def prepare(
    problem: Problem,
    data_dir: str,
    report: Report,
    verify: bool = False,
    processes: int | None = None,
    beam: Sequence[str] | None = None,
    vocabulary_from: str | None = None,
) -> Dataset:
    """Prepares the data of `problem`, or opens it if it is there, complete and made of the same text.

    One process prepares at a time; another one waits.

    Args:
      problem: with all its text.
      data_dir: a folder for the data of any number of problems.
      report: called with one line for each phase.
      verify: whether to compare every hash and record count.
      processes: that encode; None stands for one per core if the text is long.
      beam: options of Apache Beam, whose pipeline then encodes and shuffles the training text, to the same bytes.
      vocabulary_from: a run directory. Its vocabulary encodes the text, and none is learned; kind and size of the
        vocabulary are then not those of `problem`.

    Raises ValueError, FileNotFoundError or OSError for text that cannot be read or downloaded, a vocabulary that the
    text cannot give, a directory that holds other data, and damaged data.
    """
    giver = Run.open(vocabulary_from, "vocabulary_from") if vocabulary_from is not None else None
    problem = giver.share_vocabulary(problem) if giver else problem
    directory = os.path.join(data_dir, problem.name)
    for path in (data_dir, directory):
        if os.path.exists(path) and not os.path.isdir(path):
            raise ValueError(f"data_dir: {path!r} is a file; give a directory")
    if not Dataset.exists(directory):
        problem.must_have_text()
        started = time.time_ns()
        sources = sources_of(problem)
        with locked(directory, report):
            if not Dataset.exists(directory):
                downloads = os.path.join(data_dir, _DOWNLOADS)
                Preparation(problem, sources, started, directory, downloads, report, processes, beam, giver).run()
                os.utime(os.path.join(directory, DATASET), ns=(started, started))  # text that is newer is hashed again
    dataset = Dataset.open(directory, verify=verify)
    if giver:
        dataset.must_have_vocabulary_of(giver)
    check_same_data(dataset, problem, verify=verify)
    if verify:
        report(f"{directory}: all bytes are as they were written")
    shutil.rmtree(os.path.join(directory, _TREES), ignore_errors=True)
    for name in (_FILTERED, PROGRESS):
        with contextlib.suppress(OSError):  # usually missing; or the folder is read-only
            os.remove(os.path.join(directory, name))
    return dataset


@dataclass
class Preparation:
    """One preparation, which resumes an earlier one: `progress` has its completed phases."""

    problem: Problem
    sources: dict[str, list[Source]]  # the descriptions of its corpora, by split
    started: int  # nanoseconds, before they were made
    directory: str
    downloads: str  # the folder for archives and what is unpacked from them
    report: Report
    processes: int | None
    beam: Sequence[str] | None
    giver: Run | None = None  # the run whose vocabulary encodes the text

    def __post_init__(self) -> None:
        self.texts: dict[str, SplitText] = {}
        self.decisions = b""  # of the filters, one byte per training pair; b"" without filters
        self.vocabulary = self._path(VOCABULARY)
        inputs: dict[str, Any] = {"problem": inputs_of(self.problem), "sources": self.sources}
        if self.giver:
            inputs["vocabulary"] = self.giver.vocabulary_sha256
        if labels := self.problem.labels("train"):  # shards of an earlier version have no numbers of corpora
            inputs["labels"] = list(labels)
        self.progress = Progress.resume(self.directory, inputs)

    def run(self) -> None:
        """Runs the phases that are not complete."""
        try:
            self._run()
        except BaseException:
            if changed_since(self.problem, self.started):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._path(PROGRESS))
            raise

    def _run(self) -> None:
        progress = self.progress
        progress.remove_incomplete(self.directory)
        if "train" not in progress.splits:
            needs = disk_space.needs(self.problem, self.directory, self._path(_SHUFFLE), self.downloads)
            disk_space.check(needs, self.report)
        self._read_all()
        if not progress.has_vocabulary(self.vocabulary):
            self._make_vocabulary()
        if "train" not in progress.splits or (progress.validation_hashes and "validation" not in progress.splits):
            self._write_train()
        shutil.rmtree(self._path(_SHUFFLE), ignore_errors=True)  # here, because an interruption may have left it
        for split in ("validation", "test"):
            if self.problem.corpora(split) and split not in progress.splits:
                self._write_split(split)
        self._write_record()

    def _read_all(self) -> None:
        """Reads all text once: counts pairs, finds errors early, applies the filters, chooses the validation split."""
        arguments = self._path(_TREES), self.downloads, self.report, self.processes
        text = ProblemText(self.problem, self.sources, *arguments)
        counted = self.progress.corpora or text.count()
        self.texts = {split: text.split(split, records) for split, records in counted.items()}
        if self.problem.filters:
            self._filter()
        if not self.progress.corpora:
            pairs = kept(self.texts["train"].pairs(), self.decisions)
            chosen = [] if self.problem.validation else choose_validation(pairs)
            self.progress.validation_hashes = chosen
            self.progress.corpora = counted
            self._save_progress()
            numbers = (f"{sum(each.numbers):,} {split} pairs" for split, each in self.texts.items())
            self.report(f"text: {', '.join(numbers)}")

    def _filter(self) -> None:
        """Decides which training pairs the filters drop, unless that was done before."""
        path = self._path(_FILTERED)
        if not os.path.isfile(path) or sha256(path) != self.progress.filtered:
            splits = tuple(split for split in SPLITS[1:] if split in self.texts)
            files = self._write_overlap(splits), splits, self._path(_SHUFFLE, _ALIGNMENT)
            judge = Judge(self.problem.filters, self.problem.task.takes_trees, *files)
            decide(path, judge, self._reported_chunks, self.texts["train"].taken, self._processes(0))
            self.progress.filtered = sha256(path)
            self._save_progress()
        with open(path, "rb") as file:
            self.decisions = file.read()
        counts = Counter(self.decisions)
        if self.decisions and not counts[KEPT]:
            dropped = ", ".join(f"{filter_name(each)} {number:,}" for each, number in counts.items())
            raise ValueError(f"the filters drop all {len(self.decisions):,} training pairs ({dropped}); weaken them")

    def _reported_chunks(self) -> Iterator[Chunk]:
        """Yields all chunks, with a report each minute."""
        pace = Pace(self.report, "filtered {done} pairs, {rate} per second")
        for number, first, pairs in self._chunks(set()):
            yield number, first, pairs
            pace.at(first)

    def _other_texts(self) -> dict[str, SplitText]:
        """Returns the text that the pairs of validation and test are in."""
        texts = {"validation": self.texts["train"]} if self.progress.validation_hashes else {}
        return texts | {split: self.texts[split] for split in SPLITS[1:] if split in self.texts}

    def _write_overlap(self, splits: Iterable[str]) -> str:
        """Writes the hashes of validation and test text, some of which may be taken from training text. Returns the
        path."""
        path = self._path(_SHUFFLE, _OVERLAP)
        os.makedirs(self._path(_SHUFFLE), exist_ok=True)
        texts: dict[str, Iterable[tuple[int, Pair]]] = {
            split: enumerate(self.texts[split].pairs()) for split in splits if split in self.texts
        }
        if hashes := frozenset(self.progress.validation_hashes):
            numbered = kept(enumerate(self.texts["train"].pairs()), self.decisions)
            texts["validation"] = (
                (number, pair) for number, pair in numbered if not is_empty(*pair) and source_hash(pair[0]) in hashes
            )
        overlap.write(path, {split: texts[split] for split in splits}, self.problem.task.takes_trees)
        return path

    def _processes(self, complete: int) -> int:
        """Returns the number of processes for the chunks that are not complete."""
        missing = math.ceil(self.texts["train"].taken / CHUNK_PAIRS) - complete
        return self.processes or (usable_cores() if missing >= MIN_CHUNKS_FOR_PROCESSES else 1)

    def _make_vocabulary(self) -> None:
        """Learns or copies the vocabulary. Removes files that were encoded with another one."""
        self.progress.vocabulary = self._copy_vocabulary(self.giver) if self.giver else self._learn_vocabulary()
        self.progress.splits, self.progress.shuffled = {}, []
        shutil.rmtree(self._path(_SHUFFLE), ignore_errors=True)
        self._save_progress()

    def _copy_vocabulary(self, giver: Run) -> VocabularyRecord:
        """Copies the vocabulary of a run, byte for byte."""
        with atomic_write(self.vocabulary) as temporary:
            shutil.copyfile(giver.vocabulary, temporary)
        record = self._vocabulary_record(given_by=os.path.abspath(giver.directory))
        self.report(f"vocabulary: {record.size:,} subwords ({record.kind}) of the run {giver.directory}")
        return record

    def _learn_vocabulary(self) -> VocabularyRecord:
        """Learns the vocabulary from the training text only."""
        kind, size = self.problem.vocab_kind, self.problem.vocab_size
        hashes = frozenset(self.progress.validation_hashes)
        dropped, found = overlap_to_drop(self.problem.filters) if hashes else "", None
        if dropped:
            others = tuple(self._other_texts())
            found = overlap.Overlap(self._write_overlap(others), others)
        texts = TrainingSentences(
            self.texts["train"], LEARN_PAIRS, self.problem.max_length, hashes, self.decisions, found, dropped
        )
        min_count = self.problem.min_character_count
        sentences = learn_vocabulary(texts, self.vocabulary, kind, size, min_character_count=min_count)
        record = self._vocabulary_record(sentences=sentences)
        parts = f"{NUM_BYTES} bytes, {record.characters:,} single characters"
        self.report(f"vocabulary: {size:,} subwords ({kind}) learned from {sentences:,} sentences: {parts} among them")
        return record

    def _vocabulary_record(self, **fields: Any) -> VocabularyRecord:
        """Returns the record of the vocabulary, with the `fields` that its file does not have."""
        made = Vocabulary(self.vocabulary)
        return VocabularyRecord(
            kind=made.kind,
            size=made.size,
            bytes=NUM_BYTES,
            characters=made.characters,
            sha256=made.sha256,
            **fields,
        )

    def _write_train(self) -> None:
        """Encodes the training text, drops irregular pairs, and shuffles the others over all shards."""
        text, hashes = self.texts["train"], frozenset(self.progress.validation_hashes)
        filters, others = self.problem.filters, self._other_texts()
        files = ShuffleFiles(
            folder=self._path(_SHUFFLE),
            vocabulary=self.vocabulary,
            num_shards=text.num_shards(PAIRS_PER_SHARD),
            max_length=self.problem.max_length,
            validation_hashes=hashes,
            chunk_pairs=CHUNK_PAIRS,
            overlap=self._write_overlap(others),
            overlap_splits=tuple(others),
            decisions=self._path(_FILTERED) if filters else "",
            dropped_overlap=overlap_to_drop(filters),
            corpus_ends=text.ends,
        )
        names = [*shard_names("train", files.num_shards), *(shard_names("validation", 1) if hashes else [])]
        train, validation, shards = self._on_beam(files, names) if self.beam is not None else self._here(files, names)
        sample_of = sum(text.numbers) if self.problem.sample else None
        shards, validation_shards = shards[: files.num_shards], shards[files.num_shards :]
        for name, _ in map(name_and_value, filters):
            train.dropped[name] += 0
        found = overlap.Overlap(files.overlap, files.overlap_splits)
        labels = self.problem.labels("train")
        record = train.record(
            labels,
            held_out=validation.kept,
            shards=tuple(shards),
            sample_of=sample_of,
            filtered=account.filter_records(train, filters, text) if filters else None,
            overlap=account.overlap_records(train, text, others, found) if others else None,
        )
        written = {"train": record}
        if hashes:
            trees = self._scored_splits().write_trees("validation", text, hashes, self.decisions)
            written["validation"] = validation.record(
                labels, held_out_of="train", shards=tuple(validation_shards), trees=trees
            )
        self._save(written)
        corpora = ", ".join(f"{share.name} {share.pairs:,}" for share in written["train"].corpora or ())
        self.report(f"train: {train.summary(self.problem.max_length)}{f'; pairs of {corpora}' if corpora else ''}")
        if hashes:
            self.report(f"validation: {validation.summary(self.problem.max_length)}, taken from the training text")
        for line in account.lines(record, filters):
            self.report(line)

    def _here(self, files: ShuffleFiles, names: list[str]) -> Shuffled:
        """Encodes and shuffles on this machine."""
        self._encode_train(files)
        train, validation = files.statistics()
        _check_enough(train, validation, files)
        return train, validation, self._write_shards(files, names)

    def _on_beam(self, files: ShuffleFiles, names: list[str]) -> Shuffled:
        """Encodes and shuffles by a pipeline of Apache Beam."""
        try:
            from t2t_repro.preparation.encoding import beam_pipeline
        except ImportError as error:
            raise ValueError(f"Apache Beam cannot be imported ({error}); pip install 't2t_repro[beam]'") from None

        paths = [self._path(name) for name in names]
        train, validation, shards = beam_pipeline.run(self.texts["train"], files, paths, self.beam or ())
        self._check_unchanged(train.read)
        _check_enough(train, validation, files)
        return train, validation, shards

    def _encode_train(self, files: ShuffleFiles) -> None:
        """Writes the files of the chunks that are not complete."""
        complete = files.start()
        before, total = len(complete) * CHUNK_PAIRS, self.texts["train"].taken
        pace = Pace(self.report, f"encoded {{done}} of {total:,} pairs, {{rate}} per second", before)
        for done, _ in enumerate(files.encode(self._chunks(complete), self._processes(len(complete))), start=1):
            pace.at(before + done * CHUNK_PAIRS)

    def _chunks(self, complete: set[int]) -> Iterator[Chunk]:
        """Yields the training pairs in chunks, without those that are complete."""
        pairs, read = self.texts["train"].pairs(), 0
        for number in itertools.count():
            chunk = list(itertools.islice(pairs, CHUNK_PAIRS))
            read += len(chunk)
            if chunk and number not in complete:
                yield number, number * CHUNK_PAIRS, chunk
            if len(chunk) < CHUNK_PAIRS:
                break
        self._check_unchanged(read)

    def _write_shards(self, files: ShuffleFiles, names: list[str]) -> list[FileRecord]:
        """Writes the shards that are not complete, with one in memory at a time."""
        written = {shard.name: shard for shard in self.progress.shuffled}
        for index, name in enumerate(names):
            if name not in written:
                written[name] = write_shard(self._path(name), files.shard(index))
                self.progress.shuffled = list(written.values())
                self._save_progress()
        return [written[name] for name in names]

    def _write_split(self, split: str) -> None:
        """Encodes validation or test text."""
        record, summary = self._scored_splits().write(split, self.texts[split], PAIRS_PER_SHARD)
        self._save({split: record})
        self.report(f"{split}: {summary}")

    def _scored_splits(self) -> ScoredSplits:
        return ScoredSplits(self.problem, self.directory, self.vocabulary)

    def _save_progress(self) -> None:
        self.progress.changed = changed_since(self.problem, self.started)
        self.progress.save(self.directory)

    def _save(self, written: dict[str, SplitRecord]) -> None:
        self.progress.splits, self.progress.shuffled = self.progress.splits | written, []
        self._save_progress()

    def _write_record(self) -> None:
        done = self.progress
        if changed_since(self.problem, self.started) and sources_of(self.problem) != self.sources:
            raise ValueError(
                f"the text of {self.problem.name!r} changed while it was prepared; leave it, and run the command again"
            )
        record = DatasetRecord(
            problem=dataclasses.replace(self.problem, train_weight=(), train_temperature=0.0),  # not of the data
            sources=self.sources,
            corpora=done.corpora,
            vocabulary=done.vocabulary,
            splits={split: done.splits[split] for split in SPLITS if split in done.splits},
            versions=versions(),
        )
        write_json(self._path(DATASET), record.to_json())

    def _path(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    def _check_unchanged(self, read: int) -> None:
        """Checks the number of training pairs that were read again. Raises ValueError, and removes what was encoded."""
        text = self.texts["train"]
        if read != text.taken:
            shutil.rmtree(self._path(_SHUFFLE), ignore_errors=True)
        text.must_have(read, "train")


def _check_enough(train: SplitStatistics, validation: SplitStatistics, files: ShuffleFiles) -> None:
    if not train.kept or (files.validation_hashes and not validation.kept):
        advice = "raise `max_length`, or give more text" if train.dropped["too_long"] else "give more text"
        counts = [f"{train.kept:,} to train on", f"{validation.kept:,} for validation", *train.losses(files.max_length)]
        raise ValueError(f"too little training text is left of {train.read:,} pairs: {', '.join(counts)}; {advice}")
