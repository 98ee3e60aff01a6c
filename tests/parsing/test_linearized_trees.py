"""Trees as text: parsed once, by any number of processes, and read from any tree on. Entries that are not trees are
dropped."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from helpers import small_treebank
from helpers.prepared_data import bytes_of
from helpers.tiny_model import silent

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import CorpusRecord
from t2t_repro.parsing import treebank
from t2t_repro.parsing.linearization import pair
from t2t_repro.parsing.linearized_trees import Linearized
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.corpora import SplitText, evenly, place_evenly
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Problem, Trees
from t2t_repro.registry import PROBLEMS

SOURCE = {"trees": {"path": "own.mrg", "bytes": 1}}
FAILURES = (  # output of the Berkeley parser, one per line
    "(())",  # for a sentence that it cannot parse, or that is too long
    "( (X (SYM )) )",  # for an empty line: a word without characters
    "( (NP (-LRB- () (NN x) (-RRB- ))) )",  # for brackets that were not escaped as -LRB- and -RRB-
    "( (S (NP (NN x)) )",
    "( (S (NN x)))) )",
    "Exception in thread main",
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trees:
    """Returns 60 trees of many lines each, in chunks of a few trees."""
    monkeypatch.setattr(treebank, "CHUNK_CHARACTERS", 1_000)
    path = tmp_path / "own.mrg"
    path.write_text(small_treebank.trees(7, 60), "utf-8")
    return Trees(str(path))


def parsed(folder: Path, lines: Iterable[str], name: str = "parsed.mrg") -> Trees:
    """Returns the output of a parser, one tree per line."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return Trees(str(path), by_parser=True)


def on_one_line(number: int) -> list[str]:
    return [f"( (S (NP (PRP We)) (VP (VBP saw) (NP (CD {n}) (NNS cats))) (. .)) )" for n in range(number)]


# Linearizing.


def test_text_is_the_same_for_any_number_of_processes(own: Trees):
    expected = "".join(
        f"{words}\t{symbols}\t{' '.join(tree.tags())}\n"
        for tree in treebank.read(own)
        for words, symbols in [pair(tree)]
    )
    for processes in (1, 2, 3):
        blocks = list(treebank.linearize(own, processes))
        assert len(blocks) > 5 and sum(block.trees for block in blocks) == 60
        assert b"".join(block.text for block in blocks).decode() == expected


def test_processes_are_started_only_for_long_text(own: Trees, monkeypatch: pytest.MonkeyPatch):
    started: list[int] = []

    def started_with(work, items, processes):
        started.append(processes)
        return map(work, items)

    monkeypatch.setattr(treebank, "map_in_processes", started_with)
    monkeypatch.setattr(treebank, "usable_cores", lambda: 7)
    few = list(treebank.linearize(own))
    assert started == [1]
    monkeypatch.setattr(treebank, "PROCESSES_FROM", 3_000)
    assert list(treebank.linearize(own)) == few and started == [1, 7]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("(())", "line 903: a bracket without a label inside a tree"),
        (")", "line 903: unmatched [)]"),
        ("word", "line 903: 'word' is outside of all brackets"),
        ("(S (NN x)", "ends inside a tree that starts at line 903: a bracket is not closed"),
    ],
)
def test_treebank_with_invalid_trees_is_refused(tmp_path, monkeypatch, processes, wrong, message):
    monkeypatch.setattr(treebank, "CHUNK_CHARACTERS", 1_000)
    path = tmp_path / "gold.mrg"
    path.write_text("(S\n (NN x)\n)\n" * 300 + "\n\n" + wrong + "\n" + "(S (NN x))\n" * ("S" not in wrong))
    with pytest.raises(ValueError, match=message):
        list(treebank.linearize(Trees(str(path)), processes))


def test_missing_bracket_is_found_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(treebank, "CHUNK_CHARACTERS", 1_000)
    monkeypatch.setattr(treebank, "MOST_CHARACTERS", 5_000)
    path = tmp_path / "gold.mrg"
    path.write_text("(S (NN x)\n" + "(S (NN x))\n" * 10_000)
    chunks = treebank._chunks(str(path), False)
    assert sum(map(len, next(chunks).lines)) <= 5_000
    with pytest.raises(ValueError, match="ends inside a tree that starts at line 1: a bracket is not closed"):
        list(treebank.linearize(Trees(str(path)), 1))


# The file.


def test_pairs_start_at_any_tree(own: Trees, tmp_path: Path):
    written = Linearized.write(str(tmp_path / "trees" / "a.tsv"), SOURCE, treebank.linearize(own))
    pairs = [pair(tree) for tree in treebank.read(own)]
    assert written.trees == len(pairs) == 60 and len(written.starts) > 5
    for first in range(61):
        assert list(written.pairs(first)) == pairs[first:]
    assert list(written.pairs(70)) == []


def test_pairs_are_read_by_offset(own: Trees, tmp_path: Path):
    """A chunk of the Beam pipeline does not read the trees before it."""
    path = tmp_path / "a.tsv"
    written = Linearized.write(str(path), SOURCE, treebank.linearize(own))
    number, place = written.starts[-1]
    with open(path, "r+b") as file:
        file.write(b"\xff" * place)
    assert len(list(written.pairs(number))) == 60 - number
    with pytest.raises(ValueError):
        list(written.pairs())


def test_text_of_several_corpora_from_any_pair(own: Trees, tmp_path: Path):
    written = Linearized.write(str(tmp_path / "a.tsv"), SOURCE, treebank.linearize(own))
    pairs = list(written.pairs()) * 2
    for first in (0, 1, 59, 60, 61, 119, 120):
        assert list(SplitText((written, written), (60, 60), 120).pairs(first)) == pairs[first:]


@pytest.mark.parametrize(("number", "taken"), [(10, 10), (10, 3), (17, 16), (1_000, 1), (97, 40)])
def test_even_sampling_from_any_position(number: int, taken: int):
    all_of_it = list(evenly(iter(range(number)), number, taken))
    assert len(all_of_it) == taken
    for which in range(taken):
        place = place_evenly(which, number, taken)
        assert place == all_of_it[which]
        assert list(evenly(iter(range(place, number)), number, taken, place)) == all_of_it[which:]


def test_complete_text_is_kept(own: Trees, tmp_path: Path):
    path = str(tmp_path / "a.tsv")
    assert Linearized.open(path, SOURCE) is None
    written = Linearized.write(path, SOURCE, treebank.linearize(own))
    assert Linearized.open(path, SOURCE) == written
    assert Linearized.open(path, {"trees": {"path": "own.mrg", "bytes": 2}}) is None
    os.truncate(path, os.path.getsize(path) - 1)
    assert Linearized.open(path, SOURCE) is None
    Path(f"{path}.tmp-1").write_bytes(b"of a killed preparation")
    assert Linearized.write(path, SOURCE, treebank.linearize(own)) == written
    assert sorted(os.listdir(tmp_path)) == ["a.tsv", "a.tsv.json", "own.mrg"]
    Path(f"{path}.json").write_text("{")
    assert Linearized.open(path, SOURCE) is None


# A parser's output.


def test_failures_of_a_parser_are_dropped(tmp_path: Path):
    lines = on_one_line(20)
    whole = b"".join(block.text for block in treebank.linearize(parsed(tmp_path, lines)))
    for place in (0, 7, 20):
        mixed = [*lines[:place], *FAILURES, "", *lines[place:]]
        (block,) = treebank.linearize(parsed(tmp_path, mixed))
        assert (block.text, block.trees, block.dropped) == (whole, 20, len(FAILURES))
        assert block.fault.startswith(f"{tmp_path}/parsed.mrg, line {place + 1}: a bracket without a label")


def test_trees_of_a_parser_may_span_many_lines(tmp_path: Path):
    gold = tmp_path / "gold.mrg"
    gold.write_text(small_treebank.trees(7, 20), "utf-8")
    indented = parsed(
        tmp_path, [small_treebank.trees(7, 10), "(())", "(S", "  (NN x)", ")", small_treebank.trees(7, 20)]
    )
    (block,), (expected,) = treebank.linearize(indented), treebank.linearize(Trees(str(gold)))
    assert block.dropped == 1 and block.trees == 31
    assert block.text.endswith(b"x\t\xc7\x80S x \xc7\x81S\tNN\n" + expected.text)


@pytest.mark.parametrize("indentation", ["", "  "])
@pytest.mark.parametrize("blank", ["", "\n"])
def test_missing_bracket_costs_one_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indentation: str, blank: str):
    monkeypatch.setattr(treebank, "CHUNK_CHARACTERS", 1_000)
    lines = [f"{indentation}{line}{blank}" for line in on_one_line(500)]
    lines[250] = lines[250].rstrip()[:-1]
    blocks = list(treebank.linearize(parsed(tmp_path, lines)))
    assert sum(block.trees for block in blocks) == 499 and sum(block.dropped for block in blocks) == 1


@pytest.mark.parametrize(("trees", "failures"), [(990, 10), (1_980, 20), (5, 10)])
def test_few_failures_are_dropped(tmp_path: Path, trees: int, failures: int):
    corpus = parsed(tmp_path, [*on_one_line(trees), *["(())"] * failures])
    assert [block.dropped for block in treebank.linearize(corpus)] == [failures]


@pytest.mark.parametrize(("trees", "failures"), [(989, 11), (1_979, 21), (0, 1)])
def test_many_failures_are_one_error(tmp_path: Path, trees: int, failures: int):
    corpus = parsed(tmp_path, [*on_one_line(trees), *["(())"] * failures])
    message = rf"{failures} of {trees + failures:,} in .*parsed\.mrg are not trees, the first: .*line {trees + 1:,}: "
    with pytest.raises(ValueError, match=f"{message}a bracket without .* At most 1% is dropped; expected a tree per"):
        list(treebank.linearize(corpus))


# Preparation.


@pytest.fixture
def wsj(tmp_path: Path) -> Problem:
    """Returns the problem of a tiny treebank and 40 trees of a parser."""
    folder = small_treebank.write(tmp_path / "wsj")
    problem = dataclasses.replace(PROBLEMS["parse_wsj_semisupervised"].with_raw_dir(folder), vocab_size=330)
    parsed(tmp_path, on_one_line(40), "whole.mrg")
    parsed(tmp_path, [*FAILURES[:3], *on_one_line(40), *FAILURES[3:]], "failed.mrg")
    return problem


def given(problem: Problem, tmp_path: Path, *names: str) -> Problem:
    return problem.with_files(train_trees=[str(tmp_path / name) for name in names])


def test_prepared_data_does_not_contain_dropped_entries(wsj: Problem, tmp_path: Path):
    said: list[str] = []
    whole = prepare(given(wsj, tmp_path, "whole.mrg"), str(tmp_path / "whole"), silent)
    dataset = prepare(given(wsj, tmp_path, "failed.mrg"), str(tmp_path / "failed"), said.append)
    here, there = bytes_of(dataset.directory), bytes_of(whole.directory)
    assert here.pop("dataset.json") != there.pop("dataset.json")
    assert here == there and not os.path.exists(os.path.join(dataset.directory, "trees"))
    gold, parsers = dataset.record.corpora["train"]
    assert gold.not_trees is None and parsers == CorpusRecord(lines=40, not_trees=6)
    (line,) = (line for line in said if "not trees" in line)
    assert line.startswith(f"dropped 6 that are not trees; the first: {tmp_path}/failed.mrg, line 1: a bracket without")


def test_gold_with_a_failure_is_refused(wsj: Problem, tmp_path: Path):
    article = tmp_path / "wsj" / "23" / "wsj_2300.mrg"
    article.write_text(article.read_text("utf-8") + "\n(())\n", "utf-8")
    with pytest.raises(ValueError, match=r"wsj_2300\.mrg, line \d+: a bracket without a label inside a tree"):
        prepare(given(wsj, tmp_path, "whole.mrg"), str(tmp_path / "data"), silent)


def test_each_tree_is_parsed_once(own: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines: list[str] = []
    parse_lines = treebank.parse_lines

    def counted(text, name, first=1):
        lines.extend(text)
        return parse_lines(text, name, first)

    monkeypatch.setattr(treebank, "parse_lines", counted)
    problem = dataclasses.replace(PROBLEMS["parse_files"], vocab_size=300, train=(own,), test=(own,))
    prepare(problem, str(tmp_path / "data"), silent)
    assert lines == 2 * Path(own.path).read_text("utf-8").split("\n")


class Stopped(BaseException):
    pass


def test_resumed_preparation_reads_the_existing_text(own: Trees, tmp_path: Path, monkeypatch):
    problem = dataclasses.replace(PROBLEMS["parse_files"], vocab_size=300, train=(own,))
    expected = bytes_of(prepare(problem, str(tmp_path / "whole"), silent).directory)
    data, folder = str(tmp_path / "data"), tmp_path / "data" / "parse_files" / "trees"

    def stop(*arguments, **named):
        raise Stopped

    def stopped(name):
        with monkeypatch.context() as patched, pytest.raises(Stopped):
            patched.setattr(*name, stop)
            prepare(problem, data, silent)

    stopped((treebank, "pair"))
    assert os.listdir(folder) == []  # nothing incomplete under the final name
    stopped((prepare_module, "learn_vocabulary"))
    assert sorted(os.listdir(folder)) == ["train-0.tsv", "train-0.tsv.json"]
    with monkeypatch.context() as patched:
        patched.setattr(treebank, "parse_lines", stop)
        assert bytes_of(prepare(problem, data, silent).directory) == expected


def test_text_of_a_killed_preparation_is_removed(own: Trees, tmp_path: Path):
    problem = dataclasses.replace(PROBLEMS["parse_files"], vocab_size=300, train=(own,))
    dataset = prepare(problem, str(tmp_path), silent)
    left = Path(dataset.directory, "trees")
    left.mkdir()
    (left / "train-0.tsv").write_bytes(b"killed before this was removed")
    prepare(problem, str(tmp_path), silent)
    assert not left.exists()


# A treebank with files missing.


def test_missing_files_of_a_treebank_are_reported_and_recorded(wsj: Problem, tmp_path: Path):
    said: list[str] = []
    dataset = prepare(given(wsj, tmp_path, "whole.mrg"), str(tmp_path / "data"), said.append)
    warnings = [line for line in said if "expected" in line]
    assert [line.partition(".")[0] for line in warnings] == [
        "sections 02-21: received 160 trees, expected 39,832",
        "section 22: received 8 trees, expected 1,700",
        "section 23: received 8 trees, expected 2,416",
    ]
    assert all(
        "not the paper's data; complete the treebank's files and prepare again" in line and "\n" not in line
        for line in warnings
    )
    assert dataset.record.corpora["test"] == [CorpusRecord(name="section 23", trees_known=2_416, lines=8)]
    assert (
        dataset.condition()["incomplete"]
        == Dataset.open(dataset.directory).incomplete()
        == [
            "sections 02-21: 160 of 39,832 trees",
            "section 22: 8 of 1,700 trees",
            "section 23: 8 of 2,416 trees",
        ]
    )


def test_complete_treebank_is_not_reported(wsj: Problem, tmp_path: Path):
    known = {
        split: tuple(
            dataclasses.replace(corpus, number=number if corpus.sections else 0) for corpus in wsj.corpora(split)
        )
        for split, number in (("train", 160), ("validation", 8), ("test", 8))
    }
    said: list[str] = []
    problem = given(dataclasses.replace(wsj, **known), tmp_path, "whole.mrg")
    dataset = prepare(problem, str(tmp_path / "data"), said.append)
    assert not [line for line in said if "expected" in line]
    assert dataset.incomplete() == [] and "incomplete" not in dataset.condition()


def test_expected_numbers_are_those_of_the_complete_treebank():
    problem = PROBLEMS["parse_wsj"]
    assert [problem.corpora(split)[0].number for split in ("train", "validation", "test")] == [39_832, 1_700, 2_416]
