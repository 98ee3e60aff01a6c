"""Tests of the benchmarks that compare parsers. What needs supar's environment is skipped without it."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import CHECKOUT
from helpers import small_treebank
from helpers.random_trees import random_trees
from helpers.tiny_model import silent
from hypothesis import given, settings

from benchmarks import chart_parser, environments, parse_errors
from t2t_repro.parsing.evalb import evalb_files
from t2t_repro.parsing.treebank import read
from t2t_repro.parsing.trees import Tree, clean, parse, read_trees
from t2t_repro.preparation.corpora import SplitText, describe
from t2t_repro.preparation.problem_text import ProblemText
from t2t_repro.problem import Trees
from t2t_repro.registry import PROBLEMS

# A chart parser.


@settings(max_examples=50, deadline=None)
@given(random_trees)
def test_what_supar_reads_and_writes_becomes_the_tree_again(tree) -> None:
    if cleaned := clean(tree):
        written = chart_parser.as_supar_reads(cleaned)
        assert len(written.split()) == len(written.split(" ")) and written.startswith("(TOP (")
        found = restored(cleaned, parse(written))
        assert found.leaves() == cleaned.leaves()
        assert chart_parser.as_supar_reads(found) == written
        labels = [part.label for step, part in cleaned.walk() if step == "("]
        assert found == cleaned or any(re.search(r"\s", label) for label in labels)


def restored(gold: Tree, parsed: Tree) -> Tree:
    return chart_parser.without_top(chart_parser.with_leaves_of(gold, parsed))


def test_parsed_words_are_those_of_gold() -> None:
    gold = parse("(S (NP (CD 3\u00a0000) (NNS cats)) (. .))")
    assert chart_parser.as_supar_reads(gold) == "(TOP (S (NP (CD 3_000) (NNS cats)) (. .)))"
    parsed = parse("(TOP (NP (CD 3_000)) (VP (NNS cats) (. .)))")
    assert str(restored(gold, parsed)) == "(TOP (NP (CD 3\u00a0000)) (VP (NNS cats) (. .)))"
    with pytest.raises(ValueError, match=r"expected 3 words for \(S .*\. Received: \(TOP \(NN a\)\)"):
        restored(gold, parse("(TOP (NN a))"))


def test_share_of_the_trees_is_the_sample_of_the_other_parser(tmp_path: Path) -> None:
    path = tmp_path / "own.mrg"
    path.write_text(small_treebank.trees(7, 90), "utf-8")
    trees = chart_parser.trees_of(str(path))
    for fraction in ("1/8", "1/2", "1"):
        chosen = chart_parser.share(trees, Fraction(fraction))
        problem = PROBLEMS["parse_files"].with_files(train_trees=[str(path)])
        problem = chart_parser.dataclasses.replace(problem, sample=len(chosen))
        sources = {"train": [describe(problem.train[0])], "validation": [], "test": []}
        text = ProblemText(problem, sources, str(tmp_path / "trees"), "", silent, 1)
        split: SplitText = text.split("train", text.count()["train"])
        assert [" ".join(tree.words()) for tree in chosen] == [words for words, _ in split.pairs()]
    assert len(chart_parser.share(trees, Fraction(1, 1000))) == 1


def test_another_job_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    trees = [parse("(S (NN a))"), parse("(S (NN b))")]
    job = chart_parser.Job(folder=str(tmp_path))
    path = chart_parser.start(job, trees, trees)
    assert chart_parser.start(chart_parser.Job(folder=str(tmp_path), patience=3), trees, trees) == path
    assert json.loads(Path(path).read_text())["patience"] == 3
    with pytest.raises(ValueError, match="holds another job: its seed is 1, not 2; give another --folder"):
        chart_parser.start(chart_parser.Job(folder=str(tmp_path), seed=2), trees, trees)
    with pytest.raises(ValueError, match="holds another job: its train is"):
        chart_parser.start(job, trees[:1], trees)
    assert (tmp_path / "train.trees").read_text() == "(TOP (S (NN a)))\n(TOP (S (NN b)))\n"


@pytest.mark.slow
def test_chart_parser_learns_and_continues_after_a_kill(tmp_path: Path) -> None:
    if environments.interpreter(environments.cache_folder(), chart_parser.ENVIRONMENT) is None:
        pytest.skip("the environment 'supar' of the benchmarks is not installed")
    train, dev = tmp_path / "train.mrg", tmp_path / "dev.mrg"
    train.write_text(small_treebank.trees(1, 300), "utf-8")
    dev.write_text(small_treebank.trees(2, 40) + "\n(NN a)\n(S (NP (NN x\u00a0y)) (. .))\n", "utf-8")
    command = [sys.executable, "-m", "benchmarks.chart_parser", f"--train={train}", f"--dev={dev}", "--epochs=8"]
    command += ["--n_lstm_hidden=50", "--n_lstm_layers=1", "--batch_words=300", "--micro_batches=1", "--threads=1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shown = subprocess.run([*command, f"--folder={whole}"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    with subprocess.Popen([*command, f"--folder={killed}"], cwd=CHECKOUT, start_new_session=True) as running:
        while not (killed / "epochs.jsonl").exists() or len(epochs(killed)) < 3:
            assert running.poll() is None
            time.sleep(0.05)
        subprocess.run(["kill", "-KILL", "--", f"-{running.pid}"], check=True)
        assert running.wait() == -signal.SIGKILL
    subprocess.run([*command, f"--folder={killed}"], cwd=CHECKOUT, check=True)
    assert epochs(killed) == epochs(whole) and len(epochs(whole)) == 8
    assert (killed / "parsed.mrg").read_bytes() == (whole / "parsed.mrg").read_bytes()
    golds, found = (list(read_trees(str(whole / f"{name}.mrg"))) for name in ("gold", "parsed"))
    assert golds == list(read(Trees(str(dev))))
    assert [tree.words() for tree in found] == [tree.words() for tree in golds]
    f1 = evalb_files(str(whole / "gold.mrg"), str(whole / "parsed.mrg")).f1
    assert f1 > 90 and f"F1 {f1:.2f} (recall" in shown.stdout
    assert f1 == pytest.approx(max(score for _, score in epochs(whole)), abs=1)  # supar's own count


def epochs(folder: Path) -> list[tuple[float, float]]:
    """Returns loss and F1 of each epoch."""
    lines = map(json.loads, (folder / "epochs.jsonl").read_text().strip().split("\n"))
    return [(line["dev_loss"], line["dev_f1"]) for line in lines]


# Errors of parsers.

GOLD = ["(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (NP (NN dogs)) (PP (IN in) (NP (NN fog))))) (. .))", "(S (NN a))"]
ATTACHED_HIGH = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (NN dogs)) (PP (IN in) (NP (NN fog)))) (. .))"
CROSSED = "(S (ADJP (DT the) (NN cat)) (VP (VP (VBZ sees) (NP (NN dogs))) (PP (IN in) (ADVP (NN fog)))) (. .))"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Returns files of gold trees and of two parsers; the second writes no tree for the last sentence."""
    for name, lines in (("gold", [*GOLD, GOLD[1]]), ("a", [ATTACHED_HIGH, GOLD[1], GOLD[1]])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "b").write_text(f"{CROSSED}\n{GOLD[1]}\n(S\n")
    return [str(tmp_path / name) for name in ("gold", "a", "b")]


def test_brackets_by_their_properties(files: list[str]) -> None:
    seen = Counter({"the": 9, "in": 9, "cat": 3, "dogs": 9, "sees": 9})
    (a, b), counted, sentences = parse_errors.analyze(files[0], files[1:], seen, rare=5, short=2)
    assert (counted, sentences) == (2, 3)
    assert a.tables["all"] == {"labeled": count(7, 8, 7), "without labels": count(7, 8, 7)}
    assert b.tables["all"] == {"labeled": count(5, 8, 8), "without labels": count(7, 8, 8)}
    each_once = {"VP": count(1, 1, 1), "PP": count(1, 1, 1)}
    assert a.tables["label"] == {"S": count(2, 2, 2), "NP": count(3, 4, 3)} | each_once
    others = {"VP": count(1, 1, 2), "ADJP": count(0, 0, 1), "ADVP": count(0, 0, 1)}
    assert b.tables["label"] == {"S": count(2, 2, 2), "NP": count(1, 4, 1)} | each_once | others
    spans = {"1": count(2, 3, 3), "2": count(1, 2, 3), "3-4": count(1, 2, 1), "5-8": count(1, 1, 1)}
    assert b.tables["words in the span"] == spans
    assert b.tables["words in the sentence"] == {"1-10": count(5, 8, 8)}
    assert a.tables["least frequent of at most 2 words, in training"] == {
        "0 times (unknown)": count(3, 3, 3),
        "1-4 times (rare)": count(1, 1, 1),
        "5+ times": count(1, 1, 1),
    }
    assert a.missed == {"no such span": 1} and not a.confused
    assert b.missed == {"another label": 2, "crossed": 1}
    assert b.confused == {"NP as ADJP": 1, "NP as ADVP": 1}


def count(matched: int, gold: int, test: int) -> parse_errors.Counts:
    return parse_errors.Counts(matched, gold, test)


def test_totals_are_those_of_evalb(tmp_path: Path) -> None:
    rng = random.Random(1)
    golds = list(read(Trees(str(write(tmp_path / "gold", small_treebank.trees(5, 60))))))
    parsed = [str(tree).replace("(NP", "(ADJP", rng.randint(0, 1)) for tree in golds]
    gold = write(tmp_path / "gold", "".join(f"{tree}\n" for tree in golds))
    test = write(tmp_path / "test", "".join(f"{tree}\n" for tree in parsed))
    ((errors,), counted, _) = parse_errors.analyze(str(gold), [str(test)])
    found = evalb_files(str(gold), str(test))
    assert errors.tables["all"]["labeled"].f1 == pytest.approx(found.f1) and 50 < found.f1 < 100
    assert errors.tables["all"]["without labels"].f1 == 100 and counted == found.all.valid
    for table in list(errors.tables.values())[1:]:
        for name in ("matched", "gold", "test"):
            assert sum(getattr(each, name) for each in table.values()) == sum(getattr(row, name) for row in found.rows)
    assert sum(errors.missed.values()) == sum(row.gold - row.matched for row in found.rows)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(("number", "row"), [(1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (9, "9-16"), (33, "33+")])
def test_rows_of_lengths(number: int, row: str) -> None:
    assert parse_errors.binned(number, parse_errors.SPANS) == row


def test_report_of_two_parsers(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["parse_errors", *files])
    parse_errors.main()
    shown = capsys.readouterr().out
    assert shown.startswith(f"A  {files[1]}\nB  {files[2]}\n2 of 3 sentences are counted\n")
    assert "| labeled | 8 | 93.33 | 62.50 | -30.83 | -2 |" in shown and "| NP as ADJP | 0 | 1 |" in shown
    monkeypatch.setattr(sys, "argv", ["parse_errors", *files[:2], "--json"])
    parse_errors.main()
    found = json.loads(capsys.readouterr().out)
    assert found["A"]["all"]["labeled"] == {"matched": 8, "gold": 9, "test": 8, "f1": pytest.approx(1600 / 17)}


def test_gold_tags_make_a_decoders_trees_comparable(tmp_path: Path) -> None:
    """t2t-decoder tags a colon as one, but here it is a word to gold: EVALB would see another number of words."""
    gold = write(tmp_path / "gold", "(S (NP (NN x)) (SYM :) (NP (NN y)) (. .))\n(S (NN a))\n")
    decoded = write(tmp_path / "decoded", "(S (NP (XX x)) (: :) (VP (XX y)) (. .))\n(S (XX a) (XX b))\n")
    for gold_tags, counted in ((False, 0), (True, 1)):
        ((errors,), number, _) = parse_errors.analyze(str(gold), [str(decoded)], gold_tags=gold_tags)
        assert number == counted
    assert errors.tables["all"]["labeled"] == count(2, 3, 3)


def test_files_with_other_sentences_are_refused(files: list[str], tmp_path: Path) -> None:
    short = write(tmp_path / "short", f"{GOLD[0]}\n")
    with pytest.raises(ValueError, match=r"gold has 3 lines and .*short has 1; give the same sentences"):
        parse_errors.analyze(files[0], [str(short)])
