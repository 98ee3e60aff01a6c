"""t2t_repro.exporting.exporter: an export is self-contained and gives the results of its run."""

from __future__ import annotations

import functools
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
from helpers.instruction_sets import cpu_flags, instruction_sets
from helpers.tiny_model import PROBLEM, SMALL, random_model, train_pairs

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.evaluation.attention_view import attend
from t2t_repro.exporting import signatures
from t2t_repro.exporting.exporter import export
from t2t_repro.exporting.request_graph import in_batches
from t2t_repro.exporting.signatures import ExportedTranslator
from t2t_repro.inference import ensemble, memory
from t2t_repro.inference.memory import search_bytes
from t2t_repro.inference.translator import Translator
from t2t_repro.model import int8
from t2t_repro.model.transformer import Transformer
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoints import Checkpoints

DEEP = replace(SMALL, num_encoder_layers=3)  # and two layers in the decoder
TEXTS = ["3 red cats and 4 old dogs", "", "12 big cows", "and " * 60, "12 big cows and 1 red dog"]
STRANGER = """
import json, sys
import tensorflow as tf, tensorflow_text

path, texts = sys.argv[1], json.loads(sys.argv[2])
model = tf.saved_model.load(path)
inputs = tf.constant(texts)
best = model.signatures["serving_default"](inputs=inputs)
search = {"beam_size": 3, "alpha": 0.0, "extra_length": 5, "n_best": 2}
search = {name: tf.constant(value) for name, value in search.items()}
several = model.signatures["translate"](inputs=inputs, **search)
scores = model.signatures["score"](inputs=inputs, targets=inputs)
none = model.signatures["serving_default"](inputs=tf.constant([], tf.string))
odd = model.signatures["serving_default"](inputs=tf.constant([b"\\xff\\xfe 3 cats"]))
refused = []
for name, value in {"beam_size": 65, "alpha": -1.0, "extra_length": -1, "n_best": 4}.items():
    try:
        model.signatures["translate"](inputs=inputs, **{**search, name: tf.constant(value)})
    except tf.errors.InvalidArgumentError as error:
        refused.append(error.message.split("assertion failed: [")[1].split("]")[0])
weights = model.signatures["attention"](inputs=inputs[:1], targets=inputs[2:3])
assert not [name for name in sys.modules if name.startswith("t2t_repro")]
print(json.dumps({
    "best": [text.decode() for text in best["outputs"].numpy()],
    "scores": best["scores"].numpy().tolist(),
    "several": [[text.decode() for text in row] for row in several["outputs"].numpy()],
    "log_probabilities": scores["log_probabilities"].numpy().tolist(),
    "tokens": scores["token_log_probabilities"].numpy().sum(axis=1).tolist(),
    "none": len(none["outputs"]),
    "odd": len(odd["outputs"]),
    "refused": refused,
    "pieces": [[piece.decode() for piece in weights[f"{side}_pieces"].numpy()[0]] for side in ("input", "target")],
    "shapes": {name: weights[name].shape.as_list() for name in ("encoder", "memory", "decoder")},
    "rows": {name: float(weights[name].numpy().sum(axis=-1).max()) for name in ("encoder", "memory", "decoder")},
    "memory": weights["memory"].numpy().tolist(),
}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns the directory of an untrained run."""
    folder = tmp_path_factory.mktemp("export")
    vocabulary = str(folder / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], vocabulary, "bpe", PROBLEM.vocab_size)
    sha256 = Vocabulary(vocabulary).sha256
    run = Run(str(folder / "run"), PROBLEM, DEEP, str(folder), 1, "float32", sha256).start(vocabulary)
    Checkpoints(run, {"model": random_model(PROBLEM.vocab_size, num_encoder_layers=3)}, keep=1).save(1)
    return run


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """Returns `exported("int8")`, the path of an export of that run, made once. Do not change it."""

    @functools.cache
    def made(quantization):
        return export(run.directory, str(tmp_path_factory.mktemp("exported")), quantization=quantization)

    return made


def test_no_operation_has_a_gradient_of_its_own(exported):
    """Such an operation makes TensorFlow warn, when the export is loaded, that its gradient is not saved."""
    assert b"_gradient_op_type" not in Path(exported("none"), "saved_model.pb").read_bytes()


@pytest.mark.numeric
@pytest.mark.parametrize("quantization", ["none", pytest.param("int8", marks=pytest.mark.slow)])
def test_export_without_this_package_gives_the_runs_results(run, exported, tmp_path, quantization):
    path = exported(quantization)
    argv = [sys.executable, "-c", STRANGER, path, json.dumps(TEXTS)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    translator = Translator.from_run(run.directory, int8=quantization == "int8")
    n_best = translator.n_best(TEXTS, 1)
    # a number halfway between two steps may be rounded to either, which may change the beam of the longest text
    compared = slice(None) if quantization == "none" else slice(3)
    assert found["best"][compared] == [hypotheses[0][0] for hypotheses in n_best][compared]
    assert found["best"][1] == ""
    tolerance = {"rel": 1e-4} if quantization == "none" else {"rel": 1e-3, "abs": 0.02}
    assert found["scores"] == pytest.approx([hypotheses[0][1] for hypotheses in n_best], **tolerance)
    assert found["several"][0] != [found["best"][0]] * 2
    expected = translator.score([(text, text) for text in TEXTS])
    assert found["log_probabilities"] == pytest.approx(expected, rel=1e-4)
    assert found["tokens"] == pytest.approx(expected, rel=1e-4)
    assert (found["none"], found["odd"]) == (0, 1)
    assert found["refused"] == [
        "beam_size must be from 1 to 64, got",
        "alpha must be at least 0 and finite, got",
        "extra_length must be from 0 to 1024, got",
        "n_best must be at least 1 and at most beam_size, got",
    ]
    shown = attend(translator, TEXTS[0], TEXTS[2])
    assert found["pieces"][0] == [
        translator.vocabulary.subwords[id] for id in translator.vocabulary.encode(TEXTS[:1])[0]
    ]
    read, written = map(len, found["pieces"])
    sizes = {"encoder": [read, read], "memory": [written, read], "decoder": [written, written]}
    layers = {"encoder": 3, "memory": 2, "decoder": 2}
    assert found["shapes"] == {name: [1, layers[name], SMALL.num_heads, *size] for name, size in sizes.items()}
    assert found["rows"] == pytest.approx(dict.fromkeys(sizes, 1.0), abs=1e-5)
    np.testing.assert_allclose(found["memory"][0], shown.views["memory"].weights, atol=1e-5)


HOLDER = """
import json, sys
import tensorflow as tf, tensorflow_text

found = []
for path in sys.argv[2:]:
    model, outputs = tf.saved_model.load(path), {}
    for name in ("serving_default", "translate"):
        function = model.signatures[name]
        search = {"beam_size": 2, "alpha": 0.6, "extra_length": 4, "n_best": 1} if name == "translate" else {}
        search = {key: tf.constant(value) for key, value in search.items()}
        try:
            lines = function(inputs=tf.constant(json.loads(sys.argv[1])), **search)["outputs"].numpy()
            outputs[name] = [line.decode() for line in lines.reshape([-1])]
        except tf.errors.InvalidArgumentError as error:
            outputs[name] = error.message.split("assertion failed: [")[1].split("]")[0]
    found.append(outputs)
print(json.dumps(found))
"""
SHORT = ["3 red cats and 4 old dogs", "", "12 big cows"]
WRONG = "products of 8-bit integers are wrong on this processor: expected 1612900, received 12750; "
WRONG += "export the run without int8"


@pytest.fixture(scope="module")
def int8_exports(run, exported, tmp_path_factory):
    """Returns an 8-bit export, its translations on this machine, and an export with weights up to 127."""
    wrong = str(tmp_path_factory.mktemp("int8") / "wrong")
    right, lines = exported("int8"), t2t_repro.load(exported("int8")).translate(SHORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8, "LARGEST_WEIGHT", 127)
        patch.setattr(ensemble, "must_have_int8", lambda: None)  # as if this machine had VNNI
        save(wrong, run)
    return right, lines, wrong


def save(path: str, run: Run) -> None:
    """Exports only the signatures that decode, with 8-bit integers."""
    module = ExportedTranslator(Translator.from_run(run.directory, int8=True))
    signatures = module.signatures()
    del signatures["score"], signatures["attention"]
    tf.saved_model.save(module, path, signatures=signatures)


@pytest.mark.slow
@pytest.mark.parametrize("name", instruction_sets(cpu_flags()))
def test_int8_export_is_correct_or_refused_on_every_instruction_set(int8_exports, name):
    """Runs the SavedModel without this package. Without VNNI, products of weights up to 127 saturate."""
    right, expected, wrong = int8_exports
    has_vnni = name not in ("AVX2", "AVX512_CORE")
    argv = [sys.executable, "-c", HOLDER, json.dumps(SHORT), right, *([] if has_vnni else [wrong])]
    limit = os.environ | {"ONEDNN_MAX_CPU_ISA": name}
    done = subprocess.run(argv, capture_output=True, text=True, env=limit, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[0] == dict.fromkeys(("serving_default", "translate"), expected)
    assert has_vnni or found[1] == dict.fromkeys(("serving_default", "translate"), WRONG)


@pytest.fixture
def wrong_products(monkeypatch):
    """Makes every 8-bit product a thousandth too large, which is detected only when the graph runs."""
    right = int8._quantized_matmul
    monkeypatch.setattr(int8, "_quantized_matmul", lambda x_NI, matrix: right(x_NI, matrix) * 1.001)
    monkeypatch.setattr(ensemble, "must_have_int8", lambda: None)


def constrained(run, **options) -> Translator:
    """Returns the run with the constraint of parsing."""
    free = Translator.from_run(run.directory, **options)
    return Translator(free.ensemble, free.vocabulary, free.hparams, ParseConstraint(free.vocabulary.subwords))


def test_every_signature_that_decodes_checks_its_products(run, wrong_products):
    signatures = ExportedTranslator(constrained(run, int8=True), "parse").signatures()
    for name in ("serving_default", "translate", "parse"):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"wrong on this processor: expected 812800, received 8136\d\d"
        ):
            signatures[name](np.array(["12 big cows"]))


def test_wrong_products_are_reported_in_one_line(run, exported, tmp_path, wrong_products, program):
    path = str(tmp_path / "exported" / "1")
    save(path, run)
    shutil.copy(f"{exported('int8')}/model_card.json", path)
    reason = WRONG.replace("1612900", "812800").replace("12750", r"8136\d\d")
    with pytest.raises(ValueError, match=rf"^{path} refuses this: {reason}$"):
        t2t_repro.load(path).translate(["12 big cows"])
    code, out, err = program("t2t-serve", f"--export_dir={tmp_path}/exported")
    assert (code, out) == (1, "") and re.fullmatch(rf".* loading version 1 of exported\nt2t-serve: .*{reason}\n", err)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # from TensorFlow's partially loaded model
def test_missing_operation_is_reported_in_one_line(exported, tmp_path, program):
    """Simulates TensorFlow without oneDNN: the file refers to an operation of another name."""
    path = shutil.copytree(exported("int8"), str(tmp_path / "exported" / "1"))
    graph = Path(path, "saved_model.pb")
    assert b"_QuantizedMatMul" in graph.read_bytes()
    graph.write_bytes(graph.read_bytes().replace(b"_QuantizedMatMul", b"_QuantizedMatMux"))
    reason = "Op type not registered '_QuantizedMatMux' in binary running on "
    with pytest.raises(ValueError, match=rf"cannot run here: {reason}[^;\n]*; export it without int8$"):
        t2t_repro.load(path)
    code, out, err = program("t2t-serve", f"--export_dir={tmp_path}/exported")
    assert (code, out) == (1, "") and re.fullmatch(
        rf".* loading version 1 of exported\nt2t-serve: {path} cannot run here: {reason}.*\n", err
    )


def test_scores_are_the_same_in_batches(run, monkeypatch):
    monkeypatch.setattr(signatures, "SCORED_PER_BATCH", 40)
    translator = Translator.from_run(run.directory)
    pairs = [*train_pairs()][:9]
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    module = ExportedTranslator(translator)
    found = module.signatures()["score"](np.array(sources), np.array(targets))
    assert found["log_probabilities"].numpy() == pytest.approx(translator.score(pairs), rel=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 1024 are scored, got"):
        module.signatures()["score"](np.array(["a " * 2_000]), np.array(["a"]))


def test_white_space_alone_gives_an_empty_string(run):
    every = ExportedTranslator(Translator.from_run(run.directory)).signatures()
    translate, n_best = every["serving_default"], every["translate"]
    found = translate(np.array([" ", "\t\u3000", "\u200b"]))
    assert found["outputs"].numpy()[:2].tolist() == [b"", b""] and found["scores"].numpy()[:2].tolist() == [0, 0]
    assert found["scores"].numpy()[2] < 0  # a space of no width is not white space, in Python neither
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    blank = tf.strings.regex_full_match(characters, signatures.BLANK).numpy()
    assert blank.tolist() == [character.isspace() for character in characters]
    several = n_best(np.array([" "]), n_best=np.int32(2))  # the run gives one too
    assert several["outputs"].numpy().tolist() == [[b"", b""]]
    assert several["scores"].numpy().tolist() == [[0, -np.inf]]


def test_options_may_differ_by_row(run):
    translate = ExportedTranslator(Translator.from_run(run.directory)).signatures()["translate"]
    one_each = {
        "beam_size": np.array([3, 1, 3, 2, 3], np.int32),
        "alpha": np.array([0.0, 0.6, 0.0, 1.0, 0.6], np.float32),
        "extra_length": np.array([5, 4, 5, 3, 5], np.int32),
        "n_best": np.array([2, 1, 2, 1, 3], np.int32),
    }
    found = translate(np.array(TEXTS), **one_each)
    assert found["outputs"].shape == [5, 3]
    for row, text in enumerate(TEXTS):
        alone = translate(np.array([text]), **{name: values[row] for name, values in one_each.items()})
        count = one_each["n_best"][row]
        assert found["outputs"][row, :count].numpy().tolist() == alone["outputs"][0].numpy().tolist()
        np.testing.assert_allclose(found["scores"][row, :count], alone["scores"][0], atol=1e-4)
        assert set(found["outputs"][row, count:].numpy()) <= {b""}
        assert set(found["scores"][row, count:].numpy()) <= {-np.inf}
    with pytest.raises(tf.errors.InvalidArgumentError, match="an option is one value, or one for each row, got"):
        translate(np.array(TEXTS), **one_each | {"alpha": np.array([0.0, 0.6], np.float32)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="beam_size must be from 1 to 64, got"):
        translate(np.array(TEXTS), **one_each | {"beam_size": np.array([3, 1, 3, 65, 3], np.int32)})


def test_search_is_split_by_beams_and_vocabulary(run, monkeypatch):
    translator = Translator.from_run(run.directory)
    texts, options = np.array(TEXTS[:3] * 20), [np.int32(8), np.float32(0.6), np.int32(4), np.int32(1)]
    longest = max(map(len, translator.vocabulary.encode(TEXTS[:3]))) + 4
    each = search_bytes(translator.ensemble, PROBLEM.vocab_size, 8, longest)
    expected = ExportedTranslator(translator).signatures()["translate"](texts, *options)
    searched, search = [], Translator.search

    def recorded(self, source_BM, *rest):
        rows = tf.numpy_function(lambda rows: searched.append(int(rows)) or rows, [tf.shape(source_BM)[0]], tf.int32)
        with tf.control_dependencies([rows]):
            return search(self, tf.identity(source_BM), *rest)

    monkeypatch.setattr(Translator, "search", recorded)
    monkeypatch.setattr(signatures, "SEARCH_BYTES", 7 * each)
    found = ExportedTranslator(translator).signatures()["translate"](texts, *options)
    assert sum(searched) == 60 and 7 in searched and max(searched) <= 10  # of the shorter texts more fit
    assert found["outputs"].numpy().tolist() == expected["outputs"].numpy().tolist()

    monkeypatch.setattr(signatures, "SEARCH_BYTES", each - 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="its extra_length and its beam_size need too much memory"):
        ExportedTranslator(translator).signatures()["translate"](texts, *options)


def test_translator_splits_batches_by_memory(run, monkeypatch):
    translator = Translator.from_run(run.directory)
    texts = [f"{number} red cats" for number in range(30)]
    expected, searched, search = translator.translate(texts, beam_size=8), [], Translator.search
    monkeypatch.setattr(
        Translator, "search", lambda self, *given: searched.append(given[0].shape) or search(self, *given)
    )
    longest = max(map(len, translator.vocabulary.encode(texts))) + SMALL.extra_length
    monkeypatch.setattr(memory, "SEARCH_BYTES", 5 * search_bytes(translator.ensemble, PROBLEM.vocab_size, 8, longest))
    assert translator.translate(texts, beam_size=8) == expected
    assert max(rows for rows, _ in searched) <= 5 and sum(rows for rows, _ in searched) == 30


def test_rows_are_counted_in_64_bits():
    """4,096 rows of 2^21 tokens have 2^33 tokens."""
    lengths = tf.fill([4_096], tf.constant(1 << 21, tf.int64))
    seen = []

    def run(start, stop, order):
        seen.append(int(stop - start))
        return (tf.cast(order[start:stop], tf.float32)[:, None],)

    (found,) = in_batches(run, (tf.zeros([0, 1]),), lengths, (1 << 22) // lengths)
    assert set(seen) == {2} and found.numpy()[:, 0].tolist() == list(range(4_096))


def test_a_batch_has_no_more_rows_than_fit_with_any_of_them():
    most_rows = tf.constant([5, 1, 2, 5, 1, 5, 2, 5], tf.int64)
    seen = []

    def run(start, stop, order):
        seen.append(tf.gather(most_rows, order[start:stop]).numpy().tolist())
        return (tf.cast(order[start:stop], tf.float32)[:, None],)

    (found,) = in_batches(run, (tf.zeros([0, 1]),), tf.range(8, dtype=tf.int64) + 3, most_rows)
    assert all(len(batch) <= min(batch) for batch in seen) and max(map(len, seen)) == 4
    assert found.numpy()[:, 0].tolist() == list(range(8))


def test_an_export_takes_the_values_of_its_run(run):
    """Even beyond the limits of requests."""
    translator = Translator.from_run(run.directory)
    translator.hparams = replace(translator.hparams, beam_size=70, extra_length=50, max_positions=40)
    signatures = ExportedTranslator(translator).signatures()
    assert signatures["serving_default"](np.array(["12 cows"]))["outputs"].shape == [1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="beam_size must be from 1 to 70, got"):
        signatures["translate"](np.array(["12 cows"]), beam_size=np.int32(71))
    with pytest.raises(tf.errors.InvalidArgumentError, match="extra_length must be from 0 to 50, got"):
        signatures["translate"](np.array(["12 cows"]), extra_length=np.int32(51))


def test_terms_take_the_memory_of_their_shortest_forms(run, monkeypatch):
    """And rows whose terms need more beams form batches of their own."""
    translator = Translator.from_run(run.directory)
    texts, terms = np.array(["12 cows", "3 cats"] * 3), np.array(["Kühe" + 7 * ("\t" + "x" * 90), ""] * 3)
    each = search_bytes(translator.ensemble, PROBLEM.vocab_size, 8, 60)
    searched, search = [], Translator.search_with_terms

    def recorded(self, source_BM, *rest):
        spelled = tf.numpy_function(lambda found: searched.append(found.tolist()) or found, [rest[-1]], tf.string)
        return search(self, source_BM, *rest[:-1], tf.ensure_shape(spelled, [None]))

    monkeypatch.setattr(Translator, "search_with_terms", recorded)
    monkeypatch.setattr(signatures, "SEARCH_BYTES", 4 * each)
    translate = ExportedTranslator(translator, glossaries=True).signatures()["translate_with_terms"]
    found = translate(texts, terms, beam_size=np.int32(1))["outputs"].numpy()[:, 0]
    assert all("Kühe" in text.decode() for text in found[::2])
    assert sum(map(len, searched)) == 6 and all(len(set(batch)) == 1 for batch in searched)


REFUSED = {
    "score": [
        ([["12"], ["12 " * 2_000]], "a text has too many tokens"),
        ([["12 " * 2_000], ["12"]], "a text has too many tokens"),
        ([["12", "13"], ["12"]], "there must be as many targets as inputs"),
    ],
    "attention": [([["12 cows " * 60] * 4, ["12"] * 4], "attention takes one pair of at most 128 tokens")],
    "translate": [
        ([["12"], 65, 0.6, 4, 1], "beam_size must be from 1 to 64"),
        ([["12"], 4, 0.6, 2_000, 1], "extra_length must be from 0 to"),
    ],
}


@pytest.mark.parametrize("signature", REFUSED)
def test_refused_inputs_are_not_computed(run, monkeypatch, signature):
    """TensorFlow computes everything that does not depend on a check: attention over 30,000 tokens takes gigabytes."""
    computed, encode = [], Transformer.encode

    def recorded(self, source_BM, *rest, **options):
        seen = tf.numpy_function(lambda rows: computed.append(rows) or rows, [tf.shape(source_BM)[0]], tf.int32)
        with tf.control_dependencies([seen]):
            source_BM = tf.identity(source_BM)
        return encode(self, source_BM, *rest, **options)

    monkeypatch.setattr(Transformer, "encode", recorded)
    function = ExportedTranslator(Translator.from_run(run.directory)).signatures()[signature]
    for arguments, message in REFUSED[signature]:
        given = [np.array(each, np.float32 if isinstance(each, float) else None) for each in arguments]
        given = [each.astype(np.int32) if each.dtype == np.int64 else each for each in given]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            function(*given)
        assert not computed


def test_attention_weights_are_counted_in_64_bits(run):
    """2,048 pairs of 1,024 tokens have 2^31 weights per head."""
    translator = Translator.from_run(run.directory)
    text = "€" * 341  # three bytes each, and EOS
    assert [len(ids) for ids in translator.vocabulary.encode([text])] == [1_024]
    attention = ExportedTranslator(translator).signatures()["attention"]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"or more pairs of fewer: got pairs and tokens\] \[2048 1024\]"
    ):
        attention(np.array([text] * 2_048), np.array(["12"] * 2_048))


MEMORY = """
import itertools, resource, sys
import numpy as np
import tensorflow as tf
from t2t_repro.config import HParams
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.inference.translator import Translator
from t2t_repro.exporting.signatures import ExportedTranslator
from t2t_repro.model.transformer import Transformer

rng, path = np.random.default_rng(0), sys.argv[1]
letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
learn_vocabulary(["".join(letters[rng.integers(0, 26, 7)]) for _ in range(60_000)], path, "bpe", 37_000)
h = HParams(name="x", description="", num_layers=1, d_model=16, d_ff=16, num_heads=1, d_k=16, d_v=16, extra_length=2)
model = Transformer(37_000, h)
translate = ExportedTranslator(Translator(model, Vocabulary(path), h)).signatures()["translate"]
options = [tf.constant(64), tf.constant(0.6), tf.constant(2), tf.constant(1)]
translate(tf.constant(["a"]), *options)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert translate(tf.constant(["a"] * 256), *options)["outputs"].shape == [256, 1]
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_memory_of_the_widest_beam_is_bounded(tmp_path):
    """256 rows x 64 beams x 37,000 subwords need 2.4 GB for logits alone."""
    argv = [sys.executable, "-c", MEMORY, str(tmp_path / "vocabulary.model")]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2_048


def test_constrained_search_contains_the_words(run):
    translator = constrained(run)
    sentences = ["3 red cats .", "", " f  ( x )", "12"]
    signatures = ExportedTranslator(translator, "parse").signatures()
    for name in ("parse", "serving_default"):
        found = signatures[name](np.array(sentences))
        assert [text.decode() for text in found["outputs"].numpy()] == translator.translate(sentences)
    assert "parse" not in ExportedTranslator(translator).signatures()


def test_exports_are_numbered_and_complete(run, exported, tmp_path):
    folder = tmp_path / "exported"
    for number in ("1", "2"):
        assert export(run.directory, str(folder), format="ctranslate2") == str(folder / number)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
    card = json.loads(Path(exported("none"), "model_card.json").read_text())
    assert (card["format"], card["quantization"], card["problem"]["name"]) == ("saved_model", "none", "animals")
    assert card["checkpoints"] == ["ckpt-1"] and card["parameters"] == DEEP.num_parameters(PROBLEM.vocab_size)
    assert card["licence"]["code"] == "Apache-2.0" and card["scores"] == []


def test_model_card_has_the_scores_of_these_weights(run, tmp_path):
    scores = [
        {"bleu": 1.0, "checkpoints": ["ckpt-0"], "perplexity": float("inf")},
        {"bleu": 2.0, "checkpoints": ["ckpt-1"]},
    ]
    try:
        for each in scores:
            run.keep_scores(each)
        path = export(run.directory, str(tmp_path / "exported"), format="ctranslate2")
        with open(run.scores, "a") as file:
            file.write("{\n")
        with pytest.raises(ValueError, match="scores.jsonl is damaged: line 3 is not a JSON object"):
            export(run.directory, str(tmp_path / "exported"), format="ctranslate2")
    finally:
        os.remove(run.scores)
    with open(f"{path}/model_card.json") as file:
        card = json.load(file)
    assert card["scores"] == scores[1:] and card["scores_of_other_checkpoints"] == [scores[0] | {"perplexity": None}]


def test_export_is_on_disk_before_it_has_its_name(run, tmp_path, monkeypatch):
    synced, before_name = set(), set()
    fsync, rename = os.fsync, os.rename

    def renamed(*paths):
        before_name.update(synced)
        rename(*paths)

    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.add(os.fstat(descriptor).st_ino), fsync(descriptor)))
    monkeypatch.setattr(os, "rename", renamed)
    path = Path(export(run.directory, str(tmp_path / "exported")))
    assert (path / "variables").is_dir()
    assert {each.stat().st_ino for each in (path, *path.rglob("*"))} <= before_name
    assert path.parent.stat().st_ino in synced


def test_failed_export_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tensorflow.saved_model.save", full)
    with pytest.raises(OSError, match="no space left"):
        export(run.directory, str(tmp_path / "exported"))
    assert list((tmp_path / "exported").iterdir()) == []


def test_number_that_another_export_takes_meanwhile_is_left_to_it(run, tmp_path, monkeypatch):
    def write(*_: object, **__: object) -> None:
        (tmp_path / "exported" / "1").mkdir()
        (tmp_path / "exported" / "1" / "model.bin").write_bytes(b"")

    monkeypatch.setattr("t2t_repro.exporting.ctranslate2.write", write)
    assert export(run.directory, str(tmp_path / "exported"), format="ctranslate2") == str(tmp_path / "exported" / "2")
    assert sorted(os.listdir(tmp_path / "exported")) == ["1", "2"]


def test_sigterm_leaves_nothing_behind(run, tmp_path, monkeypatch, program):
    monkeypatch.setattr("tensorflow.saved_model.save", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    flags = f"--output_dir={run.directory}", f"--export_dir={tmp_path / 'exported'}"
    assert program("t2t_exporter", *flags) == (143, "", "t2t-exporter: stopped by SIGTERM\n")
    assert list((tmp_path / "exported").iterdir()) == [] and signal.getsignal(signal.SIGTERM) is before


def test_export_folder_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; give a directory"):
        export(run.directory, str(tmp_path / "file"))
