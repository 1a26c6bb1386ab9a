"""Places: how many calls of a tool run at once on this node, and how many may start.

A place is taken in the decision that records a call's intent, or waited for before it, and given
back when nothing of the call runs any more. The actor takes from its thread, waiting is done on the
loop, in order of arrival. What was drafted and never came to stand is the concern's to give back:
it knows what stands.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NamedTuple

from rookery.actors.tools.rate_limits import RateWindow, Slots
from rookery.bus.ports import Loop
from rookery.schemas.capability import Capability

__all__ = ["Place", "Places", "Stage"]


class Place(NamedTuple):
    """One try of one call."""

    operation_id: str
    attempt: int


class Stage(Enum):
    """Whose a place is, to use or to give back."""

    DRAFTED = auto()
    """A decision's that took it for an intent which may not stand yet."""
    AWAITED = auto()
    """A performer's that waited for it and asks for the intent."""
    USED = auto()
    """The call's."""


class _Taken(NamedTuple):
    session: str
    name: str
    stage: Stage


class _Waiting(NamedTuple):
    place: Place
    session: str
    told: asyncio.Future[bool]


class _Room:
    """The places of one tool."""

    def __init__(self, capability: Capability) -> None:
        limits = capability.limits
        self.slots, self.rate = Slots(limits.concurrency), RateWindow(limits.rate_per_min)
        self.waiting: deque[_Waiting] = deque()
        self.alarm: asyncio.TimerHandle | None = None

    def next_waiting(self) -> _Waiting | None:
        while self.waiting and self.waiting[0].told.done():  # Given up, and about to say so.
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None

    def try_enter(self, now_ms: int) -> bool:
        if not self.slots.try_acquire():
            return False
        if self.rate.try_acquire(now_ms):
            return True
        self.slots.release()
        return False


class Places:
    """One a node."""

    def __init__(
        self, capabilities: Iterable[Capability], loop: Loop, now_ms: Callable[[], int]
    ) -> None:
        self._loop, self._now_ms = loop, now_ms
        self._lock = threading.Lock()
        self._rooms = {capability.name: _Room(capability) for capability in capabilities}
        self._taken: dict[Place, _Taken] = {}
        self._drafted: dict[str, set[Place]] = {}

    # --- for decisions, on the actor's thread -----------------------------------------------------

    def take(self, place: Place, session: str, name: str, now_ms: int) -> bool:
        """Whether the call has its place, now or since before. Nobody overtakes those who wait."""
        with self._lock:
            if place in self._taken:
                return True
            room = self._rooms[name]
            if room.waiting or not room.try_enter(now_ms):
                return False
            self._taken[place] = _Taken(session, name, Stage.DRAFTED)
            self._drafted.setdefault(session, set()).add(place)
            return True

    def drafted(self, session: str) -> frozenset[Place]:
        """What decisions of the session took and no call uses yet."""
        with self._lock:
            return frozenset(self._drafted.get(session, ()))

    # --- for performers, on the loop --------------------------------------------------------------

    async def wait(self, place: Place, session: str, name: str) -> bool:
        """Wait for a place; ``False`` if nobody wants it any more (``leave``)."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._lock:
            if place in self._taken:
                return True
            self._rooms[name].waiting.append(_Waiting(place, session, told))
        self._admit(name)
        try:
            return await told
        except asyncio.CancelledError:
            self.leave(place.operation_id)
            self.give_back(place, Stage.AWAITED)
            raise

    def leave(self, operation_id: str) -> None:
        """The call needs no place any more."""
        for name, room in self._rooms.items():
            with self._lock:
                gone = [w for w in room.waiting if w.place.operation_id == operation_id]
                for waiting in gone:
                    room.waiting.remove(waiting)
            for waiting in gone:
                if not waiting.told.done():
                    waiting.told.set_result(False)
            if gone:
                self._admit(name)

    def use(self, place: Place) -> None:
        """The call runs: from here on its place is its own."""
        with self._lock:
            if (taken := self._taken.get(place)) is not None:
                self._forget_draft(place, taken)
                self._taken[place] = taken._replace(stage=Stage.USED)

    def give_back(self, place: Place, stage: Stage) -> None:
        """Free a place, if it is still at this stage. From any thread."""
        with self._lock:
            taken = self._taken.get(place)
            if taken is None or taken.stage is not stage:
                return
            del self._taken[place]
            self._forget_draft(place, taken)
            room = self._rooms[taken.name]
            room.slots.release()
            wanted = bool(room.waiting)
        if wanted:
            self._loop.post(self._admit, taken.name)

    def _forget_draft(self, place: Place, taken: _Taken) -> None:
        if (drafted := self._drafted.get(taken.session)) is not None:
            drafted.discard(place)
            if not drafted:
                del self._drafted[taken.session]

    def _admit(self, name: str) -> None:
        """Let in who waits, as far as there is room; come back when the rate allows more."""
        room, admitted = self._rooms[name], []
        with self._lock:
            now_ms = self._now_ms()
            while waiting := room.next_waiting():
                if waiting.place in self._taken:  # Two wait for the same try: it has one place.
                    admitted.append(room.waiting.popleft())
                    continue
                if not room.try_enter(now_ms):
                    break
                room.waiting.popleft()
                self._taken[waiting.place] = _Taken(waiting.session, name, Stage.AWAITED)
                admitted.append(waiting)
            pause_ms = room.rate.free_in_ms(now_ms) if room.waiting else 0
        for waiting in admitted:
            waiting.told.set_result(True)
        if room.alarm is not None:
            room.alarm.cancel()
            room.alarm = None
        if pause_ms:
            loop = asyncio.get_running_loop()
            room.alarm = loop.call_later(pause_ms / 1_000, self._admit, name)
