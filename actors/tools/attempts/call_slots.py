"""Call slots: how many calls of a tool run at once on this node, and how many start per minute.

A slot is reserved by the decision that records a call's intent, or waited for before it, and
released when nothing of the call runs any more. The actor reserves slots on its own thread; waiting
happens on the bus loop, in order of arrival. If an intent is not committed, the decider releases
its reservation.

A node of several processes allocates the slots to them (``slot_limits``), and ``CallSlots``
reports what it used, returns and waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from typing import NamedTuple

from rookery.actors.slot_limits import (
    AllocatedLimit,
    OwnLimit,
    SlotLimit,
    SlotNotice,
    SlotsAllocated,
    SlotSupply,
)
from rookery.bus.ports import BusLoop
from rookery.schemas.calls import Capability, CapabilityLimits

__all__ = ["CallAttempt", "CallSlots", "SlotStage"]


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

    def __init__(self, limit: SlotLimit, declared: CapabilityLimits) -> None:
        self.limit, self.declared = limit, declared
        self.waiting: deque[_SlotRequest] = deque()
        self.retry_timer: asyncio.TimerHandle | None = None

    def next_waiting(self) -> _SlotRequest | None:
        while self.waiting and self.waiting[0].granted.done():  # Cancelled.
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None


class CallSlots:
    """One per process."""

    def __init__(
        self,
        capabilities: Iterable[Capability],
        loop: BusLoop,
        now_ms: Callable[[], int],
        supply: SlotSupply | None = None,
        inline: Collection[str] = (),
    ) -> None:
        """``supply``: this process uses only slots that are allocated to it; without it, the limits
        are its own. ``inline``: the tools that the loop calls itself. Their calls never run at
        once in a process, so that none needs a slot from its intent until the intent is stored."""
        self._loop, self._now_ms, self._supply = loop, now_ms, supply
        self._inline = frozenset(inline)
        self._lock = threading.Lock()
        self._allocated: dict[str, AllocatedLimit] = {}
        self._tools = {
            capability.name: _ToolSlots(self._create_limit(capability), capability.limits)
            for capability in capabilities
        }
        self._reporting = False
        """Whether a report will be sent soon."""
        self._held: dict[CallAttempt, _HeldSlot] = {}
        self._reserved: dict[str, set[CallAttempt]] = {}

    def declare(self, capability: Capability, *, share: int) -> None:
        """Add a tool of a surface, which may be one that had other limits. ``share``: of how many
        processes; each has its part of the limits, unless they are allocated already."""
        limits = capability.limits
        rate = limits.rate_per_min
        own = OwnLimit(
            max(1, limits.concurrency // share), None if rate is None else max(1, rate // share)
        )
        with self._lock:
            known = self._tools.get(capability.name)
            if known is not None and known.declared == limits:
                return
            in_use = known is not None and any(
                slot.name == capability.name for slot in self._held.values()
            )
            if known is None or not (in_use or known.waiting):
                self._tools[capability.name] = _ToolSlots(own, limits)
                self._allocated.pop(capability.name, None)

    # --- for decisions, on the actor's thread -----------------------------------------------------

    def try_reserve(self, attempt: CallAttempt, session: str, name: str, now_ms: int) -> bool:
        """Whether the attempt has a slot, now or from before. Waiting attempts go first."""
        with self._lock:
            if attempt in self._held:
                return True
            tool_slots = self._tools[name]
            if tool_slots.waiting or not tool_slots.limit.try_enter(now_ms):
                return False
            self._held[attempt] = _HeldSlot(session, name, SlotStage.RESERVED)
            self._reserved.setdefault(session, set()).add(attempt)
            self._report_soon(name)
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
            if not tool_slots.waiting:
                continue
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
            tool_slots.limit.release(len(tool_slots.waiting))
            self._report_soon(slot.name)
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
                if not tool_slots.limit.try_enter(now_ms):
                    break
                tool_slots.waiting.popleft()
                self._held[waiting.attempt] = _HeldSlot(waiting.session, name, SlotStage.ASSIGNED)
                admitted.append(waiting)
            pause_ms = tool_slots.limit.free_in_ms(now_ms) if tool_slots.waiting else 0
            self._report_soon(name)
        for waiting in admitted:
            waiting.granted.set_result(True)
        if tool_slots.retry_timer is not None:
            tool_slots.retry_timer.cancel()
            tool_slots.retry_timer = None
        if pause_ms:
            loop = asyncio.get_running_loop()
            tool_slots.retry_timer = loop.call_later(pause_ms / 1_000, self._admit, name)

    # --- allocated slots --------------------------------------------------------------------------

    def on_notice(self, notice: SlotNotice) -> None:
        """This process gets more slots, or has to return some; called on the loop."""
        with self._lock:
            limit, waiting = self._allocated.get(notice.tool), len(self._tools[notice.tool].waiting)
            if limit is None:  # Its surface was reloaded with other limits.
                return
            if isinstance(notice, SlotsAllocated):
                limit.add(notice.slots)
            else:
                limit.set_demand(notice.demand, notice.share, waiting)
        self._admit(notice.tool)

    def _create_limit(self, capability: Capability) -> SlotLimit:
        name, limits = capability.name, capability.limits
        if self._supply is None:
            concurrency = None if name in self._inline else limits.concurrency
            return OwnLimit(concurrency, limits.rate_per_min)
        self._allocated[name] = AllocatedLimit(
            name, self._supply.record_used, has_rate=limits.rate_per_min is not None
        )
        return self._allocated[name]

    def _report_soon(self, name: str) -> None:
        """Report to the allocator, if there is news; what happens until then is one report."""
        limit = self._allocated.get(name)
        if limit is None or self._reporting or not limit.has_news(len(self._tools[name].waiting)):
            return
        self._reporting = True
        self._loop.call_soon(self._send_reports)

    def _send_reports(self) -> None:
        assert self._supply is not None
        with self._lock:
            self._reporting = False
            waiting = {name: len(self._tools[name].waiting) for name in self._allocated}
            reports = [
                limit.report(waiting[name])
                for name, limit in self._allocated.items()
                if limit.has_news(waiting[name])
            ]
        self._supply.report(reports)
