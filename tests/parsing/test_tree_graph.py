"""t2t_repro.parsing.tree_graph: the trees of the graph are those of `linearise.rebuild`, whatever was written."""

from __future__ import annotations

import random

import pytest
import tensorflow as tf
from helpers.small_treebank import trees as miniature_trees

from t2t_repro.parsing import linearization, tree_graph
from t2t_repro.parsing.trees import clean, read_trees

WORDS = ["We", ",", "``", "-LRB-", "agree", "größer", ".", "-", "ǀo", "ǁ", "XX", "Nǀuu", "\0", "a\0"]
STRANGE = ["ǀNP", "ǁNP", "ǀS", "ǁS", "ǀVP", "ǁVP", *WORDS[:4], "ǀ", "ǁ", "x", "ǀXX", "ǁ(", "ö", "ǁXX", "Nǀuu", "\0"]


@tf.function(input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([None], tf.string)])
def rebuild(symbols, words):
    return tree_graph.rebuild(symbols, words)


def both(symbols, words):
    tree, repairs = rebuild(symbols, words)
    expected, expected_repairs = linearization.rebuild(symbols, words)
    return (tree.numpy().decode(), int(repairs)), (str(expected), expected_repairs)


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ("ǀS ǀNP We ǁNP ǀVP , ǁVP `` ǁS", 3),
        ("", 1),
        ("", 3),
        ("We", 1),
        ("We , ǀS `` ǁS", 3),
        ("ǀS We", 3),
        ("ǀS We ǁS , ǁS ǁS", 2),
        ("ǀS ǁS ǀS We ǁS", 1),
        ("ǀS ǀNP ǀNP We ǁS", 1),
        ("ǀS ǀNP ǁNP We ǁS ǁVP", 2),
        ("We ǀS ǁS", 2),
        ("ǀS ǀNP We ǁVP , ǁS", 2),
        ("ǁS ǁNP", 2),
        ("ǀS ǀNP ǀVP", 1),
    ],
)
def test_each_kind_of_repair(symbols, words):
    found, expected = both(symbols, WORDS[:words])
    assert found == expected


def test_whatever_was_written():
    rng = random.Random(1)
    repaired = 0
    for _ in range(150):
        symbols = " ".join(rng.choices(STRANGE, k=rng.randint(0, 24)))
        words = rng.choices(WORDS, k=rng.randint(1, 8))
        found, expected = both(symbols, words)
        assert found == expected, (symbols, words)
        repaired += found[1] > 0
    assert repaired > 100


def test_whole_trees_come_back(tmp_path):
    (tmp_path / "trees").write_text(miniature_trees(seed=1, number=8))
    for tree in filter(None, map(clean, read_trees(str(tmp_path / "trees")))):
        words, symbols = linearization.pair(tree)
        found, expected = both(symbols, words.split(" "))
        assert found == expected and found[1] == 0


def test_words_are_split_alike():
    texts = ["We  agree .", " f ( x )\t", "", " ", "a\x0bb\u00a0c", "\0", "a \0 b\0"]
    assert tree_graph.split_words(tf.constant(texts)).to_list() == [
        [word.encode() for word in linearization.split_words(text)] for text in texts
    ]
