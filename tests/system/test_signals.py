"""Signals that ask a process to stop."""

from __future__ import annotations

import pickle
import signal

import pytest

from t2t_repro.system import signals
from t2t_repro.system.signals import SIGNALS, Interrupted, caught_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_caught_and_the_handler_restored(number):
    """Those that follow immediately are its echo: a closed terminal sends SIGHUP twice."""
    before = [signal.getsignal(each) for each in SIGNALS]
    with caught_signals() as caught:
        for each in (number, *SIGNALS):
            signal.raise_signal(each)
        assert caught == [number]
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_later_signal_has_its_usual_effect(monkeypatch):
    """Except SIGHUP: after Ctrl-C, the terminal may be closed before the checkpoint is saved."""
    monkeypatch.setattr(signals, "_ECHO", -1)
    with caught_signals() as caught:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert caught == [signal.SIGTERM]


def test_closed_terminal_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with caught_signals() as caught:
            signal.raise_signal(signal.SIGHUP)
        assert caught == [] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interruption_can_be_sent_to_another_process():
    found = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM)))
    assert found.signal == signal.SIGTERM and str(found) == "stopped by SIGTERM; the same command continues"
