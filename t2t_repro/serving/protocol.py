"""TF Serving's REST API: JSON to arrays and back.

    {"instances": ["a text", "another"]}                      rows     -> {"predictions": [{...}, {...}]}
    {"instances": [{"inputs": "a text", "beam_size": 4}]}     rows
    {"inputs": {"inputs": ["a text"], "beam_size": 4}}        columns  -> {"outputs": {"outputs": [...], ...}}
    {"inputs": ["a cat"], "glossary": {"cat": ["Katze", "Kater"], "Acme": null}}
    {"inputs": ["A cat. Two cats.\\n\\nA dog."], "documents": true}
    {"inputs": ["a <b>cat</b>"], "markup": true}

"glossary", "documents" and "markup" are not part of TF Serving's API. "glossary" has terms that translations must
contain, each with its forms, or null if it stays as it is (`t2t_repro.text.glossary`). With "documents", which is true
or the language of the texts, texts have any number of sentences (`serving.documents`). With "markup", translations have
the tags, placeholders, addresses and entities of their texts (`t2t_repro.text.markup`). All three work together.

"signature_name" selects a signature other than serving_default. A string that is not valid UTF-8 is written
{"b64": "..."}. Every request that TF Serving's REST API accepts has the same meaning here (its rules are in
tensorflow_serving/util/json_tensor.cc), except for unknown and repeated keys, NaN, infinities and fields in the
address, which are refused. Inputs with a default are optional here, but not in TF Serving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t2t_repro.saved_model import ALIGNED_SIGNATURE, DEFAULT_SIGNATURE, N_BEST_SIGNATURE, WITH_TERMS
from t2t_repro.serving.json_values import BadRequest, Limits, array, json_object, kind, plain
from t2t_repro.serving.model import GLOSSARY, MARKUP, Input
from t2t_repro.text.glossary import Glossary

DOCUMENTS = "documents"
_SEARCHES = (DEFAULT_SIGNATURE, N_BEST_SIGNATURE, ALIGNED_SIGNATURE)  # signatures that take the options below


Signatures = Mapping[str, Mapping[str, Input]]  # the inputs of each signature of a model


@dataclass(frozen=True, eq=False)
class Request:
    """A parsed request. `inputs` have one value per row, `options` one value for all rows.

    `positions` [rows] is beam_size x (bytes of the text + extra_length). The time of a search is proportional to beams
    and tokens, and a token has at least one byte.

    `language` is None unless the texts are documents: then it is their language, and "" means that of the model.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    options: dict[str, np.ndarray]
    rows: int
    by_rows: bool
    positions: np.ndarray
    language: str | None = None


def parse(body: bytes, signatures: Signatures, limits: Limits) -> Request:
    """Parses the body of a request. Raises `BadRequest`."""
    return understood(json_object(body), signatures, limits)


def understood(message: Mapping[str, Any], signatures: Signatures, limits: Limits) -> Request:
    """Returns the request that the JSON object `message` expresses. Raises `BadRequest`."""
    must_be_keys(message, ("signature_name", "instances", "inputs", *OPTIONS))
    name = message.get("signature_name", "")
    name = DEFAULT_SIGNATURE if name == "" else name
    if not isinstance(name, str) or name not in signatures:
        raise BadRequest(f"unknown signature {name!r:.80}; this model has {', '.join(signatures)}")
    takes = signatures[name]
    limits = limits_of(message, limits)
    by_rows = "instances" in message
    if by_rows == ("inputs" in message):
        raise BadRequest('give either "instances", a list of rows, or "inputs", columns')
    columns = _columns_of_rows(message["instances"], takes) if by_rows else _columns(message["inputs"], takes)
    missing = [each.name for each in takes.values() if each.name not in columns and each.default is None]
    if missing:
        raise BadRequest(f"missing input {missing[0]!r}; signature {name} takes {', '.join(takes)}")
    request = _request(name, takes, columns, by_rows, limits, defaults(signatures))
    for key, with_option in OPTIONS.items():
        if key in message:
            request = with_option(request, message[key], signatures, limits)
    return request


def must_be_keys(message: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises `BadRequest` for a key of `message` that is not `known`."""
    unknown = [key for key in message if key not in known]
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r:.80}; expected {', '.join(known)}")


def defaults(signatures: Signatures) -> dict[str, float | None]:
    """Returns the default of each input that a signature has."""
    return {each.name: each.default for inputs in signatures.values() for each in inputs.values()}


def limits_of(message: Mapping[str, Any], limits: Limits) -> Limits:
    """Returns the limits of a request: a document has more characters than a sentence."""
    if message.get(DOCUMENTS, False) is False:
        return limits
    return replace(limits, characters=limits.document_bytes)


def _with_documents(request: Request, value: Any, signatures: Signatures, limits: Limits) -> Request:
    """Returns the request with the language of its documents. `value` is true, false or a language."""
    if not isinstance(value, bool | str) or value == "":
        raise BadRequest(f'"documents" must be true, false or a language such as "en", got {kind(value)}')
    if value is False:
        return request
    _must_search(request, "documents")
    size = sum(map(len, request.inputs["inputs"]))
    if size > limits.document_bytes:
        raise BadRequest(f"all documents of a request have {size:,} bytes; at most {limits.document_bytes:,}")
    return replace(request, language="" if value is True else value)


def _with_glossary(request: Request, terms: Any, signatures: Signatures, limits: Limits) -> Request:
    """Returns the request with the glossary as an option. It costs twice as much: texts may be translated twice."""
    if WITH_TERMS not in signatures:
        raise BadRequest("this model was exported without glossaries; export the run again with them")
    _must_search(request, "glossary")
    if not isinstance(terms, dict):
        raise BadRequest(f'"glossary" must be an object of terms, got {kind(terms)}')
    if len(terms) > limits.terms:
        raise BadRequest(f'"glossary" has {len(terms):,} terms; at most {limits.terms:,}')
    _must_be_short(request, "a glossary", limits)
    try:
        glossary = Glossary(terms)
    except ValueError as error:
        raise BadRequest(f'"glossary": {error}') from None
    options = request.options | {GLOSSARY: np.array(glossary, object)}
    return replace(request, options=options, positions=2 * request.positions)


def _with_markup(request: Request, markup: Any, signatures: Signatures, limits: Limits) -> Request:
    """Returns the request with the option markup, unless it is false."""
    if not isinstance(markup, bool):
        raise BadRequest(f'"markup" must be true or false, got {kind(markup)}')
    if not markup:
        return request
    if ALIGNED_SIGNATURE not in signatures:
        raise BadRequest("this model was exported without alignments; export the run again with them")
    _must_search(request, "markup")
    _must_be_short(request, "markup", limits)
    return replace(request, options=request.options | {MARKUP: np.array(True)})


def _must_search(request: Request, key: str) -> None:
    if request.signature not in _SEARCHES:
        raise BadRequest(f'signature {request.signature} takes no "{key}"; expected {" or ".join(_SEARCHES)}')


def _must_be_short(request: Request, what: str, limits: Limits) -> None:
    searched = sum(map(len, request.inputs["inputs"]))
    if searched > limits.searched:
        raise BadRequest(f"all texts of a request with {what} have {searched:,} bytes; at most {limits.searched:,}")


# Keys of a request that are not part of TF Serving's API, and what each does to the request. Requests in the form of
# `libretranslate` have them too.
OPTIONS: dict[str, Callable[[Request, Any, Signatures, Limits], Request]] = {
    DOCUMENTS: _with_documents,
    GLOSSARY: _with_glossary,
    MARKUP: _with_markup,
}


def _columns_of_rows(instances: Any, takes: Mapping[str, Input]) -> dict[str, Any]:
    """Returns rows as columns. A row is an object, or the value of the only required input."""
    if not isinstance(instances, list):
        raise BadRequest(f'"instances" must be a list, got {kind(instances)}')
    if not instances:
        raise BadRequest('"instances" is empty; give at least one row')
    if not _is_row(instances[0]):
        return {_only(takes, '"instances" must contain objects with', instances[0]): _plain_rows(instances)}
    names = list(instances[0])
    for number, row in enumerate(instances):
        if not _is_row(row):
            raise BadRequest(f'row {number} of "instances" must be an object like the first, got {kind(row)}')
        if set(row) != set(names):
            raise BadRequest(f'row {number} of "instances" has different inputs than the first')
    _must_be_known(names, takes)
    for name in names:
        if not takes[name].batched and not takes[name].either:
            raise BadRequest(f'{name!r} is one value for all rows; give it in the column form, "inputs"')
    return {name: [row[name] for row in instances] for name in names}


def _plain_rows(instances: list[Any]) -> list[Any]:
    for number, row in enumerate(instances):
        if _is_row(row):
            raise BadRequest(f'row {number} of "instances" must be a value like the first, got an object')
    return instances


def _only(takes: Mapping[str, Input], message: str, value: Any) -> str:
    """Returns the name of the only required input."""
    required = [each.name for each in takes.values() if each.default is None]
    if len(required) != 1:
        raise BadRequest(f"{message} {', '.join(required)}, got {kind(value)}")
    return required[0]


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and set(value) != {"b64"}


def _columns(inputs: Any, takes: Mapping[str, Input]) -> dict[str, Any]:
    """Returns columns by name. A list alone is the column of the only input."""
    if not _is_row(inputs):
        inputs = {_only(takes, '"inputs" must be an object with', inputs): inputs}
    _must_be_known(list(inputs), takes)
    return dict(inputs)


def _must_be_known(names: list[str], takes: Mapping[str, Input]) -> None:
    unknown = [name for name in names if name not in takes]
    if unknown:
        raise BadRequest(f"unknown input {unknown[0]!r:.80}; the signature takes {', '.join(takes)}")


def _request(
    name: str,
    takes: Mapping[str, Input],
    columns: dict[str, Any],
    by_rows: bool,
    limits: Limits,
    otherwise: Mapping[str, float | None],
) -> Request:
    inputs, options = {}, {}
    for each in (takes[column] for column in columns):
        value = columns[each.name]
        if each.either and isinstance(value, list) and len(value) == 1:
            (value,) = value
        if not each.batched and not (each.either and isinstance(value, list)):
            options[each.name] = array([value], each, limits)[0]
        elif not isinstance(value, list):
            raise BadRequest(f"{each.name!r} must be a list, got {kind(value)}")
        elif len(value) > limits.rows:
            raise BadRequest(f"too many rows in one request: {len(value):,}; at most {limits.rows:,}")
        else:
            inputs[each.name] = array(value, each, limits)
    lengths = {len(column) for column in inputs.values()}
    if len(lengths) > 1:
        counts = ", ".join(f"{key} has {len(column)}" for key, column in inputs.items())
        raise BadRequest(f"the columns must have equal length: {counts}")
    rows = lengths.pop()
    positions = checked_positions(rows, takes, {**otherwise, **inputs, **options}, limits)
    for each in takes.values():  # rows with equal options can share a batch with other requests
        if each.either and each.name in inputs and rows and (inputs[each.name] == inputs[each.name][0]).all():
            options[each.name] = inputs.pop(each.name)[0]
    return Request(name, inputs, options, rows, by_rows, positions)


def checked_positions(rows: int, takes: Mapping[str, Input], values: Mapping[str, Any], limits: Limits) -> np.ndarray:
    """Returns `Request.positions`, computed from inputs, options and defaults. Raises `BadRequest` for too many."""
    texts = [values[each.name] for each in takes.values() if each.dtype == "string"]
    lengths = np.array([sum(map(len, row)) for row in zip(*texts, strict=True)], np.int64)
    beam_size, extra_length = (
        np.asarray(otherwise if values.get(name) is None else values[name], np.int64)
        for name, otherwise in (("beam_size", 1), ("extra_length", 0))
    )
    # no row lowers the sum of the others: the graph refuses a negative option only when its slice runs
    positions = np.maximum(np.broadcast_to(beam_size * (lengths + extra_length), rows), 0)
    total = sum(positions.tolist())  # without overflow
    if total > limits.positions:
        raise BadRequest(
            f"beam_size x (bytes of the text + extra_length) of all {rows:,} rows is {total:,}; at most "
            f"{limits.positions:,}: send fewer rows, or lower beam_size or extra_length"
        )
    return positions


def answer(request: Request, outputs: Mapping[str, np.ndarray], limits: Limits) -> dict[str, Any]:
    """Returns the body of the response.

    Numbers that JSON lacks are null, such as the score -inf of a translation that the beam did not find. Raises
    `BadRequest` if the response has too many values.
    """
    values = sum(value.size for value in outputs.values())
    if values > limits.values:
        raise BadRequest(f"the response has {values:,} values; at most {limits.values:,}: send fewer or shorter texts")
    columns = {name: plain(value) for name, value in outputs.items()}
    if not request.by_rows:
        return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
