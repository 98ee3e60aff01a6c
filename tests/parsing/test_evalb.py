"""EVALB: its own sample output byte for byte, each counting rule, and agreement with an independent scorer."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from conftest import CHECKOUT
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_repro.parsing.evalb import ERROR, SCORED, SKIPPED, evalb, score
from t2t_repro.parsing.evalb_parameters import COLLINS, Parameters, read_parameters
from t2t_repro.parsing.evalb_table import table
from t2t_repro.parsing.linearization import linearize_tree, rebuild
from t2t_repro.parsing.trees import Tree, clean, parse, read_trees

GOLD = "(S (NP (DT The) (NN law)) (VP (VBD changed)) (. .))"
TEST = "(S (NP (DT The)) (VP (NN law) (VBD changed)) (. .))"
NEW = replace(COLLINS, quote=frozenset({"``", "''", "POS", "NN"}))


def row(gold, test, parameters=COLLINS):
    return score(1, [parse(gold)] if gold else [], [parse(test)] if test else [], parameters)


def counts(gold, test, parameters=COLLINS):
    """Returns matched, gold's, test's, crossing."""
    found = row(gold, test, parameters)
    assert found.status == SCORED, found.message
    return found.matched, found.gold, found.test, found.crossing


# What counts.


def test_example():
    found = row(GOLD, TEST)
    assert (found.length, found.words, found.tags) == (4, 3, 3)  # the full stop counts only in the length
    assert counts(GOLD, TEST) == (1, 3, 3, 1)


@pytest.mark.parametrize(
    ("gold", "test", "expected"),
    [
        (GOLD, GOLD, (3, 3, 3, 0)),
        ("(S (NP (N a)) (N b))", "(S (VP (N a)) (N b))", (1, 2, 2, 0)),  # labels differ
        ("(S (NP (N a)) (N b))", "(S (N a) (NP (N b)))", (1, 2, 2, 0)),  # words differ, and nothing crosses
        ("(S (NP-SBJ-1 (N a)))", "(S (NP=2 (N a)))", (2, 2, 2, 0)),  # function tags and indices are ignored
        ("(S (ADVP (R a)) (N b))", "(S (PRT (R a)) (N b))", (2, 2, 2, 0)),  # EQ_LABEL
        ("(NP (NP (N a)))", "(NP (N a))", (1, 2, 1, 0)),  # each constituent is matched once
        ("(NP (NP (N a)))", "(NP (NP (NP (N a))))", (2, 2, 3, 0)),
        ("(S (TOP (N a)))", "(S (N a))", (1, 1, 1, 0)),  # DELETE_LABEL leaves the children of a constituent
        ("(S (NP (-NONE- *)) (N a))", "(S (N a))", (1, 1, 1, 0)),  # and removes the word of a part of speech
        ("(S (N a) (, ,))", "(S (N a) (PRN (, ,)))", (1, 1, 1, 0)),  # so that a constituent may become empty
        (
            "(S (N a) (PP (, ,) (P b)))",
            "(S (N a) (, ,) (PP (P b)))",
            (2, 2, 2, 0),
        ),  # the parent of a comma is ignored
        ("( (S (N a)))", "( (S (N a)))", (2, 2, 2, 0)),  # the unlabeled bracket counts
        ("( (S (N a)))", "(S (N a))", (1, 2, 1, 0)),
        ("(S (A (N a) (N b)) (N c) (N d))", "(S (N a) (B (N b) (N c)) (N d))", (1, 2, 2, 1)),
        ("(S (A (N a) (N b)) (A (N c) (N d)))", "(S (N a) (B (N b) (C (N c))) (N d))", (1, 3, 3, 1)),
    ],
)
def test_counts(gold, test, expected):
    assert counts(gold, test) == expected


def test_every_test_bracket_crosses_at_most_once():
    gold = "(S (A (N a) (N b)) (A (N c) (N d)))"
    assert counts(gold, "(S (N a) (X (N b) (N c)) (N d))")[3] == 1  # crosses two of gold's
    assert counts(gold, "(S (N a) (X (X (N b) (N c))) (N d))")[3] == 2


def test_tags_are_compared_unchanged():
    assert row("(S (NN a) (ADVP b) (X-1 c))", "(S (VB a) (PRT b) (X c))").tags == 1


def test_words_must_be_equal():
    found = row("(S (N a) (N b))", "(S (N a) (N c))")
    assert (found.status, found.message) == (ERROR, "word 2 is 'b' in gold, 'c' in test")
    found = row("(S (N a) (N b))", "(S (N a))")
    assert (found.status, found.message) == (ERROR, "2 words in gold, 1 in test")
    assert (found.words, found.gold, found.test, found.matched) == (2, 0, 0, 0)
    assert row("(S (N a) (, ,))", "(S (N a) (N ,))").status == ERROR  # a comma with another tag is an additional word


def test_sentence_without_words_is_skipped():
    assert row(GOLD, "").status == SKIPPED
    assert row(GOLD, "(S (. .))").status == SKIPPED
    assert row("", GOLD).status == ERROR


# Parameters.


def test_unlabeled():
    parameters = replace(COLLINS, labeled=False)
    assert counts("(S (NP (N a)) (N b))", "(X (VP (N a)) (N b))", parameters) == (2, 2, 2, 0)


def test_equal_words_and_labels_equal_to_deleted_ones():
    parameters = replace(COLLINS, equal_words=frozenset({frozenset({"An", "an"})}), delete=frozenset({"PRT"}))
    assert counts("(S (DT An))", "(S (DT an))", parameters) == (1, 1, 1, 0)
    assert counts("(S (DT an))", "(S (DT An))", parameters) == (1, 1, 1, 0)
    assert counts("(S (ADVP (R a)))", "(S (R a))", parameters) == (1, 1, 1, 0)  # ADVP equals PRT, which is deleted
    assert row("(S (ADVP a))", "(S (PRT a))", parameters).status == SKIPPED  # for tags, only PRT itself is deleted


@pytest.mark.parametrize(
    ("gold", "test", "expected"),
    [
        ("(S (NP (N boys) ('' ')) (V run))", "(S (NP (N boys) (POS ')) (V run))", (2, 2, 2, 0)),
        ("(S (NP (N boys) (POS ')) (V run))", "(S (NP (N boys) ('' ')) (V run))", (2, 2, 2, 0)),
        ("(S ('' ') (A (N a) (`` ') (B (N b))))", "(S (POS ') (A (N a) (NN ') (B (N b))))", (3, 3, 3, 0)),
        ("(S (A (N a)) ('' ') (B (N b)))", "(S (A (N a) (POS ')) (B (N b)))", (2, 3, 3, 0)),
    ],
)
def test_quotation_mark_mistaken_for_a_possessive(gold, test, expected):
    """With QUOTE_LABEL, a mark that only one tree deletes is restored, and its tag counts as wrong."""
    assert row(gold, test).status == ERROR
    assert counts(gold, test, NEW) == expected
    assert row(gold, test, NEW).tags < row(gold, test, NEW).words


def test_cutoff():
    scores = evalb(map(parse, (GOLD, "(S (N a))")), map(parse, (TEST, "(S (N a))")), replace(COLLINS, cutoff=3))
    assert (scores.all.sentences, scores.short.sentences) == (2, 1)
    assert (scores.all.recall, scores.short.recall) == (50.0, 100.0)
    assert "-- len<=3 --" in table(scores)
    three = parse("(S (N a) (N b) (N c))")
    assert evalb([three], [three], replace(COLLINS, cutoff=3)).short.sentences == 1


def test_too_many_errors():
    """EVALB allows one error more than MAX_ERROR."""
    parameters = replace(COLLINS, max_error=2)
    gold, test = parse("(S (N a))"), parse("(S (N b))")
    assert evalb([gold] * 3, [test] * 3, parameters).all.errors == 3
    with pytest.raises(
        ValueError, match="sentence 4: word 1 is 'a' in gold, 'b' in test; this is error 4, .* MAX_ERROR is 2"
    ):
        evalb([gold] * 4, [test] * 4, parameters)


@pytest.mark.parametrize(("gold", "test"), [(2, 3), (4, 3)])
def test_numbers_of_trees_must_be_equal(gold, test):
    tree = parse(GOLD)
    with pytest.raises(ValueError, match=f"gold has {gold} trees and test has {test}; the n-th of one must be"):
        evalb([tree] * gold, iter([tree] * test))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DELETE_LABLE X", "line 2: unknown keyword 'DELETE_LABLE': did you mean 'DELETE_LABEL'"),
        ("EQ_LABEL ADVP", "line 2: EQ_LABEL takes two values, got 1"),
        ("DELETE_LABEL", "line 2: DELETE_LABEL takes one value, got 0"),
        ("MAX_ERROR few", "line 2: MAX_ERROR must be an integer, got 'few'"),
    ],
)
def test_invalid_parameter_file(tmp_path, line, message):
    (tmp_path / "x.prm").write_text(f"# comment\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_parameters(str(tmp_path / "x.prm"))


def test_parameter_file(tmp_path):
    path = tmp_path / "x.prm"
    path.write_text("##--##\nDEBUG 1\nLABELED 0  \nDELETE_LABEL ''\n\nEQ_WORD a\tb\r\nQUOTE_LABEL POS\nCUTOFF_LEN 10\n")
    pairs = frozenset({frozenset("ab")})
    nothing = frozenset()
    assert read_parameters(str(path)) == Parameters(
        frozenset({"''"}), nothing, frozenset({"POS"}), nothing, pairs, labeled=False, cutoff=10, max_error=10
    )
    with pytest.raises(FileNotFoundError, match="no file 'none.prm'; give a parameter file of EVALB"):
        read_parameters("none.prm")
    with pytest.raises(ValueError, match="is a directory; give a text file with lines such as DELETE_LABEL TOP"):
        read_parameters(str(tmp_path))
    path.write_text("")
    with pytest.raises(ValueError, match="x.prm is empty; expected lines such as DELETE_LABEL TOP"):
        read_parameters(str(path))


# Arithmetic.


def test_summaries():
    gold = [GOLD, GOLD, "(S (N a))", GOLD]
    test = [GOLD, TEST, "(S (N b))", "(S (. .))"]
    found = evalb(map(parse, gold), map(parse, test)).all
    assert (found.sentences, found.errors, found.skipped, found.valid) == (4, 1, 1, 2)
    assert (found.recall, found.precision, found.complete_match) == pytest.approx((400 / 6, 400 / 6, 50))
    assert (found.average_crossing, found.no_crossing, found.two_or_less_crossing) == (0.5, 50, 100)
    uneven = evalb([parse("(S (NP (N a)))")], [parse("(S (NP (X (X (N a)))))")])
    assert (uneven.all.recall, uneven.all.precision) == (100, 50)
    assert uneven.f1 == pytest.approx(200 / 3)  # the harmonic mean


def test_nothing_to_score():
    for scores in (evalb([], []), evalb([parse("(N a)")], [parse("(N a)")]), evalb([parse("(N a)")], [parse("(N b)")])):
        assert scores.f1 == 0
        assert "Bracketing FMeasure       =   0.00" in table(scores)


def another_scorer(gold, test):
    """Returns matched, gold's and test's counts: spans by counting words, PRT renamed, one multiset each."""

    def spans(tree, start=0):
        if tree.word is not None:
            return Counter(), start + (tree.label not in COLLINS.delete)
        found, place = Counter(), start
        for child in tree.children:
            inner, place = spans(child, place)
            found += inner
        label = {"PRT": "ADVP"}.get(tree.label.split("-")[0], tree.label.split("-")[0])
        return found + Counter([(label, start, place)] * (place > start and label != "TOP")), place

    one, two = spans(gold)[0], spans(test)[0]
    return (one & two).total(), one.total(), two.total()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_agrees_with_another_scorer(data):
    marks = [mark + label for mark in "ǀǁ" for label in ("S", "NP", "VP-X", "ADVP", "PRT", "TOP")]
    number = data.draw(st.integers(2, 8))
    words, tags = (
        ["w"] * number,
        ["N", *data.draw(st.lists(st.sampled_from(["N", ",", "-NONE-"]), min_size=number - 1, max_size=number - 1))],
    )
    symbols = st.lists(st.sampled_from([*marks, *["w"] * 8]), max_size=30)
    gold, test = (rebuild(data.draw(symbols), words, tags)[0] for _ in range(2))
    one, two = score(1, [gold], [test]), score(1, [test], [gold])
    assert (one.matched, one.gold, one.test) == another_scorer(gold, test)
    assert (two.matched, two.gold, two.test) == (one.matched, one.test, one.gold)


@pytest.mark.corpora
def test_available_treebanks(corpora):
    """A tree scores 100 against itself. A tree that was damaged and rebuilt never has other words."""
    gold = [clean(tree) for tree in read_trees(str(corpora / "trees/wsj_sample.dev.mrg.gz"))]
    perfect = evalb(gold, gold).all
    assert (perfect.recall, perfect.precision, perfect.complete_match, perfect.no_crossing) == (100, 100, 100, 100)
    broken = [rebuild(linearize_tree(tree).split()[:-4], tree.words(), tree.tags())[0] for tree in gold]
    found = evalb(gold, broken)
    assert found.all.valid == len(gold) == 276 and 50 < found.f1 < 100
    matched, of_gold, of_test = map(sum, zip(*map(another_scorer, gold, broken), strict=True))
    assert (found.all.recall, found.all.precision) == (100 * matched / of_gold, 100 * matched / of_test)


# The program.


@pytest.mark.corpora
def test_sample_of_evalb(corpora, program):
    """Compares all lines except the F1, which is newer than the sample."""
    sample = corpora / "evalb/sample"
    code, out, err = program(
        "t2t-evalb", *(str(sample / name) for name in ("sample.gld", "sample.tst")), f"--parameters={sample}/sample.prm"
    )
    assert code == 0
    lines = out.split("\n")
    assert [line for line in lines if "FMeasure" not in line] == (sample / "sample.rsl").read_text().split("\n")
    assert [line for line in lines if "FMeasure" in line] == [
        f"Bracketing FMeasure       =  {value}" for value in ("89.12", "83.20")
    ]
    assert [line.partition(":")[0] for line in err.splitlines()] == [f"sentence {n}" for n in (12, 13, 16, 17, 20)]


@pytest.mark.corpora
def test_parameter_files_of_evalb(corpora):
    collins, new, nk = (read_parameters(str(corpora / f"evalb/{name}.prm")) for name in ("COLLINS", "new", "nk"))
    assert collins == COLLINS
    assert new.quote == {"``", "''", "POS", "NN", "CD", "VBZ", ":"} and new.delete == COLLINS.delete | {"S1", "?", "!"}
    assert nk == replace(new, max_error=10_000)


@pytest.fixture
def files(tmp_path):
    """Returns `files("gold lines", "test lines")`, which writes two files and returns their paths."""

    def write(*texts):
        paths = [tmp_path / name for name in ("gold", "test.gz")]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(gzip.compress(text.encode()) if path.suffix else text.encode())
        return [str(path) for path in paths]

    return write


def test_json(program, files):
    code, out, err = program("t2t-evalb", "--json", *files(f"{GOLD}\n{GOLD}\n", f"{GOLD}\n{TEST}\n"))
    found = json.loads(out)
    assert (code, err, list(found)) == (0, "", ["all", "length<=40"])
    assert found["all"] == found["length<=40"]
    assert found["all"]["f1"] == pytest.approx(400 / 6) and found["all"]["valid"] == 2


def test_line_that_is_not_a_tree(program, files):
    """In test it is an error sentence. In gold it is refused, since an incomplete score would be misleading."""
    code, out, err = program("t2t-evalb", *files(f"{GOLD}\n" * 3, f"{GOLD}\n(S (NP (DT The)\n\n"))
    assert code == 0 and err.startswith("sentence 2: ") and "ends inside a tree that starts at line 2" in err
    assert [line.split()[2] for line in out.splitlines()[3:6]] == ["0", "1", "2"]
    code, out, err = program("t2t-evalb", *files(f"{GOLD}\n(S\n(N a))\n", f"{GOLD}\n" * 3))
    assert (code, out) == (1, "")
    assert (
        "gold ends inside a tree that starts at line 2" in err and "(EVALB expects one complete tree per line)" in err
    )


def test_brackets_without_words_are_skipped(program, files):
    """EVALB skips what the Berkeley parser writes for a sentence that it cannot parse. MAX_ERROR is 10."""
    code, out, err = program(
        "t2t-evalb", "--json", *files(f"( {GOLD})\n" * 16, "(())\n( () )\n(TOP)\n" * 5 + f"( {GOLD})\n")
    )
    found = json.loads(out)["all"]
    assert (code, err) == (0, "")
    assert (found["skipped"], found["errors"], found["valid"], found["f1"]) == (15, 0, 1, 100)
    code, _, err = program("t2t-evalb", *files(f"(())\n{GOLD}\n", f"{GOLD}\n" * 2))
    assert code == 1 and "gold, line 1: a bracket without a label" in err


def test_outer_bracket_in_only_one_file(program, files):
    message = "one file has an unlabeled bracket around its sentences, ( (S ...)), and EVALB counts it\n"
    assert program("t2t-evalb", *files(f"( {GOLD})\n", f"{GOLD}\n")).err == message
    assert program("t2t-evalb", *files(f"( {GOLD})\n", f"({GOLD})\n")).err == ""
    assert program("t2t-evalb", *files(f"( {GOLD})\n" * 2, f"\n( {GOLD})\n")).err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "missing GOLD (see t2t-evalb --help)"),
        (["gold"], 2, "missing TEST (see t2t-evalb --help)"),
        (
            ["gold", "test", "more"],
            2,
            "unexpected argument 'more'; flags are written --name=value (see t2t-evalb --help)",
        ),
        (["none", "none"], 1, "no file 'none'; give a file of trees in Penn Treebank bracketing"),
        (["none", "none", "--parameters=p"], 1, "no file 'p'; give a parameter file of EVALB, such as COLLINS.prm"),
    ],
)
def test_failures(program, arguments, code, message):
    assert program("t2t-evalb", *arguments) == (code, "", f"t2t-evalb: {message}\n")


def test_different_numbers_of_lines(program, files):
    code, out, err = program("t2t-evalb", *files(f"{GOLD}\n", f"{GOLD}\n\n"))
    assert (code, out) == (1, "") and "gold has 1 trees and" in err and "test.gz has 2; the n-th of one" in err


def test_help_and_no_tensorflow(program, files):
    help_text = program("t2t-evalb", "--help").out
    assert help_text.startswith("t2t-evalb: ") and max(map(len, help_text.splitlines())) <= 80
    source = (
        "import sys; from t2t_repro.bin.t2t_evalb import main; main(); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *files(f"{GOLD}\n", f"{GOLD}\n")], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_deep_tree():
    text = "(A " * 5_000 + "(B b)" + ")" * 5_000
    assert counts(text, text) == (5_000, 5_000, 5_000, 0)
    assert isinstance(parse(text), Tree)
