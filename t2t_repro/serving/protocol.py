"""TF Serving's REST form: JSON to arrays and back.

    {"instances": ["a text", {"inputs": "another"}]}          rows     -> {"predictions": [{...}, {...}]}
    {"inputs": {"inputs": ["a text"], "beam_size": 4}}        columns  -> {"outputs": {"outputs": [...], ...}}

"signature_name" chooses another signature than serving_default. A string that is no UTF-8 is written {"b64": "..."}.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2t_repro.serving.model import DEFAULT_SIGNATURE, Input

_KEYS = ("signature_name", "instances", "inputs")


class BadRequest(ValueError):  # noqa: N818
    """What was sent cannot be answered: the message says what was given and what is expected."""


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    rows: int = 1_024
    characters: int = 10_000  # of one string; in bytes where it is given so


@dataclass(frozen=True, eq=False)
class Request:
    """One request, understood. `inputs` have one value a row, `options` one for all rows."""

    signature: str
    inputs: dict[str, np.ndarray]
    options: dict[str, np.ndarray]
    rows: int
    by_rows: bool


def parse(body: bytes, signatures: Mapping[str, Mapping[str, Input]], limits: Limits) -> Request:
    """Understands the body of a request. Raises `BadRequest`."""
    message = _object(body)
    unknown = [key for key in message if key not in _KEYS]
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r:.80}; expected {', '.join(_KEYS)}")
    name = message.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str) or name not in signatures:
        raise BadRequest(f"no signature {name!r:.80}; this model has {', '.join(signatures)}")
    takes = signatures[name]
    by_rows = "instances" in message
    if by_rows == ("inputs" in message):
        raise BadRequest('give either "instances", a list of rows, or "inputs", columns')
    columns = _columns_of_rows(message["instances"], takes) if by_rows else _columns(message["inputs"], takes)
    missing = [each.name for each in takes.values() if each.name not in columns and not each.optional]
    if missing:
        raise BadRequest(f"missing input {missing[0]!r}; signature {name} takes {', '.join(takes)}")
    return _request(name, takes, columns, by_rows, limits)


def _object(body: bytes) -> dict[str, Any]:
    def no_constant(text: str) -> None:
        raise ValueError(f"{text} is no JSON")

    try:
        message = json.loads(body.decode("utf-8"), parse_constant=no_constant)
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {str(error):.120}") from None
    if not isinstance(message, dict):
        raise BadRequest(f"the body must be a JSON object, got {_kind(message)}")
    return message


def _columns_of_rows(instances: Any, takes: Mapping[str, Input]) -> dict[str, Any]:
    """Rows, each an object or the value of the only input, as columns."""
    if not isinstance(instances, list):
        raise BadRequest(f'"instances" must be a list, got {_kind(instances)}')
    only = next((each.name for each in takes.values() if not each.optional), "")
    rows = [row if _is_row(row) else {only: row} for row in instances]
    names = list(rows[0]) if rows else [each.name for each in takes.values() if each.batched]
    for number, row in enumerate(rows):
        if set(row) != set(names):
            raise BadRequest(f'row {number} of "instances" has other inputs than the first')
    _must_be_known(names, takes)
    for name in names:
        if not takes[name].batched:
            raise BadRequest(f'{name!r} is one value for all rows; give it in the column form, "inputs"')
    return {name: [row[name] for row in rows] for name in names}


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and set(value) != {"b64"}


def _columns(inputs: Any, takes: Mapping[str, Input]) -> dict[str, Any]:
    """Columns by name, or the column of the only input."""
    if not _is_row(inputs):
        required = [each.name for each in takes.values() if not each.optional]
        if len(required) != 1:
            raise BadRequest(f'"inputs" must be an object with {", ".join(required)}, got {_kind(inputs)}')
        inputs = {required[0]: inputs}
    _must_be_known(list(inputs), takes)
    return dict(inputs)


def _must_be_known(names: list[str], takes: Mapping[str, Input]) -> None:
    unknown = [name for name in names if name not in takes]
    if unknown:
        raise BadRequest(f"no input {unknown[0]!r:.80}; the signature takes {', '.join(takes)}")


def _request(name: str, takes: Mapping[str, Input], columns: dict[str, Any], by_rows: bool, limits: Limits) -> Request:
    inputs, options = {}, {}
    for each in (takes[column] for column in columns):
        value = columns[each.name]
        if not each.batched:
            options[each.name] = _array([value], each, limits)[0]
        elif not isinstance(value, list):
            raise BadRequest(f"{each.name!r} must be a list, got {_kind(value)}")
        elif len(value) > limits.rows:
            raise BadRequest(f"{len(value):,} rows are too many for one request; at most {limits.rows:,}")
        else:
            inputs[each.name] = _array(value, each, limits)
    lengths = {len(column) for column in inputs.values()}
    if len(lengths) > 1:
        counts = ", ".join(f"{key} has {len(column)}" for key, column in inputs.items())
        raise BadRequest(f"the columns must be of one length: {counts}")
    return Request(name, inputs, options, lengths.pop(), by_rows)


def _array(values: list[Any], each: Input, limits: Limits) -> np.ndarray:
    convert = {"string": _string, "int32": _integer, "float32": _number}[each.dtype]
    converted = [convert(value, each.name, limits) for value in values]
    return np.array(converted, object if each.dtype == "string" else each.dtype)


def _string(value: Any, name: str, limits: Limits) -> bytes:
    is_bytes = isinstance(value, dict) and set(value) == {"b64"}
    if not is_bytes and not isinstance(value, str):
        raise BadRequest(f"{name!r} must hold strings, got {_kind(value)}")
    try:
        data = base64.b64decode(value["b64"], validate=True) if is_bytes else value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"{name!r} holds a string that is not Unicode: a lone surrogate") from None
    except (TypeError, ValueError):
        raise BadRequest(f'{name!r}: {{"b64": ...}} must hold base64') from None
    length = len(data if is_bytes else value)
    if length > limits.characters:
        raise BadRequest(f"{name!r} holds a string of {length:,} characters; at most {limits.characters:,}")
    return data


def _integer(value: Any, name: str, _: Limits) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise BadRequest(f"{name!r} must be a whole number of 32 bits, got {_kind(value)} {value!r:.40}")
    return value


def _number(value: Any, name: str, _: Limits) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 3.4e38:
        raise BadRequest(f"{name!r} must be a number of 32 bits, got {_kind(value)} {value!r:.40}")
    return float(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def answer(request: Request, outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The body of the response. What JSON cannot hold (an infinite score, where the beam held fewer) is null."""
    columns = {name: _plain(value) for name, value in outputs.items()}
    if not request.by_rows:
        return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _plain(value: np.ndarray) -> Any:
    if value.dtype == object:
        return _each(value.tolist(), lambda text: text.decode("utf-8", "replace"))
    if value.dtype == np.float32:  # as few digits as tell it from its neighbours
        return _each(value.tolist(), lambda x: float(str(np.float32(x))) if math.isfinite(x) else None)
    return value.tolist()


def _each(value: Any, function: Any) -> Any:
    return [_each(item, function) for item in value] if isinstance(value, list) else function(value)
