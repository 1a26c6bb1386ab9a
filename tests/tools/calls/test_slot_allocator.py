"""One limit of a tool over several processes: never exceeded, and no call waits in vain."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.slot_limits import (
    AllocatedLimit,
    AllocationRound,
    DeclaredLimit,
    SlotAllocator,
    SlotNotice,
    SlotReport,
    SlotsAllocated,
)

MINUTE_MS = 60_000
HOLD_MS = 5_000
TOOL = "tool"


class Process:
    """A process whose messages are on their way until the test delivers them."""

    def __init__(self, declared: DeclaredLimit) -> None:
        self.recorded = 0
        has_rate = declared.rate_per_min is not None
        self.limit = AllocatedLimit(TOOL, self.record, has_rate=has_rate)
        self.waiting = self.running = 0
        self.incoming: deque[SlotNotice] = deque()
        self.outgoing: deque[SlotReport] = deque()

    def record(self, tool: str, used: int) -> None:
        del tool
        self.recorded = used

    def call(self, now_ms: int) -> int:
        """How many calls started."""
        if not self.waiting and self.limit.try_enter(now_ms):
            self.running += 1
            return 1
        self.waiting += 1
        return 0

    def end(self) -> None:
        if self.running:
            self.running -= 1
            self.limit.release(self.waiting)

    def admit(self, now_ms: int) -> int:
        started = 0
        while self.waiting and self.limit.try_enter(now_ms):
            self.waiting -= 1
            self.running += 1
            started += 1
        return started

    def receive(self) -> None:
        if self.incoming:
            match self.incoming.popleft():
                case SlotsAllocated(_, slots):
                    self.limit.add(slots)
                case demand:
                    self.limit.set_demand(demand.demand, demand.share, self.waiting)

    def report(self) -> None:
        if self.limit.has_news(self.waiting):
            self.outgoing.append(self.limit.report(self.waiting))


class Group:
    """The processes of a node, their allocator, and what an observer outside counts."""

    def __init__(self, declared: DeclaredLimit, processes: int) -> None:
        self.declared, self.now_ms = declared, 1_000_000
        self.allocator = SlotAllocator(processes)
        self.processes: dict[int, Process] = {}
        self.outliving: list[int] = []
        """Until when the calls of ended processes run on their workers."""
        self.starts: list[int] = []
        for number in range(processes):
            self.join(number)

    def join(self, number: int) -> None:
        process = self.processes[number] = Process(self.declared)
        process.incoming += self.allocator.join(number, [self.declared])

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        self.outliving += [self.now_ms + self.declared.hold_ms] * process.running
        self.send(self.allocator.release(number, self.now_ms, {TOOL: process.recorded}))
        self.join(number)

    def send(self, round_: AllocationRound) -> None:
        for number, notice in round_.notices:
            self.processes[number].incoming.append(notice)

    def step(self, number: int, what: str) -> None:
        process = self.processes[number]
        match what:
            case "call":
                self.started(process.call(self.now_ms))
            case "end":
                process.end()
                self.started(process.admit(self.now_ms))
            case "receive":
                process.receive()
                self.started(process.admit(self.now_ms))
            case "report":
                process.report()
            case "deliver" if process.outgoing:
                report = process.outgoing.popleft()
                self.send(self.allocator.report(number, [report], self.now_ms))
            case "kill":
                self.kill(number)
            case "wait":
                self.now_ms += 1_700
                self.send(self.allocator.serve(self.now_ms))
        self.check()

    def started(self, calls: int) -> None:
        self.starts += [self.now_ms] * calls

    def check(self) -> None:
        self.outliving = [until_ms for until_ms in self.outliving if until_ms > self.now_ms]
        running = sum(process.running for process in self.processes.values())
        assert running + len(self.outliving) <= self.declared.concurrency
        if self.declared.rate_per_min is not None:
            last_minute = [at for at in self.starts if at > self.now_ms - MINUTE_MS]
            assert len(last_minute) <= self.declared.rate_per_min

    def settle(self, *steps: str) -> None:
        for what in steps:
            for number in self.processes:
                self.step(number, what)


STEPS = ("call", "call", "end", *("report", "deliver", "receive") * 2, "kill", "wait")
HISTORIES = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(STEPS)), max_size=120)


@pytest.mark.parametrize("rate_per_min", [None, 1, 3])
@given(history=HISTORIES, concurrency=st.integers(1, 5), hold_ms=st.sampled_from([0, HOLD_MS]))
def test_no_order_of_messages_and_deaths_exceeds_a_limit_or_forgets_a_call(
    history: Iterable[tuple[int, str]],
    concurrency: int,
    hold_ms: int,
    rate_per_min: int | None,
):
    declared = DeclaredLimit(
        tool=TOOL, concurrency=concurrency, rate_per_min=rate_per_min, hold_ms=hold_ms
    )
    group = Group(declared, 2)
    for number, what in history:
        group.step(number, what)
    for _ in range(5_000):
        if not any(process.waiting for process in group.processes.values()):
            return
        group.settle("report", "deliver", "receive", "end", "wait")
    pytest.fail("a call waits although nothing runs")


def test_idle_slots_go_where_calls_wait():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=8), 2)
    for _ in range(8):
        group.settle("receive")
        group.step(0, "call")
    group.settle(*("report", "deliver", "receive") * 10)
    assert group.processes[0].running == 8


def test_processes_whose_calls_wait_take_turns_with_one_slot():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=1), 2)
    served: Counter[int] = Counter()
    for _ in range(40):
        for number, process in group.processes.items():
            if process.waiting + process.running < 3:
                group.step(number, "call")
        group.settle("report", "deliver", "receive")
        for number, process in group.processes.items():
            served[number] += process.running
        group.settle("end", "report", "deliver", "receive")
    assert min(served.values()) > 5


def test_the_slots_of_an_ended_process_wait_for_its_calls_on_workers():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=1, hold_ms=HOLD_MS), 2)
    group.step(0, "call")
    group.settle("report", "deliver", "receive")
    assert group.processes[0].running == 1
    group.step(0, "kill")
    group.step(1, "call")
    group.settle("report", "deliver", "receive")
    assert group.processes[1].running == 0
    group.now_ms += HOLD_MS
    group.settle("wait", "receive")
    assert group.processes[1].running == 1


def test_a_start_that_an_ended_process_did_not_report_counts():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=8, rate_per_min=1), 2)
    group.step(0, "call")
    group.settle("report", "deliver", "receive")
    assert group.processes[0].running == 1
    group.step(0, "kill")
    group.step(1, "call")
    group.settle("report", "deliver", "receive")
    assert group.processes[1].running == 0


def test_a_successor_gets_only_slots_that_are_free():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=4), 2)
    for _ in range(4):
        group.settle("receive")
        group.step(0, "call")
    group.settle(*("report", "deliver", "receive") * 10)
    assert group.processes[0].running == 4
    group.step(1, "kill")
    group.settle("receive")
    group.step(1, "call")
    assert group.processes[1].running == 0


def test_the_idle_slots_of_an_ended_process_are_free_at_once():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=1, hold_ms=HOLD_MS), 2)
    group.step(0, "call")
    group.settle("report", "deliver", "receive")
    group.step(0, "end")
    group.step(0, "kill")
    group.step(1, "call")
    group.settle("report", "deliver", "receive")
    assert group.processes[1].running == 1


def test_a_call_that_takes_the_place_of_another_waiting_one_is_reported():
    group = Group(DeclaredLimit(tool=TOOL, concurrency=3), 2)
    group.settle("receive")
    for _ in range(2):
        group.step(0, "call")
    group.step(0, "report")
    group.step(0, "deliver")
    group.step(0, "receive")
    assert group.processes[0].running == 2
    group.step(0, "call")
    group.settle(*("report", "deliver", "receive") * 2)
    assert group.processes[0].running == 3
