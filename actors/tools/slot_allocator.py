"""``SlotAllocator``: one limit of a tool over all processes of a node.

The supervisor of the processes has one. What it allocates never exceeds the limit: a slot is
allocated again only after its process has returned it or has ended, and a start is counted from the
moment it is allocated. When slots run out, it demands idle ones from the processes that hold some.
Calls of workers may outlive the process that made them, so the slots that an ended process used
for them are held back until these calls have ended, too.

Pure: processes are numbers, time is an argument, and ``serve`` returns what to send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from rookery.actors.tools.catalogue import CatalogueTool, ends_with_node
from rookery.actors.tools.slot_limits import RateWindow, SlotReport
from rookery.schemas.worker_protocol import GRACE_MS

__all__ = [
    "AllocationRound",
    "DeclaredLimit",
    "SlotAllocator",
    "SlotDemand",
    "SlotNotice",
    "SlotsAllocated",
    "declared_limits",
]


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
