"""t2t-serve as a process with a real SavedModel: several clients, and signals."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from conftest import CHECKOUT
from helpers.tiny_model import test_pairs as held_out_pairs

from t2t_repro.inference.translator import Translator
from t2t_repro.text.translations import distinct

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from t2t_repro.serving.cancellation import Cancellation, Cancelled  # noqa: E402
from t2t_repro.serving.model import ServedModel  # noqa: E402

TEXTS = [source for source, _ in held_out_pairs()] + ["", "12 big cows"]


class Served:
    """A running t2t-serve at `address`."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-m", "t2t_repro.bin.t2t_serve", "--port=0", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # unset, so that the program hides TensorFlow's messages
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        watchdog = threading.Timer(300, self.process.kill)
        watchdog.start()
        self.lines = [self.process.stderr.readline(), self.process.stderr.readline()]
        watchdog.cancel()
        if " http://127.0.0.1:" not in self.lines[1]:
            self.process.kill()
            raise AssertionError("".join(self.lines) + self.process.communicate()[1])
        self.address = self.lines[1].split()[1]

    def post(self, body, name="E", path=None):
        address = self.address + (path or f"v1/models/{name}:predict")
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=300) as response:
            return response.read().decode()

    def until(self, text):
        """Reads the log up to a line that contains `text`."""
        while text not in (line := self.process.stderr.readline()):
            assert line, text

    def stop(self, number):
        self.process.send_signal(number)
        return self.ended()

    def ended(self):
        _, err = self.process.communicate(timeout=300)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def exported(exported, tmp_path_factory):
    """A folder with version 1, to which the tests add versions."""
    return shutil.copytree(os.path.dirname(exported), tmp_path_factory.mktemp("served") / "E")


@pytest.fixture(scope="module")
def served(exported):
    flags = ["--batch_ms=20", "--answer_seconds=300", "--attention", "--access_log", "--drain_seconds=1"]
    running = Served(f"--export_dir={exported}", *flags, "--stop_seconds=300", "--poll_seconds=1")
    yield running
    if running.process.poll() is None:  # unless the last test has stopped it
        running.process.kill()
        running.process.communicate()


def test_concurrent_clients_get_the_runs_results(served, trained):
    translator = Translator.from_run(trained.directory)
    expected = translator.n_best(TEXTS, 1)
    several = translator.n_best(TEXTS, 2, beam_size=3, alpha=0.0)
    scores = translator.score([(text, text) for text in TEXTS])

    def ask(n):
        text, number = TEXTS[n % len(TEXTS)], n % len(TEXTS)
        code, one = served.post({"instances": [text]})
        assert code == 200 and one["predictions"][0]["outputs"] == expected[number][0][0]
        assert one["predictions"][0]["scores"] == pytest.approx(expected[number][0][1], abs=1e-4)
        return one

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        assert len(list(clients.map(ask, range(40)))) == 40
    batches, rows = (
        float(re.search(rf"^t2t_batch_rows_{what} (\S+)$", served.get("metrics"), re.M)[1]) for what in ("count", "sum")
    )
    assert rows == 40 and batches < 40

    _, every = served.post({"instances": TEXTS})
    assert [row["outputs"] for row in every["predictions"]] == [best[0][0] for best in expected]
    options = {"beam_size": 3, "alpha": 0, "n_best": 2}
    code, found = served.post({"signature_name": "translate", "inputs": {"inputs": TEXTS, **options}})
    assert code == 200
    rows = [{"inputs": text, **options} for text in TEXTS]
    assert served.post({"signature_name": "translate", "instances": rows})[1]["predictions"] == [
        dict(zip(found["outputs"], row, strict=True)) for row in zip(*found["outputs"].values(), strict=True)
    ]
    for texts, values, best in zip(found["outputs"]["outputs"], found["outputs"]["scores"], several, strict=True):
        # the signature returns translations that differ only in spaces; a `Translator` returns the best of them
        different = [text for text, _ in distinct(list(zip(texts, values, strict=True)), 2)]
        assert different == [text for text, _ in best][: len(different)]
    _, found = served.post({"signature_name": "score", "inputs": {"inputs": TEXTS, "targets": TEXTS}})
    assert found["outputs"]["log_probabilities"] == pytest.approx(scores, rel=1e-4)
    _, plain = served.post({"signature_name": "translate", "inputs": {"inputs": TEXTS[:2]}})
    assert [row[0] for row in plain["outputs"]["outputs"]] == [best[0][0] for best in expected[:2]]
    _, found = served.post({"signature_name": "attention", "instances": [{"inputs": TEXTS[0], "targets": TEXTS[1]}]})
    (row,) = found["predictions"]
    assert "".join(row["target_pieces"]).replace("\u2581", " ").removesuffix("</s>") == TEXTS[1]


def test_form_of_libretranslate(served, trained):
    translator, fields = Translator.from_run(trained.directory), {"source": "en", "target": "de"}  # it names none
    expected = translator.n_best(TEXTS, 4)
    code, found = served.post({"q": TEXTS, "alternatives": 3, "documents": False, **fields}, path="translate")
    assert code == 200 and found["translatedText"] == [best[0][0] for best in expected]
    assert found["alternatives"] == [[text for text, _ in best[1:] if text.strip()] for best in expected]
    (best,) = translator.translate(TEXTS[:1])  # with the narrower beam of the run
    for documents, text in ((False, best), (True, best.strip())):  # spaces around sentences are those of the source
        body = {"q": TEXTS[0], "documents": documents, **fields}
        assert served.post(body, path="translate") == (200, {"translatedText": text})
    assert json.loads(served.get("health")) == {"status": "ok"}


def test_requests_that_the_model_refuses(served):
    body = {"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 65}}
    assert served.post(body) == (400, {"error": "beam_size must be from 1 to 64, got 65"})
    body = {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["12 " * 2_000]}}
    code, found = served.post(body)
    assert code == 400 and found["error"].startswith("a text has too many tokens; at most 1024 are scored, got")
    assert served.post({"instances": ["a"]}, name="F")[0] == 404


def test_metadata_equals_that_of_the_saved_model(served):
    found = json.loads(served.get("v1/models/E/metadata"))
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "translate", "score", "attention"}
    assert signatures["serving_default"]["inputs"]["inputs"]["dtype"] == "DT_STRING"
    assert signatures["translate"]["defaults"]["n_best"]["dtype"] == "DT_INT32"  # TF Serving adds the default
    first, second = served.lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ loading version 1 of E\n", first)
    assert second.endswith("serves version 1 of E\n")


def test_attention_is_not_served_by_default(exported):
    model, other = ServedModel(str(exported)), ServedModel(str(exported), attention=True)
    assert set(other.signatures) - set(model.signatures) == {"attention"} == set(other.metadata) - set(model.metadata)


def test_cancellation_ends_only_its_own_call(exported):
    model = ServedModel(str(exported))
    inputs = {"inputs": np.array([b"a"] * 64), "beam_size": 64, "extra_length": 1_024, "alpha": 3.0}
    cancelled, other = Cancellation(), Cancellation()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        long = threads.submit(model.run, "translate", inputs, cancelled)
        threading.Timer(1, cancelled.cancel).start()
        small = {"inputs": np.array([b"12 big cows"] * 8)}
        for _ in range(5):
            model.run("translate", small, other)
        with pytest.raises(Cancelled):
            long.result(60)
        assert len(threads.submit(model.run, "translate", small, other).result(60)["outputs"]) == 8
        with pytest.raises(Cancelled):
            model.run("translate", small, cancelled)


def test_short_requests_do_not_wait_for_long_ones(served):
    options = {"beam_size": 64, "extra_length": 1_024, "alpha": 3.0}
    body = json.dumps({"signature_name": "translate", "inputs": {"inputs": ["a"] * 60, **options}})
    long = [http.client.HTTPConnection(served.address.split("/")[2]) for _ in range(3)]
    for connection in long:
        connection.request("POST", "/v1/models/E:predict", body)
    while "t2t_requests_under_way 3.0" not in served.get("metrics"):
        pass
    for _ in range(5):
        assert served.post({"instances": ["12 big cows"]})[0] == 200
    assert "t2t_requests_under_way 3.0" in served.get("metrics")
    for connection in long:
        connection.close()
    while "t2t_requests_under_way 0.0" not in served.get("metrics"):
        pass


def test_new_version_is_served_unless_damaged(served, exported):
    def version():
        return json.loads(served.get("v1/models/E"))["model_version_status"][0]["version"]

    assert version() == "1"
    shutil.copytree(exported / "1", exported / ".2")
    (exported / ".2").rename(exported / "2")
    (exported / "3.partial").mkdir()
    while version() == "1":
        assert served.post({"instances": ["12 big cows"]})[0] == 200
    (exported / ".4").mkdir()
    (exported / ".4" / "saved_model.pb").write_bytes(b"nonsense")
    (exported / ".4").rename(exported / "4")
    served.until("still serving version 2 of E: ")
    assert version() == "2" and served.post({"instances": ["12 big cows"]})[0] == 200
    shutil.copytree(exported / "1", exported / "4", dirs_exist_ok=True)
    served.until("now serving version 4 of E")
    assert version() == "4" and served.post({"instances": ["12 big cows"]})[0] == 200
    card = exported / "4" / "model_card.json"  # nobody expects this damage, but the server still looks for versions
    card.write_text(json.dumps({**json.loads(card.read_text()), "hparams": []}))
    served.until("still serving version 4 of E")
    assert served.post({"instances": ["12 big cows"]})[0] == 200
    shutil.copytree(exported / "1", exported / "5")
    served.until("now serving version 5 of E")
    assert version() == "5"


def test_malformed_request_is_one_line_of_the_log(served):
    host, port = served.address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
        assert b" 400 " in connection.recv(100)
    served.until("Error handling request from 127.0.0.1: ")
    assert served.post({"instances": ["12 big cows"]})[0] == 200
    assert " POST " in served.process.stderr.readline()


def test_sigterm_finishes_requests_in_progress(served):
    with concurrent.futures.ThreadPoolExecutor(1) as client:
        body = {"signature_name": "translate", "inputs": {"inputs": TEXTS * 20, "beam_size": 8, "extra_length": 100}}
        answer = client.submit(served.post, body)
        while "t2t_requests_under_way 1.0" not in served.get("metrics"):
            assert not answer.done()
        code, err = served.stop(signal.SIGTERM)
        status, found = answer.result()
    assert status == 200 and len(found["outputs"]["outputs"]) == 20 * len(TEXTS)
    assert code == 143
    lines = [line.split(" ", 1)[1] for line in err.splitlines()]
    first, second, last = [line for line in lines if "stop" in line]
    assert first == "stopping: /healthz fails; requests are accepted for 1 s more" and last == lines[-1]
    # a fast machine answers it within that second
    assert re.fullmatch(r"stopping: [01] requests in progress have 300 s to finish", second)
    assert re.fullmatch(r"stopped; \d+ requests were answered", lines[-1])
    assert any(re.fullmatch(r"127\.0\.0\.1 POST /v1/models/E:predict 200 \S+ s", line) for line in lines)


# Errors before TensorFlow is imported.


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "missing --export_dir (see t2t-serve --help)"),
        (["--export_dir=none"], 1, "--export_dir: no directory 'none'; give the one that t2t-exporter wrote to"),
        (["--export_dir=.", "--port=70000"], 2, "flag --port=70000: expected an integer in the range [0, 65535]"),
        (["--export_dir=.", "--example=Stra\udcdfe"], 2, "--example is not valid UTF-8"),
        (["--export_dir=.", "--labels=gr\udcfcn"], 2, "--labels is not valid UTF-8"),
    ],
)
def test_invalid_command_line(program, monkeypatch, tmp_path, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    found = program("t2t-serve", *arguments)
    assert (found.code, found.out) == (code, "") and found.err.startswith(f"t2t-serve: {message}")


def test_port_in_use_is_reported_before_the_model_is_loaded(program, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"nonsense")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = program("t2t-serve", f"--export_dir={tmp_path}", "--model_name=E", f"--port={port}")
    message = f"t2t-serve: cannot listen on port {port} of '127.0.0.1': Address already in use; give another\n"
    assert found == (1, "", message)


def test_extra_not_installed(program, monkeypatch, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "aiohttp" else object())
    message = "t2t-serve: aiohttp is not installed; install it with: pip install 't2t_repro[serve]'\n"
    assert program("t2t-serve", f"--export_dir={tmp_path}") == (1, "", message)


def test_exports_that_cannot_be_served(program, exported, tmp_path):
    (tmp_path / "E" / "1").mkdir(parents=True)
    (tmp_path / "E" / "1" / "saved_model.pb").write_bytes(b"nonsense")
    found = program("t2t-serve", f"--export_dir={tmp_path / 'E'}")
    assert found.code == 1 and f"\nt2t-serve: {tmp_path / 'E' / '1'} is damaged: " in found.err
    found = program("t2t-serve", f"--export_dir={exported}", "--model_name=a/b")
    message = "t2t-serve: --model_name: 'a/b' cannot be part of an address; use letters, digits, . _ and -\n"
    assert found == (1, "", message)
