"""The lists of approvals and grants, folded from their facts."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from rookery.actors.approvals.broker import intent_record, record_base
from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.projections.lists import approvals
from rookery.actors.projections.lists.approvals import ApprovalQueryHandler
from rookery.actors.projections.reports.trust_reports import ApproverReport
from rookery.ops.cli.rendering.approval_lines import approval_lines, changed_approvals
from rookery.schemas.approvals.lists import (
    ApprovalState,
    GrantedQuery,
    ListedApproval,
    PendingQuery,
)
from rookery.schemas.approvals.records import (
    ApprovalRecord,
    ApprovalTerminalStatus,
    RequestedRecord,
)
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind
from tests.approvals.dispatchers.dispatch_fixtures import REQUEST
from tests.projections.fact_builders import BEGIN_MS, FactHistory

DUE_MS: Final = BEGIN_MS + 60_000
INTENT: Final = intent_record(REQUEST, 2)
REQUESTED: Final = JournalRecord.feature_record(
    record_base(REQUEST, 1, "requested"),
    JournalRecordKind.APPROVAL,
    event_family="approval",
    event_kind="approval_requested",
    subject_ref=REQUEST.subject_ref(),
    content_refs=(),
    payload=ApprovalRecord.of(RequestedRecord(request=REQUEST)),
)


def requested(approval_id: str, *, due_ms: int = DUE_MS, attempt: int = 1) -> facts.Requested:
    return facts.Requested(**_call(approval_id, attempt), due_ms=due_ms, record=REQUESTED)


def asked(approval_id: str, *dispatchers: str) -> facts.DispatchIntended:
    return facts.DispatchIntended(**_of(approval_id), dispatchers=dispatchers, record=INTENT)


def answered(approval_id: str, decision: str) -> facts.Answered:
    return facts.Answered(
        **_of(approval_id),
        decision=decision,
        actor="ann",
        verified=True,
        reason="fine",
        answer_digest="a",
        record=INTENT,
    )


def closed(approval_id: str, status: ApprovalTerminalStatus, code: str) -> facts.Closed:
    return facts.Closed(**_of(approval_id), status=status, reason_code=code, record=INTENT)


def granted(approval_id: str, grant_id: str) -> facts.GrantIssued:
    return facts.GrantIssued(
        **_of(approval_id), grant_id=grant_id, request_digest="d" * 64, expires_at_ms=DUE_MS
    )


def _of(approval_id: str) -> dict[str, str]:
    return {"approval_id": approval_id, "operation_id": approval_id.split(".")[1]}


def _call(approval_id: str, attempt: int = 1) -> dict[str, Any]:
    return {
        **_of(approval_id),
        "run": "r1",
        "attempt": attempt,
        "tool": "pay",
        "surface": "local",
        "side_effect": SideEffect.WRITE,
        "idempotent": False,
        "schema_digest": "s",
        "policy": "approval.manual",
        "request_digest": "d" * 64,
        "arguments_ref": "blob:" + "d" * 64,
        "summary": "pay(to: text of 3)",
    }


def listed(history: FactHistory, now_ms: int = BEGIN_MS, **query: Any) -> list[ListedApproval]:
    view = ApprovalQueryHandler.without_node(history, lambda: now_ms)
    return list(asyncio.run(view.list_approvals(PendingQuery(**query))).approvals)


def grants(
    history: FactHistory, now_ms: int = BEGIN_MS, **query: Any
) -> list[tuple[str, str, str]]:
    view = ApprovalQueryHandler.without_node(history, lambda: now_ms)
    found = asyncio.run(view.list_grants(GrantedQuery(**query))).grants
    return [(grant.grant_id, grant.tool, grant.state.value) for grant in found]


def test_what_waits_is_listed_with_all_one_must_know_to_answer():
    history = FactHistory()
    history.say("s", requested("s.1"), asked("s.1", "inbox", "webhook"))
    (one,) = listed(history)
    assert (one.session_id, one.run_id, one.operation_id) == ("s", "r1", "1")
    assert (one.tool, one.side_effect, one.summary) == ("pay", "write", "pay(to: text of 3)")
    assert (one.request_digest, one.dispatchers) == ("d" * 64, ("inbox", "webhook"))
    assert one.allowed_decisions == ("Approved", "Denied")
    assert one.policy_refs == ("manual",)
    assert (one.requested_at_ms, one.due_ms) == (BEGIN_MS + 1, DUE_MS)
    history.say("s", facts.Escalated(**_of("s.1"), dispatchers=("service", "inbox")))
    assert listed(history)[0].dispatchers == ("inbox", "webhook", "service")


def test_pending_approvals_are_sorted_by_due_time_and_precede_ended_ones():
    history = FactHistory()
    history.say("s", requested("s.1", due_ms=DUE_MS + 1), requested("s.2"), requested("s.3"))
    history.say("t", requested("t.4", due_ms=DUE_MS - 1))
    history.say("s", answered("s.3", "approved"), granted("s.3", "g3"))
    assert [one.approval_id for one in listed(history)] == ["t.4", "s.2", "s.1"]
    assert [one.approval_id for one in listed(history, session="s")] == ["s.2", "s.1"]
    assert [one.approval_id for one in listed(history, ended=True)] == ["t.4", "s.2", "s.1", "s.3"]
    assert [one.approval_id for one in listed(history, limit=1)] == ["t.4"]
    assert listed(history, approval_id="s.3")[0].state is ApprovalState.APPROVED
    assert listed(history, approval_id="s.9") == []


def test_an_ended_approval_shows_its_end_and_its_actor():
    history = FactHistory()
    for number, (say, state, code) in enumerate(
        [
            (lambda a: [answered(a, "approved")], "approved", "approval.approved"),
            (
                lambda a: [answered(a, "approved_for_session")],
                "approved_for_session",
                "approval.approved_for_session",
            ),
            (
                lambda a: [
                    answered(a, "denied"),
                    closed(a, ApprovalTerminalStatus.DENIED, "approval.denied"),
                ],
                "denied",
                "approval.denied",
            ),
            (
                lambda a: [closed(a, ApprovalTerminalStatus.TIMED_OUT, "approval.timeout")],
                "timed_out",
                "approval.timeout",
            ),
        ]
    ):
        approval_id = f"s.{number}"
        history.say("s", requested(approval_id))
        history.say("s", *say(approval_id))
        (one,) = listed(history, approval_id=approval_id)
        assert (one.state.value, one.reason_code) == (state, code)
        assert one.ended_at_ms == history.now_ms
        assert one.verified is (state != "timed_out")


def test_refused_answers_are_counted_and_change_nothing():
    history = FactHistory()
    history.say("s", requested("s.1"))
    wrong = {"code": "SIGNATURE_INVALID", "message": "no", "decision": "approved", "actor": "eve"}
    for _ in range(2):
        history.say("s", facts.AnswerRefused(**_of("s.1"), **wrong))
    (one,) = listed(history)
    assert (one.state, one.answers_refused) == (ApprovalState.PENDING, 2)


def test_a_grant_is_listed_until_it_is_used_revoked_or_over():
    history = FactHistory()
    history.say("s", requested("s.1"), requested("s.2"), requested("s.3"))
    history.say("s", answered("s.1", "approved"), granted("s.1", "g1"))
    history.say("s", answered("s.2", "approved_for_session"), granted("s.2", "g2"))
    for_session = facts.SessionGrantIssued(
        grant_id="sg",
        approval_id="s.2",
        tool="pay",
        policy="approval.manual",
        actor="ann",
        expires_at_ms=DUE_MS + 5,
    )
    history.say("s", for_session)
    assert grants(history) == [
        ("sg", "pay", "issued"),
        ("g2", "pay", "issued"),
        ("g1", "pay", "issued"),
    ]
    history.say("s", facts.GrantConsumed(**_of("s.1"), grant_id="g1"))
    history.say("s", facts.GrantRevoked(grant_id="g2", revoked_by="cmd"))
    assert grants(history) == [("sg", "pay", "issued")]
    assert grants(history, DUE_MS + 5) == []
    assert grants(history, DUE_MS + 5, ended=True) == [
        ("sg", "pay", "expired"),
        ("g2", "pay", "revoked"),
        ("g1", "pay", "consumed"),
    ]
    assert grants(history, session="t") == []


def test_an_automatic_grant_names_its_tool_too():
    history = FactHistory()
    automatic = facts.AutoAllowed(**_call("s.1"), rule="true")
    history.say("s", automatic, granted("s.1", "g1"))
    assert grants(history) == [("g1", "pay", "issued")]
    assert listed(history, ended=True) == []


def test_a_session_that_cannot_be_is_refused():
    for ask in (listed, grants):
        with pytest.raises(Refused, match="INVALID_SESSION_ID"):
            ask(FactHistory(), session="a b")


def test_only_the_newest_ended_approvals_are_stored():
    history, table = FactHistory(), approvals.ApprovalProjection()
    for number in range(approvals.ENDED_KEPT_MAX + 2):
        history.say("s", requested(f"s.{number}"), answered(f"s.{number}", "approved"))
        table.apply(history.messages[-1])
    ended = list(table.approvals(ended=True))
    assert len(ended) == approvals.ENDED_KEPT_MAX
    assert ended[-1].approval_id == "s.2"


def test_a_message_that_cannot_be_read_hides_no_other():
    history = FactHistory()
    history.write("approval", "s", b'{"sealed": true}')
    history.write("approval", "s", b'[{"type": "approval.invented.v9"}]')
    history.say("s", requested("s.1"))
    assert len(listed(history)) == 1


def test_an_end_of_a_newer_version_hides_no_other():
    history = FactHistory()
    history.say("s", requested("s.1"), requested("s.2"), requested("s.3"))
    for newer in (
        {"type": "approval.answered.v1", "approval_id": "s.1", "decision": "approved_by_two"},
        {"type": "approval.closed.v1", "approval_id": "s.2", "status": "postponed"},
    ):
        history.write("approval", "s", msgspec.json.encode([newer]))
    history.say("s", answered("s.3", "approved"))
    assert [one.approval_id for one in listed(history)] == ["s.1", "s.2"]
    assert listed(history, approval_id="s.3")[0].state is ApprovalState.APPROVED


def test_a_live_feed_shows_new_and_ended_approvals():
    history, table = FactHistory(), approvals.ApprovalProjection()
    history.say("s", requested("s.1"))
    history.say("s", asked("s.1", "inbox"))
    history.say("s", answered("s.1", "denied"), requested("s.2"))
    listed = [
        [(one.approval_id, one.state.value) for one in changed_approvals(table, stored)]
        for stored in history.messages
    ]
    assert listed == [[("s.1", "pending")], [], [("s.1", "denied"), ("s.2", "pending")]]


def test_what_others_wrote_does_not_move_the_cursor():
    history = FactHistory()
    history.say("s", requested("s.1"))
    evil = answered("s.1", "denied")
    history.say("s", facts.Answered(**{**_fields(evil), "reason": "ok\x1b[2J\nstate  approved"}))
    (one,) = listed(history, ended=True)
    lines = approval_lines(one, ["ann"], BEGIN_MS)
    assert all(value.isprintable() for _, value in lines)


def _fields(fact: facts.Answered) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in fact.__struct_fields__}


def test_keys_are_listed_with_their_revocation():
    ann, bob = Signer(b"a" * 32), Signer(b"b" * 32)
    history = FactHistory()
    for name, signer in (("ann", ann), ("bob", bob), ("ann", bob)):
        history.say(
            APPROVERS_KEY,
            facts.ApproverAdded(name=name, key_id=signer.key_id, public_key=signer.public_key),
        )
    history.say(APPROVERS_KEY, facts.ApproverRevoked(name="ann", key_id=ann.key_id))
    report = ApproverReport.read(history.messages, "default")
    assert [(key.name, key.key_id, key.revoked_at_ms is None) for key in report.keys] == [
        ("ann", ann.key_id, False),
        ("bob", bob.key_id, True),
    ]
    assert [one.reason for one in report.forged] == ["its key belongs to bob"]
