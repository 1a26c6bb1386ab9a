"""Rules of calls: batches, ends of runs, resolutions by an operator."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from rookery.actors import histories
from rookery.actors.tools.attempts.call_slots import CallAttempt, CallSlots
from rookery.actors.tools.calls.call_rules import CallRules
from rookery.actors.tools.effects import AttemptLost, PrepareCall, call_effects
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.digest import digest_json
from rookery.schemas.facts import tool as facts
from rookery.schemas.run import SideEffect
from tests.tools.calls.test_call_crashes import TAKEN_OVER_S, during_the_act
from tests.tools.tool_fixtures import ToolNode, ToolWorld, call, capability, operation, tools


def lost(world: ToolWorld) -> ToolNode:
    """A call with an unknown outcome, on a node that continues."""
    node = world.begin()
    during_the_act(world, node, "send")
    node.crash()
    world.backend.hold = False
    successor = world.begin()
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    return successor


def resolve(world: ToolWorld, **said: Any) -> Any:
    """Resolve a call when its outcome is known to be unknown; the reply."""
    world.until_it_cannot_act()
    body = {"run_id": "run-1", "operation_id": operation(1)} | said
    return world.request("resolve", **body)


def answered(asked: Any) -> str:
    """The progress of the call, as the reply to a resolution says."""
    assert not asked.code, asked.answers[-1].body
    return asked.answers[-1].body.partition(b'"state":"')[2].rstrip(b'"}').decode()


# --- batches --------------------------------------------------------------------------------------


def test_a_call_that_can_begin_has_request_and_intent_in_one_message(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "fetch", 1, b=2))
    world.until(lambda: world.kinds()[-1] == "completed")
    requested, intent, completed = world.tool_facts()
    assert len(world.stored("turn")) == 2
    assert (requested.run, requested.surface, requested.number) == ("run-1", "outside", 1)
    assert requested.idempotency_key == requested.operation_id
    assert requested.request_digest == digest_json({"args": [1], "kwargs": {"b": 2}})
    assert (intent.attempt, intent.node) == (1, node.epoch)
    assert intent.deadline_at_ms == intent.at_ms + requested.timeout_ms
    assert (completed.value, completed.response_digest) == ("done", digest_json("done"))


def test_the_calls_of_a_batch_are_one_message_and_each_has_its_own_fate(world: ToolWorld):
    world.begin()
    world.request_calls(call(1, "fetch", a=1), call(2, "nothing"), call(3, "send", a=3))
    world.until(lambda: world.kinds().count("completed") == 2)
    assert world.kinds()[:5] == [
        *("requested", "intent_recorded"),
        "refused",
        *("requested", "intent_recorded"),
    ]
    assert world.kinds(2) == ["refused"]


def test_a_batch_without_calls_leaves_no_facts(world: ToolWorld):
    world.begin()
    world.request_calls()
    world.settle()
    assert world.tool_facts() == []


def test_a_large_batch_begins_one_message_later(world: ToolWorld):
    world.begin(capability("fetch", concurrency=1_000))
    world.request_calls(*(call(number, "fetch", a=number) for number in range(1, 302)))
    world.until(lambda: world.kinds().count("completed") == 301)
    assert world.kinds()[:301] == ["requested"] * 301
    assert all(world.executions(number) == 1 for number in range(1, 302))


def test_a_runs_calls_are_known_in_order_until_another_run_calls(world: ToolWorld):
    node = world.begin()
    world.request_calls(call(1, "fetch", a=1), call(2, "nothing"))
    world.until(lambda: "completed" in world.kinds())
    world.end_run()
    first, second = world.progress(node)
    assert (first.operation_id, first.outcome.value) == (operation(1), "done")
    assert (second.operation_id, second.outcome.error.code) == (operation(2), "UNKNOWN_TOOL")
    world.request_calls(call(1, "fetch", a=1, run="run-2"), run="run-2")
    world.until(lambda: world.executions(1, "run-2"))
    assert world.progress(node) == []
    assert len(world.progress(node, run="run-2")) == 1


def test_what_is_known_survives_a_snapshot(world: ToolWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(histories, "KEY_BYTES_MAX", 0)
    node = world.begin()
    many = [call(number, "fetch", a=number) for number in range(1, 31)]
    world.request_calls(*many, call(31, "nothing"))
    world.until(lambda: world.kinds().count("completed") == 30)
    before = world.progress(node)
    node.passivate()
    world.settle()
    node.journal.read_after.clear()
    assert world.progress(node) == before
    assert max(node.journal.read_after) > 0


# --- the end of a run -----------------------------------------------------------------------------


def test_a_call_that_was_not_begun_when_its_run_ended_is_withdrawn(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "single", a=1), call(2, "single", a=2))
    told = world.expect(node, 2)
    world.settle()
    world.end_run()
    world.until(told.done)
    assert told.result().outcome.error.code == "CANCELLED"
    world.backend.hold = False
    world.until(lambda: world.kinds(1)[-1] == "completed")
    world.settle()
    assert world.kinds(2) == ["requested", "withdrawn"]
    assert world.executions(2) == 0


def test_a_call_dropped_before_it_began_is_withdrawn(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    asked = [call(number, "single", a=number) for number in (1, 2, 3)]
    world.request_calls(*asked)
    told = world.expect(node, 2)
    world.settle()
    world.retain_calls(asked[0], asked[2])
    world.until(told.done)
    assert "dropped the call" in told.result().outcome.error.message
    world.backend.hold = False
    world.until(lambda: world.kinds(3)[-1] == "completed")
    assert world.kinds(2) == ["requested", "withdrawn"]
    assert world.executions(2) == 0


def test_a_call_that_an_operator_retries_is_not_withdrawn_with_its_run(world: ToolWorld):
    once = capability("send", idempotent=False, concurrency=1)
    node = world.begin(once)
    during_the_act(world, node, "send")
    node.crash()
    world.begin(once)
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    world.until_it_cannot_act()
    world.request_calls(call(1, "send", a=1, run="other"), key="b", run="other")
    resolve(world, retry=True)
    world.settle()
    assert world.kinds()[-1] == "retry_allowed"
    world.end_run()
    world.backend.hold = False
    world.until(lambda: world.kinds()[-1] == "completed")


def test_a_withdrawn_waiting_call_leaves_its_slot_to_the_next(world: ToolWorld):
    world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "single", a=1))
    world.request_calls(call(2, "single", a=2, run="other"), key="b", run="other")
    world.request_calls(call(3, "single", a=3, run="third"), key="c", run="third")
    world.settle()
    world.end_run(key="b", run="other")
    world.backend.hold = False
    world.until(lambda: world.executions(3, "third"))
    assert world.kinds(2, "b", "other") == ["requested", "withdrawn"]


def test_the_outcome_of_a_call_in_flight_at_the_end_of_its_run_is_recorded(world: ToolWorld):
    world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "send", a=1))
    world.until(lambda: world.executions(1))
    world.end_run()
    world.request_calls(call(1, "fetch", a=1, run="run-2"), run="run-2")
    world.backend.hold = False
    world.until(lambda: world.kinds(1)[-1] == "completed")
    world.until(lambda: world.kinds(1, run="run-2")[-1] == "completed")


# --- resolutions ---------------------------------------------------------------------------------


def test_an_operator_resolves_a_call_with_a_value(world: ToolWorld):
    node = lost(world)
    told = world.expect(node, 1)
    assert answered(resolve(world, id="word", completed={"sent": True})) == "completed"
    world.until(told.done)
    assert told.result().outcome == CallOutcome(value={"sent": True})
    completed = world.tool_facts()[-1]
    assert completed.resolved_by == "word"
    assert completed.response_digest == digest_json({"sent": True})
    assert world.executions(1) == 1


def test_an_operator_resolves_a_call_without_a_value(world: ToolWorld):
    node = lost(world)
    assert answered(resolve(world, completed=None)) == "completed"
    assert world.progress(node)[0].outcome == CallOutcome(value=None)


def test_an_operator_resolves_a_call_as_failed(world: ToolWorld):
    node = lost(world)
    failed = {"code": "MAIL_BOUNCED", "message": "it never left"}
    assert answered(resolve(world, failed=failed)) == "failed"
    assert world.progress(node)[0].outcome.error == ToolFault("MAIL_BOUNCED", "it never left")


def test_an_operator_retries_a_call_under_the_same_key(world: ToolWorld):
    lost(world)
    assert answered(resolve(world, id="word", retry=True, actor="anne")) == "requested"
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.kinds()[-3:] == ["retry_allowed", "intent_recorded", "completed"]
    assert world.tool_facts()[-2].attempt == 2
    assert world.tool_facts()[-3].resolved_by == "anne"
    assert world.executions(1) == 2


def test_a_retry_survives_the_node_that_was_to_do_it_and_still_needs_an_operator_after(
    world: ToolWorld,
):
    node = lost(world)
    world.backend.hold = True
    resolve(world, retry=True)
    world.until(lambda: world.executions(1) == 2)
    node.crash()
    world.begin()
    world.until(lambda: world.kinds().count("recovery_required") == 2)
    world.pass_s(TAKEN_OVER_S)
    assert world.executions(1) == 2


def test_a_resolution_counts_once(world: ToolWorld):
    lost(world)
    first = resolve(world, id="word", completed=1)
    assert answered(resolve(world, id="word", completed=1)) == answered(first)
    assert resolve(world, id="word", completed=2).code == "IDEMPOTENCY_KEY_REUSED"
    assert resolve(world, id="other", completed=2).code == "GUARD_REJECTED"
    assert world.kinds().count("completed") == 1


def test_a_resolution_gets_a_reply_when_the_call_was_evicted(world: ToolWorld):
    lost(world)
    resolve(world, id="word", completed=1)
    world.request_calls(call(1, "fetch", a=1, run="run-2"), run="run-2")
    world.until(lambda: world.executions(1, "run-2"))
    assert answered(resolve(world, id="word", completed=1)) == "forgotten"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, "INVALID_ARGUMENT"),
        ({"completed": 1, "retry": True}, "INVALID_ARGUMENT"),
        ({"completed": 1, "operation_id": "another"}, "CALL_NOT_FOUND"),
        ({"completed": 1, "run_id": "run-2"}, "CALL_NOT_FOUND"),
        ({"completed": 1, "key": "b"}, "CALL_NOT_FOUND"),
        ({"completed": "x" * 70_000}, "PAYLOAD_TOO_LARGE"),
        ({"completed": 1, "colour": "red"}, "UNKNOWN_FIELD"),
    ],
)
def test_an_invalid_resolution_is_refused_and_changes_nothing(
    world: ToolWorld, said: dict[str, Any], code: str
):
    lost(world)
    before = world.kinds()
    assert resolve(world, **said).code == code
    assert world.kinds() == before


def test_a_resolution_with_a_value_outside_the_schema_is_refused(world: ToolWorld):
    counted = capability("send", idempotent=False, output_schema={"type": "integer"})
    node = world.begin(counted)
    during_the_act(world, node, "send")
    node.crash()
    world.begin(counted)
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert resolve(world, completed="many").code == "INVALID_RESULT"
    assert answered(resolve(world, completed=7)) == "completed"


# --- nodes that offer other tools -----------------------------------------------------------------


def test_an_interrupted_call_waits_for_a_node_with_its_tool(
    world: ToolWorld,
):
    node = world.begin()
    during_the_act(world, node, "fetch")
    node.crash()
    other = world.begin(capability("other"))
    world.pass_s(20)
    assert world.kinds()[-1] == "intent_recorded"
    other.crash()
    world.backend.hold = False
    world.begin()
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.executions(1) == 2


def test_a_call_that_may_not_be_repeated_is_not_repeated_where_its_tool_is_missing(
    world: ToolWorld,
):
    node = world.begin()
    during_the_act(world, node, "send")
    node.crash()
    world.begin(capability("other"))
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert resolve(world, retry=True).code == "UNKNOWN_TOOL"
    assert answered(resolve(world, completed=1)) == "completed"


def test_an_interrupted_call_is_not_tried_on_a_tool_with_another_schema(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    node.crash()
    world.begin(capability("fetch", input_schema={"type": "array"}))
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    assert world.executions(1) == 1


def test_a_call_that_was_not_begun_waits_for_a_node_with_its_tool(world: ToolWorld):
    node = world.begin()
    world.backend.hold = True
    world.request_calls(call(1, "single", a=1), call(2, "single", a=2))
    world.settle()
    node.crash()
    other = world.begin(capability("other"))
    world.pass_s(20)
    assert world.kinds(2) == ["requested"]
    other.crash()
    world.backend.hold = False
    world.begin()
    world.until(lambda: world.kinds(2)[-1] == "completed")


# --- rules alone ---------------------------------------------------------------------------------


def requested(**more: Any) -> facts.Requested:
    return facts.Requested(
        run="run-1",
        operation_id=operation(1),
        name="fetch",
        surface="outside",
        number=1,
        side_effect=SideEffect.NONE,
        idempotent=True,
        idempotency_key=operation(1),
        schema_digest=tools(capability("fetch")).require("fetch").available.schema_digest,
        request_digest="",
        timeout_ms=5_000,
        **more,
    )


def test_a_request_committed_with_its_intent_has_no_effect_of_its_own():
    at_once, later = requested(), requested(waits=True)
    assert call_effects(evolve_calls(SessionCalls(), at_once), at_once) == ()
    (prepare,) = call_effects(evolve_calls(SessionCalls(), later), later)
    assert isinstance(prepare, PrepareCall)


def test_only_the_end_of_its_process_interrupts_a_call():
    intent = facts.IntentRecorded(
        run="run-1", operation_id=operation(1), attempt=1, node="n1", deadline_at_ms=1
    )
    state = reduce(evolve_calls, (requested(), intent), SessionCalls())
    declared = capability("fetch")
    said = AttemptLost(operation_id=operation(1), attempt=1)
    for epoch, left in (("n1", 0), ("n2", 1)):
        places: Any = CallSlots([declared], None, None)  # type: ignore[arg-type]
        ledger = CallRules(tools(declared), places, epoch)
        assert len(ledger.on_attempt_lost(state, "a", said, now_ms=1)) == left


# --- conflicts ------------------------------------------------------------------------------------


def test_a_slot_reserved_for_an_uncommitted_intent_is_released(world: ToolWorld):
    node = world.begin()
    node.journal.hold_appends("turn")
    world.ask("request", calls=[call(1, "single", a=1)])
    world.settle()
    node.bus.claims.cut = True  # type: ignore[attr-defined]
    world.until(lambda: not node.kernel.partitions.is_certain)
    world.pass_s(TAKEN_OVER_S)
    second = world.begin()
    world.request_calls(call(1, "single", a=1))
    world.until(lambda: world.executions(1))
    node.bus.claims.cut = False  # type: ignore[attr-defined]
    node.release()
    world.pass_s(TAKEN_OVER_S)
    assert world.executions(1) == 1
    for one in (node, second):
        assert one.places.try_reserve(CallAttempt(operation(9), 1), "any", "single", world.now_ms())
