"""Atomic writes, JSON files and file hashes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[str]:
    """Yields a temporary path. The file written there is renamed to `path` on success and removed on an error.

    Raises OSError that names `path`, unlike Python's own error for a full disk.
    """
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if os.path.isdir(path):  # the error of `replace` would name the temporary file
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # missing, or cannot be removed
            os.remove(temporary)
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def nearest_folder(path: str) -> str:
    """Returns `path`, or the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def bytes_in(directory: str) -> int:
    """Returns the total bytes of the files in a directory, without subdirectories; 0 if it does not exist."""
    if not os.path.isdir(directory):
        return 0
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def sync(path: str) -> None:
    """Waits until the content of a file, or the file names of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. File names that are not Unicode are escaped."""
    with (
        atomic_write(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path: str) -> dict[str, Any]:
    """Reads the JSON object in `path`. Raises ValueError, naming the file, if it does not contain one."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object, got {type(value).__name__}")
    return value


def read_json_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines. Raises ValueError, with the number of the line, for anything else.

    An incomplete last line, left by a kill or a full disk, is ignored.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield dict(json.loads(line))
            except (ValueError, TypeError, RecursionError):
                if line.endswith(b"\n"):
                    raise ValueError(f"{path} is damaged: line {number} is not a JSON object") from None


def append_line(path: str, line: str) -> None:
    """Appends a line to a file. First removes an incomplete last line, left by a kill or a full disk."""
    try:
        with open(path, "ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:  # for a full disk, Python does not name the file
        raise OSError(error.errno, error.strerror, path) from None


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
