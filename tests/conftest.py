"""Fixtures that several test modules share."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from t2t_repro.problem import Problem
from t2t_repro.registry import PROBLEMS
from t2t_repro.run import Run

# Before any test imports TensorFlow: the backend under test, and no log lines about this machine.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["T2T_REPRO_CACHE"] = ""  # every graph is traced
os.environ.setdefault("GLIBC_TUNABLES", "")  # so that no program restarts this process to get huge pages
if "PYTEST_XDIST_WORKER" in os.environ:  # a core each
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

CHECKOUT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-page", action="store_true", help="rewrites the table of docs/reliability.md")


def pytest_configure() -> None:
    """Restores the default handling of Ctrl-C, which shells disable for background processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Splits the CPU into two logical devices, which must happen before TensorFlow's first operation.

    From then on Python searches for garbage less often, and not in modules and collected tests, which stay. TensorFlow
    optimizes graphs once instead of twice, which does not change results (`test_graph_options.py`). The small matrices
    of the tests' models are packed, and multiplied in 8-bit integers, as those of large models are.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        tf.config.list_logical_devices()  # starts TensorFlow: the first test cannot set its threads for all others
        from t2t_repro.inference.graph_options import optimize_once
        from t2t_repro.model import int8, packed

        optimize_once()
        int8.SMALL_MATRIX = packed.SMALL_MATRIX = 0


def pytest_sessionfinish() -> None:
    """Undoes `gc.freeze`: when hypothesis loads for its summary, it looks for the references to an object."""
    gc.unfreeze()


class Result(NamedTuple):
    """The result of a program: exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`program("t2t-eval", "--split=test", stdin=b"...")`: runs it in this process, and returns a `Result`."""

    def call(name: str, *arguments: str, stdin: bytes = b"") -> Result:
        module = importlib.import_module(f"t2t_repro.bin.{name.replace('-', '_')}")
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = module.main()
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Problem], Problem]:
    """`registered(problem)`: registers a problem until the test ends."""

    def register(problem: Problem) -> Problem:
        list(PROBLEMS)  # loads the modules that register
        for attribute in ("_items", "_places"):
            monkeypatch.setattr(PROBLEMS, attribute, dict(getattr(PROBLEMS, attribute)))
        return PROBLEMS.register(problem)

    return register


@pytest.fixture(autouse=True)
def no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training in a test draws curves only if the test is marked: they take a tenth of the time of a short run."""
    loop = sys.modules.get("t2t_repro.training.training_loop")
    if loop and "curves" not in request.keywords:
        monkeypatch.setattr(loop, "write_curves", lambda run, report: [])


@pytest.fixture
def one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains on one CPU. Elsewhere the tests have two, and the trainer takes all."""
    import tensorflow as tf
    from helpers.tiny_model import MIRRORED

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", functools.partial(MIRRORED, ["CPU:0"]))


@pytest.fixture
def on_replicas() -> Iterator[Callable[[int], Any]]:
    """`on_replicas(2)`: trains on two CPUs, in micro-batches of `PART_TOKENS`, until the test ends."""
    from helpers.tiny_model import on_cpus

    with contextlib.ExitStack() as stack:
        yield lambda replicas: stack.enter_context(on_cpus(replicas))


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real text that T2T_REPRO_CORPORA names; the test is skipped if it is not set."""
    folder = os.environ.get("T2T_REPRO_CORPORA", "")
    if not os.path.isdir(folder):
        pytest.skip("T2T_REPRO_CORPORA names no folder of text")
    return Path(folder)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser; the test is skipped if this machine has no Chromium."""
    from helpers.browser import chromium_browser

    with chromium_browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder where `small.PROBLEM` is prepared."""
    from helpers.tiny_model import PROBLEM, silent

    from t2t_repro.preparation.pipeline import prepare

    folder = str(tmp_path_factory.mktemp("data"))
    prepare(PROBLEM, folder, silent)
    return folder


@pytest.fixture(scope="session")
def trained(data: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of eight updates on one CPU, with checkpoints at 4 and 8. Do not change it."""
    from helpers.tiny_model import PROBLEM, TINY, on_cpus, silent

    from t2t_repro.config import TrainingOptions
    from t2t_repro.training.trainer import train

    options = TrainingOptions(precision="float32", checkpoint_steps=4)
    with on_cpus(1):
        return train(PROBLEM, TINY, data, str(tmp_path_factory.mktemp("trained") / "RUN"), options, report=silent)


@pytest.fixture(scope="session")
def exported(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an export of `trained`. Do not change it."""
    from t2t_repro.exporting.exporter import export

    return export(trained.directory, str(tmp_path_factory.mktemp("exported") / "E"))


@pytest.fixture(scope="session")
def exported_with_glossaries(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with an export of `trained` that has glossaries. Do not change it."""
    from t2t_repro.exporting.exporter import export

    folder = str(tmp_path_factory.mktemp("with_glossaries") / "E")
    export(trained.directory, folder, glossaries=True)
    return folder
