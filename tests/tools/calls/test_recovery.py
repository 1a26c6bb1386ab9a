"""Calls with an unknown outcome: until when the tool may act, when an operator may resolve them,
and that every intended call ends. First the rules alone, then nodes with a virtual clock.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import msgspec
import pytest

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.messages import RecordOutcome
from rookery.actors.tools.attempts.call_slots import CallSlots
from rookery.actors.tools.calls.call_rules import CallRules
from rookery.actors.tools.calls.resolutions import resolve
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.effects import AttemptLost
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.schemas.calls import CallOutcome
from rookery.schemas.commands import ResolveCall
from rookery.schemas.errors import Refused
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts import turn
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import LOCAL
from rookery.schemas.worker_protocol import GRACE_MS
from tests.tools.calls.test_call_crashes import TAKEN_OVER_S, during_the_act
from tests.tools.tool_fixtures import SURFACE, ToolWorld, capability, operation

CALL = operation(1)
DEADLINE_MS = 5_000
TIMEOUT_MS = 5_000
OTHER, OURS = "na.1", "nb.2"
DECLARED = [capability("fetch"), capability("send", idempotent=False)]


def ledger(surface: str) -> CallRules:
    visible = ToolCatalogue(CatalogueTool.of(surface, one, awaited=False) for one in DECLARED)
    places: Any = CallSlots(DECLARED, None, None)  # type: ignore[arg-type]
    return CallRules(visible, places, OURS)


def intended(
    name: str = "send", *, surface: str = SURFACE, node: str = OTHER, attempt: int = 1
) -> list[facts.ToolFact]:
    (tool,) = [one for one in ledger(surface).catalogue if one.capability.name == name]
    requested = facts.Requested(
        run="run-1",
        operation_id=CALL,
        name=name,
        surface=surface,
        number=1,
        side_effect=SideEffect.NONE,
        idempotent=tool.capability.idempotent,
        idempotency_key=CALL,
        schema_digest=tool.available.schema_digest,
        request_digest="",
        timeout_ms=TIMEOUT_MS,
    )
    return [requested, intent(node=node, attempt=attempt)]


def intent(*, node: str = OTHER, attempt: int = 1, deadline_ms: int = DEADLINE_MS) -> Any:
    return facts.IntentRecorded(
        run="run-1", operation_id=CALL, attempt=attempt, node=node, deadline_at_ms=deadline_ms
    )


def recovery(**said: Any) -> facts.RecoveryRequired:
    return facts.RecoveryRequired(run="run-1", operation_id=CALL, reason="lost", **said)


def folded(*stood: facts.ToolFact) -> SessionCalls:
    return reduce(evolve_calls, stood, SessionCalls())


def interrupted(surface: str, state: SessionCalls, *, now_ms: int = 1_000, **said: Any) -> Any:
    attempt = state.calls[CALL].attempt
    told = AttemptLost(operation_id=CALL, attempt=attempt, **said)
    (left,) = ledger(surface).on_attempt_lost(state, "a", told, now_ms=now_ms)
    return left


def resolved(state: SessionCalls, now_ms: int, **said: Any) -> list[str]:
    """The facts that a resolution leaves."""
    asked = ResolveCall(run_id="run-1", operation_id=CALL, **({"retry": True} | said))
    left = resolve(ledger(SURFACE), state, asked, by="anne", now_ms=now_ms)
    return [type(fact).__name__ for fact in left]


# --- until when the tool may act ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("surface", "gone", "until_ms"),
    [
        (SURFACE, False, 1_000 + TIMEOUT_MS + GRACE_MS),
        (SURFACE, True, 1_000 + TIMEOUT_MS + GRACE_MS),  # A worker outlives its node.
        (LOCAL, False, 1_000 + TIMEOUT_MS),
        (LOCAL, True, 1_000),
    ],
)
def test_a_recovery_says_until_when_the_tool_may_act(surface: str, gone: bool, until_ms: int):
    state = folded(*intended(surface=surface))
    said = interrupted(surface, state, gone=gone)
    assert said.may_act_until_ms == until_ms
    assert said.reason.startswith("it is unknown whether na")
    assert ("which has ended" in said.reason) == gone
    assert said.reason.endswith("the tool is not idempotent")
    assert evolve_calls(state, said).calls[CALL].acts_until_ms == until_ms


def test_an_attempt_before_the_last_one_may_still_act_after_the_last_process_is_gone():
    stood = [
        *intended(surface=LOCAL),
        recovery(may_act_until_ms=9_000),
        facts.RetryAllowed(run="run-1", operation_id=CALL, resolved_by="anne"),
        intent(attempt=2, deadline_ms=8_000),
    ]
    assert interrupted(LOCAL, folded(*stood), gone=True).may_act_until_ms == 9_000


def test_of_a_recovery_that_does_not_say_the_deadline_of_the_intent_counts():
    """Facts and snapshots of older nodes have no such field."""
    state = folded(*intended(), recovery())
    assert state.calls[CALL].acts_until_ms == DEADLINE_MS
    written = msgspec.msgpack.decode(encode_state(state))
    del written["calls"][CALL]["unknown_until_ms"]
    read = decode_state(msgspec.msgpack.encode(written), SessionCalls)
    assert read.calls[CALL].acts_until_ms == DEADLINE_MS


# --- when an operator may speak -------------------------------------------------------------------


@pytest.mark.parametrize("said", [{}, {"retry": False, "completed": 1}])
def test_a_resolution_is_refused_while_the_tool_may_act_unless_it_says_now(
    said: dict[str, Any],
):
    state = folded(*intended(), recovery(may_act_until_ms=7_000))
    with pytest.raises(Refused, match=r"CALL_MAY_STILL_ACT.*1 ms, until 1970.*07\.000.*--now"):
        resolved(state, 6_999, **said)
    assert resolved(state, 6_999, now=True, **said) == resolved(state, 7_000, **said)


def test_an_invalid_resolution_is_refused_at_once():
    state = folded(*intended(), recovery(may_act_until_ms=7_000))
    with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
        resolved(state, 0, retry=False, completed="x" * 70_000)


def test_a_deadline_beyond_the_calendar_is_refused_like_any_other():
    state = folded(*intended(), recovery(may_act_until_ms=2**62))
    with pytest.raises(Refused, match="CALL_MAY_STILL_ACT"):
        resolved(state, 0)


def test_an_operator_may_resolve_an_open_call_of_another_process():
    state = folded(*intended())
    with pytest.raises(Refused, match="CALL_MAY_STILL_ACT"):
        resolved(state, DEADLINE_MS)
    assert resolved(state, DEADLINE_MS + GRACE_MS) == ["RetryAllowed"]
    assert resolved(state, 0, now=True) == ["RetryAllowed"]


def test_an_operator_may_not_resolve_a_call_in_progress_here():
    with pytest.raises(Refused, match="GUARD_REJECTED"):
        resolved(folded(*intended(node=OURS)), 2**40, now=True)


def test_a_call_that_was_to_be_tried_again_and_is_not_can_still_be_resolved():
    again = facts.RetryAllowed(run="run-1", operation_id=CALL, resolved_by="anne")
    state = folded(*intended(), recovery(may_act_until_ms=7_000), again)
    assert resolved(state, 7_000, retry=False, completed=1) == ["Completed"]
    with pytest.raises(Refused, match="GUARD_REJECTED"):
        resolved(state, 7_000)


# --- nothing that was intended is without an end --------------------------------------------------


@pytest.mark.parametrize(("name", "end"), [("send", "RecoveryRequired"), ("fetch", "Failed")])
def test_the_end_of_a_run_ends_the_open_calls_of_another_process(name: str, end: str):
    state = folded(*intended(name))
    (left,) = ledger(SURFACE).on_run_ended(state, turn.Cancelled(run="run-1"), now_ms=1_000)
    assert type(left).__name__ == end
    assert "it is unknown whether na" in str(left)


def test_the_end_of_a_run_does_not_end_calls_in_progress_here():
    state = folded(*intended(node=OURS))
    assert ledger(SURFACE).on_run_ended(state, turn.Cancelled(run="run-1"), now_ms=1_000) == []


@pytest.mark.parametrize("stood", [[], [recovery(may_act_until_ms=9_000)]])
def test_a_workers_outcome_ends_a_call_until_an_operator_resolves_it(stood: list[Any]):
    state = folded(*intended(), *stood)
    said = RecordOutcome(
        operation_id=CALL, attempt=1, outcome=CallOutcome(value="sent"), by_worker=True
    )
    (left,) = ledger(SURFACE).on_outcome(state, said)
    assert isinstance(left, facts.Completed)
    again = facts.RetryAllowed(run="run-1", operation_id=CALL, resolved_by="anne")
    for later in (left, again):
        assert ledger(SURFACE).on_outcome(evolve_calls(state, later), said) == ()


def test_a_late_outcome_of_another_process_does_not_count_as_a_workers():
    state = folded(*intended())
    said = RecordOutcome(operation_id=CALL, attempt=1, outcome=CallOutcome(value="sent"))
    assert ledger(SURFACE).on_outcome(state, said) == ()


def test_a_call_whose_run_has_ended_is_recovered_by_the_next_node_and_can_be_resolved(
    world: ToolWorld,
):
    node = world.begin()
    during_the_act(world, node, "send")
    world.end_run()
    node.crash()
    world.begin(capability("other"))
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    world.pass_s(TAKEN_OVER_S)
    asked = world.request("resolve", run_id="run-1", operation_id=CALL, completed="sent")
    assert not asked.code
    assert world.kinds()[-1] == "completed"


def test_a_call_whose_run_has_ended_waits_for_no_node_that_has_its_tool(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    world.end_run()
    node.crash()
    world.begin(capability("other"))
    world.until(lambda: world.kinds()[-1] == "failed")
    assert world.executions(1) == 1


def test_a_call_left_to_other_nodes_ends_with_its_run(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "fetch")
    node.crash()
    world.begin(capability("other"))
    world.pass_s(TAKEN_OVER_S)
    assert world.kinds()[-1] == "intent_recorded"
    world.end_run()
    world.until(lambda: world.kinds()[-1] == "failed")


def test_recovery_is_requested_at_once_and_waits_until_the_tool_cannot_act(world: ToolWorld):
    node = world.begin()
    during_the_act(world, node, "long")
    node.crash()
    world.begin()
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    intent, lost = world.tool_facts(1)[-2:]
    assert lost.may_act_until_ms == lost.at_ms + 600_000 + GRACE_MS, "no clock is compared"
    assert lost.at_ms < intent.deadline_at_ms
    word = {"run_id": "run-1", "operation_id": CALL, "completed": "sent"}
    refused = world.request("resolve", id="word", **word)
    assert refused.code == "CALL_MAY_STILL_ACT"
    for _ in range(13):
        world.pass_s(50)
    assert not world.request("resolve", id="word", **word).code
    assert world.kinds()[-1] == "completed"
