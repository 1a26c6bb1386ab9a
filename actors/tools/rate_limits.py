"""How many calls of a capability may run at once, and how many may start within a minute.

Counters without clocks, locks or queues: time is an argument, one thread uses each, and who waits
for a place, in which order, is the caller's to keep. They count this process only.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["ConcurrencyLimit", "RateWindow"]

_MINUTE_MS: Final = 60_000


class ConcurrencyLimit:
    """Places for calls that run at once."""

    def __init__(self, concurrency: int) -> None:
        self._free = self._concurrency = concurrency

    def try_acquire(self) -> bool:
        """Take a place, if there is one."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        """Give back a place that was taken."""
        assert self._free < self._concurrency, "more places were given back than taken"
        self._free += 1


class RateWindow:
    """Starts within the last minute, to the millisecond; ``None`` counts nothing."""

    def __init__(self, rate_per_min: int | None) -> None:
        self._rate_per_min = rate_per_min
        self._starts: deque[tuple[int, int]] = deque()
        """Milliseconds and how many started in each: never more than a minute has."""
        self._count = 0
        self._now_ms = 0

    def try_acquire(self, now_ms: int) -> bool:
        """Count a start at ``now_ms``, if the minute before it has room for one."""
        if self._rate_per_min is None:
            return True
        if self.free_in_ms(now_ms):
            return False
        self._count += 1
        if self._starts and self._starts[-1][0] == self._now_ms:
            self._starts.append((self._now_ms, self._starts.pop()[1] + 1))
        else:
            self._starts.append((self._now_ms, 1))
        return True

    def free_in_ms(self, now_ms: int) -> int:
        """How long to wait before there is room, if nobody else starts meanwhile; 0 is now."""
        self._now_ms = max(now_ms, self._now_ms)  # A clock set back opens no second minute.
        while self._starts and self._starts[0][0] <= self._now_ms - _MINUTE_MS:
            self._count -= self._starts.popleft()[1]
        if self._rate_per_min is None or self._count < self._rate_per_min:
            return 0
        return self._starts[0][0] + _MINUTE_MS - self._now_ms
