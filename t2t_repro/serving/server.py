"""`serve`: runs the HTTP server until a signal stops it, and then finishes the requests in progress."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import NamedTuple, cast

import numpy as np
from aiohttp import web

from t2t_repro.saved_model import DEFAULT_SIGNATURE, newest_version
from t2t_repro.serving import page
from t2t_repro.serving.app import Server, Settings
from t2t_repro.serving.model import ServedModel
from t2t_repro.system.heap import return_freed_memory

logger = logging.getLogger("t2t_serve")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_MEMORY_SECONDS = 10.0  # between two returns of freed memory
_CLOSING_SECONDS = 5.0  # beyond `stop_seconds`, for closing connections and threads
Report = Callable[[str], None]


def serve(
    export_dir: str,
    host: str,
    port: int,
    model_name: str | None,
    settings: Settings,
    report: Report,
    attention: bool = False,
    poll_seconds: float = 0.0,
) -> tuple[int, int]:
    """Serves the newest version in `export_dir` until SIGINT or SIGTERM.

    Returns the number of the signal, and the number of requests answered.

    Args:
      model_name: the name in the address; by default the name of the folder.
      attention: enables the signature `attention`.
      poll_seconds: interval of checks for a new version, which then replaces the current one. 0: never.

    Raises FileNotFoundError, ValueError or OSError if it cannot start.
    """
    name = model_name or os.path.basename(os.path.abspath(export_dir))
    if not _NAME.fullmatch(name):
        raise ValueError(f"model_name: {name!r} cannot be part of an address; use letters, digits, . _ and -")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in bound(host, port)]
        report(f"loading version {newest_version(export_dir)} of {name}")
        server = Server(_load(export_dir, attention), name, settings)
        watch = functools.partial(_watch, server, export_dir, attention, poll_seconds, report)
        number = asyncio.run(_until_stopped(server, sockets, watch, report, stack))  # waits for a version that loads
        return number, server.answered


def bound(host: str, port: int) -> list[socket.socket]:
    """Returns a socket for each address of `host`, bound but not listening. Raises OSError with the address."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sockets.append(socket.socket(family, kind, protocol))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sockets[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sockets[-1].bind(address)
    except OSError as error:
        for each in sockets:
            each.close()
        raise OSError(f"cannot listen on port {port} of {host!r}: {error.strerror}; give another") from None
    return sockets


def _load(export_dir: str, attention: bool) -> ServedModel:
    """Loads the newest version and runs the default signature and that of the page once.

    The first run of a signature optimizes its graph, so that no client waits for it.
    """
    model = ServedModel(export_dir, attention)
    for signature in {DEFAULT_SIGNATURE, page.signature_of(model)[0]}:
        takes = model.signatures[signature].values()
        model.run(signature, {each.name: np.array([b"1"], object) for each in takes if each.batched})
    return model


async def _watch(server: Server, export_dir: str, attention: bool, seconds: float, report: Report) -> None:
    """Loads new versions and then serves them.

    A version may be copied into the folder file by file, so it is loaded when two checks in a row find the same files.
    If it cannot be loaded, that is reported once, until its files change.
    """
    seen = await asyncio.to_thread(_newest_files, export_dir)
    tried = seen if seen and seen.version == server.model.version else None
    while seconds:
        await asyncio.sleep(seconds)
        before, seen = seen, await asyncio.to_thread(_newest_files, export_dir)
        if seen is None or seen != before or seen == tried:
            continue
        tried = seen
        report(f"loading version {seen.version} of {server.name}")
        try:
            server.serve_model(await asyncio.to_thread(_load, export_dir, attention))
            report(f"now serving version {server.model.version} of {server.name}")
        except (OSError, ValueError) as error:
            report(f"still serving version {server.model.version} of {server.name}: {error}")
        except Exception:  # no memory, or a defect: later versions must still be loaded
            logger.exception("still serving version %d of %s", server.model.version, server.name)


class _Files(NamedTuple):
    """The newest version, and the path, size and time of change of each of its files."""

    version: int
    files: tuple[tuple[str, int, int], ...]


def _newest_files(export_dir: str) -> _Files | None:
    """Returns None if there is no version at the moment, or if the folder is not readable."""
    try:
        version = newest_version(export_dir)
        folders = [os.scandir(folder) for folder, _, _ in os.walk(os.path.join(export_dir, str(version)))]
        found = [(each.path, each.stat()) for entries in folders for each in entries if each.is_file()]
    except OSError:
        return None
    return _Files(version, tuple(sorted((path, stat.st_size, stat.st_mtime_ns) for path, stat in found)))


async def _return_memory() -> None:
    """Returns freed memory again and again. Requests of many sizes otherwise leave ever more of it between blocks in
    use: 177 MB after 19 minutes of `benchmarks.soak`."""
    while True:
        await asyncio.sleep(_MEMORY_SECONDS)
        await asyncio.to_thread(return_freed_memory)


class _Refusing(asyncio.Protocol):
    """A connection beyond the limit, which receives 503."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writer = cast(asyncio.Transport, transport)  # of a socket
        writer.write(_FULL)
        writer.close()


async def _until_stopped(
    server: Server,
    sockets: list[socket.socket],
    watch: Callable[[], Coroutine[None, None, None]],
    report: Report,
    stack: contextlib.ExitStack,
) -> int:
    """Serves until a signal, and returns its number. When `stack` is closed, nothing may be running any more."""
    loop, settings = asyncio.get_running_loop(), server.settings
    runner = web.AppRunner(
        server.app,
        access_log=None,
        keepalive_timeout=settings.idle_seconds,
        lingering_time=1,
        auto_decompress=False,
        handler_cancellation=True,
        shutdown_timeout=1,  # requests in progress have finished before
    )
    await runner.setup()
    connections = cast(web.Server, runner.server)  # after `setup`

    def protocol() -> asyncio.BaseProtocol:
        return connections() if len(connections.connections) < settings.max_connections else _Refusing()

    stopped = _first_signal(server)
    try:
        listeners = [
            await loop.create_server(protocol, sock=each, backlog=settings.max_connections) for each in sockets
        ]
        for each in sockets:
            host, port = each.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            report(f"http://{shown}:{port}/ serves version {server.model.version} of {server.name}")
        tasks = loop.create_task(watch()), loop.create_task(_return_memory())
        number = await stopped
        for task in tasks:
            task.cancel()
        drain = settings.drain_seconds if number == signal.SIGTERM else 0
        ender = threading.Timer(drain + settings.stop_seconds + _CLOSING_SECONDS, _end_now, (128 + number, report))
        ender.daemon = True
        ender.start()
        stack.callback(lambda: None if server.batcher.stuck else ender.cancel())
        report(f"stopping: /healthz fails; requests are accepted for {drain:g} s more" if drain else "stopping")
        await asyncio.sleep(drain)
        for listener in listeners:
            listener.close()
        for each in connections.connections:
            if each._current_request is None:  # `pre_shutdown` closes all, which drops bodies that still arrive
                each.close()
        report(f"stopping: {server.active} requests in progress have {settings.stop_seconds:g} s to finish")
        await _idle(server, settings.stop_seconds)
        await server.batcher.stop()
        await _idle(server, 1)  # while error responses are sent
        return number
    finally:
        await runner.cleanup()


def _first_signal(server: Server) -> asyncio.Future[int]:
    """Returns a future of the number of the first signal. A second signal ends the process immediately."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
            # an exception would wait for the model's threads, and process 1 of a container has no default action
            signal.signal(each, lambda second, _: os._exit(128 + second))
        server.stopping = True
        stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return stopped


async def _idle(server: Server, seconds: float) -> None:
    """Waits at most `seconds` until no request is in progress."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while server.active:
                await asyncio.sleep(0.02)


def _end_now(code: int, report: Report) -> None:
    report("exiting while a model is still running or loading")
    os._exit(code)
