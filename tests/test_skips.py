""".ci/skips.py: a test that no run executed is listed and must have a reason that applies to this machine."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import CHECKOUT

FIRST = """<testsuites><testsuite>
<testcase classname="" name="tests.test_torch_parity"><skipped message="collection skipped">
('/tests/test_torch_parity.py', 12, "Skipped: could not import 'torch': No module named 'torch'")</skipped></testcase>
<testcase classname="tests.test_on_beam" name="test_the_same"><skipped message="no 'beam'"/></testcase>
<testcase classname="tests.test_loss" name="test_counts[a.b]"/>
<testcase classname="tests.test_loss" name="test_expected"><skipped type="pytest.xfail" message="known"/></testcase>
</testsuite></testsuites>"""
WITH_TORCH = '<testsuites><testcase classname="tests.test_torch_parity" name="test_logits[1-7.5]"/></testsuites>'
WITH_BEAM = '<testsuites><testcase classname="tests.test_on_beam" name="test_the_same"/></testsuites>'


@pytest.fixture(scope="module")
def skips():
    spec = importlib.util.spec_from_file_location("skips", CHECKOUT / ".ci/skips.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verdict_refuses_a_skip_without_a_confirmed_reason(skips):
    code, lines = skips.verdict(skips.cases(FIRST), ["torch"])
    assert code == 1 and lines == [
        "SKIPPED, although nothing that it needs is known to be missing: tests.test_on_beam.test_the_same: no 'beam'",
        "skipped: tests.test_torch_parity: could not import 'torch': No module named 'torch'",
        "2 tests were executed, 2 were skipped",
    ]
    assert skips.verdict(skips.cases(FIRST), ["torch", "beam"])[0] == 0


def test_verdict_accepts_what_another_run_executed(skips):
    found = [case for report in (FIRST, WITH_TORCH, WITH_BEAM) for case in skips.cases(report)]
    assert skips.verdict(found, []) == (0, ["4 tests were executed, 0 were skipped"])


def test_missing_reports_are_an_error(skips, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["skips.py", str(tmp_path)])
    assert skips.main() == 1 and "Received an empty folder" in capsys.readouterr().out
