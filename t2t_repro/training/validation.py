"""Validation during training: loss, perplexity, accuracy, and translations of a few sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training import memory
from t2t_repro.training.loss import Loss, total
from t2t_repro.training.metrics import MetricsLogger, safe_exp
from t2t_repro.training.train_step import make_evaluator


class Sample(NamedTuple):
    """A model's translations of a few sentences during training."""

    scores: dict[str, float]  # by name, as "sample_BLEU"
    translations: list[tuple[str, str, str]]  # source, reference, ours


MakePreview = Callable[[Transformer, Run, Dataset], Callable[[], Sample]]


class Validation:
    """Scores the current weights of a model on the validation split."""

    def __init__(self, model: Transformer, run: Run, dataset: Dataset, preview: MakePreview | None = None):
        self._shards, self._max_tokens = dataset.shards("validation"), run.hparams.max_positions
        self._corpora = [corpus.name for corpus in dataset.record.splits["validation"].corpora or ()]
        self._evaluate = make_evaluator(model, run.hparams.label_smoothing)
        self._sample = preview(model, run, dataset) if preview else lambda: Sample({}, [])

    def __call__(self, step: int, logger: MetricsLogger) -> None:
        """Reports the scores at a checkpoint. Raises `tf.errors.OpError` if memory runs out."""
        losses, sample = self._losses(), self._sample()
        loss = Loss(*(sum(sums) for sums in zip(*losses.values(), strict=True)))
        perplexity, accuracy = safe_exp(loss.plain / loss.tokens), loss.correct / loss.tokens
        values = {"validation_loss": loss.smoothed / loss.tokens, "validation_perplexity": perplexity}
        each = {name: safe_exp(one.plain / one.tokens) for name, one in losses.items()} if self._corpora else {}
        values |= {f"validation_perplexity/{name}": value for name, value in each.items()}
        listed = f" ({', '.join(f'{name} {value:.2f}' for name, value in each.items())})" if each else ""
        scores = "".join(f", {name.replace('_', ' ')} {score:.1f}" for name, score in sample.scores.items())
        logger.write(
            step,
            values | {"validation_accuracy": accuracy} | sample.scores,
            f"checkpoint at step {step:,}: validation ppl {perplexity:.2f}{listed}, acc {accuracy:.1%}{scores}",
        )
        logger.show(step, sample.translations)

    def _losses(self) -> dict[str, Loss]:
        """Returns the sums of each corpus as Python numbers, by its name ("" if there is only one).

        Halves the batches when memory runs out, down to single pairs.
        """
        batch_tokens = input_pipeline.EVALUATION_TOKENS
        while True:
            try:
                losses: dict[str, list[Loss]] = {}
                for batch in input_pipeline.evaluation_batches(self._shards, batch_tokens, self._max_tokens):
                    name = self._corpora[int(batch["corpus"])] if self._corpora else ""
                    losses.setdefault(name, []).append(self._evaluate(batch["inputs"], batch["targets"]))
                return {name: total(sums) for name, sums in losses.items()}
            except tf.errors.OpError as error:
                if not memory.is_out_of_memory(error) or batch_tokens == 1:
                    raise
                batch_tokens //= 2

    def truncation(self) -> str:
        """Returns a line about pairs with more tokens than the model has positions; "" if there are none."""
        longer, limit = input_pipeline.longer_pairs(self._shards, self._max_tokens), self._max_tokens
        return f"{longer:,} validation pairs have more than {limit:,} tokens per side and are cut" if longer else ""
