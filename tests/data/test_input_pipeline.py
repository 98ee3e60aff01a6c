"""Shards to batches: every pair once per epoch, in an order that depends only on seed and epoch."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from t2t_repro.data import batching, input_pipeline
from t2t_repro.data.input_pipeline import Layout, TrainingText
from t2t_repro.data.shards import example, shard_names, write_shard

PAIRS = 240
BUDGET = 128  # tokens per side of a step: 8 parts of 16


@pytest.fixture(scope="module")
def pairs() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Writes pairs of ids from 2 on, EOS last, all different."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 12, (PAIRS, 2))
    return [tuple((i + 2, *rng.integers(2, 50, n), 1) for n in both) for i, both in enumerate(lengths)]  # type: ignore[misc]


@pytest.fixture(scope="module")
def shards(pairs, tmp_path_factory) -> tuple[str, ...]:
    """Three files of 80 pairs."""
    folder = tmp_path_factory.mktemp("shards")
    paths = [str(folder / name) for name in shard_names("train", 3)]
    for number, path in enumerate(paths):
        write_shard(path, (example(list(one), list(two)) for one, two in pairs[80 * number : 80 * (number + 1)]))
    return tuple(paths)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(batching, "PART_TOKENS", 16)
    monkeypatch.setattr(input_pipeline, "WINDOW", 100)  # so that an epoch has three, the last one smaller
    assert batching.num_parts(BUDGET) == 8


def elements(shards, seed=1, epoch=0, replicas=1, local=None, **options):
    batches = TrainingText(shards, BUDGET, seed).batches(epoch, Layout(replicas, local), **options)
    return list(batches.as_numpy_iterator())


@functools.cache
def first_epoch(shards, replicas=1):
    """Made once for all tests."""
    return elements(shards, replicas=replicas)


def parts_of(element):
    """Returns the pairs of each nonempty micro-batch of an element, according to `sizes`."""
    for (batch, source, target), inputs, targets in zip(
        *(element[k] for k in ("sizes", "inputs", "targets")), strict=True
    ):
        if batch:
            rows = zip(inputs[:batch, :source], targets[:batch, :target], strict=True)
            yield [tuple(tuple(ids[ids > 0].tolist()) for ids in row) for row in rows]


def pairs_of(element):
    return [pair for part in parts_of(element) for pair in part]


def same(one, two) -> bool:
    return len(one) == len(two) and all(np.array_equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_pair_occurs_once_per_epoch(shards, pairs, replicas):
    found = [pair for element in first_epoch(shards, replicas) for pair in pairs_of(element)]
    assert Counter(found) == Counter(pairs)


def test_order_is_a_function_of_seed_and_epoch(shards):
    first = first_epoch(shards)
    assert same(first, elements(shards))
    for other in (elements(shards, epoch=1), elements(shards, seed=2)):
        assert not same(first, other)
        assert Counter(map(str, map(pairs_of, first))) != Counter(map(str, map(pairs_of, other)))


def test_elements_are_those_of_version_0_2(shards):
    """A run that an earlier version started continues with the data that it would have seen."""
    found = hashlib.sha256()
    for element in elements(shards, epochs=2):
        for name in sorted(element):
            found.update(f"{name}{element[name].shape}".encode() + element[name].tobytes())
    assert found.hexdigest() == "0f477480cc528637bd1bbcd33d11270a140c0786cf78b411e07e03de6c56d71a"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("skip", [1, 5])
def test_skip_equals_dropping_elements(shards, skip, replicas):
    whole = first_epoch(shards, replicas)
    assert same(elements(shards, replicas=replicas, skip=skip), whole[skip * replicas :])


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("machine", [0, 1])
def test_each_machine_gets_its_share_of_every_step(shards, machine, skip):
    """Two machines with two devices each get the same elements as one machine with four."""
    whole = [element for index, element in enumerate(first_epoch(shards, 4)) if index % 4 // 2 == machine]
    found = elements(shards, replicas=4, local=range(2 * machine, 2 * machine + 2), skip=skip)
    assert same(found, whole[2 * skip :])


@pytest.mark.parametrize("machine", [0, 1])
def test_each_machine_assembles_only_its_own_pairs(shards, monkeypatch, machine):
    """The lengths of all pairs are planned on each machine; only its own pairs are gathered, padded and prefetched."""
    assembled, assemble = [], input_pipeline._assemble

    def counted(position, dense, rows, spans):
        seen = tf.numpy_function(lambda spans: assembled.append(spans) or spans, [spans], tf.int64)
        return assemble(position, dense, rows, tf.ensure_shape(seen, spans.shape))

    monkeypatch.setattr(input_pipeline, "_assemble", counted)
    found = elements(shards, replicas=4, local=range(2 * machine, 2 * machine + 2))
    own = sum(len(pairs_of(element)) for element in found)
    assert sum(int((spans[:, 1] - spans[:, 0]).sum()) for spans in assembled) == own
    assert PAIRS / 3 < own < PAIRS * 2 / 3


def test_skipping_all_elements_gives_none(shards):
    assert elements(shards, skip=len(first_epoch(shards))) == []


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_step_has_the_same_pairs_on_any_devices(shards, replicas):
    one, many = first_epoch(shards), first_epoch(shards, replicas)
    assert len(many) == len(one) * replicas
    for number, update in enumerate(one):
        shared = [pair for element in many[number * replicas : (number + 1) * replicas] for pair in pairs_of(element)]
        assert Counter(shared) == Counter(pairs_of(update))


def test_sizes_match_the_padded_arrays(shards):
    for element in first_epoch(shards):
        assert [element[name].dtype for name in ("inputs", "targets", "sizes")] == [np.int32] * 3
        for part, (batch, source, target) in zip(parts_of(element), element["sizes"], strict=False):
            assert batch == len(part)
            assert (source, target) == tuple(max(map(len, side)) for side in zip(*part, strict=True))
        for side, width in (("inputs", 1), ("targets", 2)):
            inside = sum(
                (element[side][number, : size[0], : size[width]] > 0).sum()
                for number, size in enumerate(element["sizes"])
            )
            assert inside == (element[side] > 0).sum()  # nothing lies beyond the sizes


@pytest.mark.parametrize("replicas", [1, 2])
def test_position_resumes_at_the_next_step(shards, replicas):
    whole = elements(shards, epochs=3, replicas=replicas)
    for at in (5 * replicas, len(whole) // 3, len(whole) // 3 + 3 * replicas):
        epoch, window, index = (int(number) for number in whole[at - 1]["position"])
        place = {"epoch": epoch, "window": window, "skip": index, "epochs": 3 - epoch}
        assert same(elements(shards, **place, replicas=replicas), whole[at:])


def test_position_skips_earlier_windows_unread(shards, monkeypatch):
    """Only the windows from the position on are planned; a position of version 0.1 counts from the epoch's first."""
    whole = first_epoch(shards)
    planned, plan = [], input_pipeline._plan_window
    monkeypatch.setattr(input_pipeline, "_plan_window", lambda *given: planned.append(given[-1]) or plan(*given))
    windows = [int(element["position"][1]) for element in whole]
    assert windows == sorted(windows) and set(windows) == {0, 1, 2}
    assert same(elements(shards, window=2, skip=1), whole[windows.index(2) + 1 :])
    assert [seeds[2] for seeds in planned] == [2]
    assert same(elements(shards, skip=windows.index(2) + 1), whole[windows.index(2) + 1 :])


@pytest.mark.parametrize("replicas", [1, 2])
def test_elements_share_the_ids_of_their_window(shards, monkeypatch, replicas):
    """tf.data copies a RaggedTensor, which is a variant to it, for each element: the ids of all pairs of a window."""
    taken, assemble = [], input_pipeline._assemble
    monkeypatch.setattr(input_pipeline, "_assemble", lambda *given: taken.append(given) or assemble(*given))
    made = elements(shards, replicas=replicas)
    (given,) = taken  # as it is traced, once for all elements
    components = tf.nest.flatten(given)
    assert len(components) >= 6 and not [each for each in components if isinstance(each, tf.RaggedTensor)]
    assert same(made, first_epoch(shards, replicas))


def test_parts_stay_within_their_budget(shards):
    for element in first_epoch(shards):
        for batch, source, target in element["sizes"]:
            assert batch * max(source, target) <= BUDGET / 8


def test_steps_of_an_epoch_are_in_random_order(shards):
    """Steps with short and long pairs are mixed, although pairs are sorted by length."""
    lengths = [np.mean([len(source) for source, _ in pairs_of(element)]) for element in first_epoch(shards)]
    assert len(lengths) > 12
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.7


def test_evaluation_yields_every_pair_once(shards, pairs):
    found, longest = [], max(len(side) for pair in pairs for side in pair)
    for batch in input_pipeline.evaluation_batches(shards, 64).as_numpy_iterator():
        assert batch["inputs"].size <= 64 and batch["targets"].size <= 64
        rows = zip(batch["inputs"], batch["targets"], strict=True)
        found += [tuple(tuple(ids[ids > 0].tolist()) for ids in row) for row in rows]
    assert longest <= 64 and Counter(found) == Counter(pairs)


def test_evaluation_accepts_a_pair_longer_than_its_batch(shards, pairs):
    """A score includes every pair."""
    batches = list(input_pipeline.evaluation_batches(shards, 4).as_numpy_iterator())
    assert sum(len(batch["inputs"]) for batch in batches) == PAIRS


def test_evaluation_cuts_pairs_if_requested(shards, pairs):
    """Long pairs are cut, because their memory grows with the square of the length. A source keeps its EOS."""
    cut = Counter((tuple([*source[:8], *source[8:][-1:]]), tuple(target[:9])) for source, target in pairs)
    found = []
    for batch in input_pipeline.evaluation_batches(shards, 64, max_tokens=9).as_numpy_iterator():
        rows = zip(batch["inputs"], batch["targets"], strict=True)
        found += [tuple(tuple(ids[ids > 0].tolist()) for ids in row) for row in rows]
    assert Counter(found) == cut
    longer = sum(max(map(len, pair)) > 9 for pair in pairs)
    assert input_pipeline.longer_pairs(shards, 9) == longer > 0
    assert input_pipeline.longer_pairs(shards, max(len(side) for pair in pairs for side in pair)) == 0


# Plans of batches, before padding.


@pytest.mark.parametrize("replicas", [1, 2])
def test_windows_match_the_training_elements(shards, replicas):
    made = first_epoch(shards, replicas)
    planned = [window.parts() for window in TrainingText(shards, BUDGET, 1).windows(0, Layout(replicas))]
    assert len(planned) == 3
    np.testing.assert_array_equal(np.concatenate([sizes for sizes, _ in planned]), [each["sizes"] for each in made])
    real = [
        [[np.count_nonzero(each[side][part]) for side in ("inputs", "targets")] for part in range(len(each["sizes"]))]
        for each in made
    ]
    np.testing.assert_array_equal(np.concatenate([tokens for _, tokens in planned]), real)


def test_elements_of_chosen_parts(shards):
    """Elements of the parts of the second step, and an empty element, equal those of training."""
    window = next(TrainingText(shards, BUDGET, 1).windows(0))
    one, none = window.elements(np.stack([window.spans[1], 0 * window.spans[1]])).as_numpy_iterator()
    for side in ("inputs", "targets", "sizes"):
        np.testing.assert_array_equal(one[side], first_epoch(shards)[1][side])
    assert not none["sizes"].any() and none["inputs"].size == 0


def test_pairs_of_step_returns_ids_and_places(shards, pairs):
    """Checks the first window, the last one and another epoch. Record n of shard k is pair 80 k + n."""
    for epoch, number in ((0, 0), (0, len(first_epoch(shards)) - 1), (1, 2)):
        made = elements(shards, epoch=epoch)[number]
        window, after = made["position"][1:].tolist()
        found = TrainingText(shards, BUDGET, 1).pairs_of_step(epoch, window, after - 1)
        assert found == TrainingText(shards, BUDGET, 1).pairs_of_step(epoch, 0, number)
        assert [(tuple(each.inputs), tuple(each.targets)) for each in found] == sum(parts_of(made), [])
        for each in found:
            assert (tuple(each.inputs), tuple(each.targets)) == pairs[80 * shards.index(each.shard) + each.record]
    with pytest.raises(ValueError, match=r"epoch 0 ends \d+ steps before the one asked for in window 1"):
        TrainingText(shards, BUDGET, 1).pairs_of_step(0, 1, 999)
