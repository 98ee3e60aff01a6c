"""Problem: what is trained on, as a declaration. How its text is read and encoded is `t2t_repro.data`'s work."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Pair = tuple[str, str]  # (source text, target text)

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TextFiles:
    """Two UTF-8 text files of equally many lines, line n of one being the translation of line n of the other.

    A name that ends in `.gz` is read through gzip; of an SGML file (`.sgm`), as WMT publishes its test sets, the lines
    are its segments.
    """

    source: str
    target: str


@dataclass(frozen=True)
class Generated:
    """Pairs that a function makes: the same ones at every call."""

    function: Callable[[], Iterator[Pair]]


@dataclass(frozen=True)
class Wmt:
    """One split of a WMT data set that tensorflow-datasets knows where to download, such as `wmt14_translate/de-en`.

    tensorflow-datasets says which archives and files it is, and what their SHA-256 is. `lines` are the numbers of lines
    that its corpora, under the names they have there, are known to have; the text is refused where one has another.
    `raw_dir` is a folder where the archives lie already, under their own names; what is not there is downloaded.
    """

    dataset: str
    split: str
    source_language: str
    target_language: str
    lines: tuple[tuple[str, int], ...] = ()
    raw_dir: str | None = None


Corpus = TextFiles | Generated | Wmt
VOCABULARIES = ("bpe", "word_piece")


@dataclass(frozen=True)
class Problem:
    """A sequence problem: its corpora, its vocabulary, and how its output is scored.

    A problem without training corpora takes the user's own files (`with_files`). Without validation corpora, a part of
    the training pairs is held out for validation. Raises ValueError for an impossible value.
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
    metric: str = "bleu"
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
        if self.metric not in ("bleu",):
            raise ValueError(f"metric must be 'bleu', got {self.metric!r}")
        if self.sample < 0:
            raise ValueError(f"sample must be at least 0, got {self.sample}")

    @property
    def takes_files(self) -> bool:
        """Whether the user gives the text: `--train_source`, `--train_target` and so on."""
        return not self.train

    def with_files(self, **paths: str | None) -> Problem:
        """This problem on the user's own files: `train_source=..., train_target=...`, the same for validation and test.

        Raises ValueError where one side of a split is missing, or both sides of train are.
        """
        corpora: dict[str, tuple[Corpus, ...]] = {}
        for split in SPLITS:
            source, target = paths.pop(f"{split}_source", None), paths.pop(f"{split}_target", None)
            if bool(source) != bool(target):
                given, missing = ("source", "target") if source else ("target", "source")
                raise ValueError(f"--{split}_{given} is given without --{split}_{missing}; give both")
            if source and target:
                corpora[split] = (TextFiles(source, target),)
        if paths:
            raise ValueError(f"with_files takes a source and a target of {', '.join(SPLITS)}, got {sorted(paths)}")
        if "train" not in corpora:
            raise ValueError(f"problem {self.name!r} needs your text: give --train_source and --train_target")
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    @property
    def takes_raw_dir(self) -> bool:
        """Whether some of its text is downloaded, so that `with_raw_dir` means something."""
        return any(isinstance(corpus, Wmt) for split in SPLITS for corpus in self.corpora(split))

    def with_raw_dir(self, raw_dir: str) -> Problem:
        """This problem with its downloaded originals looked for in the folder `raw_dir` first.

        Raises ValueError where it has none.
        """
        if not self.takes_raw_dir:
            raise ValueError(f"problem {self.name!r} downloads nothing and takes no --raw_dir")
        corpora = {
            split: tuple(
                dataclasses.replace(corpus, raw_dir=raw_dir) if isinstance(corpus, Wmt) else corpus
                for corpus in self.corpora(split)
            )
            for split in SPLITS
        }
        return dataclasses.replace(self, **corpora)  # type: ignore[arg-type]

    def corpora(self, split: str) -> tuple[Corpus, ...]:
        """The corpora of `split`: "train", "validation" or "test"."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return getattr(self, split)  # type: ignore[no-any-return]

    def to_dict(self) -> dict[str, Any]:
        """What a run keeps of its problem: every field but the corpora, as JSON can hold it."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in SPLITS}
