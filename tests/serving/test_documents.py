"""Documents per request of the server: sentences share batches, limits hold for them, and the answer is joined."""

from __future__ import annotations

import asyncio
import json
import os

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402
from helpers.capitals import AlignedCapitals, Capitals  # noqa: E402

from t2t_repro.saved_model import ALIGNED_SIGNATURE  # noqa: E402
from t2t_repro.serving import documents, protocol  # noqa: E402
from t2t_repro.serving.app import Server, Settings  # noqa: E402
from t2t_repro.serving.json_values import Limits  # noqa: E402
from t2t_repro.serving.model import ServedModel  # noqa: E402
from t2t_repro.task import task_of  # noqa: E402

TestClient.__test__ = TestServer.__test__ = False  # these are not tests
TEXT = "Mr. Red came.  He left!\n\n\tWhy?\r\n"
CAPITALS = "MR. RED CAME.  HE LEFT!\n\n\tWHY?\r\n"


def answer(*bodies, model=None, **settings):
    """Sends the bodies at the same time to a server. Returns their answers, and the calls of its model."""
    model = model or Capitals()

    async def ask(client, body):
        async with client.post("/v1/models/m:predict", data=json.dumps(body)) as response:
            return response.status, await response.json()

    async def run():
        async with TestClient(TestServer(Server(model, "m", Settings(**settings)).app)) as client:
            return await asyncio.gather(*(ask(client, body) for body in bodies))

    return asyncio.run(run()), model.calls


def test_documents_in_every_form():
    rows = {"instances": [TEXT, "", "One."], "documents": True}
    columns = {"inputs": [TEXT, " \n"], "documents": "en"}
    options = {"signature_name": "translate", "inputs": {"inputs": ["Am 3. Mai.", "Gut. Ja."], "beam_size": [2, 3]}}
    found, _ = answer(rows, columns, {**options, "documents": "de"}, {"inputs": [], "documents": True})
    assert [status for status, _ in found] == [200] * 4
    by_rows, by_columns, with_options, empty = (each for _, each in found)
    assert [row["outputs"] for row in by_rows["predictions"]] == [CAPITALS, "", "ONE."]
    assert np.allclose([row["scores"] for row in by_rows["predictions"]], [-(1.3 + 0.8 + 0.4) / 3, 0, -0.4])
    assert by_columns["outputs"] == {"outputs": [CAPITALS, " \n"], "scores": by_columns["outputs"]["scores"]}
    assert with_options["outputs"]["outputs"] == ["AM 3. MAI.", "GUT. JA."]
    assert empty["outputs"] == {"outputs": [], "scores": []}


def test_alternatives_are_those_of_the_sentences():
    body = {"signature_name": "translate", "inputs": {"inputs": [TEXT, " ", "One."], "n_best": 4}, "documents": True}
    (((status, found),), _) = answer(body)
    assert status == 200
    outputs, scores = (found["outputs"][name] for name in ("outputs", "scores"))
    # the model's second output differs from the first in space alone, and the fourth is missing
    assert outputs == [[CAPITALS, CAPITALS.lower(), "", ""], [" ", "", "", ""], ["ONE.", "one.", "", ""]]
    assert scores[0][0] == pytest.approx(-(1.3 + 0.8 + 0.4) / 3) and scores[0][1] < scores[0][0]
    assert scores[0][2:] == [None] * 2 and scores[1] == [0.0, None, None, None]


def test_alignments_count_in_the_whole_text():
    body = {"signature_name": ALIGNED_SIGNATURE, "inputs": ["Mr. Fox came.  He left!\n\n\tWhy?", ""], "documents": True}
    (((status, found),), calls) = answer(body, model=AlignedCapitals())
    assert status == 200 and calls == [(ALIGNED_SIGNATURE, 3)]
    assert {name: column[0] for name, column in found["outputs"].items()} == {
        "outputs": ["MR. FOX CAME.  HE LEFT!\n\n\tWHY?"],
        "scores": [pytest.approx(-(1.3 + 0.8 + 0.4) / 3)],
        "alignments": ["0-0 1-1 2-2 3-3 4-4 5-5"],
        "confidences": [0.5],
        "word_confidences": ["0.9000 0.2500 0.9000 0.9000 0.9000 0.9000"],
        "num_tokens": [6],
        "sentences": [
            [
                {"source": source, "text": source.upper(), "confidence": 0.5}
                for source in ("Mr. Fox came.", "He left!", "Why?")
            ]
        ],
    }
    assert found["outputs"]["sentences"][1] == [[]]
    assert found["outputs"]["alignments"][1] == [""] and found["outputs"]["confidences"][1] == [1.0]


def test_false_and_absent_are_the_same():
    (plain, same), _ = answer({"inputs": [TEXT]}, {"inputs": [TEXT], "documents": False})
    assert plain == same and plain[1]["outputs"]["outputs"] == [TEXT.upper()]


def test_sentences_of_several_requests_share_a_batch():
    bodies = [{"inputs": [TEXT], "documents": True}] * 3
    found, calls = answer(*bodies, {"inputs": ["a"]}, batch_seconds=0.5)
    assert [each["outputs"]["outputs"] for _, each in found] == [[CAPITALS]] * 3 + [["A"]]
    assert calls == [("serving_default", 10)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": None}, '"documents" must be true, false or a language such as "en", got null'),
        ({"documents": ["en"]}, '"documents" must be true, false or a language such as "en", got a list'),
        ({"documents": ""}, '"documents" must be true, false or a language such as "en", got a string'),
        ({"documents": 1}, '"documents" must be true, false or a language such as "en", got a number'),
        ({"documents": "english"}, "language must be an ISO 639 code such as 'en' or 'pt-BR', got 'english'"),
        ({"inputs": ["a. " * 66_667]}, "contains a string of 200,001 characters; at most 200,000"),
        ({"inputs": ["a" * 150_000] * 2}, "all documents of a request have 300,000 bytes; at most 200,000"),
        ({"inputs": ["One. " * 1_000, "Two. " * 25]}, "too many sentences in one request: 1,025; at most 1,024"),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["One. " * 1_024], "extra_length": 1_024}},
            "of all 1,024 rows is 4,210,688; at most 4,194,304: send fewer rows",
        ),
        (
            {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["b"]}},
            'signature score takes no "documents"; expected serving_default or translate or translate_with_alignments',
        ),
    ],
)
def test_invalid_requests_get_a_reason(body, message):
    (((status, found),), calls) = answer({"inputs": ["a"], "documents": True, **body})
    assert status == 400 and message in found["error"] and len(found["error"]) < 250
    assert not calls


def test_missing_package_and_other_tasks_get_a_reason(monkeypatch):
    body = {"inputs": ["a"], "documents": True}
    parser = Capitals()
    parser.task = task_of("f1")
    (((status, found),), _) = answer(body, model=parser)
    assert (status, found["error"]) == (400, 'this model is for parsing, and "documents" is for translation')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (((status, found),), _) = answer(body)
    assert status == 400 and found["error"].startswith('"documents": sentencex is not installed; install it with')


def test_export_translates_sentences(exported):
    served, limits = ServedModel(os.path.dirname(exported)), Limits()

    def ask(**body):
        request = protocol.parse(json.dumps(body).encode(), served.signatures, limits)
        parts = documents.split(request, served, limits) if request.language is not None else None
        of_rows = parts.request if parts else request
        found = served.run(request.signature, of_rows.inputs | of_rows.options)
        return protocol.answer(request, parts.joined(found) if parts else found, limits)["outputs"]

    text, sentences = "3 red cats.  4 old dogs.\n\nold cats\n", ["3 red cats.", "4 old dogs.", "old cats"]
    one, two, three = (each.strip() for each in ask(inputs=sentences)["outputs"])
    expected = f"{one}  {two}\n\n{three}\n"
    assert ask(inputs=[text, " "], documents="en")["outputs"] == [expected, " "]
    assert ask(inputs=[" \n"], documents=True) == {"outputs": [" \n"], "scores": [0.0]}
    assert ask(signature_name="translate", inputs=[text, " "], documents="en")["outputs"] == [[expected], [" "]]
