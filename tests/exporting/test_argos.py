"""Packages of Argos Translate: the files that it reads, and translations that a space separates.

`tests/test_benchmark_peers.py` installs one, if Argos Translate is there: it needs older packages than this project.
"""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny_model import PROBLEM, random_model, train_pairs

import t2t_repro
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting.ctranslate2 import LONGEST, SPACE, must_fit_argos, write_argos
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.registry import PROBLEMS
from t2t_repro.text.token_ids import EOS

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
ENGLISH_GERMAN = replace(PROBLEM, source_language="en", target_language="de")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


@pytest.fixture(params=["sinusoid", "learned"])
def package(request, vocabulary, tmp_path):
    """Returns the model, and the folder of its installed package."""
    model = random_model(vocabulary.size, positions=request.param, max_positions=24, extra_length=8)
    write_argos(model, vocabulary, ENGLISH_GERMAN, str(tmp_path / "written"))
    with zipfile.ZipFile(tmp_path / "written" / "en_de.argosmodel") as archive:
        archive.extractall(tmp_path / "packages")
    return model, tmp_path / "packages" / "en_de"


def processor(folder):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))


def test_files(package, tmp_path):
    _, folder = package
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == [
        "README.md", "metadata.json", "model/config.json", "model/model.bin", "model/shared_vocabulary.json",
        "sentencepiece.model",
    ]  # fmt: skip
    metadata = json.loads((folder / "metadata.json").read_text())
    assert [metadata[key] for key in ("type", "from_code", "from_name", "to_code", "to_name")] == [
        "translate", "en", "English", "de", "German"
    ]  # fmt: skip
    assert metadata["target_prefix"] == SPACE
    assert sorted(os.listdir(tmp_path / "written")) == ["README.md", "en_de.argosmodel"]


@pytest.mark.numeric
def test_prefix_is_a_space_and_a_second_start(package, vocabulary):
    """After the prefix, the first subword has the probabilities that it has at the start."""
    model, folder = package
    engine = ctranslate2.Translator(str(folder / "model"), intra_threads=1)
    pieces = processor(folder).encode([source for source, _ in list(train_pairs())[:5]], out_type=str)
    how = {"beam_size": 1, "max_decoding_length": 1, "return_logits_vocab": True}
    plain = engine.translate_batch(pieces, **how)
    prefixed = engine.translate_batch(pieces, target_prefix=[[SPACE]] * 5, **how | {"max_decoding_length": 2})
    for one, other in zip(plain, prefixed, strict=True):
        assert other.hypotheses[0][0] == SPACE and processor(folder).decode_pieces(other.hypotheses[0])[0] == " "
        first, after = (np.delete(np.array(each.logits[0][-1]), EOS) for each in (one, other))
        assert np.allclose(first, after, atol=1e-5)  # CTranslate2 forbids EOS at the start
    ids = vocabulary.encode(["3 red cats. 4 dogs!  <tab>\t", "\u2047 \u00e9"])
    assert not any(vocabulary.subwords.index(SPACE) in each for each in ids)  # no text has the token


def test_long_sources_have_positions(package):
    """Argos Translate leaves the limit of a source to CTranslate2, which truncates."""
    _, folder = package
    engine = ctranslate2.Translator(str(folder / "model"), intra_threads=1)
    pieces = processor(folder).encode(["a b " * LONGEST], out_type=str)
    assert len(pieces[0]) > LONGEST
    found = engine.translate_batch(pieces, target_prefix=[[SPACE]], beam_size=1, max_decoding_length=4)
    assert found[0].hypotheses[0][0] == SPACE


def test_long_translations_have_positions(package):
    """A translation ends after the 256 tokens of CTranslate2's default, whatever the limits of the run."""
    _, folder = package
    engine = ctranslate2.Translator(str(folder / "model"), intra_threads=1)
    how = {"target_prefix": [[SPACE]], "beam_size": 1, "min_decoding_length": 256}
    assert len(engine.translate_batch([["a"]], **how)[0].hypotheses[0]) == 256


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            PROBLEM,
            "needs the codes of two languages. Received: source_language='', target_language=''; train with both",
        ),
        (replace(ENGLISH_GERMAN, target_language=""), "source_language='en', target_language=''"),
        (replace(ENGLISH_GERMAN, target_language="en"), "source_language='en', target_language='en'"),
        (replace(ENGLISH_GERMAN, target_language="a/b"), "source_language='en', target_language='a/b'"),
        (PROBLEMS["parse_files"], "Argos Translate is for translation, and parse_files is for parsing"),
    ],
)
def test_problems_without_two_languages_are_refused(problem, message):
    with pytest.raises(ValueError) as error:
        must_fit_argos(problem)
    assert message in str(error.value)


def test_a_run_without_languages_is_refused_before_anything_is_written(trained, tmp_path):
    with pytest.raises(ValueError, match="needs the codes of two languages"):
        t2t_repro.export(trained.directory, str(tmp_path / "export"), format="argos")
    assert not (tmp_path / "export").exists()


def test_ctranslate2_not_installed(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"CTranslate2 is not installed; install it with: pip install 't2t_repro\[argos\]'"
    ):
        write_argos(random_model(vocabulary.size), vocabulary, ENGLISH_GERMAN, str(tmp_path / "E"))
