"""Programs of ours run one after the other, or several at a time on shares of the cores, their output in log files."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from t2t_repro.cli import launcher


def program(name: str, arguments: list[str]) -> None:
    """Runs one program with its output shown. ValueError where it fails: it has said why."""
    code = subprocess.call([sys.executable, "-m", f"t2t_repro.bin.{name}", *arguments], stdout=sys.stderr)
    if code:
        raise ValueError(f"{name.replace('_', '-')} ended with exit code {code}: see above")


def run(commands: dict[str, list[str]], jobs: int, directory: str) -> list[str]:
    """Runs every command, `jobs` at a time, and returns the names of those that failed.

    A command is the name of a program and its arguments; what it says goes to `directory`/NAME.log. SIGINT and SIGTERM
    are passed on, and when all have ended (t2t-trainer saves first) `launcher.Stopped` is raised.
    """
    os.makedirs(directory, exist_ok=True)
    waiting: queue.Queue[tuple[int, str]] = queue.Queue()
    for number, name in enumerate(commands, start=1):
        waiting.put((number, name))
    failed: list[str] = []
    running: dict[str, subprocess.Popen[Any]] = {}
    stopped: list[int] = []
    cores = sorted(os.sched_getaffinity(0))

    def work(slot: int) -> None:
        os.sched_setaffinity(0, cores[slot::jobs])  # of this thread, and so of what it starts
        while not stopped:
            try:
                number, name = waiting.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            launcher.report(f"{name}: started ({number} of {len(commands)})")
            code = one(name)
            minutes = (time.monotonic() - started) / 60
            if code and not stopped:
                failed.append(name)
            how = f"failed with exit code {code}, see {_log(directory, name)}" if code else "done"
            launcher.report(f"{name}: {'stopped' if code and stopped else how} after {minutes:.1f} minutes")

    def one(name: str) -> int:
        module, *arguments = commands[name]
        with open(_log(directory, name), "a", encoding="utf-8") as log:
            running[name] = subprocess.Popen(
                [sys.executable, "-m", f"t2t_repro.bin.{module}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C on the terminal comes through `passed_on` alone
            )
            if stopped:  # between the look at it and the start
                running[name].send_signal(stopped[-1])
            code = running[name].wait()
        del running[name]
        return code

    with _passed_on(running, stopped):
        threads = [threading.Thread(target=work, args=(slot,)) for slot in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=1)  # a signal is handled in between
    if stopped:
        raise launcher.Stopped("stopped; the same command continues", stopped[0])
    return failed


def _log(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.log")


@contextlib.contextmanager
def _passed_on(running: dict[str, subprocess.Popen[Any]], stopped: list[int]) -> Iterator[None]:
    """SIGINT and SIGTERM are noted in `stopped`, and sent to every process in `running`."""

    def pass_on(number: int, _: Any) -> None:
        stopped.append(number)
        for process in list(running.values()):
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
