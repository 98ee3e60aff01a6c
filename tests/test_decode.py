"""Text in, text out: order, empty lines, n-best lists, over-long text, and what each wrong argument is told."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small import PROBLEM, random_model, train_pairs

from t2t_repro.data.vocabulary import Vocabulary, learn
from t2t_repro.inference.decode import Translator

LIMIT = 40  # tokens of a source
TEXTS = ["3 red cats and 4 old dogs", "12", "a word it never saw: Straßenbahn", "old dogs", "3 red cats"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    """Random weights, so that its text is nonsense, and a real vocabulary."""
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    model = random_model(PROBLEM.vocab_size, max_positions=LIMIT, beam_size=3)
    return Translator(model, Vocabulary(path), model.hparams)


def test_order_is_kept(translator):
    """Sentences are batched by length, and come back in the places they had."""
    alone = [translator.translate([text])[0] for text in TEXTS]
    assert len(set(alone)) == len(TEXTS)
    assert translator.translate(TEXTS) == alone
    assert translator.translate(TEXTS[::-1]) == alone[::-1]


def test_more_text_than_a_batch_holds(translator, monkeypatch):
    few = translator.translate(TEXTS)
    monkeypatch.setattr("t2t_repro.inference.decode.BATCH_TOKENS", 40)
    assert translator.translate(TEXTS * 3) == few * 3


def test_an_empty_line_gives_an_empty_line(translator):
    assert translator.translate(["", TEXTS[0], "", ""]) == ["", translator.translate([TEXTS[0]])[0], "", ""]
    assert translator.n_best(["", "12"], 2)[0] == [("", 0.0)]


def test_nothing_gives_nothing(translator):
    assert translator.translate([]) == []
    assert translator.score([]) == []


def test_the_n_best(translator):
    for n in (1, 2, 3):
        for text, best in zip(TEXTS, translator.n_best(TEXTS, n), strict=True):
            assert len(best) == n
            scores = [score for _, score in best]
            assert scores == sorted(scores, reverse=True) and scores[0] < 0
            assert best[0][0] == translator.translate([text])[0]


def test_a_beam_and_alpha_of_ones_own(translator):
    """Given, they replace those of the run: with alpha 0 a score is a log-probability, the shorter the likelier."""
    (shorter,), (longer,) = (translator.n_best(["3 red cats"], 5, beam_size=5, alpha=alpha) for alpha in (0.0, 3.0))
    assert (len(shorter), len(longer)) == (5, 5)
    assert np.mean([score for _, score in shorter]) < np.mean([score for _, score in longer])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1, "beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"n": 4}, "n_best must be at least 1 and at most the beam size 3, got 4"),
        ({"n": 3, "beam_size": 2}, "n_best must be at least 1 and at most the beam size 2, got 3"),
        ({"n": 0}, "n_best must be at least 1 and at most the beam size 3, got 0"),
        ({"n": 1, "alpha": -1.0}, "alpha must be at least 0, got -1.0"),
        ({"n": 1, "alpha": float("nan")}, "alpha must be at least 0, got nan"),
    ],
)
def test_wrong_arguments(translator, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translator.n_best(TEXTS, **arguments)


def test_text_that_is_too_long_is_cut_and_said(translator):
    said: list[str] = []
    long = "3 red cats and " * 30
    (ids,) = translator.vocabulary.encode([long])
    first, cut = translator.n_best(["old dogs", long], 1, report=said.append)
    assert said == [f"line 2 has {len(ids)} tokens; the first {LIMIT - 1} are translated"]
    assert first[0][0] == translator.translate(["old dogs"])[0]
    h, source_BM = translator.hparams, tf.constant([[*ids[: LIMIT - 1], 1]])
    found = translator.search(source_BM, h.beam_size, h.alpha, h.extra_length)
    assert translator.vocabulary.decode(found.ids[:, 0].numpy().tolist()) == [cut[0][0]]


def test_a_score_is_the_sum_of_log_probabilities(translator):
    """One pair at a time, by the model itself; the end of the target counts."""
    pairs = [*train_pairs()][:3] + [("old dogs", "")]
    for (source, target), score in zip(pairs, translator.score(pairs), strict=True):
        (source_ids, target_ids) = translator.vocabulary.encode([source, target])
        # one more token than there is, for Keras warns about a softmax over one; it changes nothing before it
        inputs = {"inputs": tf.constant([source_ids]), "targets": tf.constant([[*target_ids, 1]])}
        log_p_LV = tf.nn.log_softmax(translator.model(inputs))[0].numpy()
        expected = sum(log_p_LV[place, token] for place, token in enumerate(target_ids))
        assert score == pytest.approx(expected, rel=1e-4)
