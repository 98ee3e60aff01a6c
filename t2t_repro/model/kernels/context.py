"""Values that hold inside a `with` block, in one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any


@contextlib.contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    """Gives `variable` the `value` inside the context."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
