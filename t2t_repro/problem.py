"""Problem: what is trained on, as a declaration. How its text is read and encoded is `t2t_repro.data`'s work."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from t2t_repro.task import TASKS, Task, task_of

Pair = tuple[str, str]  # (source text, target text)

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TextFiles:
    """Two UTF-8 text files of equally many lines, line n of one being the translation of line n of the other.

    A name that ends in `.gz` is read through gzip; of an SGML file (`.sgm`), as WMT publishes its test sets, the lines
    are its segments. A line of more than 1 MiB is an error. With `drop_long_lines`, its pair is dropped from the
    training text and counted as too long: for files that nobody may edit, such as those of an archive with a known
    SHA-256.
    """

    source: str
    target: str
    drop_long_lines: bool = False


@dataclass(frozen=True)
class Trees:
    """Trees in Penn Treebank bracketing, from which a parser learns: the words of each, and its linearisation.

    A file, read through gzip where its name ends in `.gz`; or with `sections`, those of the Wall Street Journal in a
    folder that holds wsj_0200.mrg and its like, at whatever depth. Without a path, the user gives it (`with_files`).

    `number` is how many trees the sections are known to have (0: unknown); preparation reports another number.
    `by_parser`: a parser wrote the files, one tree per line or further lines indented, and what it wrote where it
    failed is dropped and counted, where a treebank with anything but trees in it is refused.
    """

    path: str = ""
    sections: tuple[int, ...] = ()
    number: int = 0
    by_parser: bool = False

    def __str__(self) -> str:
        """`sections 02-21 of FOLDER`, or `FILE`."""
        if not self.sections:
            return self.path or "your files"
        return f"{self.name} of {self.path or 'your folder, --raw_dir'}"

    @property
    def name(self) -> str:
        """`sections 02-21`; "" for a file."""
        if not self.sections:
            return ""
        names = [f"{section:02d}" for section in self.sections]
        joined = self.sections == tuple(range(self.sections[0], self.sections[-1] + 1)) and len(names) > 1
        listed = f"{names[0]}-{names[-1]}" if joined else ", ".join(names)
        return f"section{'s' * (len(names) > 1)} {listed}"


@dataclass(frozen=True)
class Generated:
    """Pairs that a function makes: the same ones at every call."""

    function: Callable[[], Iterator[Pair]]


@dataclass(frozen=True)
class Wmt:
    """One split of a WMT data set that tensorflow-datasets knows where to download, such as `wmt14_translate/de-en`.

    tensorflow-datasets says which archives and files it is, and what their SHA-256 is. `lines` are the numbers of lines
    that its corpora, under the names they have there, are known to have; preparation says where one has another.
    `raw_dir` is a folder where the archives lie already, under their own names; what is not there is downloaded.
    """

    dataset: str
    split: str
    source_language: str
    target_language: str
    lines: tuple[tuple[str, int], ...] = ()
    raw_dir: str | None = None


Corpus = TextFiles | Trees | Generated | Wmt
VOCABULARIES = ("bpe", "word_piece")


@dataclass(frozen=True)
class Problem:
    """A sequence problem: its corpora, its vocabulary, and how its output is scored.

    A problem without training corpora takes the user's own files, and so does one with `Trees` that have no path
    (`with_files`). Without validation corpora, a part of the training pairs is held out for validation. Raises
    ValueError for an impossible value.
    """

    name: str
    description: str
    source_language: str = ""  # ISO 639-1 codes, "" where unknown or not a language
    target_language: str = ""
    train: tuple[Corpus, ...] = ()
    validation: tuple[Corpus, ...] = ()
    test: tuple[Corpus, ...] = ()
    vocab_kind: str = "bpe"  # or "word_piece"; either is shared by source and target (section 5.1)
    vocab_size: int = 37_000  # exact, padding and end of sentence included
    max_length: int = 256  # tokens of a training sentence, its end included; longer pairs are dropped and counted
    metric: str = "bleu"  # names the task: "bleu" is of translation, and "f1", of brackets, is of parsing
    min_character_count: int = 0  # rarer characters of the vocabulary's sample become bytes; 0: one in 2,000,000
    sample: int = 0  # where above 0, only so many training pairs are taken, evenly spread over the text

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a problem's name must be lower-case letters, digits and _, got {self.name!r}")
        if self.vocab_kind not in VOCABULARIES:
            raise ValueError(f"vocab_kind must be one of {', '.join(VOCABULARIES)}, got {self.vocab_kind!r}")
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {self.vocab_size}")
        if self.max_length < 2:
            raise ValueError(f"max_length must be at least 2 (one token and the end), got {self.max_length}")
        if self.metric not in TASKS:
            raise ValueError(f"metric must be {' or '.join(map(repr, TASKS))}, got {self.metric!r}")
        if self.min_character_count < 0:
            raise ValueError(f"min_character_count must be at least 0. Received: {self.min_character_count}")
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0, got {self.sample}")
        for corpus in (corpus for split in SPLITS for corpus in self.corpora(split)):
            if isinstance(corpus, Trees) != self.task.takes_trees:
                raise ValueError(f"metric 'f1' is for Trees, and Trees for no other; got {self.metric!r} with {corpus}")

    @property
    def task(self) -> Task:
        """Returns what it shares with other problems of its kind. Imports no TensorFlow."""
        return task_of(self.metric)

    @property
    def takes_files(self) -> bool:
        """Whether the user has still to give text: `--train_source`, `--train_target`, `--train_trees`, `--raw_dir`."""
        return not self.train or any(
            isinstance(corpus, Trees) and not corpus.path for split in SPLITS for corpus in self.corpora(split)
        )

    def flags(self, split: str) -> str:
        """What the user's own text of that split is given with: "--test_source and --test_target"."""
        return f"--{split}_trees" if self.task.takes_trees else f"--{split}_source and --{split}_target"

    def with_files(self, **given: str | Sequence[str] | None) -> Problem:
        """This problem on the user's own files: `train_source=..., train_target=...`, the same for validation and test;
        for a problem of trees, lists of files `train_trees=[...]` and so on.

        Raises ValueError for what is missing, and for what this problem does not take.
        """
        left = {name: value for name, value in given.items() if value}
        find = self._given_trees if self.task.takes_trees else self._given_text
        problem = dataclasses.replace(self, **{split: find(split, left) for split in SPLITS})  # type: ignore[arg-type]
        if left:
            raise ValueError(f"problem {self.name!r} takes no --{next(iter(left))}; {self._wanted()}")
        problem.must_have_text()
        return problem

    def must_have_text(self) -> None:
        """Raises ValueError, naming the flags, where the user has still to give some of it."""
        if self.takes_files:
            raise ValueError(f"problem {self.name!r} needs your text: {self._wanted()}")

    def _given_text(self, split: str, left: dict[str, Any]) -> tuple[Corpus, ...]:
        """The files of a split, taken out of those that are left."""
        source, target = left.pop(f"{split}_source", None), left.pop(f"{split}_target", None)
        if bool(source) != bool(target):
            given, missing = ("source", "target") if source else ("target", "source")
            raise ValueError(f"--{split}_{given} is given without --{split}_{missing}; give both")
        return (TextFiles(source, target),) if source and target else self.corpora(split)

    def _given_trees(self, split: str, left: dict[str, Any]) -> tuple[Corpus, ...]:
        """The same for trees: what is declared, with its path where that is given; else files alone."""
        declared = self.corpora(split) or (Trees(),) * (f"{split}_trees" in left)
        found: list[Corpus] = []
        for corpus in declared:
            if _is_unnamed(corpus):
                paths = left.pop(f"{split}_trees", [""])
                found += [dataclasses.replace(corpus, path=path) for path in paths]
            else:
                found.append(corpus)
        return tuple(found)

    def _wanted(self) -> str:
        """`give --train_source and --train_target`, as an error says it."""
        wanted = ["--raw_dir, the folder of the treebank"] if self.takes_raw_dir else []
        unnamed = [split for split in SPLITS if any(map(_is_unnamed, self.corpora(split)))]
        wanted += map(self.flags, unnamed if self.train else ["train"])
        return f"give {', and '.join(wanted)}"

    @property
    def takes_raw_dir(self) -> bool:
        """Whether some of its text comes from a folder of originals: archives of WMT, or sections of a treebank."""
        return any(_is_original(corpus) for split in SPLITS for corpus in self.corpora(split))

    def with_raw_dir(self, raw_dir: str) -> Problem:
        """This problem with its originals in the folder `raw_dir`. Raises ValueError where it has none."""
        if not self.takes_raw_dir:
            raise ValueError(f"problem {self.name!r} has no originals and takes no --raw_dir")
        corpora = {split: tuple(_found_in(raw_dir, corpus) for corpus in self.corpora(split)) for split in SPLITS}
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    def beside(self, folder: str) -> Problem:
        """This problem with each relative path that exists in `folder` joined to it. Others lead from the current
        folder."""
        corpora = {split: tuple(_beside(folder, corpus) for corpus in self.corpora(split)) for split in SPLITS}
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    def corpora(self, split: str) -> tuple[Corpus, ...]:
        """The corpora of `split`: "train", "validation" or "test"."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return getattr(self, split)

    def to_dict(self) -> dict[str, Any]:
        """What a run keeps of its problem: every field but the corpora, as JSON can hold it."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in SPLITS}


def _is_unnamed(corpus: Corpus) -> TypeGuard[Trees]:
    """Returns whether it stands for the user's files of trees, of which none is named yet."""
    return isinstance(corpus, Trees) and not corpus.path and not corpus.sections


def _is_original(corpus: Corpus) -> bool:
    return isinstance(corpus, Wmt) or isinstance(corpus, Trees) and bool(corpus.sections)


def _found_in(raw_dir: str, corpus: Corpus) -> Corpus:
    if isinstance(corpus, Wmt):
        return dataclasses.replace(corpus, raw_dir=raw_dir)
    return dataclasses.replace(corpus, path=raw_dir) if isinstance(corpus, Trees) and corpus.sections else corpus


def _beside(folder: str, corpus: Corpus) -> Corpus:
    paths = {name: getattr(corpus, name, None) for name in ("source", "target", "path", "raw_dir")}
    joined = {name: os.path.join(folder, path) for name, path in paths.items() if path}  # an absolute path stays itself
    found: dict[str, Any] = {name: path for name, path in joined.items() if os.path.exists(path)}
    return dataclasses.replace(corpus, **found)
