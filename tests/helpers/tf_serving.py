"""The requests that TensorFlow Serving's REST API accepts, and their tensors.

The rules follow `FillPredictRequestFromJson` in tensorflow_serving/util/json_tensor.cc as of July 2026, restated:
TensorFlow Serving itself is not needed. Only dtypes of our signatures are known.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

Dtypes = Mapping[str, str]  # of the inputs of a signature: "string", "int32" or "float32"


class Refused(Exception):
    """TensorFlow Serving responds with status 400."""


def tensors(body: str, signatures: Mapping[str, Dtypes]) -> tuple[str, dict[str, np.ndarray]]:
    """Returns the name of the signature and its inputs. Raises `Refused`."""
    message = _loaded(body)
    name = message.get("signature_name", "")
    if not isinstance(name, str):
        raise Refused("'signature_name' key must be a string value")
    name = name or "serving_default"
    if name not in signatures:
        raise Refused("signature not found")
    if "instances" in message and "inputs" in message:
        raise Refused("expecting only one of 'inputs' or 'instances'")
    if "instances" in message:
        return name, _of_rows(message["instances"], signatures[name])
    if "inputs" in message:
        return name, _of_columns(message["inputs"], signatures[name])
    raise Refused("Missing 'inputs' or 'instances' key")


def _loaded(body: str) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError:
        raise Refused("JSON Parse error") from None
    if not isinstance(message, dict):
        raise Refused("Is not object")
    return message


def _of_rows(rows: Any, takes: Dtypes) -> dict[str, np.ndarray]:
    if not isinstance(rows, list):
        raise Refused("Expecting 'instances' to be an list/array")
    if not rows:
        raise Refused("No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(takes) > 1:
        raise Refused("instances is a plain list, but expecting list of objects")
    are_objects = _is_object(rows[0])
    if not are_objects and len(takes) > 1:
        raise NotImplementedError("takes whichever input comes first in a map without an order")
    found: dict[str, list[np.ndarray]] = {name: [] for name in takes}
    for row in rows:
        if _is_object(row) != are_objects:
            raise Refused("Expecting object but got list, or value/list but got object")
        values = row if are_objects else {next(iter(takes)): row}
        if set(values) != set(takes):
            raise Refused("does not have named input, or keys must be equal to")
        for name, value in values.items():
            found[name].append(_tensor(value, takes[name]))
            if found[name][0].shape != found[name][-1].shape:
                raise Refused("Expecting tensor size or shape")
    return {name: np.stack(values) for name, values in found.items()}


def _of_columns(columns: Any, takes: Dtypes) -> dict[str, np.ndarray]:
    if not _is_object(columns):
        if len(takes) > 1:
            raise Refused("inputs is a plain value/list, but expecting an object")
        (name,) = takes
        return {name: _tensor(columns, takes[name])}
    missing = set(takes) - set(columns)  # unknown inputs are ignored
    if missing:
        raise Refused("Missing named input")
    return {name: _tensor(columns[name], dtype) for name, dtype in takes.items()}


def _is_object(value: Any) -> bool:
    """Returns true for an object that is not a string in base64."""
    return isinstance(value, dict) and not (set(value) == {"b64"} and isinstance(value["b64"], str))


def _tensor(value: Any, dtype: str) -> np.ndarray:
    shape, inner = [], value
    while isinstance(inner, list):  # the first element of each list determines the shape
        shape.append(len(inner))
        inner = inner[0] if inner else None
    flat: list[Any] = []
    _flatten(value, dtype, shape, flat)
    tensor = np.empty(len(flat), object if dtype == "string" else dtype)
    tensor[:] = flat
    return tensor.reshape(shape)


def _flatten(value: Any, dtype: str, shape: list[int], into: list[Any]) -> None:
    if not isinstance(value, list):
        if shape:
            raise Refused("found at incorrect level")
        into.append(_scalar(value, dtype))
        return
    if not shape or len(value) != shape[0]:
        raise Refused("Encountered list at unexpected level or size")
    for each in value:
        _flatten(each, dtype, shape[1:], into)


def _scalar(value: Any, dtype: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if dtype == "string" and isinstance(value, str):
        return value.encode()
    if dtype == "string" and isinstance(value, dict) and not _is_object(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except ValueError:
            raise Refused("Unable to base64 decode") from None
    if dtype == "int32" and is_number and isinstance(value, int) and -(2**31) <= value < 2**31:
        return value
    if dtype == "float32" and is_number:
        return value
    raise Refused("is not of expected type")
