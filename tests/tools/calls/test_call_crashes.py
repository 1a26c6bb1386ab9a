"""The crash matrix: a node dies at every step of a call, and another node takes the session over.

The tool backend counts executions and outlives every node. An idempotent call is tried again under
the same key; the unknown outcome of any other call is resolved by an operator. No call is executed
twice without a fact of it, and no committed result is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rookery.actors.messages import CallProgress
from tests.tools.tool_fixtures import ToolNode, ToolWorld, call, operation

TAKEN_OVER_S = 12.0
Moment = Callable[[ToolWorld, ToolNode, str], None]


def before_the_intent(world: ToolWorld, node: ToolNode, tool: str) -> None:
    """Other calls held its slot until now."""
    world.backend.hold = True
    others = (call(number, tool, a=number, run="other") for number in range(16))
    world.request_calls(*others, key="b", run="other")
    world.until(lambda: world.backend.running[tool] == 16)
    world.request_calls(call(1, tool, a=1))
    world.settle()
    assert world.kinds(1) == ["requested"]


def after_the_intent(world: ToolWorld, node: ToolNode, tool: str) -> None:
    node.journal.hold_acks()
    world.ask("request", run="run-1", calls=[call(1, tool, a=1)])
    world.settle()
    assert world.kinds() == ["requested", "intent_recorded"]


def during_the_act(world: ToolWorld, node: ToolNode, tool: str) -> None:
    world.backend.hold = True
    world.request_calls(call(1, tool, a=1))
    world.until(lambda: world.executions(1))


def after_the_act_before_the_result(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    node.journal.hold_appends("turn")
    world.backend.hold = False
    world.until(lambda: not world.backend.running.total())
    world.settle()
    node.weather.stray = False
    assert world.kinds() == ["requested", "intent_recorded"]


def after_the_result(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    node.journal.hold_acks()
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")


def after_the_notification(world: ToolWorld, node: ToolNode, tool: str) -> None:
    during_the_act(world, node, tool)
    told = world.expect(node, 1)
    world.backend.hold = False
    world.until(told.done)


ONCE = ["requested", "intent_recorded", "completed"]
RETRIED = ["requested", "intent_recorded", "intent_recorded", "completed"]
LEFT_OPEN = ["requested", "intent_recorded", "recovery_required"]

MATRIX: list[tuple[Moment, str, int, int, list[str]]] = [
    # Dies ..., tool, executions by the first node, by the second, the call's facts in the end.
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
    (after_the_notification, "fetch", 1, 0, ONCE),
    (after_the_notification, "send", 1, 0, ONCE),
]


@pytest.mark.parametrize(("moment", "tool", "first", "second", "kinds"), MATRIX)
def test_a_node_dies(
    world: ToolWorld, moment: Moment, tool: str, first: int, second: int, kinds: list[str]
):
    node = world.begin()
    moment(world, node, tool)
    assert world.executions(1) == first
    node.crash()
    world.backend.hold = False
    successor = world.begin()
    told = world.expect(successor, 1)
    world.until(lambda: world.kinds(1) == kinds)
    world.pass_s(TAKEN_OVER_S)
    assert world.kinds(1) == kinds
    assert world.executions(1) == first + second
    (known,) = world.progress(successor)
    if kinds is LEFT_OPEN:
        assert known == CallProgress(operation_id=operation(1), waits_for="RECOVERY_REQUIRED")
    else:
        assert known.outcome.value == "done"
    if kinds is not ONCE or second:
        assert (told.result().outcome, told.result().waits_for) == (known.outcome, known.waits_for)


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
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")
    intents = [fact for fact in world.tool_facts(1) if hasattr(fact, "attempt")]
    assert [(fact.attempt, fact.node) for fact in intents] == list(enumerate(epochs, 1))
    assert {ctx.idempotency_key for ctx in world.backend.contexts} == {operation(1)}


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
    """The node is cut off: it cannot tell whether it still owns its sessions."""
    node.bus.claims.cut = True  # type: ignore[attr-defined]
    world.until(lambda: not node.kernel.partitions.is_certain)
    world.pass_s(TAKEN_OVER_S)


def back(world: ToolWorld, node: ToolNode) -> None:
    """The node had lost its sessions and owns them again."""
    node.bus.claims.cut = False  # type: ignore[attr-defined]
    world.until(lambda: node.kernel.partitions.is_certain)
    world.pass_s(TAKEN_OVER_S)


def test_a_session_that_returns_to_its_node_finds_its_call_in_progress(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "long")
    away(world, node)
    back(world, node)
    assert world.kinds() == ["requested", "intent_recorded"]
    world.backend.hold = False
    world.until(lambda: world.kinds() == ONCE)
    assert world.executions(1) == 1


def test_an_outcome_is_not_lost_while_the_session_is_on_another_node(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "long")
    away(world, node)
    world.backend.hold = False
    world.settle()
    assert world.kinds() == ["requested", "intent_recorded"]
    back(world, node)
    assert world.kinds() == ONCE
    assert world.executions(1) == 1


def test_an_ended_call_is_not_repeated_when_its_session_leaves_and_returns(
    world: ToolWorld,
):
    """The node reads its own intent again, above a watermark that it could not save."""
    node = world.begin()
    world.request_calls(call(1, "long", a=1))
    world.until(lambda: world.kinds() == ONCE)
    node.bus.snapshots.cut = True  # type: ignore[attr-defined]
    away(world, node)
    node.bus.snapshots.cut = False  # type: ignore[attr-defined]
    back(world, node)
    assert world.kinds() == ONCE
    assert world.executions(1) == 1


def test_a_call_whose_run_has_ended_is_not_repeated(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    world.end_run()
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.kinds() == ["requested", "intent_recorded", "failed"]
    assert "its run no longer waits for it" in world.tool_facts()[-1].error.message
    assert world.executions(1) == 1


def test_a_call_that_its_program_cancelled_is_not_repeated(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    world.retain_calls()
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
    world.retain_calls()
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert world.executions(1) == 1
