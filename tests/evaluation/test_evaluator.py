"""A run's scores against the same numbers found by other means."""

from __future__ import annotations

import dataclasses
import math
import shutil

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
    """The scores of a run on its test split, and the texts that went into them."""
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


def test_bleu_and_chrf_are_sacrebleus(scored):
    scores, seen = scored
    reference_of = dict(pairs_of_test())
    references = [[reference_of[source] for source in seen["sources"]]]
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(seen["translations"], references).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(seen["translations"], references).score)
    assert "case:mixed" in scores["bleu_signature"] and "tok:13a" in scores["bleu_signature"]
    assert f"version:{sacrebleu.__version__}" in scores["bleu_signature"]
    assert "paper_bleu" not in scores  # the problem says no language


def test_the_papers_bleu_and_the_interval(trained, data):
    """The paper's BLEU is had where the target is a language that Moses' tokenizer knows."""
    problem = dataclasses.replace(trained.problem, target_language="de")
    run = dataclasses.replace(trained, problem=problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "open", lambda directory: run)
        patch.setattr(Translator, "translate", lambda self, texts, *_: [dict(pairs_of_test())[text] for text in texts])
        scores = evaluate(trained.directory)
    assert scores["paper_bleu"] == pytest.approx(100) and "tok:moses-de-compounds" in scores["paper_bleu_signature"]
    assert scores["bleu_interval"] == pytest.approx(0)  # however it is resampled, all is right
    assert "paper's BLEU" in table(scores)


def test_perplexity_is_of_the_mean_log_probability(scored, trained):
    """exp of the negative log-probability a token, ends included, by the scores that a translator gives."""
    pairs = list(pairs_of_test())
    tokens = sum(map(len, Vocabulary(trained.vocabulary).encode([target for _, target in pairs])))
    log_p = sum(Translator.from_run(trained.directory).score(pairs))
    scores, _ = scored
    assert scores["perplexity"] == pytest.approx(math.exp(-log_p / tokens), rel=1e-4)
    assert math.isfinite(scores["loss"]) and scores["loss"] > math.log(scores["perplexity"])
    assert 0 <= scores["accuracy"] <= 1


def test_the_table(scored):
    scores, _ = scored
    lines = table(scores).split("\n")
    assert lines[0] == "problem     animals, test (8 sentences)"
    assert f"BLEU        {scores['bleu']:.2f} +- {scores['bleu_interval']:.2f}  ({scores['bleu_signature']})" in lines
    assert "search      beam 2, alpha 0.5" in lines
    assert "weights     ckpt-8" in lines
    assert "precision   float32" in lines
    assert "precision   float32, decoder in int8" in table(scores | {"int8": True}).split("\n")


def test_sentences_that_are_too_long_are_cut_and_counted(trained, tmp_path):
    """The same weights in a run that takes 20 tokens per side: the loss is of these, and the table reports it."""
    short = dataclasses.replace(trained.hparams, max_positions=20)
    run = dataclasses.replace(trained, directory=str(tmp_path / "RUN"), hparams=short).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, run.checkpoints, dirs_exist_ok=True)
    translator = Translator.from_run(run.directory)
    lengths = [[len(ids) for ids in translator.vocabulary.encode(pair)] for pair in pairs_of_test()]
    cut = sum(max(each) > 20 for each in lengths)
    assert 0 < cut < 8  # so that it is about something
    scores = evaluate(run.directory)
    assert (scores["cut"], scores["sentences"]) == (cut, 8)
    row = f"cut         {cut} pairs of more than 20 tokens per side, of which the first are translated and scored"
    assert row in table(scores).split("\n")
    whole = evaluate(trained.directory)
    assert whole["cut"] == 0 and "cut" not in table(whole) and whole["loss"] != scores["loss"]


def test_a_split_that_there_is_not(trained):
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        evaluate(trained.directory, split="dev")


def test_data_that_is_not_there(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no prepared data"):
        evaluate(trained.directory, data_dir=str(tmp_path))


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory"):
        evaluate(str(tmp_path / "RUN"))


def test_what_was_trained_on_is_not_what_is_tested():
    assert not set(train_pairs()) & set(pairs_of_test())
