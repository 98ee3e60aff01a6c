"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed


class Interrupted(Exception):  # noqa: N818 (not an error: the run was asked to stop, and saved a checkpoint)
    """A signal stopped training, after a checkpoint. `signal` is its number."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}; the same command continues")
        self.signal = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal,)


def on_main_thread() -> bool:
    """Returns whether this thread may set handlers of signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Yields a list that receives the first of `SIGNALS`. The second one has its usual effect.

    SIGHUP stays ignored if it is, as under nohup.
    """
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS} if on_main_thread() else {}
    if before.get(signal.SIGHUP) == signal.SIG_IGN:
        del before[signal.SIGHUP]

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def catch(number: int, _: Any) -> None:
        caught.append(number)
        restore()

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        restore()
