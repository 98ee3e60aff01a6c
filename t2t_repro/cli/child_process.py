"""A program that continues in a child process, so that it can report that the child was killed for lack of memory."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from t2t_repro.system.out_of_memory import REMEDY

_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def continue_in_child(value: int) -> tuple[int, Callable[[int], NoReturn]]:
    """Forks. The child continues; the parent waits and exits with the child's exit code.

    SIGTERM ends both. Call it before TensorFlow is loaded. Returns, in the child, `value` and a function that ends the
    child and starts another one with a new value. Raises ValueError if the child was killed.
    """
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until the parent can forward them
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(reader)
            return value, functools.partial(_end_with, writer)
        before = {  # Ctrl-C also reaches the child, which reports it
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
            signal.SIGTERM: signal.signal(signal.SIGTERM, functools.partial(_forward, child)),
        }
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
        answer = os.read(reader, 32)
        os.close(reader)
        _, status = os.waitpid(child, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGKILL, -signal.SIGABRT):
            ended = f"the process was killed by {signal.Signals(-code).name}, as happens when memory runs out"
            raise ValueError(f"does not fit: {ended}; {REMEDY}")
        if code or not answer:
            sys.exit(128 - code if code < 0 else code)
        value = int(answer)


def _forward(child: int, number: int, _: Any) -> None:
    os.kill(child, number)


def _end_with(writer: int, value: int) -> NoReturn:
    os.write(writer, str(value).encode("ascii"))
    sys.exit(0)
