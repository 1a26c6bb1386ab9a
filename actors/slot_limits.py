"""Limits of a tool: calls at once and starts per minute, in one process or over all of a node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from rookery.actors.tools.catalogue import CatalogueTool
from rookery.schemas.surfaces import ends_with_node
from rookery.schemas.worker_protocol import GRACE_MS

__all__ = [
    "AllocatedLimit",
    "AllocationRound",
    "ConcurrencyLimit",
    "DeclaredLimit",
    "OwnLimit",
    "RateWindow",
    "SlotAllocator",
    "SlotDemand",
    "SlotLimit",
    "SlotNotice",
    "SlotReport",
    "SlotSupply",
    "SlotsAllocated",
    "declared_limits",
]

# --- slot limits ----------------------------------------------------------------------------------

# Limits of a tool: how many of its calls run at once, and how many start per minute.
#
# A node of one process counts alone (``OwnLimit``). A node of several processes has one limit over
# all of them: their supervisor allocates the slots (below), and each process uses its
# own (``AllocatedLimit``).
#
# The limits have no clock and no lock: time is an argument, and ``CallSlots`` holds the lock.


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


class SlotSupply(Protocol):
    """Where this process's slots come from, if it is one of several."""

    def report(self, reports: Sequence[SlotReport]) -> None:
        """Tell the allocator what changed; returns at once."""

    def record_used(self, tool: str, used: int) -> None:
        """Record how many slots calls use, so that it is known after a crash."""


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
        """``record_used`` gets the number of slots that calls use, before a call starts."""
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


# --- slot allocator -------------------------------------------------------------------------------

# ``SlotAllocator``: one limit of a tool over all processes of a node.
#
# The supervisor of the processes has one. What it allocates never exceeds the limit: a slot is
# allocated again only after its process has returned it or has ended, and a start is counted from
# the moment it is allocated. When slots run out, it demands idle ones from the processes that hold
# some. Calls of workers may outlive the process that made them, so the slots that an ended process
# used for them are held back until these calls have ended, too.
#
# Pure: processes are numbers, time is an argument, and ``serve`` returns what to send.


class DeclaredLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one tool, as a process read them from its catalogue."""

    tool: str
    concurrency: int
    rate_per_min: int | None = None
    hold_ms: int = 0
    """How long a call may run after its process has ended."""


def declared_limits(tools: Iterable[CatalogueTool]) -> Sequence[DeclaredLimit]:
    """The limits of these tools."""
    return [
        DeclaredLimit(
            tool=tool.capability.name,
            concurrency=tool.capability.limits.concurrency,
            rate_per_min=tool.capability.limits.rate_per_min,
            hold_ms=0
            if ends_with_node(tool.surface)
            else tool.capability.limits.timeout_ms + GRACE_MS,
        )
        for tool in tools
    ]


class SlotsAllocated(msgspec.Struct, frozen=True, tag=True):
    """More slots for calls of a tool."""

    tool: str
    slots: int


class SlotDemand(msgspec.Struct, frozen=True, tag=True):
    """Calls of other processes wait for so many slots; see ``AllocatedLimit.set_demand``."""

    tool: str
    demand: int
    share: int


SlotNotice = SlotsAllocated | SlotDemand


class AllocationRound(NamedTuple):
    """What to send to which process, and when to serve again."""

    notices: Sequence[tuple[int, SlotNotice]]
    due_in_ms: int | None


@dataclass(slots=True)
class _Holder:
    allocated: int = 0
    waiting: int = 0
    starts: int = 0
    """Starts that are allocated and not reported."""
    demanded: int = 0
    """How many slots it still has to return, as it knows."""


class _ToolAllocation:
    """The slots of one tool."""

    def __init__(self, declared: DeclaredLimit) -> None:
        self.declared = declared
        self.holders: dict[int, _Holder] = {}
        """In the order in which they are served; the last one served is last."""
        self._window = RateWindow(declared.rate_per_min)
        self._held_back: list[tuple[int, int]] = []
        """Until when, and how many slots of ended processes."""

    def join(self, process: int, share: int) -> int:
        """How many slots a new process gets at once. Starts are allocated on demand only."""
        holder = self.holders[process] = _Holder()
        if self.declared.rate_per_min is None:
            holder.allocated = max(0, min(share, self._free()))
        return holder.allocated

    def apply(self, process: int, report: SlotReport) -> None:
        holder = self.holders[process]
        holder.waiting = report.waiting
        holder.allocated -= report.returned
        holder.demanded = max(0, holder.demanded - report.returned)
        holder.starts -= report.unused + len(report.starts_ms)
        for start_ms in report.starts_ms:
            self._window.add(start_ms)

    def release(self, process: int, now_ms: int, used: int) -> None:
        """The process has ended. Starts that it did not report may have been used."""
        holder = self.holders.pop(process)
        if used and self.declared.hold_ms:
            self._held_back.append((now_ms + self.declared.hold_ms, used))
        for _ in range(holder.starts):
            self._window.add(now_ms)

    def allocate(self, now_ms: int) -> Iterator[tuple[int, SlotNotice]]:
        """Allocate what is free to those who wait, in turn."""
        self._held_back = [held for held in self._held_back if held[0] > now_ms]
        allocated: dict[int, int] = {}
        while self._free() > 0 and self._may_start(now_ms):
            process = next((n for n, one in self.holders.items() if one.waiting > 0), None)
            if process is None:
                break
            holder = self.holders[process] = self.holders.pop(process)
            holder.allocated += 1
            holder.waiting -= 1
            holder.starts += self.declared.rate_per_min is not None
            allocated[process] = allocated.get(process, 0) + 1
        for process, slots in allocated.items():
            yield process, SlotsAllocated(self.declared.tool, slots)

    def demands(self, processes: int) -> Iterator[tuple[int, SlotNotice]]:
        """What each process has to return; with a rate, each slot returns by itself."""
        if self.declared.rate_per_min is not None:
            return
        waiting = sum(holder.waiting for holder in self.holders.values())
        share = self.declared.concurrency // processes
        for process, holder in self.holders.items():
            demand = min(holder.allocated, waiting - holder.waiting)
            if demand != holder.demanded:
                holder.demanded = demand
                yield process, SlotDemand(self.declared.tool, demand, share)

    def due_in_ms(self, now_ms: int) -> int | None:
        """When time alone permits more; ``None`` if nothing waits for it."""
        if not any(holder.waiting for holder in self.holders.values()):
            return None
        due = [until_ms - now_ms for until_ms, _ in self._held_back]
        if pause_ms := self._window.free_in_ms(now_ms):
            due.append(pause_ms)
        return min(due, default=None)

    def _free(self) -> int:
        allocated = sum(holder.allocated for holder in self.holders.values())
        return self.declared.concurrency - allocated - sum(slots for _, slots in self._held_back)

    def _may_start(self, now_ms: int) -> bool:
        if self.declared.rate_per_min is None:
            return True
        self._window.free_in_ms(now_ms)
        unreported = sum(holder.starts for holder in self.holders.values())
        return self._window.count + unreported < self.declared.rate_per_min


class SlotAllocator:
    """The slots of all tools, for a node of ``processes`` processes."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._tools: dict[str, _ToolAllocation] = {}

    def join(self, process: int, declared: Iterable[DeclaredLimit]) -> Sequence[SlotNotice]:
        """A process has started with these tools; the slots it may use at once. The latest
        declaration of a tool applies to all processes."""
        allocated: list[SlotNotice] = []
        for limit in declared:
            tool = self._tools.setdefault(limit.tool, _ToolAllocation(limit))
            tool.declared = limit
            slots = tool.join(process, limit.concurrency // self._processes)
            if slots:
                allocated.append(SlotsAllocated(limit.tool, slots))
        return allocated

    def report(self, process: int, reports: Iterable[SlotReport], now_ms: int) -> AllocationRound:
        """A process reports what changed; what follows from it for all processes."""
        touched = []
        for report in reports:
            tool = self._tools[report.tool]
            tool.apply(process, report)
            touched.append(tool)
        return self._serve(touched, now_ms)

    def release(self, process: int, now_ms: int, used: Mapping[str, int]) -> AllocationRound:
        """A process has ended. ``used``: how many slots its calls used at its end."""
        touched = [tool for tool in self._tools.values() if process in tool.holders]
        for tool in touched:
            tool.release(process, now_ms, used.get(tool.declared.tool, 0))
        return self._serve(touched, now_ms)

    def serve(self, now_ms: int) -> AllocationRound:
        """Allocate what the time has freed."""
        return self._serve(self._tools.values(), now_ms)

    def _serve(self, tools: Iterable[_ToolAllocation], now_ms: int) -> AllocationRound:
        notices: list[tuple[int, SlotNotice]] = []
        for tool in tools:
            notices += tool.allocate(now_ms)
            notices += tool.demands(self._processes)
        due = [due_ms for tool in self._tools.values() if (due_ms := tool.due_in_ms(now_ms))]
        return AllocationRound(notices, min(due, default=None))
