"""Calls that end later, without an attempt: sleeps and waits for things under other keys.

They hold no slot, are ended once by the first event that names them, and survive their node.
"""

from __future__ import annotations

import pytest
from immutables import Map

from rookery.actors.messages import CallProgress
from rookery.actors.tools.authoring.decorator import tool as decorated
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.builtin.sleep import SECONDS_MAX, built_in_tools
from rookery.actors.tools.calls.wait_rules import end_wait
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.bus.ports import Timer
from rookery.schemas.calls import WAITING_FOR_APPROVAL, CallOutcome, ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import WaitEnded
from rookery.schemas.facts import tool
from rookery.schemas.replies import CallReceipt
from rookery.schemas.run import SideEffect
from tests.tools.tool_fixtures import ToolNode, ToolWorld, call, operation

DAY_S = 24 * 3_600
SLEPT = ["requested", "awaited", "completed"]
TIMER, PEER = "WAITING_FOR_TIMER", "WAITING_FOR_PEER"


def armed(world: ToolWorld) -> list[Timer]:
    return list(world.server.realm("default").timers._armed.values())


def wait_ended(node: ToolNode, world: ToolWorld, ended: WaitEnded) -> CallReceipt:
    """As the session's node posts it."""
    return world.run(node.kernel.ask("turn", "a", ended, CallReceipt))


def await_peer(world: ToolWorld) -> None:
    """A call that waits for a thing under another key, as a later version records it."""
    requested = tool.Requested(
        run="run-1",
        generation=1,
        operation_id=operation(1),
        name="send_request",
        surface="local",
        number=1,
        side_effect="none",  # type: ignore[arg-type]
        idempotent=True,
        idempotency_key=operation(1),
        schema_digest="",
        request_digest="",
        timeout_ms=0,
    )
    awaited = tool.Awaited(run="run-1", generation=1, operation_id=operation(1), code=PEER)
    world.write([requested, awaited], "turn")


def test_a_sleep_is_awaited_in_the_message_of_its_request(world: ToolWorld):
    node = world.begin()
    told = world.expect(node, 1)
    world.request_calls(call(1, "sleep", DAY_S), call(2, "fetch", a=1))
    (message,) = [m for m in world.stored("turn", "a") if b"tool.awaited" in m.body]
    assert message.body.count(b"tool.requested") == 2
    (_, awaited) = world.tool_facts(1)
    assert awaited.code == TIMER
    assert DAY_S * 1_000 <= awaited.until_ms - awaited.at_ms < DAY_S * 1_000 + 10
    world.until(told.done)
    assert told.result() == CallProgress(operation_id=operation(1), waits_for=TIMER, by_event=True)
    world.until(lambda: world.kinds(2)[-1] == "completed")
    (timer,) = armed(world)
    assert (timer.due_ms, timer.verb, timer.key) == (awaited.until_ms, "wait_ended", "a")


def test_a_sleep_ends_once_its_time_is_over_although_no_node_was_there(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "sleep", seconds=DAY_S))
    world.until(lambda: armed(world))
    node.crash()
    world.sleep_s(2 * DAY_S)
    world.begin()
    world.until(lambda: world.kinds(1) == SLEPT)
    world.pass_s(5)
    assert world.kinds(1) == SLEPT
    assert world.tool_facts(1)[-1].at_ms >= world.tool_facts(1)[1].until_ms
    assert not armed(world)


def test_the_next_owner_arms_the_timer_that_a_crash_has_left_out(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "sleep", 30))
    node.crash()
    world.server.realm("default").timers._armed.clear()
    world.begin()
    world.until(lambda: armed(world))
    world.pass_s(31)
    assert world.kinds(1) == SLEPT


def test_a_short_sleep_needs_no_timer_of_the_bus(world: ToolWorld):
    world.begin()
    world.request_calls(call(1, "sleep", 0.9), call(2, "sleep", 0))
    world.until(lambda: world.kinds(2) == SLEPT)
    assert not armed(world)
    assert world.kinds(1) == SLEPT[:2]
    world.pass_s(1)
    assert world.kinds(1) == SLEPT


def test_a_short_sleep_goes_on_with_the_next_owner(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "sleep", 0.9))
    node.crash()
    world.begin()
    world.until(lambda: world.kinds(1) == SLEPT)


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (-0.001, "INVALID_ARGUMENT"),
        (SECONDS_MAX + 1, "INVALID_ARGUMENT"),
        ("60", "TYPE_ERROR"),
        (None, "TYPE_ERROR"),
        (True, "TYPE_ERROR"),
    ],
)
def test_a_sleep_of_no_allowed_time_is_refused(world: ToolWorld, seconds: object, code: str):
    world.begin()
    world.request_calls(call(1, "sleep", seconds))
    assert world.kinds(1) == ["refused"]
    assert world.tool_facts(1)[0].error.code == code


def test_a_sleep_with_huge_arguments_is_refused(world: ToolWorld):
    node = world.begin()
    blob = world.store(node, b"{}")
    world.request_calls(call(1, "sleep", 1, blob=blob))
    assert world.tool_facts(1)[0].error.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("ends", ["the run", "the program"])
def test_a_withdrawn_sleep_cancels_its_timer(world: ToolWorld, ends: str):
    world.begin()
    world.request_calls(call(1, "sleep", DAY_S))
    world.until(lambda: armed(world))
    world.end_run() if ends == "the run" else world.retain_calls()
    world.until(lambda: not armed(world))
    assert world.kinds(1) == ["requested", "awaited", "withdrawn"]
    assert (world.tool_facts(1)[-1].given_up is True) == (ends == "the program")
    world.pass_s(1)


def test_a_client_may_not_end_a_wait(world: ToolWorld):
    world.begin()
    world.request_calls(call(1, "sleep", DAY_S))
    said = {"operation_id": operation(1), "code": TIMER}
    assert world.request("wait_ended", "a", **said).code == "UNKNOWN_VERB"
    world.submit("wait_ended", "a", **said)
    world.pass_s(1)
    assert world.kinds(1) == SLEPT[:2]


def test_the_node_of_the_session_ends_a_wait_for_a_thing_under_another_key(world: ToolWorld):
    await_peer(world)
    node = world.begin()
    assert world.progress(node) == [
        CallProgress(operation_id=operation(1), waits_for=PEER, by_event=True)
    ]
    ended = WaitEnded(operation_id=operation(1), code=PEER, outcome=CallOutcome(value={"ok": 1}))
    assert wait_ended(node, world, ended).state == "completed"
    assert world.kinds(1) == SLEPT
    assert world.tool_facts(1)[-1].value == {"ok": 1}
    other = WaitEnded(
        operation_id=operation(1), code=PEER, outcome=CallOutcome(error=ToolFault("LATE", "late"))
    )
    assert wait_ended(node, world, other).state == "completed"
    assert world.kinds(1) == SLEPT, "the first end counts"


def test_a_wait_may_end_in_a_failure(world: ToolWorld):
    await_peer(world)
    node = world.begin()
    failed = CallOutcome(error=ToolFault("PEER_GONE", "no such peer"))
    wait_ended(node, world, WaitEnded(operation_id=operation(1), code=PEER, outcome=failed))
    assert world.kinds(1) == ["requested", "awaited", "failed"]
    assert world.tool_facts(1)[-1].error == failed.error


@pytest.mark.parametrize(
    "ended",
    [
        WaitEnded(operation_id=operation(1), code=PEER),
        WaitEnded(operation_id=operation(2), code=""),
        WaitEnded(operation_id=operation(3), code=TIMER),
    ],
)
def test_an_event_ends_only_a_call_that_waits_for_it(world: ToolWorld, ended: WaitEnded):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "sleep", DAY_S), call(2, "fetch", a=1))
    before = world.tool_facts()
    wait_ended(node, world, ended)
    assert world.tool_facts() == before


def test_only_a_grant_ends_the_wait_for_an_approval():
    guarded = ToolCall(
        operation_id="o",
        run="r",
        generation=1,
        name="guarded",
        phase=CallPhase.AWAITED,
        waits_for=WAITING_FOR_APPROVAL,
    )
    calls = SessionCalls(run="r", calls=Map({"o": guarded}))
    ended = WaitEnded(operation_id="o", code=WAITING_FOR_APPROVAL)
    assert end_wait(calls, ended) == ()
    assert end_wait(calls, WaitEnded(operation_id="o", code=TIMER)) == ()


def test_a_timer_of_the_bus_must_name_the_call(world: ToolWorld):
    """Its body is a command like any other."""
    node = world.begin()
    body = encode_json({"operation_id": operation(9), "code": TIMER})
    late = Timer(id="wait.x", due_ms=1, verb="wait_ended", key="a", body=body)
    world.run(node.bus.timers.arm(late))
    world.pass_s(1)
    assert world.tool_facts() == []
    assert not world.dead()


def test_a_nodes_own_tool_called_sleep_replaces_the_built_in_one():
    (built_in,) = built_in_tools(ToolRegistry())
    assert (built_in.available.name, built_in.waits_for) == ("sleep", TIMER)
    assert built_in.capability.side_effect is SideEffect.NONE
    assert not built_in.requires_approval

    @decorated
    def sleep(minutes: int) -> int:
        """Another one."""
        return minutes

    assert built_in_tools(ToolRegistry.of(sleep)) == ()
