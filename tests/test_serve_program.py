"""t2t-serve as it is used: a process over a real SavedModel, asked by several clients, stopped by a signal."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from conftest import CHECKOUT
from small import test_pairs as held_out_pairs

from t2t_repro.inference.decode import Translator
from t2t_repro.inference.export import export

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
TEXTS = [source for source, _ in held_out_pairs()] + ["", "12 big cows"]


class Served:
    """A running t2t-serve, reached at `address`."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-m", "t2t_repro.bin.t2t_serve", "--port=0", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # without it, the program keeps TensorFlow quiet
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        watchdog = threading.Timer(300, self.process.kill)
        watchdog.start()
        self.line = self.process.stderr.readline()
        watchdog.cancel()
        if not self.line.startswith("http://127.0.0.1:"):
            self.process.kill()
            raise AssertionError(self.line + self.process.communicate()[1])
        self.address = self.line.split()[0]

    def post(self, body, name="E"):
        request = urllib.request.Request(f"{self.address}v1/models/{name}:predict", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=300) as response:
            return response.read().decode()

    def stop(self, number):
        self.process.send_signal(number)
        return self.ended()

    def ended(self):
        _, err = self.process.communicate(timeout=300)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "E"
    export(trained.directory, str(folder))
    return folder


@pytest.fixture(scope="module")
def served(exported):
    running = Served(f"--export_dir={exported}", "--batch_ms=20", "--answer_seconds=300")
    yield running
    if running.process.poll() is None:  # the last test stops it
        running.process.kill()
        running.process.communicate()


def test_what_a_run_gives_to_many_clients(served, trained):
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
    assert found["outputs"]["outputs"] == [[text for text, _ in (*best, ("", 0.0))[:2]] for best in several]
    _, found = served.post({"signature_name": "score", "inputs": {"inputs": TEXTS, "targets": TEXTS}})
    assert found["outputs"]["log_probabilities"] == pytest.approx(scores, rel=1e-4)
    _, plain = served.post({"signature_name": "translate", "inputs": {"inputs": TEXTS[:2]}})
    assert [row[0] for row in plain["outputs"]["outputs"]] == [best[0][0] for best in expected[:2]]
    _, found = served.post({"signature_name": "attention", "instances": [{"inputs": TEXTS[0], "targets": TEXTS[1]}]})
    (row,) = found["predictions"]
    assert "".join(row["target_pieces"]).replace("\u2581", " ").removesuffix("</s>") == TEXTS[1]


def test_what_the_model_refuses(served):
    body = {"signature_name": "translate", "inputs": {"inputs": ["a"], "beam_size": 65}}
    assert served.post(body) == (400, {"error": "beam_size must be from 1 to 64, got 65"})
    body = {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": ["12 " * 2_000]}}
    code, found = served.post(body)
    assert code == 400 and found["error"].startswith("a text has too many tokens; at most 1024 are scored, got")
    assert served.post({"instances": ["a"]}, name="F")[0] == 404


def test_metadata_is_the_saved_models_own(served):
    found = json.loads(served.get("v1/models/E/metadata"))
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "translate", "score", "attention"}
    assert signatures["serving_default"]["inputs"]["inputs"]["dtype"] == "DT_STRING"
    assert signatures["translate"]["defaults"]["n_best"]["dtype"] == "DT_INT32"  # which TF Serving fills in
    assert served.line.endswith("answers for version 1 of E\n")


def test_sigterm_finishes_what_is_under_way(served):
    with concurrent.futures.ThreadPoolExecutor(1) as client:
        body = {"signature_name": "translate", "inputs": {"inputs": TEXTS * 20, "beam_size": 8, "extra_length": 100}}
        answer = client.submit(served.post, body)
        while "t2t_requests_under_way 1.0" not in served.get("metrics"):
            assert not answer.done()
        code, err = served.stop(signal.SIGTERM)
        status, found = answer.result()
    assert status == 200 and len(found["outputs"]["outputs"]) == 20 * len(TEXTS)
    assert code == 143
    assert re.fullmatch(
        r"stopping: what is under way is finished\nt2t-serve: stopped; \d+ requests were answered\n", err
    )


# What it says before anything heavy.


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "missing --export_dir (see t2t-serve --help)"),
        (["--export_dir=none"], 1, "--export_dir: no directory 'none'; give the one that t2t-exporter wrote to"),
        (["--export_dir=.", "--port=70000"], 2, "flag --port=70000: 70000 is not"),
    ],
)
def test_a_wrong_command_line(program, monkeypatch, tmp_path, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    found = program("t2t-serve", *arguments)
    assert (found.code, found.out) == (code, "") and found.err.startswith(f"t2t-serve: {message}")


def test_without_the_extra(program, monkeypatch, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "aiohttp" else object())
    message = "t2t-serve: aiohttp is not installed; install it with: pip install 't2t_repro[serve]'\n"
    assert program("t2t-serve", f"--export_dir={tmp_path}") == (1, "", message)


def test_what_cannot_be_served(program, exported, tmp_path):
    (tmp_path / "E" / "1").mkdir(parents=True)
    (tmp_path / "E" / "1" / "saved_model.pb").write_bytes(b"nonsense")
    found = program("t2t-serve", f"--export_dir={tmp_path / 'E'}")
    assert found.code == 1 and found.err.startswith(f"t2t-serve: {tmp_path / 'E' / '1'} cannot be loaded: ")
    found = program("t2t-serve", f"--export_dir={exported}", "--model_name=a/b")
    message = "t2t-serve: --model_name: 'a/b' cannot stand in an address; use letters, digits, . _ and -\n"
    assert found == (1, "", message)
