"""Markup from the text to its translation: in Python, in t2t-decoder, in an export and in the server."""

from __future__ import annotations

import html
import json
import random
import re

import pytest
from helpers.aligned_run import aligned_run
from helpers.marked_lines import with_tags
from helpers.tiny_model import train_pairs

import t2t_repro
from t2t_repro.inference.translator import Translator
from t2t_repro.run import Run
from t2t_repro.saved_model import ALIGNED_SIGNATURE, SavedModel
from t2t_repro.serving import documents, libretranslate, protocol
from t2t_repro.serving.json_values import BadRequest, Limits
from t2t_repro.serving.model import ServedModel

LINES = ["<p>3 red <b>cats</b> &amp; {0} dogs</p>", "12 big cows", "", "<br/>", "<i>12</i> cows < 3"]
TAG = re.compile(r"<[a-z/](?:[^<>'\"]|'[^']*'|\"[^\"]*\")*>")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A run that translates, and whose head is chosen already."""
    return aligned_run(tmp_path_factory.mktemp("marked") / "RUN")


@pytest.fixture(scope="module")
def model(run):
    return t2t_repro.load(run.directory, precision="float32", alignments=True)


@pytest.fixture(scope="module")
def served(run, tmp_path_factory) -> ServedModel:
    folder = str(tmp_path_factory.mktemp("exported") / "E")
    t2t_repro.export(run.directory, folder, precision="float32", alignments=True)
    return ServedModel(folder)


@pytest.mark.parametrize("count", [20, pytest.param(1_000, marks=pytest.mark.slow)])
def test_translations_of_lines_with_nested_tags_are_those_without(model, count):
    rng = random.Random(1)
    pairs = list(train_pairs())
    texts = [rng.choice(pairs)[0] for _ in range(count)]
    lines = [with_tags(rng, re.findall(r"[^ ]+", text))[0] for text in texts]
    plain = model.translate([" ".join(text.split()) for text in texts], beam_size=1)
    found = model.translate(lines, beam_size=1, markup=True)
    for line, text, marked in zip(lines, plain, found, strict=True):
        assert sorted(TAG.findall(marked)) == sorted(TAG.findall(line))
        assert html.unescape(TAG.sub("", marked)) == text
        opened = []
        for tag in TAG.findall(marked):
            if tag.startswith("</"):
                assert re.match(r"<([^\s>]+)", opened.pop())[1] == tag[2:-1]
            elif not tag.endswith("/>"):
                opened.append(tag)
        assert not opened


def test_python(model):
    (best, *_), same, empty, alone, mixed = model.n_best(LINES, 2, markup=True)
    assert (
        [text for text, _ in same] == [text for text, _ in model.n_best(LINES[1:2], 2)[0]]
        and empty == [("", 0.0)]
        and alone == [("<br/>", 0.0)]
    )
    assert re.fullmatch(r"<p>.*</p>", best[0]) and best[0].count("{0}") == best[0].count("<b>") == 1
    assert all(each[0].count("<i>") == 1 for each in mixed) and len(mixed) == 2
    with pytest.raises(ValueError, match="markup is put back by word alignments, which are not loaded"):
        Translator(model.model, model.vocabulary, model.hparams).translate(LINES, markup=True)
    for wrong in ([None], ["\ud800"]):
        with pytest.raises(ValueError, match="^text 1 is "):
            model.translate(wrong, markup=True)


DOCUMENT = (
    "<p>3 red <b>cats.\u00a0 4 old</b> dogs &amp; {0}.</p>\n\n<!-- 1. 2. --><ul\n><li>old <i>dogs</i></li></ul>\n"
)
SENTENCES = ["3 red <b>cats.", "4 old</b> dogs &amp; {0}.", "old <i>dogs</i>"]


def test_documents(model, served, program, run):
    one, two, three = model.translate(SENTENCES, markup=True)
    expected = f"<p>{one}\u00a0 {two}</p>\n\n<!-- 1. 2. --><ul\n><li>{three}</li></ul>\n"
    assert all(expected.count(tag) == 1 for tag in ("<b>", "</b>", "<i>", "</i>", "{0}"))
    assert model.translate_documents([DOCUMENT, "", "<br>"], "en", markup=True) == [expected, "", "<br>"]
    assert t2t_repro.load(served.path).translate_documents([DOCUMENT], "en", markup=True) == [expected]
    request = protocol.parse(
        json.dumps({"inputs": [DOCUMENT], "documents": "en", "markup": True}).encode(),
        served.signatures,
        Limits(),
    )
    parts = documents.split(request, served, Limits())
    found = parts.joined(served.run(parts.request.signature, parts.request.inputs | parts.request.options))
    assert found["outputs"].tolist() == [expected.encode()]
    line = DOCUMENT.partition("\n")[0]
    command = f"--output_dir={run.directory}", "--precision=float32", "--markup", "--documents", "--language=en"
    shown = program("t2t-decoder", *command, stdin=f"{line}\n\n<br>\n".encode())
    assert shown.code == 0 and shown.out.split("\n") == [expected.partition("\n")[0], "", "<br>", ""]
    with pytest.raises(ValueError, match="markup is put back by word alignments, which are not loaded"):
        Translator(model.model, model.vocabulary, model.hparams).translate_documents([line], "en", markup=True)


def test_decoder(program, run, model):
    command = "t2t-decoder", f"--output_dir={run.directory}", "--precision=float32", "--markup"
    stdin = "".join(f"{line}\n" for line in LINES).encode()
    code, out, err = program(*command, stdin=stdin)
    assert code == 0 and out.splitlines() == model.translate(LINES, markup=True) and "alig" not in err


WORDS = "source_words", "words", "links", "probabilities", "confidence", "tokens"


def test_alignments_are_those_of_the_text_without_markup(model, program, run):
    line = "3 red <b>cats</b> &amp; {{ name }} dogs"
    plain, marked = model.n_best(["3 red cats & XY dogs", line], 1), model.n_best([line, "12 big cows"], 1, markup=True)
    (first,), (second,) = marked
    assert first.text.count("<b>") == 1 and first.source_words == ["3", "red", "cats", "&", "{{ name }}", "dogs"]
    assert [getattr(first, name) for name in WORDS[2:]] == [getattr(plain[0][0], name) for name in WORDS[2:]]
    assert len(first.words) == len(plain[0][0].words)
    (same,) = model.n_best(["12 big cows"], 1)
    assert [getattr(second, name) for name in WORDS] == [getattr(same[0], name) for name in WORDS]

    command = "t2t-decoder", f"--output_dir={run.directory}", "--precision=float32", "--markup", "--alignments=json"
    code, out, _ = program(*command, stdin=f"{line}\n12 big cows\n".encode())
    assert code == 0 and [json.loads(each) for each in out.splitlines()] == [first.to_json(), second.to_json()]


def test_alignments_of_documents_have_the_words_and_sentences_of_the_text(model, served, program, run):
    (found,) = model.n_best_documents([DOCUMENT], 1, "en", markup=True)[0]
    parts = [best for (best,) in model.n_best(SENTENCES, 1, markup=True)]
    assert found.text == model.translate_documents([DOCUMENT], "en", markup=True)[0]
    assert found.source_words == "3 red cats. 4 old dogs & {0}. old dogs".split()
    assert found.words == [word for part in parts for word in part.words]
    assert found.probabilities == [each for part in parts for each in part.probabilities]
    shift = len(parts[0].source_words), len(parts[0].words)
    second = [(one + shift[0], other + shift[1]) for one, other in parts[1].links]
    assert second and found.links[len(parts[0].links) :][: len(second)] == second
    assert [tuple(each) for each in found.sentences] == [
        (source, part.text, part.confidence) for source, part in zip(SENTENCES, parts, strict=True)
    ]
    assert [set(each) for each in found.to_json()["sentences"]] == [{"source", "text", "confidence"}] * 3
    assert "sentences" not in parts[0].to_json()

    exported = t2t_repro.load(served.path, alignments=True).n_best_documents([DOCUMENT], 1, "en", markup=True)[0][0]
    assert exported.text == found.text and exported.words == found.words and exported.links == found.links
    fields = {"q": [DOCUMENT, ""], "source": "en", "target": "de", "format": "html"}
    wanted = libretranslate.parse(fields | {"alignments": True, "confidence": True}, served, Limits())
    split = documents.split(wanted.request, served, Limits())
    outputs = split.joined(served.run(split.request.signature, split.request.inputs | split.request.options))
    answer = libretranslate.answer(wanted, outputs, Limits())
    assert json.loads(json.dumps(answer)) == answer
    assert answer["translatedText"] == [found.text, ""]
    assert answer["sourceWords"] == [found.source_words, []] and answer["words"] == [found.words, []]
    assert answer["alignments"] == [[list(link) for link in found.links], []]
    assert [each["text"] for each in answer["sentences"][0]] == [part.text for part in parts]
    assert answer["confidence"][0] == pytest.approx(found.confidence, rel=1e-3) and answer["sentences"][1] == []

    line = DOCUMENT.partition("\n")[0]
    command = "--precision=float32", "--markup", "--documents", "--language=en", "--alignments=json"
    shown = program("t2t-decoder", f"--output_dir={run.directory}", *command, stdin=f"{line}\n".encode())
    (expected,) = model.n_best_documents([line], 1, "en", markup=True)[0]
    assert shown.code == 0 and json.loads(shown.out) == expected.to_json()


def test_served_rows_with_markup_have_their_words(model, served):
    columns = {"inputs": LINES, "n_best": 2, "beam_size": 4}
    found = ask(served, signature_name=ALIGNED_SIGNATURE, inputs=columns, markup=True)["outputs"]
    expected = model.n_best(LINES, 2, markup=True)
    assert [row[0] for row in found["outputs"]] == [each[0].text for each in expected]
    assert [row[0] for row in found["source_words"]] == [each[0].source_words for each in expected]
    assert [row[0] for row in found["words"]] == [each[0].words for each in expected]
    assert [row[0] for row in found["alignments"]] == [each[0].pharaoh for each in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alignments=pharaoh"], "with --markup, give --alignments=json, which has the words"),
        (["--score_file=pairs.tsv"], "--score_file scores given translations; remove --markup"),
    ],
)
def test_wrong_commands(program, run, options, message):
    found = program("t2t-decoder", f"--output_dir={run.directory}", "--markup", *options, stdin=b"a\n")
    assert found.code == 2 and message in found.err and found.out == ""


def ask(served: ServedModel, **body):
    request = protocol.parse(json.dumps(body).encode(), served.signatures, Limits())
    found = served.run(request.signature, request.inputs | request.options)
    return protocol.answer(request, found, Limits())


def test_exports_and_servers_answer_as_the_run(model, served, monkeypatch):
    loaded = t2t_repro.load(served.path)
    expected, found = (
        [[text for text, _ in each] for each in every.n_best(LINES, 2, markup=True)] for every in (model, loaded)
    )
    assert found == expected and loaded.translate([], markup=True) == []
    best = [each[0] for each in expected]
    rows = ask(served, instances=LINES, markup=True)["predictions"]
    assert [row["outputs"] for row in rows] == best and set(rows[0]) == {"outputs", "scores"}
    columns = {"inputs": LINES, "n_best": 2, "beam_size": 4}
    fields = {"q": LINES, "source": "en", "target": "de", "format": "html"}
    wanted = libretranslate.parse(fields, served, Limits())
    outputs = served.run(wanted.request.signature, wanted.request.inputs | wanted.request.options)
    html_texts = libretranslate.answer(wanted, outputs, Limits())["translatedText"]
    assert html_texts == [row["outputs"] for row in rows]
    found = ask(served, signature_name="translate", inputs=columns, markup=True)["outputs"]
    assert [row[0] for row in found["outputs"]] == best and found["outputs"][3] == ["<br/>", ""]
    assert ask(served, inputs=LINES, markup=False) == ask(served, inputs=LINES)
    assert ask(served, inputs=[], markup=True) == ask(served, inputs=[])
    monkeypatch.setattr(SavedModel, "has_alignments", False)
    with pytest.raises(ValueError, match="was exported without alignments; export the run again with them"):
        loaded.translate(["a"], markup=True)


@pytest.mark.slow
def test_markup_with_glossaries_and_samples(model, run, tmp_path):
    t2t_repro.export(run.directory, str(tmp_path / "E"), precision="float32", alignments=True, glossaries=True)
    glossary = {"cats": "Kater"}
    forced = model.translate(LINES, markup=True, glossary=glossary)
    assert "Kater" in TAG.sub("", forced[0]) and forced[0].count("<b>") == 1
    assert t2t_repro.load(str(tmp_path / "E")).translate(LINES, markup=True, glossary=glossary) == forced
    found = ask(ServedModel(str(tmp_path / "E")), instances=LINES, markup=True, glossary=glossary)["predictions"]
    assert [row["outputs"] for row in found] == forced
    (drawn,) = model.sample(LINES[:1], n=2, markup=True)
    assert [each[0].count("</b>") for each in drawn] == [1, 1]


@pytest.mark.parametrize(
    "body, message",
    [
        ({"markup": 1}, '"markup" must be true or false, got a number'),
        ({"markup": None}, '"markup" must be true or false, got null'),
        ({"markup": True, "signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["b"]}}, "score takes no"),
        (
            {"markup": True, "inputs": ["<" * 9_999] * 11},
            "all texts of a request with markup have 109,989 bytes; at most",
        ),
    ],
)
def test_hostile_requests_get_a_reason(served, body, message):
    with pytest.raises(BadRequest) as error:
        protocol.parse(json.dumps({"inputs": ["a"]} | body).encode(), served.signatures, Limits())
    assert message in str(error.value) and len(str(error.value)) < 250


def test_servers_without_alignments_take_no_markup(served):
    older = {name: takes for name, takes in served.signatures.items() if name != ALIGNED_SIGNATURE}
    with pytest.raises(BadRequest, match="was exported without alignments; export the run again with them"):
        protocol.parse(b'{"inputs": ["a"], "markup": true}', older, Limits())
