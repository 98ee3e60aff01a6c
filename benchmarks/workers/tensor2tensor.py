"""tensor2tensor 1.15.7, in float32, on the TensorFlow 2.13 that still runs its graphs. Mode: its set's name, or empty.

It was written for TensorFlow 1 and imports all of its problems at once. What these want of reinforcement learning and
of Google's cloud is stubbed: nothing of it has a part in training a Transformer.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

from benchmarks.workers import protocol

STUBBED = ("gym", "dopamine", "googleapiclient")


class _Stub(types.ModuleType):
    """A module that has every name, as an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in STUBBED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


shape, path, mode = protocol.arguments()
protocol.quiet_output()
sys.meta_path.append(_StubFinder())

import tensorflow.compat.v1 as tf  # noqa: E402

tf.disable_v2_behavior()

from tensor2tensor.models import transformer  # noqa: E402
from tensor2tensor.utils import optimize  # noqa: E402

from benchmarks import batches, shapes  # noqa: E402
