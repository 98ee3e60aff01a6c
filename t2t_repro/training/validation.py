"""Validation during training: scores, translations of a few sentences, and the decisions that follow from scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from t2t_repro.config import TrainingOptions
from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.selection import FIRST_INTERVAL, NAMES, PERPLEXITY, Mean, Selection, interval_within
from t2t_repro.system.out_of_memory import is_out_of_memory
from t2t_repro.training.checkpointing.checkpoint_list import is_regular, paths, step_of, to_average
from t2t_repro.training.checkpointing.checkpoints import Checkpoints
from t2t_repro.training.loss import Loss, total
from t2t_repro.training.metrics import MetricsLogger, safe_exp
from t2t_repro.training.parallel import num_parallel_batches, parallel_map
from t2t_repro.training.train_step import make_evaluator


class Sample(NamedTuple):
    """A model's translations of a few sentences during training."""

    scores: dict[str, float]  # by name, as "sample_BLEU"
    translations: list[tuple[str, str, str]]  # source, reference, ours


class Preview(Protocol):
    """Decodes with a model during training."""

    def __call__(self) -> Sample:
        """Decodes a few sentences."""

    def scores(self, metrics: Sequence[str]) -> dict[str, float]:
        """Returns scores of the complete validation split, by metric."""


MakePreview = Callable[[Transformer, Run, Dataset], Preview]


class Validation:
    """Scores the current weights of a model on the validation split, and on those of other prepared data by name."""

    def __init__(
        self,
        model: Transformer,
        run: Run,
        dataset: Dataset,
        preview: MakePreview | None,
        options: TrainingOptions,
        others: Mapping[str, Dataset],
    ):
        self._shards, self._max_tokens = dataset.shards("validation"), run.hparams.max_positions
        self._others = {name: other.shards("validation") for name, other in others.items()}
        self._corpora = [corpus.name for corpus in dataset.record.splits["validation"].corpora or ()]
        self._evaluate = make_evaluator(model, run.hparams.label_smoothing)
        self._preview, self._metrics = preview and preview(model, run, dataset), options.metrics
        if self._metrics and not self._preview:
            raise ValueError(f"the metrics {', '.join(self._metrics)} need text: give a `preview` that decodes")

    def __call__(self, step: int, logger: MetricsLogger, decodes: bool = False) -> dict[str, float]:
        """Reports and returns the scores at a checkpoint, by metric. Raises `tf.errors.OpError` if memory runs out.

        With `decodes`, they include those for which the complete validation split is decoded.
        """
        losses = self._losses(self._shards, self._corpora)
        sample = self._preview() if self._preview else Sample({}, [])
        loss = _sum(losses)
        perplexity, accuracy = safe_exp(loss.plain / loss.tokens), loss.correct / loss.tokens
        values = {"validation_loss": loss.smoothed / loss.tokens, "validation_perplexity": perplexity}
        values |= {"validation_accuracy": accuracy}
        each = {name: safe_exp(one.plain / one.tokens) for name, one in losses.items()} if self._corpora else {}
        values |= {f"validation_perplexity/{name}": value for name, value in each.items()}
        listed = f" ({', '.join(f'{name} {value:.2f}' for name, value in each.items())})" if each else ""
        line = f"checkpoint at step {step:,}: validation ppl {perplexity:.2f}{listed}, acc {accuracy:.1%}"
        for name, shards in self._others.items():
            other = _sum(self._losses(shards))
            values[f"validation_perplexity_{name}"] = safe_exp(other.plain / other.tokens)
            line += f", {name} ppl {values[f'validation_perplexity_{name}']:.2f}"
        scores = self._preview.scores(self._metrics) if decodes and self._preview else {}
        shown = {NAMES.get(metric, metric): score for metric, score in scores.items()}
        shown |= {name.replace("_", " "): score for name, score in sample.scores.items()}
        line += "".join(f", {name} {score:.1f}" for name, score in shown.items())
        logger.write(step, values | {f"validation_{metric}": n for metric, n in scores.items()} | sample.scores, line)
        logger.show(step, sample.translations)
        return {PERPLEXITY: perplexity} | scores

    def score(self, metric: str) -> float:
        """Returns one score of the current weights. Raises `tf.errors.OpError` if memory runs out."""
        if metric != PERPLEXITY and self._preview:
            return self._preview.scores([metric])[metric]
        loss = _sum(self._losses(self._shards, self._corpora))
        return safe_exp(loss.plain / loss.tokens)

    def _losses(self, shards: Sequence[str], corpora: Sequence[str] = ()) -> dict[str, Loss]:
        """Returns the sums over a split as Python numbers, by name of corpus ("" without `corpora`).

        Halves the batches when memory runs out, down to single pairs.
        """
        batch_tokens = input_pipeline.EVALUATION_TOKENS // num_parallel_batches()
        while True:
            try:
                batches = list(input_pipeline.evaluation_batches(shards, batch_tokens, self._max_tokens))
                losses: dict[str, list[Loss]] = {}
                found = parallel_map(lambda batch: self._evaluate(batch["inputs"], batch["targets"]), batches)
                for batch, loss in zip(batches, found, strict=True):
                    losses.setdefault(corpora[int(batch["corpus"])] if corpora else "", []).append(loss)
                return {name: total(sums) for name, sums in losses.items()}
            except tf.errors.OpError as error:
                if not is_out_of_memory(error) or batch_tokens == 1:
                    raise
                batch_tokens //= 2

    def truncation(self) -> str:
        """Returns a line about pairs with more tokens than the model has positions; "" if there are none."""
        longer, limit = input_pipeline.longer_pairs(self._shards, self._max_tokens), self._max_tokens
        return f"{longer:,} validation pairs have more than {limit:,} tokens per side and are cut" if longer else ""


def _sum(losses: Mapping[str, Loss]) -> Loss:
    return Loss(*(sum(sums) for sums in zip(*losses.values(), strict=True)))


class Stopping:
    """Decides when the run ends, which checkpoints it keeps and which one it recommends. For the chief alone.

    It decides by the scores in run.json (`t2t_repro.selection`). A checkpoint is saved before it is scored. If the
    trainer is killed in between, the next start scores it first, with the same weights. So every regular checkpoint is
    scored once, and no decision depends on a kill.
    """

    def __init__(self, run: Run, options: TrainingOptions, report: Callable[[str], None]):
        self._run, self._options, self._report = run, options, report

    @property
    def selection(self) -> Selection:
        """The scores so far, and the metric that decides."""
        return dataclasses.replace(self._run.training.selection or Selection(), by=self._options.validate_by)

    def _note(self, selection: Selection) -> None:
        self._run.note(dataclasses.replace(self._run.training, selection=selection))

    def forget_after(self, step: int) -> None:
        """Removes what was noted after `step`: the run continues from its checkpoint."""
        if self._run.training.selection:
            self._note(self.selection.at(step))

    def kept(self) -> list[int]:
        """Returns the steps of the checkpoints that are kept beside the last ones: the best ones.

        While fewer have a score by the deciding metric, those with the best perplexity are kept too: the run may have
        been scored by that alone so far.
        """
        number, existing = self._options.best_kept, self._existing()
        best = self.selection.best(number, existing)
        by_perplexity = dataclasses.replace(self.selection, by=PERPLEXITY).best(number, existing.difference(best))
        return best + by_perplexity[: number - len(best)]

    def _existing(self) -> set[int]:
        return {step_of(path) for path in paths(self._run)}

    def is_unscored(self, step: int) -> bool:
        """Returns whether the checkpoint of `step` is a regular one that lacks a score."""
        metrics = (PERPLEXITY, *(self._options.metrics if self.decodes(step) else ()))
        scores = self.selection.scores
        return is_regular(self._run, step) and any(str(step) not in scores.get(metric, {}) for metric in metrics)

    def decodes(self, step: int) -> bool:
        """Returns whether the validation set is decoded at `step`: a function of the step and of the noted interval."""
        if not self._options.metrics or not is_regular(self._run, step):
            return False
        interval = self._options.validate_every or self.selection.interval
        is_last = step in (self._run.hparams.train_steps, self._run.last_step)
        return interval is None or is_last or step // self._run.hparams.checkpoint_steps % interval == 0

    def note_scores(self, step: int, values: Mapping[str, float], seconds: float, training_seconds: float) -> None:
        """Notes the scores of the regular checkpoint of `step`.

        Args:
          step: of the checkpoint.
          values: scores by metric.
          seconds: what scoring took.
          training_seconds: the time of training between two regular checkpoints.
        """
        selection = self.selection.with_scores(step, values)
        if len(values) > 1 and not self._options.validate_every:
            selection = self._with_interval(selection, seconds, training_seconds)
        self._note(selection)

    def _with_interval(self, selection: Selection, seconds: float, training_seconds: float) -> Selection:
        """Chooses the interval of decoding by the second decoding: the first one is longer, of an untrained model."""
        decoded = len(selection.scores[self._options.metrics[0]])
        if decoded > 2 and selection.interval is not None:
            return selection
        interval = interval_within(seconds, training_seconds)
        if decoded == 1:
            interval = min(interval, FIRST_INTERVAL)
        which = f"every {interval} regular checkpoints" if interval > 1 else "each of them"
        names = ", ".join(NAMES.get(metric, metric) for metric in self._options.metrics)
        self._report(
            f"scoring {names} took {seconds:.1f} s, and training from one regular checkpoint to the next "
            f"{training_seconds:.1f} s: scored at {which}{' at first' * (decoded == 1)} (validate_every)"
        )
        return dataclasses.replace(selection, interval=interval)

    def is_over(self, seconds: float) -> bool:
        """Returns whether `seconds` of training are all that is allowed. It reads no file: each step asks."""
        return 0 < 60 * self._options.train_minutes <= seconds

    def reason(self, seconds: float) -> str:
        """Returns why training ends after `seconds` of it; "" if it continues."""
        selection, options = self.selection, self._options
        return selection.exhausted(options.patience) or selection.out_of_time(options.train_minutes, seconds)

    def note_end(self, step: int, reason: str) -> None:
        """Notes that training ends at `step`, before `train_steps`."""
        self._note(dataclasses.replace(self.selection, stopped_step=step, reason=reason))

    def conclude(self, step: int, checkpoints: Checkpoints, score_mean: Callable[[int, bool], float | None]) -> None:
        """Reports why training ended and which checkpoints to use. Notes the latter.

        `score_mean` returns the score of the mean of a number of checkpoints, the last or the best ones; None if it
        cannot.
        """
        if self._options.selects:
            checkpoints.remove_except(self.kept())
        selection = self.selection
        if selection.reason:
            self._report(f"ended at step {step:,} of {self._run.hparams.train_steps:,}: {selection.reason}")
        best = selection.best(self._options.best_kept, self._existing())
        if not best:
            if self._options.selects:
                metric = NAMES.get(selection.by, selection.by)
                self._report(f"no checkpoint has a validation {metric}: none is recommended")
            return
        self._note(selection)
        last = [step_of(path) for path in to_average(self._run, self._run.hparams.average_checkpoints)]
        means: dict[tuple[int, ...], Mean] = {}  # of the paper's recipe too: the last ones
        for name, steps in (("best", sorted(best)), ("last", last)):
            if len(steps) > 1 and tuple(steps) not in means:
                score = score_mean(len(steps), name == "best")
                if score is not None:
                    means[tuple(steps)] = Mean(f"{name} {len(steps)}", tuple(steps), score)
        recommended, why = selection.recommendation(best, tuple(means.values()))
        self._note(dataclasses.replace(selection, recommended_steps=tuple(recommended)))
        loads = "and `moving_average` load" if self._run.hparams.ema_decay else "loads"
        self._report(f"recommended: {why}; `average_best` {loads} it")
