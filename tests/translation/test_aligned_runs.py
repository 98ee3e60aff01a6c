"""From a run to its alignment head, and to the alignments of t2t-decoder, of Python and of an export."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers.aligned_run import CHOSEN, aligned_run
from helpers.tiny_model import silent, train_pairs

import t2t_repro
from t2t_repro.alignment.head import READING, WRITING, AlignmentHead, ChosenHead
from t2t_repro.data.dataset import Dataset
from t2t_repro.exporting.signatures import ExportedTranslator
from t2t_repro.inference.translator import Translator
from t2t_repro.preparation.learning import links, shortlist
from t2t_repro.run import Run
from t2t_repro.serving import documents, libretranslate, protocol
from t2t_repro.serving.json_values import BadRequest, Limits
from t2t_repro.serving.model import JOINED, ServedModel
from t2t_repro.translation import alignments

TEXT = "3 red cats and 4 old dogs\n\n12  big cows\n"


@pytest.fixture
def run(trained, tmp_path) -> Run:
    """A copy of the shared run, whose directory a test may change."""
    shutil.copytree(trained.directory, tmp_path / "RUN")
    return Run.open(str(tmp_path / "RUN"))


@pytest.fixture
def aligned(tmp_path) -> Run:
    """A run that translates, and whose head is chosen already. Its data is missing."""
    return aligned_run(tmp_path / "ALIGNED")


def test_links_of_a_text_in_which_words_correspond():
    """Source word i is always translated by target word i + 50, in another order in each pair."""
    rng = np.random.default_rng(1)
    pairs = []
    for _ in range(300):
        source = rng.choice(np.arange(3, 40), 6, replace=False)
        pairs.append((np.append(source, 1), np.append(rng.permutation(source) + 50, 1)))
    aligner = links.learn(shortlist.sample(pairs, 100, 1_000))
    for source, target in pairs[:20]:
        found = aligner.links(source[:-1], target[:-1])
        assert (source[found] + 50).tolist() == target[:-1].tolist()
    assert aligner.links(np.array([99]), np.array([98])).tolist() == [-1]
    assert aligner.links(np.array([], int), np.array([98])).tolist() == [-1]


def test_agreement():
    found = links.Agreement.of([0, 1, -1, 2], [0, 2, 1, -1])
    assert found == (3, 3, 1) and found.plus(found) == (6, 6, 2)
    assert (found.precision, found.recall, found.f1) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert links.Agreement(0, 0, 0).f1 == 0


def test_the_head_that_points_at_the_links_is_chosen(trained, monkeypatch):
    """Head 2 of layer 1 attends, while a token is read, to what the aligner links it to; no other head does."""
    dataset = Dataset.of_run(trained, None)
    translator = Translator.from_run(trained.directory)
    learned = shortlist.sample(
        alignments.input_pipeline.pairs(dataset.shards("train")), translator.vocabulary.size, alignments.TRAINING_PAIRS
    )
    aligner = links.learn(learned)

    def attention(source_BM, target_BL):
        batch, length = target_BL.shape
        weights = np.zeros([batch, trained.hparams.num_heads, length, source_BM.shape[1]], np.float32)
        for row, (source, target) in enumerate(zip(source_BM.numpy(), target_BL.numpy(), strict=True)):
            source, target = (side[: np.count_nonzero(side)] for side in (source, target))
            weights[row, :, :, len(source) - 1] = 3
            weights[row, 1] = 0
            for place, link in enumerate(aligner.links(source[:-1], target[:-1])):
                weights[row, 1, place + 1, link if link >= 0 else len(source) - 1] = 1
        return (tf.constant(weights),)

    monkeypatch.setattr(translator, "memory_attention", attention)
    found = alignments.choose(translator, dataset, ["ckpt-8"])
    assert found.head == AlignmentHead(1, 2, READING) and found.f1[str(found.head)] == 1
    assert found.writing_head.position == WRITING and found.checkpoints == ("ckpt-8",)
    candidates = (trained.hparams.num_heads + 1) * 2
    assert len(found.f1) == candidates and list(found.f1.values()) == sorted(found.f1.values(), reverse=True)
    assert found.validation_pairs == 10 and found.learned_from == 300


def test_head_is_chosen_when_alignments_are_first_asked_for(program, run):
    command = "t2t-decoder", f"--output_dir={run.directory}", "--alignments=pharaoh"
    code, out, err = program(*command, stdin=TEXT.encode())
    assert code == 0 and "chose layer 1, " in err and os.path.exists(run.alignment)
    before = Path(run.alignment).read_bytes()
    again, out_again, err = program(*command, stdin=TEXT.encode())
    assert (again, out_again) == (0, out) and "chose" not in err and Path(run.alignment).read_bytes() == before
    assert json.loads(before)["checkpoints"] == ["ckpt-8"]
    CHOSEN.save(run.alignment)
    assert Path(run.alignment).read_bytes() != before
    path = t2t_repro.choose_alignment_head(run.directory, report=silent)  # again
    assert path == run.alignment and Path(path).read_bytes() == before


def test_head_that_cannot_be_saved_is_used(program, run, monkeypatch):
    """As in a run directory that is read-only. An explicit choice needs the file."""

    def save(head, path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(ChosenHead, "save", save)
    found = program("t2t-decoder", f"--output_dir={run.directory}", "--alignments=json", stdin=b"w1 w2\n")
    assert found.code == 0 and json.loads(found.out)["source_words"] == ["w1", "w2"]
    assert "it cannot be saved, so the next start chooses again: " in found.err
    with pytest.raises(OSError, match="Read-only file system"):
        t2t_repro.choose_alignment_head(run.directory)


def test_decoder_writes_pharaoh_and_json(program, aligned):
    command = "t2t-decoder", f"--output_dir={aligned.directory}", "--precision=float32"
    plain = program(*command, stdin=TEXT.encode()).out.splitlines()
    lines = program(*command, "--alignments=pharaoh", stdin=TEXT.encode()).out.splitlines()
    assert [line.rpartition("\t")[0] for line in lines] == plain and lines[1] == "\t"
    objects = list(map(json.loads, program(*command, "--alignments=json", stdin=TEXT.encode()).out.splitlines()))
    assert [each["text"] for each in objects] == plain
    model = t2t_repro.load(aligned.directory, precision="float32", alignments=True)
    found = [each for (each,) in model.n_best(TEXT.splitlines(), 1)]
    assert objects == [each.to_json() for each in found] and any(each.links for each in found)
    assert [line.rpartition("\t")[2] for line in lines] == [each.pharaoh for each in found]
    assert objects[2]["source_words"] == ["12", "big", "cows"] and objects[2]["words"] == plain[2].split()


def test_alignments_of_documents_count_the_words_of_the_line(program, aligned):
    command = "t2t-decoder", f"--output_dir={aligned.directory}", "--precision=float32", "--alignments=json"
    sentences = list(map(json.loads, program(*command, stdin=b"12 cats came.\n3 old dogs.\n").out.splitlines()))
    code, out, _ = program(*command, "--documents", stdin=b"12 cats came.  3 old dogs.\n\n")
    document, blank = map(json.loads, out.splitlines())
    assert code == 0 and blank["text"] == ""
    assert document["text"] == "  ".join(each["text"].strip() for each in sentences)
    for name in ("source_words", "words", "probabilities"):
        assert document[name] == [*sentences[0][name], *sentences[1][name]]
    words = len(sentences[0]["words"])
    moved = [[source + 3, target + words] for source, target in sentences[1]["alignment"]]
    assert document["alignment"] == [*sentences[0]["alignment"], *moved]
    code, out, _ = program(*command, "--documents", "--n_best=2", stdin=b"12 cats came.  3 old dogs.\n\n")
    best, second, blank, missing = map(json.loads, out.splitlines())
    assert code == 0 and best == document and second["text"] != best["text"] and second["score"] < best["score"]
    assert blank["score"] == 0 and missing == {"text": "", "score": None}


@pytest.mark.slow
def test_n_best_lists_sampling_and_conversations(program, aligned):
    command = "t2t-decoder", f"--output_dir={aligned.directory}", "--alignments=pharaoh", "--n_best=3"
    for more in ((), ("--sampling_temperature=1",), ("--decode_interactive",)):
        code, out, _ = program(*command, *more, stdin=TEXT.encode())
        rows = [line.split("\t") for line in out.splitlines()]
        assert code == 0 and len(rows) == 9 and {len(row) for row in rows} == {3}
        assert rows[4] == ["-inf", "", ""]
    out = program(*command[:2], "--alignments=json", "--n_best=3", stdin=TEXT.encode()).out
    assert [json.loads(line)["score"] for line in out.splitlines()][4] is None


@pytest.mark.slow
def test_a_resumed_file_has_the_head_in_its_record(program, aligned, tmp_path, monkeypatch):
    source, output = tmp_path / "source.txt", tmp_path / "output.txt"
    source.write_text("".join(f"{text}\n" for text, _ in train_pairs()))
    command = "t2t-decoder", f"--output_dir={aligned.directory}", "--beam_size=1", f"--decode_from_file={source}"
    whole = program(*command, "--alignments=pharaoh", f"--decode_to_file={tmp_path / 'whole.txt'}")
    assert whole.code == 0
    calls = iter(range(1))
    write = t2t_repro.inference.line_windows._Partial.add

    def killed(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(t2t_repro.inference.line_windows._Partial, "add", killed)
    assert program(*command, "--alignments=pharaoh", f"--decode_to_file={output}").code != 0
    monkeypatch.setattr(t2t_repro.inference.line_windows._Partial, "add", write)
    other = ChosenHead(**(vars(CHOSEN) | {"head": AlignmentHead(1, 0, WRITING)}))
    other.save(aligned.alignment)
    refused = program(*command, "--alignments=pharaoh", f"--decode_to_file={output}")
    assert refused.code == 1 and "other alignment" in refused.err
    CHOSEN.save(aligned.alignment)
    assert program(*command, "--alignments=pharaoh", f"--decode_to_file={output}").code == 0
    assert output.read_bytes() == (tmp_path / "whole.txt").read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--alignments=giza"], 2, "pharaoh|json"),
        (["--data_dir=/tmp"], 2, "--data_dir is only to choose the head that aligns; give --alignments or --markup"),
        (["--alignments=json", "--score_file=x"], 2, "--score_file scores given translations; remove --alignments"),
    ],
)
def test_wrong_commands(program, aligned, options, code, message):
    found = program("t2t-decoder", f"--output_dir={aligned.directory}", *options, stdin=b"a\n")
    assert found.code == code and message in found.err and found.out == ""


def test_missing_data_and_damaged_heads_are_one_line(program, run, tmp_path):
    command = "t2t-decoder", f"--output_dir={run.directory}", "--alignments=json", f"--data_dir={tmp_path}"
    found = program(*command, stdin=b"a\n")
    assert found.code == 1 and "choosing the head that aligns needs the data of the run" in found.err
    Path(run.alignment).write_text('{"head": 1}')
    found = program(*command[:3], stdin=b"a\n")
    assert found.code == 1 and "alignment.json is damaged" in found.err.splitlines()[-1] and found.out == ""


def test_exported_alignments_are_those_of_the_run(aligned, tmp_path):
    options = {"precision": "float32", "alignments": True, "glossaries": True}
    path = t2t_repro.export(aligned.directory, str(tmp_path / "export"), **options)
    served = ServedModel(str(tmp_path / "export"))
    lines = [*TEXT.splitlines(), "a b " * 20]
    model = t2t_repro.load(aligned.directory, precision="float32", alignments=True)
    body = {"signature_name": "translate_with_alignments", "inputs": {"inputs": lines, "n_best": 2}}
    glossary = {"cows": "Rinder"}
    for expected, terms in ((model.n_best(lines, 2), {}), (model.n_best(lines, 2, glossary=glossary), glossary)):
        request = protocol.parse(json.dumps(body | {"glossary": terms}).encode(), served.signatures, Limits())
        outputs = served.run(request.signature, request.inputs | request.options)
        answer = protocol.answer(request, outputs, Limits())["outputs"]
        assert sorted(answer) == ["alignments", "confidences", "num_tokens", "outputs", "scores", "word_confidences"]
        assert request.signature in JOINED
        for row, some in enumerate(expected):
            for column, each in enumerate(some):
                if each.text == answer["outputs"][row][column]:  # a list leaves out what differs only in spaces
                    assert answer["alignments"][row][column] == each.pharaoh
                    confidence = each.confidence if lines[row] else 1.0
                    assert answer["confidences"][row][column] == pytest.approx(confidence, rel=1e-3)
                    of_words = [float(value) for value in answer["word_confidences"][row][column].split()]
                    assert of_words == pytest.approx(each.probabilities, abs=1e-3)
        assert [text[0] for text in answer["outputs"]] == [some[0].text for some in expected]
        assert all("Rinder" in text for text in answer["outputs"][2]) == bool(terms) and expected[2][0].links
    languages = dict(zip(("source", "target"), libretranslate.languages_of(served), strict=True))
    fields = {"q": lines[0], "alternatives": 1, "alignments": True, "confidence": True, "source": "en", "target": "de"}
    wanted = libretranslate.parse(fields | {k: v for k, v in languages.items() if v}, served, Limits())
    outputs = served.run(wanted.request.signature, wanted.request.inputs | wanted.request.options)
    found, (best, _) = libretranslate.answer(wanted, outputs, Limits()), model.n_best(lines[:1], 2, 4)[0]
    assert found["translatedText"] == best.text and len(found["alternatives"]) == 1
    assert [tuple(link) for link in found["alignments"]] == best.links
    assert found["wordConfidence"] == pytest.approx(best.probabilities, abs=1e-3)
    assert found["confidence"] == pytest.approx(best.confidence, rel=1e-3)
    with open(f"{path}/model_card.json", encoding="utf-8") as file:
        assert json.load(file)["alignment"] == CHOSEN.head.to_json()
    refused = body | {"inputs": {"inputs": lines, "n_best": 200}}
    request = protocol.parse(json.dumps(refused).encode(), served.signatures, Limits())
    with pytest.raises(t2t_repro.saved_model.WrongInput, match="n_best must be at least 1"):
        served.run(request.signature, request.inputs | request.options)
    unknown = {"signature_name": "translate_with_alignments", "instances": [{"inputs": "a", "alignments": True}]}
    for body in (unknown, unknown | {"instances": [1]}, unknown | {"instances": []}):
        with pytest.raises(BadRequest):
            protocol.parse(json.dumps(body).encode(), served.signatures, Limits())
    check_a_loaded_export(t2t_repro.load(path, alignments=True), model, served)


def check_a_loaded_export(loaded, model, served):
    """An export and a server align sentences and long text as the run does."""
    short = [each.n_best(TEXT.splitlines(), 2, glossary={"cows": "Rinder"}) for each in (loaded, model)]
    text = "12 cats came.  3 old dogs.\n\n\tbig cows\n"
    long = [each.n_best_documents([text, "", " \n"], 3, "en") for each in (loaded, model)]
    for found, expected in [*zip(*short, strict=True), *zip(*long, strict=True)]:
        assert [each.text for each in found] == [each.text for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert (one.links, one.words, one.source_words) == (other.links, other.words, other.source_words)
            assert one.score == pytest.approx(other.score, rel=1e-3) and one.tokens == other.tokens
            assert one.confidence == pytest.approx(other.confidence, rel=1e-3)
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)
    best = long[1][0][0]
    assert len(long[0][0]) > 1 and best.text.count("\n") == 3 and best.links
    body = {"signature_name": "translate_with_alignments", "inputs": {"inputs": [text], "n_best": 3}, "documents": "en"}
    request = protocol.parse(json.dumps(body).encode(), served.signatures, Limits())
    parts = documents.split(request, served, Limits())
    outputs = parts.joined(served.run(parts.request.signature, parts.request.inputs | parts.request.options))
    answer = {name: column[0][0] for name, column in protocol.answer(request, outputs, Limits())["outputs"].items()}
    assert (answer["outputs"], answer["alignments"], answer["num_tokens"]) == (best.text, best.pharaoh, best.tokens)
    assert answer["confidences"] == pytest.approx(best.confidence, rel=1e-3)
    (plain,) = loaded.translate_documents([text], "en")
    (marked,) = loaded.translate_documents([f"<b>{text}</b>"], "en", markup=True)
    assert plain == best.text and "".join(marked.replace("<b>", "").replace("</b>", "").split()) == "".join(
        plain.split()
    )


def test_exports_that_cannot_align(aligned, trained, tmp_path):
    """Without the option an export has no such signature; the transformers format has no alignments."""
    module = ExportedTranslator(Translator.from_run(trained.directory))
    assert "translate_with_alignments" not in module.signatures()
    path = t2t_repro.export(trained.directory, str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="was exported without alignments; export the run again with them"):
        t2t_repro.load(path, alignments=True)
    with pytest.raises(ValueError, match="^the format huggingface has no word alignments"):
        t2t_repro.export(aligned.directory, str(tmp_path / "export"), format="huggingface", alignments=True)
