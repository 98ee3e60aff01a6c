"""Decoding in windows: constant memory, order, progress, pipes, and the same bytes after any number of
interruptions."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT
from helpers.tiny_model import silent, train_pairs

from t2t_repro.inference import line_windows
from t2t_repro.inference.line_windows import as_they_come, decode_to_file, decode_to_stream, windows
from t2t_repro.model import packed

NUMBER = 40
EXPECTED = "".join(f"{number}!\n" for number in range(NUMBER))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes windows of 2, 4, 8, 10, 10 and 6 items: 40 in all."""
    monkeypatch.setattr(line_windows, "FIRST_WINDOW", 2)
    monkeypatch.setattr(line_windows, "WINDOW", 10)


def items(number: int = NUMBER) -> Iterator[tuple[str]]:
    return ((str(each),) for each in range(number))


def louder(window, report, advance) -> list[str]:
    advance(len(window))
    return [f"{text}!" for (text,) in window]


class Killed(BaseException):
    pass


def killed_after(calls: int):
    """Returns a `louder` that is killed in window number `calls`."""
    left = iter(range(calls))

    def decode(window, report, advance):
        if next(left, None) is None:
            raise Killed
        return louder(window, report, advance)

    return decode


def killed_or(left: Iterator[int], function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` while `left` has items, and then raises."""
    if next(left, None) is None:
        raise Killed
    return function(*arguments)


# Windows.


def test_windows_grow_and_resume_at_any_of_them(small_windows):
    made = list(windows(items()))
    assert [len(window) for window in made] == [2, 4, 8, 10, 10, 6]
    assert list(itertools.chain(*made)) == list(items())
    assert list(windows(itertools.islice(items(), 6, None), 2)) == made[2:]
    assert list(windows(items(0))) == []
    assert len(next(windows(items(), 10**9))) == 10


def test_pipe_is_decoded_when_it_pauses(small_windows):
    """Sends three lines, then one, and closes the pipe only after both were returned."""
    given = [threading.Event(), threading.Event()]

    def come() -> Iterator[tuple[str]]:
        yield from [("a",), ("b",), ("c",)]
        assert given[0].wait(20)
        yield ("d",)
        assert given[1].wait(20)

    found = []
    for window in as_they_come(come()):
        found += window
        if len(found) >= 3:
            given[len(found) - 3].set()
    assert found == [("a",), ("b",), ("c",), ("d",)]


def test_reader_error_follows_the_items_read_before_it(small_windows):
    def come() -> Iterator[tuple[str]]:
        yield ("a",)
        raise ValueError("line 2: not UTF-8")

    reader = as_they_come(come())
    assert next(reader) == [("a",)]
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        next(reader)


def test_pipe_is_read_at_most_one_window_ahead(small_windows):
    taken: list[int] = []

    def come() -> Iterator[tuple[str]]:
        for number in range(1_000):
            taken.append(number)
            yield (str(number),)

    reader = as_they_come(come())
    first = next(reader)
    time.sleep(0.2)
    assert len(first) == 2 and len(taken) <= 2 + 10 + 1
    assert len(first) + sum(map(len, reader)) == 1_000


def test_lines_are_written_window_by_window(small_windows):
    written: list[list[str]] = []
    decode_to_stream(items(), louder, written.append, silent, NUMBER)
    assert [len(lines) for lines in written] == [2, 4, 8, 10, 10, 6]
    assert "".join(f"{line}\n" for lines in written for line in lines) == EXPECTED


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path):
    def peak(number: int) -> int:
        tracemalloc.start()
        decode_to_file(items(number), louder, str(tmp_path / "out"), {}, silent, number)
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    few, many = peak(30_000), peak(300_000)
    assert many < 1.1 * few


def test_reports_name_the_line_of_the_input(small_windows):
    said: list[str] = []

    def decode(window, report, advance):
        for number, (text,) in enumerate(window):
            if text == "7":
                report(number, "has 2,000 tokens")
        return louder(window, report, advance)

    decode_to_stream(items(), decode, lambda lines: None, said.append, NUMBER)
    assert said == ["line 8 has 2,000 tokens"]


@pytest.mark.parametrize("total", [NUMBER, None])
def test_progress(small_windows, monkeypatch, total):
    """One item takes a second: the first report comes after ten, then one each minute. Resumed items do not raise the
    rate."""
    clock = itertools.count()
    monkeypatch.setattr(line_windows.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(line_windows, "REPORT", 20.0)
    said: list[str] = []

    def decode(window, report, advance):
        for _ in window:
            advance(1)
        return [""] * len(window)

    progress = line_windows._Progress(said.append, total, done=4)
    line_windows._decode_windows([list(items(6)), list(items(30))], decode, lambda *_: None, progress)
    first, second = said
    if total is None:
        assert first.startswith("13 lines, 0.9 per second")
    else:
        assert first == "13 of 40 lines, 0.9 per second, 0:00:30 left"
        assert second == "33 of 40 lines, 1.0 per second, 0:00:07 left"


# Resumed files.


@pytest.mark.parametrize("stop", range(7))
def test_interrupted_in_any_window_and_resumed(small_windows, tmp_path, stop):
    path, said = str(tmp_path / "out"), []
    try:
        decode_to_file(items(), killed_after(stop), path, {"beam": 4}, said.append, NUMBER)
    except Killed:
        assert not os.path.exists(path)
    decode_to_file(items(), louder, path, {"beam": 4}, said.append, NUMBER)
    assert Path(path).read_text() == EXPECTED and os.listdir(tmp_path) == ["out"]
    starts = [0, 2, 6, 14, 24, 34]
    assert said == ([f"continuing {path} at line {starts[stop] + 1}"] if 0 < stop < 6 else [])


def test_killed_at_any_byte_of_a_window(small_windows, tmp_path):
    """Bytes of a window that is not in the record are discarded, whether a line, half of one or nothing."""
    path = tmp_path / "out"
    with pytest.raises(Killed):
        decode_to_file(items(), killed_after(3), str(path), {}, silent)
    partial, record = Path(f"{path}.partial"), Path(f"{path}.partial.json")
    kept, known = partial.read_bytes(), record.read_bytes()
    assert kept.decode() == "".join(f"{number}!\n" for number in range(14))
    for more in range(25):
        partial.write_bytes(kept + EXPECTED.encode()[len(kept) :][:more])
        record.write_bytes(known)
        decode_to_file(items(), louder, str(path), {}, silent)
        assert path.read_text() == EXPECTED and os.listdir(tmp_path) == ["out"]


def test_killed_at_every_file_operation(small_windows, tmp_path, monkeypatch):
    """Decoding resumes after a kill before or after each durable write and each rename."""
    changes = 0
    for stop in itertools.count():
        folder = tmp_path / str(stop)
        folder.mkdir()
        left = iter(range(stop))
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "remove"):
                patch.setattr(os, name, functools.partial(killed_or, left, getattr(os, name)))
            try:
                decode_to_file(items(), louder, str(folder / "out"), {}, silent)
                changes = stop
                break
            except Killed:
                pass
        decode_to_file(items(), louder, str(folder / "out"), {}, silent)
        assert (folder / "out").read_text() == EXPECTED and os.listdir(folder) == ["out"]
    assert changes > 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "expected a JSON object, got list"),
        ("{}", "no made_by; remove it to translate from the first line"),
        ('{"made_by": {}, "windows": null}', "no windows; remove it to translate from the first line"),
    ],
)
def test_damaged_record_is_named(small_windows, tmp_path, text, reason):
    path = str(tmp_path / "out")
    with pytest.raises(Killed):
        decode_to_file(items(), killed_after(2), path, {}, silent)
    record = Path(f"{path}.partial.json")
    record.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(record))} is damaged: {reason}$"):
        decode_to_file(items(), louder, path, {}, silent)
    record.unlink()
    decode_to_file(items(), louder, path, {}, silent)
    assert Path(path).read_text() == EXPECTED


def test_other_command_or_input_does_not_resume(small_windows, tmp_path):
    path = str(tmp_path / "out")
    with pytest.raises(Killed):
        decode_to_file(items(), killed_after(2), path, {"beam": 4, "alpha": 0.6}, silent)
    message = r"out.partial' was written by another command \(other beam\); give the same command and input to continue"
    with pytest.raises(ValueError, match=message):
        decode_to_file(items(), louder, path, {"beam": 8, "alpha": 0.6}, silent)
    other = [("x",), *itertools.islice(items(), 1, None)]
    for wrong in (other, list(items(3))):
        with pytest.raises(ValueError, match="out.partial' was written from other input; give the same"):
            decode_to_file(wrong, louder, path, {"beam": 4, "alpha": 0.6}, silent)
    decode_to_file(items(NUMBER + 1), louder, path, {"beam": 4, "alpha": 0.6}, silent)  # lines added since
    assert Path(path).read_text() == f"{EXPECTED}{NUMBER}!\n"


def test_two_processes_do_not_write_one_file(small_windows, tmp_path):
    path = str(tmp_path / "out")

    def second(window, report, advance):
        with pytest.raises(ValueError, match="another process writes '.*out'; wait for it, or stop it"):
            decode_to_file(items(), louder, path, {}, silent)
        return louder(window, report, advance)

    decode_to_file(items(), second, path, {}, silent)
    assert Path(path).read_text() == EXPECTED


def test_no_input_gives_an_empty_file_and_a_failure_no_file(tmp_path):
    decode_to_file(items(0), louder, str(tmp_path / "out"), {}, silent)
    assert (tmp_path / "out").read_bytes() == b""
    with pytest.raises(Killed):
        decode_to_file(items(), killed_after(0), str(tmp_path / "other"), {}, silent)
    assert os.listdir(tmp_path) == ["out"]


# The program.


def decoder(run, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "t2t_repro.bin.t2t_decoder", f"--output_dir={run.directory}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # so that the program hides TensorFlow's own messages
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **options)


def kill_in_window(child: subprocess.Popen, record: Path, number: int, delay: float) -> None:
    """Sends SIGKILL `delay` seconds after `number` windows were written."""
    deadline = time.monotonic() + 200
    while not (record.exists() and json.loads(record.read_text())["windows"] >= number):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("further", "number", "kills"),
    [
        pytest.param((), 6_000, (1, 3), marks=pytest.mark.slow),
        pytest.param(("--n_best=2", "--beam_size=2"), 6_000, (1, 3), marks=pytest.mark.slow),
        pytest.param(("--sampling_temperature=1", "--n_best=2"), 6_000, (1, 3), marks=pytest.mark.slow),
        (("--sampling_temperature=1", "--n_best=2"), 900, (1,)),  # windows of 256, 512 and 132 lines
    ],
    ids=["beam", "n best", "sampled", "sampled, killed once"],
)
def test_killed_decoder_writes_the_same_bytes(trained, program, monkeypatch, tmp_path, further, number, kills):
    monkeypatch.setattr(packed, "SMALL_MATRIX", 1 << 18)  # as in the other process
    rng = random.Random(1)
    sources = [source for source, _ in train_pairs()]
    lines = [" ".join(rng.choices(sources, k=1 + each % 2)) if each % 50 else "" for each in range(number)]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    command = [f"--decode_from_file={tmp_path / 'in'}", *further]
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert program("t2t-decoder", f"--output_dir={trained.directory}", *command, f"--decode_to_file={whole}").code == 0
    for windows_done in kills:
        child = decoder(trained, *command, f"--decode_to_file={out}")
        kill_in_window(child, Path(f"{out}.partial.json"), windows_done, rng.random() / 5)
        assert not out.exists()
    result = program("t2t-decoder", f"--output_dir={trained.directory}", *command, f"--decode_to_file={out}")
    assert result.code == 0 and result.err.startswith(f"continuing {out} at line ")
    assert out.read_bytes() == whole.read_bytes() and sorted(os.listdir(tmp_path)) == ["in", "out", "whole"]


def test_decoder_answers_a_pipe_that_stays_open(trained):
    with decoder(trained, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        watchdog = threading.Timer(200, child.kill)
        watchdog.start()
        for line in (b"3 red cats\r\n", b"\n", b"12 old dogs\n"):
            child.stdin.write(line)
            answer = child.stdout.readline()
            assert answer.endswith(b"\n") and (answer == b"\n") == (line == b"\n")
        child.stdin.close()
        assert child.wait() == 0 and child.stdout.read() == child.stderr.read() == b""
        watchdog.cancel()


def test_decoder_ends_while_a_pipe_stays_open(trained):
    """The decoder ends without further input if it is interrupted or its reader has exited."""
    with decoder(trained, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        watchdog = threading.Timer(200, child.kill)
        watchdog.start()
        child.stdin.write(b"3 red cats\n")
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait() == 130 and child.stderr.read() == b"t2t-decoder: interrupted\n"
        watchdog.cancel()


def test_decoder_refuses_a_device_to_write_to(trained, program):
    message = "t2t-decoder: --decode_to_file: '/dev/null' is not a regular file; give the name of one\n"
    found = program("t2t-decoder", f"--output_dir={trained.directory}", "--decode_to_file=/dev/null")
    assert found == (1, "", message) and not os.path.isfile("/dev/null")


def test_decoder_replaces_no_input(trained, program, tmp_path, monkeypatch):
    """Nor is it one of the files beside the output. Of a symbolic link, the file that it names is replaced."""
    monkeypatch.chdir(tmp_path)
    Path("out.partial").write_text("12\n")
    for path in ("out", "there.gz"):
        how = (f"--output_dir={trained.directory}", "--decode_from_file=out.partial", f"--decode_to_file={path}")
        code, _, err = program("t2t-decoder", *how)
        message = "would be written without compression" if path.endswith(".gz") else "would replace the file of --dec"
        assert code and message in err and err.count("\n") == 1
    assert Path("out.partial").read_text() == "12\n"
    target, link = tmp_path / "target", tmp_path / "another link"
    link.symlink_to("target")
    line_windows.decode_to_file([("12",)], lambda items, report, advance: ["twelve"], str(link), {}, print)
    assert link.is_symlink() and target.read_text() == "twelve\n"
