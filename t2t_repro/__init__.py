"""t2t_repro: "Attention Is All You Need" (Vaswani et al., 2017) as a TensorFlow/Keras problem registry.

    import t2t_repro as t2t

    problem, hparams = t2t.get_problem("translate_ende_cldr"), t2t.get_hparams("tiny")
    t2t.prepare(problem, "data")
    t2t.train(problem, hparams, "data", "run")
    t2t.evaluate("run")["bleu"]
    t2t.load("run")(["12 years"])

Importing this module does not import TensorFlow: each name is imported on first use.
"""

from __future__ import annotations

import importlib
import os
import platform
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# In a checkout, `problems/`, `hparams/` and `bin/` are next to this package. setup.py installs them inside it.
_checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.isfile(os.path.join(_checkout, "setup.py")):
    __path__.append(_checkout)

# TensorFlow reads this when it is imported. By itself it uses oneDNN only on x86-64 processors with AVX-512 VNNI.
if platform.machine() == "x86_64":
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

if TYPE_CHECKING:
    from t2t_repro.api import choose_alignment_head, evaluate, export, learn_shortlist, load, prepare, train
    from t2t_repro.config import HParams, TrainingOptions
    from t2t_repro.problem import Generated, Problem, TextFiles, TmxFile, Trees, TsvFile, Wmt
    from t2t_repro.registry import (
        get_hparams,
        get_problem,
        list_hparams,
        list_problems,
        register_hparams,
        register_problem,
    )
    from t2t_repro.task import Decoder

_MODULES = {
    "api": "choose_alignment_head evaluate export learn_shortlist load prepare train",
    "config": "HParams TrainingOptions",
    "problem": "Generated Problem TextFiles TmxFile Trees TsvFile Wmt",
    "registry": "get_hparams get_problem list_hparams list_problems register_hparams register_problem",
    "task": "Decoder",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Decoder",
    "Generated",
    "HParams",
    "Problem",
    "TextFiles",
    "TmxFile",
    "TrainingOptions",
    "Trees",
    "TsvFile",
    "Wmt",
    "__version__",
    "choose_alignment_head",
    "evaluate",
    "export",
    "get_hparams",
    "get_problem",
    "learn_shortlist",
    "list_hparams",
    "list_problems",
    "load",
    "prepare",
    "register_hparams",
    "register_problem",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
