"""Faults for the programs: the fault, the program that meets it, and the required message.

`tests/test_reliability.py` tries them, and `docs/reliability.md` is the table of what happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gzip
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN, DATA = "RUN", "data"
SHARD = "data/translate_files/train-00000-of-00001.tfrecord"
DATASET, VOCABULARY = "data/translate_files/dataset.json", "data/translate_files/vocabulary.model"
INDEX, WEIGHTS = (f"RUN/checkpoints/ckpt-4.{end}" for end in ("index", "data-00000-of-00001"))
LIST = "RUN/checkpoints/checkpoint"
SMALL = "num_layers=1 d_model=16 d_ff=32 num_heads=2 d_k=8 d_v=8 batch_tokens=512 max_positions=512".split()
SMALL.append("checkpoint_steps=2")
PREPARE = ("t2t-datagen", "--problem=translate_files", "--data_dir=data")
TEXT = ("--train_source=train.en", "--train_target=train.de")
TREES = ("t2t-datagen", "--problem=parse_files", "--data_dir=data", "--train_trees=train.mrg")
PARSED = ("t2t-datagen", "--problem=parse_wsj_semisupervised", "--data_dir=data", "--raw_dir=ptb",
          "--train_trees=parsed.mrg")  # fmt: skip
TRAIN = ("t2t-trainer", "--problem=translate_files", "--hparams=tiny", "--vocab_size=300", *TEXT, "--train_steps=4",
         *(f"--override={each}" for each in SMALL), "--data_dir=data", "--output_dir=RUN",
         "--precision=float32")  # fmt: skip
DECODE = ("t2t-decoder", "--output_dir=RUN")
EVALUATE = ("t2t-eval", "--output_dir=RUN", "--data_dir=data")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. `arrange` makes it so, in a folder that holds what `needs` names; then `command` is run
    there, on `stdin`, and must fail with `code` and one line that has `says` in it.

    `command` is a program with its flags, or, where a shell has a part in it, one line of bash.
    """

    what: str
    command: tuple[str, ...] | str
    says: str
    arrange: Callable[[], Any] = lambda: None
    needs: str = ""  # of "text", "data", "run": what lies in the folder before
    code: int = 1
    stdin: bytes = b""
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    leaves: tuple[str, ...] = ()  # what may lie there afterwards that did not before, beside locks and accounts
    slow: bool = False

    @property
    def program(self) -> str:
        words = self.command.split() if isinstance(self.command, str) else self.command
        return next(word for word in words if word.startswith("t2t-"))


@dataclass(frozen=True)
class Area:
    """The faults of one kind of input."""

    title: str
    faults: list[Fault] = field(default_factory=list)


# Faults.


def text(path: str, content: str | bytes) -> Callable[[], None]:
    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def zipped(path: str, content: bytes, cut: int | None = None, flipped: int | None = None) -> Callable[[], None]:
    data = bytearray(gzip.compress(content, mtime=0))
    if flipped is not None:
        data[flipped] ^= 0x40
    return text(path, bytes(data[:cut]))


def cut(path: str, at: int) -> Callable[[], None]:
    """Cuts `path` to `at` bytes, or by -`at` bytes if it is negative."""
    return lambda: os.truncate(path, at if at >= 0 else os.path.getsize(path) + at)


def fewer_lines(path: str) -> Callable[[], None]:
    """Removes the last line."""
    return lambda: Path(path).write_bytes(b"".join(Path(path).read_bytes().splitlines(keepends=True)[:-1]))


def flip(path: str, at: int) -> Callable[[], None]:
    """Flips one bit of `path`."""

    def write() -> None:
        data = bytearray(Path(path).read_bytes())
        data[at] ^= 0x04
        Path(path).write_bytes(data)

    return write


def gone(path: str) -> Callable[[], None]:
    return lambda: os.remove(path)


def folder(path: str) -> Callable[[], None]:
    """Replaces the file by a directory."""

    def make() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        os.makedirs(path)

    return make


def loop(path: str) -> Callable[[], None]:
    """Replaces the file by a symbolic link to itself."""
    return lambda: os.symlink(os.path.basename(path), path)


def edited(path: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[], None]:
    """Changes a JSON file."""

    def write() -> None:
        record = json.loads(Path(path).read_text("utf-8"))
        change(record)
        Path(path).write_text(json.dumps(record), "utf-8")

    return write


def copied(path: str, other: str) -> Callable[[], None]:
    return lambda: shutil.copyfile(path, other)


def locked_up(path: str, mode: int = 0o555) -> Callable[[], None]:
    return lambda: os.chmod(path, mode)


def both(*steps: Callable[[], Any]) -> Callable[[], None]:
    def every() -> None:
        for step in steps:
            step()

    return every


# Environments of a program.


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Makes file permissions apply to root too."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    before = (ctypes.c_uint32 * 6)()
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH are no longer effective
    if libc.capset(header, less):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        libc.capset(header, before)


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Limits files to `size` bytes: like a full disk, except for the name of the error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def memory_up_to(size: int) -> Iterator[None]:
    """Limits the memory of the process to `size` bytes more than it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Locks the run as another trainer does."""
    from filelock import FileLock

    with FileLock("RUN/.lock"):
        yield


full_disk = functools.partial(files_up_to, 4_000)
little_memory = functools.partial(memory_up_to, 1 << 28)
