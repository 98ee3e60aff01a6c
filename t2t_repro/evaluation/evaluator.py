"""`evaluate`: scores of a run on a split, and a table of them."""

from __future__ import annotations

import os
from typing import Any

from t2t_repro.config import HParams
from t2t_repro.data import input_pipeline
from t2t_repro.data.dataset import Dataset
from t2t_repro.inference.memory import batches_in_memory
from t2t_repro.inference.translator import Translator
from t2t_repro.run import Run
from t2t_repro.task import TASKS, task_of
from t2t_repro.training.checkpointing.checkpoint_list import averaged, step_of
from t2t_repro.training.loss import Loss, total
from t2t_repro.training.metrics import safe_exp
from t2t_repro.training.parallel import parallel_map
from t2t_repro.training.precision import resolve
from t2t_repro.training.train_step import make_evaluator


def evaluate(
    output_dir: str,
    split: str = "test",
    average_checkpoints: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    int8: bool = False,
    data_dir: str | None = None,
    precision: str = "auto",
    average_best: bool = False,
    moving_average: bool = False,
    shortlist: str | None = None,
) -> dict[str, Any]:
    """Scores the run in `output_dir` on a split of its prepared data.

    The scores are BLEU and chrF of its translations against the original references, or bracket F1 of its trees. These
    have gold's tags, and EVALB's deletions by COLLINS.prm apply. Loss, perplexity and accuracy per token are added. If
    a pair has more than `max_positions` tokens per side, the first ones are translated and scored; "cut" is the number
    of such pairs.

    Args:
      output_dir: the directory of the run.
      split: "train", "validation" or "test".
      average_checkpoints: the weights are the mean of that many of the last checkpoints.
      beam_size: the width of beam search; None for that of the run.
      alpha: the exponent of the length penalty; None for that of the run.
      int8: whether linear layers multiply 8-bit integers in decoding. Loss, perplexity and accuracy are those without.
      data_dir: the folder of the prepared data, if it has moved since training.
      precision: what the model computes in; "auto" for that of the run.
      average_best: average the checkpoints with the best validation scores; if the number is 1, those that training
        recommends.
      moving_average: average the moving averages in the checkpoints.
      shortlist: a file of `t2t_repro.data.shortlist`, from whose subwords translations are made. Loss, perplexity and
        accuracy are those of all subwords.

    Raises FileNotFoundError if the data does not exist. Raises ValueError if the problem has no such split, or if
    `precision` is not supported here.
    """
    run = Run.open(output_dir)
    computed_in = resolve(precision, run.precision)
    dataset = Dataset.of_run(run, data_dir)
    shards = dataset.shards(split)
    translator = Translator.from_run(
        output_dir,
        average_checkpoints,
        int8=int8,
        precision=precision,
        average_best=average_best,
        moving_average=moving_average,
        shortlist=shortlist,
    )
    task = run.problem.task
    references = task.references(dataset, split, translator.vocabulary)
    scores = task.scores(translator, references, run.problem.target_language, beam_size, alpha)
    loss = _loss(translator, run.hparams, shards)
    weights = [os.path.basename(path) for path in translator.checkpoints[0]]
    return {
        "problem": run.problem.name,
        "hparams": run.hparams.name,
        "split": split,
        "text_sha256": dataset.text_sha256(split),
        "sentences": scores.pop("sentences"),
        "checkpoints": weights,
        **({"average_of": own_mean} if (own_mean := averaged(run)) else {}),
        **({"average_best": True} if average_best else {"average_checkpoints": average_checkpoints}),
        **({"moving_average": True} if moving_average else {}),
        "step": step_of(weights[-1]),
        "beam_size": run.hparams.beam_size if beam_size is None else beam_size,
        "alpha": run.hparams.alpha if alpha is None else alpha,
        "precision": computed_in,
        "int8": int8,
        **({"shortlist": shortlist} if shortlist else {}),
        "max_tokens": run.hparams.max_positions,
        "cut": input_pipeline.longer_pairs(shards, run.hparams.max_positions),
        "incomplete": dataset.incomplete(),
        **scores,
        "loss": loss.smoothed / loss.tokens,
        "perplexity": safe_exp(loss.plain / loss.tokens),
        "accuracy": loss.correct / loss.tokens,
    }


def _loss(translator: Translator, hparams: HParams, shards: list[str]) -> Loss:
    """Returns the sums of the loss over the pairs of `shards`."""
    evaluator = make_evaluator(translator.model, hparams.label_smoothing)
    batches = list(input_pipeline.evaluation_batches(shards, max_tokens=hparams.max_positions))
    most = batches_in_memory(input_pipeline.EVALUATION_TOKENS, translator.model.vocab_size)
    return total(parallel_map(lambda batch: evaluator(batch["inputs"], batch["targets"]), batches, most))


def table(scores: dict[str, Any]) -> str:
    """Returns the scores as lines of text."""
    task = task_of(next(metric for metric in TASKS if metric in scores))
    rows = [
        ("problem", f"{scores['problem']}, {scores['split']} ({scores['sentences']:,} sentences)"),
        ("set", scores["hparams"]),
        ("weights", _weights(scores)),
        ("search", f"beam {scores['beam_size']}, alpha {scores['alpha']}{_shortlist(scores)}"),
        ("precision", f"{scores['precision']}{', int8' * scores['int8']}"),
        *task.score_rows(scores),
        *_cut_rows(scores),
        *([("data", f"not the paper's: {'; '.join(scores['incomplete'])}")] if scores["incomplete"] else []),
        ("loss", f"{scores['loss']:.4f} nats per token, label-smoothed"),
        ("perplexity", f"{scores['perplexity']:.3f} per token"),
        ("accuracy", f"{scores['accuracy']:.2%} of tokens, given the previous reference tokens"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _weights(scores: dict[str, Any]) -> str:
    """Returns `ckpt-4 + ckpt-8, best by validation, moving average`."""
    how = {"average_best": "best by validation", "moving_average": "moving average"}
    return ", ".join([" + ".join(scores["checkpoints"]), *(text for name, text in how.items() if scores.get(name))])


def _shortlist(scores: dict[str, Any]) -> str:
    return f", shortlist {scores['shortlist']}" if "shortlist" in scores else ""


def _cut_rows(scores: dict[str, Any]) -> list[tuple[str, str]]:
    if not scores["cut"]:
        return []
    reason = f"of more than {scores['max_tokens']:,} tokens per side, truncated"
    return [("cut", f"{scores['cut']:,} pairs {reason}")]
