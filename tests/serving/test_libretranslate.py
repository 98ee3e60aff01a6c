"""LibreTranslate's form of requests: the answers, and the error for every invalid request.

The model is a stand-in that writes capitals. `test_client` is what LibreTranslate's own client sends.
"""

from __future__ import annotations

import asyncio
import json
import re
from urllib.parse import urlencode

import pytest
from conftest import CHECKOUT
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from aiohttp import FormData  # noqa: E402
from aiohttp.test_utils import TestClient, TestServer  # noqa: E402
from helpers.capitals import AlignedCapitals, Capitals  # noqa: E402

from t2t_repro.saved_model import (
    ALIGNED_SIGNATURE,  # noqa: E402
    WITH_TERMS,  # noqa: E402
)
from t2t_repro.serving import libretranslate  # noqa: E402
from t2t_repro.serving.app import Server, Settings  # noqa: E402
from t2t_repro.serving.json_values import BadRequest, Limits, json_object  # noqa: E402
from t2t_repro.task import task_of  # noqa: E402

TestClient.__test__ = TestServer.__test__ = False
FORM, JSON, MULTIPART = "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=b"
PAIR = {"source": "en", "target": "de"}


def answers(*requests, model=None, **settings):
    """Returns the status and the JSON of each request: a method, an address, and the options of the client."""

    async def run():
        server = Server(model or AlignedCapitals(), "m", Settings(**settings))
        async with TestClient(TestServer(server.app)) as client:
            found = []
            for method, path, options in requests:
                async with client.request(method, path, **options) as response:
                    found.append((response.status, await response.json()))
            return found

    return asyncio.run(run())


def translate(data, content_type=JSON, model=None, **settings):
    """Returns the answer to one request. `data` is its body, or the object that its JSON expresses."""
    body = data if isinstance(data, bytes | str | FormData) else json.dumps(data)
    headers = {"Content-Type": content_type} if content_type else {}
    (found,) = answers(("POST", "/translate", {"data": body, "headers": headers}), model=model, **settings)
    return found


def part(name, value):
    """Returns a field of a form with `MULTIPART`."""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"q": "one two"}, {"translatedText": "ONE TWO"}),
        ({"q": ["one", "", "two"]}, {"translatedText": ["ONE", "", "TWO"]}),
        ({"q": "one", "format": "text", "alternatives": 0}, {"translatedText": "ONE"}),
        ({"q": "one", "format": None, "api_key": "x", "secret": "", "apiKey": ""}, {"translatedText": "ONE"}),
        # the second beam differs only in a space, and the fourth is empty
        ({"q": "One", "alternatives": 3}, {"translatedText": "ONE", "alternatives": ["one"]}),
        ({"q": ["One", "2"], "alternatives": "1"}, {"translatedText": ["ONE", "2"], "alternatives": [["one"], []]}),
        (
            {"q": "one", "source": "auto"},
            {"translatedText": "ONE", "detectedLanguage": {"language": "en", "confidence": 0.0}},
        ),
        ({"q": "one two", "alignments": True}, {"translatedText": "ONE TWO", "alignments": [[0, 0], [1, 1]]}),
        (
            {"q": ["six one"], "confidence": True},
            {
                **{"translatedText": ["SIX ONE"], "confidence": [0.5], "wordConfidence": [[0.25, 0.9]]},
                "sentences": [[{"source": "six one", "text": "SIX ONE", "confidence": 0.5}]],
            },
        ),
        (
            {"q": "Six", "alternatives": 1, "alignments": True, "confidence": True},
            {
                **{"translatedText": "SIX", "alternatives": ["six"], "alignments": [[0, 0]]},
                **{"confidence": 0.5, "wordConfidence": [0.25]},
                "sentences": [{"source": "Six", "text": "SIX", "confidence": 0.5}],
            },
        ),
    ],
)
def test_answers(body, expected):
    assert translate(PAIR | body) == (200, expected)


def test_texts_have_several_sentences():
    model, both = AlignedCapitals(), {"q": "It rains. We go.\n\nBye!"}
    for more in ({}, {"documents": False}, {"alternatives": 1}, {"alignments": True}, {"confidence": True}):
        assert translate(PAIR | both | more, model=model)[1]["translatedText"] == "IT RAINS. WE GO.\n\nBYE!"
    calls = [("serving_default", 3), ("serving_default", 1), ("translate", 3), *[(ALIGNED_SIGNATURE, 3)] * 2]
    assert model.calls == calls
    status, found = translate(PAIR | both | {"alternatives": 1, "alignments": True, "confidence": True}, model=model)
    assert status == 200 and found == {
        "translatedText": "IT RAINS. WE GO.\n\nBYE!",
        "alternatives": ["it rains. we go.\n\nbye!"],
        "alignments": [[number, number] for number in range(5)],
        "confidence": 0.5,
        "wordConfidence": [0.9] * 5,
        "sentences": [
            {"source": source, "text": source.upper(), "confidence": 0.5} for source in ("It rains.", "We go.", "Bye!")
        ],
    }
    long = {"q": "It rains. " * 1_001}
    assert translate(PAIR | long)[0] == translate(PAIR | long | {"alternatives": 1})[0] == 200
    status, found = translate(PAIR | long | {"alternatives": 1, "documents": False})
    assert status == 400 and "at most 10,000" in found["error"]


def test_html_has_several_sentences():
    model, text = AlignedCapitals(), "<p>It rains. <b>We go.</b></p>\n<p>Bye <i>now</i>!</p>"
    for more in ({}, {"documents": False}):
        found = translate(PAIR | {"q": text, "format": "html"} | more, model=model)
        assert found[1]["translatedText"] == "<p>IT RAINS. <b>WE GO.</b></p>\n<p>BYE <i>NOW</i>!</p>"
    assert model.calls == [("serving_default", 3), ("serving_default", 1)]


def test_requests_share_batches_with_the_other_form():
    """A request without more options uses the signature that most requests use, with no second search."""
    model = AlignedCapitals()
    translate(PAIR | {"q": "one"}, model=model)
    translate(PAIR | {"q": "one", "alternatives": 2}, model=model)
    translate(PAIR | {"q": "one", "confidence": True}, model=model)
    assert [name for name, _ in model.calls] == ["serving_default", "translate", "translate_with_alignments"]


def test_forms():
    fields = PAIR | {"q": "größe +1\r\n& x"}
    expected = (200, {"translatedText": "GRößE +1\n& X"})
    assert translate(urlencode(fields), FORM) == expected
    multipart = FormData(default_to_multipart=True)
    for name, value in fields.items():
        multipart.add_field(name, value)
    assert translate(multipart, None) == expected
    more = {"alternatives": "1", "alignments": "true", "api_key": "x"}
    found = translate(urlencode(PAIR | {"q": "One"} | more), FORM)
    assert found == (200, {"translatedText": "ONE", "alternatives": ["one"], "alignments": [[0, 0]]})
    assert translate(PAIR | {"q": "a"}, "application/json; charset=utf-8")[0] == 200


def test_alternatives_widen_the_beam():
    model = AlignedCapitals()
    for number, width in ((1, 4), (3, 4), (9, 10)):
        wanted = libretranslate.parse(PAIR | {"q": "a", "alternatives": number}, model, Limits())
        assert wanted.request.options == {"beam_size": width, "n_best": width}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not valid UTF-8"),
        (b'{"q": NaN}', "NaN is not valid JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"q": ' + b"9" * 5_000 + b"}", "the body is not JSON"),
        ([], "must be a JSON object, got a list"),
        ({}, "missing 'q'; expected q, source, target"),
        (PAIR, "missing 'q'"),
        (PAIR | {"q": ""}, "missing 'q'"),
        (PAIR | {"q": []}, "missing 'q'"),
        ({"q": "a", "source": "en"}, "missing 'target'"),
        ({"q": "a", "target": "de", "source": None}, "missing 'source'"),
        (PAIR | {"q": 1}, "'q' must be a string or a list of strings, got a number"),
        (PAIR | {"q": ["a", {"b64": "YQ=="}]}, "'q' must be a string or a list of strings, got an object"),
        (PAIR | {"q": [["a"]]}, "'q' must be a string or a list of strings, got a list"),
        (PAIR | {"q": "a" * 10_001, "documents": False}, "'q' contains a string of 10,001 characters; at most 10,000"),
        (b'{"q": "\\ud800", "source": "en", "target": "de"}', "'q' contains a string that is not valid Unicode"),
        (PAIR | {"q": ["a"] * 1_025}, "too many rows in one request: 1,025; at most 1,024"),
        (PAIR | {"q": ["a" * 2_000] * 64, "alternatives": 63}, "at most 4,194,304: send fewer rows"),
        (PAIR | {"q": "a", "glosary": {}}, "unknown key 'glosary'; expected q, source, target, format"),
        (PAIR | {"q": "a", "x" * 1_000: 1}, "unknown key 'xxx"),
        (PAIR | {"q": "a", "source": "fr"}, "this model translates from 'en' to 'de', got 'fr' to 'de'"),
        (PAIR | {"q": "a", "target": "fr"}, "got 'en' to 'fr'"),
        (PAIR | {"q": "a", "target": "auto"}, "got 'en' to 'auto'"),
        (PAIR | {"q": "a", "source": ["en"]}, "got ['en'] to 'de'"),
        (PAIR | {"q": "a", "target": "x" * 10_000}, "got 'en' to 'xxx"),
        (PAIR | {"q": "a", "format": "xml"}, "the format must be 'text' or 'html', got 'xml'"),
        (PAIR | {"q": "a", "format": ["text"]}, "the format must be 'text' or 'html', got ['text']"),
        (PAIR | {"q": "a", "alternatives": -1}, "'alternatives' must be an integer from 0 to 63, got a number -1"),
        (PAIR | {"q": "a", "alternatives": 64}, "got a number 64"),
        (PAIR | {"q": "a", "alternatives": 1.5}, "got a number 1.5"),
        (PAIR | {"q": "a", "alternatives": True}, "got a boolean true"),
        (PAIR | {"q": "a", "alternatives": None}, "got null null"),
        (PAIR | {"q": "a", "alternatives": "two"}, 'got a string "two"'),
        (PAIR | {"q": "a", "alternatives": [1] * 1_000}, "got a list [1, 1"),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": 1e999}', "got a number Infinity"),
        (PAIR | {"q": "a", "alignments": 1}, "'alignments' must be true or false, got a number"),
        (PAIR | {"q": "a", "confidence": "true"}, "'confidence' must be true or false, got a string"),
        (b'{"q": "a", "q": "b", "source": "en", "target": "de"}', "a JSON object has the key 'q' twice; give it once"),
        (PAIR | {"q": "a", "glossary": {}}, "this model was exported without glossaries"),
    ],
)  # fmt: skip
def test_invalid_requests_get_a_reason(body, message):
    status, found = translate(body)
    assert status == 400 and message in found["error"] and list(found) == ["error"]
    assert len(found["error"]) < 250 and "\n" not in found["error"]


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b'{"q": "a"}', FORM, 'the body is JSON; send it with "Content-Type: application/json"'),
        (b"", FORM, "missing 'q'"),
        (b"q=%ff", FORM, "the form is not valid UTF-8"),
        (b"q=\xff", FORM, "the form is not valid UTF-8"),
        (b"q=a&q=b&source=en&target=de", FORM, "the form has 'q' twice; send JSON for a list of texts"),
        (b"&".join(b"q%d=a" % n for n in range(101)), FORM, "the form has too many fields; at most 100"),
        (b"q=a&source=en&target=de&alignments=yes", FORM, "'alignments' must be JSON without repeated keys"),
        (b"q=a&source=en&target=de&alignments=NaN", FORM, "'alignments' must be JSON without repeated keys"),
        (b"q=a&source=en&target=de&glossary=" + b"[" * 100_000, FORM, "repeated keys, got '[[["),
        (b'q=a&source=en&target=de&glossary={"a": "b", "a": "c"}', FORM, "must be JSON without repeated keys"),
        (b"q=a&source=en&target=de&alternatives=two", FORM, 'got a string "two"'),
        (b"q=a&source=en&target=de", "text/plain", "the body is not JSON"),
        (b"\0\0", "image/png", "the body is not JSON"),
        (b"q", "multipart/form-data", "the body is not a complete form of at most 100 fields"),
        (b"q", MULTIPART, "not a complete form"),
        (part("q", b"a"), MULTIPART, "not a complete form"),
        (part("q", b"a") * 101 + b"--b--", MULTIPART, "not a complete form"),
        (b"--b\r\n\r\na\r\n--b--", MULTIPART, "a field of the form has no name"),
        (b'--b\r\nContent-Disposition: form-data; name*=x\r\n\r\na\r\n--b--', MULTIPART, "has no name"),
        (part('q"; filename="x', b"a") + b"--b--", MULTIPART, "'q' must be text, got a file"),
        (part("q\"; filename*=undefined''x; a=\"", b"a") + b"--b--", MULTIPART, "a header of an unknown encoding"),
        (b"q", "multipart/form-data; boundary*=undefined''b", "Content-Type has a parameter of an unknown encoding"),
        (part("q", b"\xff") + b"--b--", MULTIPART, "the form is not valid UTF-8"),
        (part("q", b"a") * 2 + b"--b--", MULTIPART, "the form has 'q' twice"),
        (part("q" * 100_000, b"a") + b"--b--", MULTIPART, "a field of the form has 100,"),
        (b"\r\n" * 500_000, MULTIPART, "not a complete form"),
        (b"q", "multipart/form-data; boundary=" + "b" * 1_000, "bytes of headers; at most 1,000"),
        (b"q", "multipart/form-data; boundary*=", "not a complete form"),
    ],
)  # fmt: skip
def test_invalid_forms_get_a_reason(body, content_type, message):
    status, found = translate(body, content_type)
    assert status == 400 and message in found["error"] and len(found["error"]) < 250


def test_other_addresses_and_methods():
    found = answers(
        *(
            ("GET", "/translate", {}),
            ("POST", "/languages", {}),
            ("POST", "/detect", {"data": b"q=a"}),
            ("OPTIONS", "/translate", {}),
            ("POST", "/translate", {"data": b"x" * 1_001}),
            ("POST", "/translate", {"data": b"x", "headers": {"Content-Encoding": "gzip"}}),
            ("POST", "/translate?q=a&source=en&target=de", {"headers": {"Content-Type": FORM}}),
        ),
        max_body=1_000,
    )
    assert [status for status, _ in found] == [405, 405, 404, 405, 413, 415, 400]
    assert all(list(body) == ["error"] for _, body in found) and "fields in the address" in found[-1][1]["error"]


def test_languages_and_health():
    (health, languages) = answers(("GET", "/health", {}), ("GET", "/languages", {}))
    assert health == (200, {"status": "ok"})
    german = {"code": "de", "name": "German", "targets": []}
    assert languages == (200, [{"code": "en", "name": "English", "targets": ["de"]}, german])

    async def stopping():
        server = Server(Capitals(), "m", Settings())
        async with TestClient(TestServer(server.app)) as client:
            server.stopping = True
            async with client.get("/health") as response:
                return response.status, await response.json()

    assert asyncio.run(stopping()) == (503, {"error": "stopping"})


def test_unknown_languages_may_be_any():
    """The stand-in's model card has no languages."""
    assert translate(PAIR | {"q": "a"}, model=Capitals()) == (200, {"translatedText": "A"})
    assert translate(PAIR | {"q": "a", "source": "auto"}, model=Capitals()) == (200, {"translatedText": "A"})
    assert translate(PAIR | {"q": "a", "source": 5}, model=Capitals())[0] == 400
    assert answers(("GET", "/languages", {}), model=Capitals()) == [(200, [])]


def test_exports_that_lack_something():
    status, found = translate(PAIR | {"q": "a", "confidence": True}, model=Capitals())
    assert status == 400 and found["error"].startswith("'confidence': this model was exported without alignments; ")
    older = AlignedCapitals()
    older.signatures = {"serving_default": older.signatures["serving_default"]}
    status, found = translate(PAIR | {"q": "a", "alternatives": 1}, model=older)
    assert status == 400 and found["error"].startswith("'alternatives': this model was exported without them; ")
    parser = AlignedCapitals()
    parser.task = task_of("f1")
    assert translate(PAIR | {"q": "a"}, model=parser)[1] == {
        "error": "this model is for parsing, and /translate is for translation"
    }
    assert answers(("GET", "/languages", {}), model=parser) == [(200, [])]


def test_options_of_the_other_form_are_those_of_this_one():
    model = AlignedCapitals()
    model.signatures = model.signatures | {WITH_TERMS: {}}
    for message in (PAIR | {"q": "a cat", "glossary": {"cat": "Katze"}}, {**PAIR, "q": "a cat", "glossary": {}}):
        assert "glossary" in libretranslate.parse(message, model, Limits()).request.options
    form = libretranslate.fields_of_form(urlencode(PAIR | {"q": "a", "glossary": '{"cat": null}'}).encode())
    assert "glossary" in libretranslate.parse(form, model, Limits()).request.options


def test_client():
    """libretranslatepy 2.1.4 sends a form without a format, and GET with a body."""
    ours = {"data": b"q=One+two&source=en&target=de", "headers": {"Content-Type": FORM}}
    key = {"data": b"q=One&source=en&target=de&api_key=abc", "headers": {"Content-Type": FORM}}
    found = answers(("POST", "/translate", ours), ("POST", "/translate", key), ("GET", "/languages", {"data": b""}))
    assert [body for _, body in found[:2]] == [{"translatedText": "ONE TWO"}, {"translatedText": "ONE"}]
    assert [language["code"] for language in found[2][1]] == ["en", "de"]


FRAGMENTS = [
    b"q=",
    b"&",
    b"=",
    b"%",
    b"%ff",
    b"source=en",
    b"target=de",
    b"alternatives=9",
    b"{",
    b"}",
    b'"q"',
    b":",
    b",",
]
FRAGMENTS += [
    b"--b",
    b"--",
    b"\r\n",
    b'Content-Disposition: form-data; name="q"',
    b"; name*=",
    b"; filename=",
    b'"',
    b"\xff",
]
FRAGMENTS += [
    b"[",
    b"]",
    b"null",
    b"1e999",
    b"glossary",
    b"\0",
    b"Content-Type: text/plain; charset=utf-7",
    b"a" * 2_000,
]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join), st.text(max_size=20))
def test_any_body_is_a_request_or_refused(body, boundary):
    model = AlignedCapitals()
    readers = (
        libretranslate.fields_of_form,
        lambda body: libretranslate.fields_of_multipart(body, MULTIPART),
        lambda body: libretranslate.fields_of_multipart(body, f"multipart/form-data; boundary={boundary}"),
        json_object,
    )
    for read in readers:
        try:
            libretranslate.parse(PAIR | read(body), model, Limits())
        except BadRequest as error:
            assert len(str(error)) < 250


def test_request_in_the_documentation():
    page = (CHECKOUT / "docs" / "serving.md").read_text("utf-8")
    (body,) = re.findall(r"""-d '({"q".*?})'""", page)
    assert translate(json.loads(body))[0] == 200
