"""t2t-serve under load: requests per second and 99th percentile latency by number of clients, and memory.

    t2t-exporter --output_dir=RUN --export_dir=E
    python -m benchmarks.serve --export_dir=E --source=test_2016_flickr.en

The server runs in one process and all clients in another. Each client sends one sentence, waits for the answer and
sends the next. Every answer is compared with the server's answer to the same sentence alone; a wrong one ends the
benchmark. Other words with the same score, within 1%, are counted but not wrong: in bfloat16 a product is rounded
differently in another batch, so the other of two equally probable translations may win. Then 8 clients send --requests
more, and the server's memory is sampled meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def server(export_dir: str, flags: list[str]) -> Iterator[tuple[str, int]]:
    """Starts t2t-serve. Yields its address and process id once it answers requests."""
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_serve", f"--export_dir={export_dir}", "--port=0", *flags]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True)
    said = []
    try:
        for line in process.stderr or ():
            if " http://" in line:
                yield line.split()[1], process.pid
                return
            said.append(line)
        sys.exit("".join(said) or "t2t-serve printed nothing")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def resident(process: int) -> float:
    """Returns the resident memory of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def ask(session: Any, url: str, sentence: str) -> tuple[str, float]:
    """Returns the translation and its score."""
    async with session.post(url, json={"instances": [sentence]}) as response:
        found = await response.json()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {found}")
        best = found["predictions"][0]
        return best["outputs"], best["scores"]


def is_same(found: tuple[str, float], alone: tuple[str, float], expected: dict[str, tuple[str, float]]) -> bool:
    """Returns whether an answer is what its sentence got alone, or as likely and not the answer to another sentence."""
    is_other = found[0] != alone[0]
    return math.isclose(found[1], alone[1], rel_tol=0.01) and not (is_other and found in expected.values())


async def load(
    session: Any, url: str, expected: dict[str, tuple[str, float]], clients: int, until: Any
) -> tuple[list[float], int]:
    """Seconds of each request of `clients` clients, as long as `until()` says, and how many answers were others as
    likely; every answer is checked."""
    sentences = itertools.cycle(expected)
    seconds: list[float] = []
    others = 0

    async def client() -> None:
        nonlocal others
        while until(len(seconds)):
            sentence = next(sentences)
            started = time.perf_counter()
            text, score = await ask(session, url, sentence)
            seconds.append(time.perf_counter() - started)
            if not is_same((text, score), expected[sentence], expected):
                raise SystemExit(f"a wrong answer among {clients} clients to {sentence!r}")
            others += text != expected[sentence][0]

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds, others


def row(clients: int, seconds: list[float], others: int, wall: float) -> str:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    rate, median, slow = len(seconds) / wall, cuts[49] * 1000, cuts[98] * 1000
    return f"| {clients} | {rate:.1f} | {median:.0f} | {slow:.0f} | {len(seconds):,} | {others:,} |"


async def measure(address: str, process: int, sentences: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    import aiohttp

    url = f"{address}v1/models/{os.path.basename(os.path.abspath(arguments.export_dir))}:predict"
    record: dict[str, Any] = {"clients": {}, "memory": []}
    timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        expected = {sentence: await ask(session, url, sentence) for sentence in sentences}
        print("| clients | requests/s | median ms | p99 ms | requests | others as likely |", "|---" * 6 + "|", sep="\n")
        for clients in map(int, arguments.clients.split(",")):
            started = time.perf_counter()
            end = started + arguments.seconds
            seconds, others = await load(session, url, expected, clients, lambda _, end=end: time.perf_counter() < end)
            wall = time.perf_counter() - started
            record["clients"][clients] = {"wall": wall, "seconds": seconds, "others": others}
            print(row(clients, seconds, others, wall), flush=True)
        record["memory"].append((0, resident(process)))
        for part in range(1, 5):
            share = arguments.requests // 4
            await load(session, url, expected, 8, lambda done, share=share: done < share)
            record["memory"].append((share * part, resident(process)))
    print("memory after requests:", ", ".join(f"{count:,}: {mb:,.0f} MB" for count, mb in record["memory"]))
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export_dir", required=True, help="export directory of t2t-exporter")
    parser.add_argument("--source", required=True, help="UTF-8 text, .gz read too; empty lines are left out")
    parser.add_argument("--sentences", type=int, default=200, help="use its first N lines; default: %(default)s")
    parser.add_argument("--clients", default="1,8,64", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=30, help="for each number of clients; default: %(default)s")
    parser.add_argument("--requests", type=int, default=10_000, help="for the memory; default: %(default)s")
    parser.add_argument("--serve", action="append", default=[], metavar="FLAG", help="of t2t-serve; repeatable")
    parser.add_argument("--json", help="file for all measurements")
    arguments = parser.parse_args()
    data = Path(arguments.source).read_bytes()
    text = (gzip.decompress(data) if arguments.source.endswith(".gz") else data).decode("utf-8")
    sentences = list(dict.fromkeys(line for line in text.split("\n") if line))[: arguments.sentences]
    with server(arguments.export_dir, arguments.serve) as (address, process):
        record = asyncio.run(measure(address, process, sentences, arguments))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
