"""The run directory: configuration, vocabulary, checkpoints and metrics of a training run.

    RUN/run.json          a `Run`, the versions and the command; under "training" a `TrainingRecord`
    RUN/vocabulary.model  a copy of the vocabulary
    RUN/checkpoints/      weights, optimizer state and position in the data
    RUN/metrics.jsonl     one line per report; RUN/events.out.* is the same for TensorBoard
    RUN/scores.jsonl      one line per scoring
    RUN/shortlist.txt     from t2t-shortlist: likely target subwords
    RUN/alignment.json    the attention head that aligns words, chosen when alignments are first asked for
    RUN/stopped-STEP.json if training diverged: the step and its pairs

Only the trainer that holds RUN/.lock writes run.json, checkpoints/ and metrics.jsonl.

Decoding needs only this directory. Scoring also reads the prepared data. Neither needs the code of the problem or its
text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2t_repro.config import LATER, HParams
from t2t_repro.io import JsonRecord, append_line, atomic_write, read_json, sha256, with_fields, write_json
from t2t_repro.problem import Problem
from t2t_repro.selection import Selection

FORMAT = 1
_MAY_CHANGE = (
    *("description", "train_steps", "beam_size", "alpha", "extra_length"),
    *("average_checkpoints", "checkpoint_steps"),
)
# Parts of the identity that runs of version 0.2 did not have, with the values that their absence stands for.
_LATER = {"num_encoder_layers": 0, "num_decoder_layers": 0, "parent": "none"} | LATER
_PACKAGES = ("t2t_repro", "tensorflow", "keras", "tensorflow-text", "sentencepiece", "sacrebleu")


@dataclass(frozen=True)
class TrainingData(JsonRecord):
    """The data of a run: names of its splits, size, and parts of the paper's data that it lacks."""

    pairs: int
    vocab_size: int
    train: str = ""
    validation: str = ""  # "" if there is none
    test: str = ""
    incomplete: tuple[str, ...] = ()  # such as "section 23: 8 of 2,416 trees"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are not empty."""
        return {name: value for name, value in super().to_json().items() if value not in ("", [])}


@dataclass(frozen=True, kw_only=True)
class Parent(JsonRecord):
    """The run whose weights another run starts from, as run.json records it."""

    problem: str  # its name
    fingerprint: str  # `Run.fingerprint` in hexadecimal
    step: int  # of the checkpoint that is loaded
    checkpoints: tuple[str, ...]  # its name; for a run by t2t-avg-checkpoints, the names of those in the mean
    directory: str  # absolute; only for information once the new run has a checkpoint
    data: TrainingData | None = None
    parent: Parent | None = None  # of the parent

    def __str__(self) -> str:
        """Returns `translate_ende_wmt14, mean of ckpt-4 + ckpt-8 (run 1f2e3d4c5b6a7988)`."""
        mean = "mean of " * (len(self.checkpoints) > 1)
        return f"{self.problem}, {mean}{' + '.join(self.checkpoints)} (run {self.fingerprint})"


@dataclass(frozen=True)
class TrainingRecord(JsonRecord):
    """Progress, data, devices and cost of training, over all its starts. None: not yet known."""

    data: TrainingData | None = None
    text_sha256: str | None = None  # of the training shards
    validation_sha256: str | None = None  # of the shards that `selection` has the scores of
    test_sha256: str | None = None
    step: int | None = None
    target_tokens: float | None = None  # real ones
    flops: float | None = None
    seconds: float | None = None
    device: str | None = None
    replicas: int | None = None
    paper_flops: float | None = None  # as the paper counts them; None if the paper gives no rate for the device
    held_tokens: int | None = None  # micro-batch size that fits `device`, if the first size did not
    selection: Selection | None = None  # validation scores of the regular checkpoints

    def __post_init__(self) -> None:
        if self.device is not None and self.replicas is None:
            raise ValueError(f"`replicas` must be given with the device {self.device!r}")


@dataclass(frozen=True)
class Run:
    """The identity of a run: run.json without its "training"."""

    directory: str
    problem: Problem
    hparams: HParams
    data_dir: str
    seed: int
    precision: str  # of matrix products: "float32", "tf32", "bfloat16" or "float16"
    vocabulary_sha256: str
    parent: Parent | None = None  # None: started from random weights

    @property
    def vocabulary(self) -> str:
        return os.path.join(self.directory, "vocabulary.model")

    @property
    def checkpoints(self) -> str:
        return os.path.join(self.directory, "checkpoints")

    @property
    def metrics(self) -> str:
        return os.path.join(self.directory, "metrics.jsonl")

    @property
    def checkpoint_list(self) -> str:
        return os.path.join(self.checkpoints, "checkpoint")

    @property
    def scores(self) -> str:
        return os.path.join(self.directory, "scores.jsonl")

    @property
    def shortlist(self) -> str:
        return os.path.join(self.directory, "shortlist.txt")

    @property
    def alignment(self) -> str:
        return os.path.join(self.directory, "alignment.json")

    @classmethod
    def open(cls, directory: str, argument: str = "output_dir") -> Run:
        """Returns the run in `directory`. Raises FileNotFoundError without one, and ValueError if it is damaged.

        An error names `argument`, the one that gave the directory.
        """
        path = os.path.join(directory, "run.json")
        if os.path.isfile(directory):
            raise FileNotFoundError(f"{argument}: {directory!r} is a file; give the directory that t2t-trainer wrote")
        if not os.path.isdir(directory):
            raise FileNotFoundError(f"{argument}: no directory {directory!r}; give the one that t2t-trainer wrote")
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"{directory!r} is not a run directory (no run.json); give the one that t2t-trainer wrote"
            )
        record = read_json(path)
        if record.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {record.get('format')!r}, this version reads {FORMAT}; "
                "use the version of t2t_repro that wrote it"
            )
        try:
            run = cls.from_json(directory, record)
            TrainingRecord.from_json(record.get("training", {}), "training")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {'no ' if isinstance(error, KeyError) else ''}{error}") from None
        if not os.path.isfile(run.vocabulary):
            raise FileNotFoundError(f"{run.vocabulary} is missing; the run cannot be read without its vocabulary")
        if sha256(run.vocabulary) != run.vocabulary_sha256:
            raise ValueError(f"{run.vocabulary} is not the vocabulary that this run was trained with (SHA-256 differs)")
        return run

    @classmethod
    def from_json(cls, directory: str, record: dict[str, Any]) -> Run:
        """Raises AttributeError, KeyError, TypeError or ValueError if `to_json` did not write it."""
        return cls(
            directory=directory,
            problem=with_fields(Problem, record["problem"]),
            hparams=with_fields(HParams, {"checkpoint_steps": 1} | record["hparams"]),  # 1: old runs without this field
            data_dir=str(record["data_dir"]),
            seed=int(record["seed"]),
            precision=str(record["precision"]),
            vocabulary_sha256=str(record["vocabulary_sha256"]),
            parent=Parent.from_json(record["parent"], "parent") if "parent" in record else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns run.json without "training". The command and the versions are those of this process."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        record.pop("directory")
        if self.parent:
            record["parent"] = self.parent.to_json()
        else:
            record.pop("parent")
        record |= {"problem": self.problem.to_dict(), "hparams": self.hparams.to_dict()}
        record |= {"data_dir": os.path.abspath(self.data_dir)}
        return {"format": FORMAT} | record | {"command": sys.argv, "versions": versions()}

    @classmethod
    def exists(cls, directory: str) -> bool:
        return os.path.isfile(os.path.join(directory, "run.json"))

    def start(self, vocabulary: str) -> Run:
        """Creates the directory with run.json and a copy of `vocabulary`, or continues the same run there.

        The number of steps and the options of decoding may change. Raises ValueError if the directory holds another
        run.
        """
        self.can_start()
        os.makedirs(self.checkpoints, exist_ok=True)
        if not os.path.exists(self.vocabulary) or sha256(self.vocabulary) != self.vocabulary_sha256:
            with atomic_write(self.vocabulary) as temporary:
                shutil.copyfile(vocabulary, temporary)
        training = self._training_json() if Run.exists(self.directory) else {}
        write_json(self._path, self.to_json() | {"training": training})
        return self

    def can_start(self) -> None:
        """Raises ValueError if the directory holds another run, or checkpoints without a run. Writes nothing."""
        if os.path.exists(self.directory) and not os.path.isdir(self.directory):
            raise ValueError(f"output_dir: {self.directory!r} is a file; give a directory")
        if Run.exists(self.directory):
            Run.open(self.directory).must_equal(self)
        elif os.path.isdir(self.checkpoints) and os.listdir(self.checkpoints):
            raise ValueError(f"{self.directory!r} holds checkpoints without a run.json; give another output_dir")

    @property
    def last_step(self) -> int:
        """The step at which training ends or ended: `train_steps`, or an earlier one."""
        selection = self.training.selection
        return (selection and selection.stopped_step) or self.hparams.train_steps

    @property
    def training(self) -> TrainingRecord:
        """The record that `note` wrote last."""
        return TrainingRecord.from_json(self._training_json())

    def _training_json(self) -> dict[str, Any]:
        return dict(read_json(self._path).get("training", {}))

    def is_of_own_text(self, score: Mapping[str, Any]) -> bool:
        """Returns whether a line of scores.jsonl is of the run's own validation or test text, as far as is known."""
        training = self.training
        of_run = {"validation": training.validation_sha256, "test": training.test_sha256}
        own, scored = of_run.get(score.get("split", "")), score.get("text_sha256")
        return None in (own, scored) or own == scored

    def note(self, training: TrainingRecord) -> None:
        """Writes `training` to run.json, where keys of other versions stay."""
        fields = {each.name for each in dataclasses.fields(training)}
        others = {name: value for name, value in self._training_json().items() if name not in fields}
        write_json(self._path, read_json(self._path) | {"training": others | training.to_json()})

    def keep_scores(self, scores: dict[str, Any]) -> None:
        """Appends the scores of one evaluation to scores.jsonl."""
        append_line(self.scores, json.dumps(scores, ensure_ascii=False))

    @property
    def _path(self) -> str:
        return os.path.join(self.directory, "run.json")

    def must_equal(self, other: Run) -> None:
        """Raises ValueError, naming the first difference, if `other` is a different run.

        Before the first checkpoint, it may start from another parent.
        """
        here, there = self._identity(), other._identity()
        free = () if os.path.exists(self.checkpoint_list) else ("parent",)
        # another set differs in its name, which no override changes, and in several other fields
        order = sorted(
            here.keys() | there.keys(), key=lambda name: (not name.startswith("problem "), name != "name", name)
        )
        for name in order:
            if here.get(name) != there.get(name) and name not in free:
                may_set = name != "name" and name in {each.name for each in dataclasses.fields(HParams)}
                remedy = f", or continue that run with {name}={here[name]}" if may_set else ""
                what = "hyperparameter set" if name == "name" else name
                raise ValueError(
                    f"{self.directory!r} holds another run: its {what} is {here.get(name)!r}, not {there.get(name)!r}; "
                    f"give another output_dir{remedy}"
                )

    @property
    def fingerprint(self) -> int:
        """A 63-bit hash that differs between different runs."""
        identity = {name: value for name, value in self._identity().items() if (name, value) not in _LATER.items()}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode("utf-8")).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def _identity(self) -> dict[str, Any]:
        """Returns the fields that identify a run: all but number of steps, options of decoding, and descriptions.

        If the learning rate decays at the end of training, the number of steps is one of them.
        """
        told = ("description", "example")
        problem = {f"problem {name}": value for name, value in self.problem.to_dict().items() if name not in told}
        fields = {each: value for each, value in dataclasses.asdict(self.hparams).items() if each not in _MAY_CHANGE}
        if self.hparams.decay_steps:
            fields["train_steps"] = self.hparams.train_steps
        rest = {"seed": self.seed, "precision": self.precision, "vocabulary_sha256": self.vocabulary_sha256}
        return problem | fields | rest | {"parent": str(self.parent) if self.parent else "none"}

    def share_vocabulary(self, problem: Problem) -> Problem:
        """Returns `problem` with the kind and the size of this run's vocabulary."""
        names = ("vocab_kind", "vocab_size", "min_character_count")
        return dataclasses.replace(problem, **{name: getattr(self.problem, name) for name in names})


def versions() -> dict[str, str]:
    """Returns the versions of Python and of every package that results depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            from t2t_repro import __version__

            found[package] = __version__ if package == "t2t_repro" else "not installed"
    return found
