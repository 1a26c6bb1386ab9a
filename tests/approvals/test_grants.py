"""Grants, answers and time: what is released, what is asked anew, and what is on record of it."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.approvals.dispatchers.port import (
    Cancelled,
    Decision,
    DispatchResult,
    Pending,
    TimedOut,
    Unavailable,
)
from rookery.actors.approvals.effects import ArmTimer, CheckAnswer, ReleaseCall
from rookery.actors.approvals.signing import Signer
from rookery.actors.approvals.state import REFUSALS_MAX, ApprovalSettings, Approver
from rookery.actors.messages import AllowCall
from rookery.actors.tools.effects import PrepareCall
from rookery.schemas.approvals.decision import DecisionReceipt
from rookery.schemas.approvals.records import Denied, approved, approved_for_session
from rookery.schemas.capability import ApprovalMode
from rookery.schemas.commands import ApprovalDue, HandleInput, RevokeGrant
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import approval, tool
from rookery.schemas.seed.refs import SourceKind, SourceRef
from tests.approvals.approval_histories import History
from tests.approvals.request_fixtures import Says
from tests.tools.tool_fixtures import capability

GUARDED = capability("guarded", approval_policy=ApprovalMode.MANUAL)
HOUR_MS = 3_600_000
ANN = Signer(b"a" * 32)


def history(**settings: Any) -> History:
    return History(GUARDED, settings=ApprovalSettings(**settings))


def kinds(told: History, family: str = "approval") -> list[str]:
    tags = [str(fact.__struct_config__.tag) for fact in told.facts]
    return [tag.split(".")[1] for tag in tags if tag.startswith(f"{family}.")]


def asked(told: History) -> str:
    """A call that somebody is asked about."""
    operation_id = told.call(1, "guarded", a=1)
    told.settle()
    assert told.waiting == [operation_id]
    return operation_id


def test_the_facts_of_an_approval_from_request_to_call():
    told = history()
    operation_id = asked(told)
    receipt = told.decide(operation_id)
    assert isinstance(receipt, DecisionReceipt)
    told.settle()
    assert kinds(told) == [
        *("requested", "created", "dispatch_intended"),
        *("answered", "dispatch_resulted", "decided", "grant_issued"),
        "grant_consumed",
    ]
    assert kinds(told, "tool") == ["requested", "allowed", "intent_recorded"]
    assert [operation for operation, _ in told.acts] == [operation_id]
    assert told.timers == {}


def test_the_records_of_a_run_are_the_seeds_five_and_counted():
    told = history()
    asked(told)
    second = told.call(2, "guarded", a=2)
    told.settle()
    told.decide("run-1-1")
    told.decide(second, "denied")
    told.settle()
    records = [fact.record for fact in told.facts if hasattr(fact, "record")]
    assert [record.journal_seq for record in records] == list(range(1, len(records) + 1))
    assert {record.payload.record_type for record in records} == {
        *("requested", "dispatch_intent", "dispatch_result", "responded", "denied")
    }
    assert {record.event_index.event_family for record in records} == {"approval"}


def test_a_grant_that_is_used_after_its_time_lets_nothing_through_and_the_call_is_asked_anew():
    told = history(grant_ttl_ms=HOUR_MS, timeout_ms=100 * HOUR_MS)
    operation_id = asked(told)
    first = told.answer_to(operation_id)
    told.decide(operation_id)
    told.pass_ms(HOUR_MS)
    told.settle()
    assert told.acts == []
    assert kinds(told)[-4:] == ["grant_expired", "requested", "created", "dispatch_intended"]
    anew = told.asked(operation_id)
    assert (anew.attempt, anew.approval_id) == (2, f"s.{operation_id}.2")
    assert anew.why == "the grant was not used in time"
    assert told.put("approval", first).code == "APPROVAL_CLOSED"
    told.decide(operation_id)
    told.settle()
    assert len(told.acts) == 1


def test_a_grant_is_good_until_the_last_moment():
    told = history(grant_ttl_ms=HOUR_MS)
    operation_id = asked(told)
    told.decide(operation_id)
    told.now_ms += HOUR_MS - 1
    told.settle()
    assert len(told.acts) == 1


def test_a_grant_that_was_revoked_before_its_call_lets_nothing_through():
    told = history()
    operation_id = asked(told)
    receipt = told.decide(operation_id)
    assert told.put("approval", RevokeGrant(grant_id=receipt.grant_id)).state == "revoked"
    told.settle()
    assert told.acts == []
    assert told.asked(operation_id).attempt == 2
    told.decide(operation_id)
    told.settle()
    assert len(told.acts) == 1


def test_a_grant_that_was_used_cannot_be_revoked_any_more():
    told = history()
    receipt = told.decide(asked(told))
    told.settle()
    assert told.put("approval", RevokeGrant(grant_id=receipt.grant_id)).state == "consumed"
    assert told.put("approval", RevokeGrant(grant_id="another")).code == "GRANT_NOT_FOUND"


def test_what_a_sessions_grant_allowed_it_allows_no_more_once_revoked():
    told = history()
    told.decide(asked(told), "approved_for_session")
    told.settle()
    second = told.call(2, "guarded", a=2)
    while not any(isinstance(effect, ReleaseCall) for effect in told.pending):
        told.perform(told.pending[0])
    (granted,) = told.of(approval.SessionGrantIssued)
    told.put("approval", RevokeGrant(grant_id=granted.grant_id))
    told.settle()
    assert [operation for operation, _ in told.acts] == ["run-1-1"]
    assert told.asked(second).why == "the session's grant was revoked"


def test_a_call_needs_a_grant():
    told = history()
    operation_id = asked(told)
    digest = told.asked(operation_id).request_digest
    told.put("tool", AllowCall(operation_id=operation_id, request_digest=digest, grant_id=""))
    told.put("tool", AllowCall(operation_id=operation_id, request_digest="0", grant_id="g"))
    told.settle()
    assert told.of(tool.IntentRecorded) == []


def test_a_withdrawn_call_takes_its_unused_grant_with_it():
    told = history()
    receipt = told.decide(asked(told))
    told.end()
    for effect in [one for one in told.pending if not isinstance(one, ReleaseCall)]:
        told.perform(effect)
    told.settle()
    (revoked,) = told.of(approval.GrantRevoked)
    assert revoked.grant_id == receipt.grant_id
    assert told.acts == []


# --- time -----------------------------------------------------------------------------------------


def test_a_timer_that_comes_before_our_clock_thinks_so_is_believed():
    told = history(timeout_ms=HOUR_MS)
    operation_id = asked(told)
    due = ApprovalDue(approval_id=told.asked(operation_id).approval_id)
    assert told.put("approval", due, "forged", "approval_due").code == "GUARD_REJECTED"
    told.put("approval", due, "timer/approval.x/1", "approval_due")
    told.settle()
    (closed,) = told.of(approval.Closed)
    assert (closed.status, closed.reason_code) == ("timed_out", "approval.timeout")
    (failed,) = told.of(tool.Failed)
    assert (failed.error.code, failed.error.message) == ("PERMISSION_DENIED", "approval.timeout")


def test_an_answer_that_comes_with_its_time_is_too_late_even_before_the_timer():
    told = history(timeout_ms=HOUR_MS)
    operation_id = asked(told)
    told.now_ms += HOUR_MS
    assert told.decide(operation_id).code == "APPROVAL_CLOSED"


def test_an_answer_that_came_in_time_counts_however_late_it_is_worked_off():
    told = history(timeout_ms=HOUR_MS)
    operation_id = asked(told)
    told.pass_unwatched_ms(HOUR_MS - 1)
    arrived_ms = told.now_ms
    told.arrive(told.answer_to(operation_id))
    told.pass_unwatched_ms(10 * HOUR_MS)
    told.crash()
    told.settle()
    told.work_off()
    told.settle()
    (answered,) = told.of(approval.Answered)
    assert (answered.arrived_ms, answered.at_ms) == (arrived_ms, arrived_ms + 10 * HOUR_MS)
    assert len(told.acts) == 1


def test_a_dispatcher_that_would_be_asked_after_the_time_overtakes_no_answer_in_the_inbox():
    says = Says(Pending())
    told = History(
        GUARDED,
        settings=ApprovalSettings(timeout_ms=HOUR_MS, dispatchers=("says",)),
        dispatchers=(says,),
    )
    operation_id = asked(told)
    told.arrive(told.answer_to(operation_id))
    told.pass_unwatched_ms(HOUR_MS)
    says.what = TimedOut()
    told.crash()
    told.settle()
    assert len(says.asked) == 1
    told.work_off()
    told.settle()
    assert len(told.acts) == 1


def test_a_decision_that_a_dispatcher_brought_in_time_counts_though_its_record_took_longer():
    says = Says(Decision(approved("zoe")))
    told = History(
        GUARDED,
        settings=ApprovalSettings(timeout_ms=HOUR_MS, dispatchers=("says",)),
        dispatchers=(says,),
    )

    async def slowly(family: str, key: str, body: Any, answer: type[Any]) -> Any:
        told.now_ms += HOUR_MS * isinstance(body, CheckAnswer)
        return await told.ask(family, key, body, answer)

    told.acting.ask = slowly
    told.call(1, "guarded", a=1)
    told.settle()
    (answered,) = told.of(approval.Answered)
    assert answered.at_ms == answered.arrived_ms + HOUR_MS
    assert len(told.acts) == 1


def test_a_request_is_escalated_after_a_while_without_an_answer():
    first, second = Says(Pending()), Says(Decision(approved("zoe")))
    first.name, second.name = "inbox", "pager"  # type: ignore[misc]
    told = History(
        GUARDED,
        settings=ApprovalSettings(escalate_to=("pager",), escalate_after_ms=60_000),
        dispatchers=(first, second),
    )
    asked(told)
    assert (first.asked, second.asked) == (["s.run-1-1"], [])
    told.crash()
    assert len([one for one in told.pending if isinstance(one, ArmTimer)]) == 2
    told.settle()
    told.pass_ms(60_000)
    told.settle()
    assert second.asked == ["s.run-1-1"]
    assert len(told.acts) == 1
    assert len(told.of(approval.Escalated)) == 1


# --- dispatchers ----------------------------------------------------------------------------------


def dispatched(what: DispatchResult | Exception, **settings: Any) -> History:
    told = History(
        GUARDED,
        settings=ApprovalSettings(dispatchers=("says",), **settings),
        dispatchers=(Says(what),),
    )
    told.call(1, "guarded", a=1)
    told.settle()
    return told


ITSELF = Denied(reason_code="x", actor_ref=SourceRef.new("agent.s", SourceKind.EXTENSION))


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        (Decision(Denied(reason_code="approval.denied")), "denied", "approval.denied"),
        (Decision(ITSELF), "denied", "approval.extension_self_response"),
        (TimedOut(), "timed_out", "approval.timeout"),
        (Cancelled(), "cancelled", "approval.cancelled"),
        (Unavailable("pager.off"), "dispatcher_unavailable", "pager.off"),
        (RuntimeError("boom"), "dispatcher_unavailable", "approval.dispatcher_error"),
    ],
    ids=str,
)
def test_how_a_dispatcher_ends_it_is_on_record_and_the_call_is_denied(
    what: Any, status: str, reason: str
):
    told = dispatched(what)
    (result,) = told.of(approval.DispatchResulted)
    (closed,) = told.of(approval.Closed)
    assert result.record.payload.record.lifecycle_status == status
    assert (closed.status, closed.reason_code) == (status, reason)
    (failed,) = told.of(tool.Failed)
    assert failed.error.message.startswith(reason)
    assert told.acts == []


@pytest.mark.parametrize("decision", [approved("zoe"), approved_for_session("zoe")], ids=str)
def test_a_dispatcher_that_approves_releases_the_call(decision: Any):
    told = dispatched(Decision(decision))
    assert len(told.acts) == 1
    (answered,) = told.of(approval.Answered)
    assert (answered.actor, answered.verified) == ("zoe", False)


def test_where_keys_are_wanted_a_dispatchers_word_does_not_do_and_it_goes_on_waiting():
    told = dispatched(Decision(approved("zoe")), require_keys=True)
    assert told.of(approval.DispatchResulted) == []
    assert [fact.code for fact in told.of(approval.AnswerRefused)] == ["SIGNATURE_REQUIRED"]
    assert told.acts == []


def test_a_withdrawn_request_is_not_dispatched():
    says = Says(Decision(approved("zoe")))
    told = History(GUARDED, settings=ApprovalSettings(dispatchers=("says",)), dispatchers=(says,))
    told.call(1, "guarded", a=1)
    told.perform(told.pending[0])
    held = [effect for effect in told.pending if type(effect).__name__ == "Dispatch"]
    told.pending = []
    told.end()
    told.settle()
    told.pending = held
    told.settle()
    assert says.asked == []
    assert told.acts == []


# --- answers --------------------------------------------------------------------------------------


def test_a_key_counts_from_when_it_is_known_until_it_is_revoked():
    known: dict[str, Approver] = {}
    told = History(GUARDED, settings=ApprovalSettings(require_keys=True), find_approver=known.get)
    operation_id = asked(told)
    signed = ANN.sign("default", told.answer_to(operation_id))
    assert told.put("approval", signed).code == "APPROVER_UNKNOWN"
    known[ANN.key_id] = Approver(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
    assert told.decide(operation_id).code == "SIGNATURE_REQUIRED"
    assert told.put("approval", signed).verified
    second = told.call(2, "guarded", a=2)
    told.settle()
    known.clear()
    again = ANN.sign("default", told.answer_to(second))
    assert told.put("approval", again).code == "APPROVER_UNKNOWN"


def test_refused_answers_are_on_record_but_not_without_end():
    told = history()
    operation_id = asked(told)
    for _ in range(REFUSALS_MAX + 5):
        assert told.decide(operation_id, "maybe").code == "DECISION_UNKNOWN"
    assert len(told.of(approval.AnswerRefused)) == REFUSALS_MAX
    told.pass_ms(60_000)
    told.decide(operation_id, "maybe")
    assert len(told.of(approval.AnswerRefused)) == REFUSALS_MAX + 1


def test_where_nothing_was_ever_asked_a_refused_answer_leaves_nothing():
    told = history()
    operation_id = asked(told)
    answer = told.answer_to(operation_id)
    other = history()
    assert other.put("approval", answer).code == "APPROVAL_NOT_FOUND"
    assert other.facts == []


def test_the_machines_inputs_do_not_move_a_calls_approval():
    told = history()
    operation_id = asked(told)
    approval_id = told.asked(operation_id).approval_id
    params = {"approval_id": approval_id, "decision": "Approve"}
    said = told.put("approval", HandleInput(input="decide_approval", params=params))
    assert isinstance(said, CodedError)
    assert said.code == "GUARD_REJECTED"


def test_an_allowed_call_that_has_to_wait_for_a_place_keeps_its_grant():
    told = history()
    operation_id = asked(told)
    ledger_state = told.states["tool"]
    allowed = tool.Allowed(
        id="tool.s.9", run="run-1", operation_id=operation_id, grant_id="g", session="s"
    )
    after = told.concerns["tool"].evolve(ledger_state, allowed)
    (prepare,) = told.concerns["tool"].effects(after, allowed)
    assert isinstance(prepare, PrepareCall)
    assert prepare.call.grant_id == "g"
