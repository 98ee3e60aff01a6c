"""Shutdown of t2t-serve: clients with persistent connections lose no request, and no request blocks the process.

The model is a stand-in in its own process.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import CHECKOUT

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
SCRIPT = CHECKOUT / "tests" / "helpers" / "serve_capitals.py"
BODY = json.dumps({"instances": ["a"]})


@pytest.fixture
def start(tmp_path):
    """Returns `start(mode, **settings)`, which starts a server and returns it with its port."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"")
    processes = []

    def run(mode, **settings):
        command = [sys.executable, str(SCRIPT), str(tmp_path), json.dumps(settings), mode]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        address = next(line for line in process.stderr if line.startswith("http://"))
        return process, int(address.split()[0].rpartition(":")[2].strip("/"))

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Client(threading.Thread):
    """Sends one request after another on a connection that it keeps until the server closes it."""

    def __init__(self, port):
        super().__init__()
        self.port, self.answered, self.lost, self.refused = port, 0, [], False

    def run(self):
        connection = None
        while True:
            try:
                connection = connection or self.connect()
            except ConnectionRefusedError:
                self.refused = True
                return
            try:
                connection.request("POST", "/v1/models/m:predict", BODY)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                return
            if response.status != 200:
                self.lost.append(f"{response.status} {text!r}")
            self.answered += 1
            if response.will_close:
                connection.close()
                connection = None

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.connect()
        return connection


def health(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    found = response.status, response.read().decode(), response.headers.get("Connection")
    connection.close()
    return found


@pytest.mark.slow
def test_clients_with_persistent_connections_lose_no_request(start):
    process, port = start("slow", drain_seconds=1.5, stop_seconds=30)
    clients = [Client(port) for _ in range(24)]
    for client in clients:
        client.start()
    while min(client.answered for client in clients) < 3:
        time.sleep(0.01)
    assert health(port) == (200, "ok\n", None)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert health(port) == (503, "stopping\n", "close")
    for client in clients[1:]:  # as if a load balancer sent them elsewhere; one continues to the end
        client.port = 1  # nothing listens on this port
    for client in clients[1:]:
        client.join()
    assert [client.lost for client in clients[1:]] == [[]] * 23
    out, err = process.communicate(timeout=30)
    seconds = time.monotonic() - started
    clients[0].join()
    assert process.returncode == 143 and 1.5 <= seconds < 20
    assert len(clients[0].lost) <= 1  # connected while the last connections were closed
    assert sum(client.answered for client in clients) <= int(out)
    assert "requests are accepted for 1.5 s more" in err


def test_connections_without_a_request_are_closed(start):
    process, port = start("slow", drain_seconds=0.2, stop_seconds=30)
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200 OK" in idle[0].recv(1_000)
    idle[1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow:")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    for each in idle:
        each.settimeout(20)
        assert each.recv(1_000) == b""
        each.close()
    process.communicate(timeout=30)
    assert process.returncode == 143 and time.monotonic() - started < 20


def test_the_rest_of_a_body_may_arrive_after_the_signal(start):
    process, port = start("slow", drain_seconds=0.1, stop_seconds=30)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n"
        connection.sendall(head.encode() + BODY.encode()[:8])
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.7)
        connection.sendall(BODY.encode()[8:])
        assert b"200 OK" in connection.recv(1_000)
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_process_ends_whatever_runs(start):
    process, port = start("deaf", drain_seconds=0.1, stop_seconds=0.5)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/models/m:predict", BODY)
    time.sleep(0.3)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    response = connection.getresponse()
    assert (response.status, json.load(response)) == (503, {"error": "the server is stopping"})
    connection.close()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143 and time.monotonic() - started < 20
    assert err.endswith("exiting while a model is still running or loading\n")


def test_process_ends_while_a_version_is_loaded(start, tmp_path):
    process, _ = start("loading", drain_seconds=0.1, stop_seconds=0.5)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").write_bytes(b"")
    assert next(process.stderr).startswith("loading version 2 of ")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143 and err.endswith("exiting while a model is still running or loading\n")


def test_connections_are_limited(start):
    process, port = start("slow", max_connections=3, idle_seconds=1)
    kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    time.sleep(0.2)
    with socket.create_connection(("127.0.0.1", port)) as refused:
        refused.settimeout(10)
        assert refused.recv(1_000).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
        assert refused.recv(1_000) == b""
    for each in kept:
        each.close()
    time.sleep(0.2)
    assert health(port)[0] == 200
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
@pytest.mark.slow
def test_freed_memory_returns_to_the_system(start):
    server, _ = start("wasteful")
    before = resident(server.pid)
    end = time.monotonic() + 30
    while resident(server.pid) > before - 70:
        assert time.monotonic() < end and server.poll() is None
        time.sleep(0.1)
    server.send_signal(signal.SIGTERM)


def resident(process):
    """Returns the memory of a process in MB."""
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1_024 for line in file if line.startswith("VmRSS:"))
