"""How many devices the input pipeline feeds: its target tokens per second, and the cores that a training run needs.

    python -m benchmarks.feeding data/translate_files

Takes the training pairs in a folder that `t2t-datagen` prepared, in steps of 25,000 tokens per side, as `t2t-trainer`
takes them on GPUs: an element for each replica of the host. Nothing is trained. Without a folder the pairs are random
(`benchmarks.batches`).

The first table has a row for each number of replicas and hosts, measured on the first host. Pairs and tokens are those
of the whole step: every host must keep pace with it. An epoch is taken twice, as fast as possible and then at --tokens
per second. The last two columns are of the second time: cores in use, and the longest time that a step waited for its
data. "Training thread" is the processor time of the thread that takes the elements; all else is in the background.

The second table has what each host does for all pairs, because the lengths of all pairs of a window decide its batches.
Padding and copying are done by the host of the replica that trains on a pair.

Rates are per second of processor time, user and system, of all threads. Other work raises it too, but much less than
wall times.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from benchmarks.batches import PAIRS
from benchmarks.pipeline import write_shards

BATCH_TOKENS = 25_000
TOKENS_PER_SECOND = 500_000  # eight GPUs that take 0.05 s for a step of base
CORES = 8
VOCAB_SIZE = 37_000  # of random pairs: ids as long as those of the paper's English-German
LAYOUTS = ((1, 1), (8, 1), (32, 1), (16, 2), (32, 4))  # replicas of all hosts, hosts


@dataclass(frozen=True)
class Epoch:
    """The size of an epoch."""

    pairs: int
    tokens: int  # of the target
    steps: int


@dataclass(frozen=True)
class Fed:
    """Seconds that one host took for an epoch."""

    processor: float  # of all threads
    thread: float  # of these, the thread that takes the elements
    wall: float
    longest_wait: float  # for the data of a step


def feed(shards: Sequence[str], epoch: Epoch, replicas: int, hosts: int, step_seconds: float = 0.0) -> Fed:
    """Takes an epoch on the first of `hosts` hosts, a step every `step_seconds`; 0: as fast as possible.

    It begins after the first step, which waits for the first window, and ends after the first step of the next epoch.
    """
    from t2t_repro.data.input_pipeline import Layout, TrainingText

    layout = Layout(replicas, range(replicas // hosts), microbatch_tokens=math.ceil(BATCH_TOKENS / replicas))
    local, elements = len(layout.here), iter(TrainingText(shards, BATCH_TOKENS, seed=1).batches(0, layout, epochs=2))
    list(islice(elements, local))
    processor, thread, start = time.process_time(), time.thread_time(), time.perf_counter()
    due, longest = start, 0.0
    for _ in range(epoch.steps):
        due = max(due + step_seconds, time.perf_counter())
        time.sleep(max(due - time.perf_counter(), 0))
        list(islice(elements, local))
        longest = max(longest, time.perf_counter() - due)
    wall = time.perf_counter() - start
    return Fed(time.process_time() - processor, time.thread_time() - thread, wall, longest)


def cells(epoch: Epoch, fast: Fed, paced: Fed, rate: int) -> list[str]:
    """Returns the measured cells of a row of the first table."""
    return [
        f"{epoch.pairs / fast.processor:,.0f}",
        f"{epoch.tokens / fast.processor:,.0f}",
        f"{epoch.tokens / fast.wall:,.0f}",
        f"{1e3 * fast.thread / epoch.steps:.2f} ms",
        f"{cores(epoch, paced, rate):.2f}",
        f"{1e3 * paced.longest_wait:.0f} ms",
    ]


def cores(epoch: Epoch, fed: Fed, rate: int) -> float:
    """Returns the cores that `rate` target tokens per second keep busy."""
    return fed.processor * rate / epoch.tokens


def shared(shards: Sequence[str]) -> Iterator[tuple[str, float, Epoch]]:
    """Yields the work that each host does for all pairs of an epoch, its processor seconds, and the epoch."""
    from t2t_repro.data import input_pipeline

    def read() -> None:
        for _ in input_pipeline._records(list(shards), input_pipeline.INTERLEAVED).batch(input_pipeline.WINDOW):
            pass

    def plan() -> Epoch:
        planned = input_pipeline.TrainingText(shards, BATCH_TOKENS, seed=1).windows(epoch=0)
        counts = [(len(window.lengths), window.lengths[:, 1].sum(), len(window.spans)) for window in planned]
        return Epoch(*np.sum(counts, axis=0).tolist())

    epoch = plan()  # and warms up
    for name, work in (("reading", read), ("reading, decoding and planning", plan)):
        start = time.process_time()
        work()
        yield name, time.process_time() - start, epoch


def report(shards: Sequence[str], rate: int) -> None:
    """Measures and prints both tables."""
    in_common = list(shared(shards))
    epoch = in_common[0][2]
    print(f"{epoch.pairs:,} pairs, {epoch.tokens:,} target tokens, {epoch.steps:,} steps per epoch\n")
    heads = ["replicas", "pairs/s per core", "target tokens/s per core", "target tokens/s in wall time"]
    heads += ["training thread per step", f"cores for {rate:,}/s", "longest wait"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    most = 0.0
    for replicas, hosts in LAYOUTS:
        fast = feed(shards, epoch, replicas, hosts)
        paced = feed(shards, epoch, replicas, hosts, epoch.tokens / epoch.steps / rate)
        name = f"{replicas}, of {hosts} hosts" if hosts > 1 else f"{replicas}"
        print(f"| {' | '.join([name, *cells(epoch, fast, paced, rate)])} |", flush=True)
        most = max(most, cores(epoch, paced, rate))
    print(f"\n| each host, for all pairs | target tokens/s per core | cores for {rate:,}/s |\n|---|---|---|")
    for name, seconds, _ in in_common:
        print(f"| {name} | {epoch.tokens / seconds:,.0f} | {seconds * rate / epoch.tokens:.3f} |")
    print(f"\n{rate:,} target tokens/s take {most:.2f} cores, {'within' if most <= CORES else 'more than'} {CORES}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="prepared data; default: random pairs")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="random pairs; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_SECOND, help="per second; default: %(default)s")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as made:
        if arguments.folder is None:
            shards = write_shards(made, arguments.pairs, VOCAB_SIZE)
        else:
            from t2t_repro.data.dataset import Dataset

            try:
                shards = Dataset.open(arguments.folder).shards("train")
            except (FileNotFoundError, ValueError) as error:
                parser.error(str(error))
        report(shards, arguments.tokens)


if __name__ == "__main__":
    main()
