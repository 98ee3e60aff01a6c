"""Alignments during the search: those of one pass over the final translation, and none if they are not asked for."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny_model import PROBLEM, random_model, train_pairs

from t2t_repro.alignment.head import READING, WRITING, AlignmentHead
from t2t_repro.alignment.words import Words
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.inference.ensemble import FixedEnsemble, attended_most
from t2t_repro.inference.translator import Translator
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

TEXTS = ["3 red cats and 4 old dogs", "12", "", "a word it never saw: Straßenbahn", "old dogs", "3  red cats " * 8]
HEADS = [AlignmentHead(1, 2, WRITING), AlignmentHead(2, 1, READING), AlignmentHead(2, 0, WRITING)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


def made(vocabulary, dtype="float32", **changes) -> Translator:
    model = random_model(vocabulary.size, beam_size=3, dtype=dtype, **changes)
    return Translator(model, vocabulary, model.hparams)


@pytest.fixture(scope="module")
def translator(vocabulary) -> Translator:
    return made(vocabulary)


@pytest.fixture(scope="module")
def aligning(translator):
    """Returns the function from a head to the translator with alignments, made once: tracing takes seconds."""
    return functools.cache(translator.with_alignments)


def expected_links(translator, head, source, ids) -> list[tuple[int, int]]:
    """Returns the links by one pass over `ids`, which end in EOS."""
    source_BM = tf.constant(translator.vocabulary.encode([source]))
    weights = translator.memory_attention(source_BM, tf.constant([ids]))
    found = Words(translator.vocabulary).links(
        source_BM, tf.constant([[ids]]), attended_most(weights, head)[:, None], head
    )
    kept = found.kept.numpy()[0, 0]
    return list(zip(*(side.numpy()[0, 0][kept].tolist() for side in found[:2]), strict=True))


def searched(translator, monkeypatch, texts, decode):
    """Returns the results of `decode`, and the ids of all hypotheses by their text."""
    ids = {}
    decoded = translator.vocabulary.decode

    def noted(sequences):
        found = decoded(sequences)
        for text, row in zip(found, sequences, strict=True):
            ids.setdefault(text, []).append([id for id in row if id])
        return found

    monkeypatch.setattr(translator.vocabulary, "decode", noted)
    return decode(translator, texts), ids


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("head", "decode"),
    [
        (HEADS[0], lambda model, texts: model.n_best(texts, 3)),
        (HEADS[0], lambda model, texts: model.n_best(texts, 1, beam_size=1)),
        pytest.param(
            HEADS[1],
            lambda model, texts: model.n_best(texts, 2, prefixes=["old"] * len(texts), min_length=3),
            marks=pytest.mark.slow,
        ),
        (HEADS[2], lambda model, texts: model.sample(texts, 2, seed=3)),
    ],
    ids=["beam", "greedy", "prefix", "sample"],
)
def test_alignments_are_those_of_a_pass_over_the_translation(translator, aligning, monkeypatch, head, decode):
    plain = decode(translator, TEXTS)
    found, ids = searched(aligning(head), monkeypatch, TEXTS, decode)
    assert [[tuple(each) for each in some] for some in found] == plain
    different = set()
    for source, some in zip(TEXTS, found, strict=True):
        for each in some:
            spellings = ids[each.text] if source else []
            possible = [expected_links(translator, head, source, spelling) for spelling in spellings]
            assert each.links in (possible or [[]])
            assert len(each.probabilities) == len(each.words) and all(0 <= p <= 1 for p in each.probabilities)
            different.add(tuple(each.links))
    assert len(different) > 3


@pytest.mark.numeric
def test_probabilities_of_words_are_those_of_scoring(translator, aligning):
    for source, ((found),) in zip(TEXTS, aligning(HEADS[0]).n_best(TEXTS, 1), strict=True):
        if not found.words:
            continue
        (tokens,) = translator.score_tokens([(source, found.text)])
        if "".join(piece for piece, _ in tokens[:-1]).replace("\u2581", " ") == found.text:
            mean = np.mean([log_p for _, log_p in tokens[:-1]])
            spaces_only = [log_p for piece, log_p in tokens[:-1] if not piece.strip("\u2581")]
            assert np.log(found.probabilities).sum() + sum(spaces_only) == pytest.approx(mean * (len(tokens) - 1), 1e-3)


@pytest.mark.slow
@pytest.mark.numeric
def test_batches_and_shortlists_do_not_change_them(translator, aligning, vocabulary):
    together = aligning(HEADS[0]).n_best(TEXTS, 2)
    alone = [aligning(HEADS[0]).n_best([text], 2)[0] for text in TEXTS]
    everything = Shortlist(vocabulary.size, list(range(vocabulary.size)), {})
    limited = Translator(translator.ensemble, vocabulary, translator.hparams, shortlist=everything)
    among = limited.with_alignments(HEADS[0]).n_best(TEXTS, 2)
    for found in (alone, among):
        assert [[each.links for each in some] for some in found] == [[each.links for each in some] for some in together]


@pytest.mark.numeric
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_fixed_models_and_ensembles_align_by_the_first_model(vocabulary, dtype, monkeypatch):
    models = [random_model(vocabulary.size, seed=number, dtype=dtype) for number in (1, 2)]
    one, fixed, both = (
        Translator(ensemble, vocabulary, models[0].hparams).with_alignments(HEADS[0])
        for ensemble in (models[0], FixedEnsemble(models[:1]), FixedEnsemble(models))
    )
    expected = [each.links for (each,) in one.n_best(TEXTS, 1)]
    assert any(expected)
    assert dtype != "float32" or [each.links for (each,) in fixed.n_best(TEXTS, 1)] == expected
    found, ids = searched(both, monkeypatch, TEXTS, lambda model, texts: model.n_best(texts, 1))
    if dtype == "float32":
        for source, (each,) in zip(TEXTS, found, strict=True):
            possible = [
                expected_links(one, HEADS[0], source, spelling) for spelling in ids.get(each.text, []) if source
            ]
            assert each.links in (possible or [[]])


def operations(translator: Translator) -> int:
    function = translator._search.concrete()
    return sum(len(each.node_def) for each in function.graph.as_graph_def().library.function) + len(
        function.graph.get_operations()
    )


def test_graph_without_alignments_has_no_operation_for_them(vocabulary, monkeypatch):
    """The step of the search records nothing, and its state has no trace."""
    kept = []
    from t2t_repro.model import kernels

    recorded = kernels.recorded_attention
    monkeypatch.setattr(kernels, "recorded_attention", lambda: (kept.append(1), recorded())[1])
    translator = made(vocabulary)
    plain = operations(translator)
    assert not kept
    aligned = operations(translator.with_alignments(HEADS[0]))
    assert kept and plain < aligned <= plain + 120
    assert operations(Translator(translator.model, vocabulary, translator.hparams)) == plain


def test_heads_that_the_model_lacks(translator):
    for head in (AlignmentHead(3, 1, WRITING), AlignmentHead(1, 3, WRITING)):
        with pytest.raises(ValueError, match="^expected one of 2 layers of 2 heads. Received: layer "):
            translator.with_alignments(head)


def test_constrained_output_is_not_aligned(translator):
    model = translator.model
    constrained = Translator(model, translator.vocabulary, dataclasses.replace(model.hparams), constraint=object())
    with pytest.raises(ValueError, match="^constrained output repeats the words of its text"):
        constrained.with_alignments(HEADS[0])
