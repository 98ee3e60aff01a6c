"""Runs from their directories, as an ensemble that decodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from t2t_repro.inference.ensemble import FixedEnsemble
from t2t_repro.io import sha256
from t2t_repro.model.kernels import unset_weights
from t2t_repro.model.transformer import Transformer
from t2t_repro.run import Run
from t2t_repro.training.checkpointing.checkpoint_list import Averaging
from t2t_repro.training.checkpointing.weights import Replaced, layer_loader, load_weights
from t2t_repro.training.precision import POLICIES, allow_tf32, resolve


def open_runs(directories: Sequence[str]) -> list[Run]:
    """Opens runs that can decode as one. Raises ValueError if vocabularies, languages or linearizations differ."""
    first, *others = runs = [Run.open(each) for each in directories]
    if len({os.path.realpath(each) for each in directories}) < len(runs):
        raise ValueError("a run is given twice; an ensemble needs different ones")
    for run in others:
        if run.vocabulary_sha256 != first.vocabulary_sha256:
            raise ValueError(
                f"{run.directory!r} has another vocabulary than {first.directory!r} (SHA-256 differs); runs form an "
                "ensemble only if they were trained on the same prepared data"
            )
        for name in ("linearization", "source_language", "target_language"):
            one, other = (getattr(each.problem, name) for each in (first, run))
            is_known = name == "linearization" or (one and other)  # a problem may name no languages
            if one != other and is_known:
                raise ValueError(
                    f"runs of an ensemble must have one {name}. Received: {one!r} of {first.directory!r} and "
                    f"{other!r} of {run.directory!r}"
                )
    return runs


class Loaded(NamedTuple):
    """The models of some runs."""

    ensemble: FixedEnsemble
    checkpoints: list[list[str]]  # paths, by run
    sha256: list[str]  # of the index of each checkpoint


def load_ensemble(
    runs: Sequence[Run], vocab_size: int, averaging: Averaging, int8: bool, precision: str, search_only: bool
) -> Loaded:
    """Loads each run. Starts again if a trainer replaces checkpoints meanwhile.

    The arguments and errors are those of `Translator.from_run`.
    """
    arguments = runs, vocab_size, averaging, int8, precision, search_only
    with contextlib.suppress(Replaced):
        return _loaded(*arguments)
    return _loaded(*arguments)


def _loaded(
    runs: Sequence[Run], vocab_size: int, averaging: Averaging, int8: bool, precision: str, search_only: bool
) -> Loaded:
    chosen = [resolve(precision, run.precision) for run in runs]
    allow_tf32(set(chosen) == {"tf32"})
    with unset_weights():  # the checkpoint has them all
        models = [
            Transformer(vocab_size, run.hparams, dtype=POLICIES[its_own])
            for run, its_own in zip(runs, chosen, strict=True)
        ]
    pairs = list(zip(runs, models, strict=True))
    if search_only:
        found, loaders = zip(*(layer_loader(run, model, averaging) for run, model in pairs), strict=True)
        checkpoints, ensemble = list(found), FixedEnsemble(models, int8, loaders)
    else:
        checkpoints = [load_weights(run, model, averaging) for run, model in pairs]
        ensemble = FixedEnsemble(models, int8)
    hashes = []
    for run, its_own in zip(runs, checkpoints, strict=True):
        try:
            hashes += [sha256(f"{path}.index") for path in its_own]
        except FileNotFoundError:
            raise Replaced(run) from None
    return Loaded(ensemble, checkpoints, hashes)
