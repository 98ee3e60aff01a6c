"""Decoding with a shortlist: it equals decoding without one if nothing is missing, and never leaves the list."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, random_model, train_pairs

from t2t_repro.data import shortlist
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.batches import padded
from t2t_repro.inference.ensemble import Ensemble, FixedEnsemble, log_mean_probabilities
from t2t_repro.inference.search.decoding_loop import NEG_INF
from t2t_repro.inference.translator import Translator
from t2t_repro.model import packed
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.text.token_ids import EOS, PAD

pytestmark = pytest.mark.numeric

TEXTS = ["3 red cats and 4 old dogs", "12", "a word it never saw: Straßenbahn", "", "old dogs", "3 red cats"]
LIST = np.array([PAD, EOS, *range(70, 110), *range(270, 330)], np.int32)  # bytes and subwords


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


def model(seed=1, dtype="float32"):
    return random_model(PROBLEM.vocab_size, seed, dtype, beam_size=3)


def translator(vocabulary, limited_to=None, ensemble=None) -> Translator:
    ensemble = ensemble or FixedEnsemble([model()])
    return Translator(ensemble, vocabulary, ensemble.models[0].hparams, shortlist=limited_to)


@pytest.fixture(scope="module")
def every(vocabulary) -> Shortlist:
    return Shortlist(vocabulary.size, range(vocabulary.size), {})


@pytest.fixture(scope="module")
def both(vocabulary, every) -> tuple[Translator, Translator]:
    """Returns a translator without a shortlist, and one whose shortlist is the whole vocabulary."""
    return translator(vocabulary), translator(vocabulary, every)


@pytest.fixture
def few(vocabulary, both, monkeypatch) -> tuple[Translator, Shortlist]:
    """Returns the second of `both` with a shortlist of a few subwords, others for each text, and the shortlist."""
    monkeypatch.setattr(shortlist, "OUTPUTS", 1)
    rng = np.random.default_rng(1)
    sources = range(3, vocabulary.size)
    candidates = {source: rng.integers(259, vocabulary.size, 5).tolist() for source in sources}
    limited_to = Shortlist(vocabulary.size, [300, 301], candidates)
    monkeypatch.setattr(both[1], "shortlist", limited_to)
    return both[1], limited_to


def same(found, expected) -> None:
    """Compares n-best lists, whose scores may differ by rounding."""
    assert [[text for text, _ in each] for each in found] == [[text for text, _ in each] for each in expected]
    scores = [[score for each in every for _, score in each] for every in (found, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1, "beam_size": 1},
        {"n": 3},
        {"n": 2, "alpha": 0.0, "prefixes": ["", "ab", "3 rote Katzen", "x", "alte", "\u2028"], "min_length": 3},
        {"n": 10},
    ],
)
def test_complete_shortlist_changes_nothing(both, options):
    without, with_all = both
    same(with_all.n_best(TEXTS, **options), without.n_best(TEXTS, **options))


@pytest.mark.parametrize("top_k", [0, 5])
def test_complete_shortlist_does_not_change_samples(both, top_k):
    without, with_all = both
    options = {"n": 2, "top_k": top_k, "seed": 3, "prefixes": ["", "ab", "3", "", "", "x"]}
    same(with_all.sample(TEXTS, **options), without.sample(TEXTS, **options))


def test_scoring_uses_all_subwords(both, few):
    pairs = [("3 red cats", "3 rote Katzen"), ("12", "zwölf")]
    assert few[0].score(pairs) == both[0].score(pairs)


def log_p_among(ensemble: Ensemble, source_BM, ids_BL, ids_S) -> np.ndarray:
    """Returns log p of each token among `ids_S` by the whole decoder: [B, L], 0 at padding."""
    every = [Ensemble([each]).logits(source_BM, ids_BL) for each in ensemble.models]
    logits_BLS = log_mean_probabilities([tf.gather(logits_BLV, ids_S, axis=2) for logits_BLV in every])
    places_BL = np.searchsorted(ids_S, ids_BL)
    return np.where(ids_BL == PAD, 0, tf.gather(tf.nn.log_softmax(logits_BLS), places_BL, batch_dims=2).numpy())


ENSEMBLES = {
    "weights that may change": (lambda: Ensemble([model()]), 1e-4),
    "two models": (lambda: FixedEnsemble([model(), model(seed=2)]), 1e-4),
    "bfloat16": (lambda: FixedEnsemble([model(dtype="mixed_bfloat16")]), 0.1),
    "int8": (lambda: FixedEnsemble([model()], int8=True), 0.1),
    "bfloat16 and int8": (lambda: FixedEnsemble([model(dtype="mixed_bfloat16")], int8=True), 0.1),
}
SLOW = "weights that may change", "bfloat16 and int8"


@pytest.mark.parametrize(
    "kind", ["float32", *(pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in ENSEMBLES)]
)
def test_scores_are_normalized_over_the_shortlist(vocabulary, both, kind):
    """Hypotheses have only tokens of the list, and scores equal those of the whole decoder with the others left out."""
    if "bfloat16" in kind and not packed.can_pack("bfloat16"):
        pytest.skip("oneDNN needs AVX-512 for bfloat16")
    make, tolerance = ENSEMBLES.get(kind, (None, 1e-4))
    limited = translator(vocabulary, ensemble=make()) if make else both[1]
    ensemble = limited.ensemble
    source_BM = padded(vocabulary.encode([text for text in TEXTS if text]))
    found = limited.search(source_BM, 2, 0.0, 6, ids_S=LIST)
    assert set(found.ids.numpy().ravel()) <= set(LIST.tolist())
    for beam in range(2):
        ids_BL = found.ids.numpy()[:, beam]
        expected_B = log_p_among(ensemble, source_BM, ids_BL, LIST).sum(axis=1)
        lengths_B = (ids_BL != PAD).sum(axis=1)
        assert np.all(np.abs(found.scores.numpy()[:, beam] - expected_B) <= tolerance * lengths_B)


def test_greedy_decoding_takes_the_likeliest_of_the_list(vocabulary, both):
    source_BM = padded(vocabulary.encode(TEXTS[:1]))
    ids = both[1].search(source_BM, 1, 0.0, 6, ids_S=LIST).ids.numpy()[0]
    logits_LS = tf.gather(both[1].ensemble.logits(source_BM, ids), LIST, axis=2).numpy()[0]
    logits_LS[:, 0] = -np.inf  # PAD
    assert LIST[logits_LS.argmax(axis=1)].tolist()[:-1] == ids[0].tolist()[:-1]  # the last is EOS at the latest


def test_each_text_keeps_to_its_own_list(vocabulary, few):
    """Alone in its batch, a text is translated and sampled with its own candidates, and forced prefixes are kept."""
    limited, limited_to = few
    for text in filter(None, TEXTS):
        allowed = set(limited_to.ids(vocabulary.encode([text])).tolist())
        outputs = [*limited.n_best([text], 3)[0], *limited.sample([text], 3)[0]]
        source_BM = padded(vocabulary.encode([text]))
        ids = limited.search(source_BM, 3, 0.6, 4, ids_S=limited_to.ids(vocabulary.encode([text]))).ids.numpy()
        assert set(ids.ravel()) <= allowed and len(outputs) > 1
    prefix = "Straßenbahn 3"
    (found,) = limited.translate(["12"], prefixes=[prefix])
    assert found.startswith(prefix) and not set(vocabulary.encode([prefix])[0]) <= set(limited_to.ids([]).tolist())


def test_order_is_kept(few):
    limited, _ = few
    found = limited.translate(TEXTS)
    assert limited.translate(TEXTS[::-1]) == found[::-1] and len(set(found)) > 3


def test_one_graph_serves_every_length_of_the_list(vocabulary, both, every):
    limited = both[1]
    source_BM = padded(vocabulary.encode(["12"]))
    for ids_S in (LIST, LIST[:5], every.ids([])):  # 5 are fewer than the candidates of 3 beams
        assert limited.search(source_BM, 3, 0.6, 4, ids_S=ids_S).scores.numpy().max() > NEG_INF / 2
    assert limited._search_among.function().experimental_get_tracing_count() == 1


def test_translator_without_a_shortlist_does_not_use_its_graph(both):
    both[0].translate(TEXTS)
    assert not both[0]._search_among._functions


def test_constraint_excludes_a_shortlist(vocabulary, every):
    with pytest.raises(ValueError, match="constrained to the words of the text, which a shortlist may lack: leave out"):
        Translator(model(), vocabulary, model().hparams, ParseConstraint(vocabulary.subwords), every)


def test_scores_of_the_likeliest_rise(both, few):
    """Fewer subwords share the probability."""
    pairs = [("12", text) for text, _ in few[0].n_best(["12"], 1, alpha=0.0)[0]]
    (score,) = few[0].n_best(["12"], 1, alpha=0.0)[0]
    assert score[1] > both[0].score(pairs)[0] and math.isfinite(score[1])
