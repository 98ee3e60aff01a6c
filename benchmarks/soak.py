"""Runs t2t-serve for half an hour with clients, a quarter of them hostile.

    t2t-exporter --output_dir=RUN --export_dir=E
    python -m benchmarks.soak --export_dir=E --source=test_2016_flickr.en

The server runs in a separate process. Three quarters of the --clients are ordinary: each sends a sentence, waits for
the answer, compares it with the server's answer to the sentence alone, and sends the next. The others attack, in random
order: they send requests of the maximum size and disconnect before or after the answer, exceed every limit, do not read
answers, send bodies and headers slowly, reset connections in the middle of a body, or send bytes that are not HTTP.
Memory is read every second; the lowest and the highest are printed once a minute. At the end the server gets SIGTERM
while all clients continue. The exit code is 1 if an ordinary request was lost or wrong, if the highest memory grew by
more than 5% after the first sixth of the time, or if the server took longer to stop than it promises.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.serve import ROOT, ask, is_same, resident

DRAIN, STOP, CLOSING = 5, 20, 5  # seconds: the defaults of t2t-serve, and the tolerated excess


class Hostile:
    """A hostile client with its own connections."""

    def __init__(self, host: str, port: int, path: str, seed: int):
        self.host, self.port, self.path, self.rng = host, port, path, random.Random(seed)

    async def attack(self) -> str:
        """Runs one attack and returns its name."""
        attacks: list[Callable[[], Awaitable[None]]] = [
            self.leave_early,
            self.wait_long,
            self.ask_too_much,
            self.never_read,
            self.send_slowly,
            self.stop_in_the_head,
            self.reset,
            self.send_garbage,
        ]
        chosen = self.rng.choice(attacks)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await chosen()
        return chosen.__name__

    async def leave_early(self) -> None:
        await self.send(self.largest(), read_seconds=self.rng.uniform(0, 3))

    async def wait_long(self) -> None:
        await self.send(self.largest(), read_seconds=90)

    async def ask_too_much(self) -> None:
        options = {"beam_size": 64, "extra_length": 1_024, "alpha": 3.0}
        await self.send(
            {"signature_name": "translate", "inputs": {"inputs": ["a"] * 1_024, **options}}, read_seconds=10
        )

    async def never_read(self) -> None:
        await self.send({"instances": ["a " * 200] * 1_000}, read_seconds=0, silent_seconds=60)

    async def send_slowly(self) -> None:
        await self.send({"instances": ["a"] * 10}, read_seconds=5, pause=0.5)

    async def stop_in_the_head(self) -> None:
        await self.raw(b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow:", seconds=60)

    async def reset(self) -> None:
        await self.raw(
            f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n".encode() + b"{", seconds=0
        )

    async def send_garbage(self) -> None:
        await self.raw(self.rng.randbytes(2_000) + b"\r\n\r\n", seconds=5)

    def largest(self) -> dict[str, Any]:
        """Returns a request of the maximum size: few rows with wide beams, or many with narrow ones."""
        rows, beam = self.rng.choice([(63, 64), (1_000, 4)])
        options = {"beam_size": beam, "extra_length": 1_024, "alpha": 3.0}
        return {"signature_name": "translate", "inputs": {"inputs": ["a"] * rows, **options}}

    async def send(
        self, body: dict[str, Any], read_seconds: float, silent_seconds: float = 0, pause: float = 0
    ) -> None:
        data = json.dumps(body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1)  # so that nothing is read ahead
        try:
            for start in range(0, len(head + data), 50 if pause else len(head + data)):
                writer.write((head + data)[start : start + (50 if pause else len(head + data))])
                await writer.drain()
                await asyncio.sleep(pause)
            await asyncio.sleep(silent_seconds)
            if read_seconds:
                await asyncio.wait_for(reader.readexactly(12), read_seconds)
        finally:
            writer.transport.abort()

    async def raw(self, data: bytes, seconds: float) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await writer.drain()
            if seconds:
                await asyncio.wait_for(reader.read(1_000), seconds)
        finally:
            writer.transport.abort()


class Soak:
    """Runs the clients and records their results."""

    def __init__(self, address: str, name: str, process: subprocess.Popen[str], sentences: list[str]):
        self.url, self.process, self.sentences = f"{address}v1/models/{name}:predict", process, sentences
        host, _, port = address.split("/")[2].rpartition(":")
        self.place = host, int(port), f"/v1/models/{name}:predict"
        self.attacks: Counter[str] = Counter()
        self.answered, self.wrong, self.memory = 0, list[str](), list[float]()
        self.is_over = False

    async def run(self, clients: int, seconds: float) -> float:
        """Seconds that the server took to end."""
        import aiohttp

        timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            expected = {sentence: await ask(session, self.url, sentence) for sentence in self.sentences}
            sentences = itertools.cycle(expected)
            tasks = [asyncio.create_task(self.ordinary(session, expected, sentences)) for _ in range(clients * 3 // 4)]
            tasks += [asyncio.create_task(self.hostile(seed)) for seed in range(clients - len(tasks))]
            end = time.monotonic() + seconds
            while time.monotonic() < end and self.process.poll() is None:
                lowest, highest = await self.watch_memory(min(60, end - time.monotonic()))
                self.memory.append(highest)
                memory = f"{lowest:,.0f} to {highest:,.0f} MB"
                print(f"{self.answered:,} answers, {len(self.wrong)} wrong, {memory}", flush=True)
            self.is_over, started = True, time.monotonic()
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.process.wait)
            took = time.monotonic() - started
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return took

    async def watch_memory(self, seconds: float) -> tuple[float, float]:
        """Returns the lowest and the highest memory: requests in progress take up to a tenth of it."""
        found, end = [resident(self.process.pid)], time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            await asyncio.sleep(1)
            found.append(resident(self.process.pid))
        return min(found), max(found)

    async def ordinary(self, session: Any, expected: dict[str, tuple[str, float]], sentences: Any) -> None:
        while not self.is_over:
            sentence = next(sentences)
            try:
                found = await ask(session, self.url, sentence)
            except (SystemExit, OSError, TimeoutError) as error:
                self.wrong.append(f"{sentence!r}: {error!r}")
                continue
            self.answered += 1
            if not is_same(found, expected[sentence], expected):
                self.wrong.append(f"{sentence!r}: {found}")

    async def hostile(self, seed: int) -> None:
        client = Hostile(*self.place, seed)
        while not self.is_over:
            self.attacks[await client.attack()] += 1
            await asyncio.sleep(0.1)

    def verdict(self, took: float) -> list[str]:
        """Lists what was wrong."""
        early = self.memory[: max(1, len(self.memory) // 6)]
        grown = max(self.memory, default=0) / max(early, default=1)
        failures = [f"{len(self.wrong)} ordinary requests lost or wrong, first {self.wrong[0]}"] if self.wrong else []
        if grown > 1.05:
            failures.append(f"memory grew to {grown:.2f} of its first sixth")
        if took > DRAIN + STOP + CLOSING + 1 or self.process.returncode != 128 + signal.SIGTERM:
            failures.append(f"ended with {self.process.returncode} {took:.1f} s after SIGTERM")
        return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export_dir", required=True, help="export directory of t2t-exporter")
    parser.add_argument("--source", required=True, help="UTF-8 text; empty lines are left out")
    parser.add_argument("--sentences", type=int, default=200, help="of its first lines; default: %(default)s")
    parser.add_argument("--clients", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1_800, help="default: %(default)s")
    arguments = parser.parse_args()
    lines = Path(arguments.source).read_text("utf-8").split("\n")
    sentences = list(dict.fromkeys(line for line in lines if line))[: arguments.sentences]
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_serve", f"--export_dir={arguments.export_dir}", "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        address = next(line.split()[1] for line in process.stderr or () if " http://" in line)
        threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr), daemon=True).start()
        name = os.path.basename(os.path.abspath(arguments.export_dir))
        soak = Soak(address, name, process, sentences)
        took = asyncio.run(soak.run(arguments.clients, arguments.seconds))
    finally:
        process.kill()
        process.wait()
    print("attacks:", ", ".join(f"{name} {count:,}" for name, count in soak.attacks.most_common()))
    print(f"{soak.answered:,} ordinary requests were answered; the server ended {took:.1f} s after SIGTERM")
    failures = soak.verdict(took)
    sys.exit("\n".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
