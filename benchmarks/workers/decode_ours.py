"""This package, as `t2t-decoder` runs it: its model, its beam search, its graph. Mode: float32 or bfloat16."""

from __future__ import annotations

from benchmarks.workers import protocol

shape, weights, mode = protocol.decoding_arguments()
protocol.quiet_output()

import tensorflow as tf  # noqa: E402

from benchmarks.cases import ALPHA, CASES, SOURCE_TOKENS, TARGET_TOKENS  # noqa: E402
from benchmarks.workers.decode_weights import made_model  # noqa: E402
from t2t_repro.inference.decode import Translator  # noqa: E402


def main() -> None:
    imported = protocol.resident_bytes()
    model = made_model(shape, mode)
    translator = Translator(model, None, model.hparams)
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
