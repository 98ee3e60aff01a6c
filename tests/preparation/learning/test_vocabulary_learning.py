"""Learning a vocabulary: its exact size, what a subword may hold, and which characters become subwords."""

from __future__ import annotations

import gzip
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.sentences import SENTENCES

from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

RARE = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))


@pytest.mark.parametrize("size", [320, 333, 512])
def test_size_is_exact(tmp_path: Path, size: int):
    assert learn_vocabulary(SENTENCES, str(tmp_path / "v"), "bpe", size) == len(SENTENCES)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert (vocabulary.size, vocabulary.kind) == (size, "bpe")
    assert max(max(ids) for ids in vocabulary.encode(SENTENCES)) < size


def test_subword_stays_within_a_word(tmp_path: Path):
    """Within a word everything, and never a space but at its start; with "bpe" letters or what is none."""
    texts = ["Version2.0 (beta), Version2.0 (beta)! "] * 50
    found = {}
    for kind in ("bpe", "word_piece"):
        with pytest.raises(ValueError, match=r"at most (\d+)") as error:
            learn_vocabulary(texts, str(tmp_path / kind), kind, 5000)
        learn_vocabulary(texts, str(tmp_path / kind), kind, int(str(error.value).split("at most ")[1].split(";")[0]))
        processor = Vocabulary(str(tmp_path / kind))._processor
        found[kind] = processor.encode(" Version2.0 (beta),", out_type=str)
    assert found["word_piece"] == ["▁Version2.0", "▁(beta),"]
    assert found["bpe"][:2] == ["▁Version", "2.0"] and "beta" in found["bpe"]


def test_size_larger_than_the_text_allows_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "v"
    with pytest.raises(ValueError, match=r"vocab_size 5000 is more than .*: 300 sentences give at most (\d+)") as error:
        learn_vocabulary(SENTENCES, str(path), "bpe", 5000)
    most = int(str(error.value).split("at most ")[1].split(";")[0])
    assert learn_vocabulary(SENTENCES, str(path), "bpe", most)
    assert Vocabulary(str(path)).size == most
    path.unlink()
    with pytest.raises(ValueError, match=f"at most {most}"):
        learn_vocabulary(SENTENCES, str(path), "bpe", most + 1)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_size_without_room_for_the_characters(tmp_path: Path):
    with pytest.raises(ValueError, match=r"vocab_size 270 is too small .* ask for (\d+) or more") as error:
        learn_vocabulary(SENTENCES, str(tmp_path / "v"), "bpe", 270)
    least = int(str(error.value).split("ask for ")[1].split()[0])
    learn_vocabulary(SENTENCES, str(tmp_path / "v"), "bpe", least)
    assert Vocabulary(str(tmp_path / "v")).size == least


def test_rare_characters_take_no_more_than_half(tmp_path: Path):
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
    learn_vocabulary([*SENTENCES * 20, rare], str(tmp_path / "v"), "bpe", 459)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert 40 < vocabulary.characters <= 100
    assert vocabulary.decode(vocabulary.encode([rare])) == [rare]


@pytest.mark.parametrize("kind", ["bpe", "word_piece"])
def test_a_character_rarer_than_one_in_two_million_becomes_bytes(tmp_path: Path, kind: str):
    texts = [*SENTENCES * 500, RARE, "ΩΩ", "ΩΩ"]
    assert 3 * 2_000_000 > sum(map(len, texts)) > 2 * 2_000_000
    learn_vocabulary(texts, str(tmp_path / "v"), kind, 400)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert not set(RARE) & set(vocabulary.subwords) and "Ω" in vocabulary.subwords
    assert (vocabulary.size, vocabulary.characters) == (400, len({*"".join(SENTENCES), "Ω"}))
    assert vocabulary.decode(vocabulary.encode([RARE, "xΩ乀"])) == [RARE, "xΩ乀"]


def test_in_little_text_every_character_is_a_subword(tmp_path: Path):
    learn_vocabulary([*SENTENCES, RARE], str(tmp_path / "v"), "bpe", 500)
    assert set(RARE) < set(Vocabulary(str(tmp_path / "v")).subwords)


def test_minimum_character_count_can_be_set(tmp_path: Path):
    texts = [*SENTENCES, RARE, "ΩΩΩ"]
    for least, kept in ((1, {*RARE, "Ω"}), (2, {"Ω"}), (3, {"Ω"}), (4, set())):
        learn_vocabulary(texts, str(tmp_path / f"v{least}"), "bpe", 500, min_character_count=least)
        assert {*RARE, "Ω"} & set(Vocabulary(str(tmp_path / f"v{least}")).subwords) == kept


def test_minimum_character_count_has_no_effect_without_rare_characters(tmp_path: Path):
    for least in (0, 1, 5):
        learn_vocabulary(SENTENCES * 2, str(tmp_path / f"v{least}"), "word_piece", 400, min_character_count=least)
    assert len({Vocabulary(str(tmp_path / f"v{least}")).sha256 for least in (0, 1, 5)}) == 1


def test_rare_characters_fill_a_vocabulary_that_the_text_cannot_fill_otherwise(tmp_path: Path):
    """The size stays exact: a, b and the space, "ab" and " ab", and then the 60 rare ones."""
    texts = ["ab ab"] * 1_000 + list(RARE)
    for size, characters in ((259 + 5, 3), (259 + 5 + 60, 63)):
        learn_vocabulary(texts, str(tmp_path / "v"), "bpe", size, min_character_count=2)
        vocabulary = Vocabulary(str(tmp_path / "v"))
        assert (vocabulary.size, vocabulary.characters) == (size, characters)


@pytest.mark.parametrize(
    ("texts", "kind", "size", "message"),
    [
        (SENTENCES, "bpe", 259, "vocab_size must be at least 260, got 259"),
        (SENTENCES, "words", 400, "vocab_kind must be one of bpe, word_piece, got 'words'"),
        (iter(SENTENCES), "bpe", 400, "texts are read twice; give a list"),
        ([], "bpe", 400, "no text to learn a vocabulary from"),
        (["", ""], "bpe", 400, "no text to learn a vocabulary from"),
        (["fine", "not \udc80"], "bpe", 400, r"text 2 is not Unicode: a lone surrogate U\+DC80 at character 5"),
    ],
)
def test_learn_vocabulary_rejects_invalid_arguments(tmp_path: Path, texts, kind: str, size: int, message: str):
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(texts, str(tmp_path / "v"), kind, size)
    assert list(tmp_path.iterdir()) == []


def test_file_is_the_same_for_any_number_of_threads(tmp_path: Path):
    hashes = set()
    for threads in (1, 2, 7):
        learn_vocabulary(SENTENCES, str(tmp_path / f"v{threads}"), "bpe", 400, num_threads=threads)
        hashes.add(Vocabulary(str(tmp_path / f"v{threads}")).sha256)
    assert len(hashes) == 1


def test_no_text_is_skipped_at_learning(tmp_path: Path):
    """sentencepiece by itself leaves out lines beyond 4,192 bytes and those with its mark U+2585."""
    long, marked = "Zyzzyva " * 10_000, "\u2585 Quokka " * 50
    learn_vocabulary([*SENTENCES, long, marked], str(tmp_path / "v"), "bpe", 400)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert len(vocabulary.encode([" Zyzzyva Quokka"])[0]) == 3


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
    learn_vocabulary([*lines, *rare], str(tmp_path / "v"), kind, size)
    vocabulary = Vocabulary(str(tmp_path / "v"))
    assert vocabulary.size == size and 100 < vocabulary.characters < 200
    assert vocabulary.decode(vocabulary.encode(rare)) == rare


MEMORY = """
import random, sys
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.system.heap import one_heap

def resident(kind):
    (line,) = (line for line in open("/proc/self/status") if line.startswith(kind))
    return int(line.split()[1])

class Texts:
    def __iter__(self):
        rng = random.Random(1)
        for _ in range(60_000):
            yield " ".join("".join(rng.choices("abcdefghij", k=rng.randint(1, 9))) for _ in range(12))

one_heap()
import sentencepiece
before = resident("VmRSS")
learn_vocabulary(Texts(), sys.argv[1], "bpe", 2000)
print(before, resident("VmHWM"), resident("VmRSS"))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
@pytest.mark.slow
def test_memory_is_returned_to_the_system(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path / "v")], capture_output=True, text=True)
    before, peak, after = map(int, done.stdout.split())
    assert peak - before > 50_000  # KiB
    assert after - before < 0.3 * (peak - before)
