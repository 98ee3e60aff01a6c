"""Signals that ask a process to stop."""

from __future__ import annotations

import pickle
import signal

import pytest

from t2t_repro.system.signals import SIGNALS, Interrupted, caught_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_caught_and_the_handler_restored(number):
    before = signal.getsignal(number)
    with caught_signals() as caught:
        signal.raise_signal(number)
        assert caught == [number] and signal.getsignal(number) == before
    assert signal.getsignal(number) == before


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
