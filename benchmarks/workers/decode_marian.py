"""Marian with our weights, a batch on each core. Mode: float32 or int8, to which its own `convert` brings them.

Products of 8-bit integers are FBGEMM's (`--gemm-type=packed8avx512` or `packed8avx2`): decoding 32 sentences with
intgemm's (`intgemm8`) took 1.3 times the processor time.

It decodes no text: it forms its own batches, and the longest source of a batch sets the length of translations.
"""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import math  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import pymarian  # noqa: E402

from benchmarks.decode_workload import ALPHA, ONE_LENGTH, SOURCE_TOKENS, TARGET_TOKENS, pieces  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    given, vocabulary = (os.path.join(weights, "marian", name) for name in ("model.npz", "vocabulary.txt"))
    model = given.replace(".npz", f".{mode}.bin")
    int8 = "packed8avx512" if "avx512" in Path("/proc/cpuinfo").read_text(encoding="ascii") else "packed8avx2"
    products = {"float32": "float32", "int8": int8}[mode]
    command = [sys.executable, "-m", "pymarian", "convert", "--from", given, "--to", model, "--gemm-type", products]
    subprocess.run(command, check=True)
    cores = len(os.sched_getaffinity(0))
    translator = pymarian.Translator(
        models=[model],
        vocabs=[vocabulary, vocabulary],
        cpu_threads=cores,
        normalize=ALPHA,
        max_length_factor=TARGET_TOKENS / SOURCE_TOKENS,
        n_best=True,  # with scores
        log_level="error",
        quiet_translation=True,
    )
    words = pieces(shape.vocab_size)
    sources = [
        [" ".join(words[id] for id in ids[:-1]) for ids in case.sources(shape.vocab_size)] for case in ONE_LENGTH
    ]

    def decode(index: int) -> float:
        case = ONE_LENGTH[index]
        batch = math.ceil(case.sentences / cores)
        found = translator.translate(sources[index], beam_size=case.beam_size, mini_batch=batch, maxi_batch=cores)
        fields = [line.split(" ||| ") for line in found]  # number of the source, words, score, normalized score
        lengths = {len(translation.split()) for _, translation, *_ in fields}
        if len(fields) != case.sentences * case.beam_size or lengths != {TARGET_TOKENS}:
            raise ValueError(f"{len(fields)} translations of {lengths} tokens, not {TARGET_TOKENS}: not the same work")
        return float(fields[0][-1])

    protocol.serve(decode, ONE_LENGTH, imported)


if __name__ == "__main__":
    main()
