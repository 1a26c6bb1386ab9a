"""A host with an unknown outcome: an idempotent call is tried again under the same key, a limited
number of times; an operator resolves any other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.actors.messages import CallProgress
from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.actors.tools.calls.call_rules import ATTEMPTS_MAX
from rookery.actors.tools.hosts.host import OutcomeUnknown
from rookery.schemas.calls import CallOutcome
from tests.tools.tool_fixtures import BackendHost, ToolWorld, call, operation

TAKEN_OVER_S = 12.0
ONCE = ["requested", "intent_recorded", "completed"]
LEFT_OPEN = ["requested", "intent_recorded", "recovery_required"]


class LossyHost(BackendHost):
    """Loses its first workers, and has another one only if the test says so."""

    def __init__(self, world: ToolWorld, *, losses: int, successor: bool = True) -> None:
        super().__init__(world.backend)
        self.losses, self.successor = losses, successor
        self.waiting = 0

    async def wait_ready(self, name: str) -> None:
        self.waiting += 1
        try:
            while not self.successor:
                await asyncio.sleep(0.01)
        finally:
            self.waiting -= 1

    async def call(self, ctx: ToolCallContext, timeout_ms: int, *gate: Any) -> CallOutcome:
        outcome = await super().call(ctx, timeout_ms, *gate)
        if ctx.attempt <= self.losses:
            raise OutcomeUnknown("the worker anna was lost with it")
        return outcome


def test_a_call_that_may_be_repeated_is_under_the_same_key(world: ToolWorld):
    node = world.begin(host=LossyHost(world, losses=2))
    told = world.expect(node, 1)
    world.request_calls(call(1, "fetch", a=1))
    world.until(told.done)
    assert world.kinds(1) == ["requested", *["intent_recorded"] * 3, "completed"]
    assert [ctx.attempt for ctx in world.backend.contexts] == [1, 2, 3]
    assert {ctx.idempotency_key for ctx in world.backend.contexts} == {operation(1)}
    assert told.result().outcome.value == "done"


def test_a_call_that_loses_every_worker_requires_recovery(world: ToolWorld):
    node = world.begin(host=LossyHost(world, losses=1_000))
    world.request_calls(call(1, "fetch", a=1))
    world.until(lambda: world.kinds(1)[-1] == "recovery_required")
    assert world.executions(1) == ATTEMPTS_MAX
    world.pass_s(TAKEN_OVER_S)
    assert world.executions(1) == ATTEMPTS_MAX
    assert f"{ATTEMPTS_MAX} attempts were made" in world.tool_facts(1)[-1].reason
    (known,) = world.progress(node)
    assert known == CallProgress(operation_id=operation(1), waits_for="RECOVERY_REQUIRED")


def test_a_call_that_may_not_be_repeated_waits_for_an_operator(world: ToolWorld):
    node = world.begin(host=LossyHost(world, losses=1))
    told = world.expect(node, 1)
    world.request_calls(call(1, "send", a=1))
    world.until(told.done)
    assert world.kinds(1) == LEFT_OPEN
    assert world.executions(1) == 1
    reason = world.tool_facts(1)[-1].reason
    assert reason == "the worker anna was lost with it, and the tool is not idempotent"
    world.pass_s(TAKEN_OVER_S)
    asked = world.request("resolve", "a", run_id="run-1", operation_id=operation(1), retry=True)
    assert not asked.code
    world.until(lambda: world.kinds(1)[-1] == "completed")
    assert world.executions(1) == 2


def test_no_intent_is_recorded_before_a_worker_serves_the_tool(world: ToolWorld):
    bench = LossyHost(world, losses=1, successor=False)
    world.begin(host=bench)
    world.request_calls(call(1, "fetch", a=1))
    world.until(lambda: bench.waiting == 1)
    world.pass_s(TAKEN_OVER_S)
    assert world.kinds(1) == ["requested", "intent_recorded"]
    bench.successor = True
    world.until(lambda: world.kinds(1)[-1] == "completed")
    assert world.executions(1) == 2


def test_a_run_that_ends_meanwhile_waits_no_longer(world: ToolWorld):
    bench = LossyHost(world, losses=1, successor=False)
    node = world.begin(host=bench)
    world.request_calls(call(1, "fetch", a=1))
    world.until(lambda: bench.waiting == 1)
    world.cancel_run(node)
    world.until(lambda: world.kinds(1)[-1] == "failed")
    assert world.tool_facts(1)[-1].error.code == "CANCELLED"
    assert bench.waiting == 0
    assert world.executions(1) == 1


@pytest.mark.parametrize(("tool", "kinds"), [("fetch", ONCE), ("send", LEFT_OPEN)])
def test_the_successor_of_a_node_waits_for_workers_too(
    world: ToolWorld, tool: str, kinds: list[str]
):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, tool, a=1))
    world.until(lambda: world.executions(1))
    node.crash()
    world.backend.hold = False
    bench = LossyHost(world, losses=0, successor=False)
    world.begin(host=bench)
    if kinds is ONCE:
        world.until(lambda: bench.waiting == 1)
        assert world.executions(1) == 1
        bench.successor = True
    world.until(lambda: world.kinds(1)[-1] == kinds[-1])
    assert world.executions(1) == (2 if kinds is ONCE else 1)


def test_a_slot_is_free_again_after_an_unknown_outcome(world: ToolWorld):
    world.begin(host=LossyHost(world, losses=1))
    world.request_calls(call(1, "single", a=1), call(2, "single", a=2))
    world.until(lambda: [world.kinds(n)[-1] for n in (1, 2)] == ["completed"] * 2)
    assert world.backend.running_max["single"] == 1
