"""Limits of a tool: how many of its calls run at once, and how many start per minute.

A node of one process counts alone (``OwnLimit``). A node of several processes has one limit over
all of them: their supervisor allocates the slots (``slot_allocator``), and each process uses its
own (``AllocatedLimit``).

The limits have no clock and no lock: time is an argument, and ``CallSlots`` holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

__all__ = [
    "AllocatedLimit",
    "ConcurrencyLimit",
    "OwnLimit",
    "RateWindow",
    "SlotLimit",
    "SlotReport",
]

_MINUTE_MS: Final = 60_000


class SlotLimit(Protocol):
    """The limit of one tool in this process."""

    def try_enter(self, now_ms: int) -> bool:
        """Take a slot for a call that starts now, if the limit permits it."""

    def release(self, waiting: int) -> None:
        """Release a slot, while so many calls wait for one."""

    def free_in_ms(self, now_ms: int) -> int:
        """Milliseconds until the rate permits the next start; 0 means now, or that the allocator
        says when."""


class ConcurrencyLimit:
    """The number of slots for calls that run at once."""

    def __init__(self, concurrency: int) -> None:
        self._free = self._concurrency = concurrency

    def try_acquire(self) -> bool:
        """Take a slot, if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        assert self._free < self._concurrency, "more slots were released than acquired"
        self._free += 1


class RateWindow:
    """The starts of the last minute, to the millisecond; ``None`` is no limit."""

    def __init__(self, rate_per_min: int | None) -> None:
        self._rate_per_min = rate_per_min
        self._starts: deque[tuple[int, int]] = deque()
        """Milliseconds and the number of starts in each; at most one minute of them."""
        self._count = 0
        self._now_ms = 0

    def try_acquire(self, now_ms: int) -> bool:
        """Count a start at ``now_ms``, if the last minute permits it."""
        if self._rate_per_min is None:
            return True
        if self.free_in_ms(now_ms):
            return False
        self._add()
        return True

    def add(self, start_ms: int) -> None:
        """Count a start that was made; one that is older than the last counts as that one does."""
        self._now_ms = max(start_ms, self._now_ms)
        if self._rate_per_min is not None:
            self._add()

    @property
    def count(self) -> int:
        """The starts of the last minute, as of the last call with a time."""
        return self._count

    def _add(self) -> None:
        self._count += 1
        if self._starts and self._starts[-1][0] == self._now_ms:
            self._starts.append((self._now_ms, self._starts.pop()[1] + 1))
        else:
            self._starts.append((self._now_ms, 1))

    def free_in_ms(self, now_ms: int) -> int:
        """Milliseconds until the next start is permitted; 0 means now."""
        self._now_ms = max(
            now_ms, self._now_ms
        )  # A clock that is set back does not start a new window.
        while self._starts and self._starts[0][0] <= self._now_ms - _MINUTE_MS:
            self._count -= self._starts.popleft()[1]
        if self._rate_per_min is None or self._count < self._rate_per_min:
            return 0
        return self._starts[0][0] + _MINUTE_MS - self._now_ms


class OwnLimit:
    """The limit of a tool in a node of one process."""

    def __init__(self, concurrency: int | None, rate_per_min: int | None) -> None:
        """``concurrency``: ``None`` if no two calls can run at once."""
        self._slots = None if concurrency is None else ConcurrencyLimit(concurrency)
        self._rate = RateWindow(rate_per_min)

    def try_enter(self, now_ms: int) -> bool:
        if self._slots is not None and not self._slots.try_acquire():
            return False
        if self._rate.try_acquire(now_ms):
            return True
        if self._slots is not None:
            self._slots.release()
        return False

    def release(self, waiting: int) -> None:
        del waiting
        if self._slots is not None:
            self._slots.release()

    def free_in_ms(self, now_ms: int) -> int:
        return self._rate.free_in_ms(now_ms)


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a process tells the allocator about one tool, since its last report."""

    tool: str
    waiting: int
    """How many of its calls wait for a slot now."""
    returned: int = 0
    """Slots that it holds no longer."""
    unused: int = 0
    """Starts that came with slots and were not used."""
    starts_ms: tuple[int, ...] = ()
    """When calls started that count for the rate."""


class AllocatedLimit:
    """The slots of a tool that are allocated to this process.

    It keeps idle slots, so that most calls start without a question to the allocator, until calls
    of another process wait for them. A slot of a tool with a rate comes with one start, and goes
    back after it, because an idle start would be lost to the others."""

    def __init__(
        self,
        tool: str,
        record_used: Callable[[str, int], None] = lambda _tool, _used: None,
        *,
        has_rate: bool,
    ) -> None:
        """``record_used`` is told how many slots calls use, before a call starts."""
        self._tool, self._record_used, self._has_rate = tool, record_used, has_rate
        self._held = self._free = 0
        self._demand = self._share = 0
        self._returned = self._unused = 0
        self._starts_ms: list[int] = []
        self._known_waiting = 0
        """How many calls wait, as the allocator knows: one less for each slot it allocates."""

    def try_enter(self, now_ms: int) -> bool:
        if not self._free:
            return False
        self._free -= 1
        self._record_used(self._tool, self.used)
        if self._has_rate:
            self._starts_ms.append(now_ms)
        return True

    @property
    def used(self) -> int:
        """How many slots calls use."""
        return self._held - self._free

    def release(self, waiting: int) -> None:
        assert self._free < self._held, "more slots were released than acquired"
        if self._has_rate:
            self._return(1)
        else:
            self._free += 1
            self._return_demanded(waiting)
        self._record_used(self._tool, self.used)

    def free_in_ms(self, now_ms: int) -> int:
        del now_ms
        return 0

    def add(self, slots: int) -> None:
        """The allocator allocates more slots, each with a start if the tool has a rate."""
        self._held += slots
        self._free += slots
        self._known_waiting = max(0, self._known_waiting - slots)

    def set_demand(self, demand: int, share: int, waiting: int) -> None:
        """Calls of other processes wait for so many slots. This process gives its idle ones, and
        while its own calls wait, those above its ``share``."""
        self._demand, self._share = demand, share
        self._return_demanded(waiting)

    def has_news(self, waiting: int) -> bool:
        """Whether the allocator should get a report."""
        idle_starts = self._has_rate and self._free > 0 and not waiting
        changed = waiting != self._known_waiting
        return bool(self._returned or self._starts_ms or idle_starts or changed)

    def report(self, waiting: int) -> SlotReport:
        """What changed since the last report, which is then reported."""
        if self._has_rate and not waiting and self._free:
            self._unused += self._free
            self._held -= self._free
            self._returned += self._free
            self._free = 0
        report = SlotReport(
            tool=self._tool,
            waiting=waiting,
            returned=self._returned,
            unused=self._unused,
            starts_ms=tuple(self._starts_ms),
        )
        self._returned = self._unused = 0
        self._starts_ms.clear()
        self._known_waiting = waiting
        return report

    def _return_demanded(self, waiting: int) -> None:
        surplus = min(self._free, self._demand)
        if waiting:
            surplus = min(surplus, max(0, self._held - self._share))
        if surplus:
            self._free -= surplus
            self._demand -= surplus
            self._return(surplus)

    def _return(self, slots: int) -> None:
        self._held -= slots
        self._returned += slots
