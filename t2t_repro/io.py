"""Files that appear under their name only when whole, and hashes of them."""

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
    """Gives a temporary path to write to; what was written is named `path` at the end, or vanishes on an error.

    Raises OSError that names `path`, which Python's own for a full disk does not.
    """
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if os.path.isdir(path):  # which `replace` would tell of the temporary name
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # not there, or not to be removed
            os.remove(temporary)
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def nearest_folder(path: str) -> str:
    """`path`, or the nearest folder above it that is there."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def bytes_in(directory: str) -> int:
    """The bytes of the files in a directory, without those below it; 0 if it is not there."""
    if not os.path.isdir(directory):
        return 0
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def sync(path: str) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all. A file name that is no Unicode is escaped, as JSON can."""
    with (
        atomic_write(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file,
    ):
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


def append_line(path: str, line: str) -> None:
    """Adds a line to a file of lines. A last one that was cut off, by a kill or a full disk, is taken away first."""
    try:
        with open(path, "ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:  # of a full disk, Python does not say where
        raise OSError(error.errno, error.strerror, path) from None


def sha256(path: str) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
