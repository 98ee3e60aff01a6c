"""This package, as `t2t-decoder` runs it: a run with one checkpoint, beam search, a batch on each core. Mode: float32,
bfloat16, or int8, which computes in the fastest of these what has no products of 8-bit integers; "on all cores", one
batch at a time; "shortlist", among a part of the subwords."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import inspect  # noqa: E402
import itertools  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import tensorflow as tf  # noqa: E402

from benchmarks.decode_workload import (  # noqa: E402
    ALPHA,
    CASES,
    ONE_LENGTH,
    SOURCE_TOKENS,
    TARGET_TOKENS,
    batches_of_text,
    shortlist,
)
from benchmarks.train import ROOT  # noqa: E402
from t2t_repro.inference.batches import padded  # noqa: E402
from t2t_repro.inference.translator import Translator  # noqa: E402
from t2t_repro.training.parallel import num_parallel_batches, parallel_map, set_threads  # noqa: E402
from t2t_repro.training.precision import resolve  # noqa: E402


def written_run() -> str:
    """Returns the directory of the run in `weights`, which the first worker writes, in a process of its own."""
    path = os.path.join(weights, f"run of {shape.name}")
    if not os.path.exists(path):
        os.makedirs(path)
        command = [sys.executable, "-m", "benchmarks.workers.random_run", f"--model={shape.name}", f"--weights={path}"]
        subprocess.run([*command, "--mode=float32"], cwd=ROOT, check=True)
    return path


def main() -> None:
    imported = protocol.resident_bytes()
    precision, *options = mode.split(", ")
    set_threads(0 if "on all cores" in options else 1)
    among = {"ids_S": tf.constant(shortlist(shape.vocab_size))} if "shortlist" in options else {}
    int8 = precision == "int8"
    how: dict[str, Any] = {"int8": int8, "precision": resolve("auto") if int8 else precision}
    if "search_only" in inspect.signature(Translator.from_run).parameters:  # older versions keep all weights
        how["search_only"] = True
    translator = Translator.from_run(written_run(), **how)
    sources = [tf.constant(case.sources(shape.vocab_size)) for case in ONE_LENGTH]
    turns = itertools.count()

    def decode_text(index: int) -> float:
        def search(batch: list[list[int]]) -> float:
            longest = len(batch[0])
            found = translator.search(padded(batch), CASES[index].beam_size, ALPHA, 0, min_length=longest - 1, **among)
            if found.ids.shape[2] != longest:
                raise ValueError(f"translations of {found.ids.shape[2]} tokens, not {longest}")
            return float(found.scores[0, 0])

        batches = batches_of_text(CASES[index].sources(shape.vocab_size, next(turns)))
        return sum(parallel_map(search, batches)) / len(batches)

    def decode(index: int) -> float:
        if CASES[index].is_text:
            return decode_text(index)
        extra = TARGET_TOKENS - SOURCE_TOKENS
        beam_size = CASES[index].beam_size
        lengths = set()

        def search(batch: tf.Tensor) -> float:
            found = translator.search(batch, beam_size, ALPHA, extra, min_length=TARGET_TOKENS - 1, **among)
            lengths.add(found.ids.shape[2])
            return float(found.scores[0, 0])

        batches = min(num_parallel_batches(), CASES[index].sentences)
        first, *_ = parallel_map(search, tf.split(sources[index], batches))
        if lengths != {TARGET_TOKENS}:
            raise ValueError(f"translations of {lengths} tokens, not {TARGET_TOKENS}")
        return first

    protocol.serve(decode, CASES, imported)


if __name__ == "__main__":
    main()
