"""Vocabulary: every Unicode string is restored, and the ids are the same in Python and in the graph."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from helpers.sentences import NASTY, SENTENCES
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.text.token_ids import EOS, PAD

# Any text, with the characters that mean something to sentencepiece or to the escape more often than chance has them.
ANY_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("\u2581\U00100000\u2585\u2047 01<>\0\t\n\ufffd")
    ),
    max_size=40,
)
PROPERTY = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", params=["bpe", "word_piece"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    learn_vocabulary(SENTENCES, path, request.param, 400)
    vocabulary = Vocabulary(path)
    assert vocabulary.kind == request.param
    return vocabulary


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_unusual_text_is_restored(vocabulary: Vocabulary, text: str):
    ids = vocabulary.encode([text])
    assert vocabulary.decode(ids) == [text]
    tensor = vocabulary.encode_tensor([text])
    assert tensor.to_list() == ids
    assert vocabulary.decode_tensor(tensor.to_tensor()).numpy()[0].decode() == text


@PROPERTY
@given(st.lists(ANY_TEXT, min_size=1, max_size=8))
@example(["\U00100000\u2581", "\u25811\U001000000"])
def test_any_text_is_restored_and_has_equal_ids_in_the_graph(vocabulary: Vocabulary, texts: list[str]):
    import tensorflow as tf

    ids = vocabulary.encode(texts)
    assert all(sequence[-1] == EOS and not {PAD, EOS, 2} & set(sequence[:-1]) for sequence in ids)
    assert vocabulary.decode(ids) == texts
    tensor = vocabulary.encode_tensor(tf.constant(texts))
    assert tensor.dtype == tf.int32
    assert tensor.to_list() == ids
    assert [text.decode() for text in vocabulary.decode_tensor(tensor.to_tensor()).numpy()] == texts


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 399) | st.integers(3, 258), max_size=20), min_size=1, max_size=5))
def test_any_ids_decode_to_the_same_text_in_the_graph(vocabulary: Vocabulary, ids: list[list[int]]):
    import tensorflow as tf

    texts = vocabulary.decode(ids)
    row_lengths = [len(sequence) for sequence in ids]
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(sum(ids, []), tf.int64), row_lengths)
    padded = ragged.to_tensor(default_value=PAD)
    assert [text.decode() for text in vocabulary.decode_tensor(padded).numpy()] == texts


def test_decode_stops_at_the_first_end_and_skips_padding(vocabulary: Vocabulary):
    ids = vocabulary.encode(["big bridge"])[0][:-1]
    assert vocabulary.decode([[PAD, *ids, PAD, EOS, *ids], [EOS], []]) == ["big bridge", "", ""]
    assert vocabulary.decode([]) == vocabulary.encode([]) == []


@pytest.mark.parametrize("token", [-1, 400])
def test_ids_outside_the_vocabulary_are_rejected(vocabulary: Vocabulary, token: int):
    with pytest.raises(ValueError, match=f"id {token} is not in the vocabulary .*, whose ids are 0 to 399"):
        vocabulary.decode([[token]])


def test_many_texts_equal_single_ones(vocabulary: Vocabulary):
    texts = NASTY + SENTENCES
    many = vocabulary.encode(texts)
    assert many == [vocabulary.encode([text])[0] for text in texts]
    assert vocabulary.decode(many) == texts


def test_values_that_are_not_text_are_rejected(vocabulary: Vocabulary):
    with pytest.raises(ValueError, match=r"text 2 is not Unicode: a lone surrogate U\+D800 at character 3"):
        vocabulary.encode(["fine", "no\ud800"])
    with pytest.raises(ValueError, match="text 1 is of type int, expected str"):
        vocabulary.encode([7])  # type: ignore[list-item]


def test_the_graph_can_be_exported(vocabulary: Vocabulary, tmp_path: Path):
    import tensorflow as tf

    class Echo(tf.Module):
        def __init__(self):
            self.tokenizer = vocabulary.tokenizer

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, strings):
            return vocabulary.decode_tensor(vocabulary.encode_tensor(strings).to_tensor())

    tf.saved_model.save(Echo(), str(tmp_path / "echo"))
    echo = tf.saved_model.load(str(tmp_path / "echo"))
    assert [text.decode() for text in echo(tf.constant(NASTY)).numpy()] == NASTY
    assert echo(tf.constant([], tf.string)).shape == [0]
    assert echo(tf.constant([b"a\xffb"])).numpy()[0].decode() == "a\ufffdb"


def test_files_that_are_not_vocabularies_are_rejected(vocabulary: Vocabulary, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no vocabulary .*missing"):
        Vocabulary(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="is not a file; give a vocabulary"):
        Vocabulary(str(tmp_path))
    bad = tmp_path / "bad.model"
    whole = Path(vocabulary.path).read_bytes()
    eos = b"\n\r\n\x04</s>\x15\0\0\0\0\x18\x03"  # as the file has it
    assert eos in whole
    wire = whole.replace(eos, b"\xf5\xf1\xf5\xfa" + eos[4:])  # what sentencepiece reads over
    normal = whole.replace(eos, eos[:-1] + b"\x01")  # no mark any longer, but text
    gone = whole.replace(eos, b"")
    for content in (b"", b"some text\n", whole[:3000], wire, normal, gone):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.model is (not a vocabulary|a sentencepiece model that)"):
            Vocabulary(str(bad))


def test_foreign_sentencepiece_model_is_rejected(tmp_path: Path):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=100, model_type="bpe", minloglevel=4
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    with pytest.raises(ValueError, match="t2t-datagen did not create; give one that it created"):
        Vocabulary(str(tmp_path / "other.model"))


@pytest.mark.corpora
@pytest.mark.parametrize("file", ["multi30k/raw/train.de.gz", "newstest/newstest2014.en-fr.fr.gz"])
def test_real_text_has_equal_ids_in_the_graph(corpora: Path, tmp_path: Path, file: str):
    with gzip.open(corpora / file, "rt", encoding="utf-8", newline="\n") as text:
        lines = [line.removesuffix("\n") for line in text][:3000]
    learn_vocabulary(lines, str(tmp_path / "v"), "bpe", 4000)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    ids = vocabulary.encode(lines)
    tensor = vocabulary.encode_tensor(lines)
    assert tensor.to_list() == ids
    assert vocabulary.decode(ids) == lines
    assert [line.decode() for line in vocabulary.decode_tensor(tensor.to_tensor()).numpy()] == lines


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("pair", "kind", "size"),
    [("en-de", "bpe", 37_000), pytest.param("en-fr", "word_piece", 32_000, marks=pytest.mark.slow)],
)
def test_papers_sizes_are_exact_and_newstest2014_is_restored(
    corpora: Path, tmp_path: Path, pair: str, kind: str, size: int
):
    """All 3,003 lines of both sides, with equal ids in the graph; none of them was learned from."""

    def read(form: str) -> list[str]:
        texts = []
        for side in pair.split("-"):
            with gzip.open(corpora / form.format(pair, side), "rt", encoding="utf-8", newline="\n") as text:
                texts += [line.removesuffix("\n") for line in text]
        return texts

    learn_vocabulary(
        read("wmt_news_other_years/news.{}.{}.gz") + read("tatoeba/tatoeba.{}.{}.gz"), str(tmp_path / "v"), kind, size
    )
    vocabulary = Vocabulary(str(tmp_path / "v"))
    test = read("newstest/newstest2014.{}.{}.gz")
    ids = vocabulary.encode(test)
    assert (vocabulary.size, vocabulary.kind, len(test)) == (size, kind, 6006)
    assert vocabulary.decode(ids) == test
    tensor = vocabulary.encode_tensor(test)
    assert tensor.to_list() == ids
    assert [line.decode() for line in vocabulary.decode_tensor(tensor.to_tensor()).numpy()] == test
