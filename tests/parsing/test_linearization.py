"""Linearization and rebuilding: exact for every tree, and well formed for any decoder output."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from helpers.random_trees import random_trees
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.parsing.linearization import linearize_tree, pair, rebuild, tag_of, tree_words
from t2t_repro.parsing.trees import Tree, clean, parse, read_trees
from t2t_repro.problem import LINEARIZATIONS

either = pytest.mark.parametrize("linearization", LINEARIZATIONS)
WORDS = "a b c d".split()
symbols = st.one_of(
    st.sampled_from(["w0", "w1", "w2", "w3", "ǀS", "ǁS", "ǀNP", "ǁNP", "ǀVP", "ǁVP"]),
    st.sampled_from(["ǀ", "X", "XX", "(NP", "ǀN P", "ǀ(", "ǁ", "", "\u2047", "ǀTOP", "ǁ-NONE-"]),
    st.text(max_size=3),
)


def well_formed(tree: Tree, words: list[str]) -> bool:
    """Returns true if the tree can be written and read again, and contains exactly these words."""
    return tree.words() == words and parse(str(tree)) == tree


def brief(tree: Tree) -> str:
    """Returns the tree without its parts of speech."""
    return "".join({"(": f" ({part.label}", ")": ")", "word": f" {part.word}"}[step] for step, part in tree.walk())[1:]


# Exact on trees.


def test_example():
    tree = parse("(S (NP (PRP We)) (VP (VBP agree)) (. .))")
    assert pair(tree) == ("We agree .", "ǀS ǀNP We ǁNP ǀVP agree ǁVP . ǁS")
    assert rebuild(linearize_tree(tree), tree.words(), tree.tags()) == (tree, 0)


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("(S (NP (PRP We)) (VP (VBP agree)) (. .))", "We ǀNP ǁNP ǀS agree ǀVP ǁVP . ǁS"),
        # figure 1 of Liu and Zhang 2017, without its closing labels
        (
            "(S (NP (DT The) (JJ little) (NN boy)) (VP (VBZ likes) (NP (JJ red) (NNS tomatoes))) (. .))",
            "The ǀNP little boy ǁNP ǀS likes ǀVP red ǀNP tomatoes ǁNP ǁVP . ǁS",
        ),
        ("(S (VP (VB Go)))", "Go ǀVP ǁVP ǀS ǁS"),
        ("(S (S (S (NN a) (NN b)) (NN c)) (NN d))", "a ǀS b ǁS ǀS c ǁS ǀS d ǁS"),
        ("(NN a)", "a"),
    ],
)
def test_in_order(text, symbols):
    """A constituent is opened after its first child."""
    tree = parse(text)
    assert pair(tree, "in_order") == (" ".join(tree.words()), symbols)
    assert rebuild(symbols, tree.words(), tree.tags(), "in_order") == (tree, 0)


@either
@pytest.mark.parametrize("text", ["(NN a)", "(NP (NP (NN a)))", "(XX (ǀXX XX) (ǁ ǀb))", "(ǀ (ǀ ǁ) (ǁ (ǁǁ b)))"])
def test_any_label_and_shape(text, linearization):
    tree = parse(text)
    assert rebuild(linearize_tree(tree, linearization), tree.words(), tree.tags(), linearization) == (tree, 0)


@settings(max_examples=50, deadline=None)
@given(random_trees, st.sampled_from(LINEARIZATIONS))
def test_rebuilding_inverts_linearization(tree, linearization):
    text = linearize_tree(tree, linearization)
    assert rebuild(text, tree.words(), tree.tags(), linearization) == (tree, 0)
    without_tags, repairs = rebuild(text.split(" "), tree.words(), None, linearization)
    assert linearize_tree(without_tags, linearization) == text and not repairs
    assert sorted(text.split(" ")) == sorted(linearize_tree(tree).split(" "))


def test_unlabeled_root_is_refused():
    with pytest.raises(ValueError, match=r"unlabeled root cannot be linearized; clean it first: \( \(S"):
        linearize_tree(parse("( (S (NN a)))"))


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
def test_every_available_tree(corpora, name, number):
    count = 0
    for count, tree in enumerate(read_trees(str(corpora / "trees" / f"{name}.mrg.gz")), start=1):  # noqa: B007
        cleaned = clean(tree)
        for linearization in LINEARIZATIONS:
            source, target = pair(cleaned, linearization)
            assert rebuild(target, tree_words(source), cleaned.tags(), linearization) == (cleaned, 0)
    assert count == number


# Rebuilding from arbitrary symbols.


@pytest.mark.parametrize(
    ("text", "expected", "repairs"),
    [
        ("ǀS ǀNP a ǁNP ǀVP b c d ǁVP ǁS", "(S (NP a) (VP b c d))", 0),
        # a bracket without a label, and a different word
        ("ǀS a ǀ b c d ǁ ǁS", "(S a b c d)", 2),
        ("ǀS a c XX (NP ǁS", "(S a b c d)", 3),
        # surplus and missing words
        ("ǀS ǀNP a b ǁNP ǀVP c d e f ǁVP ǁS", "(S (NP a b) (VP c d))", 2),
        ("ǀS a b c d ǀNP e ǁNP ǁS", "(S a b c d)", 2),  # one surplus word, and then an empty NP
        ("ǀS ǀNP a ǁNP ǀVP b ǁVP ǁS", "(S (NP a) (VP b) c d)", 2),
        (
            "ǀS ǀNP a ǁNP ǀVP b",
            "(S (NP a) (VP b c d))",
            4,
        ),  # ends early: two words and two brackets are missing
        # a missing closing bracket
        ("ǀS ǀNP a ǀVP b c ǁNP d ǁS", "(S (NP a (VP b c)) d)", 1),
        ("ǀS ǀNP a b c d", "(S (NP a b c d))", 2),
        # a closing bracket of a label that is not open
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


@pytest.mark.parametrize(
    ("text", "expected", "repairs"),
    [
        ("a ǀNP ǁNP ǀS b ǀVP c d ǁVP ǁS", "(S (NP a) (VP b c d))", 0),
        # a bracket without a label, a different word, a surplus word, missing words
        ("a ǀS b ǀ c d ǁ ǁS", "(S a b c d)", 2),
        ("a ǀS XX c d e ǁS", "(S a b c d)", 2),
        ("a ǀS b ǁS", "(S a b c d)", 2),
        ("a ǀS b ǀVP", "(S a (VP b c d))", 4),
        # a missing closing bracket, and one of a label that is not open
        ("a ǀS b ǀNP c ǀVP d ǁNP ǁS", "(S a (NP b (VP c d)))", 1),
        ("a ǀNP b ǁVP ǀS c d ǁS", "(S (NP a b) c d)", 1),
        ("a ǀS b c d ǁS ǁS", "(S a b c d)", 1),
        # the root is closed too early
        ("a ǀNP b ǁNP c ǀS d ǁS", "(NP a b (S c d))", 2),
        # words outside of the root
        ("a b ǀS c d ǁS", "(S a b c d)", 1),
        # nothing to open a constituent around
        ("ǀS a b c d ǁS", "(S a b c d)", 1),
        ("ǀS ǁS a ǀNP b c d ǁNP", "(NP a b c d)", 2),
        ("a ǀS ǀNP ǁNP b c d ǁS", "(S (NP a) b c d)", 1),
        # no constituent
        ("a b c d", "(TOP a b c d)", 1),
        ("", "(TOP a b c d)", 5),
        ("ǁS", "(TOP a b c d)", 6),
    ],
)
def test_repairs_in_order(text, expected, repairs):
    tree, count = rebuild(text, WORDS, linearization="in_order")
    assert (brief(tree), count) == (expected, repairs)
    assert well_formed(tree, WORDS)


@settings(deadline=None)
@given(st.lists(symbols, max_size=30), st.integers(1, 9), st.sampled_from(LINEARIZATIONS))
def test_random_symbols(text, number, linearization):
    words = [f"w{place}" for place in range(number)]
    tree, repairs = rebuild(text, words, None, linearization)
    assert well_formed(tree, words)
    symbols = linearize_tree(tree, linearization)
    assert (repairs == 0) == (symbols.split(" ") == [symbol for symbol in text if symbol])
    assert rebuild(text, words, None, linearization) == (tree, repairs)
    assert rebuild(symbols, words, None, linearization) == (tree, 0)


@pytest.mark.parametrize(("length", "complete"), [(1, 2), (2, 0), (3, 4), (4, 8), (5, 24), (6, 80)])
def test_every_short_sequence_in_order(length, complete):
    """There are no repairs for exactly those sequences that are linearizations."""
    found = 0
    for text in itertools.product(["a", "b", "ǀS", "ǁS", "ǀN", "ǁN"], repeat=length):
        words = [symbol for symbol in text if symbol in "ab"]
        if words:
            tree, repairs = rebuild(text, words, None, "in_order")
            assert (repairs == 0) == (linearize_tree(tree, "in_order").split(" ") == [*text])
            found += repairs == 0
    assert found == complete


@settings(deadline=None)
@given(st.text(st.sampled_from("ǀǁXSN ( \t\n\u00a0\u2028"), max_size=60), st.sampled_from(LINEARIZATIONS))
def test_random_text(text, linearization):
    assert well_formed(rebuild(text, WORDS, None, linearization)[0], WORDS)


@either
def test_a_hundred_thousand_random_strings(linearization):
    rng = random.Random(1)
    known = ["w1"] * 4 + [mark + label for mark in "ǀǁ" for label in ("S", "NP", "VP", "PP")] + ["ǀ"]
    words = [f"w{place}" for place in range(12)]
    for number in range(50_000):
        given_words = words[: rng.randint(1, 12)]
        tree, _ = rebuild(rng.choices(known, k=rng.randint(0, 24)), given_words, None, linearization)
        assert tree.words() == given_words
        depth = 0
        for step, part in tree.walk():
            depth += {"(": 1, ")": -1, "word": 0}[step]
            assert part.label and (step == "word" or part.children)
        assert depth == 0
        assert number % 20 or parse(str(tree)) == tree


@either
@pytest.mark.parametrize("text", ["ǀA " * 50_000, "ǀA " * 50_000 + "ǁB " * 50_000, "ǀA ǀB " * 25_000 + "ǁA " * 50_000])
def test_long_and_deep_takes_linear_time(text, linearization):
    start = time.process_time()
    tree, _ = rebuild(f"a {text}", WORDS, None, linearization)
    assert tree.words() == WORDS and len(str(tree)) > 0
    assert time.process_time() - start < 5  # about half a second; quadratic time would be minutes


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
def test_words_that_a_tree_cannot_contain(words, tags, message):
    with pytest.raises(ValueError, match=message):
        rebuild("XX", words, tags)


# Words and tags.


def test_split_words():
    assert tree_words(" f ( x )\tis\u00a0f(x) ") == ["f", "-LRB-", "x", "-RRB-", "is\u00a0f-LRB-x-RRB-"]
    assert tree_words(" \n") == []


def test_tags_of_punctuation():
    """A tree without tags can be scored by EVALB, which deletes punctuation by its tag."""
    tags = [tag_of(word) for word in ". ? , : -- ; `` '' -LRB- the ' - $".split()]
    assert tags == [".", ".", ",", ":", ":", ":", "``", "''", "-LRB-", "XX", "XX", "XX", "XX"]
    tree, _ = rebuild("ǀS Yes . ǁS", ["Yes", "."])
    assert str(tree) == "(S (XX Yes) (. .))"
    assert str(rebuild("ǀS XX XX ǁS", ["Yes", "."], ["UH", "."])[0]) == "(S (UH Yes) (. .))"


def test_symbol_is_one_subword(tmp_path):
    """The marks are letters because sentencepiece never joins a bracket with a letter."""
    from t2t_repro.data.vocabulary import Vocabulary
    from t2t_repro.preparation.learning.vocabulary import learn_vocabulary

    rng = random.Random(1)
    tokens = {"ǀS", "ǁS", "ǀNP", "ǁNP", "ǀVP", "ǁVP", "We", "(PP", ")PP"}
    lines = [" ".join(rng.choices(sorted(tokens), k=30)) for _ in range(300)]
    learn_vocabulary(lines, str(tmp_path / "vocabulary"), "bpe", 290, num_threads=1)
    vocabulary = Vocabulary(str(tmp_path / "vocabulary"))
    pieces = {token: len(vocabulary.encode([f"We {token}"])[0]) - 2 for token in tokens}  # minus "We" and EOS
    assert {token for token, number in pieces.items() if number == 1} == tokens - {"(PP", ")PP"}
