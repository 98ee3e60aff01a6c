"""Problem: the declaration of a data set and a task. `t2t_repro.preparation` reads and encodes its text."""

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
    training text and counted as too long: for files that must not be edited, such as those of a downloaded archive.
    """

    source: str
    target: str
    drop_long_lines: bool = False


@dataclass(frozen=True)
class Trees:
    """Trees in Penn Treebank bracketing, from which a parser learns: the words of each, and its linearization.

    A file, read through gzip if its name ends in `.gz`; or with `sections`, those of the Wall Street Journal in a
    folder that has wsj_0200.mrg and so on at any depth. Without a path, the user gives it (`with_files`).

    `number` is how many trees the sections are known to have (0: unknown); preparation reports another number.
    `by_parser`: a parser wrote the files, one tree per line or further lines indented; its failures are dropped and
    counted. A treebank with anything but trees in it is refused.
    """

    path: str = ""
    sections: tuple[int, ...] = ()
    number: int = 0
    by_parser: bool = False

    def __str__(self) -> str:
        """Returns `sections 02-21 of FOLDER`, or `FILE`."""
        if not self.sections:
            return self.path or "your files"
        return f"{self.name} of {self.path or 'your folder, `raw_dir`'}"

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
    """Pairs that a function generates: the same ones at every call."""

    function: Callable[[], Iterator[Pair]]


@dataclass(frozen=True)
class Wmt:
    """One split of a WMT data set that tensorflow-datasets knows where to download, such as `wmt14_translate/de-en`.

    tensorflow-datasets knows its archives and files, and their SHA-256. `lines` are the known numbers of lines of its
    corpora, by the names they have there; preparation reports another number. `raw_dir` is a folder of archives under
    their own names; missing ones are downloaded.
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
    (`with_files`). Without validation corpora, some of the training pairs become the validation split. Raises
    ValueError for an impossible value.
    """

    name: str
    description: str
    source_language: str = ""  # ISO 639-1 codes, "" if unknown or not a language
    target_language: str = ""
    train: tuple[Corpus, ...] = ()
    validation: tuple[Corpus, ...] = ()
    test: tuple[Corpus, ...] = ()
    vocab_kind: str = "bpe"  # or "word_piece"; either is shared by source and target (section 5.1)
    vocab_size: int = 37_000  # exact, with the padding and end-of-sentence tokens
    max_length: int = 256  # maximum tokens of a training sentence, EOS included; longer pairs are dropped and counted
    metric: str = "bleu"  # selects the task: "bleu" for translation, bracket "f1" for parsing
    min_character_count: int = 0  # rarer characters in the vocabulary's sample become bytes; 0: one in 2,000,000
    sample: int = 0  # if above 0, train on this many pairs, evenly spaced over the text

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a problem's name must be lower-case letters, digits and _, got {self.name!r}")
        if self.vocab_kind not in VOCABULARIES:
            raise ValueError(f"vocab_kind must be one of {', '.join(VOCABULARIES)}, got {self.vocab_kind!r}")
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {self.vocab_size}")
        if self.max_length < 2:
            raise ValueError(f"max_length must be at least 2 (one token and EOS), got {self.max_length}")
        if self.metric not in TASKS:
            raise ValueError(f"metric must be {' or '.join(map(repr, TASKS))}, got {self.metric!r}")
        if self.min_character_count < 0:
            raise ValueError(f"min_character_count must be at least 0. Received: {self.min_character_count}")
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0, got {self.sample}")
        for corpus in (corpus for split in SPLITS for corpus in self.corpora(split)):
            if isinstance(corpus, Trees) != self.task.takes_trees:
                raise ValueError(f"metric 'f1' and Trees belong together; got {self.metric!r} with {corpus}")

    @property
    def task(self) -> Task:
        """Returns the task, shared by all problems of its kind. Does not import TensorFlow."""
        return task_of(self.metric)

    @property
    def takes_files(self) -> bool:
        """True if the user must still give text: `train_source`, `train_target`, `train_trees` or `raw_dir`."""
        return not self.train or any(
            isinstance(corpus, Trees) and not corpus.path for split in SPLITS for corpus in self.corpora(split)
        )

    def arguments(self, split: str) -> str:
        """Returns the arguments of `with_files` for text of that split: "`test_source` and `test_target`"."""
        return f"`{split}_trees`" if self.task.takes_trees else f"`{split}_source` and `{split}_target`"

    def with_files(self, **given: str | Sequence[str] | None) -> Problem:
        """Returns this problem on the user's own files: `train_source=..., train_target=...`, the same for validation
        and test; for a parsing problem, lists of files `train_trees=[...]` and so on.

        Raises ValueError for a missing argument, and for one that this problem does not take.
        """
        left = {name: value for name, value in given.items() if value}
        find = self._given_trees if self.task.takes_trees else self._given_text
        problem = dataclasses.replace(self, **{split: find(split, left) for split in SPLITS})  # type: ignore[arg-type]
        if left:
            raise ValueError(f"problem {self.name!r} takes no `{next(iter(left))}`; {self._wanted()}")
        problem.must_have_text()
        return problem

    def must_have_text(self) -> None:
        """Raises ValueError, naming the arguments, if the user must still give text."""
        if self.takes_files:
            raise ValueError(f"problem {self.name!r} needs your text: {self._wanted()}")

    def _given_text(self, split: str, left: dict[str, Any]) -> tuple[Corpus, ...]:
        """Returns the files of a split, and removes them from `left`."""
        source, target = left.pop(f"{split}_source", None), left.pop(f"{split}_target", None)
        if bool(source) != bool(target):
            given, missing = ("source", "target") if source else ("target", "source")
            raise ValueError(f"`{split}_{given}` is given without `{split}_{missing}`; give both")
        return (TextFiles(source, target),) if source and target else self.corpora(split)

    def _given_trees(self, split: str, left: dict[str, Any]) -> tuple[Corpus, ...]:
        """Returns the trees of a split: the declared ones with the given paths, or files alone."""
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
        """Returns "give `train_source` and `train_target`" for an error."""
        wanted = ["`raw_dir`, the folder of the treebank"] if self.takes_raw_dir else []
        unnamed = [split for split in SPLITS if any(map(_is_unnamed, self.corpora(split)))]
        wanted += map(self.arguments, unnamed if self.train else ["train"])
        return f"give {', and '.join(wanted)}"

    @property
    def takes_raw_dir(self) -> bool:
        """True if some text comes from a folder of WMT archives or of a treebank."""
        return any(_is_in_raw_dir(corpus) for split in SPLITS for corpus in self.corpora(split))

    def with_raw_dir(self, raw_dir: str) -> Problem:
        """Returns this problem with its archives or treebank in `raw_dir`. Raises ValueError if it has neither."""
        if not self.takes_raw_dir:
            raise ValueError(f"problem {self.name!r} has no downloaded archives or treebank, and takes no `raw_dir`")
        corpora = {split: tuple(_found_in(raw_dir, corpus) for corpus in self.corpora(split)) for split in SPLITS}
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    def beside(self, folder: str) -> Problem:
        """Returns this problem with `folder` before each relative path that exists there. Others start from the current
        folder."""
        corpora = {split: tuple(_beside(folder, corpus) for corpus in self.corpora(split)) for split in SPLITS}
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    def corpora(self, split: str) -> tuple[Corpus, ...]:
        """Returns the corpora of `split`: "train", "validation" or "test"."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return getattr(self, split)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field except the corpora, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in SPLITS}


def _is_unnamed(corpus: Corpus) -> TypeGuard[Trees]:
    """Returns whether `corpus` stands for the user's files of trees that are not given yet."""
    return isinstance(corpus, Trees) and not corpus.path and not corpus.sections


def _is_in_raw_dir(corpus: Corpus) -> bool:
    return isinstance(corpus, Wmt) or isinstance(corpus, Trees) and bool(corpus.sections)


def _found_in(raw_dir: str, corpus: Corpus) -> Corpus:
    if isinstance(corpus, Wmt):
        return dataclasses.replace(corpus, raw_dir=raw_dir)
    return dataclasses.replace(corpus, path=raw_dir) if isinstance(corpus, Trees) and corpus.sections else corpus


def _beside(folder: str, corpus: Corpus) -> Corpus:
    paths = {name: getattr(corpus, name, None) for name in ("source", "target", "path", "raw_dir")}
    joined = {
        name: os.path.join(folder, path) for name, path in paths.items() if path
    }  # an absolute path stays unchanged
    found: dict[str, Any] = {name: path for name, path in joined.items() if os.path.exists(path)}
    return dataclasses.replace(corpus, **found)
