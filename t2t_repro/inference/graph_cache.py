"""Traced graphs of beam search in a folder of the user: a later process loads one instead of tracing it again.

The name of a file is a hash of all that a graph depends on: the source of this package, the versions of its libraries,
the features of the processor, and the hyperparameters, dtypes and shapes of the models. Weights are not in the file. It
is not kept in the run, because a graph is code, and a run may come from somebody else.

Only a program that runs no code but this package's may set `allowed`: other code may change the model's classes, which
the name of a file does not show.

TensorFlow has no public function that calls a graph by its name. If another version lacks the ones used here, or if
there is a GPU, graphs are always traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from t2t_repro import __version__
from t2t_repro.inference.ensemble import Ensemble
from t2t_repro.io import atomic_write
from t2t_repro.system import processor

FOLDER = "T2T_REPRO_CACHE"  # the variable that names the folder; if it is empty, nothing is kept
allowed = False  # set by a program, before its first search
MOST_GRAPHS = 32  # those used last are kept, of 0.4 MB each
_PACKAGE = Path(__file__).resolve().parents[1]
_DIGEST_BYTES = hashlib.sha256().digest_size  # in front of the functions
_TENSORS = "_tensors"  # the attribute of a function with the numbers of the tensors that it reads
_LOCK = threading.Lock()

Call = Callable[..., list[tf.Tensor]]


def loaded_or_kept(function: Any, ensemble: Ensemble) -> Call | None:
    """Returns a call of the graph of a `tf.function`, if an earlier process kept it. Otherwise traces and keeps it.

    Returns None if the function must be called itself: it was traced now, or its graph cannot be kept. It must have an
    input signature, and may read the tensors of `ensemble` alone. The call takes its arguments and returns a list.
    """
    tensors, folder = ensemble.tensors(), _folder()
    if not allowed or not tensors or folder is None or not _can_call():
        return None
    with _LOCK:
        path = folder / _key(function, ensemble, tensors)
        if functions := _read(path):
            return _call(functions, function.input_signature, tensors)
        concrete = function.get_concrete_function()
        with contextlib.suppress(OSError):  # a full disk, or a folder that this user may not write to
            _write(path, concrete, tensors)
    return None


def _can_call() -> bool:
    """Returns whether this is a TensorFlow that calls graphs as `_call` does, without a GPU."""
    try:
        from tensorflow.python.eager.context import Context
    except ImportError:
        return False
    needed = "add_function_def", "call_function", "has_function"
    return all(hasattr(Context, name) for name in needed) and not tf.config.list_physical_devices("GPU")


def _folder() -> Path | None:
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) if given else None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "t2t_repro" / "graphs" if os.path.isabs(cache) else None  # "~": the user has no home


def _key(function: Any, ensemble: Ensemble, tensors: Sequence[Any]) -> str:
    """Returns the SHA-256 of all that the graph of `function` depends on."""
    sources = [(str(path), path.stat()) for path in sorted(_PACKAGE.rglob("*.py"))]
    parts = {
        "function": function.name,
        "versions": [__version__, tf.__version__, keras.__version__, sys.version],
        "source": [(path, stat.st_size, stat.st_mtime_ns) for path, stat in sources],
        "processor": [processor.features(), processor.onednn_limit(), processor.onednn_is_off()],
        "models": [(dataclasses.asdict(each.hparams), each.vocab_size, each.compute_dtype) for each in ensemble.models],
        "int8": ensemble.int8,
        "tensors": [(each.dtype.name, each.shape.as_list()) for each in tensors],
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(path: Path) -> list[Any]:
    """Returns the functions in a file, the one to call first. There are none if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    with contextlib.suppress(OSError):  # the folder may be read-only
        os.utime(path)
    digest, functions = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(functions).digest() != digest:
        return []
    return list(tf.compat.v1.GraphDef.FromString(functions).library.function)


def _write(path: Path, concrete: Any, tensors: Sequence[Any]) -> None:
    """Writes the graph of a concrete function, unless it reads a tensor that is not one of `tensors`."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    read = [numbers.get(id(tensor), -1) for tensor in concrete.captured_inputs]
    if -1 in read:
        return
    graph = tf.compat.v1.GraphDef()
    graph.library.function.append(concrete.function_def)
    graph.library.function.extend(concrete.graph.as_graph_def().library.function)
    functions = graph.library.function
    functions[0].attr[_TENSORS].list.i.extend(read)
    _rename(functions, {each.signature.name: f"{path.name}_{number}" for number, each in enumerate(functions)})
    content = graph.SerializeToString()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_write(str(path)) as temporary:
        Path(temporary).write_bytes(hashlib.sha256(content).digest() + content)
    kept = sorted(path.parent.glob("[0-9a-f]" * len(path.name)), key=lambda each: each.stat().st_mtime)
    for each in kept[:-MOST_GRAPHS]:
        each.unlink()


def _rename(functions: Any, names: dict[str, str]) -> None:
    """Renames functions, also where they call each other: numbers in their names are those of one process."""
    for function in functions:
        function.signature.name = names[function.signature.name]
        for node in function.node_def:
            for value in node.attr.values():
                if value.HasField("func"):
                    value.func.name = names[value.func.name]


def _call(functions: list[Any], signature: Sequence[tf.TensorSpec], tensors: Sequence[Any]) -> Call:
    """Returns a call of the first of `functions`, which are added to TensorFlow's.

    A function whose name is taken belongs to another model of this process: its kernels keep the matrices that they
    packed. So this one gets a name of its own.
    """
    from tensorflow.python.eager.context import context

    first, calling = functions[0], context()
    if calling.has_function(first.signature.name):
        unique = uuid.uuid4().hex
        _rename(functions, {each.signature.name: f"{each.signature.name}_{unique}" for each in functions})
    for each in functions:
        calling.add_function_def(each)
    name, outputs = first.signature.name.encode(), len(first.signature.output_arg)
    read = [tensors[number] for number in first.attr[_TENSORS].list.i]

    def call(*arguments: Any) -> list[tf.Tensor]:
        given = [tf.convert_to_tensor(each, spec.dtype) for each, spec in zip(arguments, signature, strict=True)]
        return calling.call_function(name, [*given, *read], outputs)

    return call
