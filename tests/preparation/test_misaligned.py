"""The filter "misaligned": targets of other sentences are found by their words, with the same bytes in every way."""

from __future__ import annotations

import dataclasses
import gzip
import os
import random
from pathlib import Path

import numpy as np
import pytest
from helpers.prepared_data import bytes_of, records
from helpers.tiny_model import silent

from benchmarks import noise
from t2t_repro.preparation import pipeline as prepare_module
from t2t_repro.preparation.filtering import alignment
from t2t_repro.preparation.filtering.alignment import Model, learn
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.problem import Pair, Problem, TextFiles

NUMBER, SHIFTED = 2_000, 500


def made_text(seed: int = 1, spaces: bool = True) -> list[Pair]:
    """Returns sentences of a made lexicon, in an order of their own on each side. Without spaces, a word of the target
    is one Han character."""
    rng = random.Random(seed)
    weights = [1 / (rank + 5) for rank in range(400)]
    pairs = []
    for _ in range(NUMBER):
        words = rng.choices(range(400), weights, k=rng.randrange(6, 14))
        target = [f"wort{n}" if spaces else chr(0x4E00 + n) for n in rng.sample(words, len(words))]
        pairs.append((" ".join(f"Word{n}," for n in words) + ".", (" " if spaces else "").join(target)))
    return pairs


def shifted(pairs: list[Pair]) -> list[Pair]:
    """Returns the pairs, the first of which have the target of the next."""
    return [(pairs[n][0], pairs[(n + 1) % SHIFTED][1]) if n < SHIFTED else pair for n, pair in enumerate(pairs)]


def write(folder: Path, pairs: list[Pair]) -> TextFiles:
    paths = [folder / side for side in ("source", "target")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in side), "utf-8")
    return TextFiles(*map(str, paths))


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """A problem on shifted pairs among copies and duplicates of others, without validation text."""
    pairs = shifted(made_text())
    pairs = [*pairs[1_000:], *pairs[:20], *((source, source) for source, _ in pairs[:50]), *pairs[:1_000]]
    filters = ("identical", "duplicate", "misaligned")
    return Problem(name="small", description="", vocab_size=400, train=(write(tmp_path, pairs),), filters=filters)


@pytest.mark.parametrize("spaces", [True, False])
def test_shifted_pairs_score_below_zero(spaces: bool):
    pairs = shifted(made_text(spaces=spaces))
    below = learn(pairs).scores(pairs, np.ones(NUMBER, bool)) < 0
    assert below[:SHIFTED].mean() > 0.97 and below[SHIFTED:].mean() < 0.01


def test_pairs_outside_the_sample_are_judged_alike():
    pairs = shifted(made_text())
    in_sample = np.arange(NUMBER) % 3 > 0
    below = learn(pair for pair, each in zip(pairs, in_sample, strict=True) if each).scores(pairs, in_sample) < 0
    for which in (in_sample, ~in_sample):
        assert below[:SHIFTED][which[:SHIFTED]].mean() > 0.95 and below[SHIFTED:][which[SHIFTED:]].mean() < 0.02


def test_a_pair_does_not_confirm_itself():
    """With its own counts, nearly every wrong pair would be kept."""
    pairs = shifted(made_text())
    model = learn(pairs)
    without, with_own = (model.scores(pairs, np.full(NUMBER, each)) for each in (True, False))
    assert (without[:SHIFTED] > 0).mean() < 0.05 < 0.8 < (with_own[:SHIFTED] > 0).mean()
    np.testing.assert_allclose(without[SHIFTED:].mean(), with_own[SHIFTED:].mean(), atol=0.1)


def test_score_is_the_mutual_information_of_ibm_model_1():
    """Against plain loops over one pair outside the sample, from the counts of the model."""
    pairs = made_text()
    model = learn(pairs)
    pair = pairs[7][0] + " unknown", pairs[9][1]
    score = 0.0
    sides = [
        sorted({words.get(each.strip(".,").lower(), 0) for each in text.split()})
        for words, text in zip(model.vocabularies, pair, strict=True)
    ]
    for given, made in enumerate(model.directions):
        frequencies, known = (
            model.frequencies[1 - given],
            dict(zip(model.table.keys.tolist(), made.counts, strict=True)),
        )
        total = 0.0
        for word in sides[1 - given]:
            p = made.null_counts[word] / made.null_counts.sum()
            for other in sides[given]:
                source, target = (other, word) if given == 0 else (word, other)
                p += known.get(source * model.table.target_words + target, 0.0) / max(made.totals[other], 1e-9)
            p /= len(sides[given]) + 1
            unigram = max(frequencies[word], 1) / frequencies.sum()
            total += np.log((0.9 * p + 0.1 * unigram) / unigram)
        score += total / len(sides[1 - given])
    np.testing.assert_allclose(model.scores([pair], np.zeros(1, bool)), [score], rtol=1e-9)


def test_scores_do_not_depend_on_batches_or_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pairs, every = shifted(made_text()), np.ones(NUMBER, bool)
    model = learn(pairs)
    expected = model.scores(pairs, every)
    model.save(str(tmp_path / "model.npz"))
    monkeypatch.setattr(alignment, "_MAX_LINKS", 300)
    for other in (model, Model.load(str(tmp_path / "model.npz")), learn(pairs)):
        np.testing.assert_array_equal(other.scores(pairs, every), expected)
    parts = [model.scores(pairs[n : n + 1], every[:1])[0] for n in range(50)]
    np.testing.assert_array_equal(parts, expected[:50])


def test_sides_without_words_and_long_sides():
    pairs = [*made_text(), ("...", "wort1 wort2"), ("Word1", "!"), ("Word1 Word2 " * 100_000, "wort1 wort2 " * 100_000)]
    scores = learn(pairs).scores(pairs, np.ones(len(pairs), bool))
    assert scores[-3] == scores[-2] == 0 < scores[-1]
    assert not learn([("...", "!")] * 1_000).scores([("...", "!")], np.ones(1, bool)).any()


def test_misaligned_pairs_are_counted_with_examples(problem: Problem, tmp_path: Path):
    said: list[str] = []
    dataset = prepare(problem, str(tmp_path / "data"), said.append)
    train = dataset.record.splits["train"]
    assert train.dropped["identical"] == 50 and train.dropped["duplicate"] == 20
    assert 0.95 * SHIFTED < train.dropped["misaligned"] < 1.02 * SHIFTED
    wrong = shifted(made_text())[:SHIFTED]
    found = (train.filtered or {})["misaligned"]
    assert len(found) == 3 and {each.target for each in found} <= {target for _, target in wrong}
    start = said.index(f"filter misaligned=0: {train.dropped['misaligned']} of 2,070 pairs dropped")
    assert said[start + 1] == f"  {found[0].place}: {found[0].source!r} | {found[0].target!r}"
    assert len(set(wrong) & set(records(dataset, "train"))) < 0.05 * SHIFTED


def test_same_bytes_from_any_processes_and_chunks(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []
    for processes, chunk in ((1, 5_000), (1, 170), (2, 300)):
        monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", chunk)
        made.append(bytes_of(prepare(problem, str(tmp_path / str(chunk)), silent, processes=processes).directory))
    assert made[0] == made[1] == made[2]


def test_same_bytes_after_an_interruption(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before what was learned, or the decisions, take their name."""
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 300)
    replace, waiting = os.replace, ["alignment.npz", "filtered.bin", "vocabulary.model"]

    def stopped(temporary: str, path: str) -> None:
        if waiting and os.path.basename(path) == waiting[0]:
            raise InterruptedError(waiting.pop(0))
        replace(temporary, path)

    expected = bytes_of(prepare(problem, str(tmp_path / "whole"), silent, processes=2).directory)
    monkeypatch.setattr(os, "replace", stopped)
    for name in list(waiting):
        with pytest.raises(InterruptedError, match=name):
            prepare(problem, str(tmp_path / "data"), silent, processes=2)
    assert bytes_of(prepare(problem, str(tmp_path / "data"), silent, processes=2).directory) == expected


def test_same_bytes_with_beam(problem: Problem, tmp_path: Path):
    pytest.importorskip("apache_beam", reason="the extra 'beam' is not installed")
    here = prepare(problem, str(tmp_path / "here"), silent)
    there = prepare(problem, str(tmp_path / "there"), silent, beam=["--runner=DirectRunner"])
    assert there.record == here.record and bytes_of(there.directory) == bytes_of(here.directory)


def test_it_learns_from_an_even_sample(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both halves of the text are judged though it learns from half of the pairs."""
    from t2t_repro.preparation.filtering import decisions

    learned: list[list[Pair]] = []

    def recorded(sample):
        learned.append(list(sample))
        return learn(learned[-1])

    monkeypatch.setattr(decisions, "SAMPLE_PAIRS", 1_200)
    monkeypatch.setattr(decisions, "learn", recorded)
    dropped = prepare(problem, str(tmp_path / "data"), silent).record.splits["train"].dropped["misaligned"]
    kept = shifted(made_text())[1_000:] + shifted(made_text())[:1_000]
    assert len(learned[0]) == 1_200 and 580 < len(set(learned[0]) & set(kept[:1_000])) < 620
    assert all(source != target for source, target in learned[0])
    assert 0.9 * SHIFTED < dropped < 1.1 * SHIFTED


def test_value_is_the_lowest_score_that_is_kept(problem: Problem, tmp_path: Path):
    dropped = []
    for value in ("-10", "-0.5", "0", "1"):
        each = dataclasses.replace(problem, filters=(f"misaligned={value}",))
        dropped.append(prepare(each, str(tmp_path / value), silent).record.splits["train"].dropped["misaligned"])
    assert dropped[0] == 0 < dropped[1] < dropped[2] < dropped[3]


def test_too_little_text_is_an_error(problem: Problem, tmp_path: Path):
    few = dataclasses.replace(problem, sample=1_000)
    expected = (
        r"filter 'misaligned' learns .*: expected at least 1,000\. Received: 9\d\d; leave it out, or give more text"
    )
    with pytest.raises(ValueError, match=expected):
        prepare(few, str(tmp_path / "data"), silent)


@pytest.mark.corpora
@pytest.mark.parametrize("add", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_damage_of_multi30k_is_found(corpora: Path, add: bool):
    sides = (gzip.decompress((corpora / f"multi30k/raw/train.{side}.gz").read_bytes()) for side in ("en", "de"))
    pairs = list(zip(*(side.decode().removesuffix("\n").split("\n") for side in sides), strict=True))
    marked = noise.damage(pairs, 1, add)
    numbers = {kind: sum(each == kind for each, _ in marked) for kind in ("", "misaligned")}
    found = noise.dropped(marked, ["identical", "duplicate", "misaligned"])
    assert found["misaligned"] >= 0.95 * numbers["misaligned"] and found[""] <= 0.02 * numbers[""]
