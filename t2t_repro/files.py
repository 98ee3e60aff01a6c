"""Files that appear under their name only when whole, and hashes of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[str]:
    """Gives a temporary path to write to; what was written is named `path` at the end, or vanishes on an error."""
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def write_json(path: str, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all."""
    with written_whole(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in `path`. Raises ValueError, naming the file, where it holds none."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object, got {type(value).__name__}")
    return value


def sha256(path: str) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
