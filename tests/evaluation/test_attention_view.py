"""Attention views: weights against a plain softmax, the page as text, the figure, and the program."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from helpers.attention_weights import made_up
from helpers.tiny_model import SMALL

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.evaluation import attention_view
from t2t_repro.evaluation.attention_view import END_WORD, START_WORD, Attention, Focus, View, attend
from t2t_repro.inference.translator import Translator
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run

SENTENCE = "3 red cats and 4 old dogs"
NEAR_ONE = 4 * 2**-24  # a softmax of one score: exponential, sum, reciprocal and product are each rounded


@pytest.fixture(scope="module")
def translator(data) -> Translator:
    """Returns two layers of two heads with random weights, and the vocabulary of the small problem."""
    vocabulary = Vocabulary(os.path.join(data, "animals", "vocabulary.model"))
    model = Transformer(vocabulary.size, replace(SMALL, beam_size=1))
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(1.0 if weight.name == "gain" else 0.0, 0.3, weight.shape))
    return Translator(model, vocabulary, model.hparams)


@pytest.fixture(scope="module")
def shown(translator) -> Attention:
    return attend(translator, SENTENCE, "3 rote Katzen und 4 alte Hunde")


def softmax(queries_LK, keys_MK):
    scores_LM = queries_LK @ keys_MK.T / np.sqrt(queries_LK.shape[-1])
    weights_LM = np.exp(scores_LM - scores_LM.max(axis=1, keepdims=True))
    return weights_LM / weights_LM.sum(axis=1, keepdims=True)


def heads(x, weight, count):
    """Returns x W head by head, in float64: `count` matrices."""
    return np.split(np.asarray(x, np.float64) @ weight.numpy().astype(np.float64), count, axis=-1)


@pytest.mark.numeric
def test_every_row_is_a_distribution(shown):
    for view in shown.views.values():
        assert view.weights.shape == (2, 2, len(view.left), len(view.right))
        assert view.weights.dtype == np.float32
        np.testing.assert_allclose(view.weights.sum(axis=-1), 1, rtol=1e-5)
    decoder = shown.views["decoder"].weights
    assert not np.triu(decoder, 1).any()
    np.testing.assert_allclose(decoder[..., 0, 0], 1, rtol=NEAR_ONE)


def test_empty_translation(translator):
    views = attend(translator, SENTENCE, "").views
    assert views["decoder"].weights.shape == (2, 2, 1, 1)
    np.testing.assert_allclose(views["decoder"].weights, 1, rtol=NEAR_ONE)
    assert views["memory"].left == [END_WORD]


@pytest.mark.numeric
def test_weights_equal_a_plain_softmax(translator, shown):
    """Recomputes the first encoder layer from the embeddings, and the last memory attention from its inputs."""
    model = translator.model
    source = np.array(translator.vocabulary.encode([SENTENCE]), np.int32)
    x = model.embed(source, np.arange(source.shape[1]), "source")[0]
    layer = model.encoder_layers[0].self_attention
    for head, (q, k) in enumerate(zip(heads(x, layer.w_q, 2), heads(x, layer.w_k, 2), strict=True)):
        np.testing.assert_allclose(shown.views["encoder"].weights[0, head], softmax(q, k), rtol=1e-4, atol=1e-6)

    entered = []
    layer = model.decoder_layers[-1].memory_attention
    call = layer.call
    layer.call = lambda *inputs, **options: (
        entered.append([each[0] for each in inputs[:2]]),
        call(*inputs, **options),
    )[1]
    try:
        again = attend(translator, SENTENCE, shown.target)
    finally:
        layer.call = call
    [(x, memory)] = entered
    for head, (q, k) in enumerate(zip(heads(x, layer.w_q, 2), heads(memory, layer.w_k, 2), strict=True)):
        np.testing.assert_allclose(again.views["memory"].weights[-1, head], softmax(q, k), rtol=1e-4, atol=1e-6)


def test_recording_has_no_side_effects(translator):
    before = translator.translate([SENTENCE])
    assert attend(translator, SENTENCE).target == before[0]
    assert translator.translate([SENTENCE]) == before


def test_words_of_each_side(shown):
    encoder, memory, decoder = (shown.views[name] for name in attention_view.VIEWS)
    assert "".join(encoder.left) == SENTENCE + END_WORD and encoder.right == encoder.left
    assert "".join(memory.left) == "3 rote Katzen und 4 alte Hunde" + END_WORD and memory.right == encoder.left
    assert decoder.left == memory.left and decoder.right == [START_WORD, *memory.left[:-1]]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("", None, "the sentence is empty"),
        ("  ", None, "the sentence is empty"),
        ("9 " * 150, None, "the sentence has .* tokens; at most 128 can be shown: give a shorter one"),
        ("3 cats", "9 " * 150, "the translation has .* tokens; at most 128"),
    ],
)
def test_sentences_that_cannot_be_shown(translator, source, target, message):
    with pytest.raises(ValueError, match=message):
        attend(translator, source, target)


# The page.


def page_of(attention, tmp_path, focus=Focus(), **about):  # noqa: B008 (it is frozen)
    path = tmp_path / "page.html"
    attention_view.write_page(attention, focus, str(path), **about)
    return path.read_text("utf-8")


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_page_holds_the_weights(shown, tmp_path):
    data = data_of(page_of(shown, tmp_path))
    assert (data["sentence"], data["heads"]) == (SENTENCE, 2)
    for packed, view in zip(data["views"], shown.views.values(), strict=True):
        assert (packed["left"], packed["right"], packed["layers"]) == (view.left, view.right, 2)
        weights = np.frombuffer(base64.b64decode(packed["weights"]), "<u2").reshape(view.weights.shape) / 65535
        np.testing.assert_allclose(weights, view.weights, atol=1e-5)


def test_page_needs_nothing_else(shown, tmp_path):
    page = page_of(shown, tmp_path)
    page = page.replace(re.search(r'id="data">.*?</script>', page, re.DOTALL)[0], "")  # base64 may contain anything
    assert not re.search(r"https?:|//\w|@import|url\(|src=|<link|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "</script><b>", "{{DATA}} & {{TITLE}}", "<!--<script>"])
def test_page_escapes_text(tmp_path, text):
    page = page_of(made_up(f"a {text} b"), tmp_path)
    assert data_of(page)["sentence"] == f"a {text} b"
    assert page.count("<script") == page.count("</script>") == 2 and "<!--" not in page
    assert page.count("<title>") == 1 and "<b>" not in page


def test_focus(tmp_path):
    attention = made_up("The Law , its application")
    first = data_of(page_of(attention, tmp_path))["start"]
    assert first == {"view": 1, "layer": 1, "heads": [0, 1, 2, 3], "words": []}
    chosen = Focus("encoder", 3, (4, 2), "its")
    assert data_of(page_of(attention, tmp_path, chosen))["start"] == {
        "view": 0,
        "layer": 2,
        "heads": [1, 3],
        "words": [3],
    }
    pieces = View("encoder", ["It", " reg", "istr", "ation", ".", END_WORD], [END_WORD], np.ones((1, 1, 6, 1)))
    one = Attention("", "", dict.fromkeys(attention_view.VIEWS, pieces))
    assert data_of(page_of(one, tmp_path, Focus(word="registration")))["start"]["words"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("focus", "message"),
    [
        (Focus(view="all"), "the view must be one of encoder, memory, decoder, got 'all'"),
        (Focus(layer=4), "there is no layer 4: this view has layers 1 to 3"),
        (Focus(heads=(1, 5)), "there is no head 5: this model has heads 1 to 4"),
        (Focus(word="his"), "no word 'his' on the left of this view; the words are: The Law"),
    ],
)
def test_focus_that_does_not_exist(tmp_path, focus, message):
    with pytest.raises(ValueError, match=message):
        page_of(made_up("The Law"), tmp_path, focus)
    assert not list(tmp_path.iterdir())


def test_each_view_has_the_layers_of_its_stack(tmp_path):
    """An encoder of three layers and a decoder of one: the default layer is the second to last of the view."""
    deep, shallow = made_up("The Law"), made_up("The Law", layers=1)
    attention = replace(deep, views=shallow.views | {"encoder": deep.views["encoder"]})
    data = data_of(page_of(attention, tmp_path))
    assert [view["layers"] for view in data["views"]] == [3, 1, 1]
    assert data["start"]["layer"] == 0
    assert data_of(page_of(attention, tmp_path, Focus("encoder")))["start"]["layer"] == 1
    with pytest.raises(ValueError, match="there is no layer 2: this view has layers 1 to 1"):
        page_of(attention, tmp_path, Focus("memory", 2))


@pytest.mark.parametrize("count", [1, 4, 8, 16, 32])
def test_every_head_has_its_own_color(count):
    for background in (attention_view._ON_WHITE, attention_view._ON_BLACK):
        colors = attention_view._colors(count, background)
        assert len(set(colors)) == count and all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)


# The figure.


def test_figure_draws_each_head_in_its_color(tmp_path):
    path = tmp_path / "figure.png"
    colors = attention_view._colors(4, attention_view._ON_WHITE)
    attention = made_up("The $Law$ , its application")  # "$" is not mathematics here
    attention.views["memory"].weights[:] = np.eye(6)  # every line vertical and opaque
    for head in (1, 3):
        attention_view.write_figure(attention, Focus(heads=(head,), word="its"), str(path))
        pixels = (matplotlib.image.imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)
        found = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.unique(pixels, axis=0)}
        assert colors[head - 1] in found and not found & {c for c in colors if c != colors[head - 1]}


def test_figure_draws_weights_of_one_percent(tmp_path):
    """Smaller ones are not drawn, which may be all of a long sentence."""
    path, pictures = tmp_path / "figure.png", []
    attention = made_up("The Law")
    for weight in (0.004, 0.01):
        attention.views["memory"].weights[:] = weight
        attention_view.write_figure(attention, Focus(heads=(1,)), str(path))
        pictures.append(matplotlib.image.imread(path))
    assert np.any(pictures[0] != pictures[1])


# The program.


def test_program(program, trained: Run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = program("t2t-attention", f"--output_dir={trained.directory}", SENTENCE, "--target=3 rote Katzen")
    assert (code, out, err) == (0, "3 rote Katzen\n", "wrote attention.html\n")
    data = data_of((tmp_path / "attention.html").read_text("utf-8"))
    assert (data["target"], data["about"]) == ("3 rote Katzen", "animals, tiny")
    assert data["views"][data["start"]["view"]]["name"] == "memory"

    result = program("t2t-attention", f"--output_dir={trained.directory}", "3 cats")
    assert result == (
        1,
        "",
        "t2t-attention: attention.html already exists; choose another file with --html=FILE\n",
    )

    files = ["--preset=4", "--html=attention.html", "--png=figure.png"]
    code, _, err = program("t2t-attention", f"--output_dir={trained.directory}", *files)
    assert (code, err) == (0, "wrote attention.html and figure.png\n")
    data = data_of((tmp_path / "attention.html").read_text("utf-8"))
    assert data["start"]["view"] == 0  # the figure is of the encoder
    words = data["views"][0]["left"]
    assert "".join(words[n] for n in data["start"]["words"]).strip() == "its"
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give one sentence, in quotes, or --preset (see t2t-attention --help)"),
        (["a", "--preset=3"], 2, "give one sentence, in quotes, or --preset (see t2t-attention --help)"),
        (["a", "b"], 2, "unexpected argument 'b'; flags are written --name=value (see t2t-attention --help)"),
        (["a", "--heads=x"], 2, "--heads takes numbers, such as --heads=5,6, got 'x' (see t2t-attention --help)"),
        (["a", "--output_dir=none"], 1, "--output_dir: no directory 'none'; give the one that t2t-trainer wrote"),
        (["a", "--html=no/page"], 1, "--html: no directory 'no'; create it first"),
        (["a", "--png=no/figure"], 1, "--png: no directory 'no'; create it first"),
        (["a", "--layer=9"], 1, "there is no layer 9: this view has layers 1 to 1"),
        (
            ["a", "--html=same", "--png=./same"],
            2,
            "--html and --png are both './same'; give each a file of its own (see t2t-attention --help)",
        ),
        ([" "], 1, "the sentence is empty; give some text"),
    ],
)
def test_program_reports_errors(program, trained: Run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    given = [f"--output_dir={trained.directory}", "--target=3", *arguments]
    assert program("t2t-attention", *given) == (code, "", f"t2t-attention: {message}\n")
    assert not list(tmp_path.iterdir())
