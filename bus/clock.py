"""Clocks and randomness, read only here; other modules take them as arguments.

Coroutines wait on their event loop; ``wait_until`` is for threads that watch another process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from rookery.schemas.ids import uuid7
from rookery.schemas.scalars import unix_ms

__all__ = ["SystemClock", "entropy", "monotonic_s", "new_id", "wait_until"]

T = TypeVar("T")

_POLL_S = 0.003
_UPTIME_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stops during a suspend; macOS's does not."""


class SystemClock:
    """The time of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return unix_ms(time.time_ns())

    def uptime_s(self) -> float:
        """Seconds from an arbitrary start. The clock runs during sleep and is never set."""
        return time.clock_gettime(_UPTIME_CLOCK)


def entropy(size_bytes: int) -> bytes:
    """Unpredictable bytes."""
    return os.urandom(size_bytes)


def new_id() -> str:
    """A unique message id. Repetitions of a request share it."""
    return uuid7(SystemClock().now_ms(), entropy(10))


def monotonic_s() -> float:
    """Seconds from an arbitrary start, by a clock that is never set; for threads without a loop."""
    return time.monotonic()


def wait_until(condition: Callable[[], T], patience_s: float) -> T:
    """The first true value of ``condition``, or its value when patience ends. It blocks."""
    deadline = monotonic_s() + patience_s
    while not (value := condition()) and monotonic_s() < deadline:
        time.sleep(_POLL_S)
    return value
