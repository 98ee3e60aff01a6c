"""Linearising and rebuilding: exact on every tree, and well formed from whatever a decoder writes."""

from __future__ import annotations

import random
import time

import pytest
from helpers.random_trees import random_trees
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.parsing.linearization import linearise, pair, rebuild, split_words, tag_of
from t2t_repro.parsing.trees import Tree, clean, parse, read_trees

WORDS = "a b c d".split()
symbols = st.one_of(
    st.sampled_from(["w0", "w1", "w2", "w3", "ǀS", "ǁS", "ǀNP", "ǁNP", "ǀVP", "ǁVP"]),
    st.sampled_from(["ǀ", "X", "XX", "(NP", "ǀN P", "ǀ(", "ǁ", "", "\u2047", "ǀTOP", "ǁ-NONE-"]),
    st.text(max_size=3),
)


def well_formed(tree: Tree, words: list[str]) -> bool:
    """Whether it can be written and read again, and holds exactly these words."""
    return tree.words() == words and parse(str(tree)) == tree


def brief(tree: Tree) -> str:
    """The tree without its parts of speech."""
    return "".join({"(": f" ({part.label}", ")": ")", "word": f" {part.word}"}[step] for step, part in tree.walk())[1:]


# Exact on trees.


def test_the_example():
    tree = parse("(S (NP (PRP We)) (VP (VBP agree)) (. .))")
    assert pair(tree) == ("We agree .", "ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS")
    assert rebuild(linearise(tree), tree.words(), tree.tags()) == (tree, 0)


@pytest.mark.parametrize("text", ["(NN a)", "(NP (NP (NN a)))", "(XX (ǀXX XX) (ǁ ǀb))", "(ǀ (ǀ ǁ) (ǁ (ǁǁ b)))"])
def test_any_label_and_any_shape(text):
    tree = parse(text)
    assert rebuild(linearise(tree), tree.words(), tree.tags()) == (tree, 0)


@settings(max_examples=50, deadline=None)
@given(random_trees)
def test_rebuilding_undoes_linearising(tree):
    assert rebuild(linearise(tree), tree.words(), tree.tags()) == (tree, 0)
    without_tags, repairs = rebuild(linearise(tree).split(" "), tree.words())
    assert linearise(without_tags) == linearise(tree) and not repairs


def test_an_unlabelled_root_is_refused():
    with pytest.raises(ValueError, match=r"unlabelled root cannot be linearised; clean it first: \( \(S"):
        linearise(parse("( (S (NN a)))"))


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("wsj_sample.dev", 276),
        ("wsj_sample.train", 3_401),
        ("craft.dev", 3_471),
        pytest.param("craft.train", 23_657, marks=pytest.mark.slow),
    ],
)
def test_every_tree_at_hand(corpora, name, number):
    count = 0
    for count, tree in enumerate(read_trees(str(corpora / "trees" / f"{name}.mrg.gz")), start=1):  # noqa: B007
        cleaned = clean(tree)
        source, target = pair(cleaned)
        assert rebuild(target, split_words(source), cleaned.tags()) == (cleaned, 0)
    assert count == number


# Rebuilt from anything.


@pytest.mark.parametrize(
    ("text", "expected", "repairs"),
    [
        ("ǀS ǀNP a ǁNP ǀVP b c d ǁVP ǁS", "(S (NP a) (VP b c d))", 0),
        # a bracket without a label, and a word that is another
        ("ǀS a ǀ b c d ǁ ǁS", "(S a b c d)", 2),
        ("ǀS a c XX (NP ǁS", "(S a b c d)", 3),
        # words too many and too few
        ("ǀS ǀNP a b ǁNP ǀVP c d e f ǁVP ǁS", "(S (NP a b) (VP c d))", 2),
        ("ǀS a b c d ǀNP e ǁNP ǁS", "(S a b c d)", 2),  # one word too many, and then nothing in NP
        ("ǀS ǀNP a ǁNP ǀVP b ǁVP ǁS", "(S (NP a) (VP b) c d)", 2),
        ("ǀS ǀNP a ǁNP ǀVP b", "(S (NP a) (VP b c d))", 4),  # ends early: two words, two closings
        # a closing that is missing
        ("ǀS ǀNP a ǀVP b c ǁNP d ǁS", "(S (NP a (VP b c)) d)", 1),
        ("ǀS ǀNP a b c d", "(S (NP a b c d))", 2),
        # a closing of what is not open
        ("ǀS ǀNP a ǁVP ǀVP b c d ǁVP ǁS", "(S (NP a) (VP b c d))", 1),
        ("ǀS ǀNP a ǁNP ǁNP ǀVP b c d ǁVP ǁS", "(S (NP a) (VP b c d))", 1),
        ("ǁS ǀS a b c d ǁS ǁS", "(S a b c d)", 2),
        # the root closed too early, or opened too late
        ("ǀS ǀNP a b ǁNP ǁS ǀVP c d ǁVP", "(S (NP a b) (VP c d))", 2),
        ("a b ǀS c d ǁS", "(S a b c d)", 2),
        ("ǀS a b ǁS ǀS c d ǁS", "(S a b (S c d))", 2),
        # a constituent without words
        ("ǀS ǀNP ǁNP a b c d ǀVP ǀVP ǁVP ǁVP ǁS", "(S a b c d)", 3),
        ("ǀNP ǁNP ǀS a b c d ǁS", "(S a b c d)", 1),
        # no constituent
        ("a b c d", "(TOP a b c d)", 1),
        ("", "(TOP a b c d)", 5),
        ("ǀS ǁS", "(TOP a b c d)", 6),
        ("ǀS", "(S a b c d)", 5),
        ("ǁS", "(TOP a b c d)", 6),
    ],
)
def test_repairs(text, expected, repairs):
    tree, count = rebuild(text, WORDS)
    assert (brief(tree), count) == (expected, repairs)
    assert well_formed(tree, WORDS)


@settings(deadline=None)
@given(st.lists(symbols, max_size=30), st.integers(1, 9))
def test_whatever_the_symbols_are(text, number):
    words = [f"w{place}" for place in range(number)]
    tree, repairs = rebuild(text, words)
    assert well_formed(tree, words)
    assert (repairs == 0) == (linearise(tree).split(" ") == [symbol for symbol in text if symbol])
    assert rebuild(text, words) == (tree, repairs)
    assert rebuild(linearise(tree), words) == (tree, 0)


@settings(deadline=None)
@given(st.text(st.sampled_from("ǀǁXSN ( \t\n\u00a0\u2028"), max_size=60))
def test_whatever_the_text_is(text):
    assert well_formed(rebuild(text, WORDS)[0], WORDS)


def test_a_hundred_thousand_random_strings():
    rng = random.Random(1)
    known = ["w1"] * 4 + [mark + label for mark in "ǀǁ" for label in ("S", "NP", "VP", "PP")] + ["ǀ"]
    words = [f"w{place}" for place in range(12)]
    for number in range(100_000):
        given_words = words[: rng.randint(1, 12)]
        tree, _ = rebuild(rng.choices(known, k=rng.randint(0, 24)), given_words)
        assert tree.words() == given_words
        depth = 0
        for step, part in tree.walk():
            depth += {"(": 1, ")": -1, "word": 0}[step]
            assert part.label and (step == "word" or part.children)
        assert depth == 0
        assert number % 20 or parse(str(tree)) == tree


@pytest.mark.parametrize("text", ["ǀA " * 50_000, "ǀA " * 50_000 + "ǁB " * 50_000, "ǀA ǀB " * 25_000 + "ǁA " * 50_000])
def test_long_and_deep_takes_no_time(text):
    start = time.process_time()
    tree, _ = rebuild(text, WORDS)
    assert tree.words() == WORDS and len(str(tree)) > 0
    assert time.process_time() - start < 5  # half a second; quadratic would be minutes


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ([], None, "a tree needs words, got none"),
        (["a"], ["A", "B"], "expected a tag for each of the 1 words, got 2"),
        (["a", "("], None, r"a word has no white space and no brackets, and is not empty; got '\('"),
        (["a", "b c"], None, "a word has no white space .* got 'b c'"),
        ([""], None, "is not empty; got ''"),
        (["a"], ["("], r"a label has no white space .* got '\('"),
    ],
)
def test_words_that_no_tree_can_hold(words, tags, message):
    with pytest.raises(ValueError, match=message):
        rebuild("XX", words, tags)


# Words and tags.


def test_split_words():
    assert split_words(" f ( x )\tis\u00a0f(x) ") == ["f", "-LRB-", "x", "-RRB-", "is\u00a0f-LRB-x-RRB-"]
    assert split_words(" \n") == []


def test_tags_of_signs():
    """A tree without tags can be scored by EVALB, which leaves punctuation out by its tag."""
    tags = [tag_of(word) for word in ". ? , : -- ; `` '' -LRB- the ' - $".split()]
    assert tags == [".", ".", ",", ":", ":", ":", "``", "''", "-LRB-", "XX", "XX", "XX", "XX"]
    tree, _ = rebuild("ǀS Yes . ǁS", ["Yes", "."])
    assert str(tree) == "(S (XX Yes) (. .))"
    assert str(rebuild("ǀS XX XX ǁS", ["Yes", "."], ["UH", "."])[0]) == "(S (UH Yes) (. .))"


def test_a_symbol_is_one_piece_of_the_vocabulary(tmp_path):
    """Why the marks are letters: a bracket never joins a letter."""
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.preparation.vocabulary_learning import learn_vocabulary

    rng = random.Random(1)
    tokens = {"ǀS", "ǁS", "ǀNP", "ǁNP", "ǀVP", "ǁVP", "We", "(PP", ")PP"}
    lines = [" ".join(rng.choices(sorted(tokens), k=30)) for _ in range(300)]
    learn_vocabulary(lines, str(tmp_path / "vocabulary"), "bpe", 290, num_threads=1)
    vocabulary = Vocabulary(str(tmp_path / "vocabulary"))
    pieces = {token: len(vocabulary.encode([f"We {token}"])[0]) - 2 for token in tokens}  # We and the end
    assert {token for token, number in pieces.items() if number == 1} == tokens - {"(PP", ")PP"}
