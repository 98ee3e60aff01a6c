"""Tries every fault of `fault_cases.py` on the real programs, and compares the results with docs/reliability.md.

A fault passes if the program exits by itself with the right exit code and one line on standard error that explains the
fault, prints no result, leaves every file as it was, and leaves no incomplete file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import itertools
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import CHECKOUT, Result
from helpers import tiny_model
from helpers.fault_cases import AREAS, FAULTS, FRESH
from helpers.fault_injection import DATA, RUN, TRAIN, Fault

from t2t_repro.bin import t2t_trainer
from t2t_repro.cli import launcher
from t2t_repro.config import TrainingOptions
from t2t_repro.data.input_pipeline import TrainingText
from t2t_repro.data.vocabulary import Vocabulary
from t2t_repro.preparation.pipeline import prepare
from t2t_repro.run import Run, TrainingData, TrainingRecord
from t2t_repro.training.distributed.rendezvous import Cluster
from t2t_repro.training.training_loop import TrainingLoop

PAGE = CHECKOUT / "docs/reliability.md"
START, END = "<!-- the table: written by the tests -->\n", "<!-- the end of the table -->\n"
HANGS = 300  # seconds
# files that a failure may leave
ACCOUNTS = re.compile(r"(.*/)?(\.lock|progress\.json)|data|data/(translate|parse)_\w+(/trees)?")
AREA_OF = {fault: area for area in AREAS for fault in area.faults}


def key(fault: Fault) -> tuple[str, str]:
    return AREA_OF[fault].title, fault.what


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text, its prepared data and a run of a model with checkpoints 2 and 4, under the name "here".

    What is in "here" is copied to "text", "data" and "run", to start each fault from.
    """
    top = tmp_path_factory.mktemp("world")
    here = top / "here"
    here.mkdir()
    for side, name in enumerate(("train.en", "train.de")):
        lines = [f"{pair[side]}\n" for pair in itertools.islice(tiny_model.train_pairs(), 60)]
        (here / name).write_text("".join(lines), "utf-8")
    shutil.copytree(here, top / "text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr(sys, "argv", list(TRAIN))
        patch.setattr(tf.distribute, "MirroredStrategy", functools.partial(tf.distribute.MirroredStrategy, ["CPU:0"]))
        launcher._parse(t2t_trainer.FLAGS, (), ())
        problem, hparams = t2t_trainer.chosen()
        dataset = prepare(problem, DATA, tiny_model.silent)
        shutil.copytree(here, top / "data")
        vocabulary = Vocabulary(dataset.vocabulary)
        run = Run(RUN, problem, hparams, DATA, 1, "float32", vocabulary.sha256).start(dataset.vocabulary)
        run.note(TrainingRecord(data=TrainingData.from_json(dataset.condition())))
        text = TrainingText.of(run, dataset)
        what = run, Cluster.from_environment(), dataset, text, vocabulary.size
        training = TrainingLoop(*what, TrainingOptions(), tiny_model.silent, preview=None, others={})
        for step in (2, 4):
            training.step.assign(step)
            training.checkpoints.save(step)
            training.record_progress()
    shutil.copytree(here, top / "run")
    return top


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a fault is tried: always the same, because prepared data records the path of its text."""
    folder = world / "here"
    _empty(folder)
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    os.chmod(folder, 0o755)


def _empty(folder: Path) -> None:
    for each in folder.rglob("*"):
        if each.is_dir() and not each.is_symlink():
            each.chmod(0o755)
    shutil.rmtree(folder)


def contents(folder: Path) -> dict[str, str]:
    """Returns the type and content of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode
        kind = stat.filemode(mode)[0]
        found[name] = kind + (hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else "")
    return found


@contextmanager
def no_hang() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"it still ran after {HANGS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def attempt(world, here, monkeypatch, capfd, tmp_path):
    """Returns `attempt(fault)`, which arranges the fault, runs the program and returns what it printed."""

    def call(fault: Fault) -> Result:
        if fault.needs:
            shutil.copytree(world / fault.needs, here, dirs_exist_ok=True)
        fault.arrange()
        before = contents(here)
        capfd.readouterr()
        with fault.around(), no_hang():
            code = in_a_shell(fault.command) if isinstance(fault.command, str) else in_this_process(fault)
        os.chmod(here, 0o755)
        out, err = capfd.readouterr()
        after = contents(here)
        lost = [name for name in before if after.get(name) != before[name]]
        left = [name for name in after if name not in before and not _may_be_left(name, fault)]
        assert not lost and not left, (lost, left, err)
        return Result(code, out, err.replace(f"{here}/", "").replace(str(here), "."))

    def in_this_process(fault: Fault) -> int:
        monkeypatch.setattr(sys, "argv", list(fault.command))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fault.stdin), encoding="utf-8"))
        return importlib.import_module(f"t2t_repro.bin.{fault.program.replace('-', '_')}").main()

    def in_a_shell(line: str) -> int:
        programs = tmp_path / "programs"
        programs.mkdir()
        for name in ("t2t-registry", "t2t-decoder"):
            module = f"t2t_repro.bin.{name.replace('-', '_')}"
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            (programs / name).chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PATH": f"{programs}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-c", line], env=environment, timeout=HANGS, check=False).returncode

    return call


def _may_be_left(name: str, fault: Fault) -> bool:
    return bool(ACCOUNTS.fullmatch(name)) or any(re.fullmatch(pattern, name) for pattern in fault.leaves)


def row(fault: Fault, said: str) -> str:
    """Returns a row of the table: the fault and the message of the program."""
    shown = f"`{said}`".replace("|", "\\|") if said else "none"
    return f"| {fault.what} | `{fault.program}` | {fault.code} | {shown} |"


def written() -> dict[tuple[str, str], str]:
    """Returns the rows of the page, by area and fault."""
    table = PAGE.read_text("utf-8").partition(START)[2].partition(END)[0]
    found, title = {}, ""
    for line in table.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        elif line.startswith("| ") and not line.startswith(("| fault | program", "| ---")):
            found[title, line.split(" | ")[0].removeprefix("| ")] = line
    return found


OUTCOMES: dict[tuple[str, str], str] = {}  # of this session: rows


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=f"{AREA_OF[fault].title}: {fault.what}", marks=[pytest.mark.slow] * fault.slow)
        for fault in FAULTS
    ],
)
def test_fault_is_reported_in_one_line(fault, attempt, request):
    code, out, err = attempt(fault)
    *before, said = err.rstrip("\n").split("\n")
    assert (code, out) == (fault.code, "" if fault.program != "t2t-report" else out), err
    assert fault.says in said and (said.startswith(f"{fault.program}: ") or not fault.says), err
    assert "Traceback" not in err and not any(line.startswith(f"{fault.program}: ") for line in before), err
    OUTCOMES[key(fault)] = row(fault, said.removeprefix(f"{fault.program}: "))
    if not request.config.getoption("--write-page"):
        assert written().get(key(fault)) == OUTCOMES[key(fault)], "docs/reliability.md differs"


def test_page_lists_exactly_the_faults(request):
    """Compares the page with the results above; --write-page writes the page instead."""
    if request.config.getoption("--write-page"):
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(before + START + _table() + END + rest.partition(END)[2], "utf-8")
    assert list(written()) == [key(fault) for fault in FAULTS]
    assert len(FAULTS) >= 60 and all(fault.code for fault in FAULTS)
    assert f"[{len(FAULTS)} faults](docs/reliability.md)" in (CHECKOUT / "README.md").read_text("utf-8")
    for fault, line in zip(FAULTS, written().values(), strict=True):
        assert line.startswith(f"| {fault.what} | `{fault.program}` | {fault.code} | ") and fault.says in line, fault


def _table() -> str:
    lines = []
    for area in AREAS:
        lines += [
            f"### {area.title}",
            "",
            "| fault | program | exit code | message |",
            "| --- | --- | --- | --- |",
        ]
        lines += [OUTCOMES.get(key(fault)) or written()[key(fault)] for fault in area.faults]
        lines.append("")
    return "\n".join(lines)


def test_file_name_that_is_not_utf8_is_readable(here, world, program):
    """Text files may have any name. Records keep the bytes of the name."""
    shutil.copytree(world / "text", here, dirs_exist_ok=True)
    name = os.fsdecode(b"caf\xe9.en")
    os.rename("train.en", name)
    arguments = [f"--train_source={name}" if each.startswith("--train_source") else each for each in FRESH[1:]]
    assert program("t2t-datagen", *arguments).code == 0
    assert program("t2t-datagen", *arguments).code == 0  # and finds it again
