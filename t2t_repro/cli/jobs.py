"""Runs programs of this project, one after another or in parallel on disjoint cores, with output in log files."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t2t_repro.cli import launcher
from t2t_repro.system.signals import SIGNALS


def program(name: str, arguments: list[str]) -> None:
    """Runs one program and shows its output. Signals that ask to stop are forwarded, as in `run`.

    Raises ValueError if it fails; it has then printed why. Raises `launcher.Stopped` after a signal, once it has ended.
    """
    running: dict[str, subprocess.Popen[Any]] = {}
    stopped: list[int] = []
    with _forward_signals(running, stopped):
        code = _exit_code(name, [name, *arguments], running, stopped, stdout=sys.stderr)
    if stopped:
        raise launcher.Stopped("stopped; the same command continues", stopped[0])
    if code:
        raise ValueError(f"{name.replace('_', '-')} failed with exit code {code}: see above")


def run(commands: dict[str, list[str]], jobs: int, directory: str) -> list[str]:
    """Runs every command, `jobs` at a time, and returns the names of those that failed.

    A command is the name of a program and its arguments. Its output goes to `directory`/NAME.log. Signals that ask to
    stop are forwarded. `launcher.Stopped` is raised once all programs have ended (t2t-trainer saves first).
    """
    os.makedirs(directory, exist_ok=True)
    failed: list[str] = []
    running: dict[str, subprocess.Popen[Any]] = {}
    stopped: list[int] = []
    cores, slots = sorted(os.sched_getaffinity(0)), itertools.count()

    def take_cores() -> None:
        os.sched_setaffinity(0, cores[next(slots) :: jobs])  # for this thread and the processes it starts

    def work(number: int, name: str) -> None:
        if stopped:
            return
        path, started = os.path.join(directory, f"{name}.log"), time.monotonic()
        launcher.report(f"{name}: started ({number} of {len(commands)})")
        with open(path, "a", encoding="utf-8") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            code = _exit_code(name, commands[name], running, stopped, **streams)
        minutes = (time.monotonic() - started) / 60
        if code and not stopped:
            failed.append(name)
        how = f"failed with exit code {code}, see {path}" if code else "done"
        launcher.report(f"{name}: {'stopped' if code and stopped else how} after {minutes:.1f} minutes")

    with _forward_signals(running, stopped), ThreadPoolExecutor(jobs, initializer=take_cores) as threads:
        list(threads.map(work, itertools.count(1), commands))
    if stopped:
        raise launcher.Stopped("stopped; the same command continues", stopped[0])
    return failed


def _exit_code(
    name: str, command: list[str], running: dict[str, subprocess.Popen[Any]], stopped: list[int], **streams: Any
) -> int:
    """Runs a program, in `running` under `name`, and returns its exit code."""
    module, *arguments = command
    running[name] = subprocess.Popen(
        [sys.executable, "-P", "-m", f"t2t_repro.bin.{module}", *arguments],  # -P: no modules of the working directory
        start_new_session=True,  # Ctrl-C reaches it only through `_forward_signals`
        **streams,
    )
    if stopped:  # before it was in `running`
        running[name].send_signal(stopped[-1])
    code = running[name].wait()
    del running[name]
    return code


@contextlib.contextmanager
def _forward_signals(running: dict[str, subprocess.Popen[Any]], stopped: list[int]) -> Iterator[None]:
    """Records signals that ask to stop in `stopped`, and forwards them to every process in `running`."""

    def forward(number: int, _: Any) -> None:
        stopped.append(number)
        for process in list(running.values()):
            process.send_signal(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as SIGHUP under nohup
            signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
