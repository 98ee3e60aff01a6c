"""The run directory: all that one training is made of, and all that decoding and scoring it need.

    RUN/run.json          problem, hyperparameters, seed, precision, data directory, versions, command; under
                          "training" how far it has come, on what data and device, at what cost
    RUN/vocabulary.model  the vocabulary itself
    RUN/checkpoints/      weights, optimizer state and position in the data
    RUN/metrics.jsonl     one line a report; RUN/events.out.* is the same for TensorBoard
    RUN/scores.jsonl      one line a scoring
    RUN/stopped-STEP.json where a training came to nothing: the step and the pairs it was at

The user's own code and text are not needed once there is a run.
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
from dataclasses import dataclass
from typing import Any

from t2t_repro.config import HParams
from t2t_repro.io import append_line, atomic_write, read_json, sha256, write_json
from t2t_repro.problem import Problem

FORMAT = 1
_MAY_CHANGE = (
    *("description", "train_steps", "beam_size", "alpha", "extra_length"),
    *("average_checkpoints", "checkpoint_steps"),
)
_PACKAGES = ("t2t_repro", "tensorflow", "keras", "tensorflow-text", "sentencepiece", "sacrebleu")


@dataclass(frozen=True)
class Run:
    """What `run.json` says."""

    directory: str
    problem: Problem
    hparams: HParams
    data_dir: str
    seed: int
    precision: str  # "float32", "bfloat16" or "float16": what matrix products are computed in
    vocabulary_sha256: str

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
    def scores(self) -> str:
        return os.path.join(self.directory, "scores.jsonl")

    @classmethod
    def open(cls, directory: str) -> Run:
        """The run in `directory`. Raises FileNotFoundError where there is none and ValueError where it is damaged."""
        path = os.path.join(directory, "run.json")
        if not os.path.isdir(directory):
            raise FileNotFoundError(f"--output_dir: no directory {directory!r}; give the one that t2t-trainer wrote")
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{directory!r} holds no run (no run.json); give the one that t2t-trainer wrote")
        record = read_json(path)
        if record.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {record.get('format')!r}, this version reads {FORMAT}; "
                "use the version of t2t_repro that wrote it"
            )
        try:
            run = cls(
                directory=directory,
                problem=Problem(**record["problem"]),
                hparams=HParams(**({"checkpoint_steps": 1} | record["hparams"])),  # before it was a field, all counted
                data_dir=str(record["data_dir"]),
                seed=int(record["seed"]),
                precision=str(record["precision"]),
                vocabulary_sha256=str(record["vocabulary_sha256"]),
            )
            run._check_training()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {'no ' if isinstance(error, KeyError) else ''}{error}") from None
        if not os.path.isfile(run.vocabulary):
            raise FileNotFoundError(f"{run.vocabulary} is missing; the run cannot be read without its vocabulary")
        if sha256(run.vocabulary) != run.vocabulary_sha256:
            raise ValueError(f"{run.vocabulary} is not the vocabulary that this run was trained with (SHA-256 differs)")
        return run

    @classmethod
    def exists(cls, directory: str) -> bool:
        return os.path.isfile(os.path.join(directory, "run.json"))

    def start(self, vocabulary: str) -> Run:
        """Makes the directory with run.json and a copy of `vocabulary`, or finds that same run there to continue.

        A run may be continued to another number of steps, and decoded otherwise. Raises ValueError where the directory
        holds another run.
        """
        self.can_start()
        os.makedirs(self.checkpoints, exist_ok=True)
        if not os.path.exists(self.vocabulary) or sha256(self.vocabulary) != self.vocabulary_sha256:
            with atomic_write(self.vocabulary) as temporary:
                shutil.copyfile(vocabulary, temporary)
        training = self.training if Run.exists(self.directory) else {}
        write_json(self._path, self._record() | {"training": training})
        return self

    def can_start(self) -> None:
        """Raises ValueError where the directory holds anything but this very run; writes nothing."""
        if os.path.exists(self.directory) and not os.path.isdir(self.directory):
            raise ValueError(f"--output_dir: {self.directory!r} is a file; give a directory")
        if Run.exists(self.directory):
            Run.open(self.directory).must_equal(self)
        elif os.path.isdir(self.checkpoints) and os.listdir(self.checkpoints):
            raise ValueError(f"{self.directory!r} holds checkpoints without a run.json; give another --output_dir")

    @property
    def training(self) -> dict[str, Any]:
        """What `note` has kept: how far the training has come, on what data and device, at what cost."""
        return dict(read_json(self._path).get("training", {}))

    def _check_training(self) -> None:
        """Raises KeyError, TypeError, AttributeError or ValueError unless "training" has the form that `note` gave."""
        training = self.training
        if "device" in training and "replicas" not in training:
            raise KeyError("replicas")
        data = training.get("data", {"pairs": 0, "vocab_size": 0})
        numbers = {name: data[name] for name in ("pairs", "vocab_size")}
        names = ("step", "target_tokens", "flops", "seconds", "replicas", "held_tokens")
        numbers |= {name: training.get(name, 0) for name in names}
        numbers |= {"paper_flops": training.get("paper_flops") or 0}
        for name, value in numbers.items():
            if not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")

    def note(self, values: dict[str, Any]) -> None:
        """Keeps `values` in run.json, under "training"."""
        write_json(self._path, read_json(self._path) | {"training": self.training | values})

    def keep_scores(self, scores: dict[str, Any]) -> None:
        """Adds what a scoring found to scores.jsonl."""
        append_line(self.scores, json.dumps(scores, ensure_ascii=False))

    @property
    def _path(self) -> str:
        return os.path.join(self.directory, "run.json")

    def must_equal(self, other: Run) -> None:
        """Raises ValueError, naming the first difference, where `other` is not the same training as this one."""
        here, there = self._identity(), other._identity()
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise ValueError(
                    f"{self.directory!r} holds another run: its {name} is {here.get(name)!r}, not {there.get(name)!r}; "
                    "give another --output_dir"
                )

    @property
    def fingerprint(self) -> int:
        """63 bits that two runs share only where they are the same training."""
        digest = hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode("utf-8")).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def _identity(self) -> dict[str, Any]:
        """What makes two runs the same training: not its length, not how its result is decoded, not the prose."""
        problem = {f"problem {name}": value for name, value in self.problem.to_dict().items() if name != "description"}
        fields = {name: value for name, value in self.hparams.to_dict().items() if name not in _MAY_CHANGE}
        rest = {"seed": self.seed, "precision": self.precision, "vocabulary_sha256": self.vocabulary_sha256}
        return problem | fields | rest

    def _record(self) -> dict[str, Any]:
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        record.pop("directory")
        record |= {"problem": self.problem.to_dict(), "hparams": self.hparams.to_dict()}
        record |= {"data_dir": os.path.abspath(self.data_dir)}
        return {"format": FORMAT} | record | {"command": sys.argv, "versions": versions()}


def versions() -> dict[str, str]:
    """The version of Python and of every package that a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            from t2t_repro import __version__

            found[package] = __version__ if package == "t2t_repro" else "not installed"
    return found
