"""Writes a run with random weights, for `benchmarks.startup`.

    python -m benchmarks.workers.random_run --model=base --weights=FOLDER --mode=bfloat16

The run is that of the tests with another model, and with made-up subwords up to the size of the vocabulary.
"""

from __future__ import annotations

import os
from dataclasses import replace

from t2t_repro.cli.launcher import load_tensorflow

load_tensorflow()

from benchmarks.shapes import Shape  # noqa: E402
from benchmarks.train import ROOT  # noqa: E402
from benchmarks.workers import protocol  # noqa: E402
from benchmarks.workers.decode_weights import made_model  # noqa: E402
from t2t_repro.data.vocabulary import model_proto  # noqa: E402
from t2t_repro.io import sha256  # noqa: E402
from t2t_repro.run import Run  # noqa: E402
from t2t_repro.training.checkpointing.checkpoints import Checkpoints  # noqa: E402

EXTRA_LENGTH = 10  # a translation takes a few steps, like one of a trained model: random weights rarely end one


def write_vocabulary(path: str, given: str, size: int) -> int:
    """Writes the vocabulary in the file `given`, extended to `size` subwords, to `path`. Returns its size."""
    with open(given, "rb") as file:
        proto = model_proto(file.read())
    last = proto.pieces[-1]
    for number in range(size - len(proto.pieces)):
        proto.pieces.add(piece=f"\u2581w{number}", score=last.score - number - 1, type=last.type)
    with open(path, "wb") as file:
        file.write(proto.SerializeToString())
    return len(proto.pieces)


def write_run(shape: Shape, folder: str, precision: str) -> None:
    """Writes a run of `shape` with one checkpoint to the existing `folder`."""
    given = Run.open(str(ROOT / "tests" / "fixtures" / "run"))
    vocabulary = os.path.join(folder, "extended.model")
    size = write_vocabulary(vocabulary, given.vocabulary, shape.vocab_size)
    model = made_model(replace(shape, vocab_size=size), precision)
    hparams = replace(model.hparams, extra_length=EXTRA_LENGTH)
    run = replace(
        given, directory=folder, hparams=hparams, precision=precision, vocabulary_sha256=sha256(vocabulary)
    ).start(vocabulary)
    os.remove(vocabulary)
    Checkpoints(run, {"model": model}, keep=1).save(hparams.checkpoint_steps)


def main() -> None:
    write_run(*protocol.decoding_arguments())


if __name__ == "__main__":
    main()
