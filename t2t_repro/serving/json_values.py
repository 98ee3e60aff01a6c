"""Values of JSON to arrays within limits, and back."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2t_repro.serving.model import Input


class BadRequest(ValueError):  # noqa: N818
    """An invalid request. The message contains the received and the expected value."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    rows: int = 1_024
    characters: int = 10_000  # of one string; bytes if it is sent in base64
    document_bytes: int = 200_000  # of all texts of a request with "documents"
    positions: int = 1 << 22  # beam_size x (bytes of the text + extra_length), summed over the rows
    values: int = 1 << 20  # numbers and strings in the response
    terms: int = 1_000  # of a glossary
    searched: int = 100_000  # bytes of all texts in which terms or tags are searched for


def json_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in the body of a request. Raises `BadRequest`."""
    try:
        message = json_value(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8") from None
    if not isinstance(message, dict):
        raise BadRequest(f"the body must be a JSON object, got {kind(message)}")
    return message


def json_value(text: str) -> Any:
    """Returns a value in JSON, without NaN, infinities and repeated keys. Raises `BadRequest`."""

    def no_constant(text: str) -> None:
        raise ValueError(f"{text} is not valid JSON")

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=_object)
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {str(error):.120}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadRequest(f"a JSON object has the key {key!r:.80} twice; give it once")
        found[key] = value
    return found


def array(values: list[Any], each: Input, limits: Limits) -> np.ndarray:
    """Returns the values of an input in its dtype, strings as bytes. Raises `BadRequest`."""
    convert = {"string": string, "int32": _integer, "float32": _number}[each.dtype]
    converted = [convert(value, each.name, limits) for value in values]
    return np.array(converted, object if each.dtype == "string" else each.dtype)


def string(value: Any, name: str, limits: Limits) -> bytes:
    """Returns a string of JSON, or {"b64": ...}, in UTF-8. Raises `BadRequest`, with the `name` of the input."""
    is_bytes = isinstance(value, dict) and set(value) == {"b64"}
    if not is_bytes and not isinstance(value, str):
        raise BadRequest(f"{name!r} must contain strings, got {kind(value)}")
    try:
        data = base64.b64decode(value["b64"], validate=True) if is_bytes else value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"{name!r} contains a string that is not valid Unicode: a lone surrogate") from None
    except (TypeError, ValueError):
        raise BadRequest(f'{name!r}: {{"b64": ...}} must contain base64') from None
    length = len(data if is_bytes else value)
    if length > limits.characters:
        raise BadRequest(f"{name!r} contains a string of {length:,} characters; at most {limits.characters:,}")
    return data


def _integer(value: Any, name: str, _: Limits) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise BadRequest(f"{name!r} must be a 32-bit integer, got {kind(value)} {value!r:.40}")
    return value


def _number(value: Any, name: str, _: Limits) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 3.4e38:
        raise BadRequest(f"{name!r} must be a 32-bit number, got {kind(value)} {value!r:.40}")
    return float(value)


def kind(value: Any) -> str:
    """Returns the JSON type of a value, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def plain(value: np.ndarray) -> Any:
    """Returns strings, floats, integers and None in lists, as `json.dumps` takes them."""
    if value.dtype == object:
        return _each(value.tolist(), lambda each: each.decode("utf-8", "replace") if isinstance(each, bytes) else each)
    if value.dtype == np.float32:
        return _shortest(value)
    return value.tolist()


def _each(value: Any, function: Any) -> Any:
    return [_each(item, function) for item in value] if isinstance(value, list) else function(value)


def _shortest(value: np.ndarray) -> Any:
    """Returns float32 as lists of Python floats: the same numbers in as few digits as possible, nine at most."""
    finite = np.isfinite(value)
    exact = np.where(finite, value, 0).astype(np.float64)
    size = np.floor(np.log10(np.abs(exact), out=np.zeros_like(exact), where=exact != 0)).astype(np.int64)
    found = exact
    for digits in (9, 8, 7, 6):  # nine digits identify every float32
        places = digits - 1 - size
        scale = 10.0 ** np.abs(places)
        rounded = np.where(places >= 0, np.round(exact * scale) / scale, np.round(exact / scale) * scale)
        found = np.where(rounded.astype(np.float32) == value, rounded, found)
    return found.tolist() if finite.all() else np.where(finite, found.astype(object), np.array(None, object)).tolist()
