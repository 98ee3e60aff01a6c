"""Filters in preparation: the account of every dropped pair, duplicates, overlap by file and line, the same bytes."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import small_treebank
from helpers.fault_injection import files_up_to
from helpers.prepared_data import bytes_of, records
from helpers.tiny_model import silent

from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import SplitRecord
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.filters import normalized
from t2t_repro.parsing.trees import read_trees
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.filtering import decisions, overlap
from t2t_repro.preparation.filtering.overlap import Match, Overlap, OverlapCounts
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.preparation.validation_split import source_hash
from t2t_repro.problem import Generated, Pair, Problem, TextFiles, Trees
from t2t_repro.registry import PROBLEMS

PAIRS = [
    (f"the {color} house number {n}", f"das {color}e Haus Nummer {n}") for n in range(200) for color in ("red", "old")
]
OTHERS = [(f"one more line {n}", f"noch eine Zeile {n}") for n in range(20)]
ALL = (
    "not_text",
    "wrong_script=Latin",
    "identical",
    "too_few_words",
    "too_many_words=30",
    "length_ratio",
    "duplicate",
    "overlap",
)
DAMAGED: list[tuple[str, Pair]] = [  # what drops each pair, with all filters
    ("empty", ("", "leer")),
    ("not_text", ("caf\x82 au lait", "Milchkaffee")),
    ("not_text", ("17 + 4", "17 + 4")),  # also identical
    ("wrong_script", ("the white house", "белый дом")),
    ("identical", ("New York City", "new york city")),
    ("too_few_words", ("hello", "guten Tag")),
    ("too_many_words", ("a red house " * 11, "ein rotes Haus " * 11)),
    ("length_ratio", ("a house", "ein Haus am Ende der langen Straße")),
    ("duplicate", PAIRS[3]),
    ("duplicate", PAIRS[3]),
    ("overlap", OTHERS[0]),
    ("duplicate", OTHERS[0]),
    ("overlap", (f" {OTHERS[1][0].upper()}", "etwas ganz anderes")),
    ("overlap", ("something else", OTHERS[11][1].replace(" ", "\u3000"))),
    ("too_long", ("white house " * 12, "weißes Haus " * 12)),
]


def write(folder: Path, name: str, pairs: Sequence[Pair]) -> TextFiles:
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(text + "\n" for text in side).encode())
    return TextFiles(*map(str, paths))


@pytest.fixture
def clean(tmp_path: Path) -> Problem:
    """A problem whose validation and test text has nothing in common with its training text."""
    parts = {"train": PAIRS, "validation": OTHERS[:10], "test": OTHERS[10:]}
    corpora = {split: (write(tmp_path, split, pairs),) for split, pairs in parts.items()}
    return Problem(name="small", description="", vocab_size=330, max_length=45, **corpora)


@pytest.fixture
def damaged(clean: Problem, tmp_path: Path) -> Problem:
    """The same with damaged pairs scattered over a second training corpus, and all filters."""
    pairs = [PAIRS[0], *(pair for _, pair in DAMAGED)]
    return dataclasses.replace(clean, train=(*clean.train, write(tmp_path, "damaged", pairs)), filters=ALL)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def train_record(dataset: Dataset) -> SplitRecord:
    return dataset.record.splits["train"]


def assert_adds_up(record: SplitRecord) -> None:
    assert record.pairs_read == record.pairs + (record.held_out or 0) + sum(record.dropped.values())


def test_each_dropped_pair_is_counted_once_by_the_first_filter(damaged: Problem, data: str):
    dataset = prepare(damaged, data, silent)
    train = train_record(dataset)
    expected = Counter(reason for reason, _ in DAMAGED) + Counter(duplicate=1)  # PAIRS[0]
    assert train.dropped == dict(sorted(expected.items()))
    assert train.pairs_read == len(PAIRS) + 1 + len(DAMAGED)
    assert_adds_up(train)
    assert Counter(records(dataset, "train")) == Counter(PAIRS)


def test_a_filter_that_drops_nothing_is_in_the_account(clean: Problem, data: str):
    train = train_record(prepare(dataclasses.replace(clean, filters=("duplicate", "identical")), data, silent))
    assert train.dropped == {"duplicate": 0, "identical": 0}
    assert train.filtered == {"identical": (), "duplicate": ()}
    assert_adds_up(train)


def test_three_examples_of_each_filter_with_file_and_line(damaged: Problem, data: str):
    said: list[str] = []
    train = train_record(prepare(damaged, data, said.append))
    assert train.filtered and list(train.filtered) == [name.partition("=")[0] for name in damaged.filters]
    found = {
        reason: [(each.place, each.source, each.target) for each in some] for reason, some in train.filtered.items()
    }
    path = damaged.train[1].source  # type: ignore[union-attr]
    lines = {reason: [n for n, (why, _) in enumerate(DAMAGED, start=2) if why == reason] for reason in found}
    lines["duplicate"] = [1, *lines["duplicate"]]
    for reason, numbers in lines.items():
        assert [place for place, *_ in found[reason]] == [f"{path}, line {number}" for number in numbers[:3]], reason
    assert found["identical"][0][1:] == ("New York City", "new york city")
    start = said.index("filter identical: 1 of 416 pairs dropped")
    assert said[start + 1] == f"  {path}, line 6: 'New York City' | 'new york city'"
    assert "filter duplicate: 4 of 416 pairs dropped" in said
    assert any(
        "1 dropped (a side empty), 1 dropped (longer than 45 tokens), 14 dropped by filters" in each for each in said
    )


def test_vocabulary_is_learned_from_kept_pairs(damaged: Problem, data: str, monkeypatch: pytest.MonkeyPatch):
    vocabulary = prepare(damaged, data, silent).record.vocabulary
    subwords = Vocabulary(f"{data}/small/vocabulary.model").subwords
    assert not any("б" in subword for subword in subwords)
    assert vocabulary.sentences == 2 * (len(PAIRS) + 1)  # a pair of too many tokens is dropped when it is encoded


def test_text_without_anything_to_drop_has_the_same_shards(clean: Problem, tmp_path: Path):
    plain = prepare(clean, str(tmp_path / "plain"), silent)
    filtered = prepare(dataclasses.replace(clean, filters=ALL), str(tmp_path / "filtered"), silent)
    assert train_record(plain).shards == train_record(filtered).shards
    assert plain.record.vocabulary == filtered.record.vocabulary
    assert bytes_of(plain.directory).keys() == bytes_of(filtered.directory).keys()  # nothing is left over


@pytest.mark.parametrize(
    ("sample", "held"),
    [(0, True), (300, False), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0, False), (300, True)))],
)
def test_same_bytes_from_any_processes_and_chunks(
    damaged: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool, sample: int
):
    problem = dataclasses.replace(damaged, sample=sample)
    problem = dataclasses.replace(problem, validation=()) if held else problem
    made = []
    for number, chunk in enumerate((7, 40, 1_000)):
        monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", chunk)
        dataset = prepare(problem, str(tmp_path / str(number)), silent, processes=1 + (chunk == 40))
        made.append(bytes_of(dataset.directory))
    assert made[0] == made[1] == made[2]
    train = train_record(dataset)
    assert_adds_up(train)
    assert bool(train.held_out) == held and train.pairs_read == (sample or 416)
    assert not train.overlap or all(each.pairs == 0 for each in train.overlap.values())


def test_duplicates_are_those_of_a_plain_search():
    rng = random.Random(1)
    pairs = [(f"source {rng.randrange(300)}", f"target {rng.randrange(3)}") for _ in range(2_000)]
    seen: set[Pair] = set()
    expected = [number for number, pair in enumerate(pairs) if pair in seen or seen.add(pair)]  # type: ignore[func-returns-value]
    every = decisions.np.ones(len(pairs), bool)
    assert sorted(decisions.repeated(overlap.pair_keys(pairs), every).tolist()) == expected


def test_only_pairs_that_other_filters_keep_can_have_duplicates(clean: Problem, tmp_path: Path, data: str):
    corpus = write(tmp_path, "twice", [("same", "same")] * 5 + [("", "")] * 3 + PAIRS[:9])
    problem = dataclasses.replace(clean, train=(*clean.train, corpus), filters=("duplicate", "identical"))
    assert train_record(prepare(problem, data, silent)).dropped == {"duplicate": 9, "empty": 3, "identical": 5}


# Overlap


def test_hidden_test_line_is_reported_by_name(clean: Problem, tmp_path: Path, data: str):
    """Without any filter, for each way in which a line of the test set can hide."""
    hidden = [*PAIRS[:30], OTHERS[14], (OTHERS[12][0].title(), "Unsinn"), ("nonsense", f"{OTHERS[19][1]} ")]
    corpus = write(tmp_path, "hidden", hidden)
    said: list[str] = []
    problem = dataclasses.replace(clean, train=(*clean.train, corpus))
    dataset = prepare(problem, data, said.append)
    found = train_record(dataset).overlap or {}
    assert found["validation"].pairs == 0 and found["validation"].examples == ()
    test = found["test"]
    assert (test.pairs, test.source, test.target, test.pair, test.split_pairs) == (3, 2, 2, 1, 3)
    source, target = corpus.source, corpus.target
    places = [(each.place, each.also) for each in test.examples]
    assert places == [
        (f"{source}, line 31", f"{clean.test[0].source}, line 5"),  # type: ignore[union-attr]
        (f"{source}, line 32", f"{clean.test[0].source}, line 3"),  # type: ignore[union-attr]
        (f"{target}, line 33", f"{clean.test[0].target}, line 10"),  # type: ignore[union-attr]
    ]
    start = said.index(
        "overlap with test: 3 of 433 training pairs (same source 2, same target 2, same pair 1); test pairs found: 3"
    )
    expected = f"  {source}, line 31 = {clean.test[0].source}, line 5: 'one more line 14' | 'noch eine Zeile 14'"  # type: ignore[union-attr]
    assert said[start + 1] == expected
    assert "overlap with validation: 0 of 433 training pairs" in said
    assert (
        json.loads(Path(dataset.directory, "dataset.json").read_text())["splits"]["train"]["overlap"]["test"]["pairs"]
        == 3
    )


@pytest.mark.parametrize(("value", "dropped"), [("either", 4), ("source", 3), ("pair", 1)])
def test_overlap_is_removed_on_request(clean: Problem, tmp_path: Path, data: str, value: str, dropped: int):
    """Hides a complete pair, the sides of two different pairs, a source and a target."""
    crossed = OTHERS[2][0], OTHERS[3][1]
    corpus = write(tmp_path, "more", [OTHERS[14], crossed, (OTHERS[12][0], "Unsinn"), ("nonsense", OTHERS[19][1])])
    problem = dataclasses.replace(clean, train=(*clean.train, corpus), filters=(f"overlap={value}",))
    train = train_record(prepare(problem, data, silent))
    assert train.dropped == {"overlap": dropped}
    assert sum(each.pairs for each in (train.overlap or {}).values()) == 4 - dropped
    assert_adds_up(train)


def test_find_equals_a_plain_search(tmp_path: Path):
    rng = random.Random(2)
    spaces = [" ", "  ", "\t", "\u00a0", " " * 40]

    def text() -> str:
        words = [
            rng.choice(["rot", "Haus", "ẞ", "straße", "İ", "世界", "ein sehr langes Wort"])
            for _ in range(rng.randrange(1, 5))
        ]
        return "".join(rng.choice([word, word.upper()]) + rng.choice(spaces) for word in words)

    splits = {split: [(text(), text()) for _ in range(150)] for split in ("validation", "test")}
    pairs = [(text(), text()) for _ in range(1_500)]
    path = str(tmp_path / "overlap.npy")
    overlap.write(path, {split: enumerate(each) for split, each in splits.items()}, has_trees=False)
    expected: dict[int, list[Match]] = {}
    for index, pair in enumerate(pairs):
        for split, others in splits.items():
            numbers = {}
            for side, key in (("source", lambda each: each[:1]), ("target", lambda each: each[1:]), ("pair", tuple)):
                wanted = tuple(map(normalized, key(pair)))
                equal = [n for n, other in enumerate(others) if tuple(map(normalized, key(other))) == wanted]
                if equal:
                    numbers[side] = equal[0]
            if numbers:
                expected.setdefault(index, []).append(Match(split, tuple(numbers), tuple(numbers.values())))
                assert expected[index][-1].number == numbers.get("pair", numbers.get("source", numbers.get("target")))
    found = Overlap(path, tuple(splits))
    assert found.find(pairs) == expected
    counts = OverlapCounts()
    for part in (slice(0, 700), slice(700, None)):
        counts_of_part = OverlapCounts()
        for index, matches in found.find(pairs[part]).items():
            for match in matches:
                if match.split == "test":
                    counts_of_part.count(index, pairs[index], match)
        counts.add(OverlapCounts.from_json(counts_of_part.to_json()))
    sides = [{normalized(pair[side]) for pair in pairs} for side in (0, 1)]
    both = [normalized(source) in sides[0] or normalized(target) in sides[1] for source, target in splits["test"]]
    assert found.num_pairs("test", counts.found) == sum(both)
    assert len(expected) > 200 and any("pair" in each.sides for found in expected.values() for each in found)


def test_full_disk_is_an_error_that_names_the_file(tmp_path: Path):
    path = str(tmp_path / "overlap.npy")
    pairs = [(f"number {number}", f"Nummer {number}") for number in range(1000)]
    with files_up_to(1000), pytest.raises(OSError, match="File too large") as caught:
        overlap.write(path, {"test": enumerate(pairs)}, has_trees=False)
    assert caught.value.errno == errno.EFBIG and path in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_found_without_splits_or_text(tmp_path: Path):
    assert Overlap("", ()).find(PAIRS) == {}
    path = str(tmp_path / "overlap.npy")
    overlap.write(path, {"test": []}, has_trees=False)
    assert Overlap(path, ("test",)).find(PAIRS) == {} == Overlap(path, ("test",)).find([])


def test_validation_taken_from_training_text_overlaps(clean: Problem, tmp_path: Path, data: str):
    """The source differs in case, so it is another one for the choice; its target is the same."""
    pairs = [*PAIRS, *((source.title(), target) for source, target in PAIRS[::2])]
    problem = dataclasses.replace(clean, train=(write(tmp_path, "cased", pairs),), validation=())
    dataset = prepare(problem, data, silent)
    chosen = {tuple(map(normalized, pair)) for pair in records(dataset, "validation")}
    both = [pair for pair in records(dataset, "train") if tuple(map(normalized, pair)) in chosen]
    found = (train_record(dataset).overlap or {})["validation"]
    assert (found.pairs, found.pair) == (len(both), len(both)) and both
    place, also = found.examples[0].place, found.examples[0].also or ""
    numbers = [int(each.rpartition(" ")[2]) for each in (place, also)]
    assert pairs[numbers[0] - 1][0].lower() == pairs[numbers[1] - 1][0].lower()


def test_overlap_with_validation_taken_from_training_text_is_removed(clean: Problem, tmp_path: Path, data: str):
    pairs = [*PAIRS, *((source.title(), target) for source, target in PAIRS[::2]), *OTHERS[10:13]]
    corpus = write(tmp_path, "cased", pairs)
    problem = dataclasses.replace(clean, train=(corpus,), validation=(), filters=("overlap", "duplicate"))
    dataset = prepare(problem, data, silent)
    train, validation = (set(records(dataset, split)) for split in ("train", "validation"))
    for side in (0, 1):
        assert not {normalized(pair[side]) for pair in train} & {normalized(pair[side]) for pair in validation}
    record = train_record(dataset)
    assert record.dropped["overlap"] == len(pairs) - len(train) - len(validation) > 3
    assert all(each.pairs == 0 for each in (record.overlap or {}).values())
    assert_adds_up(record)
    assert dataset.record.vocabulary.sentences == 2 * record.pairs  # what is dropped is not learned from


def test_pairs_that_are_dropped_anyway_do_not_fill_the_vocabulary(clean: Problem, tmp_path: Path, data: str):
    """Long lines of anything but text, and empty sides: they are dropped when they are encoded."""
    letters = random.Random(1)
    noise = ["".join(letters.choice("ACGT") for _ in range(20_000)) for _ in range(2)]
    corpora = (*clean.train, write(tmp_path, "noise", [(noise[0], noise[1]), ("alone", "")]))
    dataset = prepare(dataclasses.replace(clean, train=corpora), data, silent)
    assert train_record(dataset).dropped == {"empty": 1, "too_long": 1}
    assert dataset.record.vocabulary.sentences == 2 * len(PAIRS)
    assert not any(
        len(subword) > 1 and set(subword) <= set("ACGT") for subword in Vocabulary(dataset.vocabulary).subwords
    )


def test_an_empty_side_is_counted_as_empty_whatever_it_overlaps_with(clean: Problem, tmp_path: Path, data: str):
    corpora = (*clean.train, write(tmp_path, "empty", [("alone", ""), ("alone too", "")]))
    validation = (write(tmp_path, "gap", [*OTHERS[:9], ("something", "")]),)
    problem = dataclasses.replace(clean, train=corpora, validation=validation, filters=("overlap",))
    assert train_record(prepare(problem, data, silent)).dropped["empty"] == 2


def test_duplicates_of_a_pair_for_validation_are_dropped(clean: Problem, tmp_path: Path, data: str):
    corpus = write(tmp_path, "twice", PAIRS * 2)
    problem = dataclasses.replace(clean, train=(corpus,), validation=(), filters=("duplicate",))
    dataset = prepare(problem, data, silent)
    assert sorted([*records(dataset, "train"), *records(dataset, "validation")]) == sorted(PAIRS)
    assert train_record(dataset).dropped == {"duplicate": len(PAIRS)}


def test_places_of_generated_pairs(clean: Problem, data: str):
    problem = dataclasses.replace(clean, train=(Generated(pairs_with_a_test_line),), filters=("identical",))
    train = train_record(prepare(problem, data, silent))
    name = f"{pairs_with_a_test_line.__module__}.{pairs_with_a_test_line.__qualname__}"
    assert [each.place for each in (train.overlap or {})["test"].examples] == [f"{name}, pair 401"]
    assert [each.place for each in (train.filtered or {})["identical"]] == [f"{name}, pair 402"]


def pairs_with_a_test_line():
    return iter([*PAIRS, OTHERS[15], ("Hmm. Hmm.", "Hmm. Hmm.")])


def test_long_examples_are_shortened(clean: Problem, tmp_path: Path, data: str):
    corpus = write(tmp_path, "long", [*PAIRS, ("word " * 60, "wort " * 60)])
    problem = dataclasses.replace(clean, train=(corpus,), filters=("too_many_words=50",))
    (example,) = (train_record(prepare(problem, data, silent)).filtered or {})["too_many_words"]
    assert example.source == ("word " * 60)[:99] + "…"


# Trees


@pytest.mark.parametrize("held", [False, True])
def test_duplicate_trees_and_overlap_by_words(tmp_path: Path, data: str, held: bool):
    train, test = tmp_path / "train.mrg", tmp_path / "test.mrg"
    first, more = small_treebank.trees(1, 120), small_treebank.trees(3, 20)
    train.write_text(f"{first}\n{more}\n{more}\n", "utf-8")
    test.write_text(f"{small_treebank.trees(9, 6)}\n{small_treebank.trees(3, 3)}", "utf-8")
    corpora = {"train": (Trees(str(train)),), "test": (Trees(str(test)),)}
    corpora |= {} if held else {"validation": (Trees(str(test)),)}
    problem = dataclasses.replace(PROBLEMS["parse_files"], vocab_size=330, **corpora)
    plain = train_record(prepare(problem, f"{data}-plain", silent))
    assert plain.overlap and plain.overlap["test"].pairs >= 6 - (plain.held_out or 0)
    assert plain.overlap["test"].source == plain.overlap["test"].pairs and plain.overlap["test"].target == 0
    assert plain.overlap["test"].examples[0].place.startswith(f"{train}, tree ")
    assert (plain.overlap["test"].examples[0].also or "").startswith(f"{test}, tree ")
    dataset = prepare(dataclasses.replace(problem, filters=("duplicate", "overlap", "not_text")), data, silent)
    record = train_record(dataset)
    assert record.dropped["duplicate"] >= 20 and record.dropped["overlap"] >= 3
    assert record.overlap and all(each.pairs == 0 for each in record.overlap.values())
    assert_adds_up(record)
    sentences = [" ".join(tree.words()) for tree in read_trees(dataset.trees("validation"))]
    assert sentences == [source for source, _ in records(dataset, "validation")]


# Provenance and interruptions


def test_other_filters_are_other_data(damaged: Problem, data: str):
    dataset = prepare(damaged, data, silent)
    assert prepare(dataclasses.replace(damaged, filters=damaged.filters[::-1]), data, silent) == dataset
    with pytest.raises(
        ValueError, match=r"holds other data: its filters are \['not_text=0.5', .*\], not \['duplicate'\]"
    ):
        prepare(dataclasses.replace(damaged, filters=("duplicate",)), data, silent)
    with pytest.raises(ValueError, match=r"holds other data: its filters are \['not_text=0.5', .*\], not None"):
        prepare(dataclasses.replace(damaged, filters=()), data, silent)


def test_data_prepared_before_filters_existed_loads(clean: Problem, data: str):
    dataset = prepare(clean, data, silent)
    path = Path(dataset.directory, "dataset.json")
    record = json.loads(path.read_text("utf-8"))
    assert "filters" not in record["problem"]
    del record["splits"]["train"]["overlap"]
    path.write_text(json.dumps(record), "utf-8")
    assert train_record(prepare(clean, data, silent, verify=True)).overlap is None
    with pytest.raises(ValueError, match=r"its filters are None, not \['duplicate'\]; give another `data_dir`"):
        prepare(dataclasses.replace(clean, filters=("duplicate",)), data, silent)


def test_filters_are_applied_once(damaged: Problem, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An interruption after them does not repeat them, unless their file is damaged."""
    expected = bytes_of(prepare(damaged, str(tmp_path / "whole"), silent).directory)
    calls = []
    decide = prepare_module.decide

    def counted(*arguments):
        calls.append(arguments)
        return decide(*arguments)

    def stopped(*arguments, **named):
        raise InterruptedError

    monkeypatch.setattr(prepare_module, "decide", counted)
    learn = prepare_module.learn_vocabulary
    monkeypatch.setattr(prepare_module, "learn_vocabulary", stopped)
    path = Path(data, "small", "filtered.bin")
    for damage in (False, False, True):
        if damage:
            path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(InterruptedError):
            prepare(damaged, data, silent)
        assert len(calls) == 1 + damage
    monkeypatch.setattr(prepare_module, "learn_vocabulary", learn)
    assert bytes_of(prepare(damaged, data, silent).directory) == expected
    assert len(calls) == 2


def test_validation_is_chosen_among_kept_pairs(clean: Problem, tmp_path: Path, data: str):
    """The sources with the smallest hashes are identical to their targets, so they would be chosen first."""
    by_hash = sorted((f"word number {n}" for n in range(4_000)), key=source_hash)
    copies, kept = by_hash[:400], by_hash[400:]
    corpus = write(
        tmp_path, "copies", [*((text, text) for text in copies), *((text, f"{text} auf Deutsch") for text in kept)]
    )
    problem = dataclasses.replace(clean, train=(corpus,), validation=(), filters=("identical",))
    dataset = prepare(problem, data, silent)
    assert train_record(dataset).dropped == {"identical": 400} and train_record(dataset).held_out
    assert not {source for source, _ in records(dataset, "validation")} & set(copies)
