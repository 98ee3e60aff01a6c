"""The page at /: a form for text, in one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from typing import Any

from t2t_repro.saved_model import DEFAULT_SIGNATURE
from t2t_repro.serving.model import ServedModel

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


def render(model: ServedModel, name: str) -> str:
    """Returns the page for a model: the description from its model card, and the address that receives the text."""
    problem: dict[str, Any] = model.card.get("problem", {})
    signature = model.task.signature
    values = {
        "NAME": name,
        "VERSION": str(model.version),
        "TITLE": str(problem.get("name", name)),
        "ABOUT": str(problem.get("description", "")),
        "HINT": model.task.page_hint,
        "ACTION": model.task.page_action,
        "SIGNATURE": signature if signature in model.signatures else DEFAULT_SIGNATURE,
        "SOURCE_LANGUAGE": str(problem.get("source_language", "")),
        "TARGET_LANGUAGE": str(problem.get("target_language", "")),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: html.escape(values[match[1]]), _TEMPLATE)
