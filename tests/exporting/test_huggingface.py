"""t2t_repro.exporting.huggingface: the files of an export, and the models that it refuses.

tests/exporting/test_transformers.py loads the files.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CHECKOUT
from helpers.sentences import SENTENCES
from helpers.tiny_model import SMALL, random_model
from keras import ops

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting import huggingface, huggingface_card
from t2t_repro.exporting.exporter import export
from t2t_repro.model.layers import AddNorm, FeedForward, LayerNorm
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")

FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary(SENTENCES, path, "bpe", 400)
    return Vocabulary(path)


def json_of(folder, name):
    return json.loads(Path(folder, name).read_text("utf-8"))


def test_program_writes_a_run(trained, program, tmp_path):
    command = [f"--output_dir={trained.directory}", f"--export_dir={tmp_path / 'E'}", "--format=huggingface"]
    code, out, _ = program("t2t-exporter", *command)
    path = out.strip()
    assert code == 0 and path == str(tmp_path / "E/1")
    assert sorted(os.listdir(path)) == sorted([*FILES, "model_card.json"])
    modes = {stat.S_IMODE(os.stat(os.path.join(path, name)).st_mode) for name in os.listdir(path)}
    assert len(modes) == 1  # safetensors creates files that only their owner can read
    card = json_of(path, "model_card.json")
    assert [card[name] for name in ("format", "precision", "quantization")] == ["huggingface", "float32", "none"]
    assert "constrained" not in card
    readme = Path(path, "README.md").read_text("utf-8")
    assert readme.startswith("---\nlibrary_name: transformers\npipeline_tag: translation\ntags:\n")
    assert f"on the problem `animals` with the hyperparameter set `tiny`: {card['parameters']:,} parameters" in readme
    assert "parser" not in readme and "## Scores" not in readme


def test_configuration_has_what_differs_from_the_defaults(vocabulary, tmp_path):
    model = random_model(vocabulary.size, num_encoder_layers=3, num_heads=3, d_k=3, d_v=4, max_positions=40)
    huggingface.write(model, vocabulary, str(tmp_path / "E"))
    config = json_of(tmp_path / "E", "config.json")
    expected = {"encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    expected |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 44, "d_model": 16}
    expected |= {"vocab_size": 400, "decoder_vocab_size": 400, "scale_embedding": True, "activation_function": "relu"}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    assert config.items() >= (expected | tokens).items()
    search = {"num_beams": 2, "length_penalty": 0.6, "early_stopping": "never"}
    limits = {"bad_words_ids": [[0]], "max_length": 44}
    assert json_of(tmp_path / "E", "generation_config.json") == tokens | search | limits
    huggingface.write(random_model(vocabulary.size, beam_size=1), vocabulary, str(tmp_path / "greedy"))
    assert not search.keys() & json_of(tmp_path / "greedy", "generation_config.json").keys()


def test_weights_are_float32_and_have_no_positions(vocabulary, tmp_path):
    from safetensors import safe_open

    huggingface.write(random_model(vocabulary.size), vocabulary, str(tmp_path / "E"))
    with safe_open(tmp_path / "E/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert {value.dtype for value in found.values()} == {np.dtype("float32")}
    assert not [name for name in found if "position" in name or "embed_tokens" in name or "lm_head" in name]
    model = random_model(vocabulary.size)
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    np.testing.assert_array_equal(found["model.shared.weight"], model.embedding.numpy()[:, order])


def test_tokenizer_has_every_pair_that_forms_a_subword(vocabulary, tmp_path):
    huggingface.write(random_model(vocabulary.size), vocabulary, str(tmp_path / "E"))
    model = json_of(tmp_path / "E", "tokenizer.json")["model"]
    assert list(model["vocab"]) == vocabulary.subwords
    formed = [model["vocab"][left + right] for left, right in model["merges"]]
    assert formed == sorted(formed)  # sentencepiece merges the pair whose subword has the lowest id
    longer = {number for number, subword in enumerate(vocabulary.subwords) if number >= 259 and len(subword) > 1}
    assert set(formed) == longer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "learned"}, "Marian's positions are sinusoids. Received: positions='learned'; export it as a "),
        ({"d_k": 9}, r"a head of Marian is at most d_model / heads = 16 / 2 = 8 wide. Received: d_k=9, d_v=7; export"),
        ({"d_v": 9}, "Received: d_k=5, d_v=9; "),
        ({"num_heads": 17, "d_k": 1, "d_v": 1}, "at most d_model / heads = 16 / 17 = 0 wide"),
        ({"num_heads": 9, "d_k": 2, "d_v": 1}, "at most d_model / heads = 16 / 16 = 1 wide. Received: d_k=2, d_v=1"),
    ],
)
def test_hyperparameters_that_marian_lacks_are_refused(vocabulary, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        huggingface.write(random_model(vocabulary.size, **changes), vocabulary, str(tmp_path / "E"))
    assert not (tmp_path / "E").exists()


def test_other_activation_is_refused(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(FeedForward, "activation", staticmethod(ops.sigmoid))
    with pytest.raises(
        ValueError, match="one of keras.ops' relu, gelu, silu and tanh. Received: sigmoid; export it as"
    ):
        huggingface.write(random_model(vocabulary.size), vocabulary, str(tmp_path / "E"))
    assert not (tmp_path / "E").exists()


def test_pre_norm_is_refused(vocabulary, tmp_path, monkeypatch):
    """docs/changing_the_model.md explains how to write such a model."""

    def pre_norm(self, x_BLD, sublayer, seed=None):
        return x_BLD + self.dropout(sublayer(self.norm(x_BLD)), seed=seed)

    monkeypatch.setattr(AddNorm, "call", pre_norm)
    model = random_model(vocabulary.size)
    with pytest.raises(ValueError, match="Marian normalizes the sum of each residual connection. Received: another"):
        huggingface.write(model, vocabulary, str(tmp_path / "E"))
    model.encoder_norm = LayerNorm(SMALL.d_model)
    with pytest.raises(
        ValueError, match="Marian has the 14,560 weights of the paper's model. Received: 14,592; export"
    ):
        huggingface.write(model, vocabulary, str(tmp_path / "E"))
    assert not (tmp_path / "E").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bfloat16"}, "transformers takes float32 weights. Received: precision='bfloat16'; leave it out"),
        ({"quantization": "int8"}, "transformers takes float32 weights. Received: quantization='int8'; leave it out"),
    ],
)
def test_options_that_it_lacks_are_refused(trained, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export(trained.directory, str(tmp_path / "E"), format="huggingface", **options)
    assert not (tmp_path / "E").exists()


def test_refused_run_leaves_nothing(trained, program, tmp_path):
    wide = replace(trained, directory=str(tmp_path / "RUN"), hparams=replace(trained.hparams, d_k=9))
    wide = wide.start(trained.vocabulary)
    from t2t_repro.training.checkpointing.checkpoints import Checkpoints

    Checkpoints(wide, {"model": random_model(trained.problem.vocab_size, num_layers=1, d_k=9)}, keep=1).save(1)
    command = [f"--output_dir={wide.directory}", f"--export_dir={tmp_path / 'E'}", "--format=huggingface"]
    code, out, err = program("t2t-exporter", *command)
    assert code == 1 and not out and err.count("\n") == 1 and "Received: d_k=9, d_v=7; " in err
    assert not (tmp_path / "E").exists()


def test_interrupted_export_leaves_no_folder(trained, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t2t_repro.exporting.huggingface_card.write", fail)
    with pytest.raises(OSError, match="No space left"):
        export(trained.directory, str(tmp_path / "E"), format="huggingface")
    assert os.listdir(tmp_path / "E") == []


def test_card_of_a_parser_mentions_the_missing_constraint(trained, program, tmp_path):
    problem = replace(trained.problem, train=(), validation=(), test=(), metric="f1")
    parser = replace(trained, directory=str(tmp_path / "RUN"), problem=problem).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, parser.checkpoints, dirs_exist_ok=True)
    command = [f"--output_dir={parser.directory}", f"--export_dir={tmp_path / 'E'}", "--format=huggingface"]
    code, out, err = program("t2t-exporter", *command)
    assert code == 0 and "transformers has no constrained decoding, which this run uses: see README.md" in err
    assert json_of(out.strip(), "model_card.json")["constrained"] is False
    readme = Path(out.strip(), "README.md").read_text("utf-8")
    assert "This model is a parser" in readme and "transformers does not have this\nconstraint" in readme
    assert "pipeline_tag: translation" not in readme


def test_card_has_languages_and_the_scores_of_its_weights(tmp_path):
    path = export(
        str(CHECKOUT / "tests/fixtures/run"), str(tmp_path / "E"), format="huggingface", average_checkpoints=2
    )
    readme = Path(path, "README.md").read_text("utf-8")
    assert '\nlanguage:\n- "en"\n- "de"\n' in readme  # YAML reads no, Norwegian, as false
    assert "| test | 1000 | 4 | 0.6 |  | 54.95 | 64.70 | 2.26 |" in readme


def test_card_leaves_out_scores_of_rounded_weights_and_shortlists(tmp_path):
    score = {"split": "test", "sentences": 9, "beam_size": 4, "alpha": 0.6, "precision": "float32", "bleu": 30.0}
    others = [score | {"int8": True, "bleu": 29.0}, score | {"shortlist": "words.txt", "bleu": 28.0}]
    card = {"problem": {"name": "mine"}, "parameters": 1, "scores": [score, *others]}
    huggingface_card.write(SMALL, str(tmp_path), card, "")
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert "| test | 9 | 4 | 0.6 | float32 | 30.00 |" in readme and "29.00" not in readme and "28.00" not in readme


def test_safetensors_not_installed(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"safetensors is not installed; .*pip install 't2t_repro\[huggingface\]'"):
        export(trained.directory, str(tmp_path / "E"), format="huggingface")
    assert not (tmp_path / "E").exists()
