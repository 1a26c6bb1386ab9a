"""A stop signal stops a command wherever it interrupts the main thread."""

from __future__ import annotations

import os
import signal

import pytest

from rookery.ops.processes import stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_interrupts_the_wait_inside_its_lock_sets_the_event(number: int):
    with stop_signals() as stopped:
        with stopped._cond:  # Where `wait` is for an instant.
            os.kill(os.getpid(), number)
        assert stopped.wait(90)
        assert stopped.reason == signal.Signals(number).name


def test_a_second_interrupt_ends_a_command_that_does_not_stop():
    with stop_signals() as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        stopped.wait_for_signal()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_after_the_command_signals_are_handled_as_before():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
