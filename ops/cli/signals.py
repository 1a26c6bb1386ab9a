"""How long-running commands hear that they are to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rookery.schemas.errors import CodedError

__all__ = ["StopEvent", "stop_signals"]

POLL_S = 0.5


class StopEvent(threading.Event):
    """Set when somebody wants the command to end."""

    reason = "stopped"
    error: CodedError | None = None
    """Why the command cannot go on, if it was not told to end."""

    def wait_for_signal(self) -> None:
        """Wait for it. Not in one go: the handler of a signal that another thread was given runs
        when this one wakes up."""
        while not self.wait(POLL_S):
            pass

    def drain(self) -> None:
        """Somebody asked for it from elsewhere."""
        self.reason = "drained"
        self.set()

    def fail(self, error: CodedError) -> None:
        """What the command needs is gone for good."""
        self.reason, self.error = error.code, error
        self.set()


@contextmanager
def stop_signals() -> Iterator[StopEvent]:
    """SIGTERM and SIGINT set the event; from then on SIGINT is Python's own again."""
    stopped = StopEvent()

    def stop(number: int, _: object) -> None:
        stopped.reason = signal.Signals(number).name
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
