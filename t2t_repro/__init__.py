"""t2t_repro: "Attention Is All You Need" (Vaswani et al., 2017) as a TensorFlow/Keras problem registry.

    problem = t2t_repro.problem("translate_ende_cldr")   # what to train on
    hparams = t2t_repro.hparams("tiny")                  # what to train
    model = t2t_repro.load("RUN")                        # a trained run, or an export: model.translate(["..."])

Importing this module imports no TensorFlow; only `load` does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# In a checkout, `problems/`, `hparams/` and `bin/` lie beside this package and are found there; setup.py installs
# them inside it.
_checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.isfile(os.path.join(_checkout, "setup.py")):
    __path__.append(_checkout)

# Two functions below share their names with a module. Python binds a module to its package when it is first imported,
# so both are imported here, before the functions take the names; `from t2t_repro.problem import ...` goes on working.
importlib.import_module("t2t_repro.hparams")
importlib.import_module("t2t_repro.problem")

if TYPE_CHECKING:
    from t2t_repro.config import HParams
    from t2t_repro.export.saved_model import ExportedModel
    from t2t_repro.inference.translator import Translator
    from t2t_repro.problem import Problem


def problem(name: str) -> Problem:
    """The registered problem of that name; KeyError with the nearest known name otherwise."""
    from t2t_repro.registry import PROBLEMS

    return PROBLEMS[name]


def hparams(name: str) -> HParams:
    """The hyperparameter set of that name, `NAME@tiny` at that scale; KeyError with the nearest known one otherwise."""
    from t2t_repro import scale

    return scale.chosen(name)


def load(
    path: str | Sequence[str], average_checkpoints: int = 1, int8: bool = False, precision: str = "auto"
) -> Translator | ExportedModel:
    """What has been trained, ready to translate: a run, several that decode as one, or an exported SavedModel.

    Any number of threads may call what is returned.

    Args:
      path: of the run or of the export; a list of runs is an ensemble.
      average_checkpoints: the newest checkpoints of a run, whose mean is taken.
      int8: whether a run's decoder multiplies 8-bit integers, large models faster on a CPU.
      precision: what all else is computed in, such as "float32" or "bfloat16"; "auto" is that of the run.

    Raises FileNotFoundError where there is neither run nor SavedModel, and ValueError where one is damaged, several
    runs do not share their vocabulary, or `precision` cannot be computed here.
    """
    from t2t_repro.export.saved_model import ExportedModel, holds_export
    from t2t_repro.inference.translator import Translator

    if not isinstance(path, str):
        return Translator.from_runs(path, average_checkpoints, int8, precision)
    if not holds_export(path):
        return Translator.from_run(path, average_checkpoints, int8, precision)
    if average_checkpoints != 1:
        raise ValueError(f"{path!r} is an export, which has no checkpoints to average; load the run itself")
    if int8 or precision != "auto":
        raise ValueError(f"{path!r} is an export, which decodes as it was written; load the run itself")
    return ExportedModel(path)
