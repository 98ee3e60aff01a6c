"""Runs tasks in a child process, so that the death of the process (a crash in a kernel, SIGKILL) is a result.

A task is a function of a module of this package. Its arguments and its result are JSON values.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, cast

import t2t_repro

LIMIT = 300.0  # maximum seconds of a task: a task that hangs must not block the others
COMMAND = (sys.executable, "-P", "-m", "t2t_repro.selftest")  # -P: modules of the working directory are not imported
ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # two children share a GPU
}
_TENSORFLOW_LOG = re.compile(r"[IW]\d{4} |WARNING: All log|To enable the following")  # lines that are not errors


class Outcome(NamedTuple):
    """The value that a task returned, or in one line why it failed."""

    value: Any = None
    error: str = ""
    ended_by: int = 0  # the signal that killed its process


class Child:
    """A process that runs one task after the other. If a task kills it, the next task gets a new process.

    As a context manager it ends the process and removes its temporary files.
    """

    def __init__(self, **variables: str) -> None:
        """`variables` are added to the environment of the process."""
        self._process: subprocess.Popen[str] | None = None
        self._variables, self._killed = variables, False

    def __enter__(self) -> Child:
        return self

    def do(self, function: str, **arguments: Any) -> Outcome:
        """Runs a task. `function` includes its module, such as "machine.describe"."""
        process, late = self._process or self._start(), False
        with contextlib.suppress(BrokenPipeError):  # the process ended after the last task
            print(json.dumps([function, arguments]), file=cast(IO[str], process.stdin), flush=True)
            late = not select.select([self._results], [], [], LIMIT)[0]
            if late:
                process.kill()
            elif (line := self._results.readline()).endswith("\n"):
                return Outcome(**json.loads(line))
        process.wait()
        error = f"no result within {LIMIT:.0f} s" if late else self._death(process.returncode)
        self.__exit__()
        return Outcome(error=error, ended_by=max(-process.returncode, 0))

    def kill(self) -> None:
        """Kills the process permanently. Another thread may be waiting for its task, or be about to start it."""
        self._killed = True
        if process := self._process:
            process.kill()

    def _start(self) -> subprocess.Popen[str]:
        self._scratch = tempfile.TemporaryDirectory(prefix="t2t-selftest-")
        self._log = open(os.path.join(self._scratch.name, "log"), "w+", errors="replace")  # noqa: SIM115
        root = os.path.dirname(os.path.dirname(os.path.abspath(t2t_repro.__file__)))
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        environment |= ENVIRONMENT | self._variables
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment["TMPDIR"] = self._scratch.name  # TensorFlow leaves files there if its process is killed
        read, write = os.pipe()
        self._results = open(read, encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*COMMAND, str(write)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            pass_fds=[write],
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
        )
        os.close(write)
        if self._killed:
            self._process.kill()
        return self._process

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):  # the child never read the last task
            cast(IO[str], process.stdin).close()
        self._results.close()
        self._log.close()
        self._scratch.cleanup()

    def _death(self, code: int) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip() and not _TENSORFLOW_LOG.match(line)]
        ended = f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{ended}{f' ({lines[-1][:200]})' if lines else ''}"


def serve(arguments: Sequence[str]) -> None:
    """Runs tasks until the parent closes standard input, or exits. Does not return.

    The only argument is the file descriptor for results.
    """
    sys.modules.setdefault("matplotlib", None)  # type: ignore[arg-type]  # Keras would import it, which takes 0.7 s
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    with open(int(arguments[0]), "w", encoding="utf-8") as results:
        while True:
            print(json.dumps(_outcome(*json.loads(tasks.get()))._asdict()), file=results, flush=True)


def _read(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


def _outcome(name: str, arguments: dict[str, Any]) -> Outcome:
    module, _, function = name.partition(".")
    try:
        found = getattr(importlib.import_module(f"t2t_repro.selftest.{module}"), function)
        return Outcome(found(**arguments))
    except Exception as error:  # any error is the result of the task
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(error=f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300])
