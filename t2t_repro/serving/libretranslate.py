"""LibreTranslate's API: its requests as those of `protocol`, and the answers in its form.

    {"q": "a text", "source": "en", "target": "de"}                      -> {"translatedText": "..."}
    {"q": ["a text"], "source": "en", "target": "de", "alternatives": 2} -> {"translatedText": ["..."],
                                                                             "alternatives": [["...", "..."]]}

The body is JSON or a form. "alignments" and "confidence", true or false, are not part of LibreTranslate's API, and
neither are the options of `protocol.OPTIONS`. In a form they are JSON.

Texts have any number of sentences (`documents`). The format "html" is the option `markup`.

A server translates from one language to another. The source "auto" is that language, and nothing is detected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from babel import Locale

from t2t_repro.saved_model import ALIGNED_SIGNATURE, DEFAULT_SIGNATURE, N_BEST_SIGNATURE
from t2t_repro.serving import json_values, protocol
from t2t_repro.serving.json_values import BadRequest, Limits, kind
from t2t_repro.serving.model import MARKUP, ServedModel
from t2t_repro.text.translations import links_of

TRANSLATION = "translation"  # the name of the task whose models have this API
MOST_ALTERNATIVES = 63  # an export searches with at most 64 beams
MOST_FIELDS = 100  # of a form
MOST_HEADERS = 1_000  # bytes, of a field of a form
_REQUIRED = ("q", "source", "target")
_OWN = ("alignments", "confidence")
_KEYS = (*_REQUIRED, "format", "alternatives", *_OWN, *protocol.OPTIONS)
_IGNORED = ("api_key", "apiKey", "secret")  # clients send them to servers that need no key
_AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Wanted:
    """A parsed request: what the model computes, and what the answer contains."""

    request: protocol.Request
    is_list: bool  # whether "q" is a list
    alternatives: int
    alignments: bool
    confidence: bool
    assumed: str | None  # the source language, if the request leaves it open


def fields_of_form(body: bytes) -> dict[str, Any]:
    """Returns the fields of an URL-encoded form, as those of a JSON object. Raises `BadRequest`."""
    try:
        text = body.decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError:
        raise BadRequest("the form is not valid UTF-8") from None
    except ValueError:
        raise BadRequest(f"the form has too many fields; at most {MOST_FIELDS}") from None
    if text.lstrip().startswith("{"):
        raise BadRequest('the body is JSON; send it with "Content-Type: application/json"')
    return _fields(pairs)


def fields_of_multipart(body: bytes, content_type: str) -> dict[str, Any]:
    """Returns the fields of a form of `multipart/form-data` (RFC 7578). Raises `BadRequest`.

    `content_type` is the header, which has the boundary.
    """
    boundary = _headers(f"Content-Type: {content_type}\r\n".encode("utf-8", "replace")).get_boundary("")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("utf-8", "replace"), MOST_FIELDS + 1)
    if not boundary or not parts or not parts.pop().startswith(b"--"):
        raise BadRequest(f"the body is not a complete form of at most {MOST_FIELDS} fields")
    pairs = []
    for part in parts:
        start, _, value = part.partition(b"\r\n\r\n")
        headers = _headers(start.lstrip() + b"\r\n")
        try:
            name, filename = headers.get_param("name", "", "Content-Disposition"), headers.get_filename()
        except UnicodeError:
            raise BadRequest("a field of the form has a header of an unknown encoding") from None
        if not name or not isinstance(name, str):
            raise BadRequest("a field of the form has no name")
        if filename is not None:
            raise BadRequest(f"{name!r:.80} must be text, got a file")
        try:
            pairs.append((name, value.decode("utf-8")))
        except UnicodeDecodeError:
            raise BadRequest("the form is not valid UTF-8") from None
    return _fields(pairs)


def _headers(lines: bytes) -> Message:
    """Returns the headers of a part of a form."""
    if len(lines) > MOST_HEADERS:
        raise BadRequest(f"a field of the form has {len(lines):,} bytes of headers; at most {MOST_HEADERS:,}")
    return BytesHeaderParser().parsebytes(lines)


def _fields(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadRequest(f"the form has {key!r:.80} twice; send JSON for a list of texts")
        if key in _OWN or key in protocol.OPTIONS:
            try:
                found[key] = json_values.json_value(value)
            except BadRequest:
                raise BadRequest(f"{key!r} must be JSON without repeated keys, got {value!r:.40}") from None
        else:
            found[key] = value.replace("\r\n", "\n")  # a browser sends every line end as two characters
    return found


def parse(message: Mapping[str, Any], model: ServedModel, limits: Limits) -> Wanted:
    """Returns the request that the fields express. Raises `BadRequest`."""
    if model.task.name != TRANSLATION:
        raise BadRequest(f"this model is for {model.task.name}, and /translate is for {TRANSLATION}")
    protocol.must_be_keys({key: value for key, value in message.items() if key not in _IGNORED}, _KEYS)
    for key in _REQUIRED:
        if not message.get(key):
            raise BadRequest(f"missing {key!r}; expected {', '.join(_REQUIRED)}")
    _must_be_languages(message["source"], message["target"], model)
    text_format = message.get("format") or "text"
    if text_format not in ("text", "html"):
        raise BadRequest(f"the format must be 'text' or 'html', got {text_format!r:.40}")
    alternatives = _alternatives(message.get("alternatives", 0))
    for key in _OWN:
        if not isinstance(message.get(key, False), bool):
            raise BadRequest(f"{key!r} must be true or false, got {kind(message[key])}")
    wanted = {key: message.get(key, False) for key in _OWN}
    signature = _signature(alternatives, wanted, model)
    options = {key: message[key] for key in protocol.OPTIONS if key in message}
    if text_format == "html":
        options[MARKUP] = True
    if model.has_splitter:
        options.setdefault(protocol.DOCUMENTS, True)
    texts = message["q"] if isinstance(message["q"], list) else [message["q"]]
    for text in texts[: limits.rows]:  # more are refused below
        if not isinstance(text, str):
            raise BadRequest(f"'q' must be a string or a list of strings, got {kind(text)}")
        json_values.string(text, "q", protocol.limits_of(options, limits))
    columns = {"inputs": texts, **_search(alternatives, model)}
    form = {"signature_name": signature, "inputs": columns, **options}
    request = protocol.understood(form, model.signatures, limits)
    assumed = languages_of(model)[0] or None if message["source"] == _AUTO else None
    return Wanted(request, isinstance(message["q"], list), alternatives, assumed=assumed, **wanted)


def answer(wanted: Wanted, outputs: Mapping[str, np.ndarray], limits: Limits) -> dict[str, Any]:
    """Returns the body of the response. Raises `BadRequest` if it has too many values."""
    columns = protocol.answer(wanted.request, outputs, limits)["outputs"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if wanted.request.signature != DEFAULT_SIGNATURE:  # n outputs for each text, the best one first
        others = [_others(row["outputs"], row["scores"])[: wanted.alternatives] for row in rows]
        rows = [{name: values[0] for name, values in row.items()} for row in rows]
    found: dict[str, list[Any]] = {"translatedText": [row["outputs"] for row in rows]}
    if wanted.assumed is not None:
        found["detectedLanguage"] = [{"language": wanted.assumed, "confidence": 0.0} for _ in rows]
    if wanted.alternatives:
        found["alternatives"] = others
    if wanted.alignments:
        found["alignments"] = [[list(link) for link in links_of(row["alignments"])] for row in rows]
    if wanted.confidence:
        found["confidence"] = [row["confidences"] for row in rows]
        found["wordConfidence"] = [[float(each) for each in row["word_confidences"].split()] for row in rows]
        if "sentences" in columns:
            found["sentences"] = [row["sentences"] for row in rows]
    if "words" in columns:
        found |= {"sourceWords": [row["source_words"] for row in rows], "words": [row["words"] for row in rows]}
    return found if wanted.is_list else {name: values[0] for name, values in found.items()}


def languages(model: ServedModel) -> list[dict[str, Any]]:
    """Returns the languages of the model, as far as they are known, with the codes of those it translates to."""
    if model.task.name != TRANSLATION:
        return []
    source, target = languages_of(model)
    names = Locale("en").languages
    targets = {source: [target] if target else []}
    return [
        {"code": code, "name": str(names.get(code, code)), "targets": targets.get(code, [])}
        for code in dict.fromkeys((source, target))
        if code
    ]


def languages_of(model: ServedModel) -> tuple[str, str]:
    """Returns the codes of the languages of source and target, "" for one that is unknown."""
    problem = model.card.get("problem", {})
    return str(problem.get("source_language", "")), str(problem.get("target_language", ""))


def _must_be_languages(source: Any, target: Any, model: ServedModel) -> None:
    """Raises `BadRequest` unless the model translates between these languages. An unknown language may be any."""
    known = languages_of(model)
    if source in (_AUTO, known[0] or source) and target == (known[1] or target):
        if isinstance(source, str) and isinstance(target, str):
            return
    names = " to ".join(repr(code) if code else "any language" for code in known)
    raise BadRequest(f"this model translates from {names}, got {source!r:.40} to {target!r:.40}")


def _alternatives(value: Any) -> int:
    """Returns the number of alternatives, an integer or its decimal digits."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_ALTERNATIVES:
        got = f"{kind(value)} {json.dumps(value)[:40]}"
        raise BadRequest(f"'alternatives' must be an integer from 0 to {MOST_ALTERNATIVES}, got {got}")
    return value


def _signature(alternatives: int, wanted: Mapping[str, bool], model: ServedModel) -> str:
    """Returns the signature that computes what is wanted."""
    for key, is_wanted in wanted.items():
        if is_wanted and ALIGNED_SIGNATURE not in model.signatures:
            raise BadRequest(f"{key!r}: this model was exported without alignments; export the run again with them")
    if any(wanted.values()):
        return ALIGNED_SIGNATURE
    return N_BEST_SIGNATURE if alternatives else DEFAULT_SIGNATURE


def _search(alternatives: int, model: ServedModel) -> dict[str, int]:
    """Returns the options of a search for alternatives: it returns all beams, because some differ only in spaces."""
    takes = model.signatures.get(N_BEST_SIGNATURE, {})
    if not alternatives:
        return {}
    if not {"n_best", "beam_size"} <= set(takes):
        raise BadRequest("'alternatives': this model was exported without them; export the run again")
    width = max(alternatives + 1, int(takes["beam_size"].default or 1))
    return {"beam_size": width, "n_best": width}


def _others(texts: list[str], scores: list[float | None]) -> list[str]:
    """Returns the outputs that differ from the best and from one another in more than space, best first."""
    found: dict[str, str] = {}
    for text, score in zip(texts, scores, strict=True):
        if score is not None:
            found.setdefault(text.strip(), text)
    return [text for stripped, text in found.items() if stripped not in ("", texts[0].strip())]
