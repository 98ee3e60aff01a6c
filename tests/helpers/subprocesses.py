"""Runs programs in separate processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from conftest import CHECKOUT


def in_a_process(*command, **options):
    """Runs `python -m t2t_repro.bin...` from an empty folder, and returns the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **options.pop("env", {})}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, **options)


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
