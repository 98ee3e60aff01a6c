"""t2t_repro.serving: correct responses to many concurrent clients, and the correct error for every invalid request.

The model is a stand-in that writes capitals; the real one is served in `test_server_program.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from aiohttp.test_utils import TestClient, TestServer  # noqa: E402
from helpers.capitals import Capitals  # noqa: E402

from t2t_repro.serving.app import Server, Settings  # noqa: E402
from t2t_repro.serving.json_values import Limits  # noqa: E402
from t2t_repro.serving.protocol import Request  # noqa: E402
from t2t_repro.serving.protocol import answer as written  # noqa: E402
from t2t_repro.serving.server import bound  # noqa: E402

TestClient.__test__ = TestServer.__test__ = False  # these are not tests
PREDICT = "/v1/models/m:predict"
LAST = 2**31 - 1  # of the 32-bit integers


def served(test, model=None, **settings):
    """Runs `test(client)` on a new server."""

    async def run():
        server = Server(model or Capitals(), "m", Settings(**settings))
        async with TestClient(TestServer(server.app)) as client:
            client.t2t = server
            return await test(client)

    return asyncio.run(run())


async def post(client, body, path=PREDICT, **options):
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with client.post(path, data=data, **options) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return response.status, await response.json()


def answer(body, **settings):
    return served(lambda client: post(client, body), **settings)


# Valid requests.


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"instances": [{"inputs": "a"}, {"inputs": "b"}]},
            {"predictions": [{"outputs": "A", "scores": -0.1}, {"outputs": "B", "scores": -0.1}]},
        ),
        ({"inputs": {"inputs": ["ab", "c"]}}, {"outputs": {"outputs": ["AB", "C"], "scores": [-0.2, -0.1]}}),
        ({"inputs": ["größe"]}, {"outputs": {"outputs": ["GRößE"], "scores": [-0.7]}}),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 2, "alpha": 0}},
            {"outputs": {"outputs": ["A"], "scores": [-0.1]}},
        ),
        ({"signature_name": "translate", "instances": ["a"]}, {"predictions": [{"outputs": "A", "scores": -0.1}]}),
        (
            {"signature_name": "score", "instances": [{"inputs": "a", "targets": "b"}] * 2},
            {"predictions": [{"log_probabilities": -0.1, "token_log_probabilities": [-0.1]}] * 2},
        ),
        (
            {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["b"]}},
            {"outputs": {"log_probabilities": [-0.1], "token_log_probabilities": [[-0.1]]}},
        ),
        (
            {"signature_name": "translate", "instances": [{"inputs": "a", "beam_size": 2, "alpha": 1}] * 2},
            {"predictions": [{"outputs": "A", "scores": -0.1}] * 2},
        ),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["a", "b"], "beam_size": [2, 3], "alpha": [1]}},
            {"outputs": {"outputs": ["A", "B"], "scores": [-0.1, -0.1]}},
        ),
        ({"inputs": []}, {"outputs": {"outputs": [], "scores": []}}),
        ({"signature_name": "", "inputs": ["a"]}, {"outputs": {"outputs": ["A"], "scores": [-0.1]}}),
        ({"instances": [""]}, {"predictions": [{"outputs": "", "scores": None}]}),  # -inf is null in JSON
        ({"instances": [{"b64": "YQ=="}]}, {"predictions": [{"outputs": "A", "scores": -0.1}]}),
        ({"instances": [{"inputs": {"b64": "/w=="}}]}, {"predictions": [{"outputs": "\ufffd", "scores": -0.1}]}),
    ],
)
def test_rows_and_columns(body, expected):
    assert answer(body) == (200, expected)


def test_state_and_metadata():
    async def look(client):
        found = []
        for path in ("", "/metadata", "/versions/3", "/versions/3/metadata"):
            async with client.get(f"/v1/models/m{path}") as response:
                found.append(await response.json())
        return found, await post(client, {"instances": ["a"]}, "/v1/models/m/versions/3:predict")

    (status, metadata, *same), (code, _) = served(look)
    version = {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert status == {"model_version_status": [version]} and same == [status, metadata] and code == 200
    assert metadata["model_spec"] == {"name": "m", "signature_name": "", "version": "3"}
    assert metadata["metadata"]["signature_def"]["signature_def"] == Capitals.metadata


# Refused requests.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not valid UTF-8"),
        (b'{"instances": ["a"]', "the body is not JSON"),
        (b'{"instances": [NaN]}', "NaN is not valid JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"instances": [' + b"9" * 5_000 + b"]}", "the body is not JSON"),
        (b'["a"]', "must be a JSON object, got a list"),
        (b"null", "must be a JSON object, got null"),
        (b'{"instances": ["a"], "instances": ["b"]}', "a JSON object has the key 'instances' twice; give it once"),
        (b'{"inputs": ["a"], "glossary": {"a": "b", "a": null}}', "a JSON object has the key 'a' twice; give it once"),
        ({}, 'give either "instances"'),
        ({"instances": ["a"], "inputs": ["a"]}, 'give either "instances"'),
        ({"instance": ["a"]}, "unknown key 'instance'; expected signature_name, instances, inputs"),
        ({"instances": "a"}, '"instances" must be a list, got a string'),
        ({"instances": []}, '"instances" is empty; give at least one row'),
        ({"instances": ["a", {"inputs": "a"}]}, 'row 1 of "instances" must be a value like the first, got an object'),
        ({"instances": [{"inputs": "a"}, "a"]}, 'row 1 of "instances" must be an object like the first, got a string'),
        ({"instances": [1]}, "'inputs' must contain strings, got a number"),
        ({"instances": [None]}, "'inputs' must contain strings, got null"),
        ({"instances": [["a"]]}, "'inputs' must contain strings, got a list"),
        ({"instances": [{"input": "a"}]}, "unknown input 'input'; the signature takes inputs"),
        ({"instances": [{"inputs": "a"}, {}]}, 'row 1 of "instances" has different inputs'),
        ({"instances": [{}]}, "missing input 'inputs'"),
        ({"instances": [{"b64": "?"}]}, "must contain base64"),
        ({"instances": [{"b64": 1}]}, "must contain base64"),
        ({"instances": [{"b64": "ü"}]}, "must contain base64"),
        (b'{"instances": ["\\ud800"]}', "a lone surrogate"),
        ({"inputs": {"inputs": "a"}}, "'inputs' must be a list, got a string"),
        ({"inputs": 1}, "'inputs' must be a list, got a number"),
        ({"signature_name": "tranlsate", "instances": ["a"]}, "unknown signature 'tranlsate'; this model has serving"),
        ({"signature_name": ["translate"], "instances": ["a"]}, "unknown signature ['translate']"),
        ({"signature_name": "score", "instances": ["a"]}, '"instances" must contain objects with inputs, targets, got'),
        ({"signature_name": "score", "instances": [{"inputs": "a"}]}, "missing input 'targets'; signature score takes"),
        ({"signature_name": "score", "inputs": ["a"]}, '"inputs" must be an object with inputs, targets, got a list'),
        (
            {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": []}},
            "equal length: inputs has 1, targets has 0",
        ),
        ({"signature_name": "translate", "instances": [{"inputs": "a", "scalar": 2}]}, "one value for all rows"),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["a", "b", "c"], "beam_size": [2, 3]}},
            "equal length: inputs has 3, beam_size has 2",
        ),
        (  # a negative option does not lower the sum, and large ones do not overflow
            {"signature_name": "translate", "inputs": {"inputs": ["a" * 900] * 99, "beam_size": [64] * 98 + [-70_000]}},
            "of all 99 rows is 5,958,400; at most 4,194,304",
        ),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["a"] * 3, "beam_size": LAST, "extra_length": LAST}},
            "of all 3 rows is 13,835,058,048,839,712,768; at most 4,194,304",
        ),
        (
            {"signature_name": "translate", "inputs": {"inputs": ["a"] * 1024, "beam_size": 64, "extra_length": 1024}},
            "of all 1,024 rows is 67,174,400; at most 4,194,304: send fewer rows, or lower beam_size or extra_length",
        ),
        ({"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 2.5}}, "a 32-bit integer"),
        ({"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": True}}, "got a boolean True"),
        ({"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 2**31}}, "a 32-bit integer"),
        ({"signature_name": "translate", "inputs": {"inputs": ["a"], "alpha": "0"}}, "must be a 32-bit number"),
        (b'{"signature_name": "translate", "inputs": {"inputs": ["a"], "alpha": 1e999}}', "a 32-bit number"),
        ({"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 65}}, "beam_size must be from 1 to"),
        ({"instances": ["a"] * 1_025}, "too many rows in one request: 1,025; at most 1,024"),
        ({"instances": ["a" * 10_001]}, "a string of 10,001 characters; at most 10,000"),
    ],
)  # fmt: skip
def test_invalid_requests_get_a_reason(body, message):
    status, found = answer(body)
    assert status == 400 and message in found["error"] and list(found) == ["error"]
    assert len(found["error"]) < 250


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/n:predict", 404, "this server has /v1/models/m, version 3"),
        ("POST", "/v1/models/m/versions/2:predict", 404, "version 3"),
        ("POST", f"{PREDICT}?beam_size=2&x=%ff", 400, "fields in the address are not read: 'beam_size=2&x=%FF'; send"),
        (
            "POST",
            "/translate?alternatives=2",
            400,
            "fields in the address are not read: 'alternatives=2'; send",
        ),
        ("GET", f"/v1/models/m/versions/{'1' * 5_000}", 404, "version 3"),
        ("POST", "/v1/models/m:classify", 404, "not found"),
        ("GET", "/v1/models/m:predict", 405, "Method Not Allowed"),
        ("DELETE", "/v1/models/m", 405, "Method Not Allowed"),
        ("GET", "/../etc/passwd", 404, "Not Found"),
        ("GET", "/page.html", 404, "Not Found"),
    ],
)
def test_unknown_addresses_and_methods(method, path, status, message):
    async def ask(client):
        async with client.request(method, path) as response:
            return response.status, await response.json(), response.headers.get("Allow", "")

    code, found, allow = served(ask)
    assert code == status and message in found["error"]
    assert (status == 405) == bool(allow)


def test_body_that_is_too_large():
    async def both(client):
        whole = await post(client, b"x" * 1_001)

        async def chunks():  # its length is not known in advance
            for _ in range(20):
                yield b"x" * 100

        async with client.post(PREDICT, data=chunks()) as response:
            return whole, (response.status, await response.json())

    expected = (413, {"error": "the body is too large; at most 1,000 bytes"})
    assert served(both, max_body=1_000) == (expected, expected)


def test_compressed_body():
    headers = {"Content-Encoding": "gzip"}
    status, found = served(lambda client: post(client, b"\x1f\x8b", headers=headers))
    assert status in (400, 415) and "error" in found


def test_slow_body():
    async def ask(client):
        async def drip():
            yield b'{"instances"'
            await asyncio.sleep(30)
            yield b': ["a"]}'

        started = time.monotonic()
        async with client.post(PREDICT, data=drip()) as response:
            return response.status, await response.json(), time.monotonic() - started

    status, found, seconds = served(ask, body_seconds=0.2)
    assert (status, found) == (408, {"error": "the body arrived too slowly"}) and seconds < 20


def test_incomplete_and_invalid_heads():
    async def ask():
        server = TestServer(Server(Capitals(), "m", Settings()).app)
        await server.start_server(keepalive_timeout=0.3)
        loop = asyncio.get_running_loop()
        try:
            answers = []
            for head in (b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow:", b"\x16\x03\x01 what is this\r\n\r\n"):
                with socket.create_connection((server.host, server.port)) as connection:
                    connection.sendall(head)
                    connection.settimeout(5)
                    answers.append(await loop.run_in_executor(None, lambda c=connection: c.recv(100)))
            return answers
        finally:
            await server.close()

    slow, nonsense = asyncio.run(ask())
    assert slow == b"" and nonsense.startswith(b"HTTP/1.0 400")


def test_internal_errors_are_not_disclosed(caplog):
    assert answer({"instances": ["defect"]}) == (500, {"error": "internal error; see the server's log"})
    assert "the secret inside" in caplog.text


# Concurrent requests.


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came about")


def test_concurrent_clients_share_batches_and_get_their_own_responses():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        texts = [[f"text {n} {row}" for row in range(n % 3 + 1)] for n in range(40)]
        first = asyncio.create_task(post(client, {"instances": ["first"]}))
        await until(lambda: model.calls)
        rest = [asyncio.create_task(post(client, {"instances": rows})) for rows in texts]
        other = asyncio.create_task(
            post(client, {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["b"]}})
        )
        await until(lambda: client.t2t.batcher.waiting == sum(map(len, texts)) + 1)
        model.gate.set()
        found = await asyncio.gather(*rest)
        return texts, found, await first, await other

    texts, found, first, other = served(ask, model=model, max_batch=16)
    assert [[row["outputs"] for row in body["predictions"]] for _, body in found] == [
        [text.upper() for text in rows] for rows in texts
    ]
    assert first[1]["predictions"][0]["outputs"] == "FIRST" and other[1]["outputs"]["log_probabilities"] == [-0.1]
    sizes = [rows for signature, rows in model.calls if signature == "serving_default"]
    assert sizes[0] == 1 and sum(sizes) == 1 + sum(map(len, texts)) and max(sizes) <= 16
    assert len(sizes) <= 2 + sum(map(len, texts)) // 14  # nearly full batches


def test_idle_threads_share_the_queue():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        first = [asyncio.create_task(post(client, {"instances": [f"first {n}"]})) for n in range(6)]
        await until(lambda: len(model.calls) == 2)  # the gate is closed, so both threads wait in the model
        rest = [asyncio.create_task(post(client, {"instances": [f"rest {n}"]})) for n in range(4)]
        await until(lambda: client.t2t.batcher.waiting == 4)
        model.gate.set()
        return await asyncio.gather(*first, *rest)

    found = served(ask, model=model, batch_seconds=0.5, num_parallel_batches=2)
    texts = [f"FIRST {n}" for n in range(6)] + [f"REST {n}" for n in range(4)]
    assert [body["predictions"][0]["outputs"] for _, body in found] == texts
    assert model.calls[:2] == [("serving_default", 3)] * 2
    assert sum(rows for _, rows in model.calls) == 10


def test_request_waits_for_others_up_to_the_limit():
    model = Capitals()

    async def ask(client):
        await asyncio.gather(*(post(client, {"instances": [f"{n}"]}) for n in range(5)))
        started = time.monotonic()
        await post(client, {"instances": ["alone"]})
        return time.monotonic() - started

    seconds = served(ask, model=model, batch_seconds=0.3)
    assert model.calls == [("serving_default", 5), ("serving_default", 1)] and 0.25 < seconds < 20


def test_other_options_need_another_batch():
    model = Capitals()

    async def ask(client):
        bodies = [
            {"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": beam}} for beam in (1, 2, 1, 2, 3)
        ]
        return await asyncio.gather(*(post(client, body) for body in bodies))

    assert {status for status, _ in served(ask, model=model, batch_seconds=0.2)} == {200}
    assert sorted(model.calls) == [("translate", 1), ("translate", 2), ("translate", 2)]


def test_failure_does_not_affect_other_requests():
    async def ask(client):
        return await asyncio.gather(*(post(client, {"instances": [text]}) for text in ("a", "defect", "b")))

    found = served(ask, batch_seconds=0.2)
    assert [status for status, _ in found] == [200, 500, 200]
    assert found[2][1]["predictions"][0]["outputs"] == "B"


def test_too_many_requests_are_refused():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        waiting = [asyncio.create_task(post(client, {"instances": ["a"]})) for _ in range(3)]
        await until(lambda: client.t2t.under_way == 3)
        refused = await post(client, {"instances": ["a"]})
        async with client.get("/healthz") as response:
            health = response.status, response.headers.get("Retry-After")
        model.gate.set()
        return refused, health, await asyncio.gather(*waiting)

    refused, health, answered = served(ask, model=model, max_requests=3)
    assert refused == (503, {"error": "too many requests in progress"})
    assert {status for status, _ in answered} == {200}
    assert health == (200, None)  # a monitor can always reach the server


def test_queue_is_limited():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        first = asyncio.create_task(post(client, {"instances": ["a"]}))
        await until(lambda: model.calls)
        second = asyncio.create_task(post(client, {"instances": ["a"] * 8}))
        await until(lambda: client.t2t.batcher.waiting == 8)
        refused = await post(client, {"instances": ["a"] * 3})
        model.gate.set()
        return refused, await first, await second

    refused, *answered = served(ask, model=model, max_waiting=10)
    assert refused == (503, {"error": "too many sentences in the queue"})
    assert {status for status, _ in answered} == {200}


def test_queued_long_requests_do_not_block_short_ones():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        long = {"instances": ["a" * 2_000] * 9}
        first = asyncio.create_task(post(client, long))
        await until(lambda: model.calls)
        refused = await post(client, long)
        short = asyncio.create_task(post(client, {"instances": ["a"] * 5}))
        await until(lambda: client.t2t.under_way == 2 or short.done())
        model.gate.set()
        return refused, await short, await first

    statuses = [status for status, _ in served(ask, model=model, max_waiting=10, max_batch=1)]
    assert statuses == [503, 200, 200]


def test_connection_reset_leaves_no_traceback(caplog):
    async def ask(client):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
        await writer.drain()
        await until(lambda: client.t2t.active == 1)
        writer.transport.abort()
        await until(lambda: client.t2t.active == 0)
        return await post(client, {"instances": ["a"]})

    status, _ = served(ask)
    assert status == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_timeout_of_the_model_clears_the_queue():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        found = await asyncio.gather(
            *(
                post(client, {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["b"]}})
                for _ in range(3)
            )
        )
        model.gate.set()
        last = await post(client, {"instances": ["a"]})
        return found, last

    found, last = served(ask, model=model, answer_seconds=0.3)
    assert {status for status, _ in found} == {504} and last[0] == 200
    assert model.calls == [("score", 1), ("serving_default", 1)]  # two timed out in the queue


def test_requests_of_disconnected_clients_are_dropped():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        first = asyncio.create_task(post(client, {"instances": ["a"]}))
        await until(lambda: model.calls)
        left = asyncio.create_task(post(client, {"instances": ["left"]}))
        await until(lambda: client.t2t.batcher.waiting == 1)
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        await until(lambda: client.t2t.under_way == 1)
        model.gate.set()
        return await first, await post(client, {"instances": ["b"]})

    first, last = served(ask, model=model)
    assert (first[0], last[0]) == (200, 200)
    assert [rows for _, rows in model.calls] == [1, 1]


# Long requests and misbehaving clients.


def test_long_request_runs_in_slices():
    model = Capitals()
    texts = [f"text {number}" for number in range(100)]

    async def ask(client):
        _, found = await post(client, {"instances": texts})
        columns = {"inputs": ["a" * (number + 1) for number in range(20)], "targets": ["b"] * 20}
        return found, await post(client, {"signature_name": "score", "inputs": columns})

    found, (_, scores) = served(ask, model=model, max_batch=16)
    assert [row["outputs"] for row in found["predictions"]] == [text.upper() for text in texts]
    assert [rows for name, rows in model.calls if name == "score"] == [16, 4]
    assert max(rows for _, rows in model.calls) == 16 and sum(rows for _, rows in model.calls) == 120
    expected = [[-0.1] * (number + 1) + [0] * (19 - number) for number in range(20)]
    assert scores["outputs"]["token_log_probabilities"] == expected


def test_short_request_does_not_wait_for_a_long_one():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        long = asyncio.create_task(post(client, {"instances": ["a"] * 64}))
        await until(lambda: model.calls)
        short = asyncio.create_task(post(client, {"signature_name": "translate", "instances": ["b"]}))
        await until(lambda: client.t2t.batcher.waiting == 61)
        model.gate.set()
        return await asyncio.gather(long, short)

    assert {status for status, _ in served(ask, model=model, max_batch=4)} == {200}
    assert model.calls.index(("translate", 1)) <= 2 and len(model.calls) == 17


def test_slices_of_expensive_rows_are_short():
    model = Capitals()
    body = {"signature_name": "translate", "inputs": {"inputs": ["a"] * 10, "beam_size": 64, "extra_length": 600}}
    status, found = answer(body, model=model)
    assert status == 200 and found["outputs"]["outputs"] == ["A"] * 10
    assert [rows for _, rows in model.calls] == [3, 3, 3, 1]  # 64 x 601 positions per row; at most 131,072 per batch


def test_thread_is_reserved_for_short_requests():
    model, heavy = Capitals(), {"inputs": ["a"] * 8, "beam_size": 64, "extra_length": 1_024}
    run, gate = model.run, threading.Event()

    def held(signature, inputs, cancellation):
        if inputs["inputs"][0] == b"a":
            gate.wait(10)
        return run(signature, inputs, cancellation)

    model.run = held

    async def ask(client):
        long = [asyncio.create_task(post(client, {"signature_name": "translate", "inputs": heavy})) for _ in range(4)]
        await until(lambda: client.t2t.batcher.waiting == 30)  # both threads run a row
        short = [await post(client, {"instances": [f"{number}"]}) for number in range(5)]
        gate.set()
        return short, await asyncio.gather(*long)

    short, long = served(ask, model=model, num_parallel_batches=2)
    assert {status for status, _ in short + long} == {200}
    assert model.calls[:5] == [("serving_default", 1)] * 5 and len(model.calls) == 37


def test_rows_with_different_options():
    model = Capitals()
    rows = [{"inputs": "a", "beam_size": 2}, {"inputs": "b", "beam_size": 3}]

    async def ask(client):
        return await asyncio.gather(
            *(post(client, {"signature_name": "translate", "instances": rows}) for _ in range(2))
        )

    found = served(ask, model=model, batch_seconds=0.2)
    assert [[row["outputs"] for row in body["predictions"]] for _, body in found] == [["A", "B"]] * 2
    assert model.calls == [("translate", 2)] * 2  # separate batches: outputs are as wide as the widest row


def test_abandoned_batch_is_canceled():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        both = [asyncio.create_task(post(client, {"instances": ["a"] * 8})) for _ in range(2)]
        await until(lambda: model.calls)
        both[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await both[0]
        await until(lambda: client.t2t.under_way == 1)
        await asyncio.sleep(0.1)
        still = client.t2t.batcher.longest  # of the other client
        both[1].cancel()
        await until(lambda: client.t2t.batcher.longest == 0)
        return still

    assert served(ask, model=model, batch_seconds=0.2, max_batch=16) > 0
    assert len(model.calls) == 1


def test_slices_after_the_timeout_are_not_run():
    model = Capitals()

    async def ask(client):
        model.gate.clear()
        found = await post(client, {"instances": ["a"] * 64})
        await until(lambda: client.t2t.batcher.longest == 0)
        model.gate.set()
        return found, await post(client, {"instances": ["b"]})

    found, last = served(ask, model=model, max_batch=4, answer_seconds=0.3)
    assert (found[0], last[0]) == (504, 200) and model.calls == [("serving_default", 4), ("serving_default", 1)]


def test_health_fails_while_a_batch_overstays():
    model = Capitals()
    model.is_deaf = True

    async def ask(client):
        async def health():
            async with client.get("/healthz") as response:
                return response.status, await response.text()

        model.gate.clear()
        status, _ = await post(client, {"instances": ["a"]})
        await until(lambda: client.t2t.batcher.longest > 0.4)
        failing = await health()
        model.gate.set()
        await until(lambda: client.t2t.batcher.longest == 0)
        return status, failing, await health()

    found = served(ask, model=model, answer_seconds=0.2, overstay_seconds=0.2)
    assert found == (504, (503, "a batch does not finish\n"), (200, "ok\n"))


def test_unread_response_is_counted_and_aborted():
    async def ask(client):
        body = json.dumps({"instances": ["large"] * 200}).encode()
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        silent = []
        for _ in range(2):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect((client.host, client.port))
            connection.sendall(head + body)
            silent.append(connection)
        await until(lambda: client.t2t.under_way == 2 and client.t2t.batcher.waiting == 0)
        await asyncio.sleep(0.3)  # the responses are sent and not read
        refused = await post(client, {"instances": ["a"]})
        await until(lambda: client.t2t.under_way == 0)
        async with client.get("/metrics") as response:
            text = await response.text()
        for connection in silent:
            connection.close()
        return refused, text, await post(client, {"instances": ["a"]})

    refused, text, last = served(ask, write_seconds=1, max_requests=2)
    assert (refused[0], last[0]) == (503, 200)
    assert 't2t_requests_total{path="/v1/models/m:predict",status="499"} 2.0' in text


def test_size_of_responses_is_limited():
    status, found = answer({"instances": ["a", "b"]}, limits=Limits(values=3))
    assert (status, found["error"]) == (400, "the response has 4 values; at most 3: send fewer or shorter texts")


def test_numbers_are_the_same_in_json():
    rng = np.random.default_rng(0)
    some = np.array([0.0, -0.0, 0.1, 1e-45, 3.4028235e38, 16777216, -np.inf, np.nan], np.float32)
    bits = rng.integers(0, 2**32, 100_000, np.uint64).astype(np.uint32).view(np.float32)
    value = np.concatenate([some, rng.random(100_000, np.float32), bits])
    request = Request("score", {}, {}, len(value), by_rows=True, positions=value)
    found = json.loads(json.dumps(written(request, {"x": value}, Limits())))["predictions"]
    assert [x is None for x in found] == (~np.isfinite(value)).tolist()
    read = np.array([0 if x is None else x for x in found]).astype(np.float32)
    assert (read == np.where(np.isfinite(value), value, 0)).all()
    assert found[2] == 0.1 and max(len(repr(x)) for x in found[8:100_008]) <= len("1.23456789e-05")


# Operation.


def test_model_can_be_replaced():
    old, new = Capitals(), Capitals()
    new.version = 4

    async def ask(client):
        old.gate.clear()
        first = asyncio.create_task(post(client, {"instances": ["a"]}))
        await until(lambda: old.calls)
        client.t2t.serve_model(new)
        second = await post(client, {"instances": ["b"]})
        old.gate.set()
        async with client.get("/v1/models/m") as response:
            (state,) = (await response.json())["model_version_status"]
        gone = await post(client, {"instances": ["a"]}, "/v1/models/m/versions/3:predict")
        there = await post(client, {"instances": ["a"]}, "/v1/models/m/versions/4:predict")
        return await first, second, state["version"], gone, there

    first, second, version, gone, there = served(ask, model=old, num_parallel_batches=2)
    assert (first[0], second[0], version, gone[0], there[0]) == (200, 200, "4", 404, 200)
    assert old.calls == [("serving_default", 1)] and len(new.calls) == 2


def test_labels_are_aliases_of_the_version():
    async def ask(client):
        found = [
            await post(client, {"instances": ["a"]}, f"/v1/models/m/labels/{label}:predict")
            for label in ("stable", "other")
        ]
        for path in ("/labels/stable", "/labels/stable/metadata", "/labels/other"):
            async with client.get(f"/v1/models/m{path}") as response:
                found.append((response.status, None))
        return found

    known, other, *rest = served(ask, labels=("canary", "stable"))
    assert known[0] == 200 and [status for status, _ in rest] == [200, 200, 400]
    assert other == (400, {"error": "unrecognized servable version label: 'other'; known labels: canary, stable"})


def test_access_log_has_one_line_per_request(caplog):
    async def ask(client):
        await post(client, {"instances": ["secret"]})
        async with client.get("/v1/%0Aforged?x=1"):
            pass

    with caplog.at_level("INFO", "t2t_serve.access"):
        served(ask, access_log=True)
    first, second = caplog.messages
    assert re.fullmatch(r"127\.0\.0\.1 POST /v1/models/m:predict 200 \d+\.\d{3} s", first)
    assert re.fullmatch(r"127\.0\.0\.1 GET /v1/%0Aforged 404 \d+\.\d{3} s", second)


def test_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port} of '127.0.0.1': Address already in use"):
            bound("127.0.0.1", port)
    for each in bound("127.0.0.1", port):
        each.close()


def test_health_and_metrics():
    async def ask(client):
        await post(client, {"instances": ["a", "b"]})
        await post(client, b"")
        await post(client, {"instances": ["a"]}, "/v1/models/<script>:predict")
        async with client.get("/healthz") as response:
            health = response.status, await response.text()
        await until(lambda: client.t2t.active == 0)
        client.t2t.stopping = True
        async with client.get("/healthz") as response:
            stopping = response.status
        async with client.get("/metrics") as response:
            return health, stopping, response.headers["Content-Type"], await response.text()

    health, stopping, kind, text = served(ask)
    assert (health, stopping) == ((200, "ok\n"), 503)
    assert kind.startswith("text/plain; version=")
    lines = set(text.split("\n"))
    assert {
        't2t_requests_total{path="/v1/models/m:predict",status="200"} 1.0',
        't2t_requests_total{path="/v1/models/m:predict",status="400"} 1.0',
        't2t_requests_total{path="other",status="404"} 1.0',
        't2t_batch_rows_bucket{le="2.0"} 1.0',
        "t2t_batch_rows_sum 2.0",
        "t2t_predict_seconds_count 2.0",
        "t2t_waiting_rows 0.0",
    } <= lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_page_is_complete_and_escaped():
    model = Capitals()
    model.card = {
        "problem": {"name": '"><script>alert(1)</script>', "source_language": "en", "target_language": "<b>&"},
        "hparams": {"name": "base"},
    }

    async def ask(client):
        async with client.get("/") as response:
            return response.headers, await response.text()

    headers, text = served(ask, model=model)
    assert (
        "default-src 'none'" in headers["Content-Security-Policy"]
        and "unsafe" not in headers["Content-Security-Policy"]
    )
    assert (
        "<title>Translate English to &lt;b&gt;&amp;</title>" in text
        and "&lt;script&gt;alert" in text
        and "<script>alert" not in text
        and text.count("<script>") == 1
    )
    assert "{{" not in text and 'data-address="v1/models/m:predict"' in text and 'lang="en"' in text
    assert "http" not in text.replace("http-equiv", "")


def test_limits_are_settings():
    assert answer({"instances": ["ab"]}, limits=Limits(characters=1))[0] == 400
    assert answer({"instances": ["a", "b"]}, limits=Limits(rows=1))[0] == 400
