"""Grants, answers and deadlines: which calls are released, which are requested again, and which
facts remain.
"""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.approvals.dispatchers.protocol import (
    Cancelled,
    Decision,
    DispatchResult,
    Pending,
    TimedOut,
    Unavailable,
)
from rookery.actors.approvals.effects import ArmTimer, CheckAnswer, Dispatch, ReleaseCall
from rookery.actors.approvals.state import REFUSALS_MAX, ApprovalSettings, Approver
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.messages import RecordedApprovalQuery, RecordedApprovalView
from rookery.actors.tools.effects import AskApproval, PrepareCall, pending_call_effects
from rookery.schemas.approvals.records import (
    DecisionReceipt,
    Denied,
    approved,
    approved_for_session,
)
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule
from rookery.schemas.commands import ApprovalDue, HandleInput, RevokeGrant
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import approval, tool
from rookery.schemas.seed.refs import SourceKind, SourceRef
from tests.approvals.approval_histories import SESSION, History
from tests.approvals.request_fixtures import Says
from tests.tools.tool_fixtures import capability

GUARDED = capability("guarded", approval_policy=ApprovalMode.MANUAL)
HOUR_MS = 3_600_000
ANN = Signer(b"a" * 32)


def history(**settings: Any) -> History:
    return History(GUARDED, settings=ApprovalSettings(**settings))


def kinds(session: History, family: str = "approval") -> list[str]:
    tags = [str(fact.__struct_config__.tag) for fact in session.facts]
    return [tag.split(".")[1] for tag in tags if tag.startswith(f"{family}.")]


def asked(session: History) -> str:
    """A call that waits for an approver."""
    operation_id = session.call(1, "guarded", a=1)
    session.settle()
    assert session.waiting == [operation_id]
    return operation_id


def test_the_facts_of_an_approval_from_request_to_call():
    session = history()
    operation_id = asked(session)
    receipt = session.decide(operation_id)
    assert isinstance(receipt, DecisionReceipt)
    session.settle()
    assert kinds(session) == [
        *("requested", "created", "dispatch_intended", "dispatched"),
        *("answered", "dispatch_resulted", "decided", "grant_issued"),
        "grant_consumed",
    ]
    assert kinds(session, "tool") == ["requested", "allowed", "intent_recorded"]
    assert [operation for operation, _ in session.acts] == [operation_id]
    assert session.timers == {}


def test_the_records_of_a_run_are_the_seeds_five_and_counted():
    session = history()
    asked(session)
    second = session.call(2, "guarded", a=2)
    session.settle()
    session.decide("run-1-1")
    session.decide(second, "denied")
    session.settle()
    records = [fact.record for fact in session.facts if hasattr(fact, "record")]
    assert [record.journal_seq for record in records] == list(range(1, len(records) + 1))
    assert {record.payload.record_type for record in records} == {
        *("requested", "dispatch_intent", "dispatch_result", "responded", "denied")
    }
    assert {record.event_index.event_family for record in records} == {"approval"}


def test_an_expired_grant_releases_no_call_and_the_call_is_requested_again():
    session = history(grant_ttl_ms=HOUR_MS, timeout_ms=100 * HOUR_MS)
    operation_id = asked(session)
    first = session.answer_to(operation_id)
    session.decide(operation_id)
    session.pass_ms(HOUR_MS)
    session.settle()
    assert session.acts == []
    assert kinds(session)[-5:] == [
        *("grant_expired", "requested", "created", "dispatch_intended", "dispatched")
    ]
    anew = session.asked(operation_id)
    assert (anew.attempt, anew.approval_id) == (2, f"s.{operation_id}.2")
    assert anew.why == "the grant was not used in time"
    assert session.put("approval", first).code == "APPROVAL_CLOSED"
    session.decide(operation_id)
    session.settle()
    assert len(session.acts) == 1


def test_a_continued_run_learns_that_its_approval_is_requested():
    session = history()
    query = RecordedApprovalQuery(operation_id=session.call(1, "guarded", a=1))
    assert session.put("approval", query) == RecordedApprovalView(is_recorded=False)
    session.settle()
    facts = len(session.facts)
    assert session.put("approval", query) == RecordedApprovalView(is_recorded=True)
    assert len(session.facts) == facts
    calls = session.states["turn"].known_calls
    (again,) = pending_call_effects(calls, SESSION, "n")
    assert isinstance(again, AskApproval)
    assert again.may_be_recorded


def test_a_grant_is_valid_until_its_last_millisecond():
    session = history(grant_ttl_ms=HOUR_MS)
    operation_id = asked(session)
    session.decide(operation_id)
    session.now_ms += HOUR_MS - 1
    session.settle()
    assert len(session.acts) == 1


def test_a_grant_revoked_before_its_call_releases_no_call():
    session = history()
    operation_id = asked(session)
    receipt = session.decide(operation_id)
    assert session.put("approval", RevokeGrant(grant_id=receipt.grant_id)).state == "revoked"
    session.settle()
    assert session.acts == []
    assert session.asked(operation_id).attempt == 2
    session.decide(operation_id)
    session.settle()
    assert len(session.acts) == 1


def test_a_used_grant_cannot_be_revoked():
    session = history()
    receipt = session.decide(asked(session))
    session.settle()
    assert session.put("approval", RevokeGrant(grant_id=receipt.grant_id)).state == "consumed"
    assert session.put("approval", RevokeGrant(grant_id="another")).code == "GRANT_NOT_FOUND"


def test_a_revoked_session_grant_allows_no_further_call():
    session = history()
    session.decide(asked(session), "approved_for_session")
    session.settle()
    second = session.call(2, "guarded", a=1)
    while not any(isinstance(effect, ReleaseCall) for effect in session.pending):
        session.perform(session.pending[0])
    (granted,) = session.of(approval.SessionGrantIssued)
    session.put("approval", RevokeGrant(grant_id=granted.grant_id))
    session.settle()
    assert [operation for operation, _ in session.acts] == ["run-1-1"]
    assert session.asked(second).why == "the session's grant was revoked"


def test_a_call_needs_a_grant():
    session = history()
    operation_id = asked(session)
    digest = session.asked(operation_id).request_digest
    for request_digest, grant_id in ((digest, ""), ("0", "g")):
        used = approval.GrantConsumed(
            run="run-1",
            generation=1,
            approval_id="a",
            operation_id=operation_id,
            grant_id=grant_id,
            request_digest=request_digest,
        )
        session.react("approval", used)
    session.settle()
    assert session.of(tool.IntentRecorded) == []


def test_withdrawing_a_call_revokes_its_unused_grant():
    session = history()
    receipt = session.decide(asked(session))
    session.end()
    for effect in [one for one in session.pending if not isinstance(one, ReleaseCall)]:
        session.perform(effect)
    session.settle()
    (revoked,) = session.of(approval.GrantRevoked)
    assert revoked.grant_id == receipt.grant_id
    assert session.acts == []


# --- time -----------------------------------------------------------------------------------------


def test_a_timer_counts_although_the_local_clock_is_behind():
    session = history(timeout_ms=HOUR_MS)
    operation_id = asked(session)
    due = ApprovalDue(approval_id=session.asked(operation_id).approval_id)
    assert session.put("approval", due, "forged", "approval_due").code == "GUARD_REJECTED"
    session.put("approval", due, "timer/approval.x/1", "approval_due")
    session.settle()
    (closed,) = session.of(approval.Closed)
    assert (closed.status, closed.reason_code) == ("timed_out", "approval.timeout")
    (failed,) = session.of(tool.Failed)
    assert (failed.error.code, failed.error.message) == ("PERMISSION_DENIED", "approval.timeout")


def test_an_answer_at_its_deadline_is_too_late_even_before_the_timer():
    session = history(timeout_ms=HOUR_MS)
    operation_id = asked(session)
    session.now_ms += HOUR_MS
    assert session.decide(operation_id).code == "APPROVAL_CLOSED"


def test_an_answer_that_arrived_in_time_counts_however_late_it_is_processed():
    session = history(timeout_ms=HOUR_MS)
    operation_id = asked(session)
    session.pass_unwatched_ms(HOUR_MS - 1)
    arrived_ms = session.now_ms
    session.arrive(session.answer_to(operation_id))
    session.pass_unwatched_ms(10 * HOUR_MS)
    session.crash()
    session.settle()
    session.process_inbox()
    session.settle()
    (answered,) = session.of(approval.Answered)
    assert (answered.arrived_ms, answered.at_ms) == (arrived_ms, arrived_ms + 10 * HOUR_MS)
    assert len(session.acts) == 1


def test_a_dispatch_after_the_deadline_overtakes_no_answer_in_the_inbox():
    says = Says(Pending())
    session = History(
        GUARDED,
        settings=ApprovalSettings(timeout_ms=HOUR_MS, dispatchers=("says",)),
        dispatchers=(says,),
    )
    operation_id = asked(session)
    session.arrive(session.answer_to(operation_id))
    session.pass_unwatched_ms(HOUR_MS)
    says.what = TimedOut()
    session.crash()
    session.settle()
    assert len(says.asked) == 1
    session.process_inbox()
    session.settle()
    assert len(session.acts) == 1


def test_a_dispatchers_decision_in_time_counts_though_its_record_took_longer():
    says = Says(Decision(approved("zoe")))
    session = History(
        GUARDED,
        settings=ApprovalSettings(timeout_ms=HOUR_MS, dispatchers=("says",)),
        dispatchers=(says,),
    )

    async def slowly(family: str, key: str, body: Any, answer: type[Any]) -> Any:
        session.now_ms += HOUR_MS * isinstance(body, CheckAnswer)
        return await session.ask(family, key, body, answer)

    session.acting.ask = slowly
    session.call(1, "guarded", a=1)
    session.settle()
    (answered,) = session.of(approval.Answered)
    assert answered.at_ms == answered.arrived_ms + HOUR_MS
    assert len(session.acts) == 1


def test_a_request_without_an_answer_is_escalated_at_its_time():
    first, second = Says(Pending()), Says(Decision(approved("zoe")))
    first.name, second.name = "inbox", "pager"  # type: ignore[misc]
    session = History(
        GUARDED,
        settings=ApprovalSettings(escalate_to=("pager",), escalate_after_ms=60_000),
        dispatchers=(first, second),
    )
    asked(session)
    assert (first.asked, second.asked) == (["s.run-1-1"], [])
    session.crash()
    assert len([one for one in session.pending if isinstance(one, ArmTimer)]) == 2
    session.settle()
    session.pass_ms(60_000)
    session.settle()
    assert second.asked == ["s.run-1-1"]
    assert len(session.acts) == 1
    assert len(session.of(approval.Escalated)) == 1


# --- dispatchers ----------------------------------------------------------------------------------


def dispatched(what: DispatchResult | Exception, **settings: Any) -> History:
    session = History(
        GUARDED,
        settings=ApprovalSettings(dispatchers=("says",), **settings),
        dispatchers=(Says(what),),
    )
    session.call(1, "guarded", a=1)
    session.settle()
    return session


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
def test_a_dispatchers_failure_is_recorded_and_the_call_is_denied(
    what: Any, status: str, reason: str
):
    session = dispatched(what)
    (result,) = session.of(approval.DispatchResulted)
    (closed,) = session.of(approval.Closed)
    assert result.record.payload.record.lifecycle_status == status
    assert (closed.status, closed.reason_code) == (status, reason)
    kind = {"dispatcher_unavailable": "dispatch_unavailable"}.get(status, status)
    assert closed.record.event_index.event_kind == f"approval_{kind}"
    (failed,) = session.of(tool.Failed)
    assert failed.error.message.startswith(reason)
    assert session.acts == []


@pytest.mark.parametrize("decision", [approved("zoe"), approved_for_session("zoe")], ids=str)
def test_a_dispatcher_that_approves_releases_the_call(decision: Any):
    session = dispatched(Decision(decision))
    assert len(session.acts) == 1
    (answered,) = session.of(approval.Answered)
    assert (answered.actor, answered.verified) == ("zoe", False)


def test_where_keys_are_required_an_unsigned_decision_leaves_the_request_pending():
    session = dispatched(Decision(approved("zoe")), require_keys=True)
    assert session.of(approval.DispatchResulted) == []
    assert [fact.code for fact in session.of(approval.AnswerRefused)] == ["SIGNATURE_REQUIRED"]
    assert session.acts == []


def test_a_request_that_waits_in_the_inbox_only_asks_nothing_of_its_actor():
    session = History(GUARDED)
    operation_id = asked(session)
    session.pending = [
        Dispatch(
            key="again",
            session=SESSION,
            request_state=session.approvals.asked[operation_id],
            dispatchers=("inbox",),
        )
    ]
    session.crash_in = 1  # At the first question.
    session.settle()
    assert session.approvals.asked[operation_id].is_pending
    assert session.crash_in == 1


def test_a_withdrawn_request_is_not_dispatched():
    says = Says(Decision(approved("zoe")))
    session = History(
        GUARDED, settings=ApprovalSettings(dispatchers=("says",)), dispatchers=(says,)
    )
    session.call(1, "guarded", a=1)
    session.perform(session.pending[0])
    held = [effect for effect in session.pending if type(effect).__name__ == "Dispatch"]
    session.pending = []
    session.end()
    session.settle()
    session.pending = held
    session.settle()
    assert says.asked == []
    assert session.acts == []


# --- answers --------------------------------------------------------------------------------------


def test_a_key_counts_from_its_addition_until_its_revocation():
    known: dict[str, Approver] = {}
    session = History(
        GUARDED, settings=ApprovalSettings(require_keys=True), find_approver=known.get
    )
    operation_id = asked(session)
    signed = ANN.sign("default", session.answer_to(operation_id))
    assert session.put("approval", signed).code == "APPROVER_UNKNOWN"
    known[ANN.key_id] = Approver(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
    assert session.decide(operation_id).code == "SIGNATURE_REQUIRED"
    assert session.put("approval", signed).verified
    second = session.call(2, "guarded", a=2)
    session.settle()
    known.clear()
    again = ANN.sign("default", session.answer_to(second))
    assert session.put("approval", again).code == "APPROVER_UNKNOWN"


def test_refused_answers_are_recorded_up_to_a_limit():
    session = history()
    operation_id = asked(session)
    for _ in range(REFUSALS_MAX + 5):
        assert session.decide(operation_id, "maybe").code == "DECISION_UNKNOWN"
    assert len(session.of(approval.AnswerRefused)) == REFUSALS_MAX
    session.pass_ms(60_000)
    session.decide(operation_id, "maybe")
    assert len(session.of(approval.AnswerRefused)) == REFUSALS_MAX + 1


def test_a_refused_answer_without_any_request_leaves_no_fact():
    session = history()
    operation_id = asked(session)
    answer = session.answer_to(operation_id)
    other = history()
    assert other.put("approval", answer).code == "APPROVAL_NOT_FOUND"
    assert other.facts == []


def test_inputs_of_the_machine_do_not_change_a_calls_approval():
    session = history()
    operation_id = asked(session)
    approval_id = session.asked(operation_id).approval_id
    params = {"approval_id": approval_id, "decision": "Approve"}
    command = HandleInput(input="decide_approval", params=params)
    said = session.put("approval", command, verb="approvals")
    assert isinstance(said, CodedError)
    assert said.code == "GUARD_REJECTED"


def test_an_allowed_call_that_waits_for_a_slot_keeps_its_grant():
    session = history()
    operation_id = asked(session)
    ledger_state = session.states["turn"]
    allowed = tool.Allowed(
        id="tool.s.9", run="run-1", operation_id=operation_id, grant_id="g", session="s"
    )
    after = session.concerns["turn"].evolve(ledger_state, allowed)
    (prepare,) = session.concerns["turn"].effects(after, allowed)
    assert isinstance(prepare, PrepareCall)
    assert prepare.call.grant_id == "g"


# --- no dispatcher --------------------------------------------------------------------------------


@pytest.mark.parametrize(("amount", "executions"), [(1, 1), (5, 0)])
def test_without_a_dispatcher_only_a_rule_allows_a_call(amount: int, executions: int):
    policy = AutoApproval(AutoRule("args.a < 2"))
    session = History(
        capability("guarded", approval_policy=policy), settings=ApprovalSettings(dispatchers=())
    )
    session.call(1, "guarded", a=amount)
    session.settle()
    assert len(session.acts) == executions
    closed = [(fact.status, fact.reason_code) for fact in session.of(approval.Closed)]
    assert closed == [("denied", "missing.approval_dispatcher")] * (1 - executions)
    assert len(session.of(approval.DispatchResulted)) == 1 - executions
