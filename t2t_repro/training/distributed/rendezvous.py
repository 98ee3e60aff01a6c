"""Cluster configuration (TF_CONFIG) and the rendezvous before TensorFlow connects the machines.

TensorFlow waits forever for a missing machine, ignores Ctrl-C meanwhile, and connects machines that were started with
different commands. So the machines first connect to the chief's address and compare their configurations.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

START_SECONDS = 300.0  # until all are connected; the environment variable T2T_REPRO_START_SECONDS overrides it
GREETING_SECONDS = 10.0  # for the first message, which is sent immediately; other connections are closed then
LINE_BYTES = 1 << 20

_WATCHDOG = """
import os, select, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    os.write(2, sys.argv[2].encode() + b"\\n")
    os.kill(int(sys.argv[3]), 9)
"""

_EXPECTED = (
    'expected {"cluster": {"worker": ["host1:port", "host2:port"]}, "task": {"type": "worker", "index": 0}}, '
    "with another index on each machine"
)


@dataclass(frozen=True)
class Cluster:
    """The machines of one run, the chief first, and the index of this machine. A single machine has no addresses.

    `tasks` are TensorFlow's names of the machines: ("chief", 0), ("worker", 0).
    """

    addresses: tuple[str, ...] = ()
    tasks: tuple[tuple[str, int], ...] = ()
    index: int = 0

    @classmethod
    def from_environment(cls) -> Cluster:
        """Returns the cluster of TF_CONFIG, or a single machine without it. Raises ValueError if it is not valid."""
        text = os.environ.get("TF_CONFIG", "")
        if not text.strip():
            return cls()
        try:
            return cls._of(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"TF_CONFIG cannot be used ({what}); {_EXPECTED}") from None

    @classmethod
    def _of(cls, config: dict[str, Any]) -> Cluster:
        jobs = config.get("cluster", {})
        for job in jobs:
            if job not in ("chief", "worker"):
                raise ValueError(f"{job!r} is neither chief nor worker, which train")
        tasks = [(job, number) for job in ("chief", "worker") for number in range(len(jobs.get(job, ())))]
        addresses = [jobs[job][number] for job, number in tasks]
        for address in addresses:
            host, _, port = str(address).rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise ValueError(f"{address!r} is not host:port")
        if len(addresses) < 2:
            return cls()
        if len(set(addresses)) < len(addresses) or ("chief", 1) in tasks:
            raise ValueError("two machines have one address, or two are the chief")
        task = (config["task"]["type"], int(config["task"]["index"]))
        if task not in tasks:
            raise ValueError(f"there is no {task[0]} {task[1]}")
        return cls(tuple(addresses), tuple(tasks), tasks.index(task))

    @property
    def size(self) -> int:
        return max(len(self.addresses), 1)

    @property
    def is_chief(self) -> bool:
        """True on the chief, which alone prepares, writes and scores."""
        return self.index == 0

    def name(self, index: int) -> str:
        """Returns the name of a machine for messages: `the chief (host1:2222)`, `worker 1 (host2:2222)`."""
        return f"{f'worker {self.tasks[index][1]}' if index else 'the chief'} ({self.addresses[index]})"


class Rendezvous:
    """A context that all machines enter before they write anything. The chief waits for all workers, and they for it.

    If one machine fails before `check_consistent` returns, all machines stop with its reason. A single machine does
    not wait. Raises ConnectionError if a machine does not connect in time, disconnects, or fails.
    """

    def __init__(self, cluster: Cluster, report: Callable[[str], None], seconds: float | None = None):
        self.cluster, self._report = cluster, report
        self._seconds = _start_seconds() if seconds is None else seconds
        self._others: dict[int, _Connection] = {}

    def __enter__(self) -> Rendezvous:
        if self.cluster.size > 1:
            self._deadline = time.monotonic() + self._seconds
            try:
                self._accept_workers() if self.cluster.is_chief else self._connect()
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is not None:
            reason = str(error) if isinstance(error, ValueError | OSError) else kind.__name__
            self._send({"error": reason or kind.__name__})
        self._close()

    def wait_for_chief(self) -> None:
        """Waits, without a time limit, until the chief makes the same call."""
        if self.cluster.is_chief:
            self._send({"ready": True})
        else:
            self._receive("ready", None)

    def check_consistent(self, config: Mapping[str, Any]) -> None:
        """Raises ValueError, naming the first difference, unless `config` (JSON) is the same on all machines.

        This ends the rendezvous: all machines return at about the same time, and the chief's port is free for
        TensorFlow.
        """
        if self.cluster.is_chief:
            self._send({"facts": config})
            for index in sorted(self._others):
                self._receive("same", self._seconds, index)
            self._send({"go": True})
        else:
            chiefs = self._receive("facts", None)
            own = json.loads(json.dumps(config))
            for name in sorted(own.keys() | chiefs.keys()):
                if own.get(name) != chiefs.get(name):
                    how = ", with --precision" if name == "precision" else ""  # "auto" depends on the processor
                    raise ValueError(
                        f"{name} is {own.get(name)!r} on {self.cluster.name(self.cluster.index)} and "
                        f"{chiefs.get(name)!r} on the chief; start all machines with the same command and data{how}"
                    )
            self._send({"same": True})
            self._receive("go", None)
        self._close()

    def _accept_workers(self) -> None:
        port = int(self.cluster.addresses[0].rpartition(":")[2])
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ConnectionError(
                f"cannot listen on port {port} from TF_CONFIG ({reason}); is another trainer running here?"
            ) from None
        self._report(f"waiting for {self._names(self._missing())}, {self._seconds:.0f} s at most")
        with listener:
            while missing := self._missing():
                listener.settimeout(max(self._deadline - time.monotonic(), 0.01))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    raise ConnectionError(
                        f"{self._names(missing)} did not connect within {self._seconds:.0f} s; "
                        "start the same command there, or correct TF_CONFIG"
                    ) from None
                self._greet(connection)

    def _missing(self) -> set[int]:
        """Returns the workers that are not connected. A worker that was killed must connect again."""
        for index in [index for index, peer in self._others.items() if peer.is_closed()]:
            self._others.pop(index).close()
        return set(range(1, self.cluster.size)) - self._others.keys()

    def _greet(self, connection: socket.socket) -> None:
        """Accepts a worker, and closes other connections. A worker that reconnects replaces its old connection."""
        peer = _Connection(connection)
        try:
            hello = peer.read(min(GREETING_SECONDS, max(self._deadline - time.monotonic(), 0.01)))
            index, addresses = int(hello["worker"]), tuple(hello["cluster"])
        except (OSError, ValueError, KeyError, TypeError):
            peer.close()
            return
        if addresses != self.cluster.addresses or not 0 < index < self.cluster.size:
            reason = f"TF_CONFIG names {list(addresses)} on a worker and {list(self.cluster.addresses)} on the chief"
            peer.write({"error": reason})
            peer.close()
            raise ValueError(f"{reason}; give all machines the same cluster")
        peer.write({"welcome": True})
        if index in self._others:
            self._others.pop(index).close()
        self._others[index] = peer

    def _connect(self) -> None:
        host, _, port = self.cluster.addresses[0].rpartition(":")
        self._report(f"waiting for {self.cluster.name(0)}, {self._seconds:.0f} s at most")
        while (left := self._deadline - time.monotonic()) > 0:
            seconds = min(left, GREETING_SECONDS)
            try:
                self._others[0] = _Connection(socket.create_connection((host.strip("[]"), int(port)), seconds))
                self._others[0].write({"worker": self.cluster.index, "cluster": self.cluster.addresses})
                answer = self._others[0].read(seconds)
            except (OSError, ValueError):  # the chief has not started yet, or an earlier run has not ended
                self._close()
                time.sleep(min(left, 0.5))
                continue
            if "error" in answer:
                raise ConnectionError(f"{self.cluster.name(0)} stopped: {answer['error']}")
            return
        raise ConnectionError(
            f"{self.cluster.name(0)} could not be reached within {self._seconds:.0f} s; "
            "start the same command there, or correct TF_CONFIG"
        )

    def _send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to all others."""
        for peer in self._others.values():
            peer.write(message)

    def _receive(self, key: str, seconds: float | None, index: int = 0) -> Any:
        """Returns the value of `key` in the other's next message. Waits for `seconds`, or without a limit."""
        name = self.cluster.name(index)
        try:
            message = self._others[index].read(seconds)
        except TimeoutError:
            raise ConnectionError(f"{name} sent nothing for {seconds:.0f} s; stopped") from None
        except (OSError, ValueError):
            raise ConnectionError(f"{name} disconnected; check its log, then restart all machines") from None
        if key not in message:
            raise ConnectionError(f"{name} stopped: {message.get('error', 'it has another version')}")
        return message[key]

    def _names(self, indices: set[int]) -> str:
        return ", ".join(map(self.cluster.name, sorted(indices)))

    def _close(self) -> None:
        for peer in self._others.values():
            peer.close()
        self._others = {}


@contextlib.contextmanager
def watchdog(seconds: float, line: str) -> Iterator[None]:
    """Kills this process by SIGKILL, with `line` on stderr, if the block takes longer than `seconds`.

    The timer is a separate process: while a call holds Python's global interpreter lock, no thread of this one can run.
    """
    command = [sys.executable, "-S", "-c", _WATCHDOG, str(seconds), f"t2t-trainer: {line}", str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        process.communicate()  # it exits at the end of its input


def _start_seconds() -> float:
    text = os.environ.get("T2T_REPRO_START_SECONDS", "")
    try:
        seconds = float(text or START_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"T2T_REPRO_START_SECONDS: {text!r} is not a number of seconds above 0, such as 300")
    return seconds


class _Connection:
    """Messages over a socket: JSON objects, one per line."""

    def __init__(self, connected: socket.socket):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects a machine that vanished after 45 s
        for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket, self._lines = connected, connected.makefile("rb")

    def write(self, message: Mapping[str, Any]) -> None:
        """Sends a message. If the other side has disconnected, the next `read` raises."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(GREETING_SECONDS)
            self._socket.sendall(json.dumps(message).encode("utf-8") + b"\n")

    def read(self, seconds: float | None) -> dict[str, Any]:
        """Returns the next message. Raises OSError if none arrives, and ValueError if it is not valid."""
        self._socket.settimeout(seconds)
        line = self._lines.readline(LINE_BYTES)
        if not line:
            raise ConnectionError("closed by the other side")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def is_closed(self) -> bool:
        """Returns whether the other side has closed the connection, without reading a message."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()
            self._socket.close()
