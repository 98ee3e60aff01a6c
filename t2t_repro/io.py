"""Atomic writes, JSON files, records in them, and file hashes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[str]:
    """Yields a temporary path. The file written there is renamed to `path` on success and removed on an error.

    A symbolic link is replaced too: give `target_of` it for output of the user.

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


def target_of(path: str) -> str:
    """Returns the path of the file that a symbolic link names, and other paths unchanged."""
    return os.path.realpath(path) if os.path.islink(path) else path


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


def sync_all(directory: str) -> None:
    """Waits until everything in a folder and its subfolders is on disk."""
    for folder, _, names in os.walk(directory):
        for name in (*names, ""):
            sync(os.path.join(folder, name))


@contextlib.contextmanager
def without_wildcards(path: str) -> Iterator[str]:
    """Yields another name of `path` if its folder has wildcards: TensorFlow takes a path of checkpoints as a pattern.

    So it does not find the one in `run[2]/checkpoints`. The other name is valid in this context and process only.
    """
    folder, name = os.path.split(path)
    if not set("*?[\\") & set(folder):
        yield path
        return
    descriptor = os.open(folder, os.O_PATH)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def write_json(path: str, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. File names that are not Unicode are escaped."""
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
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


class JsonRecord:
    """Base of the dataclasses that files store as JSON objects: the fields are the keys, in their order.

    A field that is None is left out. A file written before a field existed gets its default.
    """

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `from_json` reads."""
        return {name: to_json(value) for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, saved: Any, name: str = "the record") -> Self:
        """Reads an object, which errors call `name`. Ignores unknown keys.

        Raises KeyError for a missing field, and TypeError or AttributeError for a value of another type.
        """
        if not isinstance(saved, dict):
            raise TypeError(f"{name} must be an object, got {saved!r}")
        kinds, found = typing.get_type_hints(cls), {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            is_required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            if is_required or each.name in saved:
                found[each.name] = _as_type(each.name, kinds[each.name], saved[each.name])
        return cls(**found)


def with_fields(kind: type[T], saved: dict[str, Any]) -> T:
    """Returns the dataclass `kind` with the fields that a file has.

    Raises TypeError for an unknown one: the message of Python differs between its versions.
    """
    if unknown := saved.keys() - {each.name for each in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        raise TypeError(f"this version knows no field {min(unknown)!r} of {kind.__name__}; a later one may")
    return kind(**saved)


def to_json(value: Any) -> Any:
    """Returns records and their containers as values for JSON."""
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, dict):
        return {name: to_json(part) for name, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list | tuple) else value


_IN_WORDS = {int: "an integer", float: "a number", str: "text"}


def _as_type(name: str, kind: Any, value: Any) -> Any:
    """Returns a value from JSON as the type of the field `name`. Raises TypeError or AttributeError for others."""
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if value is None else _as_type(name, parts[0], value)
    if origin in (list, tuple):
        return origin(_as_type(name, parts[0], part) for part in value)
    if origin is Counter:  # JSON has its keys as text
        return Counter({parts[0](key): count for key, count in value.items()})
    if origin is dict:
        return {key: _as_type(name, parts[1], part) for key, part in value.items()}
    if isinstance(kind, type) and issubclass(kind, JsonRecord):
        return kind.from_json(value, name)
    if kind in _IN_WORDS and not isinstance(value, int | float if kind is float else kind):
        raise TypeError(f"{name} must be {_IN_WORDS[kind]}, got {value!r}")
    return value


def read_json_lines(path: str, constants: Callable[[str], Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines. Raises ValueError, with the number of the line, for anything else.

    An incomplete last line, left by a kill or a full disk, is ignored. `constants` gives the values of NaN, Infinity
    and -Infinity, by default floats.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield dict(json.loads(line, parse_constant=constants))
            except (ValueError, TypeError, RecursionError):
                if line.endswith(b"\n"):
                    raise ValueError(f"{path} is damaged: line {number} is not a JSON object") from None


def append_line(path: str, line: str) -> None:
    """Appends a line to a file. First removes an incomplete last line, left by a kill or a full disk."""
    try:
        with open(path, "ab+") as file:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # another process may have written half of a line
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
