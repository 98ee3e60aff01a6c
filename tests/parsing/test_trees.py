"""Trees: reading, refused input and its messages, cleaning, writing, and unlimited depth."""

from __future__ import annotations

import gzip
import time

import pytest
from helpers.random_trees import random_trees
from hypothesis import given, settings

from t2t_repro.parsing import trees
from t2t_repro.parsing.trees import Tree, bare, clean, parse, parse_lines, read_trees

GIVEN = "( (S (NP-SBJ-1 (DT The) (NN law)) (VP (VBD changed) (NP-1 (-NONE- *))) (. .)))"
CLEAN = "(S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))"
DEPTH = 10_000  # Python's recursion limit is 1,000

# Labels and words have no ASCII white space and no bracket; no-break spaces and U+2028 count as letters.


def read(tmp_path, text, name="text.mrg"):
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return [str(tree) for tree in read_trees(str(path))]


# Reading.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GIVEN, [GIVEN]),
        ("(S\n  (NP (PRP We))\n\n  (VP\r\n (VBP agree) ) )\n", ["(S (NP (PRP We)) (VP (VBP agree)))"]),
        ("(A (B b)) (C (D d))\n(E e)", ["(A (B b))", "(C (D d))", "(E e)"]),
        ("(A\n(B b)) (C\n(D d))\n\n", ["(A (B b))", "(C (D d))"]),
        ("( (A (B b)) (C (D d)) )", ["( (A (B b)) (C (D d)))"]),
        ("(-LRB- -LRB-)(-RRB- -RRB-)", ["(-LRB- -LRB-)", "(-RRB- -RRB-)"]),
        ("(NP (NN a\u00a0b\u2028c) (CD \u0085))", ["(NP (NN a\u00a0b\u2028c) (CD \u0085))"]),
        ("(NP(NN a)(NN\tb))", ["(NP (NN a) (NN b))"]),
        ("(NP (NN Xpd TTD) (NN a b\n c))", ["(NP (NN Xpd_TTD) (NN a_b_c))"]),
        ("\ufeff(A a)", ["(A a)"]),
    ],
)
@pytest.mark.parametrize("name", ["text.mrg", "text.mrg.gz"])
def test_reading(tmp_path, text, expected, name):
    assert read(tmp_path, text, name) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(A a)\nb", r"line 2: 'b' is outside of all brackets; expected a tree such as \(S \(NP "),
        ("(A a))", r"line 1: unmatched \); expected a tree"),
        ("(A a)\n(B ()\n)", "line 2: a bracket without a label inside a tree"),
        ("(A\n(B ))", r"line 2: \(B\) is empty; expected a word or brackets in it"),
        ("( )", r"line 1: \(\) is empty"),
        ("(A a (B b))", r"line 1: \(A has the word 'a' and a bracket; expected one or the other"),
        ("(A (B b)\n a)", r"line 2: \(A has the word 'a' and a bracket"),
        ("( NP (NN a))", r"line 1: 'NP' in a bracket without a label; expected \(TAG NP\), no space after the \("),
        (
            "(A a)\n\n(B (C\n(D d)",
            r"ends inside a tree that starts at line 3: 2 brackets are not closed, the last one \(C",
        ),
        ("(A a) (B (C c)", r"ends inside a tree that starts at line 1: a bracket is not closed, the last one \(B"),
        ("\n \n", "has no tree; expected Penn Treebank bracketing"),
        ("", "is empty"),
    ],
)
def test_invalid_input(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "text.mrg"))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file '.*none.mrg'; give a file of trees"):
        list(read_trees(str(tmp_path / "none.mrg")))
    with pytest.raises(ValueError, match="is a directory; give a text file with trees in Penn Treebank bracketing"):
        list(read_trees(str(tmp_path)))
    with pytest.raises(ValueError, match="'/dev/null' is not a regular file, and text is read more than once"):
        list(read_trees("/dev/null"))


def test_tree_that_is_never_closed_is_read_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(trees, "MAX_BRACKETS", 6)
    assert str(next(parse_lines(["(A (B b) (B b) (B b) (B b) (B b))"], "f")))
    with pytest.raises(ValueError, match="f, line 3: the tree that starts at line 1 is not closed after 6 brackets"):
        list(parse_lines(["(A (B b)", *["(B b) (B b) (B b)"] * 3], "f"))


def test_tree_is_returned_as_soon_as_it_is_closed():
    def lines():
        yield "(A a) (B"
        raise EOFError

    reader = parse_lines(lines(), "f")
    assert next(reader) == Tree("A", (), "a")
    with pytest.raises(EOFError):
        next(reader)


def test_parse_expects_one_tree():
    with pytest.raises(ValueError, match="expected one tree, got 2 in"):
        parse("(A a) (B b)")
    with pytest.raises(ValueError, match="expected one tree, got 0 in ''"):
        parse("")


def test_many_words_of_a_leaf_are_read_in_linear_time():
    start = time.process_time()
    (tree,) = parse_lines(["(NN", *["a bbb cc"] * 100_000, ")"], "f")
    assert tree.word and tree.word.count("_") == 299_999
    assert time.process_time() - start < 3


# The tree itself.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("A",), "has children or one word, got 0 children and None"),
        (("A", (parse("(B b)"),), "a"), "has children or one word, got 1 children and 'a'"),
        (("A", (), "a b"), "a word has no white space and no brackets, and is not empty; got 'a b'"),
        (("A", (), "("), "a word has no white space and no brackets"),
        (("A", (), ""), "a word has .* is not empty; got ''"),
        (("A B", (), "a"), "a label has no white space and no brackets, and is not empty; got 'A B'"),
        (("", (), "a"), "a label has no white space and no brackets, and is not empty; got ''"),
        (("A", (parse("( (B b))"),)), "only the root of a tree may be without a label"),
    ],
)
def test_trees_that_cannot_be_written(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tree(*arguments)


def test_words_and_tags():
    tree = parse(GIVEN)
    assert tree.words() == ["The", "law", "changed", "*", "."]
    assert tree.tags() == ["DT", "NN", "VBD", "-NONE-", "."]
    assert [str(leaf) for leaf in tree.leaves()][:2] == ["(DT The)", "(NN law)"]
    assert repr(parse("(A a)")) == "parse('(A a)')"


def test_equality():
    assert parse(GIVEN) == parse(GIVEN) != parse(CLEAN)
    assert len({parse(GIVEN), parse(GIVEN), parse(CLEAN)}) == 2
    assert parse("(A (B b) (B b))") != parse("(A (B b))") != "(A (B b))"


@settings(max_examples=50, deadline=None)
@given(random_trees)
def test_written_trees_are_read_back(tree):
    assert parse(str(tree)) == tree == eval(repr(tree))


def test_depth_is_unlimited():
    text = "(A" + " (A" * (DEPTH - 2) + " (B b)" + ")" * (DEPTH - 1)
    tree = parse(text)
    assert str(tree) == text and tree == parse(text) and hash(tree) == hash(parse(text))
    assert clean(tree) == tree and tree.words() == ["b"]


# Cleaning.


@pytest.mark.parametrize(
    ("given_tree", "expected"),
    [
        (GIVEN, CLEAN),
        ("(S (NP=2 (NN a)) (PP-LOC-PRD=3 (IN b)))", "(S (NP (NN a)) (PP (IN b)))"),
        ("(S (NP (-NONE- *)) (VP (PP (-NONE- *)) (V v)))", "(S (VP (V v)))"),
        ("(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(PRN (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
        ("(NP (NP (NP (NN a))))", "(NP (NP (NP (NN a))))"),  # EVALB counts all three
        ("(ROOT (S (NN-SB a)))", "(S (NN a))"),
        ("( (TOP (S1 (S (NN a)))))", "(S (NN a))"),
        ("( (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
        ("( (S (NN a)) (-NONE- *))", "(S (NN a))"),
        ("( (NN a))", "(NN a)"),
        ("(NN NN-1)", "(NN NN-1)"),
        ("(TOP a)", "(TOP a)"),
        ("(NP (-A- a) (=A b))", "(NP (-A- a) (=A b))"),
    ],
)
def test_clean(given_tree, expected):
    assert str(clean(parse(given_tree))) == expected


@pytest.mark.parametrize("text", ["(-NONE- *)", "( (S (NP (-NONE- *)) (VP (-NONE- *))))"])
def test_nothing_but_traces(text):
    assert clean(parse(text)) is None


@settings(max_examples=50, deadline=None)
@given(random_trees)
def test_clean_keeps_the_words_and_is_idempotent(tree):
    cleaned = clean(tree)
    written = [leaf.word for leaf in tree.leaves() if leaf.label != "-NONE-"]
    assert (cleaned.words() if cleaned else []) == written
    assert cleaned is None or clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("label", "expected"), [("NP-SBJ-1", "NP"), ("NP=2", "NP"), ("-LRB-", "-LRB-"), ("=A-1", "=A-1"), ("PRP$", "PRP$")]
)
def test_bare(label, expected):
    assert bare(label) == expected


# Available treebanks.


@pytest.mark.corpora
def test_treebank_is_written_and_read_back(corpora):
    """Uses CRAFT, which has five leaves of several words."""
    count, of_several_words = 0, 0
    for count, tree in enumerate(read_trees(str(corpora / "trees/craft.dev.mrg.gz")), start=1):
        of_several_words += sum("Xpd_" in word or "†_" in word for word in tree.words())
        assert count % 10 or parse(str(tree)) == tree
    assert (count, of_several_words) == (3_471, 5)
