"""The weights that our contestants, CTranslate2 and Marian share: drawn from a seed.

    python -m benchmarks.workers.decode_weights --model=base --weights=FOLDER --mode=ctranslate2

writes them as a CTranslate2 model, through this package's own export; `--mode=marian`, as a Marian model.
"""

from __future__ import annotations

import os
import types
from dataclasses import replace
from typing import Any

import numpy as np

import t2t_repro
from benchmarks.decode_workload import pieces, shortlist
from benchmarks.shapes import Shape
from benchmarks.workers import protocol
from t2t_repro.data.shortlist import Shortlist
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.precision import POLICIES


def made_model(shape: Shape, precision: str) -> Transformer:
    sizes = {name: getattr(shape, name) for name in ("num_layers", "d_model", "num_heads", "d_ff", "d_k")}
    hparams = replace(t2t_repro.get_hparams("base"), name=shape.name, d_v=shape.d_k, **sizes)
    model = Transformer(shape.vocab_size, hparams, dtype=POLICIES[precision])
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:  # gains and biases stay as they are at first
            weight.assign(rng.normal(0.0, weight.shape[0] ** -0.5, weight.shape))
    return model


def write_ctranslate2(shape: Shape, folder: str) -> None:
    from t2t_repro.exporting import ctranslate2

    path = os.path.join(folder, "vocabulary.model")
    with open(path, "wb"):
        pass  # nobody tokenizes here
    vocabulary: Any = types.SimpleNamespace(subwords=pieces(shape.vocab_size), path=path)
    limited_to = Shortlist(shape.vocab_size, shortlist(shape.vocab_size), {})
    path = os.path.join(folder, "ctranslate2")
    ctranslate2.write(made_model(shape, "float32"), vocabulary, path, "float32", shortlist=limited_to)


def write_marian(shape: Shape, folder: str) -> None:
    from benchmarks.workers import marian_model

    marian_model.write(made_model(shape, "float32"), pieces(shape.vocab_size), os.path.join(folder, "marian"))


FORMATS = {"ctranslate2": write_ctranslate2, "marian": write_marian}


def main() -> None:
    shape, folder, mode = protocol.decoding_arguments()
    os.makedirs(folder, exist_ok=True)
    FORMATS[mode](shape, folder)


if __name__ == "__main__":
    main()
