"""This package, as `t2t-decoder` runs it: its model, its beam search, its graph. Mode: float32, bfloat16, or
int8, which computes in the fastest of these what has no products of 8-bit integers."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import tensorflow as tf  # noqa: E402

from benchmarks.cases import ALPHA, CASES, SOURCE_TOKENS, TARGET_TOKENS  # noqa: E402
from benchmarks.workers.decode_weights import made_model  # noqa: E402
from t2t_repro.inference.decode import Translator  # noqa: E402
from t2t_repro.inference.ensemble import FixedEnsemble  # noqa: E402
from t2t_repro.training.precision import resolve  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    model = made_model(shape, resolve("auto") if mode == "int8" else mode)
    translator = Translator(FixedEnsemble([model], int8=mode == "int8"), None, model.hparams)
    sources = [tf.constant(case.sources(shape.vocab_size)) for case in CASES]

    def decode(index: int) -> float:
        extra = TARGET_TOKENS - SOURCE_TOKENS
        beam_size = CASES[index].beam_size
        found = translator.search(sources[index], beam_size, ALPHA, extra, min_length=TARGET_TOKENS - 1)
        if found.ids.shape[2] != TARGET_TOKENS:
            raise ValueError(f"translations of {found.ids.shape[2]} tokens, not {TARGET_TOKENS}")
        return float(found.scores[0, 0])

    protocol.serve(decode, CASES, imported)


if __name__ == "__main__":
    main()
