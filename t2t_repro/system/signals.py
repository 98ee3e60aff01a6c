"""Signals that ask a process to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed
# Seconds. A closed terminal sends SIGHUP twice within milliseconds: the shell and the kernel do. Service managers send
# SIGTERM to each process of a group, and programs forward it.
_ECHO = 0.2


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
    """Yields a list that receives the first of `SIGNALS`. A second one after `_ECHO` has its usual effect, except
    SIGHUP, which no person sends.

    A signal stays ignored if it is, as SIGHUP under nohup.
    """
    caught: list[int] = []
    caught_at: list[float] = []
    before = {number: signal.getsignal(number) for number in SIGNALS} if on_main_thread() else {}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def catch(number: int, _: Any) -> None:
        if not caught:
            caught.append(number)
            caught_at.append(time.monotonic())
        elif number != signal.SIGHUP and time.monotonic() - caught_at[0] > _ECHO:
            restore()
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        restore()
