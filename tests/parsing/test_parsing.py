"""Parsing, from bracketed files to F1: problems, prepared data, output of runs, and scores."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import small_treebank
from helpers.prepared_data import bytes_of, records
from helpers.tiny_model import random_model, silent

import t2t_repro
from t2t_repro.cli import launcher
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.evaluation.comparison import compared_runs
from t2t_repro.inference.translator import Translator
from t2t_repro.parsing.constrained_decoding import ParseConstraint
from t2t_repro.parsing.evalb import evalb, evalb_files
from t2t_repro.parsing.linearization import CLOSE, OPEN, linearize_tree, pair, rebuild, tree_words
from t2t_repro.parsing.parser import Parser
from t2t_repro.parsing.treebank import paths, read
from t2t_repro.parsing.trees import clean, parse, read_trees
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import LINEARIZATIONS, Problem, TextFiles, Trees
from t2t_repro.registry import HPARAMS, PROBLEMS
from t2t_repro.run import Run
from t2t_repro.saved_model import SavedModel

WSJ, WSJ_AND_MORE, FILES = (PROBLEMS[f"parse_{name}"] for name in ("wsj", "wsj_semisupervised", "files"))
VOCAB_SIZE = 330


@pytest.fixture(scope="module")
def treebank(tmp_path_factory) -> str:
    return small_treebank.write(tmp_path_factory.mktemp("ptb") / "wsj")


@pytest.fixture(scope="module")
def prepared(treebank, tmp_path_factory) -> Dataset:
    problem = dataclasses.replace(WSJ.with_raw_dir(treebank), vocab_size=VOCAB_SIZE)
    return prepare(problem, str(tmp_path_factory.mktemp("data")), silent)


def gold(split: str, dataset: Dataset) -> list[str]:
    return Path(dataset.trees(split)).read_text("utf-8").rstrip("\n").split("\n")


# The problems.


def test_conditions_of_the_paper():
    """Section 6.3: sections 02-21 with a vocabulary of 16K, and more trees with 32K. Table 4 is of section 23."""
    assert WSJ.train == (Trees(sections=tuple(range(2, 22)), number=39_832),) and WSJ.vocab_size == 16_000
    assert WSJ_AND_MORE.train == (*WSJ.train, Trees(by_parser=True)) and WSJ_AND_MORE.vocab_size == 32_000
    for problem in (WSJ, WSJ_AND_MORE):
        assert problem.validation == (Trees(sections=(22,), number=1_700),)
        assert problem.test == (Trees(sections=(23,), number=2_416),)
    for name in ("parsing", "parsing_semisupervised"):
        assert (HPARAMS[name].beam_size, HPARAMS[name].alpha, HPARAMS[name].extra_length) == (21, 0.3, 300)


def test_problem_with_the_users_files():
    assert WSJ.takes_files and WSJ_AND_MORE.takes_files and FILES.takes_files
    given = WSJ.with_raw_dir("PTB").with_files(train_trees=[])
    assert given.train == (Trees("PTB", tuple(range(2, 22)), 39_832),) and given.test == (Trees("PTB", (23,), 2_416),)
    given = WSJ_AND_MORE.with_raw_dir("PTB").with_files(train_trees=["a", "b.gz"])
    parsed = [Trees(path, by_parser=True) for path in ("a", "b.gz")]
    assert given.train == (Trees("PTB", tuple(range(2, 22)), 39_832), *parsed)
    given = FILES.with_files(train_trees=["a", "b"], test_trees=["c"])
    assert given.train == (Trees("a"), Trees("b")) and given.test == (Trees("c"),) and not given.validation
    assert not given.takes_files and given.vocab_size == FILES.vocab_size


@pytest.mark.parametrize(
    ("problem", "given", "message"),
    [
        (WSJ, {}, "'parse_wsj' needs your text: give `raw_dir`, the folder of the treebank"),
        (WSJ, {"raw_dir": "d", "train_trees": ["a"]}, "'parse_wsj' takes no `train_trees`; leave it out"),
        (WSJ, {"train_source": "a"}, "'parse_wsj' takes no `train_source`; give `raw_dir`"),
        (WSJ_AND_MORE, {"raw_dir": "d"}, "needs your text: give `raw_dir`, the folder of the treebank, and `train_tr"),
        (WSJ_AND_MORE, {"train_trees": ["a"]}, "'parse_wsj_semisupervised' needs your text: give `raw_dir`"),
        (FILES, {}, "'parse_files' needs your text: give `train_trees`"),
        (FILES, {"test_trees": ["a"]}, "'parse_files' needs your text: give `train_trees`"),
        (
            FILES,
            {"train_trees": ["a"], "raw_dir": "d"},
            "'parse_files' has no downloaded archives or treebank, and takes no `raw_dir`",
        ),
    ],
)
def test_invalid_problems(problem, given, message):
    with pytest.raises(ValueError, match=f"^problem .*{re.escape(message)}"):
        raw_dir = given.get("raw_dir")
        problem = problem.with_raw_dir(raw_dir) if raw_dir else problem
        problem.with_files(**{name: paths for name, paths in given.items() if name != "raw_dir"})


def test_trees_require_f1():
    with pytest.raises(ValueError, match="metric 'f1' and Trees belong together; got 'bleu' with section 23"):
        Problem(name="p", description="", test=(Trees("PTB", (23,)),))
    with pytest.raises(ValueError, match="metric 'f1' and Trees belong together"):
        Problem(name="p", description="", train=(TextFiles("a", "b"),), metric="f1")


def test_trees_as_text():
    assert str(Trees("PTB", (2, 3, 4))) == "sections 02-04 of PTB" and str(Trees("PTB", (22,))) == "section 22 of PTB"
    assert str(Trees("PTB", (2, 4))) == "sections 02, 04 of PTB" and str(Trees("a.mrg")) == "a.mrg"


def test_description_in_the_registry(program):
    code, out, _ = program("t2t-registry", "--problem=parse_wsj_semisupervised")
    assert code == 0 and "sections 02-21 of your folder, --raw_dir; your files" in out
    assert "section 23 of your folder, --raw_dir" in out and re.search(r"metric +f1\n", out)
    assert "your files: --validation_trees" in program("t2t-registry", "--problem=parse_files").out


# The treebank's folder.


def test_articles_of_a_section(treebank, tmp_path):
    expected = ["02/wsj_0200.mrg", "02/wsj_0201.mrg.gz", "03/wsj_0300.mrg", "03/wsj_0301.mrg.gz"]
    assert [os.path.relpath(path, treebank) for path in paths(Trees(treebank, (3, 2)))] == expected
    for name in expected:  # all in one folder
        shutil.copy(os.path.join(treebank, name), tmp_path)
    (tmp_path / "wsj_0200.pos").write_text("no trees")
    (tmp_path / "xwsj_0200.mrg").write_text("no trees")
    assert paths(Trees(str(tmp_path), (2, 3))) == [str(tmp_path / os.path.basename(name)) for name in expected]
    assert list(read(Trees(str(tmp_path), (2, 3)))) == list(read(Trees(treebank, (2, 3))))
    assert len(list(read(Trees(treebank, (2, 3))))) == 16  # trees whose only words are traces are omitted


def test_links_to_folders_are_followed(treebank, tmp_path):
    """Each folder is read once, also if a link makes a circle or a second path."""
    for name in ("02", "03"):
        (tmp_path / name).symlink_to(os.path.join(treebank, name))
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "also_02").symlink_to("02")
    found = paths(Trees(str(tmp_path), (2, 3)))
    assert [os.path.basename(path)[:8] for path in found] == ["wsj_0200", "wsj_0201", "wsj_0300", "wsj_0301"]


def test_folder_that_is_not_a_treebank(treebank, tmp_path):
    with pytest.raises(FileNotFoundError, match="^raw_dir: no directory '.*none'; give the one with the tree"):
        paths(Trees(str(tmp_path / "none"), (2,)))
    with pytest.raises(FileNotFoundError, match=r"has no wsj_25\*\.mrg \(missing sections: 25, 30\); give the folder"):
        paths(Trees(treebank, (2, 25, 30)))
    for name in ("wsj_0200.mrg", "wsj_0200.mrg.gz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"wsj_0200\.mrg(\.gz)? and .*wsj_0200\.mrg(\.gz)? are the same article"):
        paths(Trees(str(tmp_path), (2,)))


# Prepared data.


def test_records_of_the_model(treebank, prepared):
    (first,) = {pair for pair in records(prepared, "test") if pair[0] == gold_words(gold("test", prepared)[0])}
    tree = parse(gold("test", prepared)[0])
    assert first == (" ".join(tree.words()), linearize_tree(tree))
    assert not re.search(r"-NONE-|\*|-SBJ|=3", "".join(gold("test", prepared)))
    assert any("-LRB-" in source for source, _ in records(prepared, "train"))


def gold_words(line: str) -> str:
    return " ".join(parse(line).words())


@pytest.mark.parametrize("split", ["validation", "test"])
def test_gold_and_shards_are_the_same_sentences(treebank, prepared, split):
    """Records decode to gold's words and linearization, which rebuild to gold: the F1 is 100."""
    trees = list(read(Trees(treebank, WSJ.corpora(split)[0].sections)))
    assert gold(split, prepared) == [str(tree) for tree in trees]
    assert records(prepared, split) == [(" ".join(tree.words()), linearize_tree(tree)) for tree in trees]
    again = [
        rebuild(target, tree_words(source), tree.tags())
        for (source, target), tree in zip(records(prepared, split), trees, strict=True)
    ]
    assert again == [(tree, 0) for tree in trees]
    assert evalb(trees, [tree for tree, _ in again]).f1 == 100.0


def test_vocabulary_in_a_graph(prepared):
    vocabulary = Vocabulary(prepared.vocabulary)
    texts = [text for pair in records(prepared, "train") for text in pair]
    assert vocabulary.encode_tensor(texts).to_list() == vocabulary.encode(texts)


def test_dataset_json(treebank, prepared):
    record = prepared.record
    assert record.problem.metric == "f1"
    (train,) = record.sources["train"]
    assert train["trees"]["path"] == f"sections 02-21 of {treebank}" and train["trees"]["files"] == 40
    assert {name: split.pairs for name, split in record.splits.items()} == {
        "train": 160,
        "validation": 8,
        "test": 8,
    }
    assert record.splits["test"].trees.records == 8 and not record.splits["train"].trees


def test_treebank_that_changed_since_preparation(treebank, prepared, tmp_path):
    copy = shutil.copytree(treebank, tmp_path / "wsj")
    problem = dataclasses.replace(WSJ.with_raw_dir(str(copy)), vocab_size=VOCAB_SIZE)
    prepare(problem, str(tmp_path / "data"), silent)
    article = copy / "23" / "wsj_2300.mrg"
    article.write_bytes(article.read_bytes().replace(b"(DT The)", b"(DT Thy)"))
    for verify in (False, True):
        with pytest.raises(ValueError, match="holds other data: its test text was section 23 of .*wsj, 2 files, "):
            prepare(problem, str(tmp_path / "data"), silent, verify=verify)
    article.unlink()
    with pytest.raises(ValueError, match="holds other data: its test text was section 23 of .*wsj, 2 files, "):
        prepare(problem, str(tmp_path / "data"), silent)


@pytest.fixture(scope="module")
def prepared_in_order(treebank, tmp_path_factory) -> Dataset:
    problem = dataclasses.replace(WSJ.with_raw_dir(treebank), vocab_size=VOCAB_SIZE, linearization="in_order")
    return prepare(problem, str(tmp_path_factory.mktemp("data")), silent)


def test_prepared_data_in_order(treebank, prepared, prepared_in_order):
    """The gold trees are the same, and so are the numbers of trees and words."""
    for split in ("validation", "test"):
        trees = list(read(Trees(treebank, WSJ.corpora(split)[0].sections)))
        assert gold(split, prepared_in_order) == gold(split, prepared) == [str(tree) for tree in trees]
        assert records(prepared_in_order, split) == [pair(tree, "in_order") for tree in trees]
    trained = {source: target for source, target in records(prepared_in_order, "train")}
    assert trained == dict(pair(tree, "in_order") for tree in read(Trees(treebank, WSJ.train[0].sections)))


def test_validation_split_in_order_has_its_gold_trees(own_trees, tmp_path):
    problem = dataclasses.replace(own_trees[0], linearization="in_order")
    dataset = prepare(problem, str(tmp_path / "data"), silent)
    golds = gold("validation", dataset)
    assert golds and records(dataset, "validation") == [pair(parse(line), "in_order") for line in golds]


def test_default_linearization_is_not_recorded(prepared, prepared_in_order):
    """Data, runs and exports of earlier versions have no such field; their fingerprints stay the same."""
    recorded = [json.loads(Path(each.directory, "dataset.json").read_text()) for each in (prepared, prepared_in_order)]
    assert [each["problem"].get("linearization") for each in recorded] == [None, "in_order"]
    assert [each.record.problem.linearization for each in (prepared, prepared_in_order)] == ["top_down", "in_order"]


def test_other_linearization_is_refused(treebank, prepared, prepared_in_order):
    for dataset, other in ((prepared, "in_order"), (prepared_in_order, "top_down")):
        problem = dataclasses.replace(WSJ.with_raw_dir(treebank), vocab_size=VOCAB_SIZE, linearization=other)
        message = f"its linearization is '{dataset.record.problem.linearization}', not '{other}'; give another"
        with pytest.raises(ValueError, match=f"holds other data: {message}"):
            prepare(problem, os.path.dirname(dataset.directory), silent)


def test_linearized_text_of_a_stopped_preparation_is_not_read_for_another_linearization(own_trees, tmp_path):
    def stop(line):
        raise Stopped

    with pytest.raises(Stopped):
        prepare(own_trees[0], str(tmp_path / "data"), stop)
    assert (tmp_path / "data" / "parse_files" / "trees" / "train-0.tsv").exists()
    problem = dataclasses.replace(own_trees[0], linearization="in_order")
    resumed, fresh = (prepare(problem, str(tmp_path / name), silent) for name in ("data", "fresh"))
    assert bytes_of(resumed.directory) == bytes_of(fresh.directory)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"linearization": "bottom_up"}, "linearization must be one of top_down, in_order, got 'bottom_up'"),
        ({"linearization": "in_order", "metric": "bleu"}, "linearization 'in_order' is for trees, metric 'f1'; got"),
    ],
)
def test_impossible_linearization(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(FILES, **fields)


def test_self_training_on_a_decoders_trees(own_trees, tmp_path):
    """Empty lines, which the decoder writes for unsure trees, are left out; a file that is given twice counts twice."""
    own = [str(tree) for tree in read(own_trees[0].train[0])]
    (tmp_path / "parsed.mrg").write_text("\n".join(["", "(S (XX We) (. .))", "", "", "(S (XX You) (. .))", ""]) + "\n")
    files = {"train_trees": [own_trees[1]] * 3 + [str(tmp_path / "parsed.mrg")], "validation_trees": [own_trees[1]]}
    dataset = prepare(dataclasses.replace(FILES.with_files(**files), vocab_size=300), str(tmp_path / "data"), silent)
    assert [corpus.lines for corpus in dataset.record.corpora["train"]] == [len(own)] * 3 + [2]
    found = sorted(source for source, _ in records(dataset, "train"))
    assert found == sorted([gold_words(line) for line in own] * 3 + ["We .", "You ."])


def test_damaged_gold_is_named(prepared, tmp_path):
    copy = shutil.copytree(prepared.directory, tmp_path / "copy")
    path = copy / "test.trees"
    path.write_bytes(path.read_bytes().replace(b"NP", b"PP", 1))
    Dataset.open(str(copy))
    with pytest.raises(ValueError, match=r"test\.trees is damaged \(its SHA-256 differs\)"):
        Dataset.open(str(copy), verify=True)
    path.unlink()
    with pytest.raises(ValueError, match=r"test\.trees is missing"):
        Dataset.open(str(copy))
    record = json.loads((copy / "dataset.json").read_text("utf-8"))
    del record["splits"]["test"]["trees"]
    (copy / "dataset.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(ValueError, match="is damaged .*test has no trees"):
        Dataset.open(str(copy))


@pytest.fixture
def own_trees(tmp_path):
    """Returns FILES with one file of 60 trees, part of which is the validation split, and the file itself."""
    path = tmp_path / "own.trees"
    path.write_text(small_treebank.trees(7, 60))
    return dataclasses.replace(FILES.with_files(train_trees=[str(path)]), vocab_size=300), str(path)


def test_gold_of_the_validation_split(own_trees, tmp_path):
    problem, path = own_trees
    dataset = prepare(problem, str(tmp_path / "data"), silent)
    held, trained = records(dataset, "validation"), records(dataset, "train")
    assert held and len(held) + len(trained) == 60
    assert [(gold_words(line), linearize_tree(parse(line))) for line in gold("validation", dataset)] == held
    assert {*gold("validation", dataset)} < {str(tree) for tree in read(Trees(path))}
    with pytest.raises(ValueError, match=r"has no test text; take .*, or prepare the data with some \(`test_trees`\)"):
        dataset.trees("test")
    assert prepare(dataclasses.replace(FILES, vocab_size=300), str(tmp_path / "data"), silent) == dataset


class Stopped(BaseException):
    pass


def test_interrupted_at_every_write_and_resumed(own_trees, tmp_path, monkeypatch):
    problem, path = own_trees
    problem = dataclasses.replace(problem, test=(Trees(path),))
    names, replace = [], os.replace

    def recorded(temporary, path):
        names.append(os.path.basename(path))
        replace(temporary, path)

    monkeypatch.setattr(os, "replace", recorded)
    expected = bytes_of(prepare(problem, str(tmp_path / "whole"), silent).directory)
    assert {"validation.trees", "test.trees"} < {*names}
    for stop in range(names.index("validation.trees") - 1, len(names)):
        calls, data = iter(range(len(names))), tmp_path / f"data{stop}"

        def stopped(temporary, path, stop=stop, calls=calls):
            if next(calls) == stop:
                raise Stopped
            replace(temporary, path)

        monkeypatch.setattr(os, "replace", stopped)
        with pytest.raises(Stopped):
            prepare(problem, str(data), silent)
        (data / "parse_files" / "test.trees.tmp-1").write_bytes(b"half")
        monkeypatch.setattr(os, "replace", replace)
        assert bytes_of(prepare(problem, str(data), silent).directory) == expected


# Invalid input on the command line.


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "load_tensorflow", lambda: None)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("", "", [], "problem 'parse_files' needs your text: give --train_trees"),
        ("", "", ["--train_trees=a"], "cannot read --train_trees 'a': No such file or directory"),
        ("a", "", ["--train_trees=a"], "a is empty; expected trees in Penn Treebank bracketing"),
        ("a", " \n", ["--train_trees=a"], "a has no tree; expected Penn Treebank bracketing"),
        ("a", "(S (NN x)", ["--train_trees=a"], "a ends inside a tree that starts at line 1"),
        ("a", "(S (NN x))\nNN x", ["--train_trees=a"], "a, line 2: 'NN' is outside of all brackets"),
        ("a", "(S (-NONE- *))", ["--train_trees=a"], "a has no tree with words; expected (S"),
        ("a.gz", "(S (NN x))", ["--train_trees=a.gz"], "a.gz is not a valid gzip file"),
        ("a", "(S (NN x))", ["--train_trees=a"], "the training text is too small for a validation split"),
        ("a", "(S (NN x))", ["--train_source=a", "--train_target=a"], "problem 'parse_files' takes no --train_source"),
        (
            "a",
            "(S (NN x))",
            ["--train_trees=a", "--raw_dir=."],
            "problem 'parse_files' has no downloaded archives or treebank",
        ),
        ("a", "", ["--problem=parse_wsj"], "problem 'parse_wsj' needs your text: give --raw_dir, the folder of"),
        ("a", "", ["--problem=parse_wsj", "--raw_dir=a"], "--raw_dir: 'a' is not a directory; give the folder of"),
        (
            "a",
            "",
            ["--problem=parse_wsj", "--raw_dir=."],
            "--raw_dir: '.' has no wsj_02*.mrg (missing sections: 02, ",
        ),
        ("a", "", ["--problem=translate_files", "--train_trees=a"], "problem 'translate_files' takes no --train_trees"),
        ("a", "", ["--problem=translate_ende_cldr", "--train_trees=a"], "problem 'translate_ende_cldr' has its own"),
    ],
)
def test_invalid_input_is_reported_in_one_line(program, in_an_empty_folder, name, content, arguments, message):
    if name:
        Path(name).write_text(content)
    code, out, err = program("t2t-datagen", "--problem=parse_files", "--data_dir=D", "--vocab_size=300", *arguments)
    assert (code, out) == (1, "") and err.startswith(f"t2t-datagen: {message}") and err.count("\n") == 1
    left = [path for path in Path("D").rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert not left or [path.parent.name for path in left] == ["trees"] * 2  # complete: the next run reads it


# A parser.

WORDS = "We see ( it ) ?"


def parser_that_writes(*hypotheses: str, **options) -> Parser:
    """Returns a parser whose beam always contains these hypotheses, best first."""
    scored = [(text, -float(number)) for number, text in enumerate(hypotheses)]

    def n_best(texts, n, beam_size, alpha):
        return [scored[:n] if text else [("", 0.0)] for text in texts]

    hparams = SimpleNamespace(beam_size=len(hypotheses))
    return Parser(SimpleNamespace(hparams=hparams, n_best=n_best), **options)


RIGHT = "ǀS ǀNP We ǁNP ǀVP see -LRB- it -RRB- ǁVP ? ǁS"
SHORT = "ǀS ǀNP We ǁNP ǁS"


def test_tree_over_exactly_the_words():
    parser = parser_that_writes(RIGHT)
    expected = "(S (NP (XX We)) (VP (XX see) (-LRB- -LRB-) (XX it) (-RRB- -RRB-)) (. ?))"
    assert parser.n_best([WORDS, "", "  "], 1) == [[(expected, 0.0)], [("", 0.0)], [("", 0.0)]]
    assert parser.summary() == "repaired 0 of 1 trees (0 repairs)"


def test_gold_tags():
    tags = "PRP VBP ( PRP ) .".replace("(", "-LRB-").replace(")", "-RRB-").split()
    (tree,) = parser_that_writes(RIGHT).parse([tree_words(WORDS)], tags=[tags])
    assert tree.tags() == tags and tree.words() == tree_words(WORDS)


def test_repairs_are_counted():
    parser = parser_that_writes(SHORT, "nonsense")
    (found,) = parser.n_best([WORDS], 2)
    assert [score for _, score in found] == [0.0, -1.0]
    assert all(parse(text).words() == tree_words(WORDS) for text, _ in found)
    assert (parser.sentences, parser.repaired, parser.repairs) == (1, 1, 5)
    assert parser.summary() == "repaired 1 of 1 trees (5 repairs)"


def test_trees_that_are_equal_after_repairs_are_merged():
    (found,) = parser_that_writes(SHORT, f"{SHORT} ǁS", RIGHT).n_best([WORDS], 3)
    assert [score for _, score in found] == [0.0, -2.0]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_best_well_formed_hypothesis_of_the_beam(n):
    parser = parser_that_writes(SHORT, "nonsense", RIGHT, well_formed=True)
    (found,) = parser.n_best([WORDS], n)
    assert [score for _, score in found] == [-2.0, 0.0, -1.0][:n] and parser.repaired == 0
    assert parser_that_writes(SHORT, well_formed=True).n_best([WORDS], 1)[0][0][1] == 0.0


@pytest.mark.parametrize(("log_p", "alpha"), [(-0.6, 0.3), (-0.6, 0.0), (-3.0, 1.0)])
def test_trees_below_a_confidence_are_left_out(log_p, alpha):
    """The confidence is the geometric mean of the probabilities of all tokens, whatever alpha is."""
    tokens = len(RIGHT.split()) + 1  # each is one token, and EOS
    vocabulary = SimpleNamespace(encode=lambda texts: [[0] * (len(text.split()) + 1) for text in texts])
    score = log_p / ((5 + tokens) / 6) ** alpha
    confidence = math.exp(log_p / tokens)
    for least, kept in ((confidence - 1e-4, True), (confidence + 1e-4, False)):
        parser = parser_that_writes(RIGHT, SHORT, min_confidence=least)
        parser.translator.n_best = lambda texts, n, *_, found=((RIGHT, score), (SHORT, -99.0)): [list(found)[:n]]
        parser.translator.hparams.alpha, parser.translator.vocabulary = alpha, vocabulary
        (found,) = parser.n_best([WORDS], 2)
        assert [score for _, score in found] == [score if kept else -math.inf]
        assert (found[0][0] == "") == (not kept) and parser.unsure == (not kept)
        assert parser.summary().endswith(f"; left out {int(not kept)} below confidence {least:g}")
        assert parser.parse([tree_words(WORDS)])[0].words() == tree_words(WORDS)  # of every sentence


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_impossible_confidence(value):
    with pytest.raises(ValueError, match="min_confidence must be from 0 to 1. Received: "):
        parser_that_writes(RIGHT, min_confidence=value)


@pytest.fixture(scope="module")
def untrained(prepared):
    """Returns a parser with random weights and a real vocabulary, in which both marks are subwords."""
    vocabulary = Vocabulary(prepared.vocabulary)
    model = random_model(vocabulary.size, extra_length=30)
    assert {OPEN, CLOSE} < {*vocabulary.subwords}
    return Parser(Translator(model, vocabulary, model.hparams, ParseConstraint(vocabulary.subwords)))


@pytest.mark.parametrize("mark", [OPEN, CLOSE, OPEN + CLOSE, OPEN + OPEN])
def test_mark_at_each_position_of_a_word(untrained, mark):
    """U+01C0 is a letter of Khoisan languages: the sentence is "Nǀuu is spoken" and a full stop."""
    sentences = [[f"{word[:place]}{mark}{word[place:]}", "is", word] for word in ("Nuu",) for place in range(4)]
    alone = [untrained.parse([words])[0].words() for words in sentences]
    assert alone == [tree.words() for tree in untrained.parse(sentences)] == sentences
    assert all(found[0][1] > -1e6 for found in untrained.n_best([" ".join(words) for words in sentences], 1))


def test_constrained_decoding_has_no_prefix_or_minimum_length(untrained):
    for options in ({"prefixes": ["We"]}, {"min_length": 2}):
        with pytest.raises(ValueError, match="constrained to the words of the text: leave out prefixes and min_length"):
            untrained.translator.n_best(["We see"], 1, **options)


def test_parser_of_a_run_in_order(prepared_in_order):
    """Whatever the weights are, every output is a tree over the words of its sentence."""
    vocabulary = Vocabulary(prepared_in_order.vocabulary)
    model = random_model(vocabulary.size, extra_length=30)
    task = prepared_in_order.record.problem.task
    parser = task.decoder(Translator(model, vocabulary, model.hparams, task.constraint(vocabulary)))
    sentences = [parse(line).words() for line in gold("test", prepared_in_order)] + [["Yes"], ["Nǀuu", "ǀ", "is"]]
    trees = parser.parse(sentences)
    assert [tree.words() for tree in trees] == sentences
    found = parser.n_best([" ".join(words) for words in sentences], 2)
    assert [best[0][0] for best in found] == [str(tree) for tree in trees]
    assert all(score > -1e6 for best in found for _, score in best)
    (log_p,) = parser.score([("We agree", "(S (NP (XX We)) (VP (XX agree)))")])
    assert log_p == parser.translator.score([("We agree", "We ǀNP ǁNP ǀS agree ǀVP ǁVP ǁS")])[0]
    (tree,) = parser(["( x\u00a0y )"])
    assert parser.score([("( x\u00a0y )", tree)])[0] > -1e6  # words as decoding reads them
    with pytest.raises(ValueError, match="pair 1: expected a tree over 'x.*y'. Received: '\\(S \\(XX x\\) \\(XX y"):
        parser.score([("x\u00a0y", "(S (XX x) (XX y))")])


def test_failed_sentence_does_not_affect_others():
    parser = parser_that_writes()
    parser.translator.hparams.beam_size = 1
    assert parser.n_best(["We see"], 1) == [[("(TOP (XX We) (XX see))", -math.inf)]]


# From files to F1, through the programs.


@pytest.fixture
def one_cpu(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", functools.partial(tf.distribute.MirroredStrategy, ["CPU:0"]))


@pytest.mark.parametrize("linearization", ["top_down", pytest.param("in_order", marks=pytest.mark.slow)])
def test_from_bracketed_files_to_f1(program, one_cpu, treebank, tmp_path, monkeypatch, linearization):
    monkeypatch.chdir(tmp_path)
    data = ["--problem=parse_wsj", "--data_dir=DATA", f"--vocab_size={VOCAB_SIZE}"]
    code, _, err = program("t2t-datagen", *data, f"--raw_dir={treebank}")
    assert code == 0 and "text: 160 train pairs, 8 validation pairs, 8 test pairs" in err
    assert program("t2t-datagen", *data, "--verify").code == 0  # without naming the treebank again
    small = {"num_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 1, "d_k": 8, "d_v": 8, "beam_size": 3}
    small |= {"batch_tokens": 2_048, "warmup_steps": 4, "extra_length": 20}
    overrides = [f"--override={name}={value}" for name, value in small.items()]
    steps = ["--train_steps=4", "--checkpoint_steps=2", "--precision=float32"]
    code, out, err = program("t2t-trainer", *data, "--hparams=parsing", *overrides, *steps, "--output_dir=RUN")
    assert code == 0, err
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.rstrip("\n").split("\n"))
    assert rows["problem"] == "parse_wsj, test (8 sentences)" and "BLEU" not in rows
    assert all(0 <= float(rows[name].split("%")[0].split()[0]) <= 100 for name in ("F1", "repaired"))
    assert rows["precision"] == "float32" and rows["brackets"].startswith("recall ")
    missing = "sections 02-21: 160 of 39,832 trees; section 22: 8 of 1,700 trees; section 23: 8 of 2,416 trees"
    assert rows["data"] == f"not the paper's: {missing}"
    assert f"Not the paper's data: {missing}" in " ".join(program("t2t-report", "RUN").out.split())
    assert Run.open("RUN").problem.metric == "f1"
    evaluated = [json.loads(line) for line in Path("RUN/metrics.jsonl").read_text().splitlines() if "sample" in line]
    assert [each["step"] for each in evaluated] == [2, 4] and all(0 <= each["sample_F1"] <= 100 for each in evaluated)
    assert "sample F1" in err and "source" not in err  # sentences are printed only on a terminal

    gold = list(read_trees("DATA/parse_wsj/test.trees"))
    Path("words").write_text("".join(" ".join(tree.words()) + "\n" for tree in gold) + "\n")
    decode = ["--output_dir=RUN", "--average_checkpoints=2", "--decode_from_file=words"]
    code, out, err = program("t2t-decoder", *decode)
    assert code == 0 and re.fullmatch(r"repaired \d+ of 8 trees \([\d,]+ repairs\)\n", err)
    *lines, last = out.removesuffix("\n").split("\n")
    assert last == "" and [parse(line).words() for line in lines] == [tree.words() for tree in gold]
    assert {*parse(lines[0]).tags()} <= {"XX", ".", ",", "``", "''", "-LRB-", "-RRB-"}
    code, out, _ = program("t2t-decoder", *decode, "--n_best=2", "--well_formed")
    assert code == 0 and out.count("\n") == 18 and all("\t" in line for line in out.rstrip("\n").split("\n"))

    code, out, err = program("t2t-decoder", *decode, "--min_confidence=1")
    assert (code, out) == (0, "\n" * 9) and err.endswith("; left out 8 below confidence 1\n")
    texts, parser = [" ".join(tree.words()) for tree in gold], t2t_repro.load("RUN", average_checkpoints=2)
    assert isinstance(parser, Parser) and parser(texts) == lines
    target = f"--target={lines[0]}"  # a tree as t2t-decoder writes it
    code, out, _ = program("t2t-attention", "--output_dir=RUN", texts[0], target, "--html=page.html")
    assert (code, out) == (0, f"{pair(parse(lines[0]), linearization)[1]}\n")
    (log_p,) = parser.score([(texts[0], lines[0])])
    assert -math.inf < log_p < 0 and log_p == parser.translator.score([pair(parse(lines[0]))])[0]
    with pytest.raises(ValueError, match=r"pair 1: expected a tree over 'no such words'\. Received: '\("):
        parser.score([("no such words", lines[0])])
    exported = t2t_repro.load(t2t_repro.export("RUN", "EXPORT", average_checkpoints=2))
    assert isinstance(exported, Parser) and exported(texts) == lines
    both = [[tree for tree, _ in each.n_best(texts[:1], 2)[0]] for each in (exported, parser)]
    assert both[0] == both[1]
    assert exported.score([(texts[0], lines[0])]) == pytest.approx([log_p], rel=1e-4)

    files = ["--train_trees=DATA/parse_wsj/validation.trees", "--validation_trees=DATA/parse_wsj/test.trees"]
    files += ["--problem=parse_files", "--data_dir=DATA", "--output_dir=SECOND", "--init_from=RUN"]
    files += [f"--linearization={linearization}"]
    code, _, said = program("t2t-trainer", "--hparams=parsing", *overrides, *steps, *files)
    assert code == 0 and "of the run RUN" in said, said
    if linearization == "in_order":
        check_in_order("SECOND", program, texts)
    second = Run.open("SECOND")
    assert second.parent.problem == "parse_wsj" and second.vocabulary_sha256 == Run.open("RUN").vocabulary_sha256
    first = json.loads(Path("SECOND/metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0 and 0 <= first["sample_F1"] <= 100

    code, out, _ = program("t2t-eval", "--output_dir=RUN", "--average_checkpoints=2", "--json")
    scores = json.loads(out)
    retagged = [
        rebuild(linearize_tree(parse(line)), g.words(), g.tags())[0] for line, g in zip(lines, gold, strict=True)
    ]
    expected = evalb(gold, retagged).all
    assert code == 0 and (scores["sentences"], scores["skipped"]) == (8, 0)
    found = [scores[name] for name in ("f1", "bracket_recall", "bracket_precision", "complete_match")]
    assert found == pytest.approx([expected.f1, expected.recall, expected.precision, expected.complete_match])
    assert scores["precision"] == "float32"
    assert scores["repaired"] == pytest.approx(100 * int(err.split()[1]) / 8) and scores["loss"] > 0


def check_in_order(directory: str, program, texts: list[str]) -> None:
    """Checks that every way to decode a run uses its linearization. Some texts are parsed to different trees by it."""
    run = Run.open(directory)
    assert run.problem.linearization == run.to_json()["problem"]["linearization"] == "in_order"
    parser = t2t_repro.load(directory)
    assert isinstance(parser, Parser)
    trees = parser(texts)
    assert [parse(tree).words() for tree in trees] == [text.split() for text in texts]
    symbols = [best[0][0] for best in parser.translator.n_best(texts, 1)]
    for linearization in LINEARIZATIONS:
        pairs = zip(symbols, texts, strict=True)
        rebuilt = [str(rebuild(each, text.split(), None, linearization)[0]) for each, text in pairs]
        assert (trees == rebuilt) == (linearization == "in_order")
    code, out, _ = program("t2t-decoder", f"--output_dir={directory}", "--decode_from_file=words")
    assert code == 0 and out.removesuffix("\n").split("\n")[: len(texts)] == trees
    path = t2t_repro.export(directory, f"{directory}-EXPORT")
    assert t2t_repro.load(path)(texts) == trees
    served = SavedModel(path)
    given = {"inputs": [text.encode() for text in texts]}
    found = served.task.served("parse", {"inputs": np.array(given["inputs"], object)}, served.call("parse", given))
    assert [tree.decode() for tree in found["outputs"]] == trees
    both = compared_runs(("RUN", directory), beam_size=1)
    assert [parse(tree).words() for tree in both.outputs[1]] == [parse(tree).words() for tree in both.references]
    gold = [parse(tree) for tree in both.references]
    its_own = parser.parse([tree.words() for tree in gold], 1, None, [tree.tags() for tree in gold])
    assert list(both.outputs[1]) == [str(tree) for tree in its_own]
    code, _, err = program("t2t-decoder", "--output_dir=RUN", f"--output_dir={directory}", "--decode_from_file=words")
    assert code == 1 and "runs of an ensemble must have one linearization. Received: 'top_down' of 'RUN' and" in err


# Real treebanks.


def gold_is_rebuilt(dataset, split, number):
    """Checks that no tree is changed or dropped, and that prepared data gives gold back: the F1 is 100."""
    golds = list(read_trees(dataset.trees(split)))
    assert len(golds) == number and all(clean(tree) == tree for tree in golds)
    assert dataset.record.splits[split].max_lengths[1] <= dataset.record.problem.max_length
    pairs = records(dataset, split)
    tests = [rebuild(target, source.split(" "), g.tags()) for (source, target), g in zip(pairs, golds, strict=True)]
    assert not sum(repairs for _, repairs in tests)
    decoded = Path(dataset.trees(split)).with_name("decoded")
    decoded.write_text("".join(f"{tree}\n" for tree, _ in tests), "utf-8")
    assert evalb_files(dataset.trees(split), str(decoded)).f1 == 100.0


@pytest.mark.corpora
def test_real_trees(corpora, tmp_path):
    folder = corpora / "trees"
    problem = FILES.with_files(
        train_trees=[str(folder / "wsj_sample.train.mrg.gz")], validation_trees=[str(folder / "wsj_sample.dev.mrg.gz")]
    )
    dataset = prepare(dataclasses.replace(problem, vocab_size=4_000), str(tmp_path), silent)
    splits = dataset.record.splits
    assert splits["train"].pairs == 3_401 and not splits["train"].dropped
    brackets = sum(len(linearize_tree(tree).split()) - len(tree.words()) for tree in read(problem.train[0]))
    tokens = splits["train"].tokens
    assert tokens["targets"] - tokens["inputs"] <= 1.02 * brackets  # one subword each, except for a few rare labels
    gold_is_rebuilt(dataset, "validation", 276)


@pytest.mark.corpora
@pytest.mark.slow
def test_one_available_tree_is_too_long(corpora, tmp_path):
    folder = corpora / "trees"
    problem = FILES.with_files(
        train_trees=[str(folder / "craft.train.mrg.gz")], validation_trees=[str(folder / "craft.dev.mrg.gz")]
    )
    dataset = prepare(problem, str(tmp_path), silent)
    gold_is_rebuilt(dataset, "validation", 3_471)
    assert dataset.record.splits["train"].pairs == 23_656
    assert dataset.record.splits["train"].dropped == {"too_long": 1}
