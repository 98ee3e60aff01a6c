"""`serve`: answers over HTTP until a signal says to stop, and then finishes what is under way."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable

from aiohttp import web

from t2t_repro.serving.app import Server, Settings
from t2t_repro.serving.model import DEFAULT_SIGNATURE, ServedModel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def serve(
    export_dir: str,
    host: str,
    port: int,
    model_name: str | None,
    settings: Settings,
    report: Callable[[str], None],
) -> tuple[int, int]:
    """Serves the newest version in `export_dir` until SIGINT or SIGTERM: the signal's number, and how many requests
    were answered.

    The model's name is that of the folder where none is given. Raises FileNotFoundError, ValueError or OSError where it
    cannot begin.
    """
    name = model_name or os.path.basename(os.path.abspath(export_dir))
    if not _NAME.fullmatch(name):
        raise ValueError(f"--model_name: {name!r} cannot stand in an address; use letters, digits, . _ and -")
    model = ServedModel(export_dir)
    model.run(DEFAULT_SIGNATURE, _one_row(model))  # the first run optimises the graph, which no client should wait for
    server = Server(model, name, settings)
    return asyncio.run(_until_stopped(server, host, port, report)), server.answered


def _one_row(model: ServedModel) -> dict[str, list[bytes]]:
    return {each.name: [b"1"] for each in model.signatures[DEFAULT_SIGNATURE].values() if each.batched}


async def _until_stopped(server: Server, host: str, port: int, report: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):  # a second one ends the process at once
            loop.remove_signal_handler(each)
        server.stopping = True
        stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    settings = server.settings
    runner = web.AppRunner(
        server.app,
        access_log=None,
        keepalive_timeout=settings.idle_seconds,
        lingering_time=1,
        auto_decompress=False,
        handler_cancellation=True,
        shutdown_timeout=settings.stop_seconds,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        for address in runner.addresses:
            shown = f"[{address[0]}]" if ":" in address[0] else address[0]
            report(f"http://{shown}:{address[1]}/ answers for version {server.model.version} of {server.name}")
        number = await stopped
        report("stopping: what is under way is finished")
        return number
    finally:
        await runner.cleanup()
