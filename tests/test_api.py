"""The public API: everything in `dir(t2t_repro)`, and nothing heavy before it is used."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT
from helpers.tiny_model import PROBLEM, TINY, silent

import t2t_repro

NAMES = [name for name in t2t_repro.__all__ if name != "__version__"]


def in_python(source: str) -> str:
    command = [sys.executable, "-c", source]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_name_is_listed_documented_and_in_the_docs(name: str) -> None:
    assert name in dir(t2t_repro) and getattr(t2t_repro, name).__doc__
    assert f"t2t.{name}" in (CHECKOUT / "docs/python.md").read_text("utf-8")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 't2t_repro' has no attribute 'tarin'"):
        _ = t2t_repro.tarin


def test_import_brings_no_tensorflow() -> None:
    use = "t2t_repro.get_hparams('base@tiny'), t2t_repro.TrainingOptions(), t2t_repro.train, t2t_repro.load"
    assert in_python(f"import sys, t2t_repro; {use}; print('tensorflow' in sys.modules)") == "False\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is TensorFlow's own choice on other processors")
def test_import_turns_onednn_on_unless_the_user_decides() -> None:
    ask = "import os, t2t_repro; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    assert in_python(f"import os; os.environ.pop('TF_ENABLE_ONEDNN_OPTS', None); {ask}") == "1\n"
    assert in_python(f"import os; os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'; {ask}") == "0\n"


@pytest.mark.parametrize("module", ["hparams.base", "problems.wmt14", "problem", "preparation", "exporting.exporter"])
def test_no_function_takes_the_name_of_a_module(module: str) -> None:
    assert in_python(f"import t2t_repro; t2t_repro.train; import t2t_repro.{module} as m; print(m.__name__)") == (
        f"t2t_repro.{module}\n"
    )


def test_names_are_registered_and_listed(registered) -> None:
    registered(PROBLEM)
    assert PROBLEM.name in t2t_repro.list_problems() and t2t_repro.get_problem(PROBLEM.name) == PROBLEM
    assert "base" in t2t_repro.list_hparams() and t2t_repro.get_hparams("base@tiny").d_model == 128
    with pytest.raises(ValueError, match=rf"'{PROBLEM.name}' is registered twice: at .* and at \S*test_api\.py:\d+;"):
        t2t_repro.register_problem(PROBLEM)
    with pytest.raises(ValueError, match=r"'base' is registered twice: at .* and at \S*test_api\.py:\d+;"):
        t2t_repro.register_hparams(t2t_repro.get_hparams("base"))


def test_messages_can_be_silenced_before_the_first_use() -> None:
    """The names of the package are imported lazily, and the logger with them."""
    silenced = "import logging; logger = logging.getLogger('t2t_repro'); logger.setLevel(logging.WARNING)"
    used = "import t2t_repro; t2t_repro.train; print(logging.getLevelName(logger.level))"
    assert in_python(f"{silenced}; {used}") == "WARNING\n"
    assert in_python(f"import logging; logger = logging.getLogger('t2t_repro'); {used}") == "INFO\n"


def test_messages_are_logged_and_can_be_silenced(data: str, tmp_path: Path, one_replica, capsys, monkeypatch) -> None:
    logger = logging.getLogger("t2t_repro")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()
    hparams = t2t_repro.HParams(**TINY.to_dict() | {"train_steps": 1})
    t2t_repro.train(PROBLEM, hparams, data, str(tmp_path / "run"), t2t_repro.TrainingOptions(precision="float32"))
    assert capsys.readouterr().err == ""
    logger.manager._clear_cache()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, data, out: t2t_repro.train(PROBLEM, TINY, data, out, init_from=""), "init_from: no directory ''"),
        (
            lambda run, data, out: t2t_repro.prepare(PROBLEM, out, vocabulary_from=""),
            "vocabulary_from: no directory ''",
        ),
        (lambda run, data, out: t2t_repro.evaluate(run, data_dir=""), f"'{PROBLEM.name}' holds no prepared data"),
        (lambda run, data, out: t2t_repro.learn_shortlist(run, "", report=silent), "No such file or directory: ''"),
    ],
)
def test_an_empty_path_is_not_ignored(trained, data: str, tmp_path: Path, monkeypatch, call, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        call(trained.directory, data, str(tmp_path / "OUT"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: t2t_repro.prepare(PROBLEM.name, "DATA"),
            "problem: expected a Problem, such as get_problem('translate_ende_wmt14'). Received: 'animals'",
        ),
        (lambda: t2t_repro.train(PROBLEM.name, TINY, "DATA", "RUN"), "problem: expected a Problem"),
        (
            lambda: t2t_repro.train(PROBLEM, "tiny", "DATA", "RUN"),
            "hparams: expected HParams, such as get_hparams('base'). Received: 'tiny'",
        ),
        (
            lambda: t2t_repro.train(PROBLEM, TINY, "DATA", "RUN", {"seed": 3}),
            "options: expected TrainingOptions, such as TrainingOptions(seed=2). Received: {'seed': 3}",
        ),
    ],
)
def test_a_name_instead_of_its_object_is_refused(call, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()
