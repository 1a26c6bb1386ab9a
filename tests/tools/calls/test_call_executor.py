"""Calls in progress: slots, timeouts, ends and stored values, with a virtual clock."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.digest import canonical_json, digest_bytes
from tests.tools.tool_fixtures import BackendHost, ToolWorld, call, capability, operation


def test_a_tool_gets_the_session_run_and_deadline_of_its_call(world: ToolWorld):
    world.begin()
    world.request_calls(call(1, "fetch", 1, b=2))
    world.until(lambda: world.executions(1))
    (ctx,) = world.backend.contexts
    assert (ctx.name, ctx.args, ctx.kwargs) == ("fetch", [1], {"b": 2})
    assert (ctx.session_id, ctx.run_id, ctx.call_id) == ("a", "run-1", operation(1))
    assert ctx.idempotency_key == ctx.call_id
    assert ctx.deadline_ms == world.tool_facts(1)[1].deadline_at_ms


def test_a_trace_continues_from_the_turn_through_every_fact_to_the_tool(world: ToolWorld):
    world.begin()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    world.ask("request", calls=[call(1, "fetch", a=1)], traceparent=trace)
    world.until(lambda: world.kinds()[-1:] == ["completed"])
    assert {fact.traceparent for fact in world.tool_facts()} == {trace}
    assert world.backend.contexts[0].traceparent == trace


# --- places and rates -----------------------------------------------------------------------------


def test_no_more_calls_of_a_tool_run_at_once_than_it_allows_and_each_begins_in_turn(
    world: ToolWorld,
):
    """Each call uses its whole timeout, and the next begins when it ends."""
    world.begin(capability("single", concurrency=1, timeout_ms=200))
    world.backend.hold = True
    for number, key in enumerate("abcd", 1):
        world.request_calls(call(number, "single", a=number), key=key)
    world.settle()
    assert world.kinds(key="a") == ["requested", "intent_recorded"]
    assert [world.kinds(key=key) for key in "bcd"] == [["requested"]] * 3
    world.until(lambda: all(world.kinds(key=key)[-1] == "failed" for key in "abcd"))
    assert world.backend.running_max["single"] == 1
    assert [ctx.session_id for ctx in world.backend.contexts] == ["a", "b", "c", "d"]


def test_a_withdrawn_call_takes_no_slot_from_the_calls_behind_it(world: ToolWorld):
    world.begin()
    for number, key in enumerate("abc", 1):
        world.request_calls(call(number, "rare", a=number), key=key)
    world.settle()
    world.end_run(key="b")
    for _ in range(2):
        world.pass_s(31)
    assert [ctx.session_id for ctx in world.backend.contexts] == ["a", "c"]


def test_no_more_calls_of_a_tool_begin_within_a_minute_than_it_allows(world: ToolWorld):
    world.begin()
    world.request_calls(*(call(number, "rare", a=number) for number in (1, 2, 3)))
    world.pass_s(59)
    assert world.backend.executions.total() == 1
    world.pass_s(30)
    world.pass_s(30)
    assert world.backend.executions.total() == 2
    world.until(lambda: world.kinds().count("completed") == 3, patience_s=90)
    begun = [fact.at_ms for fact in world.tool_facts() if hasattr(fact, "deadline_at_ms")]
    assert all(later - sooner >= 60_000 for sooner, later in pairwise(begun))


def test_the_timeout_of_a_call_begins_with_its_intent_and_not_with_the_wait_for_a_slot(
    world: ToolWorld,
):
    world.begin(capability("single", concurrency=1, timeout_ms=5_000))
    world.backend.hold = True
    world.request_calls(call(1, "single", a=1), call(2, "single", a=2))
    world.pass_s(4)
    world.backend.hold = False
    world.until(lambda: world.executions(2))
    world.backend.hold = True
    world.pass_s(3)
    world.backend.hold = False
    world.until(lambda: world.kinds().count("completed") == 2)


# --- ends -----------------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_ends_as_timed_out(world: ToolWorld):
    world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "hasty", a=1))
    world.until(lambda: world.kinds()[-1] == "failed")
    failed = world.tool_facts()[-1]
    assert (failed.error.code, failed.status, failed.duration_ms) == (
        "TIMEOUT_TOOL",
        "timeout",
        200,
    )


def test_a_call_whose_deadline_passes_before_its_start_is_not_made(world: ToolWorld):
    node = world.begin()
    node.journal.hold_acks()
    world.ask("request", calls=[call(1, "hasty", a=1)])
    world.settle()
    world.pass_s(0.5)
    node.release()
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.tool_facts()[-1].error.code == "TIMEOUT_TOOL"
    assert world.executions(1) == 0


def test_a_hosts_error_is_cut_to_the_size_that_can_be_stored(world: ToolWorld):
    world.begin()
    world.backend.outcome = CallOutcome(error=ToolFault("LONG", "\ud800" + "x" * 1_000_000))
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.tool_facts()[-1].error == ToolFault("LONG", "?" + "x" * 3_999)


@pytest.mark.parametrize(
    ("code", "status"), [("PERMISSION_DENIED", "denied"), ("OUT_OF_PAPER", "error")]
)
def test_a_tools_own_error_reaches_the_program_unchanged(world: ToolWorld, code: str, status: str):
    node = world.begin()
    told = world.expect(node, 1)
    world.backend.outcome = CallOutcome(error=ToolFault(code, "and why"))
    world.request_calls(call(1, "send", a=1))
    world.until(told.done)
    assert told.result().outcome.error == ToolFault(code, "and why")
    failed = world.tool_facts()[-1]
    assert (failed.error.code, failed.status) == (code, status)


def test_a_failing_host_ends_only_its_calls(world: ToolWorld):
    class Broken(BackendHost):
        async def call(self, ctx: ToolCallContext, timeout_ms: int, *gate: Any) -> CallOutcome:
            if ctx.name == "fetch":
                raise RuntimeError("no such backend")
            return await super().call(ctx, timeout_ms, *gate)

    world.begin(host=Broken(world.backend))
    world.request_calls(call(1, "fetch", a=1), call(2, "send", a=2))
    world.until(lambda: len(world.kinds()) == 6)
    assert world.kinds(1)[-1] == "failed"
    assert world.kinds(2)[-1] == "completed"


def test_a_run_that_is_to_end_stops_its_own_calls_in_flight(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "send", a=1), call(2, "fetch", a=2))
    world.request_calls(call(1, "fetch", a=1, run="other"), key="b", run="other")
    world.until(lambda: world.backend.executions.total() == 3)
    world.cancel_run(node)
    world.until(lambda: world.kinds().count("failed") == 2)
    assert world.tool_facts(1)[-1].error.code == "CANCELLED"
    assert world.kinds(key="b") == ["requested", "intent_recorded"]
    world.cancel_run(node)  # The slot is free.


def test_only_the_call_that_its_program_cancelled_is_stopped(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "send", a=1), call(2, "fetch", a=2))
    world.until(lambda: world.backend.executions.total() == 2)
    world.drop_call(node, 1)
    world.until(lambda: world.kinds(1)[-1] == "failed")
    assert world.tool_facts(1)[-1].error.code == "CANCELLED"
    assert world.kinds(2) == ["requested", "intent_recorded"]


def test_a_call_cancelled_before_its_start_does_not_begin(world: ToolWorld):
    node = world.begin()
    world.drop_call(node, 1)
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.tool_facts()[-1].error.code == "CANCELLED"
    assert not world.executions(1)


def test_a_result_that_cannot_be_stored_just_now_is_stored_later(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.backend.outcome = CallOutcome(value="x" * 70_000)
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.executions(1))
    node.bus.blobs.cut = True  # type: ignore[attr-defined]
    world.backend.hold = False
    world.pass_s(20)
    assert world.kinds()[-1] == "intent_recorded"
    node.bus.blobs.cut = False  # type: ignore[attr-defined]
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.executions(1) == 1


@pytest.mark.parametrize(("length", "inline"), [(65_534, True), (65_535, False)])
def test_large_values_are_stored_in_the_blob_store(world: ToolWorld, length: int, inline: bool):
    node = world.begin()
    told = world.expect(node, 1)
    value = "x" * length
    world.backend.outcome = CallOutcome(value=value)
    world.request_calls(call(1, "fetch", a=1))
    world.until(told.done)
    outcome, digest = told.result().outcome, digest_bytes(canonical_json(value))
    completed = world.tool_facts()[-1]
    assert completed.response_digest == digest
    if inline:
        assert outcome.value == value
    else:
        assert (outcome.value, outcome.value_blob) == (None, digest)
        assert world.run(node.bus.blobs.get(digest)) == canonical_json(value)


def test_a_stop_waits_for_the_calls_in_progress(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.executions(1))
    world._loop.call_later(3, lambda: setattr(world.backend, "hold", False))
    assert node.stop()
    assert world.kinds()[-1] == "completed"


# --- the board ------------------------------------------------------------------------------------


def test_progress_without_a_future_is_dropped_and_stays_with_the_actor(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "fetch", a=1))
    world.until(lambda: world.kinds()[-1] == "completed")
    world.settle()
    told = world.expect(node, 1)
    world.settle()
    assert not told.done()
    assert world.progress(node)[0].outcome.value == "done"


def test_all_futures_of_a_call_are_notified_except_cancelled_ones(
    world: ToolWorld,
):
    node = world.begin()
    gave_up = world.expect(node, 1)
    gave_up.cancel()
    world.settle()
    one, other = world.expect(node, 1), world.expect(node, 1)
    world.request_calls(call(1, "fetch", a=1))
    world.until(one.done)
    assert one is other
    assert gave_up.cancelled()


def test_an_outcome_is_recorded_alone_only_if_no_step_records_it(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    passed = world.expect(node, 1)
    world.request_calls(call(1, "fetch", a=1))
    world.until(lambda: world.executions(1))

    async def begin_step() -> asyncio.Future[None]:
        await passed
        return node.board.begin_step([operation(1)])

    world.backend.hold = False
    step = world.run(begin_step())
    world.pass_s(2)
    assert "completed" not in world.kinds(1), "the step is on its way, however long it takes"
    step.set_result(None)  # It was not committed.
    world.until(lambda: world.kinds(1)[-1] == "completed")


def test_a_call_that_waits_for_an_operator_says_so_and_its_end_later(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.executions(1))
    node.crash()
    successor = world.begin()
    told = world.expect(successor, 1)
    world.until(told.done)
    assert told.result().waits_for == "RECOVERY_REQUIRED"
    later: asyncio.Future[Any] = world.expect(successor, 1)
    world.until_it_cannot_act()
    world.request("resolve", run_id="run-1", operation_id=operation(1), completed=1)
    world.until(later.done)
    assert later.result().outcome.value == 1
