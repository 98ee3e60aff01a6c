"""Huge pages: who can have them, and the restart that requests them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from t2t_repro.cli import launcher
from t2t_repro.system import heap

CHILD = """
import os, sys
from t2t_repro.cli import launcher
launcher.use_huge_pages()
print(os.environ.get("GLIBC_TUNABLES"), *sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("library", "setting", "can"),
    [
        (("glibc", "2.35"), "always [madvise] never", True),
        (("glibc", "2.41"), "always [madvise] never", True),
        (("glibc", "2.34"), "always [madvise] never", False),
        (("", ""), "always [madvise] never", False),
        (("glibc", "2.35"), "[always] madvise never", False),  # it has them anyway
        (("glibc", "2.35"), "always madvise [never]", False),
        (("glibc", "2.35"), None, False),  # not Linux
    ],
)
def test_huge_pages_are_for_systems_that_give_them_on_request(monkeypatch, tmp_path, library, setting, can):
    file = tmp_path / "enabled"
    if setting:
        file.write_text(f"{setting}\n")
    monkeypatch.setattr(heap, "_HUGE_PAGES_OF_LINUX", str(file))
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    assert heap.can_have_huge_pages() is can


@pytest.mark.parametrize(("can", "variables"), [(True, {}), (False, {}), (True, {"GLIBC_TUNABLES": ""})])
def test_a_process_restarts_once_with_the_request(monkeypatch, can, variables):
    started = []
    monkeypatch.setattr(heap, "can_have_huge_pages", lambda: can)
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.delenv("GLIBC_TUNABLES")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    launcher.use_huge_pages()
    if can and not variables:
        ((program, arguments, environment),) = started
        assert program == sys.executable and arguments[1:] == sys.orig_argv[1:]
        assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1" and environment["PATH"] == os.environ["PATH"]
    else:
        assert not started


def test_a_restarted_process_keeps_its_arguments(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    run = [sys.executable, str(script), "--a=b c", "d"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    expected = heap.HUGE_PAGES if heap.can_have_huge_pages() else "None"
    assert done.stdout == f"{expected} --a=b c d\n"
