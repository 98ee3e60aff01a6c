"""t2t-registry --new_problem: a folder whose problem trains and whose test passes; and --completion, in a real bash."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest
from conftest import CHECKOUT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CHECKOUT)}


def test_new_problem_passes_its_own_test(program, tmp_path):
    folder = tmp_path / "deep" / "mine"
    code, out, err = program("t2t-registry", "--new_problem=translate_numbers", str(folder))
    assert (code, err) == (0, "")
    files = ["README.md", "tests", "tests/test_translate_numbers.py", "translate_numbers.py"]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == files
    assert sorted(out.split()) == [str(folder / file) for file in files if file != "tests"]
    assert (folder / "README.md").read_text().count("\n") == 3
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


def test_new_problem_is_listed(program, tmp_path):
    program("t2t-registry", "--new_problem=translate_digits", str(tmp_path / "mine"))
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_registry", f"--t2t_usr_dir={tmp_path}/mine"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "  translate_digits" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mine", "a problem's name must be lower-case letters, digits and _, got 'Mine'"),
        ("../mine", "a problem's name must be lower-case letters, digits and _, got '../mine'"),
        ("translate_files", "problem 'translate_files' already exists; choose another name"),
    ],
)
def test_new_problem_with_an_impossible_name(program, tmp_path, name, message):
    result = program("t2t-registry", f"--new_problem={name}", str(tmp_path / "new"))
    assert result == (1, "", f"t2t-registry: {message}\n") and not list(tmp_path.iterdir())


def test_new_problem_in_the_empty_folder_of_the_shell(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert program("t2t-registry", "--new_problem=translate_here", ".").code == 0
    assert sorted(os.listdir(".")) == ["README.md", "tests", "translate_here.py"]


def test_new_problem_overwrites_nothing(program, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for there in ("mine", "file"):
        result = program("t2t-registry", "--new_problem=translate_mine", there)
        message = f"{there!r} already exists and is not an empty directory; give a new one"
        assert result == (1, "", f"t2t-registry: {message}\n")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "file",
        "mine",
        "mine/letter.txt",
    ]
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert program("t2t-registry", "--new_problem=translate_mine", "new").code == 1
    assert not list(tmp_path.glob("new*"))


# Completion.

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture
def completion(program, tmp_path):
    code, out, err = program("t2t-registry", "--completion=bash")
    assert (code, err) == (0, "")
    (tmp_path / "completion.sh").write_text(out)
    return str(tmp_path / "completion.sh")


@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["t2t-trainer", "--prob"], ["--problem="]),
        (
            ["t2t-trainer", "--problem", "=", "translate_en"],
            ["translate_ende_cldr", "translate_ende_wmt14", "translate_enfr_cldr", "translate_enfr_wmt14"],
        ),
        (["/usr/bin/t2t-eval", "--split", "="], ["train", "validation", "test"]),
        (["t2t-trainer", "--split", "="], ["validation", "test"]),  # it refuses train
        (["t2t-bleu", "--language", "="], ["de", "en", "fr"]),
        (["t2t-decoder", "--language", "=", "d"], [""]),  # any code, not the three of t2t-bleu
        (["t2t-decoder", "--decode_i"], ["--decode_interactive"]),
        (["t2t-bleu", "compl"], ["completion.sh"]),
        (["t2t-decoder", "--decode_from_file", "=", "compl"], ["completion.sh"]),
    ],
)
def test_completion(completion, words, expected):
    line = f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}"
    source = f'source {completion}; {line}; _t2t; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", source], cwd=os.path.dirname(completion), capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


@needs_bash
def test_completion_by_the_tab_key(completion):
    """Typed at a terminal, where readline cuts the words: the flag, its "=", and the name."""
    keyboard, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "$ "}
    command = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    ) as shell:
        os.close(terminal)
        try:
            os.write(keyboard, f"source {completion}\n".encode())
            os.write(keyboard, b"t2t-datagen --prob\ttranslate_ende_c\t --veri\t \n")
            seen, end = b"", time.monotonic() + 60
            while b"--problem=translate_ende_cldr --verify" not in seen and time.monotonic() < end:
                if select.select([keyboard], [], [], 1)[0]:  # a read would block forever if nothing is printed
                    seen += os.read(keyboard, 1024)
            assert b"t2t-datagen --problem=translate_ende_cldr --verify" in seen, seen
        finally:
            shell.kill()
    with contextlib.suppress(OSError):
        os.close(keyboard)
