"""Translator: order, empty lines, n-best lists, truncation, and the message for each invalid argument."""

from __future__ import annotations

import concurrent.futures
import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, random_model, train_pairs

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.search.decoding_loop import Hypotheses
from t2t_repro.inference.translator import Translator
from t2t_repro.parsing.parser import Parser
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.training import parallel

pytestmark = pytest.mark.numeric

LIMIT = 40  # tokens of a source
TEXTS = ["3 red cats and 4 old dogs", "12", "a word it never saw: Straßenbahn", "old dogs", "3 red cats"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    """Returns a translator with random weights, whose output is nonsense, and a real vocabulary."""
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    model = random_model(PROBLEM.vocab_size, max_positions=LIMIT, beam_size=3)
    return Translator(model, Vocabulary(path), model.hparams)


def test_order_is_kept(translator):
    """Sentences are batched by length and returned in the order of the input."""
    alone = [translator.translate([text])[0] for text in TEXTS]
    assert len(set(alone)) == len(TEXTS)
    assert translator.translate(TEXTS) == alone
    assert translator.translate(TEXTS[::-1]) == alone[::-1]


def test_several_batches(translator, monkeypatch):
    few = translator.translate(TEXTS)
    monkeypatch.setattr("t2t_repro.inference.batch_decoder.BATCH_TOKENS", 40)
    assert translator.translate(TEXTS * 3) == few * 3


def test_empty_line_gives_an_empty_line(translator):
    assert translator.translate(["", TEXTS[0], "", ""]) == ["", translator.translate([TEXTS[0]])[0], "", ""]
    assert translator.n_best(["", "12"], 2)[0] == [("", 0.0)]


def test_white_space_alone_gives_an_empty_line(translator):
    """Training drops such pairs, so the model would invent words."""
    spaces = [" ", "\t \t", "\r", "\u00a0", "\u3000 "]
    assert translator.n_best([*spaces, "12"], 2)[:-1] == [[("", 0.0)]] * len(spaces)


def test_empty_input(translator):
    assert translator.translate([]) == []
    assert translator.score([]) == []


def test_n_best(translator):
    for n in (1, 2, 3):
        for text, best in zip(TEXTS, translator.n_best(TEXTS, n), strict=True):
            assert 1 <= len(best) <= n and len({text.strip() for text, _ in best}) == len(best)
            scores = [score for _, score in best]
            assert scores == sorted(scores, reverse=True) and scores[0] < 0
            assert best[0][0] == translator.translate([text])[0]


def test_beam_is_at_least_n(translator):
    """The beam size of the run is 3."""
    assert translator.n_best(TEXTS[:1], 8) == translator.n_best(TEXTS[:1], 8, beam_size=8)
    assert translator.n_best(TEXTS[:1], 2) == translator.n_best(TEXTS[:1], 2, beam_size=3)


def test_n_best_differ_in_more_than_space(translator, monkeypatch):
    """The beam holds "12", " 12" and "12" as other subwords, best score first, and two other texts."""
    texts = [" 12", "12", "13", "12 ", "1 2"]
    found = Hypotheses(tf.ones([1, 5, 1], tf.int32), -tf.range(1.0, 6.0)[None])
    monkeypatch.setattr(translator, "search", lambda *_: found)
    monkeypatch.setattr(translator.vocabulary, "decode", lambda ids: texts[: len(ids)])
    assert translator.n_best(["12"], 5) == [[(" 12", -1.0), ("13", -3.0), ("1 2", -5.0)]]
    assert translator.n_best(["12"], 2, beam_size=5) == [[(" 12", -1.0), ("13", -3.0)]]


def test_explicit_beam_and_alpha(translator):
    """Arguments replace the defaults of the run. With alpha 0 a score is a log-probability: the shorter the
    likelier."""
    (shorter,), (longer,) = (translator.n_best(["3 red cats"], 5, beam_size=5, alpha=alpha) for alpha in (0.0, 3.0))
    assert np.mean([score for _, score in shorter]) < np.mean([score for _, score in longer])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1, "beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"n": 3, "beam_size": 2}, "n_best must be at least 1 and at most the beam size 2, got 3"),
        ({"n": 0}, "n_best must be at least 1, got 0"),
        ({"n": 1, "beam_size": 2**32 + 1}, "beam_size must be at most 2,147,483,647, got 4,294,967,297"),
        ({"n": 2**31}, "n_best must be at most 2,147,483,647, got 2,147,483,648"),
        (
            {"n": 10**6},
            "a beam of 1,000,000 needs .* GiB for a text of one token.* lower the beam .*",
        ),
        ({"n": 1, "min_length": LIMIT + 1}, f"min_length must be at most {LIMIT}, got {LIMIT + 1}"),
        ({"n": 1, "min_length": 2**32}, f"min_length must be at most {LIMIT}, got 4,294,967,296"),
        ({"n": 1, "alpha": -1.0}, "alpha must be at least 0 and finite, got -1.0"),
        ({"n": 1, "alpha": float("nan")}, "alpha must be at least 0 and finite, got nan"),
        ({"n": 1, "alpha": float("inf")}, "alpha must be at least 0 and finite, got inf"),
    ],
)
def test_wrong_arguments(translator, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translator.n_best(TEXTS, **arguments)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model, value: model.n_best(TEXTS, value), "n_best"),
        (lambda model, value: model.translate(TEXTS, beam_size=value), "beam_size"),
        (lambda model, value: model.translate(TEXTS, min_length=value), "min_length"),
        (lambda model, value: model.sample(TEXTS, value), "n"),
        (lambda model, value: model.sample(TEXTS, top_k=value), "top_k"),
        (lambda model, value: model.sample(TEXTS, seed=value), "seed"),
        (lambda _, value: Translator.from_run("run", average_checkpoints=value), "average_checkpoints"),
    ],
)
@pytest.mark.parametrize("value", [2.0, 1.5, "2"])
def test_other_numbers_are_not_integers(translator, call, name, value):
    with pytest.raises(TypeError, match=f"^{name} must be of type int, got {value!r}$"):
        call(translator, value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.translate(TEXTS, alpha="0.6"), "alpha must be a number, got '0.6'"),
        (lambda model: model.sample(TEXTS, temperature="1"), "temperature must be a number, got '1'"),
        (lambda model: model.translate(None), "texts must be a list of strings. Received: None; give a list"),
        (
            lambda model: model.translate(TEXTS, prefixes=3),
            "prefixes must be a list of strings. Received: 3; give a list",
        ),
        (lambda model: model.score(None), "pairs must be a list of strings. Received: None; give a list"),
    ],
)
def test_other_types_are_named(translator, call, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        call(translator)


def test_item_without_a_length_is_not_a_pair(translator):
    with pytest.raises(ValueError, match="^pair 1 must be a source and a target. Received: None; give "):
        translator.score([None])


def test_integers_of_numpy_are_integers(translator):
    assert translator.n_best(TEXTS, np.int64(2), beam_size=np.int32(2)) == translator.n_best(TEXTS, 2, beam_size=2)


def test_long_text_is_truncated_and_reported(translator):
    said: list[tuple[int, str]] = []
    long = "3 red cats and " * 30
    (ids,) = translator.vocabulary.encode([long])
    first, cut = translator.n_best(["old dogs", long], 1, report=lambda *each: said.append(each))
    assert said == [(1, f"has {len(ids)} tokens; the first {LIMIT - 1} are translated")]
    assert first[0][0] == translator.translate(["old dogs"])[0]
    h, source_BM = translator.hparams, tf.constant([[*ids[: LIMIT - 1], 1]])
    found = translator.search(source_BM, h.beam_size, h.alpha, h.extra_length)
    assert translator.vocabulary.decode(found.ids[:, 0].numpy().tolist()) == [cut[0][0]]


def test_long_text_is_logged_where_nobody_else_reports_it(translator, capsys):
    long = "3 red cats and " * 30
    (ids,) = translator.vocabulary.encode([long])
    line = f"the text {long[:40] + '...'!r} has {len(ids)} tokens; the first {LIMIT - 1} are translated\n"
    translator.translate(["old dogs", long])
    assert capsys.readouterr().err == line
    translator.sample([long])
    assert capsys.readouterr().err == line


def test_score_is_the_sum_of_log_probabilities(translator):
    """Compares with the model itself, one pair at a time. The EOS of the target counts."""
    pairs = [*train_pairs()][:3] + [("old dogs", "")]
    for (source, target), score in zip(pairs, translator.score(pairs), strict=True):
        (source_ids, target_ids) = translator.vocabulary.encode([source, target])
        # one extra token, as Keras warns about a softmax over one; previous positions are not affected
        inputs = {"inputs": tf.constant([source_ids]), "targets": tf.constant([[*target_ids, 1]])}
        log_p_LV = tf.nn.log_softmax(translator.model(inputs))[0].numpy()
        expected = sum(log_p_LV[place, token] for place, token in enumerate(target_ids))
        assert score == pytest.approx(expected, rel=1e-4)


def test_long_pairs_are_reported_and_not_scored(translator):
    """A side of half a million tokens would take a terabyte for one matrix of attention weights."""
    said: list[tuple[int, str]] = []
    short, long = ("old dogs", "alte Hunde"), "3 red cats and " * 50_000
    pairs = [short, (long, "drei"), ("3", long), short]
    tokens = translator.score_tokens(pairs, report=lambda *each: said.append(each))
    counts = [len(ids) for ids in translator.vocabulary.encode([long, long])]
    assert said == [
        (number, f"has {count:,} tokens per side; at most {LIMIT} are scored")
        for number, count in enumerate(counts, start=1)
    ]
    assert tokens[1] == tokens[2] == [] and [piece for piece, _ in tokens[3]][-1] == "</s>"
    alone = translator.score([short])[0]
    assert translator.score(pairs) == pytest.approx([alone, -math.inf, -math.inf, alone])
    assert translator.score([(long, "")]) == [-math.inf]


# Prefixes, minimum length, sampling and scoring.


def test_translation_starts_with_its_prefix(translator):
    prefixes = ["3 rote", "", "ein Wort", "", "3"]
    found = translator.n_best(TEXTS, 2, prefixes=prefixes)
    free = translator.n_best(TEXTS, 2)
    for prefix, hypotheses, others in zip(prefixes, found, free, strict=True):
        assert all(text.startswith(prefix) for text, _ in hypotheses)
        assert prefix or hypotheses == others
    assert translator.translate(TEXTS, prefixes=prefixes) == [best[0][0] for best in found]
    with pytest.raises(ValueError, match="there must be a prefix for each text: 1 for 5"):
        translator.translate(TEXTS, prefixes=["3"])


def test_translation_has_its_minimum_length(translator):
    free, longer = translator.translate(TEXTS), translator.translate(TEXTS, min_length=30)
    lengths = [len(ids) - 1 for ids in translator.vocabulary.encode(free)]
    assert min(lengths) < 30  # otherwise the next assertion would show nothing
    source_BM = tf.constant(translator.vocabulary.encode(["12"]))
    ids = translator.search(source_BM, 1, 0.6, 4, min_length=30).ids.numpy()[0, 0].tolist()
    assert ids.index(1) >= 30
    assert translator.translate(["12"], beam_size=1, min_length=30) == translator.vocabulary.decode([ids])
    assert longer != free
    with pytest.raises(ValueError, match="min_length must be at least 0, got -1"):
        translator.translate(TEXTS, min_length=-1)


def test_samples_are_independent_of_the_batch(translator, monkeypatch):
    several = translator.sample(TEXTS, 3, temperature=0.8, top_k=20, seed=5)
    assert [len(samples) for samples in several] == [3] * len(TEXTS)
    assert len({text for samples in several for text, _ in samples}) > len(TEXTS)
    (alone,) = translator.sample(TEXTS[3:4], 3, temperature=0.8, top_k=20, seed=5)
    one_each = translator.sample(TEXTS[::-1], 1, temperature=0.8, top_k=20, seed=5)[::-1]
    first = [samples[0] for samples in several]
    for (text, log_p), other in zip(alone + [samples[0] for samples in one_each], several[3] + first, strict=True):
        assert text == other[0] and log_p == pytest.approx(
            other[1], rel=1e-4
        )  # rounding differs between sizes of products
    assert translator.sample(TEXTS, 3, temperature=0.8, top_k=20, seed=6) != several
    monkeypatch.setattr("t2t_repro.inference.batch_decoder.BATCH_TOKENS", 40)
    in_parts = translator.sample(TEXTS, 3, temperature=0.8, top_k=20, seed=5)
    assert [[text for text, _ in samples] for samples in in_parts] == [[text for text, _ in some] for some in several]


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 5e-324])
def test_temperature_near_zero_is_greedy(translator, temperature):
    """The smallest float32 is 1e-45."""
    sampled = translator.sample(TEXTS, temperature=temperature)
    assert [text for ((text, _),) in sampled] == [text for ((text, _),) in translator.sample(TEXTS, top_k=1)]


def test_top_1_sampling_is_greedy(translator):
    sampled = translator.sample(TEXTS, top_k=1)
    best = translator.n_best(TEXTS, 1, beam_size=1, alpha=0.0)
    assert [samples[0][0] for samples in sampled] == [hypotheses[0][0] for hypotheses in best]
    np.testing.assert_allclose([s[0][1] for s in sampled], [h[0][1] for h in best], rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be above 0 and finite, got nan"),
        (
            {"n": 10**6},
            "a beam of 1,000,000 needs .* GiB for a text of one token.* lower the beam .*",
        ),
        ({"top_k": -1}, "top_k must be at least 0, got -1"),
        ({"top_k": 2**32 + 1}, "top_k must be at most 2,147,483,647, got 4,294,967,297"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_arguments_of_sampling(translator, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translator.sample(TEXTS, **arguments)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model: model.translate("12"), "texts"),
        (lambda model: model.n_best("12", 1), "texts"),
        (lambda model: model.n_best(["a", "b"], 1, prefixes="12"), "prefixes"),
        (lambda model: model.sample("12"), "texts"),
        (lambda model: model.score("12"), "pairs"),
        (lambda model: model.score_tokens("12"), "pairs"),
        (lambda model: model.vocabulary.encode("12"), "texts"),
        (lambda model: Parser(model).n_best("12", 1), "texts"),
        (lambda model: Parser(model).parse("12"), "sentences"),
        (lambda model: Parser(model).parse([["We"], "12"]), "sentence 2"),
    ],
)
def test_single_string_is_refused(translator, call, name):
    """Python would iterate over its characters."""
    message = f"^{name} must be a list of strings. Received: one string, '12'; wrap it in a list"
    with pytest.raises(ValueError, match=message):
        call(translator)


def test_string_of_two_characters_is_not_a_pair(translator):
    with pytest.raises(ValueError, match="^pair 2 must be a source and a target. Received: '12'; give "):
        translator.score([("a", "b"), "12"])


def test_scores_of_tokens(translator):
    pairs = [("3 red cats", "3 rote Katzen"), ("old dogs", "")]
    tokens, empty = translator.score_tokens(pairs)
    assert "".join(piece for piece, _ in tokens) == "3▁rote▁Katzen</s>" and [piece for piece, _ in empty] == ["</s>"]
    assert translator.score(pairs) == [pytest.approx(sum(p for _, p in each)) for each in (tokens, empty)]
    assert all(log_p < 0 for _, log_p in tokens + empty)


def test_every_core_has_a_batch(translator, monkeypatch):
    """Even a few sentences are split among the cores, with the same result."""
    best, pairs = translator.n_best(TEXTS, 2), [(text, "12 große Katzen") for text in TEXTS]
    scores, batches = translator.score(pairs), []

    def search(source_BM: tf.Tensor, *arguments: tf.Tensor) -> Hypotheses:
        batches.append(len(source_BM))
        return Translator.search(translator, source_BM, *arguments)

    monkeypatch.setattr(translator, "search", search)
    monkeypatch.setattr(parallel, "num_parallel_batches", lambda: 3)
    shared = translator.n_best(TEXTS, 2)
    assert len(batches) > 1 and sum(batches) == len(TEXTS)
    assert [[text for text, _ in found] for found in shared] == [[text for text, _ in found] for found in best]
    np.testing.assert_allclose(translator.score(pairs), scores, rtol=1e-5)


def test_threads_get_the_same_results(translator):
    """Uses a new translator, so that the threads trace its graphs too."""
    shared = Translator(translator.model, translator.vocabulary, translator.hparams)
    pairs = [(text, "12 große Katzen") for text in TEXTS]
    works = [
        lambda: shared.n_best(TEXTS, 2),
        lambda: shared.score(pairs),
        lambda: shared.n_best(TEXTS[::-1], 2)[::-1],
        lambda: shared.score(pairs),
        lambda: [shared.n_best([text], 2)[0] for text in TEXTS],
    ]
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        every = [future.result() for future in [pool.submit(work) for work in works * 2]]
    best, scores = translator.n_best(TEXTS, 2), translator.score(pairs)
    for found in every[0::5] + every[2::5] + every[4::5]:
        assert [[text for text, _ in some] for some in found] == [[text for text, _ in some] for some in best]
        log_p, expected = ([score for some in each for _, score in some] for each in (found, best))
        np.testing.assert_allclose(log_p, expected, rtol=1e-4)
    for found in every[1::5] + every[3::5]:
        np.testing.assert_allclose(found, scores, rtol=1e-4)
