"""Call slots: how many calls of a tool run at once on this node, and how many start per minute.

A slot is reserved by the decision that records a call's intent, or waited for before it, and
released when nothing of the call runs any more. The actor reserves slots on its own thread; waiting
happens on the bus loop, in order of arrival. If an intent is not committed, the decider releases
its reservation.

The counters have no clock and no lock: time is an argument, and ``CallSlots`` holds the lock. They
count calls of this process only.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, NamedTuple

from rookery.bus.ports import BusLoop
from rookery.schemas.capability import Capability

__all__ = ["CallAttempt", "CallSlots", "ConcurrencyLimit", "RateWindow", "SlotStage"]

_MINUTE_MS: Final = 60_000


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
        self._count += 1
        if self._starts and self._starts[-1][0] == self._now_ms:
            self._starts.append((self._now_ms, self._starts.pop()[1] + 1))
        else:
            self._starts.append((self._now_ms, 1))
        return True

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


class CallAttempt(NamedTuple):
    """One attempt of one call."""

    operation_id: str
    attempt: int


class SlotStage(Enum):
    """Which step a slot belongs to."""

    RESERVED = auto()
    """A decision reserved it for an intent that may not be committed yet."""
    ASSIGNED = auto()
    """The executor waited for it and requests the intent."""
    RUNNING = auto()
    """The call runs."""


class _HeldSlot(NamedTuple):
    session: str
    name: str
    stage: SlotStage


class _SlotRequest(NamedTuple):
    attempt: CallAttempt
    session: str
    granted: asyncio.Future[bool]


class _ToolSlots:
    """The slots of one tool."""

    def __init__(self, capability: Capability) -> None:
        limits = capability.limits
        self.slots, self.rate = (
            ConcurrencyLimit(limits.concurrency),
            RateWindow(limits.rate_per_min),
        )
        self.waiting: deque[_SlotRequest] = deque()
        self.retry_timer: asyncio.TimerHandle | None = None

    def next_waiting(self) -> _SlotRequest | None:
        while self.waiting and self.waiting[0].granted.done():  # Cancelled.
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None

    def try_enter(self, now_ms: int) -> bool:
        if not self.slots.try_acquire():
            return False
        if self.rate.try_acquire(now_ms):
            return True
        self.slots.release()
        return False


class CallSlots:
    """One per node."""

    def __init__(
        self, capabilities: Iterable[Capability], loop: BusLoop, now_ms: Callable[[], int]
    ) -> None:
        self._loop, self._now_ms = loop, now_ms
        self._lock = threading.Lock()
        self._tools = {capability.name: _ToolSlots(capability) for capability in capabilities}
        self._held: dict[CallAttempt, _HeldSlot] = {}
        self._reserved: dict[str, set[CallAttempt]] = {}

    # --- for decisions, on the actor's thread -----------------------------------------------------

    def try_reserve(self, attempt: CallAttempt, session: str, name: str, now_ms: int) -> bool:
        """Whether the attempt has a slot, now or from before. Waiting attempts go first."""
        with self._lock:
            if attempt in self._held:
                return True
            tool_slots = self._tools[name]
            if tool_slots.waiting or not tool_slots.try_enter(now_ms):
                return False
            self._held[attempt] = _HeldSlot(session, name, SlotStage.RESERVED)
            self._reserved.setdefault(session, set()).add(attempt)
            return True

    def reserved(self, session: str) -> frozenset[CallAttempt]:
        """The session's reserved slots that no call uses yet."""
        with self._lock:
            return frozenset(self._reserved.get(session, ()))

    # --- for the executor, on the loop ------------------------------------------------------------

    async def wait(self, attempt: CallAttempt, session: str, name: str) -> bool:
        """Wait for a slot; ``False`` if the call no longer needs one (``stop_waiting``)."""
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._lock:
            if attempt in self._held:
                return True
            self._tools[name].waiting.append(_SlotRequest(attempt, session, granted))
        self._admit(name)
        try:
            return await granted
        except asyncio.CancelledError:
            self.stop_waiting(attempt.operation_id)
            self.release(attempt, SlotStage.ASSIGNED)
            raise

    def stop_waiting(self, operation_id: str) -> None:
        """End the waiting of all attempts of a call."""
        for name, tool_slots in self._tools.items():
            with self._lock:
                stopped = [w for w in tool_slots.waiting if w.attempt.operation_id == operation_id]
                for waiting in stopped:
                    tool_slots.waiting.remove(waiting)
            for waiting in stopped:
                if not waiting.granted.done():
                    waiting.granted.set_result(False)
            if stopped:
                self._admit(name)

    def mark_running(self, attempt: CallAttempt) -> None:
        """Move the slot to the stage ``RUNNING``."""
        with self._lock:
            if (slot := self._held.get(attempt)) is not None:
                self._clear_reservation(attempt, slot)
                self._held[attempt] = slot._replace(stage=SlotStage.RUNNING)

    def release(self, attempt: CallAttempt, stage: SlotStage) -> None:
        """Release the slot, if it is still at this stage. Callable from any thread."""
        with self._lock:
            slot = self._held.get(attempt)
            if slot is None or slot.stage is not stage:
                return
            del self._held[attempt]
            self._clear_reservation(attempt, slot)
            tool_slots = self._tools[slot.name]
            tool_slots.slots.release()
            has_waiting = bool(tool_slots.waiting)
        if has_waiting:
            self._loop.call_soon(self._admit, slot.name)

    def _clear_reservation(self, attempt: CallAttempt, slot: _HeldSlot) -> None:
        if (reserved := self._reserved.get(slot.session)) is not None:
            reserved.discard(attempt)
            if not reserved:
                del self._reserved[slot.session]

    def _admit(self, name: str) -> None:
        """Assign free slots to waiting attempts; schedule the next round if the rate is
        exhausted."""
        tool_slots, admitted = self._tools[name], []
        with self._lock:
            now_ms = self._now_ms()
            while waiting := tool_slots.next_waiting():
                if waiting.attempt in self._held:  # Two waiters of one attempt share its slot.
                    admitted.append(tool_slots.waiting.popleft())
                    continue
                if not tool_slots.try_enter(now_ms):
                    break
                tool_slots.waiting.popleft()
                self._held[waiting.attempt] = _HeldSlot(waiting.session, name, SlotStage.ASSIGNED)
                admitted.append(waiting)
            pause_ms = tool_slots.rate.free_in_ms(now_ms) if tool_slots.waiting else 0
        for waiting in admitted:
            waiting.granted.set_result(True)
        if tool_slots.retry_timer is not None:
            tool_slots.retry_timer.cancel()
            tool_slots.retry_timer = None
        if pause_ms:
            loop = asyncio.get_running_loop()
            tool_slots.retry_timer = loop.call_later(pause_ms / 1_000, self._admit, name)
