"""CTranslate2 with our weights, a batch on each core. Mode: float32 or int8, to which it converts them when it loads
them; "on all cores", one batch at a time; "shortlist", with its vocabulary map."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import itertools  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
from collections.abc import Sequence  # noqa: E402

import ctranslate2  # noqa: E402

from benchmarks.decode_workload import ALPHA, CASES, ONE_LENGTH, TARGET_TOKENS, batches_of_text, pieces  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    precision, *options = mode.split(", ")
    cores = len(os.sched_getaffinity(0))
    at_once, threads = (1, cores) if "on all cores" in options else (cores, 1)
    translator = ctranslate2.Translator(
        os.path.join(weights, "ctranslate2"), compute_type=precision, inter_threads=at_once, intra_threads=threads
    )
    words = pieces(shape.vocab_size)

    def spelled(sources: list[list[int]]) -> list[list[str]]:
        return [[words[id] for id in ids[:-1]] for ids in sources]  # it adds the end of the source itself

    sources = [spelled(case.sources(shape.vocab_size)) for case in ONE_LENGTH]
    turns = itertools.count()

    def start(
        index: int, sources: Sequence[list[str]], length: int, most: int
    ) -> list[ctranslate2.AsyncTranslationResult]:
        return translator.translate_batch(
            sources,
            beam_size=CASES[index].beam_size,
            length_penalty=ALPHA,
            min_decoding_length=length,
            max_decoding_length=length,
            max_batch_size=most,
            return_scores=True,
            asynchronous=True,
            use_vmap="shortlist" in options,
        )

    def decode(index: int) -> float:
        case = CASES[index]
        if case.is_text:
            batches = batches_of_text(case.sources(shape.vocab_size, next(turns)))
            started = [(len(each[0]), start(index, spelled(each), len(each[0]), len(each))) for each in batches]
        else:
            most = math.ceil(case.sentences / at_once)
            started = [(TARGET_TOKENS, start(index, sources[index], TARGET_TOKENS, most))]
        for length, promised in started:
            results = [each.result() for each in promised]
            lengths = {len(result.hypotheses[0]) for result in results}
            if lengths != {length}:
                raise ValueError(f"translations of {lengths} tokens, not {length}: the work is not the same")
        return results[0].scores[0]

    protocol.serve(decode, CASES, imported)


if __name__ == "__main__":
    main()
