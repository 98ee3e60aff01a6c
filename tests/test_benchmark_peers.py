"""Tests that peers do the work that the benchmarks say they do. Those that need a peer's environment are skipped
without it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import batches, decode, environments, train
from benchmarks.decode_workload import CASES, EOS, ONE_LENGTH, TARGET_TOKENS, pieces
from benchmarks.shapes import SHAPES
from benchmarks.workers import marian_model
from benchmarks.workers.decode_weights import made_model
from t2t_repro.model import transformer

SHAPE = SHAPES["smoke"]


def python(name: str) -> Path:
    """Returns the Python of a peer's environment, or skips the test."""
    found = environments.interpreter(environments.cache_folder(), name)
    if found is None:
        pytest.skip(f"the environment '{name}' of the benchmarks is not installed")
    return found


def test_interpreters_are_those_of_complete_environments(tmp_path: Path) -> None:
    for name in ("marian", "joeynmt"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    (tmp_path / "marian" / "whole").touch()
    found = environments.interpreters(tmp_path)
    assert found.keys() == {"", "marian"} and found["marian"] == tmp_path / "marian" / "bin" / "python"


def test_text_is_left_out_for_peers_that_do_not_decode_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "Worker", FakeWorker)
    pythons = {each.environment: Path("python") for each in decode.PEERS}
    results = decode.measure(decode.PEERS, pythons, [], range(len(CASES)), rounds=1)
    measured = {
        name: [case for case, seconds in result["seconds"].items() if seconds] for name, result in results.items()
    }
    names = [case.name for case in CASES]
    assert measured["Marian int8"] == measured["OpenNMT-tf float32"] == measured["JoeyNMT bfloat16"] == names[:-1]
    assert measured["CTranslate2 int8"] == names


class FakeWorker:
    """A process that answers immediately."""

    def __init__(self, contestant: decode.Contestant, *_: Any):
        self.contestant = contestant

    def run(self, indices: list[int]) -> dict[str, float]:
        return {"seconds": float(len(indices))}

    def end(self) -> dict[str, float]:
        return {"peak_bytes": 2, "imported_bytes": 1}

    def close(self) -> None:
        pass


def theirs(positions_L: Any, d_model: int) -> tf.Tensor:
    """Returns Marian's sinusoids [L, D]: halves, and the rates of tensor2tensor."""
    rates = 10_000.0 ** -(np.arange(d_model // 2) / (d_model // 2 - 1))
    angles = np.asarray(positions_L, np.float64)[:, None] * rates
    return tf.constant(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), tf.float32)


def test_marian_model_has_every_weight_in_row_major_order(tmp_path: Path) -> None:
    model = made_model(SHAPE, "float32")
    marian_model.write(model, pieces(SHAPE.vocab_size), str(tmp_path))
    arrays = dict(np.load(tmp_path / marian_model.MODEL))
    options = json.loads(arrays.pop("special:model.yml").tobytes().removesuffix(b"\0"))
    assert options["dim-vocabs"] == [SHAPE.vocab_size] * 2 and options["transformer-postprocess"] == "dan"
    assert all(array.flags.c_contiguous and array.dtype == np.float32 for array in arrays.values())
    softmax, bias = (arrays.pop(f"decoder_ff_logit_out_{name}") for name in "Wb")
    np.testing.assert_array_equal(softmax, arrays["Wemb"].T)
    assert np.flatnonzero(bias).tolist() == [EOS]
    attention_biases = [arrays.pop(name) for name in list(arrays) if name.endswith(("_bq", "_bk", "_bv", "_bo"))]
    assert len(attention_biases) == 3 * 4 and not any(map(np.any, attention_biases))
    assert sum(array.size for array in arrays.values()) == model.count_params()
    assert (tmp_path / marian_model.VOCABULARY).read_text("utf-8").split("\n")[EOS] == "</s>"


@pytest.mark.slow
def test_marian_gives_our_scores_with_its_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = python("marian")
    monkeypatch.setattr(transformer, "sinusoids", theirs)
    model = made_model(SHAPE, "float32")
    model.embedding.assign(tf.tensor_scatter_nd_update(model.embedding.value, [[0]], tf.zeros((1, SHAPE.d_model))))
    words = pieces(SHAPE.vocab_size)
    marian_model.write(model, words, str(tmp_path))
    sources = ONE_LENGTH[1].sources(SHAPE.vocab_size)
    code = (
        "import json, pymarian, sys\n"
        f"files = {{'models': ['{marian_model.MODEL}'], 'vocabs': ['{marian_model.VOCABULARY}'] * 2}}\n"
        "options = {'beam_size': 4, 'normalize': 1, 'max_length_factor': 1, 'n_best': True, 'allow_unk': True}\n"
        "translator = pymarian.Translator(**files, **options, cpu_threads=1, quiet=True)\n"
        "print(json.dumps(translator.translate(json.load(sys.stdin))))"
    )
    given = json.dumps([" ".join(words[id] for id in ids[:-1]) for ids in sources])
    shown = subprocess.run(
        [interpreter, "-c", code], cwd=tmp_path, input=given, capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(" ||| ") for line in json.loads(shown.splitlines()[-1])]
    targets = np.array([[words.index(word) for word in translation.split()] for _, translation, *_ in rows])
    assert targets.shape == (4 * len(sources), TARGET_TOKENS) and len(np.unique(targets, axis=0)) > 4
    inputs = tf.constant([sources[int(number)] for number, *_ in rows])
    logits = np.array(model({"inputs": inputs, "targets": tf.constant(targets)}))
    logits[..., EOS] = marian_model.NEVER
    log_probabilities = tf.nn.log_softmax(logits).numpy()
    scores = np.take_along_axis(log_probabilities, targets[..., None], axis=2).mean(axis=(1, 2))
    np.testing.assert_allclose([float(row[-1]) for row in rows], scores, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("contestant", ["joeynmt bfloat16", "pytorch float32", "pytorch bfloat16+compile"])
def test_peers_learn_the_batches(contestant: str, tmp_path: Path) -> None:
    module, mode = contestant.split()
    interpreter = python(train.WORKERS[module][0])
    file = str(tmp_path / "batches.npz")
    batches.save(file, batches.make(SHAPE, updates=1))
    worker = train.Worker(train.Contestant(module, mode), interpreter, [f"--model={SHAPE.name}", f"--batches={file}"])
    losses = [worker.run([0] * updates)["loss"] for updates in (1, 40)]
    memory = worker.end()
    worker.close()
    assert np.log(SHAPE.vocab_size) * 1.2 > losses[0] > losses[1]
    assert memory["peak_bytes"] > memory["imported_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "environment"),
    [("decode_marian", "marian"), ("decode_joeynmt", "joeynmt")],
)
def test_peers_decode(module: str, environment: str, tmp_path: Path) -> None:
    interpreter = python(environment)
    if environment == "marian":
        marian_model.write(made_model(SHAPE, "float32"), pieces(SHAPE.vocab_size), str(tmp_path / "marian"))
    contestant = SimpleNamespace(worker=module, mode="float32")
    worker = train.Worker(contestant, interpreter, [f"--model={SHAPE.name}", f"--weights={tmp_path}"])
    assert worker.run([2])["loss"] < 0  # a log-probability
    worker.close()


ARGOS = """
import json, sys
from argostranslate import package, translate
package.install_from_path(sys.argv[1])
print(json.dumps([translate.translate(text, "en", "de") for text in json.load(sys.stdin)]))
"""


@pytest.mark.slow
def test_argos_translate_installs_a_package(tmp_path: Path) -> None:
    """It splits a text by a model in its cache, and translations of sentences have a space between them."""
    from helpers import sentence_splitter, tiny_model

    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.exporting.ctranslate2 import write_argos
    from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

    argos = python("argos")
    pairs, path = list(tiny_model.train_pairs()), str(tmp_path / "vocabulary.model")
    learn_vocabulary([side for pair in pairs for side in pair], path, "bpe", tiny_model.PROBLEM.vocab_size)
    vocabulary = Vocabulary(path)
    problem = replace(tiny_model.PROBLEM, source_language="en", target_language="de")
    write_argos(tiny_model.random_model(vocabulary.size), vocabulary, problem, str(tmp_path / "E"))
    (tmp_path / ".local/share/argos-translate/minisbd").mkdir(parents=True)
    sentence_splitter.write(str(tmp_path / ".local/share/argos-translate/minisbd/en.onnx"))
    texts = ["3 red cats.", "4 old dogs.", "3 red cats. 4 old dogs.\n3 red cats.", ""]
    command = [str(argos), "-c", ARGOS, str(tmp_path / "E" / "en_de.argosmodel")]
    home = {"HOME": str(tmp_path), "PATH": "", "XDG_DATA_HOME": str(tmp_path / ".local/share")}
    found = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, env=home, check=True)
    one, two, both, nothing = json.loads(found.stdout.splitlines()[-1])
    assert both == f"{one} {two}\n{one}" and one != two and nothing == ""
