"""CTranslate2 with our weights, a batch on each core. Mode: float32 or int8, to which it converts them when it loads
them; "on all cores", one batch at a time."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import math  # noqa: E402
import os  # noqa: E402

import ctranslate2  # noqa: E402

from benchmarks.decode_workload import ALPHA, CASES, TARGET_TOKENS, pieces  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    precision, _, on_all_cores = mode.partition(", ")
    cores = len(os.sched_getaffinity(0))
    at_once, threads = (1, cores) if on_all_cores else (cores, 1)
    translator = ctranslate2.Translator(
        os.path.join(weights, "ctranslate2"), compute_type=precision, inter_threads=at_once, intra_threads=threads
    )
    words = pieces(shape.vocab_size)
    # it adds the end of the source itself
    sources = [[[words[id] for id in ids[:-1]] for ids in case.sources(shape.vocab_size)] for case in CASES]

    def decode(index: int) -> float:
        results = translator.translate_batch(
            sources[index],
            beam_size=CASES[index].beam_size,
            length_penalty=ALPHA,
            min_decoding_length=TARGET_TOKENS,
            max_decoding_length=TARGET_TOKENS,
            max_batch_size=math.ceil(CASES[index].sentences / at_once),
            return_scores=True,
        )
        lengths = {len(result.hypotheses[0]) for result in results}
        if lengths != {TARGET_TOKENS}:
            raise ValueError(f"translations of {lengths} tokens, not {TARGET_TOKENS}: the work is not the same")
        return results[0].scores[0]

    protocol.serve(decode, CASES, imported)


if __name__ == "__main__":
    main()
