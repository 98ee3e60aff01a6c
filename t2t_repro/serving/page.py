"""The page at /: a form for text, in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Iterator
from typing import Any

from babel import Locale

from t2t_repro.saved_model import ALIGNED_SIGNATURE, DEFAULT_SIGNATURE, N_BEST_SIGNATURE, WITH_TERMS
from t2t_repro.serving.libretranslate import TRANSLATION
from t2t_repro.serving.model import ServedModel

ALTERNATIVES = 3  # outputs per line, the best one included
_TEMPLATE = (importlib.resources.files(__package__ or "") / "page.html").read_text("utf-8")


def _hash(tag: str) -> str:
    """Returns the hash by which the policy allows the inline script or style."""
    found = re.search(f"<{tag}>(.*?)</{tag}>", _TEMPLATE, re.DOTALL)
    digest = hashlib.sha256((found[1] if found else "").encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render(model: ServedModel, name: str, example: str = "") -> str:
    """Returns the page for a model: what its model card says about it, and the address that receives the text.

    `example` replaces the example of the model's problem. With neither, the page has none.
    """
    problem: dict[str, Any] = model.card.get("problem", {})
    signature, alternatives = signature_of(model)
    values = {
        "NAME": name,
        "VERSION": str(model.version),
        "TITLE": _title(model, problem, name),
        "ABOUT": _about(problem, model.card.get("hparams", {})),
        "HINT": model.task.page_hint,
        "ACTION": model.task.page_action,
        "RESULT": model.task.page_result,
        "SIGNATURE": signature,
        "ALTERNATIVES": str(alternatives),
        "OPTIONS": " ".join(_options(model)),
        "EXAMPLE": example or str(problem.get("example", "")),
        "SOURCE_LANGUAGE": str(problem.get("source_language", "")),
        "TARGET_LANGUAGE": str(problem.get("target_language", "")),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: html.escape(values[match[1]]), _TEMPLATE)


def signature_of(model: ServedModel) -> tuple[str, int]:
    """Returns the signature for the page, and the number of outputs to request per line; 1 if it has no such option.

    Only the best output of a parser is made a tree, so a parser has no alternatives.
    """
    best = model.task.signature
    several = ALIGNED_SIGNATURE if ALIGNED_SIGNATURE in model.signatures else N_BEST_SIGNATURE
    takes = model.signatures.get(several, {}) if best == DEFAULT_SIGNATURE else {}
    width = takes["beam_size"].default if {"n_best", "beam_size"} <= set(takes) else None
    number = min(ALTERNATIVES, int(width or 1))
    if number > 1 or several == ALIGNED_SIGNATURE:
        return several, number
    return (best if best in model.signatures else DEFAULT_SIGNATURE), 1


def _options(model: ServedModel) -> Iterator[str]:
    """Yields the ids of the parts of the page that the model has options for."""
    if WITH_TERMS in model.signatures:
        yield "terms"
    if model.task.name == TRANSLATION:
        if ALIGNED_SIGNATURE in model.signatures:
            yield "markup"
        if model.has_splitter:
            yield "documents"


def _about(problem: dict[str, Any], hparams: dict[str, Any]) -> str:
    """Returns what the model was trained on, as far as its card says."""
    names = [str(each.get("name", "")) for each in (problem, hparams)]
    return "Trained on problem {} with hyperparameter set {}.".format(*names) if all(names) else ""


def _title(model: ServedModel, problem: dict[str, Any], name: str) -> str:
    """Returns "Translate English to German", as far as the languages are known."""
    names = Locale("en").languages
    languages = [str(problem.get(side, "")) for side in ("source_language", "target_language")]
    known = [str(names.get(code, code)) for code in languages if code]
    return f"{model.task.page_action} {' to '.join(known) or f'with {name}'}"
