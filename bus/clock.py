"""Time and chance: the only place that reads either. Everybody else is told.

Waiting on an event loop is the loop's; ``wait_until`` is for threads that watch another process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from rookery.schemas.integers import unix_ms

__all__ = ["SystemClock", "entropy", "monotonic_s", "wait_until"]

T = TypeVar("T")

_POLL_S = 0.003
_UPTIME_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has its monotonic clock stand still in a suspend; macOS does not."""


class SystemClock:
    """The time of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return unix_ms(time.time_ns())

    def uptime_s(self) -> float:
        """Seconds since some moment. It goes on while the machine sleeps and is never set."""
        return time.clock_gettime(_UPTIME_CLOCK)


def entropy(size_bytes: int) -> bytes:
    """Bytes nobody can guess."""
    return os.urandom(size_bytes)


def monotonic_s() -> float:
    """Seconds since some moment; nobody sets this clock. For threads, which have no event loop."""
    return time.monotonic()


def wait_until(condition: Callable[[], T], patience_s: float) -> T:
    """The first true value of ``condition``, or its last one when patience ends. It blocks."""
    deadline = monotonic_s() + patience_s
    while not (value := condition()) and monotonic_s() < deadline:
        time.sleep(_POLL_S)
    return value
