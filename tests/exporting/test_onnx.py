"""t2t_repro.exporting.onnx: ONNX Runtime reproduces this package's probabilities and translations."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import CHECKOUT
from helpers.sentences import NASTY, SENTENCES
from helpers.tiny_model import random_ids, random_model
from keras import ops

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting import onnx
from t2t_repro.exporting.exporter import export
from t2t_repro.exporting.onnx_graph import Graph, WeightsFile
from t2t_repro.inference.batches import padded
from t2t_repro.inference.translator import Translator
from t2t_repro.model.layers import AddNorm, FeedForward
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.registry import PROBLEMS
from t2t_repro.text.token_ids import EOS

checker = pytest.importorskip("onnx.checker", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

TOLERANCE = 5e-5
FIXTURE = str(CHECKOUT / "tests/fixtures/run")
FILES = ["README.txt", "decoder.onnx", "encoder.onnx", "translate.py", "vocabulary.model", "weights.bin"]
SHAPES = {
    "sinusoids, d_k below d_v": {},
    "learned positions, d_k above d_v": {"positions": "learned", "max_positions": 24, "d_k": 7, "d_v": 5},
    "an encoder deeper than the decoder": {"num_encoder_layers": 3, "num_decoder_layers": 1, "d_k": 6, "d_v": 6},
    "heads that do not divide d_model": {"num_decoder_layers": 3, "num_heads": 3},
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary(SENTENCES, path, "bpe", 400)
    return Vocabulary(path)


def random_translator(vocabulary, **changes):
    """Returns a random model with the scale of logits that training gives: rows of length 1."""
    model = random_model(vocabulary.size, extra_length=8, **changes)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2 and "positions" not in weight.name:
            weight.assign(weight.numpy() / 0.3 * weight.shape[-1] ** -0.5)
    return Translator(model, vocabulary, model.hparams)


def program_of(folder):
    """Returns the module translate.py of an export."""
    spec = importlib.util.spec_from_file_location("translate", Path(folder, "translate.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["translate"] = module
    spec.loader.exec_module(module)
    return module


def log_probabilities(folder, source_BM, target_BL, optimized=True):
    """Returns log p [B, L, V] of every token after the previous ones of the target, by the graphs alone."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    encoder, decoder = (
        onnxruntime.InferenceSession(str(Path(folder, name)), options) for name in ("encoder.onnx", "decoder.onnx")
    )
    inputs = {"source": source_BM.astype(np.int64)}
    names = [each.name for each in encoder.get_outputs()]
    inputs |= zip(names, encoder.run(names, inputs), strict=True)
    caches = [each for each in decoder.get_inputs() if each.name.startswith(("keys_", "values_"))]
    inputs |= {each.name: np.zeros((len(source_BM), each.shape[1], 0, each.shape[3]), np.float32) for each in caches}
    steps = []
    for position, tokens_B in enumerate(np.pad(target_BL, ((0, 0), (1, 0))).T[:-1]):
        inputs["tokens"], inputs["position"] = tokens_B[:, None].astype(np.int64), np.array(position)
        inputs["visible"], inputs["count"] = np.ones((len(source_BM), 1, position + 1), bool), np.array([3])
        names = ["log_probabilities", "likeliest_log_p", "likeliest", *(f"new_{each.name}" for each in caches)]
        log_p_B1V, highest_B1C, likeliest_B1C, *grown = decoder.run(names, inputs)
        np.testing.assert_array_equal(np.take_along_axis(log_p_B1V, likeliest_B1C, axis=2), highest_B1C)
        np.testing.assert_array_equal(highest_B1C, -np.sort(-log_p_B1V, axis=2)[:, :, :3])
        inputs |= {each.name: new for each, new in zip(caches, grown, strict=True)}
        steps.append(log_p_B1V)
    return np.concatenate(steps, axis=1)


def ours(model, source_BM, target_BL):
    return tf.nn.log_softmax(model({"inputs": source_BM, "targets": target_BL})).numpy()


def batch(vocab_size=400):
    """Returns sources of different lengths, and targets."""
    rng = np.random.default_rng(1)
    source_BM = random_ids(rng, vocab_size, 3, 9)
    source_BM[1, 4:] = source_BM[2, 8:] = 0
    return source_BM, random_ids(rng, vocab_size, 3, 12)


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities(vocabulary, tmp_path, shape):
    translator = random_translator(vocabulary, **SHAPES[shape])
    onnx.write(translator.model, vocabulary, str(tmp_path))
    for name in ("encoder.onnx", "decoder.onnx"):
        checker.check_model(str(tmp_path / name), full_check=True)
    expected_BLV = ours(translator.model, *batch())
    assert -expected_BLV.min() > 5
    for optimized in (True, False):
        found_BLV = log_probabilities(tmp_path, *batch(), optimized)
        np.testing.assert_allclose(found_BLV, expected_BLV, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("shape", list(SHAPES)[:2])
def test_beam_search(vocabulary, tmp_path, shape):
    translator = random_translator(vocabulary, **SHAPES[shape])
    onnx.write(translator.model, vocabulary, str(tmp_path))
    program = program_of(tmp_path).Translator(str(tmp_path))
    sources = vocabulary.encode([text[: 3 + 3 * number] for number, text in enumerate(SENTENCES[:12])])
    assert len({len(ids) for ids in sources}) > 3
    for width, alpha in ((1, 0.0), (3, 0.6)):
        found = program.search(sources, width, alpha)
        expected = translator.search(padded(sources), width, alpha, translator.hparams.extra_length)
        rows = zip(found, expected.ids.numpy(), expected.scores.numpy(), strict=True)
        for hypotheses, ids_WL, scores_W in rows:
            possible = scores_W > -1e20
            assert [ids for ids, _ in hypotheses] == [np.trim_zeros(ids, "b").tolist() for ids in ids_WL[possible]]
            np.testing.assert_allclose([score for _, score in hypotheses], scores_W[possible], atol=TOLERANCE)


@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh"])
def test_other_activations(vocabulary, tmp_path, monkeypatch, activation):
    monkeypatch.setattr(FeedForward, "activation", staticmethod(getattr(ops, activation)))
    model = random_translator(vocabulary).model
    onnx.write(model, vocabulary, str(tmp_path))
    np.testing.assert_allclose(log_probabilities(tmp_path, *batch()), ours(model, *batch()), rtol=0, atol=TOLERANCE)


def test_int8_is_close_and_rows_are_independent(vocabulary, tmp_path):
    model = random_translator(vocabulary).model
    onnx.write(model, vocabulary, str(tmp_path), "int8")
    for name in ("encoder.onnx", "decoder.onnx"):
        checker.check_model(str(tmp_path / name), full_check=True)
    source_BM, target_BL = batch()
    expected_BLV, found_BLV = ours(model, source_BM, target_BL), log_probabilities(tmp_path, source_BM, target_BL)
    error = np.sqrt(np.square(found_BLV - expected_BLV).mean()) / expected_BLV.std()
    assert 0.001 < error < 0.05
    for row in range(3):
        alone_BLV = log_probabilities(tmp_path, source_BM[row : row + 1], target_BL[row : row + 1])
        np.testing.assert_allclose(found_BLV[row : row + 1], alone_BLV, rtol=0, atol=TOLERANCE)


def test_int8_products_are_exact_at_the_limits_of_both_ranges(tmp_path):
    """In 16 bits, pairs of 255 * 65 would saturate on a processor without VNNI."""
    rng = np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], (8, 64))
    signs[:3] = np.stack([np.ones(64), -np.ones(64), np.arange(64) % 2 * 2 - 1])
    x_TI, weight_IO = signs * 127, signs.T * 64
    with WeightsFile(str(tmp_path / "weights.bin"), "weights.bin") as weights:
        graph = Graph("product", weights, int8=True)
        result = graph.linear(graph.input("x", np.float32, ["rows", 64]), "w", weight_IO)
        graph.output(result, np.float32, ["rows", 8])
        (tmp_path / "product.onnx").write_bytes(graph.model({}).SerializeToString())
    session = onnxruntime.InferenceSession(str(tmp_path / "product.onnx"))
    (found_TO,) = session.run(None, {"x": x_TI.astype(np.float32)})
    np.testing.assert_allclose(found_TO, x_TI @ weight_IO, rtol=1e-6, atol=0.01)


def test_weights_are_written_once(vocabulary, tmp_path):
    model = random_model(vocabulary.size, num_layers=1, d_model=64, d_ff=256, max_positions=20)
    parameters = model.hparams.num_parameters(vocabulary.size) + 24 * 64  # and positions
    sizes = {}
    for quantization, size in (("none", 4), ("int8", 1)):
        folder = tmp_path / quantization
        onnx.write(model, vocabulary, str(folder), quantization)
        sizes[quantization] = os.path.getsize(folder / "weights.bin")
        assert sizes[quantization] < size * parameters + 12_000
    assert sizes["int8"] < 0.35 * sizes["none"]


def test_program_needs_three_packages():
    tree = ast.parse((CHECKOUT / "t2t_repro/exporting/onnx_translate.py").read_text("utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {
        "numpy",
        "onnxruntime",
        "sentencepiece",
    }


def run_program(folder, text, *options):
    """Runs translate.py as its user does; returns the lines that it prints, and its messages."""
    done = subprocess.run(command(folder, *options), input=text, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n"), done.stderr.decode("utf-8")


def command(folder, *options):
    return [sys.executable, "-I", str(Path(folder, "translate.py")), *options]


def test_program_translates_as_the_run(tmp_path):
    path = export(FIXTURE, str(tmp_path / "E"), format="onnx")
    (corpus,) = PROBLEMS["translate_ende_cldr"].test
    sources = [source for source, _ in itertools.islice(corpus.function(), 60)]
    sources[7:7] = ["", *(text for text in NASTY if "\n" not in text)]
    translator = Translator.from_run(FIXTURE, precision="float32")
    found, messages = run_program(path, "".join(f"{source}\n" for source in sources).encode("utf-8"))
    expected = [text.replace("\n", " ") for text in translator.translate(sources)]
    assert found == expected and found[7] == "" and messages == ""
    text = "".join(f"{source}\r\n" for source in sources[:9])  # of Windows
    assert run_program(path, b"\xef\xbb\xbf" + text.encode("utf-8")) == (expected[:9], "")
    greedy = program_of(path).Translator(path).translate(sources, beam_size=1, alpha=0)
    assert greedy == translator.translate(sources, beam_size=1, alpha=0.0)


def test_program_reports_what_it_cuts(vocabulary, tmp_path):
    onnx.write(random_translator(vocabulary, max_positions=6).model, vocabulary, str(tmp_path))
    (ids,) = vocabulary.encode(SENTENCES[:1])
    found, messages = run_program(tmp_path, f"\n{SENTENCES[0]}".encode(), "--beam_size=1")
    assert messages == f"translate.py: line 2 has {len(ids):,} tokens; the first 5 are translated\n"
    (((expected, _),),) = program_of(tmp_path).Translator(str(tmp_path)).search([[*ids[:5], EOS]], 1, 0.6)
    assert found == ["", *vocabulary.decode([expected])]


def test_program_refuses_what_it_cannot_translate(vocabulary, tmp_path):
    onnx.write(random_model(vocabulary.size), vocabulary, str(tmp_path))
    done = subprocess.run(command(tmp_path), input=b"a\nb\xff\n", capture_output=True, timeout=120)
    message = b"translate.py: line 2 is not UTF-8 (byte 0xff at position 2); convert the text to UTF-8\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", message)
    program = program_of(tmp_path).Translator(str(tmp_path))
    with pytest.raises(ValueError, match="beam_size must be at least 1 and less than half of the vocabulary, got 0"):
        program.translate(["a"], beam_size=0)
    with pytest.raises(ValueError, match="less than half of the vocabulary"):
        program.translate(["a"], beam_size=(vocabulary.size + 1) // 2)
    assert len(program.translate(["a"], beam_size=(vocabulary.size - 1) // 2)) == 1
    with pytest.raises(ValueError, match="alpha must be at least 0 and finite, got -1"):
        program.translate(["a"], alpha=-1)
    with pytest.raises(ValueError, match="texts must be a list of strings, got one string, .a text.; wrap"):
        program.translate("a text")


def test_damage_is_one_line(vocabulary, tmp_path):
    onnx.write(random_model(vocabulary.size), vocabulary, str(tmp_path))
    for name in sorted(set(FILES) - {"README.txt", "translate.py"}):
        whole = Path(tmp_path, name).read_bytes()
        Path(tmp_path, name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match="cannot be loaded; export it again"):
            program_of(tmp_path).Translator(str(tmp_path))
        Path(tmp_path, name).write_bytes(whole)
    Path(tmp_path, "weights.bin").unlink()
    done = subprocess.run(command(tmp_path), input=b"a\n", capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, b"")
    assert re.fullmatch(rb"translate.py: the model in .*; export it again \(.*\)\n", done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="signals and /dev/full")
def test_program_ends_silently_when_nobody_reads_or_the_user_stops_it(vocabulary, tmp_path):
    onnx.write(random_model(vocabulary.size), vocabulary, str(tmp_path))
    text = b"a\n" * 3 * 1_024
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(tmp_path), input=text, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (1, b"translate.py: [Errno 28] No space left on device\n")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command(tmp_path), **pipes) as process:
        process.stdin.write(text)
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT and process.stderr.read() == b""
    with subprocess.Popen(command(tmp_path), **pipes) as process:
        process.stdout.close()
        process.stdin.write(text)
        process.stdin.close()
        assert process.wait(60) == -signal.SIGPIPE and process.stderr.read() == b""


def test_exporter_writes_a_run(trained, program, tmp_path):
    options = [f"--output_dir={trained.directory}", f"--export_dir={tmp_path / 'E'}", "--format=onnx"]
    code, out, _ = program("t2t-exporter", *options, "--quantization=int8")
    path = out.strip()
    assert code == 0 and path == str(tmp_path / "E/1")
    assert sorted(os.listdir(path)) == sorted([*FILES, "model_card.json"])
    card = json.loads(Path(path, "model_card.json").read_text("utf-8"))
    assert [card[name] for name in ("format", "precision", "quantization")] == ["onnx", "float32", "int8"]
    assert "constrained" not in card and "parser" not in Path(path, "README.txt").read_text("utf-8")
    translator = program_of(path).Translator(path)
    h = trained.hparams
    settings = translator.beam_size, translator.alpha, translator.extra_length, translator.max_positions
    assert settings == (h.beam_size, h.alpha, h.extra_length, h.max_positions)


def test_readme_of_a_parser_mentions_the_missing_constraint(trained, program, tmp_path):
    problem = replace(trained.problem, train=(), validation=(), test=(), metric="f1")
    parser = replace(trained, directory=str(tmp_path / "RUN"), problem=problem).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, parser.checkpoints, dirs_exist_ok=True)
    options = [f"--output_dir={parser.directory}", f"--export_dir={tmp_path / 'E'}", "--format=onnx"]
    code, out, err = program("t2t-exporter", *options)
    assert code == 0 and "ONNX Runtime has no constrained decoding, which this run uses: see README.txt" in err
    assert json.loads(Path(out.strip(), "model_card.json").read_text("utf-8"))["constrained"] is False
    assert "This model is a parser" in Path(out.strip(), "README.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bfloat16"}, "ONNX Runtime takes float32 weights. Received: precision='bfloat16'; leave it out"),
        ({"alignments": True}, "the format onnx has no word alignments. Received: alignments=True; leave it out"),
        ({"glossaries": True}, "the format onnx has no glossaries"),
        ({"shortlist": "shortlist.txt"}, "the format onnx decodes with all subwords"),
    ],
)
def test_options_that_it_lacks_are_refused(trained, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export(trained.directory, str(tmp_path / "E"), format="onnx", **options)
    assert not (tmp_path / "E").exists()


def test_changed_model_is_refused(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(FeedForward, "activation", staticmethod(ops.sigmoid))
    with pytest.raises(ValueError, match="the ONNX export has one of keras.ops' relu, gelu, .* Received: sigmoid; "):
        onnx.write(random_model(vocabulary.size), vocabulary, str(tmp_path / "E"))
    monkeypatch.undo()

    def pre_norm(self, x_BLD, sublayer, seed=None):
        return x_BLD + self.dropout(sublayer(self.norm(x_BLD)), seed=seed)

    monkeypatch.setattr(AddNorm, "call", pre_norm)
    with pytest.raises(ValueError, match="the ONNX export normalizes the sum of each residual connection. Received: "):
        onnx.write(random_model(vocabulary.size), vocabulary, str(tmp_path / "E"))
    assert not (tmp_path / "E").exists()


def test_onnx_not_installed(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"onnx is not installed; .*pip install 't2t_repro\[onnx\]'"):
        export(trained.directory, str(tmp_path / "E"), format="onnx")
    assert not (tmp_path / "E").exists()
