"""Corpora: files, treebanks and generators, read as a stream of pairs in bounded memory."""

from __future__ import annotations

import bisect
import contextlib
import functools
import glob
import hashlib
import importlib.metadata
import inspect
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from t2t_repro.data.dataset_record import Source
from t2t_repro.io import sha256
from t2t_repro.parsing import treebank
from t2t_repro.parsing.linearized_trees import Linearized
from t2t_repro.parsing.trees import BRACKETING
from t2t_repro.preparation.filtering.decisions import KEPT, is_dropped_for_overlap, kept
from t2t_repro.preparation.filtering.overlap import Overlap
from t2t_repro.preparation.statistics import is_empty
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.problem import Corpus, Generated, Pair, TextFiles, TmxFile, Trees, TsvFile, Wmt
from t2t_repro.text.lines import SENTENCES, is_overlong, must_be_file, read_lines, side_by_side
from t2t_repro.text.tmx import TMX, read_units

Readable = TextFiles | TsvFile | TmxFile | Generated | Linearized
Item = TypeVar("Item")

_COLUMNS = "two columns separated by a tab"  # of a TSV file, in errors
_BATCH_PAIRS = 10_000  # compared with other splits at a time
_SUBWORD_CHARACTERS = 16  # at most, of sentencepiece by default


@dataclass(frozen=True)
class CorpusFiles:
    """A readable corpus. A corpus of a WMT data set and sections of a treebank have a name and a known number of pairs.

    0 stands for an unknown number.
    """

    name: str
    files: Readable
    known_pairs: int = 0
    trees: str = ""  # what linearized trees were read from
    corpus: int = 0  # the number of its corpus in the problem: a WMT data set has several files

    @property
    def titles(self) -> tuple[str, str]:
        """The places of source and target in reports, to which the number of a pair is added: `train.en, line`.

        Files of an archive are named without their folder. Units of a TMX file are counted without those that lack a
        language.
        """
        if isinstance(self.files, TextFiles):
            paths = self.files.source, self.files.target
            source, target = map(os.path.basename, paths) if self.name else paths
            return f"{source}, line", f"{target}, line"
        if isinstance(self.files, TsvFile):
            title = f"{self.files.path}, line"
        elif isinstance(self.files, TmxFile):
            title = f"{self.files.path}, pair"
        elif isinstance(self.files, Linearized):
            title = f"{self.trees}, tree"
        else:
            title = f"{self.files.name}, pair"
        return title, title


@dataclass(frozen=True)
class SplitText:
    """The text of a split: its corpora, the number of pairs in each, and the number of pairs taken, evenly spaced.

    `ends` are the ends of the problem's labeled corpora among the taken pairs; () if it has no labels.
    """

    corpora: tuple[Readable, ...]
    numbers: tuple[int, ...]
    taken: int
    titles: tuple[tuple[str, str], ...] = ()  # of the corpora: `CorpusFiles.titles`
    ends: tuple[int, ...] = ()

    def place(self, number: int, target: bool = False) -> str:
        """Returns the place of a side of taken pair `number`, from 0: `train.en, line 17`."""
        index = place_evenly(number, sum(self.numbers), self.taken)
        for titles, pairs in zip(self.titles, self.numbers, strict=True):
            if index < pairs:
                return f"{titles[target]} {index + 1:,}"
            index -= pairs
        raise IndexError(f"pair {number:,} of {self.taken:,}")

    def num_shards(self, pairs_per_shard: int) -> int:
        return -(-self.taken // pairs_per_shard)

    def must_have(self, read: int, split: str) -> None:
        """Raises ValueError if the number of pairs that were read again is another one."""
        if read != self.taken:
            raise ValueError(
                f"the {split} text changed while it was prepared: {self.taken:,} pairs at first, then {read:,}; "
                "do not change it, and prepare again"
            )

    def pairs(self, first: int = 0) -> Iterator[Pair]:
        """Yields the taken pairs from number `first` on."""
        total = sum(self.numbers)
        start = place_evenly(first, total, self.taken) if first else 0
        return evenly(self._all_pairs(start), total, self.taken, start)

    @property
    def has_trees(self) -> bool:
        return any(isinstance(corpus, Linearized) for corpus in self.corpora)

    def trees(self) -> Iterator[tuple[str, str, str]]:
        """Yields (words, linearized tree, parts of speech) of the taken pairs."""
        lines = (corpus.lines() for corpus in self.corpora if isinstance(corpus, Linearized))
        return evenly(itertools.chain.from_iterable(lines), sum(self.numbers), self.taken)

    def _all_pairs(self, first: int) -> Iterator[Pair]:
        for corpus, number in zip(self.corpora, self.numbers, strict=True):
            if first < number:
                yield from read_pairs(corpus, first)
            first = max(0, first - number)


@dataclass(frozen=True)
class TrainingSentences:
    """Both sides of at most `max_pairs` pairs that no filter drops, evenly spaced, without those for validation.

    Pairs that are dropped when they are encoded are left out, as far as that is known without a vocabulary: those with
    an empty side, and those of more than 16 characters per token of `max_length`, because a subword has at most 16.
    Otherwise, a few long lines of anything but text could fill the vocabulary. Each iteration reads the text again.

    The decisions of filters precede the choice of a validation split from the training text. So pairs that overlap with
    that split are left out here, by `overlap` and the value of the filter "overlap".
    """

    text: SplitText
    max_pairs: int
    max_length: int  # of the problem, in tokens
    validation_hashes: frozenset[int]
    decisions: bytes = b""  # of filters; b"" without filters
    overlap: Overlap | None = None
    dropped_overlap: str = ""  # the value of the filter; "" without it

    def __iter__(self) -> Iterator[str]:
        number = self.decisions.count(KEPT) if self.decisions else self.text.taken
        pairs = evenly(kept(self.text.pairs(), self.decisions), number, min(number, self.max_pairs))
        if self.validation_hashes:
            pairs = (pair for pair in pairs if source_hash(pair[0]) not in self.validation_hashes)
        longest = _SUBWORD_CHARACTERS * self.max_length
        for sides in self._without_overlap(pairs):
            limited = sides[:1] if self.text.has_trees else sides  # a symbol of a tree is a subword of any length
            if not is_empty(*sides) and not any(map(is_overlong, sides)) and max(map(len, limited)) <= longest:
                yield from sides

    def _without_overlap(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        if not (self.overlap and self.dropped_overlap):
            yield from pairs
            return
        while batch := list(itertools.islice(pairs, _BATCH_PAIRS)):
            found = self.overlap.find(batch)
            for index, pair in enumerate(batch):
                if not is_dropped_for_overlap(found.get(index, ()), self.dropped_overlap):
                    yield pair


def corpus_of(number: int, ends: Sequence[int]) -> int | None:
    """Returns the number of the corpus that taken pair `number` belongs to; None without `ends` (see `SplitText`)."""
    return bisect.bisect_right(ends, number) if ends else None


def read_pairs(corpus: Readable, first: int = 0, dropped: Counter[str] | None = None) -> Iterator[Pair]:
    """Yields the pairs of `corpus` from number `first` on.

    Counts the units of a `TmxFile` that lack a language in `dropped`, under "without_language". Raises
    FileNotFoundError and ValueError, naming the file and line, for text that cannot be read. Files of unequal length
    raise at their end.
    """
    if isinstance(corpus, Linearized):
        return corpus.pairs(first)
    if isinstance(corpus, Generated):
        pairs, nothing = _read_generated(corpus), f"{corpus.name} gave no pairs"
    elif isinstance(corpus, TsvFile):
        pairs, nothing = _read_tsv(corpus.path), f"{corpus.path} is empty; expected {_COLUMNS}"
    elif isinstance(corpus, TmxFile):
        return itertools.islice(_read_tmx(corpus, dropped), first, None)
    else:
        files = f"{corpus.source} and {corpus.target}"
        pairs, nothing = _read_files(corpus), f"{files} are empty; expected one sentence per line"
    return itertools.islice(_not_empty(pairs, nothing), first, None)


def evenly(items: Iterator[Item], number: int, taken: int, first: int = 0) -> Iterator[Item]:
    """Yields `taken` of `number` items, evenly spaced; `items` are those from number `first` on."""
    if taken == number:
        return items
    numbered = enumerate(items, start=first)
    return (item for index, item in numbered if (index + 1) * taken // number != index * taken // number)


def place_evenly(which: int, number: int, taken: int) -> int:
    """Returns the number of the item that `evenly` yields as number `which`, from 0."""
    return -(-(which + 1) * number // taken) - 1


def describe(corpus: Corpus, hashed: bool = True) -> Source:
    """Describes a corpus, ready for JSON. `hashed` adds SHA-256 and versions, for which all text is read.

    Files: absolute path, bytes and SHA-256 of each, the languages of TMX, and the name if one is given. A WMT data set:
    its name, split and languages, and the SHA-256 of its archives. A generator: its qualified name and arguments, the
    SHA-256 of its text, and the versions of the packages that make it. Trees: see `treebank.describe`. Raises
    FileNotFoundError or ValueError for bad text.
    """
    if isinstance(corpus, Trees):
        for path in treebank.paths(corpus):
            must_be_file(path, BRACKETING)
        return treebank.describe(corpus, hashed)
    described: Source
    if isinstance(corpus, TextFiles | TsvFile | TmxFile):
        if isinstance(corpus, TextFiles):
            described = {side: _describe_file(getattr(corpus, side), hashed) for side in ("source", "target")}
        elif isinstance(corpus, TsvFile):
            described = {"tsv": _describe_file(corpus.path, hashed, _COLUMNS)}
        else:
            languages = f"{corpus.source_language}-{corpus.target_language}"
            described = {"tmx": _describe_file(corpus.path, hashed, TMX) | {"languages": languages}}
        return described | ({"name": corpus.name} if corpus.name else {})
    if isinstance(corpus, Wmt):
        from t2t_repro.preparation.downloads import archive_sums

        languages = f"{corpus.source_language}-{corpus.target_language}"
        described = {"dataset": corpus.dataset, "split": corpus.split, "languages": languages}
        return described | ({"archives": archive_sums(corpus.dataset)} if hashed else {})
    described = {"function": corpus.name}
    return described | ({"sha256": _sha256_of_text(corpus), "versions": _generator_versions()} if hashed else {})


def files_of(corpus: Corpus) -> list[str] | None:
    """Returns the files whose contents decide the text of a corpus; of a generator, all code in the folder of its own.

    The list is empty for a WMT data set, whose archives are compared whenever they are read, and for the code of this
    package, which has versions. Returns None for a generator whose code is in no file, as in a notebook.
    """
    if isinstance(corpus, TextFiles):
        return [corpus.source, corpus.target]
    if isinstance(corpus, TsvFile | TmxFile):
        return [corpus.path]
    if isinstance(corpus, Trees):
        return treebank.paths(corpus)
    return _code_of(corpus.function) if isinstance(corpus, Generated) and not corpus.is_built_in else []


def _code_of(function: Any) -> list[str] | None:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        path = inspect.getsourcefile(named)
    except (OSError, TypeError):  # a class in a notebook, or nothing that is written in Python
        return None
    if not path or not os.path.isfile(path):
        return None
    return glob.glob(os.path.join(glob.escape(os.path.dirname(os.path.abspath(path))), "*.py"))


def _sha256_of_text(corpus: Generated) -> str:
    digest = hashlib.sha256()
    for pair in read_pairs(corpus):
        digest.update(f"{len(pair[0])} {len(pair[1])} {pair[0]}{pair[1]}".encode())
    return digest.hexdigest()


def _read_files(corpus: TextFiles) -> Iterator[Pair]:
    def unequal(sources: int, targets: int) -> str:
        numbers = f"{corpus.source} has {sources:,} lines and {corpus.target} has {targets:,}"
        return f"{numbers}; line n of one must be the translation of line n of the other"

    source, target = (read_lines(path, cut=corpus.drop_long_lines) for path in (corpus.source, corpus.target))
    return side_by_side(source, target, unequal)


def _read_tsv(path: str) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path, expected=_COLUMNS), start=1):
        source, *others = line.split("\t")
        if len(others) != 1:
            columns = f"{1 + len(others)} column{'s' * bool(others)}"
            raise ValueError(f"{path}, line {number:,}: expected source and target separated by one tab, got {columns}")
        yield source, others[0]


def _read_tmx(corpus: TmxFile, dropped: Counter[str] | None) -> Iterator[Pair]:
    for unit in read_units(corpus.path, corpus.source_language, corpus.target_language):
        if unit is not None:
            yield unit
        elif dropped is not None:
            dropped["without_language"] += 1


def _read_generated(corpus: Generated) -> Iterator[Pair]:
    for number, pair in enumerate(corpus.function(), start=1):
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ValueError(f"{corpus.name} gave {pair!r:.80}; expected a pair (source text, target text)")
        try:
            "".join(pair).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{corpus.name}, pair {number:,}: a lone surrogate U+{ord(error.object[error.start]):04X} is not "
                "Unicode text; decode its files as UTF-8 with errors='strict'"
            ) from None
        yield pair


def _not_empty(pairs: Iterator[Pair], error: str) -> Iterator[Pair]:
    number = 0
    for number, pair in enumerate(pairs, start=1):  # noqa: B007
        yield pair
    if not number:
        raise ValueError(error)


def _describe_file(path: str, hashed: bool, expected: str = SENTENCES) -> dict[str, Any]:
    must_be_file(path, expected)
    described = {"path": os.path.abspath(path), "bytes": os.path.getsize(path)}
    return described | ({"sha256": sha256(path)} if hashed else {})


def _generator_versions() -> dict[str, str]:
    """Returns the versions of this package and, if it is installed, of Babel, which writes the built-in text."""
    from t2t_repro import __version__

    found = {"t2t_repro": __version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["babel"] = importlib.metadata.version("babel")
    return found
