"""Cluster configuration from TF_CONFIG, and the rendezvous of machines. Here they are threads of one process."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from conftest import CHECKOUT
from helpers.subprocesses import free_ports

from t2t_repro.training.distributed.rendezvous import Cluster, Rendezvous

FACTS = {"seed": 1, "d_model": 16, "learning": (1, 2)}


def silent(line: str) -> None:
    """A report function that discards its lines."""


def cluster_of(number: int) -> list[Cluster]:
    """Returns `number` machines, each with its own index."""
    addresses = tuple(f"localhost:{port}" for port in free_ports(number))
    tasks = tuple(("worker", index) for index in range(number))
    return [Cluster(addresses, tasks, index) for index in range(number)]


def in_parallel(*parts: Callable[[], None]) -> list[str]:
    """Runs each function in its own thread, and returns the errors as text."""
    raised = [""] * len(parts)

    def one(index: int) -> None:
        try:
            parts[index]()
        except (ValueError, OSError) as error:
            raised[index] = str(error)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return raised


def part(cluster: Cluster, facts=None, prepare=lambda: None, seconds: float = 20) -> Callable[[], None]:
    """Takes part in a rendezvous as the trainer does."""

    def play() -> None:
        with Rendezvous(cluster, silent, seconds) as rendezvous:
            if cluster.is_chief:
                prepare()
            rendezvous.wait_for_chief()
            if not cluster.is_chief:
                prepare()
            rendezvous.check_consistent(FACTS if facts is None else facts)

    return play


# TF_CONFIG.


def environment(monkeypatch, cluster, task) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


@pytest.mark.parametrize("text", [None, "", "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'])
def test_a_single_machine(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    alone = Cluster.from_environment()
    assert (alone.size, alone.is_chief) == (1, True)
    with Rendezvous(alone, silent) as rendezvous:
        rendezvous.wait_for_chief()
        rendezvous.check_consistent(FACTS)


def test_workers_in_their_order(monkeypatch):
    environment(monkeypatch, {"worker": ["a:1", "b:2"]}, {"type": "worker", "index": 1})
    cluster = Cluster.from_environment()
    assert (cluster.addresses, cluster.index, cluster.is_chief) == (("a:1", "b:2"), 1, False)
    assert (cluster.name(0), cluster.name(1)) == ("the chief (a:1)", "worker 1 (b:2)")


def test_a_chief_is_before_the_workers(monkeypatch):
    environment(monkeypatch, {"worker": ["a:1"], "chief": ["c:3"]}, {"type": "worker", "index": 0})
    cluster = Cluster.from_environment()
    assert (cluster.addresses, cluster.index) == (("c:3", "a:1"), 1)
    assert cluster.tasks == (("chief", 0), ("worker", 0)) and cluster.name(1) == "worker 0 (a:1)"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "'list' object has no attribute"),
        ({"cluster": {"worker": ["a:1", "b:1"]}}, "no 'task'"),
        ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}, "there is no worker 2"),
        ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "x"}}, "invalid literal"),
        ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": math.inf}}, "float infinity"),
        (
            {"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
            "two machines have one address",
        ),
        ({"cluster": {"worker": ["a:1", "b"]}, "task": {"type": "worker", "index": 0}}, "'b' is not host:port"),
        ({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}, "'a' is not host:port"),
        ({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}, "'ps' is neither chief"),
    ],
)
def test_invalid_tf_config(monkeypatch, config, message):
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(ValueError, match=rf"TF_CONFIG cannot be used \(.*{message}.*\); expected \{{\"cluster\""):
        Cluster.from_environment()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_invalid_start_seconds(monkeypatch, text):
    monkeypatch.setenv("T2T_REPRO_START_SECONDS", text)
    with pytest.raises(ValueError, match=f"T2T_REPRO_START_SECONDS: '{text}' is not a number of seconds above 0"):
        Rendezvous(Cluster(), silent)


# Rendezvous.


def test_all_connect_and_agree_and_free_the_port():
    machines = cluster_of(3)
    assert in_parallel(*map(part, machines)) == ["", "", ""]
    port = int(machines[0].addresses[0].rpartition(":")[2])
    socket.create_server(("", port)).close()


def test_workers_wait_until_the_chief_has_prepared():
    machines, order = cluster_of(3), []

    def prepare() -> None:
        time.sleep(0.3)
        order.append("chief")

    others = [part(machine, prepare=lambda: order.append("other")) for machine in machines[1:]]
    assert in_parallel(part(machines[0], prepare=prepare), *others) == ["", "", ""]
    assert order == ["chief", "other", "other"]


def test_a_missing_worker():
    machines, started = cluster_of(3), time.monotonic()
    chief, worker = in_parallel(*(part(machine, seconds=1.5) for machine in machines[:2]))
    name = machines[0].name(2)
    assert chief == f"{name} did not connect within 2 s; start the same command there, or correct TF_CONFIG"
    assert worker == f"{machines[0].name(0)} stopped: {chief}"
    assert time.monotonic() - started < 10


def test_a_missing_chief():
    machines = cluster_of(2)
    (worker,) = in_parallel(part(machines[1], seconds=1))
    assert worker.startswith(f"{machines[0].name(0)} could not be reached within 1 s; start the same command there")


def test_another_command_on_another_machine():
    machines = cluster_of(2)
    chief, worker = in_parallel(part(machines[0]), part(machines[1], {**FACTS, "d_model": 17}))
    remedy = "start all machines with the same command"
    assert worker.startswith(f"d_model is 17 on {machines[0].name(1)} and 16 on the chief; {remedy}")
    assert chief == f"{machines[0].name(1)} stopped: {worker}"


@pytest.mark.parametrize("failing", [0, 1])
def test_the_reason_of_one_machine_reaches_all(failing):
    machines = cluster_of(3)

    def fail() -> None:
        raise ValueError("the text is damaged")

    raised = in_parallel(*(part(each, **({"prepare": fail} if each.index == failing else {})) for each in machines))
    assert raised.pop(failing) == "the text is damaged"
    assert all("stopped: the text is damaged" in reason for reason in raised)


def test_a_machine_that_vanishes():
    """A killed process closes its connection without a message."""
    machines = cluster_of(2)

    def vanish() -> None:
        with Rendezvous(machines[1], silent, 20) as rendezvous:
            rendezvous.wait_for_chief()  # before that, it could still be restarted
            rendezvous._close()

    chief, _ = in_parallel(part(machines[0]), vanish)
    assert chief == f"{machines[0].name(1)} disconnected; check its log, then restart all machines"


def test_unknown_peers_and_restarted_workers():
    machines = cluster_of(3)
    port = int(machines[0].addresses[0].rpartition(":")[2])

    def knock(text: bytes) -> socket.socket:
        while True:
            try:
                stranger = socket.create_connection(("localhost", port), timeout=5)
            except OSError:
                time.sleep(0.05)
                continue
            stranger.sendall(text)
            return stranger

    def strangers_first() -> None:
        hello = json.dumps({"worker": 1, "cluster": machines[0].addresses}).encode()
        knock(hello + b"\n").close()  # killed, and restarted below
        with knock(b"GET / HTTP/1.1\r\n\r\n"), knock(b"[1]\n"), knock(b'{"worker": "x"}\n'):
            part(machines[2])()

    def again() -> None:
        time.sleep(0.5)
        part(machines[1])()

    assert in_parallel(part(machines[0]), strangers_first, again) == ["", "", ""]


def test_other_clusters(monkeypatch):
    machines = cluster_of(2)
    (port,) = free_ports(1)
    other = Cluster((machines[0].addresses[0], f"localhost:{port}"), machines[1].tasks, 1)
    chief, worker = in_parallel(part(machines[0]), part(other, seconds=5))
    assert chief.startswith("TF_CONFIG names ['localhost:") and chief.endswith("; give all machines the same cluster")
    assert "stopped: TF_CONFIG names" in worker


def test_a_port_in_use():
    machines = cluster_of(2)
    port = int(machines[0].addresses[0].rpartition(":")[2])
    with socket.create_server(("", port)):
        (chief,) = in_parallel(part(machines[0]))
    assert chief.startswith(f"cannot listen on port {port} from TF_CONFIG (Address already in use)")


def test_watchdog_ends_a_slow_block():
    """Also if no other thread can run, because C code holds the interpreter lock, like TensorFlow while it connects."""
    program = (
        "import ctypes; from t2t_repro.training.distributed.rendezvous import watchdog\n"
        "with watchdog(60, 'not said'): pass\n"
        "with watchdog(0.2, 'it took too long'): ctypes.PyDLL(None).sleep(60)\n"
    )
    started, environment = time.monotonic(), {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "t2t-trainer: it took too long\n")
    assert time.monotonic() - started < 40
