"""Slots: which call gets one, in which order, and which call releases it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rookery.actors.slot_limits import DeclaredLimit, SlotAllocator, SlotReport, SlotSupply
from rookery.actors.tools.attempts.call_slots import CallAttempt, CallSlots, SlotStage
from tests.kernel.virtual_clock import Clockwork
from tests.tools.tool_fixtures import capability

ONE, TWO, THREE = (CallAttempt(f"op-{number}", 1) for number in (1, 2, 3))


SINGLE, RARE = capability("single", concurrency=1), capability("rare", rate_per_min=1)


class Alone:
    """The slots of two tools, with their own virtual clock."""

    def __init__(self, *inline: str, supply: SlotSupply | None = None) -> None:
        self.loop = Clockwork()
        self.places = CallSlots((SINGLE, RARE), self, self.now_ms, supply, inline=inline)
        self.admitted: list[CallAttempt] = []

    def now_ms(self) -> int:
        return int(self.loop.time() * 1_000)

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.loop.call_soon(call, *args)

    def run(self, work: Any, timeout_s: float | None = None) -> Any:
        return self.loop.run(work, timeout_s)

    def take(self, place: CallAttempt, name: str = "single", session: str = "a") -> bool:
        return self.places.try_reserve(place, session, name, self.now_ms())

    def wait(self, place: CallAttempt, name: str = "single") -> asyncio.Task[bool]:
        async def wait() -> bool:
            admitted = await self.places.wait(place, "a", name)
            if admitted:
                self.admitted.append(place)
            return admitted

        task = self.loop.create_task(wait())
        self.pass_s(0)
        return task

    def pass_s(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.run(asyncio.sleep(0))
        self.run(asyncio.sleep(0))


@pytest.fixture
def alone() -> Any:
    made = Alone()
    yield made
    made.loop.close()


def test_a_slot_is_acquired_once_however_often_it_is_requested(alone: Alone):
    assert alone.take(ONE)
    assert alone.take(ONE)
    assert not alone.take(TWO)
    alone.places.release(ONE, SlotStage.RESERVED)
    alone.places.release(ONE, SlotStage.RESERVED)
    assert alone.take(TWO)
    assert not alone.take(THREE)


def test_a_tool_that_is_offered_again_keeps_its_limits_unless_they_are_others(alone: Alone):
    assert alone.take(ONE, "rare")
    alone.places.release(ONE, SlotStage.RESERVED)
    alone.places.declare(RARE, share=1)
    assert not alone.take(TWO, "rare"), "the minute is not over"
    alone.places.declare(capability("rare", rate_per_min=2), share=1)
    assert alone.take(TWO, "rare")


class Allocator:
    """The allocator of a node, for one of its two processes."""

    def __init__(self) -> None:
        self.slots = SlotAllocator(2)
        self.slots.join(2, [DeclaredLimit(tool="single", concurrency=1)])
        self.slots.join(1, [DeclaredLimit(tool="single", concurrency=1)])
        self.slots.report(2, [SlotReport(tool="single", waiting=1)], 0)

    def report(self, reports: Sequence[SlotReport]) -> None:
        self.slots.report(1, reports, 0)

    def record_used(self, tool: str, used: int) -> None:
        """The other process uses the slot."""


def test_a_tool_of_a_surface_whose_slots_are_allocated_is_limited_over_all_processes():
    alone = Alone(supply=Allocator())
    try:
        alone.places.declare(SINGLE, share=2)
        assert not alone.take(ONE), "the other process has the one slot"
        alone.places.declare(capability("single", concurrency=4), share=2)
        assert alone.take(ONE)
        assert alone.take(TWO)
        assert not alone.take(THREE), "this process has half of them"
    finally:
        alone.loop.close()


def test_a_function_that_the_loop_calls_needs_no_slot_but_counts_for_its_rate():
    alone = Alone("single", "rare")
    try:
        assert alone.take(ONE)
        assert alone.take(TWO)
        alone.places.release(ONE, SlotStage.RESERVED)
        alone.places.release(TWO, SlotStage.RESERVED)
        assert alone.take(ONE, "rare")
        assert not alone.take(TWO, "rare")
    finally:
        alone.loop.close()


def test_waiting_calls_get_slots_in_order(alone: Alone):
    assert alone.take(ONE)
    alone.places.mark_running(ONE)
    alone.wait(TWO)
    alone.wait(THREE)
    alone.places.release(ONE, SlotStage.RUNNING)
    assert not alone.take(CallAttempt("late", 1))
    alone.pass_s(0)
    assert alone.admitted == [TWO]
    alone.places.release(TWO, SlotStage.ASSIGNED)
    alone.pass_s(0)
    assert alone.admitted == [TWO, THREE]


def test_only_its_holder_releases_a_slot(alone: Alone):
    alone.take(ONE)
    alone.places.mark_running(ONE)
    alone.places.release(ONE, SlotStage.RESERVED)
    alone.places.release(ONE, SlotStage.ASSIGNED)
    assert not alone.take(TWO)
    alone.places.release(ONE, SlotStage.RUNNING)
    assert alone.take(TWO)


def test_a_slot_acquired_by_a_decision_is_held_until_it_is_used(alone: Alone):
    alone.take(ONE, session="a")
    assert alone.places.reserved("a") == {ONE}
    assert alone.places.reserved("b") == frozenset()
    alone.places.mark_running(ONE)
    assert alone.places.reserved("a") == frozenset()


def test_no_decision_releases_a_slot_that_was_waited_for(alone: Alone):
    alone.wait(ONE)
    assert alone.admitted == [ONE]
    assert alone.take(ONE)
    assert alone.places.reserved("a") == frozenset()


def test_a_stopped_waiter_returns_and_the_next_gets_the_slot(alone: Alone):
    alone.take(ONE)
    second, third = alone.wait(TWO), alone.wait(THREE)
    alone.places.stop_waiting("op-2")
    alone.pass_s(0)
    assert second.result() is False
    alone.places.release(ONE, SlotStage.RESERVED)
    alone.pass_s(0)
    assert third.result() is True


@pytest.mark.parametrize("when", ["waiting", "admitted"])
def test_a_cancelled_waiter_passes_its_slot_to_the_next(alone: Alone, when: str):
    alone.take(ONE)
    second, third = alone.wait(TWO), alone.wait(THREE)
    if when == "admitted":
        alone.places.release(ONE, SlotStage.RESERVED)
        alone.loop.call_soon(second.cancel)
    else:
        second.cancel()
        alone.places.release(ONE, SlotStage.RESERVED)
    alone.pass_s(0)
    assert second.cancelled()
    assert third.result() is True
    assert alone.admitted == [THREE]


def test_a_waiting_call_starts_as_soon_as_the_rate_permits(alone: Alone):
    assert alone.take(ONE, "rare")
    alone.wait(TWO, "rare")
    alone.wait(THREE, "rare")
    alone.places.release(ONE, SlotStage.RESERVED)
    alone.pass_s(59.9)
    assert alone.admitted == []
    alone.pass_s(0.2)
    assert alone.admitted == [TWO]
    alone.pass_s(60)
    assert alone.admitted == [TWO, THREE]
