"""Places: how many calls of a tool run at once on this node, and how many may start.

A place is taken in the decision that records a call's intent, or waited for before it, and given
back when nothing of the call runs any more. The actor takes from its thread, waiting is done on the
loop, in order of arrival. What was drafted and never came to stand is the concern's to give back:
it knows what stands.

How many calls of a capability may run at once, and how many may start within a minute.

Counters without clocks, locks or queues: time is an argument, one thread uses each, and who waits
for a place, in which order, is the caller's to keep. They count this process only.
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


class CallAttempt(NamedTuple):
    """One try of one call."""

    operation_id: str
    attempt: int


class SlotStage(Enum):
    """Whose a place is, to use or to give back."""

    RESERVED = auto()
    """A decision's that took it for an intent which may not stand yet."""
    ASSIGNED = auto()
    """A performer's that waited for it and asks for the intent."""
    RUNNING = auto()
    """The call's."""


class _HeldSlot(NamedTuple):
    session: str
    name: str
    stage: SlotStage


class _SlotRequest(NamedTuple):
    attempt: CallAttempt
    session: str
    granted: asyncio.Future[bool]


class _ToolSlots:
    """The places of one tool."""

    def __init__(self, capability: Capability) -> None:
        limits = capability.limits
        self.slots, self.rate = (
            ConcurrencyLimit(limits.concurrency),
            RateWindow(limits.rate_per_min),
        )
        self.waiting: deque[_SlotRequest] = deque()
        self.retry_timer: asyncio.TimerHandle | None = None

    def next_waiting(self) -> _SlotRequest | None:
        while self.waiting and self.waiting[0].granted.done():  # Given up, and about to say so.
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
    """One a node."""

    def __init__(
        self, capabilities: Iterable[Capability], loop: BusLoop, now_ms: Callable[[], int]
    ) -> None:
        self._loop, self._now_ms = loop, now_ms
        self._lock = threading.Lock()
        self._tools = {capability.name: _ToolSlots(capability) for capability in capabilities}
        self._held: dict[CallAttempt, _HeldSlot] = {}
        self._reserved: dict[str, set[CallAttempt]] = {}

    # --- for decisions, on the actor's thread -----------------------------------------------------

    def try_reserve(self, place: CallAttempt, session: str, name: str, now_ms: int) -> bool:
        """Whether the call has its place, now or since before. Nobody overtakes those who wait."""
        with self._lock:
            if place in self._held:
                return True
            room = self._tools[name]
            if room.waiting or not room.try_enter(now_ms):
                return False
            self._held[place] = _HeldSlot(session, name, SlotStage.RESERVED)
            self._reserved.setdefault(session, set()).add(place)
            return True

    def reserved(self, session: str) -> frozenset[CallAttempt]:
        """What decisions of the session took and no call uses yet."""
        with self._lock:
            return frozenset(self._reserved.get(session, ()))

    # --- for performers, on the loop --------------------------------------------------------------

    async def wait(self, place: CallAttempt, session: str, name: str) -> bool:
        """Wait for a place; ``False`` if nobody wants it any more (``leave``)."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._lock:
            if place in self._held:
                return True
            self._tools[name].waiting.append(_SlotRequest(place, session, told))
        self._admit(name)
        try:
            return await told
        except asyncio.CancelledError:
            self.stop_waiting(place.operation_id)
            self.release(place, SlotStage.ASSIGNED)
            raise

    def stop_waiting(self, operation_id: str) -> None:
        """The call needs no place any more."""
        for name, room in self._tools.items():
            with self._lock:
                gone = [w for w in room.waiting if w.attempt.operation_id == operation_id]
                for waiting in gone:
                    room.waiting.remove(waiting)
            for waiting in gone:
                if not waiting.granted.done():
                    waiting.granted.set_result(False)
            if gone:
                self._admit(name)

    def mark_running(self, place: CallAttempt) -> None:
        """The call runs: from here on its place is its own."""
        with self._lock:
            if (taken := self._held.get(place)) is not None:
                self._clear_reservation(place, taken)
                self._held[place] = taken._replace(stage=SlotStage.RUNNING)

    def release(self, place: CallAttempt, stage: SlotStage) -> None:
        """Free a place, if it is still at this stage. From any thread."""
        with self._lock:
            taken = self._held.get(place)
            if taken is None or taken.stage is not stage:
                return
            del self._held[place]
            self._clear_reservation(place, taken)
            room = self._tools[taken.name]
            room.slots.release()
            wanted = bool(room.waiting)
        if wanted:
            self._loop.call_soon(self._admit, taken.name)

    def _clear_reservation(self, place: CallAttempt, taken: _HeldSlot) -> None:
        if (drafted := self._reserved.get(taken.session)) is not None:
            drafted.discard(place)
            if not drafted:
                del self._reserved[taken.session]

    def _admit(self, name: str) -> None:
        """Let in who waits, as far as there is room; come back when the rate allows more."""
        room, admitted = self._tools[name], []
        with self._lock:
            now_ms = self._now_ms()
            while waiting := room.next_waiting():
                if waiting.attempt in self._held:  # Two wait for the same try: it has one place.
                    admitted.append(room.waiting.popleft())
                    continue
                if not room.try_enter(now_ms):
                    break
                room.waiting.popleft()
                self._held[waiting.attempt] = _HeldSlot(waiting.session, name, SlotStage.ASSIGNED)
                admitted.append(waiting)
            pause_ms = room.rate.free_in_ms(now_ms) if room.waiting else 0
        for waiting in admitted:
            waiting.granted.set_result(True)
        if room.retry_timer is not None:
            room.retry_timer.cancel()
            room.retry_timer = None
        if pause_ms:
            loop = asyncio.get_running_loop()
            room.retry_timer = loop.call_later(pause_ms / 1_000, self._admit, name)
