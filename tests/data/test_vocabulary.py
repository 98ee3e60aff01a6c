"""The vocabulary: exact size, every Unicode string there and back, and the same ids in Python and in the graph."""

from __future__ import annotations

import gzip
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from t2t_repro.data.vocabulary import END, PAD, Vocabulary, learn

ADJECTIVES, NOUNS = "small big red old new warm quiet".split(), "house tree river garden letter bridge".split()
SENTENCES = [
    f"The {adjective} {noun} is number {number}." if number % 2 else f"Das {noun}-Haus: {adjective}, {number} Stück!"
    for number, (adjective, noun) in enumerate(
        itertools.islice(itertools.cycle(itertools.product(ADJECTIVES, NOUNS)), 300)
    )
]
NASTY = [
    *["", "\0", "a\0b", "\n", "a\nb\r\n", "\t", " ", " x", "x ", "  x  y  ", "\u2028", "\u0085", "\ufeffx", "\u00a0"],
    *[
        "👩‍👩‍👧 🇩🇪",
        "e\u0301 é \u0301",
        "漢字かな交じり文",
        "\ue000\uf8ff\U0010fffd",
        "\ufffe\uffff\U0010ffff",
        "\ufffd",
    ],
    *["<unk>", "</s>", "<pad>", "<s>", "<0x41>", " ⁇ ", "\u2047", "\u2585", "ﬁ Å Å ½ Ⅳ", "İıſß"],
    *[
        "\u2581",
        "a\u2581b",
        " \u2581 ",
        "\u25811",
        "\U00100000",
        "\U001000000",
        "\U001000001",
        "\U00100000\u25810\u2581",
    ],
]
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
    learn(SENTENCES, path, request.param, 400)
    vocabulary = Vocabulary(path)
    assert vocabulary.kind == request.param
    return vocabulary


@pytest.mark.parametrize("size", [320, 333, 512])
def test_size_is_exact(tmp_path: Path, size: int):
    assert learn(SENTENCES, str(tmp_path / "v"), "bpe", size) == len(SENTENCES)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert (vocabulary.size, vocabulary.kind) == (size, "bpe")
    assert max(max(ids) for ids in vocabulary.encode(SENTENCES)) < size


def test_what_a_piece_may_hold(tmp_path: Path):
    """Within a word everything, and never a space but at its start; with "bpe" letters or what is none."""
    texts = ["Version2.0 (beta), Version2.0 (beta)! "] * 50
    found = {}
    for kind in ("bpe", "word_piece"):
        with pytest.raises(ValueError, match=r"at most (\d+)") as error:
            learn(texts, str(tmp_path / kind), kind, 5000)
        learn(texts, str(tmp_path / kind), kind, int(str(error.value).split("at most ")[1].split(";")[0]))
        processor = Vocabulary(str(tmp_path / kind))._processor
        found[kind] = processor.encode(" Version2.0 (beta),", out_type=str)
    assert found["word_piece"] == ["▁Version2.0", "▁(beta),"]
    assert found["bpe"][:2] == ["▁Version", "2.0"] and "beta" in found["bpe"]


def test_a_size_that_the_text_cannot_give(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "v"
    with pytest.raises(ValueError, match=r"vocab_size 5000 is more than .*: 300 sentences give at most (\d+)") as error:
        learn(SENTENCES, str(path), "bpe", 5000)
    most = int(str(error.value).split("at most ")[1].split(";")[0])
    assert learn(SENTENCES, str(path), "bpe", most)
    assert Vocabulary(str(path)).size == most
    path.unlink()
    with pytest.raises(ValueError, match=f"at most {most}"):
        learn(SENTENCES, str(path), "bpe", most + 1)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_size_without_room_for_the_characters(tmp_path: Path):
    with pytest.raises(ValueError, match=r"vocab_size 270 is too small .* ask for (\d+) or more") as error:
        learn(SENTENCES, str(tmp_path / "v"), "bpe", 270)
    least = int(str(error.value).split("ask for ")[1].split()[0])
    learn(SENTENCES, str(tmp_path / "v"), "bpe", least)
    assert Vocabulary(str(tmp_path / "v")).size == least


def test_rare_characters_take_no_more_than_half(tmp_path: Path):
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
    learn([*SENTENCES * 20, rare], str(tmp_path / "v"), "bpe", 459)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert 40 < vocabulary.characters <= 100
    assert vocabulary.decode(vocabulary.encode([rare])) == [rare]


RARE = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))


@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_a_character_rarer_than_one_in_two_million_becomes_bytes(tmp_path: Path, kind: str):
    texts = [*SENTENCES * 500, RARE, "ΩΩ", "ΩΩ"]
    assert 3 * 2_000_000 > sum(map(len, texts)) > 2 * 2_000_000
    learn(texts, str(tmp_path / "v"), kind, 400)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert not set(RARE) & set(vocabulary.pieces) and "Ω" in vocabulary.pieces
    assert (vocabulary.size, vocabulary.characters) == (400, len({*"".join(SENTENCES), "Ω"}))
    assert vocabulary.decode(vocabulary.encode([RARE, "xΩ乀"])) == [RARE, "xΩ乀"]


def test_in_little_text_every_character_is_a_subword(tmp_path: Path):
    learn([*SENTENCES, RARE], str(tmp_path / "v"), "bpe", 500)
    assert set(RARE) < set(Vocabulary(str(tmp_path / "v")).pieces)


def test_the_least_count_can_be_given(tmp_path: Path):
    texts = [*SENTENCES, RARE, "ΩΩΩ"]
    for least, kept in ((1, {*RARE, "Ω"}), (2, {"Ω"}), (3, {"Ω"}), (4, set())):
        learn(texts, str(tmp_path / f"v{least}"), "bpe", 500, min_character_count=least)
        assert {*RARE, "Ω"} & set(Vocabulary(str(tmp_path / f"v{least}")).pieces) == kept


def test_without_rare_characters_the_least_count_changes_nothing(tmp_path: Path):
    for least in (0, 1, 5):
        learn(SENTENCES * 2, str(tmp_path / f"v{least}"), "word_piece", 400, min_character_count=least)
    assert len({Vocabulary(str(tmp_path / f"v{least}")).sha256 for least in (0, 1, 5)}) == 1


def test_rare_characters_fill_a_vocabulary_that_the_text_cannot_fill_otherwise(tmp_path: Path):
    """The size stays exact: a, b and the space, "ab" and " ab", and then the 60 rare ones."""
    texts = ["ab ab"] * 1_000 + list(RARE)
    for size, characters in ((259 + 5, 3), (259 + 5 + 60, 63)):
        learn(texts, str(tmp_path / "v"), "bpe", size, min_character_count=2)
        vocabulary = Vocabulary(str(tmp_path / "v"))
        assert (vocabulary.size, vocabulary.characters) == (size, characters)


@pytest.mark.parametrize(
    ("texts", "kind", "size", "message"),
    [
        (SENTENCES, "bpe", 259, "vocab_size must be at least 260, got 259"),
        (SENTENCES, "words", 400, "vocab_kind must be one of bpe, word_piece, got 'words'"),
        (iter(SENTENCES), "bpe", 400, "goes through its texts twice"),
        ([], "bpe", 400, "no text to learn a vocabulary from"),
        (["", ""], "bpe", 400, "no text to learn a vocabulary from"),
        (["fine", "not \udc80"], "bpe", 400, r"text 2 is not Unicode: a lone surrogate U\+DC80 at character 5"),
    ],
)
def test_what_cannot_be_learnt_from(tmp_path: Path, texts, kind: str, size: int, message: str):
    with pytest.raises(ValueError, match=message):
        learn(texts, str(tmp_path / "v"), kind, size)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_the_same_whatever_the_threads(tmp_path: Path):
    hashes = set()
    for threads in (1, 2, 7):
        learn(SENTENCES, str(tmp_path / f"v{threads}"), "bpe", 400, num_threads=threads)
        hashes.add(Vocabulary(str(tmp_path / f"v{threads}")).sha256)
    assert len(hashes) == 1


def test_no_text_is_skipped_at_learning(tmp_path: Path):
    """sentencepiece by itself leaves out lines beyond 4,192 bytes and those with its mark U+2585."""
    long, marked = "Zyzzyva " * 10_000, "\u2585 Quokka " * 50
    learn([*SENTENCES, long, marked], str(tmp_path / "v"), "bpe", 400)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert len(vocabulary.encode([" Zyzzyva Quokka"])[0]) == 3


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_nasty_text_returns(vocabulary: Vocabulary, text: str):
    ids = vocabulary.encode([text])
    assert vocabulary.decode(ids) == [text]
    tensor = vocabulary.encode_tensor([text])
    assert tensor.to_list() == ids
    assert vocabulary.decode_tensor(tensor).numpy()[0].decode() == text


@PROPERTY
@given(st.lists(ANY_TEXT, min_size=1, max_size=8))
@example(["\U00100000\u2581", "\u25811\U001000000"])
def test_every_text_returns_and_has_equal_ids_in_the_graph(vocabulary: Vocabulary, texts: list[str]):
    import tensorflow as tf

    ids = vocabulary.encode(texts)
    assert all(sequence[-1] == END and not {PAD, END, 2} & set(sequence[:-1]) for sequence in ids)
    assert vocabulary.decode(ids) == texts
    tensor = vocabulary.encode_tensor(tf.constant(texts))
    assert tensor.dtype == tf.int32
    assert tensor.to_list() == ids
    assert [text.decode() for text in vocabulary.decode_tensor(tensor).numpy()] == texts


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 399) | st.integers(3, 258), max_size=20), min_size=1, max_size=5))
def test_any_ids_have_a_text_and_the_same_one_in_the_graph(vocabulary: Vocabulary, ids: list[list[int]]):
    import tensorflow as tf

    texts = vocabulary.decode(ids)
    row_lengths = [len(sequence) for sequence in ids]
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(sum(ids, []), tf.int64), row_lengths)
    assert [text.decode() for text in vocabulary.decode_tensor(ragged).numpy()] == texts
    padded = ragged.to_tensor(default_value=PAD)
    assert [text.decode() for text in vocabulary.decode_tensor(padded).numpy()] == texts


def test_decode_stops_at_the_first_end_and_skips_padding(vocabulary: Vocabulary):
    ids = vocabulary.encode(["big bridge"])[0][:-1]
    assert vocabulary.decode([[PAD, *ids, PAD, END, *ids], [END], []]) == ["big bridge", "", ""]
    assert vocabulary.decode([]) == vocabulary.encode([]) == []


@pytest.mark.parametrize("token", [-1, 400])
def test_ids_beyond_the_vocabulary(vocabulary: Vocabulary, token: int):
    with pytest.raises(ValueError, match=f"id {token} is not in the vocabulary .*, whose ids are 0 to 399"):
        vocabulary.decode([[token]])


def test_many_texts_equal_single_ones(vocabulary: Vocabulary):
    texts = NASTY + SENTENCES
    many = vocabulary.encode(texts)
    assert many == [vocabulary.encode([text])[0] for text in texts]
    assert vocabulary.decode(many) == texts


def test_what_is_not_text(vocabulary: Vocabulary):
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
            return vocabulary.decode_tensor(vocabulary.encode_tensor(strings))

    tf.saved_model.save(Echo(), str(tmp_path / "echo"))
    echo = tf.saved_model.load(str(tmp_path / "echo"))
    assert [text.decode() for text in echo(tf.constant(NASTY)).numpy()] == NASTY
    assert echo(tf.constant([], tf.string)).shape == [0]
    assert echo(tf.constant([b"a\xffb"])).numpy()[0].decode() == "a\ufffdb"


def test_files_that_are_no_vocabulary(vocabulary: Vocabulary, tmp_path: Path):
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
        with pytest.raises(ValueError, match=r"bad\.model is (no vocabulary|a sentencepiece model of other making)"):
            Vocabulary(str(bad))


def test_a_sentencepiece_model_of_other_making(tmp_path: Path):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=100, model_type="bpe", minloglevel=4
    )
    (tmp_path / "other.model").write_bytes(model.getvalue())
    with pytest.raises(ValueError, match="other making; give a vocabulary that t2t-datagen made"):
        Vocabulary(str(tmp_path / "other.model"))


@pytest.mark.corpora
@pytest.mark.parametrize(("kind", "size"), [("bpe", 37_000), ("word_piece", 32_000)])
def test_12000_characters_seen_once_do_not_fill_the_vocabulary_of_news(
    corpora: Path, tmp_path: Path, kind: str, size: int
):
    lines: list[str] = []
    for side in ("en", "de"):
        path = corpora / f"wmt_news_other_years/news.en-de.{side}.gz"
        lines += gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")
    rare = [chr(0x4E00 + number) for number in range(12_000)]
    learn([*lines, *rare], str(tmp_path / "v"), kind, size)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert vocabulary.size == size and 100 < vocabulary.characters < 200
    assert vocabulary.decode(vocabulary.encode(rare)) == rare


@pytest.mark.corpora
@pytest.mark.parametrize("file", ["multi30k/raw/train.de.gz", "newstest/newstest2014.en-fr.fr.gz"])
def test_real_text_has_equal_ids_in_the_graph(corpora: Path, tmp_path: Path, file: str):
    with gzip.open(corpora / file, "rt", encoding="utf-8", newline="\n") as text:
        lines = [line.removesuffix("\n") for line in text][:3000]
    learn(lines, str(tmp_path / "v"), "bpe", 4000)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    ids = vocabulary.encode(lines)
    tensor = vocabulary.encode_tensor(lines)
    assert tensor.to_list() == ids
    assert vocabulary.decode(ids) == lines
    assert [line.decode() for line in vocabulary.decode_tensor(tensor).numpy()] == lines


@pytest.mark.corpora
@pytest.mark.parametrize(("pair", "kind", "size"), [("en-de", "bpe", 37_000), ("en-fr", "word_piece", 32_000)])
def test_the_papers_sizes_are_exact_and_newstest2014_returns(
    corpora: Path, tmp_path: Path, pair: str, kind: str, size: int
):
    """All 3,003 lines of both sides, with equal ids in the graph; none of them was learnt from."""

    def read(form: str) -> list[str]:
        texts = []
        for side in pair.split("-"):
            with gzip.open(corpora / form.format(pair, side), "rt", encoding="utf-8", newline="\n") as text:
                texts += [line.removesuffix("\n") for line in text]
        return texts

    learn(
        read("wmt_news_other_years/news.{}.{}.gz") + read("tatoeba/tatoeba.{}.{}.gz"), str(tmp_path / "v"), kind, size
    )
    vocabulary = Vocabulary(str(tmp_path / "v"))
    test = read("newstest/newstest2014.{}.{}.gz")
    ids = vocabulary.encode(test)
    assert (vocabulary.size, vocabulary.kind, len(test)) == (size, kind, 6006)
    assert vocabulary.decode(ids) == test
    tensor = vocabulary.encode_tensor(test)
    assert tensor.to_list() == ids
    assert [line.decode() for line in vocabulary.decode_tensor(tensor).numpy()] == test
