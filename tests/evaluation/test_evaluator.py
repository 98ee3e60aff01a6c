"""Scores of a run against independently computed numbers."""

from __future__ import annotations

import dataclasses
import math
import shutil
from types import SimpleNamespace

import pytest
import sacrebleu
from helpers.tiny_model import test_pairs as pairs_of_test
from helpers.tiny_model import train_pairs

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.evaluation.evaluator import evaluate, table
from t2t_repro.inference.translator import Translator
from t2t_repro.run import Run


@pytest.fixture(scope="module")
def scored(trained):
    """Returns the scores of a run on its test split, with the texts."""
    seen: dict[str, list[str]] = {}
    translate = Translator.translate

    def recorded(self, texts, *arguments):
        seen["sources"], seen["translations"] = list(texts), translate(self, texts, *arguments)
        return seen["translations"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", recorded)
        scores = evaluate(trained.directory, beam_size=2, alpha=0.5)
    return scores, seen


def test_every_sentence_is_scored(scored):
    scores, seen = scored
    assert sorted(seen["sources"]) == sorted(source for source, _ in pairs_of_test())
    assert scores["sentences"] == 8


def test_bleu_and_chrf_equal_those_of_sacrebleu(scored):
    scores, seen = scored
    reference_of = dict(pairs_of_test())
    references = [[reference_of[source] for source in seen["sources"]]]
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(seen["translations"], references).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(seen["translations"], references).score)
    assert "case:mixed" in scores["bleu_signature"] and "tok:13a" in scores["bleu_signature"]
    assert f"version:{sacrebleu.__version__}" in scores["bleu_signature"]
    assert "paper_bleu" not in scores  # the problem has no language


@pytest.mark.parametrize(("written", "ratio"), [("a b c d e f", 0.75), ("a b c d e f g h i j", 1.25), ("", 0)])
def test_length_is_relative_to_the_references(trained, written, ratio):
    translator = SimpleNamespace(translate=lambda texts, *_: [written for _ in texts])
    scores = trained.problem.task.scores(translator, [("x", "a b c d e f g h")] * 3, "", None, None)
    assert scores["length_ratio"] == ratio
    assert scores["brevity_penalty"] == pytest.approx(min(1, math.exp(1 - 1 / ratio)) if ratio else 0)
    rows = dict(trained.problem.task.score_rows(scores))
    assert rows["length"] == f"{ratio:.3f} of the references (brevity penalty {scores['brevity_penalty']:.3f})"


def test_bleu_of_the_paper_and_interval(trained, data):
    """The paper's BLEU requires a target language of Moses' tokenizer."""
    problem = dataclasses.replace(trained.problem, target_language="de")
    run = dataclasses.replace(trained, problem=problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "open", lambda directory: run)
        patch.setattr(Translator, "translate", lambda self, texts, *_: [dict(pairs_of_test())[text] for text in texts])
        scores = evaluate(trained.directory)
    assert scores["paper_bleu"] == pytest.approx(100) and "tok:moses-de-compounds" in scores["paper_bleu_signature"]
    assert scores["multi30k_bleu"] == pytest.approx(100) and "case:lc" in scores["multi30k_bleu_signature"]
    assert scores["bleu_interval"] == pytest.approx(0)  # all sentences are correct, so every resample scores the same
    assert "paper's BLEU" in table(scores) and "\nlower case    100.00  (" in table(scores)


def test_perplexity_is_that_of_the_mean_log_probability(scored, trained):
    """Equals exp of the negative log-probability per token, EOS included, from the scores of a translator."""
    pairs = list(pairs_of_test())
    tokens = sum(map(len, Vocabulary(trained.vocabulary).encode([target for _, target in pairs])))
    log_p = sum(Translator.from_run(trained.directory).score(pairs))
    scores, _ = scored
    assert scores["perplexity"] == pytest.approx(math.exp(-log_p / tokens), rel=1e-4)
    assert math.isfinite(scores["loss"]) and scores["loss"] > math.log(scores["perplexity"])
    assert 0 <= scores["accuracy"] <= 1


def test_table(scored):
    scores, _ = scored
    lines = table(scores).split("\n")
    assert lines[0] == "problem     animals, test (8 sentences)"
    assert f"BLEU        {scores['bleu']:.2f} +- {scores['bleu_interval']:.2f}  ({scores['bleu_signature']})" in lines
    assert "search      beam 2, alpha 0.5" in lines
    assert "weights     ckpt-8" in lines
    assert "precision   float32" in lines
    assert "precision   float32, int8" in table(scores | {"int8": True}).split("\n")


def test_long_sentences_are_truncated_and_counted(trained, tmp_path):
    """Loads the same weights with a limit of 20 tokens per side: the loss is that of truncated pairs, and the table
    says so."""
    short = dataclasses.replace(trained.hparams, max_positions=20)
    run = dataclasses.replace(trained, directory=str(tmp_path / "RUN"), hparams=short).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, run.checkpoints, dirs_exist_ok=True)
    translator = Translator.from_run(run.directory)
    lengths = [[len(ids) for ids in translator.vocabulary.encode(pair)] for pair in pairs_of_test()]
    cut = sum(max(each) > 20 for each in lengths)
    assert 0 < cut < 8  # otherwise the test would show nothing
    scores = evaluate(run.directory)
    assert (scores["cut"], scores["sentences"]) == (cut, 8)
    row = f"cut         {cut} pairs of more than 20 tokens per side, truncated"
    assert row in table(scores).split("\n")
    whole = evaluate(trained.directory)
    assert whole["cut"] == 0 and "cut" not in table(whole) and whole["loss"] != scores["loss"]


def test_missing_split(trained):
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        evaluate(trained.directory, split="dev")


def test_missing_data(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no prepared data"):
        evaluate(trained.directory, data_dir=str(tmp_path))


def test_missing_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        evaluate(str(tmp_path / "RUN"))


def test_training_and_test_splits_are_disjoint():
    assert not set(train_pairs()) & set(pairs_of_test())
