"""Shortlist: the ids of a batch, and the file."""

from __future__ import annotations

import pytest
from helpers.tiny_model import PROBLEM, train_pairs

from t2t_repro.data import shortlist
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.learning.vocabulary import learn_vocabulary
from t2t_repro.text.token_ids import EOS, PAD


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")
    texts = [f"{side}\tx" for pair in train_pairs() for side in pair]
    learn_vocabulary(texts, path, "bpe", PROBLEM.vocab_size)
    return Vocabulary(path)


def test_ids_are_the_candidates_of_the_batch(monkeypatch):
    monkeypatch.setattr(shortlist, "OUTPUTS", 1)
    found = Shortlist(50, [9, 3], {20: [30, 31], 21: [31, 32], 22: [40]})
    assert found.ids([[20, EOS], [21, 25, EOS]]).tolist() == [PAD, EOS, 3, 9, 30, 31, 32]
    assert found.ids([]).tolist() == [PAD, EOS, 3, 9]
    assert found.ids([[22]], forced=[[PAD, 45], [7]]).tolist() == [PAD, EOS, 3, 7, 9, 40, 45]


@pytest.mark.parametrize(("vocab_size", "expected"), [(50, 16), (9, 9), (16, 16)])
def test_the_lowest_other_ids_fill_a_multiple(monkeypatch, vocab_size, expected):
    monkeypatch.setattr(shortlist, "OUTPUTS", 8)
    ids = Shortlist(vocab_size, [2, 3, 4, 5], {6: [7, 8]}).ids([[6], [8]], forced=[[6]])
    assert len(ids) == expected and ids.tolist() == list(range(expected))
    assert len(Shortlist(50, range(2, 8), {}).ids([])) == 8  # nothing is missing


def test_file_is_a_vocabulary_map(vocabulary, tmp_path):
    """A subword with a tab cannot be written in it."""
    subwords = vocabulary.subwords
    has_tab = next(number for number, subword in enumerate(subwords) if "\t" in subword)
    path = str(tmp_path / "shortlist.txt")
    written = Shortlist(vocabulary.size, [300, has_tab, 299], {280: [281, 300], has_tab: [280], 5: []})
    written.save(path, vocabulary)
    lines = [
        f"\t{subwords[300]} {subwords[299]}",
        f"{subwords[5]}\t",
        f"{subwords[280]}\t{subwords[281]} {subwords[300]}",
    ]
    with open(path, encoding="utf-8", newline="") as file:
        assert file.read() == "".join(f"{line}\n" for line in lines)
    read = Shortlist.load(path, vocabulary)
    assert read.always.tolist() == [300, 299]
    assert {source: ids.tolist() for source, ids in read.candidates.items()} == {5: [], 280: [281, 300]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\ta\nb", "line 2 has no tab; give a vocabulary map"),
        (b"\ta\na b\ta", "line 2: expected one source subword, got 'a b'; leave the line out"),
        (b"\ta\na\ta nowhere", "line 2: the vocabulary has no subword 'nowhere'; give a shortlist"),
        (b"nowhere\ta", "line 1: the vocabulary has no subword 'nowhere'"),
        (b"\xff\ta", "is not valid UTF-8"),
    ],
)
def test_wrong_files_are_refused(vocabulary, tmp_path, content, message):
    (tmp_path / "map").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Shortlist.load(str(tmp_path / "map"), vocabulary)


def test_windows_line_ends_are_read(vocabulary, tmp_path):
    (tmp_path / "map").write_bytes(b"\ta\r\nb\ta \r\n")
    read = Shortlist.load(str(tmp_path / "map"), vocabulary)
    a, b = (vocabulary.subwords.index(letter) for letter in "ab")
    assert read.always.tolist() == [a] and read.candidates[b].tolist() == [a]
