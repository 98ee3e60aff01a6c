"""`evaluate`: a run's scores on a split, and the table that shows them."""

from __future__ import annotations

import os
from typing import Any

import sacrebleu
import tensorflow as tf

from t2t_repro.data import pipeline
from t2t_repro.data.prepare import Dataset
from t2t_repro.evaluation import moses
from t2t_repro.evaluation.bleu import paper as paper_bleu
from t2t_repro.inference.decode import Translator
from t2t_repro.run import Run
from t2t_repro.training.checkpoints import paths
from t2t_repro.training.progress import safe_exp
from t2t_repro.training.update import make_evaluator

EVALUATION_TOKENS = 2_048  # positions a side of a batch whose logits are held whole
RESAMPLED = 1_000  # times, for the interval of BLEU


def evaluate(
    output_dir: str,
    split: str = "test",
    average_checkpoints: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Scores the run in `output_dir` on a split of its prepared data: BLEU and chrF of its translations against the
    references as they were given, and loss, perplexity and accuracy per token of the vocabulary.

    The data is looked for where the run was trained from, or in `data_dir`. Raises FileNotFoundError where it is not
    there, and ValueError where the problem has no such split.
    """
    run = Run.open(output_dir)
    dataset = Dataset.open(os.path.join(data_dir or run.data_dir, run.problem.name))
    shards = dataset.shards(split)
    translator = Translator.from_run(output_dir, average_checkpoints)
    sources, references = _texts(shards, translator)
    translations = translator.translate(sources, beam_size, alpha)
    evaluator = make_evaluator(translator.model, run.hparams.label_smoothing)
    batches = pipeline.evaluation_batches(shards, EVALUATION_TOKENS)
    sums = tf.add_n([evaluator(batch["inputs"], batch["targets"]) for batch in batches])
    smoothed, plain, correct, tokens = (float(x) for x in sums)
    weights = [os.path.basename(path) for path in paths(run)[-average_checkpoints:]]
    return {
        "problem": run.problem.name,
        "hparams": run.hparams.name,
        "split": split,
        "sentences": len(sources),
        "checkpoints": weights,
        "step": int(weights[-1].rpartition("-")[2]),
        "beam_size": run.hparams.beam_size if beam_size is None else beam_size,
        "alpha": run.hparams.alpha if alpha is None else alpha,
        **_bleu(translations, references, run.problem.target_language),
        "loss": smoothed / tokens,
        "perplexity": safe_exp(plain / tokens),
        "accuracy": correct / tokens,
    }


def _bleu(translations: list[str], references: list[str], language: str) -> dict[str, Any]:
    """BLEU with the 95% interval that resampling the sentences gives (Koehn, 2004), chrF, and for a language that it
    knows the paper's own BLEU."""
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    found = bleu.corpus_score(translations, [references])
    resampled = sacrebleu.BLEU().corpus_score(translations, [references], n_bootstrap=RESAMPLED)
    scores: dict[str, Any] = {
        "bleu": found.score,
        "bleu_signature": str(bleu.get_signature()),
        "bleu_interval": resampled._ci,
        "chrf": chrf.corpus_score(translations, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }
    if language in moses.LANGUAGES:
        paper = paper_bleu(translations, references, language)
        scores |= {"paper_bleu": paper.bleu, "paper_bleu_signature": paper.signature}
    return scores


def table(scores: dict[str, Any]) -> str:
    """The scores as lines of text."""
    rows = [
        ("problem", f"{scores['problem']}, {scores['split']} ({scores['sentences']:,} sentences)"),
        ("set", scores["hparams"]),
        ("weights", f"{' + '.join(scores['checkpoints'])}"),
        ("search", f"beam {scores['beam_size']}, alpha {scores['alpha']}"),
        ("BLEU", f"{scores['bleu']:.2f} +- {scores['bleu_interval']:.2f}  ({scores['bleu_signature']})"),
        ("chrF", f"{scores['chrf']:.2f}  ({scores['chrf_signature']})"),
        ("loss", f"{scores['loss']:.4f} nats a token, label-smoothed"),
        ("perplexity", f"{scores['perplexity']:.3f} a token of the vocabulary"),
        ("accuracy", f"{scores['accuracy']:.2%} of tokens, the reference before them given"),
    ]
    if "paper_bleu" in scores:
        rows.insert(5, ("paper's BLEU", f"{scores['paper_bleu']:.2f}  ({scores['paper_bleu_signature']})"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _texts(shards: list[str], translator: Translator) -> tuple[list[str], list[str]]:
    """The split's text itself: the vocabulary is reversible, so the shards hold it."""
    sides: dict[str, list[str]] = {"inputs": [], "targets": []}
    for batch in pipeline.evaluation_batches(shards, EVALUATION_TOKENS):
        for side, texts in sides.items():
            texts.extend(translator.vocabulary.decode(batch[side].numpy().tolist()))
    return sides["inputs"], sides["targets"]
