"""Shards to batches, with tf.data. The training order is a pure function of (seed, epoch).

If the training corpora have weights, so is the number of times that each pair occurs: see `data.corpus_weights`. With
BPE-dropout, so are the ids of each pair: see `data.bpe_dropout`.

So a position in the data is three integers: an epoch, a window, and a number of steps in the window. A run that
continues from a position sees the same data as an uninterrupted run, without planning the windows before it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2t_repro.data import batching, corpus_weights
from t2t_repro.data.bpe_dropout import BpeDropout, bpe_dropout
from t2t_repro.data.dataset import Dataset
from t2t_repro.data.dataset_record import SIDES
from t2t_repro.run import Run

WINDOW = 200_000  # pairs sorted by length at one time
INTERLEAVED = 4  # shards read at a time, interleaved by record; a thread per shard is four times as slow
ASSEMBLERS = 4  # elements assembled in parallel
EVALUATION_TOKENS = 2_048  # positions per side of a batch, whose logits must fit in memory
PREFETCH = 64  # elements prefetched: only ids, enough to cover the reading of the next window

# AutoGraph would parse and rewrite the functions of a dataset, and none has a condition or a loop on tensors. Without
# it a run starts sooner: the tests of the trainer take 0.95 of the time.
_as_written = tf.autograph.experimental.do_not_convert


class Layout(NamedTuple):
    """How devices share a step."""

    replicas: int = 1
    local: range | None = None  # the devices of this machine; None: all
    microbatch_tokens: int = 0  # of `batching.microbatches`, which computes A from it

    @property
    def here(self) -> range:
        """The devices of this machine."""
        return range(self.replicas) if self.local is None else self.local


ONE_DEVICE = Layout()


@dataclass(frozen=True)
class TrainingText:
    """Training text, and what its order is a function of beside the epoch."""

    shards: Sequence[str]
    batch_tokens: int
    seed: int
    weights: Sequence[float] = ()  # those of `corpus_weights`
    dropout: BpeDropout | None = None

    @classmethod
    def of(cls, run: Run, dataset: Dataset) -> TrainingText:
        """Returns the training text of a run.

        Raises ValueError if the weights of its problem do not fit the corpora of the data, or if it has BPE-dropout and
        the vocabulary has no merges.
        """
        weights = corpus_weights.corpus_weights(run.problem, dataset)
        dropout = bpe_dropout(run.hparams, run.problem, dataset)
        return cls(dataset.shards("train"), run.hparams.batch_tokens, run.seed, weights, dropout)

    @_as_written
    def batches(
        self, epoch: int, layout: Layout = ONE_DEVICE, window: int = 0, skip: int = 0, epochs: int | None = 1
    ) -> tf.data.Dataset:
        """Returns the elements of the steps from number `skip` of `window` of `epoch` on, for `epochs` (None: without
        end).

        The elements of the first step come first, one for each device, then those of the second step, and so on. If the
        devices are on several machines, only the elements of this one are returned.

        An element is the share of one device in a step. "inputs" [A, B, M] and "targets" [A, B, L], int32, hold its A
        micro-batches. "sizes" [A, 3] has the true (B, M, L) of each; everything beyond is zero. The last micro-batches
        may be empty. "position" [3], int64, is the start of the next step: epoch, window, and number in the window.
        """
        last, local = 2**62 if epochs is None else epoch + epochs, len(layout.here)

        def one(number: tf.Tensor) -> tf.data.Dataset:
            first, done = (tf.where(number == epoch, tf.constant(n, tf.int64), 0) for n in (window, skip * local))
            return _planned_epoch(self, number, first, layout).skip(done)

        dataset = tf.data.Dataset.range(epoch, last).flat_map(one)  # one graph: no pause between epochs
        dataset = dataset.map(_assemble, num_parallel_calls=ASSEMBLERS, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False  # nothing to tune, and its thread would keep an iterator alive for a minute
        return dataset.prefetch(PREFETCH * local).with_options(options)

    def windows(self, epoch: int, layout: Layout = ONE_DEVICE, first: int = 0) -> Iterator[Window]:
        """Yields the windows of an epoch from number `first` on, in the order of training."""
        order = [self.shards[i] for i in self.shard_order(epoch)]
        records = _records(order, INTERLEAVED).skip(first * WINDOW).batch(WINDOW)
        for number, window in enumerate(records, start=first):
            pairs, seeds = _parse(window), (self.seed, epoch, number)
            if self.dropout:
                dense = {side: (ids.flat_values.numpy(), ids.row_splits.numpy()) for side, ids in pairs.items()}
                made = self.dropout.segment(dense, seeds)
                pairs = {side: tf.RaggedTensor.from_row_splits(*made[side]) for side in SIDES}
            lengths = _lengths(pairs).numpy()
            corpora = _corpora(window).numpy() if self.weights else np.zeros(0, np.int64)
            yield Window(pairs, lengths, *_plan_window(self, lengths, corpora, layout, seeds))

    def pairs_of_step(self, epoch: int, window: int, number: int) -> list[LocatedPair]:
        """Returns the pairs of step `number`, from 0, of a window of an epoch, or of a later window if it has fewer
        steps.

        Raises ValueError if the epoch has no such step.
        """
        for index, found in enumerate(self.windows(epoch, first=window), start=window):
            if number < len(found.spans):
                rows = np.concatenate([found.rows[start:end] for start, end in found.spans[number]])
                places = self._places(epoch).skip(index * WINDOW).take(len(found.lengths))
                where = np.array(list(places.as_numpy_iterator()))[rows]
                ids = [tf.gather(found.pairs[side], rows).to_list() for side in SIDES]
                return [
                    LocatedPair(self.shards[shard], int(record), *both)
                    for (shard, record), *both in zip(where, *ids, strict=True)
                ]
            number -= len(found.spans)
        raise ValueError(f"epoch {epoch} ends {number + 1:,} steps before the one asked for in window {window}")

    def shard_order(self, epoch: int) -> np.ndarray:
        """Returns the numbers of the shards in the order in which an epoch reads them."""
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.shards))

    def _places(self, epoch: int) -> tf.data.Dataset:
        """Returns (number of the shard, number in the shard) of each pair of an epoch, in the order of `_records`."""
        order = tf.data.Dataset.from_tensor_slices(self.shard_order(epoch).astype(np.int64))

        def numbered(shard: tf.Tensor) -> tf.data.Dataset:
            records = tf.data.TFRecordDataset(tf.gather(list(self.shards), shard))
            return records.enumerate().map(lambda number, _: tf.stack([shard, number]))

        return order.interleave(numbered, cycle_length=INTERLEAVED)


def _planned_epoch(text: TrainingText, epoch: tf.Tensor, first: tf.Tensor, layout: Layout) -> tf.data.Dataset:
    """Returns the inputs of `_assemble` for the elements of an epoch, from window `first` on.

    All elements of a window share dense tensors of its ids; tf.data would copy a RaggedTensor for each element. With
    BPE-dropout, the next window is segmented while the elements of this one are taken.
    """

    def shuffled(epoch: np.ndarray) -> np.ndarray:
        return text.shard_order(int(epoch))

    def parsed(number: tf.Tensor, records: tf.Tensor) -> tuple[Any, ...]:
        dense = {side: (ids.flat_values, ids.row_splits) for side, ids in _parse(records).items()}
        return number, dense, _corpora(records) if text.weights else tf.zeros([0], tf.int64)

    def segmented(dropout: BpeDropout, number: tf.Tensor, records: tf.Tensor) -> tuple[Any, ...]:
        def segment(number: np.ndarray, epoch: np.ndarray, *dense: np.ndarray) -> list[np.ndarray]:
            window = {side: (dense[2 * at], dense[2 * at + 1]) for at, side in enumerate(SIDES)}
            made = dropout.segment(window, (text.seed, int(epoch), int(number)))
            return [array for side in SIDES for array in made[side]]

        number, dense, corpora = parsed(number, records)
        arrays = [array for side in SIDES for array in dense[side]]
        made = tf.numpy_function(segment, [number, epoch, *arrays], (tf.int32, tf.int64) * 2, stateful=False)
        made = [tf.ensure_shape(array, (None,)) for array in made]
        return number, {side: (made[2 * at], made[2 * at + 1]) for at, side in enumerate(SIDES)}, corpora

    def batches(
        number: tf.Tensor, dense: dict[str, tuple[tf.Tensor, tf.Tensor]], corpora: tf.Tensor
    ) -> tf.data.Dataset:
        splits = [dense[side][1] for side in SIDES]
        lengths = tf.stack([each[1:] - each[:-1] for each in splits], axis=1)

        def planned(
            number: np.ndarray, epoch: np.ndarray, lengths: np.ndarray, corpora: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray]:
            return _plan_window(text, lengths, corpora, layout, (text.seed, int(epoch), int(number)))

        given = [number, epoch, lengths, corpora]
        rows, spans = tf.numpy_function(planned, given, (tf.int64, tf.int64), stateful=False)
        rows, spans = tf.ensure_shape(rows, (None,)), tf.ensure_shape(spans, (None, None, 2))
        elements = tf.data.Dataset.from_tensor_slices(spans).enumerate()
        local = len(layout.here)
        return elements.map(lambda at, span: (tf.stack([epoch, number, at // local + 1]), dense, rows, span))

    order = tf.ensure_shape(tf.numpy_function(shuffled, [epoch], tf.int64, stateful=False), (None,))
    records = _records(tf.gather(list(text.shards), order), INTERLEAVED).skip(first * WINDOW)
    windows = records.batch(WINDOW).enumerate(first)
    if text.dropout:
        return windows.map(functools.partial(segmented, text.dropout)).prefetch(1).flat_map(batches)
    return windows.flat_map(lambda number, records: batches(*parsed(number, records)))


@contextlib.contextmanager
def damage_named(directory: str) -> Iterator[None]:
    """Raises ValueError for a shard in `directory` that turns out to be damaged or missing while it is read."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        reason = error.message.partition("\n")[0].rpartition("}} ")[2].partition(" [Op:")[0]
        raise ValueError(
            f"a shard in {directory!r} is damaged ({reason}); `prepare(verify=True)` names it, and how to make it again"
        ) from None


@_as_written
def evaluation_batches(
    shards: Sequence[str], batch_tokens: int = EVALUATION_TOKENS, max_tokens: int | None = None
) -> tf.data.Dataset:
    """Returns batches of every pair once: "inputs" [B, M] and "targets" [B, L], int32, and "corpus" [], int64.

    A batch is of one corpus, with similar lengths and at most `batch_tokens` positions per side; a longer pair is a
    batch of its own. A side of more than `max_tokens` is cut, but a source keeps its EOS, as in decoding:
    `longer_pairs` counts those pairs.
    """
    records = _all_records(shards)
    pairs, corpora = dict(_parse(records)), _corpora(records).numpy()
    if max_tokens is not None:
        sources, last = pairs["inputs"], max_tokens - 1
        pairs["inputs"] = tf.concat([sources[:, :last], sources[:, last:][:, -1:]], axis=1)
        pairs["targets"] = pairs["targets"][:, :max_tokens]
    lengths = _lengths(pairs).numpy()
    longer = lengths.max(axis=1) > batch_tokens
    orders, starts = [], [np.zeros(1, np.int64)]
    for corpus in np.unique(corpora):
        (short,), (alone,) = np.nonzero(~longer & (corpora == corpus)), np.nonzero(longer & (corpora == corpus))
        cut = batching.plan(lengths[short], batch_tokens, np.random.default_rng(0))
        ends = np.concatenate([cut.starts[1:], len(short) + 1 + np.arange(len(alone))])
        orders += [short[cut.order], alone]
        starts.append(starts[-1][-1] + ends)
    order, bounds = np.concatenate(orders), np.concatenate(starts)

    def batch(span: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.gather(order, tf.range(span[0], span[1]))
        sides = {side: tf.gather(pairs[side], rows).to_tensor() for side in pairs}
        return sides | {"corpus": tf.gather(corpora, rows[0])}

    return tf.data.Dataset.from_tensor_slices(np.stack([bounds[:-1], bounds[1:]], axis=1)).map(batch)


def longer_pairs(shards: Sequence[str], max_tokens: int) -> int:
    """Returns how many pairs have more than `max_tokens` on a side."""
    return int((_lengths(_parse(_all_records(shards))).numpy().max(axis=1) > max_tokens).sum())


def pairs(shards: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the ids of source and target of each pair, int32, EOS last, in the order of the shards."""
    with damage_named(os.path.dirname(shards[0])):
        for records in _records(list(shards), 1).batch(WINDOW):
            sides = [(ids.flat_values.numpy(), ids.row_splits.numpy()[1:-1]) for ids in _parse(records).values()]
            yield from zip(*(np.split(values, splits) for values, splits in sides), strict=True)


def _all_records(shards: Sequence[str]) -> tf.Tensor:
    with damage_named(os.path.dirname(shards[0])):
        return next(iter(_records(list(shards), 1).batch(2**31 - 1)))


class Window(NamedTuple):
    """Pairs that are planned together, and their plan: `TrainingText.batches` before anything is padded."""

    pairs: dict[str, tf.RaggedTensor]  # "inputs" and "targets": int32 ids [N, (length)]
    lengths: np.ndarray  # [N, 2]: of source and target
    rows: np.ndarray  # [R]: the order of the pairs, each once if the corpora have no weights
    spans: np.ndarray  # [steps * replicas, A, 2]: the span of each micro-batch in that order

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (B, M, L) of each micro-batch and its real tokens per side: [steps * replicas, A, 3] and [..., 2].

        An empty one has zeros.
        """
        lengths, spans = self.lengths[self.rows], self.spans.reshape(-1, 2)
        filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
        filled = filled[np.argsort(spans[filled, 0])]
        starts = spans[filled, 0]  # each ends where the next one starts
        sizes, tokens = np.zeros((len(spans), 3), np.int64), np.zeros((len(spans), 2), np.int64)
        sizes[filled, 0] = spans[filled, 1] - starts
        sizes[filled, 1:] = np.maximum.reduceat(lengths, starts)
        tokens[filled] = np.add.reduceat(lengths, starts)
        return sizes.reshape(*self.spans.shape[:2], 3), tokens.reshape(self.spans.shape)

    def elements(self, spans: np.ndarray) -> tf.data.Dataset:
        """Returns elements of `TrainingText.batches` for spans [K, A, 2] of this window; each position is (0, 0, 0)."""
        dense = {side: (ids.flat_values, ids.row_splits) for side, ids in self.pairs.items()}

        def assembled(span: tf.Tensor) -> dict[str, tf.Tensor]:
            nowhere = tf.zeros([3], tf.int64)
            return _assemble(nowhere, dense, tf.constant(self.rows), tf.ensure_shape(span, (None, 2)))

        dataset = tf.data.Dataset.from_generator(lambda: spans, output_signature=tf.TensorSpec((None, 2), tf.int64))
        return dataset.map(assembled)


class LocatedPair(NamedTuple):
    """A pair of the data: its file, the number of its record there, from 0, and its ids."""

    shard: str
    record: int
    inputs: list[int]
    targets: list[int]


def _records(shards: Sequence[str] | tf.Tensor, mixed: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(shards).interleave(tf.data.TFRecordDataset, cycle_length=mixed)


def _parse(records: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    """Parses serialized tf.train.Examples [N] to int32 ids [N, (length)]."""
    feature = {side: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for side in SIDES}
    return {side: tf.cast(ids, tf.int32) for side, ids in tf.io.parse_example(records, feature).items()}


def _lengths(pairs: dict[str, tf.RaggedTensor]) -> tf.Tensor:
    """Returns the lengths of source and target: [N, 2], int64."""
    return tf.stack([pairs[side].row_lengths() for side in SIDES], axis=1)


def _corpora(records: tf.Tensor) -> tf.Tensor:
    """Parses the number of the corpus of each of serialized tf.train.Examples [N]: [N], int64. 0 stands for none."""
    feature = {"corpus": tf.io.FixedLenFeature([], tf.int64, default_value=0)}
    return tf.io.parse_example(records, feature)["corpus"]


def _plan_window(
    text: TrainingText, lengths: np.ndarray, corpora: np.ndarray, layout: Layout, seeds: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the order of a window's pairs, and the spans into it of each local device's micro-batches:
    [steps * devices, A, 2].

    With weights, a pair occurs in the order as often as `corpus_weights.draw` says.
    """
    rng, parts, local = np.random.default_rng(seeds), batching.num_parts(text.batch_tokens), layout.here
    count = batching.microbatches(text.batch_tokens, layout.replicas, layout.microbatch_tokens)
    drawn = corpus_weights.draw(corpora, text.weights, seeds) if text.weights else np.arange(len(lengths))
    cut = batching.plan(lengths[drawn], text.batch_tokens // parts, rng)
    shares = [
        batching.assign_to_replicas(spans, parts, layout.replicas, count)[local.start : local.stop]
        for spans in batching.group_into_steps(cut.starts, parts, rng)
    ]
    return drawn[cut.order].astype(np.int64), np.concatenate([np.zeros((0, count, 2), np.int64), *shares])


def _assemble(
    position: tf.Tensor, dense: dict[str, tuple[tf.Tensor, tf.Tensor]], rows: tf.Tensor, spans: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the micro-batches `spans` [A, 2] as one element of `TrainingText.batches`.

    `dense` has the ids of all pairs of each side, and where each pair starts and ends.
    """
    pairs = {side: tf.RaggedTensor.from_row_splits(*ids, validate=False) for side, ids in dense.items()}
    counts = spans[:, 1] - spans[:, 0]
    chosen = tf.gather(rows, tf.ragged.range(spans[:, 0], spans[:, 1]))  # [A, (B)]
    sides = {side: tf.gather(ids, chosen) for side, ids in pairs.items()}  # [A, (B), (length)]
    widths = [tf.reduce_max(sides[side].row_lengths(axis=2), axis=1) for side in SIDES]
    sizes = tf.stack([counts, *(tf.maximum(width, 0) for width in widths)], axis=1)
    numbers = {"sizes": tf.cast(sizes, tf.int32), "position": position}
    return {side: ids.to_tensor() for side, ids in sides.items()} | numbers
