"""Signals that ask a process to stop."""

from __future__ import annotations

import os
import pickle
import signal
import threading

import pytest

from t2t_repro.system.signals import SIGNALS, Interrupted, caught_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_caught_and_the_handler_restored(number):
    before = signal.getsignal(number)
    with caught_signals() as caught:
        signal.raise_signal(number)
        expected = signal.SIG_IGN if number == signal.SIGHUP else before
        assert caught == [number] and signal.getsignal(number) == expected
    assert signal.getsignal(number) == before


def test_the_echo_of_a_signal_is_no_second_one():
    """A closed terminal sends SIGHUP twice, and a service manager SIGTERM before SIGHUP."""
    with caught_signals() as caught:
        for number in (signal.SIGTERM, signal.SIGHUP):
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        signal.raise_signal(signal.SIGHUP)
        assert caught == [signal.SIGHUP]


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
