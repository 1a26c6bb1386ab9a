"""The broker: every outcome of a dispatch, and every append that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rookery.actors.approvals.broker import ApprovalBroker
from rookery.actors.approvals.dispatchers.protocol import (
    Cancelled,
    Decision,
    DispatchResult,
    Pending,
    TimedOut,
    Unavailable,
)
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalRequest,
    Approved,
    ApprovedForSession,
    Denied,
    approved,
    approved_for_session,
    denied,
)
from rookery.schemas.ids import EffectId, TypedText
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind
from rookery.schemas.seed.refs import SourceKind, SourceRef
from tests.approvals.request_fixtures import REQUEST, TERMS, Says, request


class Ledger:
    """A run's journal whose appends fail as the test says."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.attempted: list[JournalRecord] = []
        self.records: list[JournalRecord] = []
        self.outcomes: list[ApprovalBrokerOutcome | None] = []

    async def append(
        self, record: JournalRecord, outcome: ApprovalBrokerOutcome | None = None
    ) -> str:
        self.attempted.append(record)
        if len(self.attempted) in self.failing:
            raise OSError("no space left")
        self.records.append(record)
        self.outcomes.append(outcome)
        return f"journal.{len(self.records)}"


def text(value: Any) -> Any:
    return value.as_str() if isinstance(value, TypedText) else value


def dispatch(
    dispatcher: Says | None,
    *failing: int,
    of: ApprovalRequest = REQUEST,
    before: Callable[[ApprovalBroker], None] = lambda broker: None,
) -> tuple[Any, Ledger]:
    """The outcome of a dispatch, returned or raised, and the records."""
    ledger = Ledger(*failing)
    broker = ApprovalBroker(ledger)
    before(broker)
    try:
        return asyncio.run(broker.request_approval(of, dispatcher, TERMS)), ledger
    except AgentError as error:
        return error, ledger


ITSELF = SourceRef.new("agent.s", SourceKind.EXTENSION)
ONLY_ONCE = request(allowed_decisions=(ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED))
SAID = {
    "approved": approved("ann"),
    "for session": approved_for_session("ann"),
    "denied": denied("not.today"),
}
# fmt: off
ROWS: list[tuple[str, ApprovalRequest, DispatchResult | Exception | None, str, str, str, Any]] = [
    ("approved", REQUEST, Decision(SAID["approved"]),
     "approved", "approval.approved", "completed", SAID["approved"]),
    ("approved for session", REQUEST, Decision(SAID["for session"]),
     "approved_for_session", "approval.approved_for_session", "completed", SAID["for session"]),
    ("denied", REQUEST, Decision(SAID["denied"]),
     "denied", "not.today", "denied_before_execution", SAID["denied"]),
    ("not allowed", ONLY_ONCE, Decision(SAID["for session"]),
     "denied", "approval.decision_not_allowed", "denied_before_execution",
     denied("approval.decision_not_allowed")),
    ("approves itself", REQUEST, Decision(Approved(actor_ref=ITSELF)),
     "denied", "approval.extension_self_response", "denied_before_execution",
     denied("approval.extension_self_response")),
    ("denies itself", REQUEST, Decision(Denied(reason_code="x", actor_ref=ITSELF)),
     "denied", "approval.extension_self_response", "denied_before_execution",
     denied("approval.extension_self_response")),
    ("itself, and not allowed", ONLY_ONCE, Decision(ApprovedForSession(actor_ref=ITSELF)),
     "denied", "approval.extension_self_response", "denied_before_execution",
     denied("approval.extension_self_response")),
    ("timed out", REQUEST, TimedOut(),
     "timed_out", "approval.timeout", "timed_out", None),
    ("called off", REQUEST, Cancelled(),
     "cancelled", "approval.cancelled", "cancelled", None),
    ("unavailable", REQUEST, Unavailable("pager.off"),
     "dispatcher_unavailable", "pager.off", "failed", None),
    ("raised", REQUEST, RuntimeError("boom"),
     "dispatcher_unavailable", "approval.dispatcher_error", "failed", None),
    ("missing", REQUEST, None,
     "denied", "missing.approval_dispatcher", "failed", None),
]
# fmt: on


@pytest.mark.parametrize(
    ("of", "says", "status", "reason", "effect", "decision"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_every_outcome_of_a_dispatch_has_its_row(
    of: ApprovalRequest,
    says: DispatchResult | Exception | None,
    status: str,
    reason: str,
    effect: str,
    decision: Any,
):
    outcome, ledger = dispatch(None if says is None else Says(says), of=of)
    assert (outcome.status, outcome.reason_code) == (status, reason)
    assert outcome.decision == decision
    assert outcome.releases_tool_execution() is status.startswith("approved")
    intent, result = ledger.records
    recorded = result.payload.record
    assert recorded.effect_result.terminal_status == effect
    assert recorded.lifecycle_status == status
    assert recorded.effect_result.redacted_summary == f"approval {status}"
    assert recorded.effect_result.effect_id == intent.payload.record.effect_intent.effect_id
    assert ledger.outcomes == [None, outcome], "the outcome is appended with its result"


def test_another_actor_of_the_same_name_is_not_the_requester():
    outcome, _ = dispatch(Says(Decision(approved("agent.s"))))
    assert outcome.releases_tool_execution()


def test_only_an_extension_can_answer_its_own_request():
    source = SourceRef.new("ann", SourceKind.USER)
    answer = Decision(Approved(actor_ref=source))
    outcome, _ = dispatch(Says(answer), of=request(source=source))
    assert outcome.releases_tool_execution()


def test_a_pending_answer_has_no_result_record():
    outcome, ledger = dispatch(Says(Pending()))
    assert outcome == Pending()
    assert [record.record_id for record in ledger.records] == [
        "journal.record.approval.s.call-1.intent"
    ]


def test_the_records_have_the_seeds_names():
    _, ledger = dispatch(Says(Decision(approved("ann"))))
    assert [record.record_id for record in ledger.records] == [
        "journal.record.approval.s.call-1.intent",
        "journal.record.approval.s.call-1.result",
    ]
    for seq, record in enumerate(ledger.records, 1):
        assert (record.journal_seq, record.timestamp_millis) == (seq, 1_000 + seq)
        assert record.tags == ("approval",)
        assert record.record_kind is JournalRecordKind.APPROVAL
        assert [ref.as_str() for ref in record.related_refs] == ["effect.s.call-1"]
        assert record.runtime_package_fingerprint == "sha256:x"
    kinds = [record.event_index.event_kind for record in ledger.records]
    assert kinds == ["approval_dispatch_intent", "approval_dispatch_result"]


def test_an_invalid_request_is_not_recorded():
    error, ledger = dispatch(Says(Pending()), of=request(policy_refs=()))
    assert error == AgentError.missing_required_field("approval_request.policy_refs")
    assert ledger.attempted == []


def test_a_cancellation_before_the_dispatch_applies_once():
    dispatcher, ledger = Says(Decision(approved("ann"))), Ledger()
    broker = ApprovalBroker(ledger)
    broker.cancel_before_dispatch("s.call-1")
    broker.cancel_before_dispatch("s.call-2")

    async def twice() -> list[Any]:
        return [await broker.request_approval(REQUEST, dispatcher, TERMS) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert (first.status, first.reason_code) == ("cancelled", "approval.cancelled")
    assert second.status == "approved"
    assert dispatcher.asked == ["s.call-1"]
    assert [record.journal_seq for record in ledger.records] == [1, 2, 3, 4]


# --- faults ---------------------------------------------------------------------------------------


def kinds(error: AgentError) -> tuple[AgentErrorKind, RetryClassification]:
    assert error.context.subject is not None
    assert error.context.subject.as_str() == "s.call-1"
    return error.kind, error.retry


JOURNAL = (AgentErrorKind.JOURNAL_FAILURE, RetryClassification.REPAIR_NEEDED)
RECOVERY = (AgentErrorKind.RECOVERY_REPAIR_NEEDED, RetryClassification.REPAIR_NEEDED)


def test_without_a_journaled_intent_nothing_is_dispatched():
    dispatcher = Says(Decision(approved("ann")))
    error, ledger = dispatch(dispatcher, 1)
    assert kinds(error) == JOURNAL
    assert dispatcher.asked == []
    assert len(ledger.attempted) == 1


@pytest.mark.parametrize("says", [row[2] for row in ROWS if row[2] is not None], ids=repr)
def test_a_result_that_is_not_journaled_leaves_a_recovery_record_and_releases_nothing(
    says: DispatchResult | Exception,
):
    error, ledger = dispatch(Says(says), 2)
    assert kinds(error) == RECOVERY
    intent, recovery = ledger.records
    assert recovery.record_kind is JournalRecordKind.RECOVERY
    assert recovery.record_id == "journal.record.approval.s.call-1.recovery"
    assert recovery.journal_seq == ledger.attempted[1].journal_seq == 2
    (pending,) = recovery.payload.unsafe_pending
    assert pending.effect_id == EffectId("effect.s.call-1")
    assert pending.intent_record_id == intent.record_id
    assert (pending.idempotency_key, pending.dedupe_key) == (None, None)


def test_a_recovery_record_that_is_not_journaled_releases_nothing():
    error, ledger = dispatch(Says(Decision(approved("ann"))), 2, 3)
    assert kinds(error) == RECOVERY
    assert len(ledger.records) == 1


def test_a_request_that_was_not_dispatched_needs_no_recovery():
    error, ledger = dispatch(None, 2)
    assert kinds(error) == JOURNAL
    assert len(ledger.attempted) == 2
    error, ledger = dispatch(
        Says(Pending()), 2, before=lambda broker: broker.cancel_before_dispatch("s.call-1")
    )
    assert kinds(error) == JOURNAL
    assert len(ledger.attempted) == 2


@pytest.mark.parametrize("failing", [(1,), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("says", list(SAID.values()), ids=list(SAID))
def test_a_failed_append_returns_no_outcome(failing: tuple[int, ...], says: Any):
    error, _ = dispatch(Says(Decision(says)), *failing)
    assert isinstance(error, AgentError)
