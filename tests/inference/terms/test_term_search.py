"""Search with terms: every required term appears, lines without terms are unchanged, and no place counts twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import random_model, train_pairs

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.batches import padded
from t2t_repro.inference.ensemble import FixedEnsemble
from t2t_repro.inference.search.beam_search import length_penalty
from t2t_repro.inference.search.decoding_loop import NEG_INF
from t2t_repro.inference.terms.progress import Progress, TermVocabulary, advanced
from t2t_repro.inference.translator import Translator
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.text.glossary import MOST_TERMS, Glossary, Required, missing, spelled
from t2t_repro.text.token_ids import EOS, NUM_FIXED, PAD

TEXTS = ["3 red cats and 4 old dogs", "12", "", "old dogs, OLD DOGS", "a word it never saw: Straßenbahn", "cows", "9"]
TERMS = {"cats": ["Katzen", "alte Kater"], "dogs": "Hunde", "old": "älter", "red": "(rot)", "4": None, "cows": "牛"}
GLOSSARY = Glossary(TERMS)
WITHOUT = [number for number, text in enumerate(TEXTS) if not GLOSSARY.required(text)]


def learned(folder, kind: str) -> Vocabulary:
    path = str(folder / f"{kind}.model")
    learn_vocabulary(
        [f"{side}{sign}" for pair in train_pairs() for side in pair for sign in (".", "")], path, kind, 360
    )
    return Vocabulary(path)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    return learned(tmp_path_factory.mktemp("vocabulary"), "bpe")


@pytest.fixture(scope="module", params=["bpe", "word_piece"])
def either(tmp_path_factory, request) -> Vocabulary:
    return learned(tmp_path_factory.mktemp("vocabulary"), request.param)


def translator(vocabulary: Vocabulary, dtype: str = "float32", int8: bool = False, seeds=(1,), **hparams) -> Translator:
    models = [random_model(vocabulary.size, seed, dtype, beam_size=3, **hparams) for seed in seeds]
    return Translator(FixedEnsemble(models, int8), vocabulary, models[0].hparams)


@pytest.fixture(scope="module")
def plain(vocabulary) -> Translator:
    return translator(vocabulary)


def all_appear(texts, found) -> None:
    for text, hypotheses in zip(texts, found, strict=True):
        for translation, score in hypotheses:
            assert not missing(translation, GLOSSARY.required(text)), (text, translation)
            assert score > NEG_INF / 1e6


OPTIONS = [
    {"n": 1},
    {"n": 1, "beam_size": 1},
    {"n": 3},
    {"n": 2, "beam_size": 8, "alpha": 0.0},
    {"n": 1, "prefixes": ["ab", "x", "", "Hunde", "Katzen", "", "2"], "min_length": 9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_term_appears_and_lines_without_terms_are_the_same_numbers(plain, options):
    """Also when they share a batch with lines that have some."""
    found, without = plain.n_best(TEXTS, glossary=TERMS, **options), plain.n_best(TEXTS, **options)
    all_appear(TEXTS, found)
    assert found[3][0][0].count("Hunde") >= 2
    assert all(found) and max(map(len, found)) == options["n"]
    for translation, prefix in zip(found, options.get("prefixes", ()), strict=False):
        assert translation[0][0].startswith(prefix) or not translation[0][0]
    assert WITHOUT and [found[number] for number in WITHOUT] == [without[number] for number in WITHOUT]


def test_forms_of_several_tokens_are_written_before_the_maximum_length():
    """They score at least as well as the form put into the translation without terms."""
    trained = Translator.from_run(str(Path(__file__).parents[2] / "fixtures" / "run"), precision="float32")
    terms = {"cats": "Stubentiger", "cows": "Rindviecher", "horses": "Rösser"}
    texts = ["12 red cats", "5 cows", "7 big horses"]
    without, found = trained.n_best(texts, 1), trained.n_best(texts, 1, glossary=terms)
    for text, form, [(plain, _)], [(_, score)] in zip(texts, terms.values(), without, found, strict=True):
        pairs = [(text, f"{plain} {form}"), (text, plain.replace(" ", f" {form} ", 1))]
        for tokens in trained.score_tokens(pairs):
            expected = sum(log_p for _, log_p in tokens) / float(length_penalty(len(tokens), trained.hparams.alpha))
            assert score > expected - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5])
def test_texts_with_more_terms_do_not_change_the_others(vocabulary, seed):
    """They need more beams."""
    model, texts = translator(vocabulary, seeds=(seed,), extra_length=12), [TEXTS[n] for n in (0, 3, 5)]
    for width in (1, 2, 3):
        together = model.n_best(texts, 1, width, glossary=TERMS)
        for text, [(translation, score)] in zip(texts, together, strict=True):
            [[(alone, expected)]] = model.n_best([text], 1, width, glossary=TERMS)
            assert translation == alone and score == pytest.approx(expected, rel=1e-5)


def test_translations_do_not_depend_on_other_lines_with_terms():
    """Although the lines with the most terms have the most beams, and lines that are done wait for the others."""
    trained = Translator.from_run(str(Path(__file__).parents[2] / "fixtures" / "run"), precision="float32")
    terms = {"the": "DAS", "a": ["ein", "eine"], "is": "ist", "you": ["du", "Sie"]}
    texts = ["The dog came to the house with you and a cat.", "This is the old station.", "Where are you going?"]
    texts += ["I forgot the number of the room, and a friend knows what the date is.", "Can you see the river?"]
    together = trained.n_best(texts, 1, glossary=terms)
    for text, [(translation, score)] in zip(texts, together, strict=True):
        [[(alone, expected)]] = trained.n_best([text], 1, glossary=terms)
        assert translation == alone and score == pytest.approx(expected, rel=1e-5)


def test_translations_that_have_their_terms_are_kept(plain):
    """Not even their scores change."""
    without = plain.n_best(TEXTS, 1)
    kept = {text: found[0][0].strip() for text, found in zip(TEXTS, without, strict=True) if found[0][0].strip()}
    assert len(kept) > 2 and plain.n_best(TEXTS, 1, glossary=kept) == without


@pytest.mark.numeric
@pytest.mark.slow
@pytest.mark.parametrize("dtype, int8, seeds", [("mixed_bfloat16", False, (1,)), ("float32", True, (1, 2))])
def test_other_precisions_and_ensembles(vocabulary, dtype, int8, seeds):
    other = translator(vocabulary, dtype, int8, seeds)
    found, without = other.n_best(TEXTS, 2, glossary=GLOSSARY), other.n_best(TEXTS, 2)
    all_appear(TEXTS, found)
    assert [found[number] for number in WITHOUT] == [without[number] for number in WITHOUT]


@pytest.mark.numeric
def test_without_terms_it_is_beam_search(plain):
    source_BM = padded(plain.vocabulary.encode([text for text in TEXTS if text]))
    nothing, none = tf.zeros([len(source_BM), 0], tf.int32), tf.constant([""] * len(source_BM))
    for width in (1, 3):
        found = plain.search_with_terms(source_BM, width, 0.6, 4, nothing, 0, none)
        expected = plain.search(source_BM, width, 0.6, 4)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_terms_appear_although_the_maximum_length_has_no_room(vocabulary):
    """The maximum length is raised to what the terms need, and the last tokens are theirs."""
    few = translator(vocabulary, extra_length=0)
    text = " ".join(["red"] * 5 + ["cats"] * 5 + ["dogs"] * 6)
    required = GLOSSARY.required(text)
    assert len(required) == MOST_TERMS
    source_BM = padded(vocabulary.encode(["9", "9"]))
    terms = tf.constant([spelled(required), ""])
    nothing = tf.zeros([2, 0], tf.int32)
    for width in (1, 3, 12):
        found = few.search_with_terms(source_BM, width, 0.6, 0, nothing, 0, terms)
        for row in range(width):
            assert not missing(vocabulary.decode(found.ids[0])[row], required)
        needed = sum(min(map(len, vocabulary.encode([f" {form}" for form in each.forms]))) - 1 for each in required)
        assert (tf.math.count_nonzero(found.ids, axis=2) <= [[needed + 2], [len(source_BM[1])]]).numpy().all()


def test_texts_with_too_many_terms_are_reported(plain):
    reports = []
    found = plain.n_best(["dogs " * 17], 1, glossary=GLOSSARY, report=lambda *each: reports.append(each))
    assert reports == [(0, "has 17 terms of the glossary; the first 16 are required")]
    assert found[0][0][0].count("Hunde") >= 16


def test_terms_that_are_truncated_are_not_required(plain):
    """The model does not see them. A term before the end of what it sees is required."""
    limit = plain.hparams.max_positions
    before, after = "dogs " + "and " * (2 * limit), "and " * (2 * limit) + "dogs"
    found = plain.n_best([before, after], 1, glossary=GLOSSARY, report=lambda *_: None)
    assert "Hunde" in found[0][0][0] and found[1] == plain.n_best([after], 1, report=lambda *_: None)[0]


def test_constraint_takes_no_glossary(vocabulary, plain):
    parser = Translator(plain.ensemble, vocabulary, plain.hparams, ParseConstraint(vocabulary.subwords))
    with pytest.raises(ValueError, match="decoding is constrained to the words of the text: leave out the glossary"):
        parser.n_best(["a"], 1, glossary=GLOSSARY)


# The state of a beam.


def matched(vocabulary: Vocabulary, required: list[Required], sequences: list[list[int]]) -> np.ndarray:
    """Returns the number of terms that are met after each sequence of ids."""
    words = TermVocabulary(vocabulary)
    terms = words.terms(tf.constant([spelled(required)]))
    beams, longest = len(sequences), max(map(len, sequences))
    state = Progress(
        matched=tf.zeros([1, beams, *terms.ids_BKS.shape[1:]], tf.bool),
        met=tf.zeros([1, beams, *terms.shortest_BG.shape[1:]], tf.bool),
        pending=tf.fill([1, beams], -1),
        length=tf.zeros([1, beams], tf.int32),
        after=tf.zeros([1, beams], tf.int32),
    )
    before = tf.fill([1, beams], PAD)
    after_EOS = [[*ids, *[EOS] * (longest + 1 - len(ids))] for ids in sequences]
    step = tf.function(lambda *arguments: advanced(words, terms, *arguments))
    for tokens in np.array(after_EOS, np.int32).T:
        newest = tf.constant(tokens[None])
        state, before = step(state, before, newest), newest
    return np.count_nonzero(state.met.numpy()[0], axis=1)


FORMS = [
    Required("", ("Katze", "Katzen")),
    Required("", ("York",)),
    Required("", ("New York",)),
    Required("", ("New York City",)),
    Required("", ("York",)),
    Required("", ("alte Katze alte Hunde",)),
    Required("", ("hunde",)),
]
WORDS = ["Katze", "Katzen", "Kat", "alte", "Hunde", "New", "York", "City", ",", "Yorks", "hunde"]


def test_terms_of_a_text_are_those_that_its_reader_finds(either):
    """In thousands of texts of these words, as `missing` counts them.

    A form inside the start of a longer one that then ends differently is not counted.
    """
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))).replace(" ,", rng.choice([",", "."])) for _ in range(3000)]
    ids = [each[:-1] for each in either.encode(texts)]
    met = matched(either, FORMS, ids)
    read = np.array([len(FORMS) - len(missing(text, FORMS)) for text in texts])
    assert (met <= read).all(), [(texts[i], met[i], read[i]) for i in np.flatnonzero(met > read)[:3]]
    fewer = np.flatnonzero(met < read)
    assert len(fewer) < 0.02 * len(texts), [(texts[i], met[i], read[i]) for i in fewer[:3]]
    assert len(set(met.tolist())) > 4


def test_terms_never_count_more_often_than_in_the_text(either):
    """For any subwords, such as those that spell a form in the middle of a word."""
    rng = np.random.default_rng(2)
    pieces = sorted(set(itertools.chain.from_iterable(either.encode(["Katze York New Yorks, hunde Katzen"]))))
    pieces = np.array([id for id in pieces if id != EOS] + list(range(NUM_FIXED, NUM_FIXED + 3)))
    ids = [rng.choice(pieces, 10).tolist() for _ in range(3000)]
    required = [Required("", (form,)) for form in ("K", "Yo", "New", "hunde", "a")]
    met = matched(either, required, ids)
    read = np.array([len(required) - len(missing(text, required)) for text in either.decode(ids)])
    assert (met <= read).all() and met.any()


def test_subwords_that_hold_the_end_of_a_form_and_a_sign(either):
    """Word-pieces such as "Hunde." are part of a sequence of their own."""
    terms = TermVocabulary(either).terms(tf.constant(["Hunde"]))
    spellings = {"".join(either.subwords[id] for id in row if id) for row in terms.ids_BKS.numpy()[0]}
    assert {"Hunde", "\u2581Hunde"} <= spellings
    assert ("\u2581Hunde." in spellings) == (either.kind == "word_piece")
