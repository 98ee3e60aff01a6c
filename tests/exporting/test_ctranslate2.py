"""t2t_repro.exporting.ctranslate2: CTranslate2 reproduces this package's log-probabilities and translations."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_model import PROBLEM, random_model, silent, train_pairs
from helpers.tiny_model import test_pairs as held_out_pairs
from keras import ops

from benchmarks.compare_ctranslate2 import compare, in_float32
from t2t_repro.alignment.head import WRITING, AlignmentHead
from t2t_repro.config import TrainingOptions
from t2t_repro.data import shortlist
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.exporting import exporter
from t2t_repro.exporting.ctranslate2 import write
from t2t_repro.exporting.exporter import export
from t2t_repro.inference.translator import Translator
from t2t_repro.model.layers import AddNorm, FeedForward
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.registry import HPARAMS, PROBLEMS
from t2t_repro.text.token_ids import EOS, PAD, UNKNOWN

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
SHAPES = {
    "sinusoids, d_k below d_v": {},
    "learned positions, d_k above d_v": {"positions": "learned", "max_positions": 24, "d_k": 7, "d_v": 5},
    "an encoder deeper than the decoder": {"num_encoder_layers": 3},
}
LINES = [source for source, _ in itertools.islice(train_pairs(), 40)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary([side for pair in train_pairs() for side in pair], path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


@functools.cache
def model_that_ends(vocab_size, **changes):
    """Returns a random model that never writes PAD and always ends its output, as trained models do."""
    model = random_model(vocab_size, **changes)
    bias = model.decoder_layers[-1].feed_forward_norm.norm.bias.value.numpy()
    embedding = model.embedding.value.numpy()
    embedding[PAD] = -20 * bias / np.square(bias).sum()  # logits of -20 and 2, on average
    embedding[EOS] = 2 * bias / np.square(bias).sum()
    model.embedding.assign(embedding)
    return model


@pytest.fixture(params=SHAPES)
def both(request, vocabulary, tmp_path):
    """Returns a translator, and the folder of its export in float32."""
    model = model_that_ends(vocabulary.size, extra_length=8, **SHAPES[request.param])
    write(model, vocabulary, str(tmp_path / "float32"))
    return Translator(model, vocabulary, model.hparams), str(tmp_path / "float32")


def engine_of(exported):
    return ctranslate2.Translator(
        str(exported), intra_threads=1
    )  # more threads would wait for each other in a busy loop


def pieces_of(exported, texts):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=f"{exported}/vocabulary.model").encode(texts, out_type=str)


@pytest.mark.numeric
def test_log_probabilities(both):
    must_have_equal_scores(*both)


def must_have_equal_scores(translator, exported):
    sources, targets = zip(*held_out_pairs(), strict=True)
    engine = engine_of(exported)
    scored = engine.score_batch(pieces_of(exported, list(sources)), pieces_of(exported, list(targets)))
    theirs = [sum(result.log_probs) for result in scored]
    assert theirs == pytest.approx(translator.score(list(zip(sources, targets, strict=True))), rel=1e-5)
    assert [len(result.tokens) for result in scored] == [len(ids) for ids in translator.vocabulary.encode(targets)]


@pytest.mark.numeric
@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh"])
def test_other_activations(vocabulary, tmp_path, monkeypatch, activation):
    monkeypatch.setattr(FeedForward, "activation", staticmethod(getattr(ops, activation)))
    model = random_model(vocabulary.size)
    write(model, vocabulary, str(tmp_path / "E"))
    must_have_equal_scores(Translator(model, vocabulary, model.hparams), str(tmp_path / "E"))


@pytest.mark.parametrize("format", ["ctranslate2", "argos"])
def test_changed_models_are_refused(trained, tmp_path, monkeypatch, format):
    monkeypatch.setattr(exporter.ctranslate2, "must_fit_argos", lambda problem: None)
    with monkeypatch.context() as changed:
        changed.setattr(FeedForward, "activation", staticmethod(ops.sigmoid))
        with pytest.raises(ValueError, match="CTranslate2 has one of .*Received: sigmoid; export it as a SavedModel"):
            export(trained.directory, str(tmp_path / "E"), format=format)

    def pre_norm(self, x_BLD, sublayer, seed=None):
        return x_BLD + self.dropout(sublayer(self.norm(x_BLD)), seed=seed)

    monkeypatch.setattr(AddNorm, "call", pre_norm)
    with pytest.raises(ValueError, match="CTranslate2 normalizes the sum .* Received: another AddNorm; export it as"):
        export(trained.directory, str(tmp_path / "E"), format=format)
    assert not (tmp_path / "E").exists()


def test_greedy_translations(both):
    translator, exported = both
    engine, decode = engine_of(exported), translator.vocabulary._processor.decode
    ours = translator.translate(LINES, beam_size=1, alpha=0.0)
    theirs = []
    for pieces in pieces_of(exported, LINES):  # ours writes EOS at the maximum length, CTranslate2 stops without it
        greatest = len(pieces) + 1 + translator.hparams.extra_length
        found = engine.translate_batch([pieces], beam_size=1, max_decoding_length=greatest - 1)
        theirs.append(decode(found[0].hypotheses[0]))
    assert theirs == ours and len(set(ours)) > 2


def test_files(both, vocabulary):
    _, exported = both
    assert sorted(os.listdir(exported)) == [
        "README.txt", "config.json", "model.bin", "shared_vocabulary.json", "vocabulary.model"
    ]  # fmt: skip
    with open(f"{exported}/shared_vocabulary.json", encoding="utf-8") as file:
        assert json.load(file) == vocabulary.subwords
    assert Vocabulary(f"{exported}/vocabulary.model").sha256 == vocabulary.sha256


def test_vocabulary_map_limits_the_translations(both, vocabulary, tmp_path, monkeypatch):
    """With `use_vmap`, greedy translations equal ours with the same shortlist."""
    monkeypatch.setattr(shortlist, "OUTPUTS", 1)
    translator, exported = both
    rng = np.random.default_rng(1)
    candidates = {source: rng.integers(3, vocabulary.size, 4).tolist() for source in range(3, vocabulary.size)}
    limited_to = Shortlist(vocabulary.size, [UNKNOWN], candidates)  # CTranslate2 always allows <unk>
    write(translator.model, vocabulary, str(tmp_path / "limited"), shortlist=limited_to)
    assert "use_vmap=True" in (tmp_path / "limited" / "README.txt").read_text(encoding="utf-8")
    limited = Translator(translator.model, vocabulary, translator.hparams, shortlist=limited_to)
    engine, decode = engine_of(tmp_path / "limited"), vocabulary._processor.decode
    free = []
    for line, pieces in zip(LINES[:4], pieces_of(exported, LINES[:4]), strict=True):
        longest = len(pieces) + translator.hparams.extra_length
        options = {"beam_size": 1, "min_decoding_length": 6, "max_decoding_length": longest}
        (theirs,) = engine.translate_batch([pieces], use_vmap=True, **options)
        (ours,) = limited.translate([line], beam_size=1, alpha=0.0, min_length=6)
        assert ours == decode(theirs.hypotheses[0]) != ""
        free.append(engine.translate_batch([pieces], **options)[0].hypotheses != theirs.hypotheses)
    assert any(free)


@pytest.mark.numeric
def test_int8_is_close_and_smaller(both, vocabulary, tmp_path):
    translator, exported = both
    write(translator.model, vocabulary, str(tmp_path / "int8"), "int8")
    pairs = list(held_out_pairs())
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    scored = engine_of(tmp_path / "int8").score_batch(pieces_of(exported, sources), pieces_of(exported, targets))
    assert [sum(result.log_probs) for result in scored] == pytest.approx(translator.score(pairs), rel=0.05)
    sizes = [os.path.getsize(f"{folder}/model.bin") for folder in (exported, tmp_path / "int8")]
    assert sizes[1] < sizes[0]  # only slightly in a narrow model, which consists mostly of scales and positions


def outputs_of_the_note(exported, texts, capsys):
    with open(f"{exported}/README.txt", encoding="utf-8") as file:
        lines = [line.removeprefix("    ") for line in file if line.startswith("    ")]
    exec("".join(lines).replace("FOLDER", exported).replace('["a text", "another"]', repr(texts)), {})
    return eval(capsys.readouterr().out)


def test_example_of_the_note_runs(both, capsys):
    _, exported = both
    assert len(outputs_of_the_note(exported, LINES[:2], capsys)) == 2


def test_example_of_the_note_has_the_limits_of_the_run(vocabulary, tmp_path, capsys):
    """Sources are truncated as by the run, and translations may have more than 256 tokens."""
    model = random_model(vocabulary.size, max_positions=200, extra_length=100, beam_size=1)
    write(model, vocabulary, str(tmp_path))
    text = " ".join(LINES)
    (ids,) = vocabulary.encode([text])
    assert len(ids) > 300
    cut = pieces_of(tmp_path, [text])[0][:199]
    (expected,) = engine_of(tmp_path).translate_batch([cut], beam_size=1, max_decoding_length=300)
    assert len(expected.hypotheses[0]) == 300
    assert outputs_of_the_note(str(tmp_path), [text], capsys) == [vocabulary._processor.decode(expected.hypotheses[0])]


@pytest.mark.parametrize("token", [PAD, EOS])
def test_example_of_the_note_writes_the_tokens_of_the_run(vocabulary, tmp_path, capsys, token):
    """No padding, and an end-of-sentence token anywhere."""
    model = random_model(vocabulary.size, extra_length=2, beam_size=1)
    bias = model.decoder_layers[-1].feed_forward_norm.norm.bias.value.numpy()
    embedding = model.embedding.value.numpy()
    embedding[token] = 50 * bias / np.square(bias).sum()  # the highest logit everywhere
    model.embedding.assign(embedding)
    write(model, vocabulary, str(tmp_path))
    (ours,) = Translator(model, vocabulary, model.hparams).translate(LINES[:1])
    (found,) = outputs_of_the_note(str(tmp_path), LINES[:1], capsys)
    assert (ours == "") is (found == "") is (token == EOS) and found.startswith(ours)


def test_export_of_a_run(trained, tmp_path):
    path = export(trained.directory, str(tmp_path / "E"), format="ctranslate2", quantization="int8")
    with open(f"{path}/model_card.json", encoding="utf-8") as file:
        card = json.load(file)
    assert [card[name] for name in ("format", "precision", "quantization")] == ["ctranslate2", "float32", "int8"]
    assert engine_of(path).translate_batch([["a"]], max_decoding_length=2)
    with pytest.raises(ValueError, match="quantization must be one of none, int8, got 'int4'"):
        export(trained.directory, str(tmp_path / "E"), format="ctranslate2", quantization="int4")
    assert os.listdir(tmp_path / "E") == ["1"]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_note_gives_the_runs_length_penalty(vocabulary, tmp_path, alpha):
    model = model_that_ends(vocabulary.size, alpha=alpha)
    write(model, vocabulary, str(tmp_path / "E"))
    note = (tmp_path / "E/README.txt").read_text("utf-8")
    assert f'"length_penalty": {alpha}, ' in note and "parser" not in note


def test_note_of_a_parser_mentions_the_missing_constraint(trained, program, tmp_path):
    problem = replace(trained.problem, train=(), validation=(), test=(), metric="f1")
    parser = replace(trained, directory=str(tmp_path / "RUN"), problem=problem).start(trained.vocabulary)
    shutil.copytree(trained.checkpoints, parser.checkpoints, dirs_exist_ok=True)
    for format, constrained in (("ctranslate2", False), ("saved_model", True)):
        command = [f"--output_dir={parser.directory}", f"--export_dir={tmp_path / 'E'}", f"--format={format}"]
        code, out, err = program("t2t-exporter", *command)
        assert code == 0 and json.loads(Path(out.strip(), "model_card.json").read_text())["constrained"] is constrained
        assert ("has no constrained decoding" in err) is not constrained
        if not constrained:
            assert "This model is a parser" in Path(out.strip(), "README.txt").read_text("utf-8")


def test_ctranslate2_not_installed(both, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"CTranslate2 is not installed; .*pip install 't2t_repro\[ctranslate2\]'"):
        write(both[0].model, vocabulary, str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_trained_run_gives_the_same_translations(tmp_path):
    """Trains `tiny` for 400 steps on the built-in problem, and decodes its 1,000 test sentences greedily and with beam
    4."""
    import tensorflow as tf

    from t2t_repro.preparation.pipeline import prepare
    from t2t_repro.training.trainer import train

    problem, hparams = PROBLEMS["translate_ende_cldr"], HPARAMS["tiny"].override(["train_steps=400"])
    prepare(problem, str(tmp_path), silent)
    with pytest.MonkeyPatch.context() as patch:
        one_cpu = functools.partial(tf.distribute.MirroredStrategy, ["CPU:0"])
        patch.setattr(tf.distribute, "MirroredStrategy", one_cpu)
        run = train(
            problem, hparams, str(tmp_path), str(tmp_path / "RUN"), TrainingOptions(precision="bfloat16"), report=silent
        )
    exported = export(run.directory, str(tmp_path / "E"), format="ctranslate2")
    (corpus,) = problem.test
    pairs = list(corpus.function())
    translator = in_float32(run.directory)
    greedy, beam = (compare(translator, exported, [source for source, _ in pairs], size) for size in (1, 4))
    print({key: value for found in (greedy, beam) for key, value in found.items() if key != "lines"})
    right = np.mean(
        [a == b for a, b in zip(translator.translate([s for s, _ in pairs]), [t for _, t in pairs], strict=True)]
    )
    assert right > 0.2  # it has learned to translate
    assert greedy["different"] == greedy["why"]["alike"] + greedy["why"]["cut off"] <= 10
    # measured: 78 of 1,000, of which 17 are truncated and 59 are likelier by this package's search, which continues
    # while a better one is possible; CTranslate2's is likelier in 2
    assert beam["different"] <= 120 and beam["why"]["theirs"] <= 10


@pytest.mark.parametrize("head", [AlignmentHead(1, 2, WRITING), AlignmentHead(2, 0, WRITING)], ids=str)
def test_attention_is_that_of_the_head_that_aligns(vocabulary, tmp_path, head):
    model = model_that_ends(vocabulary.size, extra_length=8)
    translator = Translator(model, vocabulary, model.hparams)
    write(model, vocabulary, str(tmp_path / "aligned"), head=head)
    write(model, vocabulary, str(tmp_path / "plain"))
    assert "return_attention=True" in (tmp_path / "aligned" / "README.txt").read_text(encoding="utf-8")
    assert "return_attention" not in (tmp_path / "plain" / "README.txt").read_text(encoding="utf-8")
    options = {"beam_size": 1, "return_attention": True, "return_end_token": True}
    compared = 0
    for line, pieces in zip(LINES[:6], pieces_of(tmp_path / "aligned", LINES[:6]), strict=True):
        (found,) = engine_of(tmp_path / "aligned").translate_batch([pieces], **options)
        (plain,) = engine_of(tmp_path / "plain").translate_batch([pieces], **options)
        assert found.hypotheses == plain.hypotheses  # another order of the heads computes the same
        ids = [vocabulary.subwords.index(token) for token in found.hypotheses[0]]
        weights = translator.memory_attention(np.array(vocabulary.encode([line]), np.int32), np.array([ids], np.int32))[
            head.layer - 1
        ].numpy()[0]
        expected = weights[head.head - 1] if head.head else weights.mean(axis=0)
        theirs = np.array(found.attention[0])
        rows = min(len(theirs), len(expected))
        assert theirs.shape[1] == len(pieces)  # without the end-of-sentence token, as README.txt says
        np.testing.assert_allclose(theirs[:rows], expected[:rows, : theirs.shape[1]], atol=1e-4)
        compared += rows
    assert compared > 10
