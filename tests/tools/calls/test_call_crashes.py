"""The crash matrix: a node dies at every moment of a call, and another takes the session over.

Executions are counted in the workshop, which no crash reaches. An idempotent call is tried again
under the same key; of any other nobody says what came of it but an operator. Nothing is executed
twice unseen, and no result that stands is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rookery.actors.messages import CallProgress
from tests.tools.tool_fixtures import ToolNode, ToolWorld, call, operation

TAKEN_OVER_S = 12.0
Moment = Callable[[ToolWorld, ToolNode, str], None]


def before_the_tools_hear_of_it(world: ToolWorld, node: ToolNode, tool: str) -> None:
    node.journal.hold_appends("tool")
    world.want(call(1, tool, a=1))
    world.settle()
    node.weather.stray = False
    assert world.kinds() == []


def before_the_intent(world: ToolWorld, node: ToolNode, tool: str) -> None:
    """Its place was taken by others until now."""
    world.workshop.hold = True
    others = (call(number, tool, a=number, run="other") for number in range(16))
    world.want(*others, key="b", run="other")
    world.until(lambda: world.workshop.running[tool] == 16)
    world.want(call(1, tool, a=1))
    world.settle()
    assert world.kinds(1) == ["requested"]


def after_the_intent(world: ToolWorld, node: ToolNode, tool: str) -> None:
    node.journal.hold_acks()
    world.ask("want", run="run-1", calls=[call(1, tool, a=1)])
    world.settle()
    node.release()
    node.journal.hold_acks()
    world.settle()
    assert world.kinds() == ["requested", "intent_recorded"]


def during_the_act(world: ToolWorld, node: ToolNode, tool: str) -> None:
    world.workshop.hold = True
    world.want(call(1, tool, a=1))
    world.until(lambda: world.executions(1))


def after_the_act_before_the_result(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    node.journal.hold_appends("tool")
    world.workshop.hold = False
    world.until(lambda: not world.workshop.running.total())
    world.settle()
    node.weather.stray = False
    assert world.kinds() == ["requested", "intent_recorded"]


def after_the_result(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    node.journal.hold_acks()
    world.workshop.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")


def after_the_result_was_told(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    told = world.expect(node, 1)
    world.workshop.hold = False
    world.until(told.done)


ONCE = ["requested", "intent_recorded", "completed"]
RETRIED = ["requested", "intent_recorded", "intent_recorded", "completed"]
LEFT_OPEN = ["requested", "intent_recorded", "recovery_required"]

MATRIX: list[tuple[Moment, str, int, int, list[str]]] = [
    # Dies ..., tool, executions by the first node, by the second, the call's facts in the end.
    (before_the_tools_hear_of_it, "fetch", 0, 1, ONCE),
    (before_the_tools_hear_of_it, "send", 0, 1, ONCE),
    (before_the_intent, "fetch", 0, 1, ONCE),
    (before_the_intent, "send", 0, 1, ONCE),
    (after_the_intent, "fetch", 0, 1, RETRIED),
    (after_the_intent, "send", 0, 0, LEFT_OPEN),
    (during_the_act, "fetch", 1, 1, RETRIED),
    (during_the_act, "send", 1, 0, LEFT_OPEN),
    (after_the_act_before_the_result, "fetch", 1, 1, RETRIED),
    (after_the_act_before_the_result, "send", 1, 0, LEFT_OPEN),
    (after_the_result, "fetch", 1, 0, ONCE),
    (after_the_result, "send", 1, 0, ONCE),
    (after_the_result_was_told, "fetch", 1, 0, ONCE),
    (after_the_result_was_told, "send", 1, 0, ONCE),
]


@pytest.mark.parametrize(("moment", "tool", "first", "second", "kinds"), MATRIX)
def test_a_node_dies(
    world: ToolWorld, moment: Moment, tool: str, first: int, second: int, kinds: list[str]
):
    node = world.begin()
    moment(world, node, tool)
    assert world.executions(1) == first
    node.crash()
    world.workshop.hold = False
    successor = world.begin()
    told = world.expect(successor, 1)
    world.until(lambda: world.kinds(1) == kinds)
    world.pass_s(TAKEN_OVER_S)
    assert world.kinds(1) == kinds
    assert world.executions(1) == first + second
    (known,) = world.known(successor)
    if kinds is LEFT_OPEN:
        assert known == CallProgress(operation_id=operation(1), waits_for="RECOVERY_REQUIRED")
    else:
        assert known.outcome.value == "done"
    if kinds is not ONCE or second:
        assert told.result() == known


def test_every_attempt_of_a_call_has_the_same_key_and_its_own_number(world: ToolWorld):
    node = world.begin()
    epochs = [node.epoch]
    for _ in range(3):
        during_the_act(world, node, "fetch")
        node.crash()
        node = world.begin()
        epochs.append(node.epoch)
        tries = len(epochs)
        world.until(lambda tries=tries: world.executions(1) == tries)
    world.workshop.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")
    intents = [fact for fact in world.tool_facts(1) if hasattr(fact, "attempt")]
    assert [(fact.attempt, fact.node) for fact in intents] == list(enumerate(epochs, 1))
    assert {ctx.idempotency_key for ctx in world.workshop.contexts} == {operation(1)}


def test_a_call_with_an_unknown_outcome_waits_through_any_number_of_crashes(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "send")
    for _ in range(2):
        node.crash()
        node = world.begin()
        world.until(lambda: world.kinds()[-1] == "recovery_required")
        world.pass_s(TAKEN_OVER_S)
    assert world.kinds() == LEFT_OPEN
    assert world.executions(1) == 1


def away(world: ToolWorld, node: ToolNode) -> None:
    """The node does not know any more whether it has its sessions, and cannot find out."""
    node.bus.claims.cut = True  # type: ignore[attr-defined]
    world.until(lambda: not node.kernel.partitions.is_certain)
    world.pass_s(TAKEN_OVER_S)


def back(world: ToolWorld, node: ToolNode) -> None:
    """It had lost them, and gets them all again."""
    node.bus.claims.cut = False  # type: ignore[attr-defined]
    world.until(lambda: node.kernel.partitions.is_certain)
    world.pass_s(TAKEN_OVER_S)


def test_a_session_that_comes_back_to_its_node_meets_the_call_still_under_way(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "long")
    away(world, node)
    back(world, node)
    assert world.kinds() == ["requested", "intent_recorded"]
    world.workshop.hold = False
    world.until(lambda: world.kinds() == ONCE)
    assert world.executions(1) == 1


def test_what_a_call_came_to_while_its_session_was_away_is_not_lost(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "long")
    away(world, node)
    world.workshop.hold = False
    world.settle()
    assert world.kinds() == ["requested", "intent_recorded"]
    back(world, node)
    assert world.kinds() == ONCE
    assert world.executions(1) == 1


def test_a_call_that_ended_before_its_session_went_and_came_back_is_not_made_again(
    world: ToolWorld,
):
    """The node meets its own intent again, above the horizon that it could not keep."""
    node = world.begin()
    world.want(call(1, "long", a=1))
    world.until(lambda: world.kinds() == ONCE)
    node.bus.snapshots.cut = True  # type: ignore[attr-defined]
    away(world, node)
    node.bus.snapshots.cut = False  # type: ignore[attr-defined]
    back(world, node)
    assert world.kinds() == ONCE
    assert world.executions(1) == 1


def test_a_call_whose_run_has_ended_is_not_made_again(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    world.over()
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.kinds() == ["requested", "intent_recorded", "failed"]
    assert "its run no longer waits for it" in world.tool_facts()[-1].error.message
    assert world.executions(1) == 1


def test_a_call_that_its_program_gave_up_is_not_made_again(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    world.keep()
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.kinds() == ["requested", "intent_recorded", "failed"]
    assert world.executions(1) == 1


def test_the_outcome_of_a_dropped_call_that_is_not_idempotent_is_unknown(
    world: ToolWorld,
):
    node = world.begin()
    during_the_act(world, node, "send")
    world.keep()
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert world.executions(1) == 1
