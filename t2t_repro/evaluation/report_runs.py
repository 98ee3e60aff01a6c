"""Reads run directories for a report, without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from t2t_repro.io import read_json_lines
from t2t_repro.registry import HPARAMS
from t2t_repro.run import Run, TrainingRecord
from t2t_repro.training.checkpointing.checkpoint_list import averaged

# The approximate number of training pairs or trees of the paper, by problem (sections 5.1 and 6.3).
PAPER_DATA = {
    "translate_ende_wmt14": 4_500_000,
    "translate_enfr_wmt14": 36_000_000,
    "parse_wsj": 40_000,
    "parse_wsj_semisupervised": 17_000_000,
}
_MAX_DEPTH = 3  # levels of subfolders


@dataclass(frozen=True)
class RunResult:
    """The records of one run directory."""

    run: Run
    training: TrainingRecord
    scores: list[dict[str, Any]]  # oldest first
    directory: str  # relative to that of the report, `seed2/base`

    @property
    def set_name(self) -> str:
        """The name of the hyperparameter set without its scale: `a_h1` of `a_h1@tiny`."""
        return self.run.hparams.name.partition("@")[0]

    @property
    def condition(self) -> str:
        """The data of the run's scores, and the scale if that is not the paper's."""
        scale = self.run.hparams.name.partition("@")[2]
        data = self.training.data
        if not data:
            return f"{self.run.problem.name}, training not started"
        texts = {"train": data.train, "validation": data.validation, "test": data.test}
        names = [f"{split} {text}" for split, text in texts.items() if text]
        text = f"{self.run.problem.name}: {data.pairs:,} training pairs, vocabulary {data.vocab_size:,}"
        text += f" ({'; '.join(names)})" + (f", every hyperparameter set at scale {scale}" if scale else "")
        text += f". Started from {self.run.parent}" if self.run.parent else ""
        return text + (f". Not the paper's data: {'; '.join(self.incomplete)}" if self.incomplete else "")

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Lists what is missing from the paper's data: `section 23: 8 of 2,416 trees`."""
        return self.training.data.incomplete if self.training.data else ()

    @property
    def parameters(self) -> int | None:
        data = self.training.data  # None before training has started
        return self.run.hparams.num_parameters(data.vocab_size) if data else None

    def own_scores(self) -> list[dict[str, Any]]:
        """Returns the scores of the run's own text with its own beam and alpha, oldest first."""
        own = {"beam_size": self.run.hparams.beam_size, "alpha": self.run.hparams.alpha}
        of_text = [each for each in self.scores if self.run.is_of_own_text(each)]
        return [each for each in of_text if all(each.get(name, value) == value for name, value in own.items())]

    def score(self, split: str, checkpoints: int) -> dict[str, Any]:
        """Returns the newest of `own_scores` of `split` with that many averaged checkpoints; empty if there are none.

        Scores of moving averages, which the paper does not have, are left out.
        """
        of_split = [each for each in self.own_scores() if each["split"] == split]
        found = [each for each in of_split if weights_of(each) == (checkpoints, False)]
        return found[-1] if found else {}

    def limitation(self) -> str:
        """Returns "smaller budget", "other hyperparameters" or "other data" if the scores are not comparable with the
        paper's, otherwise ""."""
        hparams, registered = self.run.hparams, HPARAMS.get(self.set_name)
        if registered is None or (self.training.step or 0) < registered.train_steps:
            return "smaller budget"
        if hparams.batch_tokens < registered.batch_tokens:
            return "smaller budget"
        if hparams.changes(registered).keys() - {"train_steps", "checkpoint_steps"}:
            return "other hyperparameters"
        if self.run.parent:
            return "other data"
        data, pairs = self.training.data, PAPER_DATA.get(self.run.problem.name, float("inf"))
        return "" if data and data.pairs >= 0.9 * pairs and not data.incomplete else "other data"


def weights_of(score: dict[str, Any]) -> tuple[int, bool]:
    """Returns how many checkpoints the scored weights are the mean of, and whether of moving averages.

    It is the number that was asked for: a short run may have fewer.
    """
    names = score.get("average_of", score["checkpoints"])
    number = len(names) if "average_of" in score else score.get("average_checkpoints", len(names))
    return number, score.get("moving_average", False) or any(name.endswith("(moving average)") for name in names)


def read_runs(directory: str) -> tuple[list[RunResult], list[str]]:
    """Reads every run in `directory` or below. Returns the results, and an error line for each unreadable run.

    Raises FileNotFoundError if there is no such directory.
    """
    if not os.path.isdir(directory):
        raise FileNotFoundError(
            f"{directory!r} is not a directory; give the one that t2t-trainer or t2t-ablate wrote to"
        )
    results, unreadable = [], []
    for path in _runs(directory, _MAX_DEPTH):
        try:
            result = read_run(path)
            results.append(result if path == directory else replace(result, directory=os.path.relpath(path, directory)))
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
    return results, unreadable


def read_run(directory: str) -> RunResult:
    """Reads the run in `directory`. Raises FileNotFoundError if there is none and ValueError if it is damaged."""
    run = Run.open(directory)
    training = run.training
    scores, mean = list(read_json_lines(run.scores)) if os.path.exists(run.scores) else [], averaged(run)
    for number, score in enumerate(scores, start=1):
        if not _is_scoring(score):
            raise ValueError(f"{run.scores} is damaged: line {number} is not a score of t2t-eval or t2t-trainer")
        if mean:  # by an earlier version, a score does not say so
            score.setdefault("average_of", mean)
    # int8 and shortlists: faster and less accurate decoding than the paper's
    scores = [score for score in scores if not score.get("int8") and not score.get("shortlist")]
    return RunResult(run, training, scores, os.path.basename(os.path.abspath(directory)))


def _is_scoring(score: dict[str, Any]) -> bool:
    """Returns true if `score` has the form that `Run.keep_scores` writes."""
    numbers = [score.get(name, 0) for name in ("bleu", "paper_bleu", "bleu_interval", "chrf", "f1", "perplexity")]
    return (
        isinstance(score.get("split"), str)
        and isinstance(score.get("checkpoints"), list)
        and all(isinstance(number, int | float) for number in (score.get("step"), *numbers))
    )


def _runs(directory: str, depth: int) -> Iterator[str]:
    """Yields the run directories in `directory` or below, by name."""
    if Run.exists(directory):
        yield directory
    elif depth:
        with os.scandir(directory) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
        for folder in folders:
            yield from _runs(folder, depth - 1)
