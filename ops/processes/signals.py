"""Stop signals for long-running commands."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from rookery.schemas.errors import CodedError

__all__ = ["StopEvent", "stop_signals"]

POLL_S = 0.5
_NO_SIGNAL = 0


class StopEvent(threading.Event):
    """Set when the command has to stop."""

    reason = "stopped"
    error: CodedError | None = None
    """The error that stops the command, if it was not a signal."""

    def wait_for_signal(self) -> None:
        """Wait until the event is set.

        It waits in short steps, since Python runs signal handlers only when the main thread wakes.
        """
        while not self.wait(POLL_S):
            pass

    def drain(self) -> None:
        """Stop the command because its node was asked to drain."""
        self.reason = "drained"
        self.set()

    def fail(self, error: CodedError) -> None:
        """Stop the command because of an error."""
        self.reason, self.error = error.code, error
        self.set()


@contextmanager
def stop_signals() -> Iterator[StopEvent]:
    """SIGTERM and SIGINT set the event; a second SIGINT raises ``KeyboardInterrupt``.

    A thread sets it: a handler may interrupt the main thread inside the event's own lock, and would
    wait there for itself. A ``SimpleQueue`` can be used in handlers.
    """
    stopped = StopEvent()
    arrived: SimpleQueue[int] = SimpleQueue()

    def stop(number: int, _: object) -> None:
        arrived.put(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def forward() -> None:
        if number := arrived.get():
            stopped.reason = signal.Signals(number).name
            stopped.set()

    forwarder = threading.Thread(target=forward, name="rookery-signals", daemon=True)
    forwarder.start()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        arrived.put(_NO_SIGNAL)
        forwarder.join()
