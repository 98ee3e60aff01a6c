"""Glossaries of an export: in Python, per request of the server, and in the signature alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from t2t_repro.exporting.exported_model import ExportedModel
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.problem import Problem
from t2t_repro.saved_model import WITH_TERMS, WrongInput
from t2t_repro.serving import documents, libretranslate, protocol
from t2t_repro.serving.json_values import BadRequest, Limits
from t2t_repro.serving.model import ServedModel
from t2t_repro.text.glossary import Glossary, missing

TEXTS = ["3 red cats and 4 old dogs", "12", "", "old cats", "cats, CATS"]
TERMS = {"cats": ["Katzen", "Kater"], "dogs": "Hunde", "4": None}


@pytest.fixture(scope="module")
def exported(exported_with_glossaries) -> str:
    return exported_with_glossaries


@pytest.fixture(scope="module")
def model(exported) -> ServedModel:
    return ServedModel(exported)


def ask(model: ServedModel, **body):
    request = protocol.parse(json.dumps(body).encode(), model.signatures, Limits())
    found = model.run(request.signature, request.inputs | request.options)
    return protocol.answer(request, found, Limits())


def all_appear(texts, found) -> None:
    glossary = Glossary(TERMS)
    for text, translation in zip(texts, found, strict=False):
        assert not missing(translation, glossary.required(text)), (text, translation)


def test_export_gives_the_translations_of_its_run(trained, exported):
    run, loaded = Translator.from_run(trained.directory), ExportedModel(exported)
    equal = 0
    for n, width in ((1, None), (2, 3)):
        found, expected = (each.n_best(TEXTS, n, width, glossary=TERMS) for each in (run, loaded))
        for text, *both in zip(TEXTS, found, expected, strict=True):
            all_appear([text] * n, [translation for translation, _ in both[0]][:n])
            all_appear([text] * n, [translation for translation, _ in both[1]][:n])
            for one, other in zip(*both, strict=True):  # rounding may change which of two near equals is found
                equal += one[0] == other[0]
                assert one[0] != other[0] or one[1] == pytest.approx(other[1], rel=1e-2)
    assert equal > len(TEXTS)
    all_appear(TEXTS, loaded.translate(TEXTS, glossary=TERMS))
    with pytest.raises(ValueError, match="text 2 has 17 terms of the glossary, at most 16; split the text"):
        loaded.translate(["", "cats " * 17], glossary=TERMS)


def test_glossary_of_a_request(model):
    plain = ask(model, instances=TEXTS)["predictions"]
    rows = ask(model, instances=TEXTS, glossary=TERMS)["predictions"]
    all_appear(TEXTS, [row["outputs"] for row in rows])
    assert rows[1:3] == plain[1:3] and rows[0] != plain[0]
    columns = {"inputs": TEXTS, "n_best": 2, "beam_size": 3}
    found = ask(model, signature_name="translate", inputs=columns, glossary=TERMS)["outputs"]
    without = ask(model, signature_name="translate", inputs=columns)["outputs"]
    assert {name: each[1:3] for name, each in found.items()} == {name: each[1:3] for name, each in without.items()}
    for column in (0, 1):
        all_appear([TEXTS[0], *TEXTS[3:]], [found["outputs"][row][column] for row in (0, 3, 4)])
    assert ask(model, inputs=TEXTS[1:2], glossary={}) == ask(model, inputs=TEXTS[1:2])
    with pytest.raises(WrongInput, match="row 0 has 17 terms of the glossary, at most 16; split the text"):
        ask(model, inputs=["cats " * 17], glossary=TERMS)


def test_glossary_of_documents(model):
    body = {"inputs": ["3 red cats. 4 old dogs."], "documents": "en", "glossary": TERMS}
    request = protocol.parse(json.dumps(body).encode(), model.signatures, Limits())
    parts = documents.split(request, model, Limits())
    assert parts.request.positions.tolist() == [2 * 2 * (11 + 4)] * 2  # two searches, beam_size, bytes and extra_length
    found = parts.joined(model.run(request.signature, parts.request.inputs | parts.request.options))
    all_appear(body["inputs"], [found["outputs"][0].decode()])


@pytest.mark.parametrize(
    "glossary, message",
    [
        (["cats"], '"glossary" must be an object of terms, got a list'),
        (None, '"glossary" must be an object of terms, got null'),
        ({"cats": 1}, "\"glossary\": the term 'cats' must have a form or a list of forms. Received"),
        ({"cats": [{}]}, "\"glossary\": a form of 'cats' must be a string. Received: dict {}"),
        ({"": "x"}, '"glossary": a term is empty'),
        ({"cats": " "}, "\"glossary\": a form of 'cats' is empty"),
        ({"cats": "a\tb"}, "\"glossary\": a form of 'cats' contains the control character U+0009"),
        ({"cats\u0000": "a"}, '"glossary": a term contains the control character U+0000'),
        ({"cats": "\ud800"}, "\"glossary\": a form of 'cats' contains the control character U+D800"),
        ({"cats": "x" * 101}, "\"glossary\": a form of 'cats' has 101 characters; give at most 100"),
        ({"cats": ["x"] * 9}, "\"glossary\": the term 'cats' has 9 forms; give at most 8"),
        ({str(number): "x" for number in range(1_001)}, '"glossary" has 1,001 terms; at most 1,000'),
    ],
)
def test_hostile_glossaries_get_a_reason(model, glossary, message):
    with pytest.raises(BadRequest) as error:
        ask(model, inputs=["cats"], glossary=glossary)
    assert message in str(error.value) and len(str(error.value)) < 250


def test_glossary_in_the_form_of_libretranslate(model):
    source, target = libretranslate.languages_of(model)
    fields = {"q": TEXTS, "source": source or "en", "target": target or "de", "glossary": TERMS, "alternatives": 1}
    wanted = libretranslate.parse(fields, model, Limits())
    found = model.run(wanted.request.signature, wanted.request.inputs | wanted.request.options)
    answer = libretranslate.answer(wanted, found, Limits())
    all_appear(TEXTS, answer["translatedText"])
    for row in (0, 3, 4):
        all_appear([TEXTS[row]], answer["alternatives"][row])
    assert any(answer["alternatives"])


def test_requests_that_take_no_glossary(model):
    with pytest.raises(BadRequest, match='signature score takes no "glossary"; expected serving_default or'):
        ask(model, signature_name="score", inputs={"inputs": ["a"], "targets": ["b"]}, glossary=TERMS)
    with pytest.raises(BadRequest, match="all texts of a request with a glossary have 100,010 bytes"):
        ask(model, inputs=["x" * 9_091] * 11 + ["x" * 9], glossary=TERMS)
    older = {name: takes for name, takes in model.signatures.items() if name != WITH_TERMS}
    with pytest.raises(BadRequest, match="this model was exported without glossaries; export the run again with"):
        protocol.parse(b'{"inputs": ["a"], "glossary": {}}', older, Limits())


def test_signature_takes_a_line_for_each_term(model):
    inputs = {"inputs": ["3 cats", "9", ""], "terms": ["Katzen\tKater\nDrei", "", "Katzen"]}
    found = ask(model, signature_name=WITH_TERMS, inputs={**inputs, "n_best": [2, 1, 1]})["outputs"]
    assert all("Drei" in text and ("Katzen" in text or "Kater" in text) for text in found["outputs"][0])
    plain = ask(model, inputs=["9"])["outputs"]
    assert found["outputs"][1:] == [[plain["outputs"][0], ""], ["", ""]]
    assert np.isclose(found["scores"][1][0], plain["scores"][0], rtol=1e-4)


@pytest.mark.parametrize(
    "terms, message",
    [
        (["x", "y"], "columns must have equal length"),
        (["\n".join("abcdefghijklmnopq")], "a row has at most 16 terms, one per line, got 17"),
        (["\t".join("abcdefghi")], "a term has at most 8 forms, got 9"),
        (["ß" * 101], "a form has at most 100 characters, got 101"),
    ],
)
def test_signature_refuses_too_much(model, terms, message):
    with pytest.raises((WrongInput, BadRequest), match=message):
        ask(model, signature_name=WITH_TERMS, inputs={"inputs": ["a"], "terms": terms})


def test_only_a_saved_model_of_translations_has_glossaries(trained, tmp_path):
    with pytest.raises(ValueError, match="the format ctranslate2 has no glossaries. Received: glossaries=True; leave"):
        export(trained.directory, str(tmp_path), format="ctranslate2", glossaries=True)
    problem = Problem(name="parse_files", description="", vocab_size=330, metric="f1")
    parser = replace(trained, directory=str(tmp_path / "parser"), problem=problem).start(trained.vocabulary)
    with pytest.raises(ValueError, match="is a parsing run, which has no glossaries; leave them out"):
        export(parser.directory, str(tmp_path / "exported"), glossaries=True)
