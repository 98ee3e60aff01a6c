"""Documents through a run and its export: the translations of their sentences, and nothing truncated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t2t_repro.exporting.exported_model import ExportedModel
from t2t_repro.inference.translator import Translator

DOCUMENT = "3 red cats.  4 old dogs, 12 cats.\n\n\told dogs\r\n"


@pytest.fixture(scope="module")
def run(trained) -> Translator:
    return Translator.from_run(trained.directory)


@pytest.fixture(scope="module", params=["run", "export"])
def model(request, run):
    return run if request.param == "run" else ExportedModel(request.getfixturevalue("exported"))


def test_document_is_the_translation_of_its_sentences(model):
    one, two, three = (each.strip() for each in model(["3 red cats.", "4 old dogs, 12 cats.", "old dogs"]))
    expected = [f"{one}  {two}\n\n\t{three}\r\n", "", " \n", three]
    assert model.translate_documents([DOCUMENT, "", " \n", "old dogs"], "en") == expected
    assert model.translate_documents([]) == []
    with_terms = model.translate_documents(["3 cats"], beam_size=2, alpha=0.0)
    assert with_terms == [each.strip() for each in model.translate(["3 cats"], 2, 0.0)]


def test_options_are_those_of_sentences(model, monkeypatch):
    calls = []

    def n_best(texts, **options):
        calls.append((texts, options))
        return [[(text, 0.0)] for text in texts]

    monkeypatch.setattr(model, "n_best", n_best)
    options = {"beam_size": 3, "alpha": 0.5, "glossary": {"cats": "Katzen"}}
    assert model.translate_documents(["One. Two.", "Three."], "en", **options) == ["One. Two.", "Three."]
    assert calls == [(["One.", "Two.", "Three."], {"n": 1, "markup": False, **options})]


def test_nothing_is_truncated(run, exported, monkeypatch):
    text = " ".join(["3 red cats and 4 old dogs"] * 30)
    tokens = [len(ids) for ids in run.vocabulary.encode(["3 red cats and 4 old dogs", text])]
    few = replace(run.hparams, max_positions=tokens[0] * 3)
    monkeypatch.setattr(run.model, "hparams", few)
    asked = []
    monkeypatch.setattr(
        run, "n_best", lambda texts, **options: asked.extend(texts) or [[(each, 0.0)] for each in texts]
    )
    assert run.translate_documents([text]) == [text]
    assert len(asked) > 5 and max(len(ids) for ids in run.vocabulary.encode(asked)) <= few.max_positions
    assert run.splitter("en")([text])[0].sentences == asked
    model = ExportedModel(exported)
    model._model.card["hparams"]["max_positions"] = 40
    parts = model._model.splitter("en")([text])[0].sentences
    assert " ".join(parts) == text and max(map(len, parts)) < 40


def test_language_is_that_of_the_run(run, monkeypatch):
    monkeypatch.setattr(run, "language", "de")
    text = "Am 3. Mai z.B. kam er."
    assert run.splitter()([text])[0].sentences == [text]
    assert len(run.splitter("en")([text])[0].sentences) > 1


@pytest.mark.parametrize(
    ("texts", "language", "message"),
    [
        ("one text", None, "texts must be a list of strings. Received: one string, 'one text'; wrap it in a list"),
        (["a", "\ud800"], None, "text 2 is not Unicode: a lone surrogate"),
        (["a"], "english", "language must be an ISO 639 code such as 'en' or 'pt-BR', got 'english'"),
        (["a"], 5, "language must be an ISO 639 code such as 'en' or 'pt-BR', got 5"),
    ],
)
def test_wrong_arguments(model, texts, language, message):
    with pytest.raises(ValueError, match=message):
        model.translate_documents(texts, language)
