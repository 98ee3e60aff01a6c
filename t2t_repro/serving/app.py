"""The web application: TF Serving's REST API and LibreTranslate's over a `ServedModel`, a page, health and metrics.

    POST /v1/models/NAME:predict                GET /v1/models/NAME, /v1/models/NAME/metadata
    POST /v1/models/NAME/versions/N:predict     GET /v1/models/NAME/versions/N, /v1/models/NAME/versions/N/metadata
    POST /v1/models/NAME/labels/L:predict       GET /v1/models/NAME/labels/L, /v1/models/NAME/labels/L/metadata
    POST /translate    GET /languages    GET /health
    GET /    GET /healthz    GET /metrics

Every error of a well-formed request is a JSON object {"error": "..."}. The status is 400 for an invalid request, 404
and 405 for an unknown address or method, 408 for a body that arrives too slowly, 413 for a body that is too large, 415
for a compressed body, 503 if the server is overloaded, 504 if the model takes too long, and 500 for an internal error,
whose details are only logged. aiohttp itself refuses what is not HTTP, in plain text.

aiohttp closes a connection whose head does not arrive within `Settings.idle_seconds`. A response that the client does
not read within `Settings.write_seconds` is aborted; until then its request counts as in progress.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, exposition

from t2t_repro.saved_model import WrongInput
from t2t_repro.serving import documents, json_values, libretranslate, page, protocol
from t2t_repro.serving.batching import Batcher, Outputs, Overloaded
from t2t_repro.serving.cancellation import Cancelled
from t2t_repro.serving.model import ServedModel

logger = logging.getLogger("t2t_serve")
access_logger = logging.getLogger("t2t_serve.access")

_SECURITY = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_COUNTED = web.RequestKey("counted", bool)  # set on requests that `Server.under_way` counts
_LEFT = 499  # status, in metrics and log, of a request whose client did not read the response
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Settings:
    """Limits and timeouts of a server."""

    max_batch: int = 64  # maximum rows per batch
    num_parallel_batches: int = 1  # one thread each
    batch_seconds: float = 0.005  # maximum time that the oldest request waits for others
    max_body: int = 1 << 20  # bytes
    max_connections: int = 512  # further ones receive 503 and are closed
    max_requests: int = 256  # in progress, from the head of the request to the last byte of the response
    max_waiting: int = 4_096  # queued rows: this many of long requests, and as many of short ones
    body_seconds: float = 10.0  # timeout for receiving a body
    answer_seconds: float = 60.0  # timeout for the model
    overstay_seconds: float = 10.0  # a batch that runs longer than `answer_seconds` plus this makes /healthz fail
    write_seconds: float = 30.0  # timeout for a client to read its response
    idle_seconds: float = 30.0  # timeout for an idle connection, and for the head of a request
    drain_seconds: float = 5.0  # after SIGTERM: /healthz fails, and requests are still answered
    stop_seconds: float = 20.0  # after that: time for requests in progress
    labels: tuple[str, ...] = ()  # aliases of the served version
    access_log: bool = False  # one line per request
    example: str = ""  # for the page, instead of the problem's
    limits: json_values.Limits = field(default_factory=json_values.Limits)


class Metrics:
    """The metrics of /metrics, in Prometheus' text format."""

    def __init__(self, under_way: Callable[[], int], waiting: Callable[[], int]):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = {"registry": self.registry}
        self.requests = Counter("t2t_requests", "Answered requests", ["path", "status"], **registry)
        self.seconds = Histogram("t2t_predict_seconds", "From a request's head to the end of its response", **registry)
        sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        self.batches = Histogram("t2t_batch_rows", "Rows per batch", buckets=sizes, **registry)
        predictions = Gauge("t2t_requests_under_way", "Predictions whose response is not completely sent", **registry)
        predictions.set_function(under_way)
        Gauge("t2t_waiting_rows", "Rows queued for the model", **registry).set_function(waiting)


class Server:
    """The application `app` over one model under one name. `stopping` is set when clients should use another server."""

    def __init__(self, model: ServedModel, name: str, settings: Settings):
        self.name, self.settings = name, settings
        self.stopping = False
        self.answered = self.active = self.under_way = 0  # `active`: requests of any kind
        self.serve_model(model)
        self.metrics = Metrics(lambda: self.under_way, lambda: self.batcher.waiting)
        self.app = web.Application(client_max_size=settings.max_body, middlewares=[self._guard])
        self.app.cleanup_ctx.append(self._with_batcher)
        self.app.add_routes(
            [
                web.get("/", self._page),
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics),
                web.post("/translate", self._translate),
                web.get("/languages", self._languages),
                web.get("/health", self._health_in_json),
                *self._model_routes(f"/v1/models/{name}"),
                *self._model_routes(f"/v1/models/{name}/versions/{{version:[0-9]{{1,18}}}}"),
                *self._model_routes(f"/v1/models/{name}/labels/{{label:[^/:]+}}"),
            ]
        )

    def serve_model(self, model: ServedModel) -> None:
        """Uses `model` for new requests. Requests in progress finish with the previous model."""
        self.page, self.model = page.render(model, self.name, self.settings.example), model

    def _model_routes(self, path: str) -> list[web.RouteDef]:
        return [
            web.post(f"{path}:predict", self._predict),
            web.get(path, self._status),
            web.get(f"{path}/metadata", self._metadata),
        ]

    def _addressed(self, request: web.Request) -> ServedModel:
        """Returns the model, if the version or label in the address is that of the model."""
        if int(request.match_info.get("version", self.model.version)) != self.model.version:
            raise web.HTTPNotFound
        label = request.match_info.get("label")
        if label is not None and label not in self.settings.labels:
            known = ", ".join(self.settings.labels) or "none"
            raise json_values.BadRequest(f"unrecognized servable version label: {label!r:.80}; known labels: {known}")
        return self.model

    async def _with_batcher(self, _: web.Application) -> AsyncIterator[None]:
        settings = self.settings
        self.batcher = Batcher(
            settings.max_batch,
            settings.batch_seconds,
            settings.max_waiting,
            self.metrics.batches.observe,
            settings.num_parallel_batches,
        )
        await self.batcher.start()
        yield
        await self.batcher.stop()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts requests until their response is sent, and turns every failure into an error response."""
        started, status = time.perf_counter(), _LEFT
        self.active += 1
        try:
            response = await self._answered(request, handler)
            if await self._write(request, response):
                status = response.status
            return response
        finally:
            self.active -= 1
            self.answered += 1
            seconds = time.perf_counter() - started
            if _COUNTED in request:
                self.under_way -= 1
                self.metrics.seconds.observe(seconds)
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            if self.settings.access_log:
                line = f"{request.remote} {request.method} {request.rel_url.raw_path:.200} {status} {seconds:.3f} s"
                access_logger.info(line.encode("ascii", "backslashreplace").decode())

    async def _write(self, request: web.Request, response: web.StreamResponse) -> bool:
        """Sends the response. Returns true if the client read all of it; otherwise the connection is aborted."""
        response.headers.update(_SECURITY)
        if self.stopping:
            response.force_close()
        if request.transport is None:
            return False
        request.transport.set_write_buffer_limits(0)  # writing returns only when this process holds no more data
        try:
            async with asyncio.timeout(self.settings.write_seconds):
                await response.prepare(request)
                await response.write_eof()
            return True
        except ConnectionError:
            return False
        except TimeoutError:
            request.transport.abort()
            return False

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (json_values.BadRequest, WrongInput) as error:
            return self._refusal(400, str(error))
        except web.RequestPayloadError:
            return self._refusal(400, "the body is incomplete")
        except Overloaded as error:
            return self._refusal(503, str(error), retry=True)
        except Cancelled:
            return self._refusal(503, "the server is stopping", retry=True)
        except web.HTTPRequestEntityTooLarge:
            return self._refusal(413, f"the body is too large; at most {self.settings.max_body:,} bytes")
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return self._refusal(error.status, self._what_there_is(request, error), headers=allow)
        except ConnectionError:  # the client disconnected while sending its body
            return self._refusal(400, "the connection was closed")
        except Exception:
            logger.exception("request failed")
            return self._refusal(500, "internal error; see the server's log")

    def _what_there_is(self, request: web.Request, error: web.HTTPException) -> str:
        if error.status != 404 or not request.path.startswith("/v1/"):
            return error.reason
        return f"not found; this server has /v1/models/{self.name}, version {self.model.version}"

    def _refusal(
        self, status: int, message: str, retry: bool = False, headers: dict[str, str] | None = None
    ) -> web.Response:
        response = _json({"error": message}, status)
        response.headers.update(headers or {})
        if retry:
            response.headers["Retry-After"] = "1"
        if status in (408, 413, 415):
            response.force_close()  # do not wait for the rest of the body
        return response

    async def _predict(self, request: web.Request) -> web.Response:
        model, limits = self._addressed(request), self.settings.limits
        self._count(request)
        understood = protocol.parse(await self._body(request), model.signatures, limits)
        outputs = await self._outputs(understood, model)
        return await _written(lambda: protocol.answer(understood, outputs, limits))

    async def _translate(self, request: web.Request) -> web.Response:
        model, limits = self.model, self.settings.limits
        self._count(request)
        wanted = libretranslate.parse(await self._fields(request), model, limits)
        outputs = await self._outputs(wanted.request, model)
        return await _written(lambda: libretranslate.answer(wanted, outputs, limits))

    def _count(self, request: web.Request) -> None:
        """Counts a request for the model. Raises `Overloaded`."""
        if self.under_way >= self.settings.max_requests:
            raise Overloaded("too many requests in progress")
        self.under_way += 1
        request[_COUNTED] = True

    async def _outputs(self, understood: protocol.Request, model: ServedModel) -> Outputs:
        try:
            async with asyncio.timeout(self.settings.answer_seconds):
                if understood.language is None:
                    return await self.batcher(understood, model.run)
                # in a thread, because hostile text takes a second
                sentences = await asyncio.to_thread(documents.split, understood, model, self.settings.limits)
                return await asyncio.to_thread(sentences.joined, await self.batcher(sentences.request, model.run))
        except TimeoutError:
            raise web.HTTPGatewayTimeout(reason="the model took too long; send fewer sentences") from None

    async def _fields(self, request: web.Request) -> dict[str, Any]:
        """Returns the fields of a form, or the JSON object that any other body is."""
        body = await self._body(request)
        try:
            kind = request.content_type
        except UnicodeError:  # of a parameter such as filename*
            raise json_values.BadRequest("Content-Type has a parameter of an unknown encoding") from None
        if kind == "application/x-www-form-urlencoded":  # in threads, because a megabyte can take half a second
            return await asyncio.to_thread(libretranslate.fields_of_form, body)
        if kind == "multipart/form-data":
            return await asyncio.to_thread(libretranslate.fields_of_multipart, body, request.headers["Content-Type"])
        return json_values.json_object(body)

    async def _body(self, request: web.Request) -> bytes:
        if fields := request.rel_url.raw_query_string:
            raise json_values.BadRequest(f"fields in the address are not read: {fields!r:.80}; send them in the body")
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise web.HTTPUnsupportedMediaType(reason="compressed bodies are not supported; send plain JSON")
        if (request.content_length or 0) > self.settings.max_body:
            raise web.HTTPRequestEntityTooLarge(self.settings.max_body, request.content_length or 0)
        try:
            return await asyncio.wait_for(request.read(), self.settings.body_seconds)
        except TimeoutError:
            raise web.HTTPRequestTimeout(reason="the body arrived too slowly") from None

    async def _status(self, request: web.Request) -> web.Response:
        model = self._addressed(request)
        state = "UNLOADING" if self.stopping else "AVAILABLE"
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": str(model.version), "state": state, "status": status}
        return _json({"model_version_status": [version]})

    async def _metadata(self, request: web.Request) -> web.Response:
        model = self._addressed(request)
        spec = {"name": self.name, "signature_name": "", "version": str(model.version)}
        definitions = {"signature_def": {"signature_def": model.metadata}}
        return _json({"model_spec": spec, "metadata": definitions})

    async def _page(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": page.POLICY, "Cache-Control": "no-cache"}
        return web.Response(text=self.page, content_type="text/html", charset="utf-8", headers=headers)

    async def _languages(self, _: web.Request) -> web.Response:
        return _json(libretranslate.languages(self.model))

    async def _health(self, _: web.Request) -> web.Response:
        fault = self._fault()
        return web.Response(text=f"{fault or 'ok'}\n", status=503 if fault else 200)

    async def _health_in_json(self, _: web.Request) -> web.Response:
        fault = self._fault()
        return self._refusal(503, fault) if fault else _json({"status": "ok"})

    def _fault(self) -> str:
        """Returns why clients should use another server; "" if they need not."""
        if self.stopping:
            return "stopping"
        overstayed = self.batcher.longest > self.settings.answer_seconds + self.settings.overstay_seconds
        return "a batch does not finish" if overstayed else ""

    async def _metrics(self, _: web.Request) -> web.Response:
        text = exposition.generate_latest(self.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})


async def _written(body: Callable[[], Any]) -> web.Response:
    """Returns a response, written in a thread, because attention weights are megabytes of text."""
    text = await asyncio.to_thread(lambda: _dumps(body()))
    return web.Response(text=text, content_type="application/json")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, dumps=_dumps)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
