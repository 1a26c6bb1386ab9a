"""Calls that go on as tasks of their surface: any node may follow them, and they are made once."""

from __future__ import annotations

import pytest

from rookery.schemas.facts import tool as facts
from tests.tools.calls.test_call_crashes import TAKEN_OVER_S
from tests.tools.tool_fixtures import ToolNode, ToolWorld, call, operation


def following(world: ToolWorld, tool: str = "send") -> ToolNode:
    """A node that follows the task of a call."""
    node = world.begin()
    world.backend.makes_tasks = world.backend.hold = True
    world.request_calls(call(1, tool, a=1))
    world.until(lambda: world.kinds()[-1] == "awaited")
    return node


def test_a_call_is_awaited_by_its_task_and_has_its_outcome(world: ToolWorld):
    node = following(world)
    awaited = world.tool_facts()[-1]
    assert isinstance(awaited, facts.Awaited)
    assert (awaited.code, awaited.task) == ("WAITING_FOR_TASK", f"task of {operation(1)}")
    (progress,) = world.progress(node)
    assert (progress.waits_for, progress.by_event) == ("WAITING_FOR_TASK", True)
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.kinds() == ["requested", "intent_recorded", "awaited", "completed"]
    assert world.tool_facts()[-1].duration_ms == 0, "the run has a limit for what runs here"
    assert world.executions(1) == 1


def test_a_surface_may_give_a_task_more_time_than_its_call_has(world: ToolWorld):
    world.backend.task_left_ms = 7_200_000
    node = following(world)
    awaited = world.tool_facts()[-1]
    assert awaited.until_ms == awaited.at_ms + 7_200_000
    node.crash()
    world.begin()
    world.pass_s(TAKEN_OVER_S)
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")
    assert min(world.backend.followed_ms) > 7_000_000


def test_a_task_holds_no_slot(world: ToolWorld):
    node = following(world)
    world.until(lambda: not node.places.reserved("a"))
    world.request_calls(*(call(number, "send", a=number) for number in range(2, 40)))
    world.until(lambda: world.kinds().count("awaited") == 39)


@pytest.mark.parametrize("tool", ["send", "fetch"])
def test_another_node_follows_the_task_of_a_node_that_died(world: ToolWorld, tool: str):
    """Also if the call could be repeated: it is not."""
    node = following(world, tool)
    node.crash()
    world.begin()
    world.pass_s(TAKEN_OVER_S)
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.kinds().count("intent_recorded") == world.executions(1) == 1


def test_a_task_that_its_surface_does_not_know_waits_for_an_operator(world: ToolWorld):
    following(world)
    world.backend.lost, world.backend.hold = True, False
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert "is not known" in world.tool_facts()[-1].reason
    assert world.executions(1) == 1


def test_the_end_of_a_run_ends_its_tasks(world: ToolWorld):
    node = following(world)
    world.end_run()
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.tool_facts()[-1].error.code == "CANCELLED"
    world.until(lambda: operation(1) in node.host.cancelled)
