"""Random bytes and text against all that reads some: a target is a strategy and what must hold of whatever it draws.

    python -m tests.helpers.fuzz --minutes=20               every target for twenty minutes each
    python -m tests.helpers.fuzz --minutes=20 trees batch   some of them
    python -m tests.helpers.fuzz --guided files input       guided by coverage (pip install atheris), not by a seed

`tests/test_fuzz.py` draws a few hundred examples of each. Seeds count up from --seed, and are printed with a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from t2t_repro.cli import text_lines
from t2t_repro.data.dataset import DATASET, VOCABULARY, Dataset
from t2t_repro.data.dataset_record import FORMAT
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.documents.splitter import Splitter
from t2t_repro.evaluation import report_formats, report_page, report_runs, report_tables
from t2t_repro.inference.line_windows import decode_to_file
from t2t_repro.io import sha256
from t2t_repro.parsing.trees import clean, parse, parse_lines, read_trees
from t2t_repro.preparation.provenance import check_same_data
from t2t_repro.problem import Problem
from t2t_repro.run import Run
from t2t_repro.text.lines import read_lines
from t2t_repro.text.markup import MarkedText
from t2t_repro.text.token_ids import EOS

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/run"
CHECKPOINT = "ckpt-3000"
REFUSED = (ValueError, FileNotFoundError)  # what a program turns into one line, and exit code 1


class Target(NamedTuple):
    strategy: st.SearchStrategy[Any]
    body: Callable[[Any], None]
    heavy: bool = False  # needs TensorFlow


# Strategies.

marks = st.lists(  # parts of lines with markup
    st.sampled_from(
        [
            "<b>",
            "</b>",
            "<i a='>'>",
            "</i>",
            "<br/>",
            "<!--<u>-->",
            "<",
            ">",
            "</",
            "b",
            "/>",
            "'",
            '"',
            "=",
            "&",
            ";",
            "lt",
        ]
        + ["&lt;", "&#10;", "%s", "{0}", "{", "}", "%", "#", "http://a.b", "x@y.zz", "XY", "one", " ", "  ", "\t", "."]
        + ["\u00a0", "\u2028", "\u0301", "字"]
    ),
    max_size=15,
)
mutations = st.lists(  # of a file: (where, as a share of it; what is done; with which bytes)
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "insert", "remove", "cut"]), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=4,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
json_changes = st.lists(st.tuples(st.floats(0, 0.999), json_values | st.just("(gone)")), min_size=1, max_size=3)
bracketed = st.text(st.sampled_from("()()() SNP-=\n\t\r\u00a0\u2028é1"), max_size=60)


def mutated(content: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for share, kind, more in changes:
        at = int(share * len(content))
        if kind == "flip":
            turned = bytes(a ^ b for a, b in zip(content[at:], more, strict=False))
            content = content[:at] + turned + content[at + len(more) :]
        elif kind == "insert":
            content = content[:at] + more + content[at:]
        else:
            content = content[:at] + (content[at + len(more) :] if kind == "remove" else b"")
    return content


def changed(record: Any, changes: list[tuple[float, Any]]) -> Any:
    """A JSON value in which some of its parts, wherever they are, are others or gone."""
    record = json.loads(json.dumps(record))
    for share, value in changes:
        places = list(_places(record))
        if not places:
            return record
        container, key = places[int(share * len(places))]
        if value == "(gone)":
            del container[key]
        else:
            container[key] = value
    return record


def _places(value: Any) -> Any:
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(part, dict | list):
            yield from _places(part)


@functools.cache
def folder() -> str:
    """A folder for this process, removed at its end."""
    import atexit

    path = tempfile.mkdtemp(prefix="fuzz-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary(str(FIXTURE / VOCABULARY))


# Invariants.


def trees(text: str) -> None:
    """Text is refused with its line, or every tree in it is written as it is read, and cleaned once for all."""
    try:
        found = list(parse_lines(text.split("\n"), "the text"))
    except ValueError as error:
        assert str(error).startswith("the text")
        return
    for tree in found:
        assert parse(str(tree)) == tree
        cleaned = clean(tree)
        assert cleaned is None or clean(cleaned) == cleaned


def files_of_text(drawn: tuple[bytes, bool, list[Any]]) -> None:
    """Bytes under the name of a text or of trees are refused with that name, or read without loss."""
    content, zipped, changes = drawn
    for name, read in (("x.txt", read_lines), ("x.mrg", read_trees), ("x.sgm", read_lines)):
        path = os.path.join(folder(), name + ".gz" * zipped)
        Path(path).write_bytes(mutated(gzip.compress(content), changes) if zipped else content)
        try:
            found = list(read(path))
        except REFUSED as error:
            assert path in str(error)
            continue
        if name == "x.txt" and not zipped:
            assert len(found) == content.count(b"\n") + (not content.endswith(b"\n"))


def words(texts: list[str]) -> None:
    """Any Unicode text is restored exactly, in a batch as alone; anything else is rejected."""
    try:
        encoded = vocabulary().encode(texts)
    except ValueError as error:
        assert "lone surrogate" in str(error) and any("\ud800" <= c <= "\udfff" for text in texts for c in text)
        return
    assert vocabulary().decode(encoded) == texts
    for found, text in zip(encoded, texts, strict=True):
        assert found[-1] == EOS and [found] == vocabulary().encode([text])


def ids(sequence: list[int]) -> None:
    """Any ids are text, or refused."""
    try:
        (text,) = vocabulary().decode([sequence])
    except ValueError as error:
        assert "is not in the vocabulary" in str(error)
        return
    assert text.encode().decode() == text


def vocabulary_files(changes: list[Any]) -> None:
    """A damaged vocabulary is refused, or one that encodes and decodes."""
    path = os.path.join(folder(), VOCABULARY)
    Path(path).write_bytes(mutated((FIXTURE / VOCABULARY).read_bytes(), changes))
    try:
        found = Vocabulary(path)
    except REFUSED as error:
        assert VOCABULARY in str(error)
        return
    found.decode(found.encode(["12 square kilometers"]))


def markup(drawn: tuple[list[str], list[str], list[tuple[int, int]]]) -> None:
    """Any line with markup has each of its tags once in any translation with any links, and so has any document."""
    line, translation = map("".join, drawn[:2])
    (document,) = Splitter("en", 20).marked([line])
    assert len(document.spans) < 2 or all(one[1] <= two[0] for one, two in itertools.pairwise(document.spans))
    assert sorted(re.findall("[<>]", document.joined(document.sentences))) == sorted(re.findall("[<>]", line))
    found = MarkedText(line).restored(translation, drawn[2])
    tags = ("<b>", "</b>", "<i a='>'>", "</i>", "<br/>", "<!--<u>-->")
    if any(tag in line for tag in tags):
        assert [found.count(tag) for tag in tags] == [line.count(tag) for tag in tags]


def run_files(drawn: tuple[list[Any], list[Any], list[Any]]) -> None:
    """A damaged run.json or scores.jsonl is refused, or the run can be reported in every form."""
    values, of_bytes, of_scores = drawn
    run = os.path.join(folder(), "runs", "RUN")
    os.makedirs(run, exist_ok=True)
    shutil.copy(FIXTURE / VOCABULARY, run)
    record = changed(json.loads((FIXTURE / "run.json").read_text("utf-8")), values)
    Path(run, "run.json").write_bytes(mutated(json.dumps(record).encode(), of_bytes))
    scores = changed(json.loads((FIXTURE / "scores.jsonl").read_text("utf-8")), of_scores)
    Path(run, "scores.jsonl").write_text(json.dumps(scores) + "\n", "utf-8")
    try:
        Run.open(run)
    except REFUSED as error:
        assert run in str(error)
    tables = report_tables.build_tables(report_runs.read_runs(os.path.dirname(run))[0])
    for form in (report_formats.as_text, report_formats.as_markdown, report_formats.as_json, report_page.as_html):
        form(tables, []).encode("utf-8", "backslashreplace")


def dataset_files(drawn: tuple[list[Any], list[Any]]) -> None:
    """A damaged dataset.json is refused, or all that is asked of it is answered."""
    values, of_bytes = drawn
    data = os.path.join(folder(), "translate_files")
    record = _dataset(data)
    Path(data, DATASET).write_bytes(mutated(json.dumps(changed(record, values)).encode(), of_bytes))
    try:
        dataset = Dataset.open(data)
        check_same_data(dataset, Problem("translate_files", "", vocab_size=400))
        json.dumps(dataset.condition())
        for split in ("train", "validation", "test"):
            if dataset.has(split):
                assert all(path.startswith(data + os.sep) for path in dataset.shards(split))
    except REFUSED as error:
        assert data in str(error)


def _dataset(data: str) -> dict[str, Any]:
    """Prepared data in all but its shards, and what its dataset.json says."""
    os.makedirs(data, exist_ok=True)
    shutil.copy(FIXTURE / VOCABULARY, data)
    problem = Problem("translate_files", "", vocab_size=400)
    side = {"path": "/text/train.en", "bytes": 900, "sha256": "0" * 64}
    splits = {}
    for split in ("train", "validation", "test"):
        shard = {"name": f"{split}-00000-of-00001.tfrecord", "bytes": 9, "records": 9, "sha256": "0" * 64}
        Path(data, shard["name"]).write_bytes(bytes(9))
        splits[split] = {"pairs_read": 9, "pairs": 9, "dropped": {}, "tokens": {"inputs": 9}, "shards": [shard]}
    sources = {"train": [{"source": side, "target": side}], "validation": [], "test": []}
    known = {"kind": "bpe", "size": 400, "sha256": sha256(os.path.join(data, VOCABULARY)), "sentences": 18}
    return {"format": FORMAT, "problem": problem.to_dict(), "sources": sources, "vocabulary": known, "splits": splits}


def decoder_input(content: bytes) -> None:
    """Lines in are lines out: each read once, what is written for each is one line in its place."""
    path, out = (os.path.join(folder(), name) for name in ("in", "out"))
    Path(path).write_bytes(content)
    try:
        lines = list(text_lines.read(path))
    except ValueError as error:
        assert "not UTF-8" in str(error) or "is compressed" in str(error)
        return
    assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    decode_to_file(((line,) for line in lines), lambda items, *_: [text for (text,) in items], out, {}, print)
    unmarked = content.removeprefix(b"\xef\xbb\xbf")
    ended = unmarked + b"\n" * (bool(content) and not content.endswith(b"\n"))
    assert Path(out).read_bytes() == ended.replace(b"\r\n", b"\n")
    spelled = [[(f"{line}\n", 0.0)] for line in lines]  # a model may spell a newline
    assert not [line for line in text_lines.best(spelled) + text_lines.scored(spelled, 1) if "\n" in line]


def checkpoints(drawn: tuple[list[Any], bool]) -> None:
    """A damaged checkpoint is known for one, or holds what it held."""
    changes, index = drawn
    import numpy as np
    import tensorflow as tf

    from t2t_repro.training.checkpointing.damage import damage

    path = os.path.join(folder(), CHECKPOINT)
    for end, here in ((".index", index), (".data-00000-of-00001", not index)):
        content = (FIXTURE / f"checkpoints/{CHECKPOINT}{end}").read_bytes()
        Path(path + end).write_bytes(mutated(content, changes) if here else content)
    if not damage(path):
        readers = [tf.train.load_checkpoint(each) for each in (path, str(FIXTURE / "checkpoints" / CHECKPOINT))]
        for name in readers[1].get_variable_to_shape_map():
            np.testing.assert_array_equal(*(reader.get_tensor(name) for reader in readers))


def checkpoint_lists(changes: list[Any]) -> None:
    """A damaged list of checkpoints is refused, or names some of those that there are."""
    from t2t_repro.training.checkpointing.checkpoint_list import paths

    run = Run.open(shutil.copytree(FIXTURE, os.path.join(folder(), "LISTS"), dirs_exist_ok=True))
    listed = Path(run.checkpoints, "checkpoint")
    listed.write_bytes(mutated(listed.read_bytes(), changes))
    try:
        names = list(map(os.path.basename, paths(run)))
    except ValueError as error:
        assert "which lists them, is missing or damaged" in str(error)
        return
    assert names and all(os.path.dirname(path) == run.checkpoints for path in paths(run))


@functools.cache
def translator() -> Any:
    import t2t_repro

    return t2t_repro.load(str(FIXTURE))


def batch(texts: list[str]) -> None:
    """Texts are translated in a batch as each alone: the same scores, and the same words if the beam is certain."""
    together = translator().n_best(texts, 2, beam_size=2)
    assert len(together) == len(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = translator().n_best([text], 2, beam_size=2)
        assert abs(found[0][1] - alone[0][1]) < 1e-3
        sure = len(found) == 1 or found[0][1] - found[1][1] > 1e-3
        assert found[0][0] == alone[0][0] or not sure


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


TARGETS = {
    "trees": Target(bracketed, trees),
    "files": Target(
        st.tuples(st.binary(max_size=80) | bracketed.map(str.encode), st.booleans(), mutations), files_of_text
    ),
    "words": Target(st.lists(st.text(max_size=20), max_size=5), words),
    "markup": Target(st.tuples(marks, marks, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)))), markup),
    "ids": Target(st.lists(st.integers(-2, 420), max_size=20), ids),
    "vocabularies": Target(mutations, vocabulary_files),
    "runs": Target(st.tuples(json_changes, mutations | st.just([]), json_changes), run_files),
    "datasets": Target(st.tuples(json_changes, mutations | st.just([])), dataset_files),
    "input": Target(st.binary(max_size=60) | st.text(max_size=40).map(_bytes), decoder_input),
    "lists": Target(mutations, checkpoint_lists, heavy=True),
    "checkpoints": Target(st.tuples(mutations, st.booleans()), checkpoints, heavy=True),
    "batch": Target(st.lists(st.text(max_size=12), min_size=2, max_size=5), batch, heavy=True),
}


def fuzz(name: str, examples: int, number: int | None = None) -> None:
    """Draws examples for a target, from the seed `number`, or always the same ones without a seed."""
    target = TARGETS[name]
    test = given(target.strategy)(_named(target.body))
    test = settings(
        max_examples=examples,
        deadline=None,
        derandomize=number is None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(test)
    (test if number is None else seed(number)(test))()


def guided(name: str, minutes: float) -> int:
    """Draws examples guided by coverage, in a separate process that libFuzzer ends. Returns its exit code."""
    child = os.fork()
    if child == 0:
        import atheris

        test = settings(deadline=None, database=None)(given(TARGETS[name].strategy)(_named(TARGETS[name].body)))
        atheris.instrument_all()
        sys.stdout = io.StringIO()
        atheris.Setup([name, f"-max_total_time={60 * minutes:.0f}", "-verbosity=0"], test.hypothesis.fuzz_one_input)
        atheris.Fuzz()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _named(body: Callable[[Any], None]) -> Callable[[Any], None]:
    def test(drawn: Any) -> None:
        body(drawn)

    return test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], default=[])
    parser.add_argument("--minutes", type=float, default=20, help="for each target")
    parser.add_argument("--seed", type=int, default=1706)
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    arguments = parser.parse_args()
    for name in arguments.targets or TARGETS:
        if arguments.guided:
            if code := guided(name, arguments.minutes):
                sys.exit(f"{name}: failed with exit code {code}")
            print(f"{name}: none failed", flush=True)
            continue
        number, end = arguments.seed, time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    fuzz(name, 200, number)
            except BaseException:
                print(f"{name}: failed with seed {number}", flush=True)
                raise
            number += 1
        print(f"{name}: {200 * (number - arguments.seed):,} examples, none failed", flush=True)


if __name__ == "__main__":
    main()
